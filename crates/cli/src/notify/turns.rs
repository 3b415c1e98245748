//! Notifications of the turns of every thread that a process drives for others: `serve`, `app-server` and the background process of a home.
//! Only the process that drives a thread notifies; clients that are attached to it do not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outpost_runtime::Runtime;
use outpost_runtime::live::{LiveThread, ThreadActivity, ThreadEvent};
use outpost_store::PageRequest;
use outpost_thread::{Fact, Ordinal, ThreadId};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Notifier;
use crate::owner::{LOOK, loaded};
use crate::store;

pub(crate) struct Notifying {
    notifier: Notifier,
    /// Who follows which thread.
    followed: HashMap<ThreadId, AbortHandle>,
    told: NotifiedUpTo,
    tasks: JoinSet<()>,
    over: CancellationToken,
    /// What happened before was not the work of this process.
    looked_at: u64,
}

/// How far each loaded thread was told.
#[derive(Clone, Default)]
struct NotifiedUpTo(Arc<Mutex<HashMap<ThreadId, Ordinal>>>);

impl NotifiedUpTo {
    fn lock(&self) -> MutexGuard<'_, HashMap<ThreadId, Ordinal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notifying {
    pub(crate) fn new(notifier: Notifier) -> Self {
        let (followed, tasks, over) = (HashMap::new(), JoinSet::new(), CancellationToken::new());
        Self { notifier, followed, told: NotifiedUpTo::default(), tasks, over, looked_at: store::now() }
    }

    /// Looks again and again. Never returns.
    pub(crate) async fn run(&mut self, runtime: &Runtime) {
        if self.notifier.is_silent() {
            return std::future::pending().await;
        }
        loop {
            self.look(runtime, &loaded(runtime));
            sleep(LOOK).await;
        }
    }

    /// Follows the threads in which something happened. One in which nothing happens is not held, so that it can be unloaded.
    pub(crate) fn look(&mut self, runtime: &Runtime, live: &[LiveThread]) {
        let looked_at = std::mem::replace(&mut self.looked_at, store::now());
        if self.notifier.is_silent() {
            return;
        }
        self.followed.retain(|_, task| !task.is_finished());
        while self.tasks.try_join_next().is_some() {}
        // One that is unloaded may go on in another process, which notifies then.
        self.told.lock().retain(|id, _| live.iter().any(|thread| thread.id() == *id));
        for thread in live {
            if self.followed.contains_key(&thread.id()) {
                continue;
            }
            let told = self.told.lock().get(&thread.id()).copied();
            if told.is_some_and(|told| told >= thread.last_stored()) && !is_active(thread) {
                continue;
            }
            let notifier = self.notifier.clone().of_thread(root_of(thread, live));
            let watch = TurnWatch { thread: thread.clone(), notifier, after: told, since: looked_at, told: self.told.clone() };
            self.followed.insert(thread.id(), self.tasks.spawn(watch.run(runtime.clone(), self.over.clone())));
        }
    }

    /// Waits until everything that happened was told.
    pub(crate) async fn finish(mut self) {
        self.over.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// The thread that the user talks to: an agent's questions are answered there.
fn root_of(thread: &LiveThread, live: &[LiveThread]) -> ThreadId {
    let (mut root, mut maker) = (thread.id(), thread.maker());
    while let Some(id) = maker {
        root = id;
        maker = live.iter().find(|thread| thread.id() == id).and_then(LiveThread::maker);
    }
    root
}

fn is_active(thread: &LiveThread) -> bool {
    matches!(thread.status(), ThreadActivity::Active { .. })
}

/// A thread of whose turns the user is notified, until nothing more happens in it.
struct TurnWatch {
    thread: LiveThread,
    notifier: Notifier,
    /// What was told before, if the thread is not new here.
    after: Option<Ordinal>,
    /// Of one that is new, a turn may be over before it is followed. What is older was told by the process that drove it then.
    since: u64,
    told: NotifiedUpTo,
}

impl TurnWatch {
    async fn run(mut self, runtime: Runtime, over: CancellationToken) {
        let mut last = match self.after {
            Some(after) => after,
            None => last_turn(&runtime, self.thread.id()).await.saturating_sub(1),
        };
        drop(runtime);
        let mut follow = self.thread.follow(last);
        loop {
            let event: ThreadEvent = match follow.ready().await {
                Some(followed) => followed.into(),
                None if !is_active(&self.thread) => break,
                None => tokio::select! {
                    // Everything that has happened, before the end.
                    biased;
                    followed = follow.next() => followed.into(),
                    () = over.cancelled() => break,
                },
            };
            if matches!(event, ThreadEvent::Status(ThreadActivity::Closed)) {
                break;
            }
            if let ThreadEvent::Entry(entry) = &event {
                last = entry.ordinal;
            }
            self.hear(&event);
        }
        drop(follow);
        self.told.lock().insert(self.thread.id(), last);
        self.notifier.settle().await;
    }

    fn hear(&mut self, event: &ThreadEvent) {
        let ThreadEvent::Entry(entry) = event else { return };
        let is_told = self.after.is_none() && entry.at < self.since;
        match &entry.fact {
            Fact::TurnFinished(_) | Fact::ApprovalAsked(_) if is_told => {}
            Fact::ApprovalAsked(asked) => self.notifier.question(asked),
            // How the turn of an agent ends is the concern of the thread that made it.
            _ if self.thread.maker().is_some() => {}
            _ => self.notifier.event(event),
        }
    }
}

/// The first entry of the current or last turn.
async fn last_turn(runtime: &Runtime, thread: ThreadId) -> Ordinal {
    let last = runtime.store_of(thread).await.page(thread, PageRequest { turns: 1, ..PageRequest::default() }).await;
    last.ok().and_then(|page| page.entries.first().map(|entry| entry.ordinal)).unwrap_or(1)
}
