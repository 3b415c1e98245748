//! Everything that happens in a thread, in order and once: the one way in which the program that loaded it, a server and a command
//! line follow it.
//!
//! A feed tells a reader that was too slow how many events it missed. What was durable among them is in the store, and is read
//! from there; only progress is lost.

use std::collections::VecDeque;
use std::sync::Arc;

use outpost_store::{HistoryReader, ReadError, Store};
use outpost_thread::{Ordinal, ThreadId};

use crate::feed::{FeedReader, Read};
use crate::live::{LiveThread, ThreadActivity, ThreadEvent};

pub struct ThreadFollower {
    thread: ThreadId,
    store: Store,
    feed: FeedReader<ThreadEvent>,
    /// The last entry that was returned.
    last: Ordinal,
    /// Entries that were read from the store and not returned yet.
    waiting: VecDeque<ThreadEvent>,
    /// Whether something is to be read from there first.
    behind: bool,
    /// Where that has come to. It may be dropped at any time: `last` is enough to go on.
    history: Option<HistoryReader>,
}

/// What a follower returns.
#[derive(Debug)]
pub enum Followed {
    Event(ThreadEvent),
    /// What was missed cannot be read. The next call goes on with what comes after it.
    Unreadable(ReadError),
    /// The thread is not loaded any more.
    End,
}

/// For those that only show what happens.
impl From<Followed> for ThreadEvent {
    fn from(followed: Followed) -> Self {
        match followed {
            Followed::Event(event) => event,
            Followed::Unreadable(error) => Self::Warning { message: format!("a part of what happened cannot be read: {error}") },
            Followed::End => Self::Status(ThreadActivity::Closed),
        }
    }
}

impl LiveThread {
    /// Everything after an entry, without gaps: what is stored already, and then what happens.
    pub fn follow(&self, after: Ordinal) -> ThreadFollower {
        // First to listen and then to look, so that nothing falls in between.
        let feed = self.feed.subscribe();
        let behind = self.feed.mark() > after;
        let (thread, store) = (self.id(), self.store.clone());
        ThreadFollower { thread, store, feed, last: after, waiting: VecDeque::new(), behind, history: None }
    }

    /// The last entry that is stored and was told.
    pub fn last_stored(&self) -> Ordinal {
        self.feed.mark()
    }

    /// Everything that is stored from now on, and what happens besides.
    pub fn follow_from_now(&self) -> ThreadFollower {
        self.follow(self.feed.mark())
    }
}

impl ThreadFollower {
    /// What there is already.
    pub async fn ready(&mut self) -> Option<Followed> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(Followed::Event(event));
            }
            if self.behind {
                if let Err(error) = self.catch_up().await {
                    self.behind = false;
                    return Some(Followed::Unreadable(error));
                }
                continue;
            }
            let read = self.feed.try_next()?;
            if let Some(followed) = self.take(read) {
                return Some(followed);
            }
        }
    }

    /// What comes next, as soon as there is something. Cancel safe.
    pub async fn next(&mut self) -> Followed {
        loop {
            if let Some(followed) = self.ready().await {
                return followed;
            }
            let read = self.feed.next().await;
            if let Some(followed) = self.take(read) {
                return followed;
            }
        }
    }

    fn take(&mut self, read: Read<ThreadEvent>) -> Option<Followed> {
        match read {
            Read::Event(ThreadEvent::Entry(entry)) if entry.ordinal <= self.last => None,
            Read::Event(event) => {
                if let ThreadEvent::Entry(entry) = &event {
                    self.last = entry.ordinal;
                }
                Some(Followed::Event(event))
            }
            Read::Missed(count) => {
                tracing::debug!(thread = %self.thread, count, "events were missed; reading them from the store");
                self.behind = true;
                None
            }
            Read::End => Some(Followed::End),
        }
    }

    /// Reads one batch of what was missed.
    async fn catch_up(&mut self) -> Result<(), ReadError> {
        // Taken out: dropped in the middle of a read, it would skip what it was reading.
        let reading = match self.history.take() {
            Some(history) => Ok(history),
            None => self.store.history(self.thread, self.last).await,
        };
        let mut history = match reading {
            // Nothing is written down before the first input.
            Err(ReadError::NotFound(_)) => {
                self.behind = false;
                return Ok(());
            }
            history => history?,
        };
        match history.next().await? {
            None => self.behind = false,
            Some(batch) => {
                let entries = batch.with_gaps();
                self.last = entries.last().map_or(self.last, |entry| entry.end());
                self.waiting.extend(entries.into_iter().map(|entry| ThreadEvent::Entry(Arc::new(entry))));
                self.history = Some(history);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use outpost_store::{MemoryStore, Need, Store};
    use outpost_thread::{Entry, MetadataChanged, ThreadCreated};
    use tokio::sync::{mpsc, watch};
    use uuid::Uuid;

    use super::*;
    use crate::feed::{FeedLimits, ThreadFeed};

    const THREAD: ThreadId = ThreadId::new(Uuid::from_u128(7));

    fn entry(ordinal: Ordinal) -> Entry {
        let fact = if ordinal == 1 { ThreadCreated::new(THREAD).into() } else { MetadataChanged::default().into() };
        Entry { ordinal, at: ordinal, fact }
    }

    /// A thread with so many entries, whose feed remembers two events.
    async fn thread(entries: Ordinal) -> (LiveThread, mpsc::Receiver<crate::live::DriverCommand>) {
        let store = Store::Memory(MemoryStore::new(Arc::new(|| 0), None));
        let lease = store.create(THREAD).await.unwrap();
        store.append(&lease, (1..=entries).map(entry).collect(), Need::Stored).await.unwrap();
        let (mailbox, commands) = mpsc::channel(1);
        let feed = Arc::new(ThreadFeed::new(FeedLimits { events: 2, weight: 1 << 20 }));
        let (_, status) = watch::channel(ThreadActivity::Closed);
        (LiveThread { id: THREAD, mailbox, feed, store, status, maker: None, internal: false }, commands)
    }

    fn publish(live: &LiveThread, ordinal: Ordinal) {
        live.feed.publish(ThreadEvent::Entry(Arc::new(entry(ordinal))), 1);
        live.feed.set_mark(ordinal);
    }

    async fn ordinals(follower: &mut ThreadFollower) -> Vec<Ordinal> {
        let mut ordinals = Vec::new();
        while let Some(Followed::Event(ThreadEvent::Entry(entry))) = follower.ready().await {
            ordinals.push(entry.ordinal);
        }
        ordinals
    }

    #[tokio::test]
    async fn what_was_stored_before_what_was_missed_and_what_is_new_comes_once_and_in_order() {
        let (live, _commands) = thread(9).await;
        (1..=4).for_each(|ordinal| publish(&live, ordinal));
        let (mut behind, mut new) = (live.follow(2), live.follow_from_now());
        // More than the feed remembers.
        (5..=9).for_each(|ordinal| publish(&live, ordinal));
        assert_eq!(ordinals(&mut behind).await, [3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(ordinals(&mut new).await, [5, 6, 7, 8, 9]);
        assert_eq!(ordinals(&mut live.follow(9)).await, [0; 0]);
        live.feed.end();
        assert!(matches!(behind.next().await, Followed::End));
    }
}
