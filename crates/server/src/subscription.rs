//! From a thread to one subscribed client: every event once, in order, and nothing waits for a client that does not read.
//!
//! A client's place in the feed of a thread is its own. If it falls so far behind that the feed has forgotten what comes next,
//! it is caught up from the store: what was said on the way to a durable item is then left out, the item is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outpost_runtime::follow::{Followed, ThreadFollower};
use outpost_runtime::live::{LiveThread, ThreadEvent};
use outpost_store::{ReadError, Store};
use outpost_thread::{Entry, Ordinal, Thread, ThreadId};
use outpost_wire::Fault;
use outpost_wire::app::event::{ServerRequestResolved, ThreadClosed};
use outpost_wire::app::journal::ThreadEntry;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::task::AbortOnDropHandle;

use crate::connection::{ClientConnection, ClientOutlet};
use crate::fault;
use crate::projection::{self, ClientMessage, Projector};
use crate::server::ServerShared;

/// A client that hears of a thread. Dropping it ends it.
pub(crate) struct Subscription {
    thread: ThreadId,
    reason: SubscriptionReason,
    /// Held while something must be sent before anything else.
    voice: Arc<AsyncMutex<SubscriptionState>>,
    over: Arc<AtomicBool>,
    _task: AbortOnDropHandle<()>,
}

/// Why a client hears of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SubscriptionReason {
    /// It opened the thread.
    Asked,
    /// It hears of the thread that made this one.
    Maker(ThreadId),
}

/// As long as it is held, nothing is told.
pub(crate) type Hold = OwnedMutexGuard<SubscriptionState>;

impl Subscription {
    pub(crate) fn thread(&self) -> ThreadId {
        self.thread
    }

    pub(crate) fn reason(&self) -> SubscriptionReason {
        self.reason
    }

    /// The thread is not loaded any more.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Keeps back what happens until an answer is on its way.
    pub(crate) async fn hold(&self) -> Hold {
        self.voice.clone().lock_owned().await
    }
}

/// A thread as it was at one moment, and everything that comes after it.
pub(crate) struct ThreadOpening {
    pub state: Thread,
    pub store: Store,
    live: LiveThread,
    follower: ThreadFollower,
    projector: Projector,
    /// An older subscription of the same client, which must be silent until this one takes its place.
    old: Option<Hold>,
    /// No other request opens the thread for this client meanwhile: two would both send everything.
    _only: OwnedMutexGuard<()>,
}

impl ThreadOpening {
    /// Looks at a loaded thread.
    pub(crate) async fn of(connection: &ClientConnection, live: LiveThread) -> Result<Self, Fault> {
        let id = live.id();
        let only = connection.opening(id).await;
        let mut old = match connection.subscription(id) {
            Some(old) => Some(old.hold().await),
            None => None,
        };
        let server = &connection.server;
        // First to listen and then to look, so that nothing falls in between.
        let follower = live.follow_from_now();
        let state = live.snapshot().await.map_err(fault::command)?;
        let store = server.runtime.store_of(id).await;
        let recent = recent(&store, &state).await.map_err(fault::read)?;
        let mut projector = Projector::at(&state, &recent, server.defaults.clone());
        projector.knows_status(projection::status(Some(&live.status())));
        // Up to here the client hears of it as before, whatever it asks to be shown.
        if let Some(old) = &mut old {
            match old.catch_up(state.last).await {
                // Nothing is written down before the first input.
                Ok(()) | Err(ReadError::NotFound(_)) => {}
                Err(error) => return Err(fault::read(error)),
            }
        }
        Ok(Self { state, store, live, follower, projector, old, _only: only })
    }

    pub(crate) fn live(&self) -> &LiveThread {
        &self.live
    }

    /// Begins to tell what happens; nothing is told as long as the result is held.
    pub(crate) async fn begin(self, connection: &ClientConnection, reason: SubscriptionReason) -> StartedSubscription {
        let Self { live, follower, projector, store, old, _only, .. } = self;
        let questions = projector.open_questions().iter().cloned().map(|ask| ClientMessage::Ask(Box::new(ask))).collect();
        let thread = live.id();
        let offers_rules = !connection.identity.is_limited();
        let teller = Teller { thread, outlet: connection.outlet.clone(), server: connection.server.clone(), offers_rules };
        let (outlet, over) = (teller.outlet.clone(), Arc::new(AtomicBool::new(false)));
        let voice = Arc::new(AsyncMutex::new(SubscriptionState { teller, store, projector, is_replaced: false }));
        let hold = voice.clone().lock_owned().await;
        let pump = Pump { outlet, follower, voice: voice.clone(), over: over.clone() };
        let task = AbortOnDropHandle::new(tokio::spawn(pump.run()));
        // Another task may still hold the old one and wait for its turn to send.
        old.into_iter().for_each(|mut old| old.is_replaced = true);
        connection.subscribe(Arc::new(Subscription { thread, reason, voice, over, _task: task }));
        StartedSubscription { hold, questions }
    }
}

/// A subscription that has begun and is still held.
pub(crate) struct StartedSubscription {
    hold: Hold,
    questions: Vec<ClientMessage>,
}

impl StartedSubscription {
    /// What is told first, once the answer is on its way: `first`, then what is still being asked.
    pub(crate) async fn tell(self, first: Vec<ClientMessage>) {
        for told in first.into_iter().chain(self.questions) {
            self.hold.teller.outlet.room().await;
            self.hold.teller.tell(&told);
        }
        drop(self.hold);
    }
}

/// Entries that are needed to go on in the middle of a thread.
pub(crate) async fn recent(store: &Store, state: &Thread) -> Result<Vec<Entry>, ReadError> {
    let (since, waiting) = Projector::needs(state);
    let mut recent = if waiting.is_empty() { Vec::new() } else { store.entries(state.id, waiting).await? };
    if let Some(since) = since {
        recent.extend(store.history(state.id, since - 1).await?.rest().await?.with_gaps());
    }
    recent.sort_by_key(|entry| entry.ordinal);
    Ok(recent)
}

/// Tells one client about one thread.
#[derive(Clone)]
struct Teller {
    thread: ThreadId,
    outlet: ClientOutlet,
    server: Arc<ServerShared>,
    /// Rules count for every thread, so a client that is limited makes none.
    offers_rules: bool,
}

impl Teller {
    fn tell(&self, told: &ClientMessage) {
        match told {
            ClientMessage::Notice(notice) => self.outlet.tell(notice, (self.server.clock)()),
            ClientMessage::Reverted(_) => {}
            ClientMessage::Ask(ask) => {
                let number = self.server.questions.number(self.thread, &ask.approval, ask.kind());
                let frame = if self.offers_rules { ask.frame(number) } else { ask.without_rule().frame(number) };
                self.outlet.send(frame);
            }
            ClientMessage::Resolved(approval) => {
                if let Some(number) = self.server.questions.known(self.thread, approval) {
                    let resolved = ServerRequestResolved { thread_id: self.thread.to_string(), request_id: number.into() };
                    self.outlet.tell(&resolved.into(), (self.server.clock)());
                }
            }
        }
    }
}

/// What is told to a client of a thread, and how far that has come. One speaks at a time.
pub(crate) struct SubscriptionState {
    teller: Teller,
    store: Store,
    projector: Projector,
    /// Another subscription of the same client has taken its place.
    is_replaced: bool,
}

impl SubscriptionState {
    /// This one is silent for ever.
    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced
    }

    fn tell(&self, told: &[ClientMessage]) {
        told.iter().for_each(|told| self.teller.tell(told));
    }

    /// Tells everything durable that came after what was told last, up to an entry. Questions are left to the subscription that
    /// takes its place: it asks everything that is still open.
    async fn catch_up(&mut self, until: Ordinal) -> Result<(), ReadError> {
        if self.projector.last() >= until {
            return Ok(());
        }
        let mut history = self.store.history(self.teller.thread, self.projector.last()).await?;
        while let Some(batch) = history.next().await? {
            for entry in batch.with_gaps().iter().filter(|entry| entry.ordinal <= until) {
                let mut told = self.projector.entry(entry);
                told.retain(|told| !matches!(told, ClientMessage::Ask(_)));
                self.tell(&told);
                self.teller.outlet.room().await;
            }
        }
        Ok(())
    }
}

/// Reads the feed of a thread and has its client told.
struct Pump {
    outlet: ClientOutlet,
    follower: ThreadFollower,
    voice: Arc<AsyncMutex<SubscriptionState>>,
    over: Arc<AtomicBool>,
}

impl Pump {
    async fn run(mut self) {
        loop {
            self.outlet.room().await;
            let followed = self.follower.next().await;
            let mut voice = self.voice.lock().await;
            if voice.is_replaced {
                return;
            }
            match followed {
                Followed::Event(event) => {
                    if let (ThreadEvent::Entry(entry), true) = (&event, self.outlet.hears_entries()) {
                        let entry = ThreadEntry { thread_id: voice.teller.thread.to_string(), entry: projection::journal_entry(entry) };
                        voice.tell(&[entry.into()]);
                    }
                    let told = voice.projector.event(&event);
                    voice.tell(&told);
                }
                Followed::Unreadable(error) => {
                    tracing::warn!(thread = %voice.teller.thread, %error, "a client cannot be caught up");
                    self.end(&voice);
                    return;
                }
                Followed::End => {
                    self.end(&voice);
                    return;
                }
            }
        }
    }

    fn end(&self, voice: &SubscriptionState) {
        self.over.store(true, Ordering::Release);
        voice.tell(&[ThreadClosed { thread_id: voice.teller.thread.to_string() }.into()]);
    }
}
