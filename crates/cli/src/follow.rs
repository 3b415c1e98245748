//! Everything that happens in a thread, in order and once, for a verb that shows it.
//!
//! A feed tells a reader that was too slow how many events it missed. What was durable among them is in the store, and is read
//! from there; only progress is lost.

use std::collections::VecDeque;
use std::sync::Arc;

use outpost_runtime::feed::{FeedReader, Read};
use outpost_runtime::live::{LiveThread, ThreadActivity, ThreadEvent};
use outpost_store::Store;
use outpost_thread::{Seq, ThreadId};

pub struct ThreadFollower {
    thread: ThreadId,
    store: Store,
    feed: FeedReader<ThreadEvent>,
    /// The last entry that was told.
    last: Seq,
    /// Entries that were read from the store and not told yet.
    waiting: VecDeque<ThreadEvent>,
    /// Whether something is to be read from there first.
    behind: bool,
}

impl ThreadFollower {
    /// From the entry after `last` on.
    pub fn after(last: Seq, thread: &LiveThread, store: &Store) -> Self {
        Self { thread: thread.id(), store: store.clone(), feed: thread.subscribe(), last, waiting: VecDeque::new(), behind: false }
    }

    /// The same for a thread that was working before this follower began.
    pub fn catching_up(last: Seq, thread: &LiveThread, store: &Store) -> Self {
        Self { behind: true, ..Self::after(last, thread, store) }
    }

    /// The next event if there is one already.
    pub async fn ready(&mut self) -> Option<ThreadEvent> {
        loop {
            self.catch_up().await;
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            let read = self.feed.try_next()?;
            if let Some(event) = self.take(read) {
                return Some(event);
            }
        }
    }

    /// The next event, as soon as there is one. Cancel safe.
    pub async fn next(&mut self) -> ThreadEvent {
        loop {
            if let Some(event) = self.ready().await {
                return event;
            }
            let read = self.feed.next().await;
            if let Some(event) = self.take(read) {
                return event;
            }
        }
    }

    fn take(&mut self, read: Read<ThreadEvent>) -> Option<ThreadEvent> {
        match read {
            Read::Event(ThreadEvent::Entry(entry)) if entry.seq <= self.last => None,
            Read::Event(event) => {
                if let ThreadEvent::Entry(entry) = &event {
                    self.last = entry.seq;
                }
                Some(event)
            }
            Read::Missed(count) => {
                tracing::debug!(count, "events were missed; reading them from the store");
                self.behind = true;
                None
            }
            Read::End => Some(ThreadEvent::Status(ThreadActivity::Closed)),
        }
    }

    async fn catch_up(&mut self) {
        if !self.behind {
            return;
        }
        let entries = match self.store.history(self.thread, self.last).await {
            Ok(history) => history.rest().await.map(|batch| batch.entries),
            Err(error) => Err(error),
        };
        self.behind = false;
        match entries {
            Ok(entries) => {
                self.last = entries.last().map_or(self.last, |entry| entry.seq);
                self.waiting.extend(entries.into_iter().map(|entry| ThreadEvent::Entry(Arc::new(entry))));
            }
            Err(error) => tracing::warn!(%error, "what happened meanwhile cannot be read"),
        }
    }
}
