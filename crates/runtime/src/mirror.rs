//! A thread that another process drives, as a [`LiveThread`] of this one.
//!
//! Entries and events come in from outside and are kept, folded and published as a driver would; what is asked of the thread goes out
//! as a [`MirrorCommand`]. This module knows nothing of how either of them travels.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outpost_store::{MemoryStore, Need, Store};
use outpost_thread::{ApprovalId, Decision, Entry, Fact, InterruptReason, Ordinal, Raw, Thread, ThreadId, TurnId};
use tokio::sync::{mpsc, oneshot, watch};

use crate::feed::{FeedLimits, ThreadFeed};
use crate::live::{Accepted, BackgroundProcess, CommandError, DriverCommand, LiveThread, NewInput, ThreadActivity, ThreadEvent};

/// So many commands wait to be carried out.
const COMMANDS: usize = 16;
/// About so many bytes an entry weighs in the feed.
const ENTRY_WEIGHT: usize = 512;

/// Where the outcome of a command goes.
pub type MirrorReply<T> = oneshot::Sender<Result<T, CommandError>>;

/// What the thread is asked to do, for the process that drives it.
pub enum MirrorCommand {
    Input(Box<NewInput>, MirrorReply<Accepted>),
    Interrupt { turn: Option<TurnId>, reason: InterruptReason, reply: MirrorReply<()> },
    Answer { approval: ApprovalId, decision: Decision, detail: Option<Raw>, reply: MirrorReply<()> },
    Change(Vec<Fact>, MirrorReply<()>),
    Compact(MirrorReply<TurnId>),
    Revert(TurnId, MirrorReply<()>),
    Shell { command: String, environment: Option<String>, reply: MirrorReply<crate::live::UserCommand> },
    Terminals(oneshot::Sender<Vec<BackgroundProcess>>),
    Terminate { session: Option<u64>, reply: MirrorReply<usize> },
}

/// The writing side of such a thread. Dropping it closes the thread here, and only here.
pub struct ThreadMirror {
    id: ThreadId,
    lease: outpost_store::Lease,
    store: MemoryStore,
    state: Arc<Mutex<Thread>>,
    feed: Arc<ThreadFeed<ThreadEvent>>,
    status: watch::Sender<ThreadActivity>,
    /// All turns that have begun. The last alone would not do: while there is no connection, one may end and the next one begin.
    turns: watch::Sender<HashSet<TurnId>>,
    /// The last entry that is kept.
    last: Ordinal,
}

impl ThreadMirror {
    /// `initial` is shown until entries come. The receiver is given what the thread is asked to do.
    pub async fn new(initial: Thread, store: MemoryStore, limits: FeedLimits) -> Option<(LiveThread, Self, mpsc::Receiver<MirrorCommand>)> {
        let id = initial.id;
        // One that was mirrored before is read anew.
        let _ = store.delete(id, outpost_store::ClaimMode::TakeOver).await;
        let lease = store.create(id).await.ok()?;
        let (mailbox, asked) = mpsc::channel(COMMANDS);
        let (sender, commands) = mpsc::channel(COMMANDS);
        let feed = Arc::new(ThreadFeed::new(limits));
        let (status, seen) = watch::channel(ThreadActivity::of(&initial));
        let state = Arc::new(Mutex::new(initial));
        let thread =
            LiveThread { id, mailbox, feed: feed.clone(), store: Store::Memory(store.clone()), status: seen, maker: None, internal: false };
        tokio::spawn(forward(asked, sender, state.clone()));
        Some((thread, Self { id, lease, store, state, feed, status, turns: watch::Sender::new(HashSet::new()), last: 0 }, commands))
    }

    /// The last entry that is known.
    pub fn last(&self) -> Ordinal {
        self.last
    }

    pub fn id(&self) -> ThreadId {
        self.id
    }

    /// Hears which turns have begun.
    pub fn turns(&self) -> watch::Receiver<HashSet<TurnId>> {
        self.turns.subscribe()
    }

    /// The state as it is now.
    pub fn state(&self) -> Thread {
        lock(&self.state).clone()
    }

    /// Knows which turn runs, for those who do not have the mirror itself.
    pub fn running(&self) -> RunningTurn {
        RunningTurn(self.state.clone())
    }

    /// Takes over entries in order; those that are known already are passed over. `false` if some are missing before them.
    pub async fn entries(&mut self, entries: Vec<Entry>, tells: Tells) -> bool {
        for entry in entries {
            if entry.ordinal <= self.last {
                continue;
            }
            if entry.ordinal != self.last + 1 || self.store.append(&self.lease, vec![entry.clone()], Need::Stored).await.is_err() {
                return false;
            }
            self.last = entry.end();
            let activity = self.fold(&entry);
            let begun = if let Fact::TurnStarted(started) = &entry.fact { Some(started.turn.clone()) } else { None };
            self.feed.set_mark(self.last);
            if tells == Tells::Followers {
                self.feed.publish(ThreadEvent::Entry(Arc::new(entry)), ENTRY_WEIGHT);
            }
            self.status.send_replace(activity);
            // Last: what waits for the turn looks at the status next, and ends where no turn runs.
            if let Some(begun) = begun {
                self.turns.send_modify(|turns| turns.extend([begun]));
            }
        }
        true
    }

    fn fold(&self, entry: &Entry) -> ThreadActivity {
        let mut state = lock(&self.state);
        let folded = match entry.ordinal {
            1 => Thread::begin(entry).map(|begun| *state = begun),
            _ => state.apply(entry),
        };
        if let Err(error) = folded {
            tracing::warn!(thread = %self.id, %error, "an entry of a thread elsewhere cannot be understood");
        }
        ThreadActivity::of(&state)
    }

    /// Something that is not stored.
    pub fn event(&self, event: ThreadEvent) {
        let weight = if let ThreadEvent::Output { bytes, .. } = &event { bytes.len() } else { ENTRY_WEIGHT };
        self.feed.publish(event, weight);
    }
}

/// Which turn of a mirrored thread runs.
#[derive(Clone)]
pub struct RunningTurn(Arc<Mutex<Thread>>);

impl RunningTurn {
    pub fn id(&self) -> Option<TurnId> {
        lock(&self.0).turn.as_ref().map(|turn| turn.id.clone())
    }
}

/// Whether entries are news, or what was there before anything followed the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tells {
    Followers,
    NoOne,
}

impl Drop for ThreadMirror {
    fn drop(&mut self) {
        self.status.send_replace(ThreadActivity::Closed);
        self.feed.end();
    }
}

fn lock(state: &Mutex<Thread>) -> MutexGuard<'_, Thread> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers what is known here, and passes on the rest. What a mirror cannot do is answered by dropping the question.
async fn forward(mut asked: mpsc::Receiver<DriverCommand>, commands: mpsc::Sender<MirrorCommand>, state: Arc<Mutex<Thread>>) {
    while let Some(command) = asked.recv().await {
        let command = match command {
            DriverCommand::Snapshot(reply) => {
                let state = lock(&state).clone();
                let _ = reply.send(state);
                continue;
            }
            // The process that drives it has found them.
            DriverCommand::FindCommands(reply) => {
                let _ = reply.send(Vec::new());
                continue;
            }
            DriverCommand::Input(input, reply) => MirrorCommand::Input(input, reply),
            DriverCommand::Interrupt { turn, reason, reply } => MirrorCommand::Interrupt { turn, reason, reply },
            // Who answers, the server knows of its client.
            DriverCommand::Answer { approval, decision, detail, reply, by: _ } => {
                MirrorCommand::Answer { approval, decision, detail, reply }
            }
            DriverCommand::Change(facts, reply) => MirrorCommand::Change(facts, reply),
            DriverCommand::Compact(reply) => MirrorCommand::Compact(reply),
            DriverCommand::Revert(turn, reply) => MirrorCommand::Revert(turn, reply),
            DriverCommand::Shell { command, environment, reply } => MirrorCommand::Shell { command, environment, reply },
            DriverCommand::Terminals(reply) => MirrorCommand::Terminals(reply),
            DriverCommand::Terminate { session, reply } => MirrorCommand::Terminate { session, reply },
            DriverCommand::Queue(_, reply) => {
                let _ = reply.send(Err(elsewhere()));
                continue;
            }
            DriverCommand::Sample(_, reply) => {
                let _ = reply.send(Err(elsewhere()));
                continue;
            }
            DriverCommand::StopCall(_)
            | DriverCommand::KeepServers(_)
            | DriverCommand::Shutdown(_)
            | DriverCommand::Leave(_)
            | DriverCommand::LastCalls(_)
            | DriverCommand::HandOver => continue,
        };
        if commands.send(command).await.is_err() {
            return;
        }
    }
}

fn elsewhere() -> CommandError {
    CommandError::Invalid("this cannot be asked of a thread that another process drives".into())
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Wake, Waker};

    use futures_util::FutureExt;
    use outpost_thread::{Marker, MetadataChanged, ThreadCreated, TurnFinished, TurnStarted, TurnStatus};
    use uuid::Uuid;

    use super::*;
    use crate::follow::Followed;

    const THREAD: ThreadId = ThreadId::new(Uuid::from_u128(7));

    fn entry(ordinal: Ordinal) -> Entry {
        let fact = if ordinal == 1 { ThreadCreated::new(THREAD).into() } else { MetadataChanged::default().into() };
        Entry { ordinal, at: ordinal, fact }
    }

    #[tokio::test]
    async fn entries_are_kept_once_in_order_and_followed_and_a_gap_is_told() {
        let store = MemoryStore::new(Arc::new(|| 0), None);
        let initial = Thread::begin(&entry(1)).unwrap();
        let (live, mut mirror, mut commands) = ThreadMirror::new(initial, store, FeedLimits::default()).await.unwrap();
        assert!(mirror.entries(vec![entry(1), entry(2)], Tells::NoOne).await);
        let mut follow = live.follow(2);
        assert!(mirror.entries(vec![entry(2), entry(3)], Tells::Followers).await);
        assert!(!mirror.entries(vec![entry(5)], Tells::Followers).await, "entry 4 is missing");
        assert_eq!((mirror.last(), live.snapshot().await.unwrap().last), (3, 3));
        let Some(Followed::Event(ThreadEvent::Entry(told))) = follow.ready().await else { panic!("entry 3 was not told") };
        assert_eq!(told.ordinal, 3);
        assert!(follow.ready().await.is_none());
        let asked = tokio::spawn(async move { live.interrupt(None, InterruptReason::User).await });
        let Some(MirrorCommand::Interrupt { reply, .. }) = commands.recv().await else { panic!("not passed on") };
        reply.send(Err(CommandError::NoTurn)).unwrap();
        assert_eq!(asked.await.unwrap(), Err(CommandError::NoTurn));
        drop(mirror);
        assert!(matches!(follow.next().await, Followed::End));
    }

    /// Looks at the status of a thread at the moment in which it is woken.
    struct Looks {
        live: LiveThread,
        seen: Mutex<Vec<ThreadActivity>>,
    }

    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            self.seen.lock().unwrap().push(self.live.status());
        }
    }

    #[tokio::test]
    async fn a_thread_is_active_when_its_turn_is_said_to_have_begun() {
        let store = MemoryStore::new(Arc::new(|| 0), None);
        let initial = Thread::begin(&entry(1)).unwrap();
        let (live, mut mirror, _commands) = ThreadMirror::new(initial, store, FeedLimits::default()).await.unwrap();
        assert!(mirror.entries(vec![entry(1)], Tells::NoOne).await);
        let looks = Arc::new(Looks { live, seen: Mutex::default() });
        let mut turns = mirror.turns();
        let mut begun = Box::pin(turns.changed());
        let waker = Waker::from(looks.clone());
        assert!(begun.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        let started = TurnStarted::new(TurnId("t1".into()), vec![]);
        assert!(mirror.entries(vec![Entry { ordinal: 2, at: 2, fact: started.into() }], Tells::Followers).await);
        let seen = looks.seen.lock().unwrap().clone();
        assert!(matches!(seen.as_slice(), [ThreadActivity::Active { .. }]), "{seen:?}");
    }

    /// An answer to a start of a turn may come when the turn is long over: what waits for its beginning has not missed it.
    #[tokio::test]
    async fn a_turn_has_begun_also_when_another_one_began_after_it() {
        let store = MemoryStore::new(Arc::new(|| 0), None);
        let initial = Thread::begin(&entry(1)).unwrap();
        let (_live, mut mirror, _commands) = ThreadMirror::new(initial, store, FeedLimits::default()).await.unwrap();
        let mut turns = mirror.turns();
        let begins =
            |ordinal: Ordinal, turn: &str| Entry { ordinal, at: ordinal, fact: TurnStarted::new(TurnId(turn.into()), vec![]).into() };
        let over =
            TurnFinished { turn: Some(TurnId("t1".into())), status: TurnStatus::Completed, reason: None, error: None, marker: Marker::Off };
        let ends = Entry { ordinal: 3, at: 3, fact: over.into() };
        assert!(mirror.entries(vec![entry(1), begins(2, "t1"), ends, begins(4, "t2")], Tells::Followers).await);
        for turn in ["t1", "t2"] {
            assert!(turns.wait_for(|begun| begun.contains(&TurnId(turn.into()))).now_or_never().is_some(), "{turn}");
        }
    }
}
