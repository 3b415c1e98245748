//! From a thread to one client that hears of it: everything once, in order, and nobody waits for a client that does not read.
//!
//! A client's place in the feed of a thread is its own. If it falls so far behind that the feed has forgotten what comes next,
//! it is caught up from the store: what was said on the way to a durable item is then left out, the item is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outpost_runtime::feed::{Cursor, Read};
use outpost_runtime::live::{Event, LiveThread};
use outpost_store::{ReadError, Store};
use outpost_thread::{Entry, Thread, ThreadId};
use outpost_wire::Fault;
use outpost_wire::app::event::{ServerRequestResolved, ThreadClosed};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::task::AbortOnDropHandle;

use crate::connection::{Connection, Outlet};
use crate::fault;
use crate::projection::{self, Projector, Told};
use crate::server::Shared;

/// A client that hears of a thread. Dropping it ends it.
pub struct Subscription {
    thread: ThreadId,
    /// Held by whoever must tell something before anything else is told.
    order: Arc<AsyncMutex<()>>,
    over: Arc<AtomicBool>,
    _task: AbortOnDropHandle<()>,
}

/// As long as it is held, nothing is told.
pub type Hold = OwnedMutexGuard<()>;

impl Subscription {
    pub fn thread(&self) -> ThreadId {
        self.thread
    }

    /// The thread is not loaded any more.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Keeps back what happens until an answer is on its way.
    pub async fn hold(&self) -> Hold {
        self.order.clone().lock_owned().await
    }
}

/// A thread as it was at one moment, and everything that comes after it.
pub struct Opening {
    pub state: Thread,
    pub store: Store,
    live: LiveThread,
    cursor: Cursor<Event>,
    projector: Projector,
    /// An older subscription of the same client, which must be silent until this one takes its place.
    _old: Option<Hold>,
}

impl Opening {
    /// Looks at a loaded thread.
    pub async fn of(connection: &Connection, live: LiveThread) -> Result<Self, Fault> {
        let id = live.id();
        let old = match connection.subscription(id) {
            Some(old) => Some(old.hold().await),
            None => None,
        };
        let server = &connection.server;
        // First to listen and then to look, so that nothing falls in between.
        let cursor = live.subscribe();
        let state = live.snapshot().await.map_err(fault::command)?;
        let store = server.runtime.store_of(id).await;
        let recent = recent(&store, &state).await.map_err(fault::read)?;
        let mut projector = Projector::at(&state, &recent, server.defaults.clone());
        projector.knows_status(projection::status(Some(&live.status())));
        Ok(Self { state, store, live, cursor, projector, _old: old })
    }

    pub fn live(&self) -> &LiveThread {
        &self.live
    }

    /// Begins to tell what happens; nothing is told as long as the result is held.
    pub async fn begin(self, connection: &Connection) -> Begun {
        let Self { live, cursor, projector, store, .. } = self;
        let (order, over) = (Arc::new(AsyncMutex::new(())), Arc::new(AtomicBool::new(false)));
        let hold = order.clone().lock_owned().await;
        let questions = projector.open_questions().iter().cloned().map(|ask| Told::Ask(Box::new(ask))).collect();
        let thread = live.id();
        let teller = Teller { thread, outlet: connection.outlet.clone(), server: connection.server.clone() };
        let pump = Pump { teller: teller.clone(), store, cursor, projector, order: order.clone(), over: over.clone() };
        let task = AbortOnDropHandle::new(tokio::spawn(pump.run()));
        connection.subscribe(Arc::new(Subscription { thread, order, over, _task: task }));
        Begun { hold, questions, teller }
    }
}

/// A subscription that has begun and is still held.
pub struct Begun {
    hold: Hold,
    questions: Vec<Told>,
    teller: Teller,
}

impl Begun {
    /// What is told first, once the answer is on its way: `first`, then what is still being asked.
    pub async fn tell(self, first: Vec<Told>) {
        for told in first.into_iter().chain(self.questions) {
            self.teller.outlet.room().await;
            self.teller.tell(&told);
        }
        drop(self.hold);
    }
}

/// Entries that are needed to go on in the middle of a thread.
async fn recent(store: &Store, state: &Thread) -> Result<Vec<Entry>, ReadError> {
    let (since, waiting) = Projector::needs(state);
    let mut recent = if waiting.is_empty() { Vec::new() } else { store.entries(state.id, waiting).await? };
    if let Some(since) = since {
        recent.extend(store.history(state.id, since - 1).await?.rest().await?.entries);
    }
    recent.sort_by_key(|entry| entry.seq);
    Ok(recent)
}

/// Tells one client about one thread.
#[derive(Clone)]
struct Teller {
    thread: ThreadId,
    outlet: Outlet,
    server: Arc<Shared>,
}

impl Teller {
    fn tell(&self, told: &Told) {
        match told {
            Told::Notice(notice) => self.outlet.tell(notice, (self.server.clock)()),
            Told::Reverted(_) => {}
            Told::Ask(ask) => {
                let number = self.server.questions.number(self.thread, &ask.approval, ask.kind());
                self.outlet.send(ask.frame(number));
            }
            Told::Resolved(approval) => {
                if let Some(number) = self.server.questions.known(self.thread, approval) {
                    let resolved = ServerRequestResolved { thread_id: self.thread.to_string(), request_id: number.into() };
                    self.outlet.tell(&resolved.into(), (self.server.clock)());
                }
            }
        }
    }
}

struct Pump {
    teller: Teller,
    store: Store,
    cursor: Cursor<Event>,
    projector: Projector,
    order: Arc<AsyncMutex<()>>,
    over: Arc<AtomicBool>,
}

impl Pump {
    async fn run(mut self) {
        let order = self.order.clone();
        loop {
            self.teller.outlet.room().await;
            let read = self.cursor.next().await;
            let _turn = order.lock().await;
            match read {
                Read::Event(event) => {
                    let told = self.projector.event(&event);
                    self.tell(&told);
                }
                Read::Missed(count) => {
                    tracing::debug!(thread = %self.teller.thread, count, "a client is caught up from the store");
                    if let Err(error) = self.catch_up().await {
                        tracing::warn!(thread = %self.teller.thread, %error, "a client cannot be caught up");
                        break;
                    }
                }
                Read::End => break,
            }
        }
        self.over.store(true, Ordering::Release);
        self.tell(&[ThreadClosed { thread_id: self.teller.thread.to_string() }.into()]);
    }

    fn tell(&self, told: &[Told]) {
        told.iter().for_each(|told| self.teller.tell(told));
    }

    /// Tells everything durable that came after what was told last.
    async fn catch_up(&mut self) -> Result<(), ReadError> {
        let mut history = self.store.history(self.teller.thread, self.projector.last()).await?;
        while let Some(batch) = history.next().await? {
            for entry in &batch.entries {
                let told = self.projector.entry(entry);
                self.tell(&told);
                self.teller.outlet.room().await;
            }
        }
        Ok(())
    }
}
