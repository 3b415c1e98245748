//! One client: its handshake, its requests, what it hears, what it is asked.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use outpost_rpc::peer::{PeerReply, PeerRequest, ResponseFuture};
use outpost_rpc::{Close, FrameSink, Lane, Link, Peer, PeerOptions, Service, Violation};
use outpost_thread::ThreadId;
use outpost_wire::app::event::Notice;
use outpost_wire::{Fault, RequestId, envelope};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::connection_resources::ConnectionResources;
use crate::fault;
use crate::forward::{self, Asked, Passage, ThreadForwarding};
use crate::people::{self, ClientIdentity, Role};
use crate::questions;
use crate::server::ServerShared;
use crate::subscription::{Subscription, SubscriptionReason};
use crate::table::Sent;

/// So many requests of one client may wait for their answers; more are refused.
const IN_FLIGHT: usize = 1024;
/// A client with so much unread output is disconnected, so that others do not pay for it.
const UNREAD: usize = 32 << 20;

/// What a client said about itself.
#[derive(Debug, Clone)]
pub(crate) struct ConnectedClient {
    pub name: String,
    pub experimental: bool,
    pub opted_out: HashSet<String>,
    /// It wants to hear entries of journals as they are stored.
    pub hears_entries: bool,
}

pub(crate) struct ClientConnection {
    pub id: u64,
    pub server: Arc<ServerShared>,
    pub outlet: ClientOutlet,
    pub belongings: ConnectionResources,
    pub identity: ClientIdentity,
    pub forwarding: ThreadForwarding,
    peer: Peer,
    subscriptions: Mutex<HashMap<ThreadId, Arc<Subscription>>>,
    /// Threads that are being opened, one after the other each.
    openings: Mutex<HashMap<ThreadId, Arc<AsyncMutex<()>>>>,
    in_flight: AtomicUsize,
    watching: AtomicBool,
}

/// Sends messages to a client.
#[derive(Clone)]
pub(crate) struct ClientOutlet {
    sink: FrameSink,
    client: Arc<OnceLock<ConnectedClient>>,
}

impl ClientOutlet {
    /// Tells something, unless the client does not want to hear it or is not there yet.
    pub(crate) fn tell(&self, notice: &Notice, at_ms: u64) {
        let Some(client) = self.client.get() else { return };
        if !client.opted_out.contains(notice.method()) {
            self.sink.send(notice.frame(at_ms));
        }
    }

    pub(crate) fn send(&self, frame: Vec<u8>) {
        self.sink.send(frame);
    }

    pub(crate) fn clone_sink(&self) -> FrameSink {
        self.sink.clone()
    }

    pub(crate) fn hears_entries(&self) -> bool {
        self.client.get().is_some_and(|client| client.hears_entries)
    }

    /// Waits until the client has read most of what it was told.
    pub(crate) async fn room(&self) {
        self.sink.room(PeerOptions::default().outbound).await;
    }
}

/// Serves one client until its link ends.
pub(crate) async fn serve(server: Arc<ServerShared>, link: Link, identity: ClientIdentity) {
    let name = link.name.clone();
    server.follow_environments();
    server.follow_agents();
    let mut made = None;
    let (_peer, driver) = Peer::new(link, PeerOptions::default(), |peer| {
        let connection = Arc::new(ClientConnection {
            id: server.next_connection(),
            server: server.clone(),
            outlet: ClientOutlet { sink: peer.sink().clone(), client: Arc::default() },
            belongings: ConnectionResources::default(),
            identity,
            forwarding: ThreadForwarding::default(),
            peer: peer.clone(),
            subscriptions: Mutex::default(),
            openings: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            watching: AtomicBool::new(false),
        });
        server.enter(&connection);
        made = Some(connection.clone());
        connection
    });
    let leaving = made.as_ref().map(|connection| Leaving(connection.clone()));
    drop(made);
    let end = driver.await;
    tracing::debug!(name, ?end, "a client left");
    drop(leaving);
}

/// However a connection ends, its resources are released.
struct Leaving(Arc<ClientConnection>);

impl Drop for Leaving {
    fn drop(&mut self) {
        let threads = self.0.threads();
        self.0.server.leave(self.0.id);
        self.0.lock().clear();
        threads.into_iter().for_each(|thread| questions::settle(&self.0.server, thread));
    }
}

impl ClientConnection {
    /// Ends it because the server does.
    pub(crate) fn retire(&self) {
        self.peer.retire(Close::new(Close::GOING_AWAY, "the server stops"));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ThreadId, Arc<Subscription>>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who this is; nothing before the handshake.
    pub(crate) fn client(&self) -> Option<&ConnectedClient> {
        self.outlet.client.get()
    }

    /// Takes the handshake. Only the first one counts.
    pub(crate) fn introduce(&self, client: ConnectedClient) -> Result<(), Fault> {
        self.outlet.client.set(client).map_err(|_| fault::already_initialized())?;
        self.peer.admit();
        Ok(())
    }

    pub(crate) fn tell(&self, notice: &Notice) {
        if self.outlet.sink.queued() > UNREAD {
            tracing::warn!(client = self.client().map(|client| client.name.as_str()), "a client does not read; it is let go");
            self.outlet.sink.close(Close::new(1013, "nothing is read at this end"));
            return;
        }
        self.outlet.tell(notice, (self.server.clock)());
    }

    /// True for the first who asks: environments are watched once.
    pub(crate) fn begin_watching(&self) -> bool {
        !self.watching.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_subscribed(&self, thread: ThreadId) -> bool {
        self.subscription(thread).is_some()
    }

    pub(crate) fn subscription(&self, thread: ThreadId) -> Option<Arc<Subscription>> {
        self.lock().get(&thread).filter(|subscription| !subscription.is_over()).cloned()
    }

    /// The thread that the client opened and because of which it hears of this one; it may be the same.
    pub(crate) fn opened_for(&self, thread: ThreadId) -> Option<ThreadId> {
        let mut subscription = self.subscription(thread)?;
        while let SubscriptionReason::Maker(maker) = subscription.reason() {
            subscription = self.subscription(maker)?;
        }
        Some(subscription.thread())
    }

    /// Waits until no other request opens the thread for this client.
    pub(crate) async fn opening(&self, thread: ThreadId) -> OwnedMutexGuard<()> {
        let gate = {
            let mut openings = self.openings.lock().unwrap_or_else(PoisonError::into_inner);
            openings.retain(|_, gate| Arc::strong_count(gate) > 1);
            openings.entry(thread).or_default().clone()
        };
        gate.lock_owned().await
    }

    /// Takes a subscription; an older one of the same thread ends.
    pub(crate) fn subscribe(&self, subscription: Arc<Subscription>) {
        let mut subscriptions = self.lock();
        subscriptions.retain(|_, old| !old.is_over());
        subscriptions.insert(subscription.thread(), subscription);
    }

    /// The threads that it hears of.
    pub(crate) fn threads(&self) -> Vec<ThreadId> {
        self.lock().values().filter(|subscription| !subscription.is_over()).map(|subscription| subscription.thread()).collect()
    }

    /// Ends a subscription, and those that were begun because of it; the threads that the client does not hear of any more.
    pub(crate) fn unsubscribe(&self, thread: ThreadId) -> Vec<ThreadId> {
        let mut subscriptions = self.lock();
        let mut ended = Vec::new();
        let mut next = vec![thread];
        while let Some(thread) = next.pop() {
            let Some(old) = subscriptions.remove(&thread) else { continue };
            if !old.is_over() {
                ended.push(thread);
            }
            next.extend(subscriptions.values().filter(|one| one.reason() == SubscriptionReason::Maker(thread)).map(|one| one.thread()));
        }
        ended
    }
}

/// Counts a request for as long as it is under way.
struct Flight(Arc<ClientConnection>);

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Service for ClientConnection {
    fn request(self: Arc<Self>, request: PeerRequest) -> ResponseFuture {
        let PeerRequest { id, method, params, trace } = request;
        if self.in_flight.fetch_add(1, Ordering::Relaxed) >= IN_FLIGHT {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
            return Box::pin(std::future::ready(envelope::error(&id, &fault::overloaded()).into()));
        }
        let flight = Flight(self.clone());
        let server = self.server.clone();
        if method == "initialize" {
            self.forwarding.introduced(&params);
        }
        // Most requests take their place in a queue at their first poll: only those that need a look at the store wait before.
        let is_checked = self.identity != ClientIdentity::default();
        let may_be_elsewhere = matches!(server.runtime.store(), outpost_store::Store::Postgres(_));
        if !is_checked && !may_be_elsewhere {
            let answer = server.table.answer(self, Sent { id, trace }, &method, params);
            return Box::pin(async move {
                let reply = answer.await;
                drop(flight);
                reply
            });
        }
        Box::pin(async move {
            let _flight = flight;
            if let Err(fault) = people::admit(&server, &self.identity, &method, &params).await {
                return envelope::error(&id, &fault).into();
            }
            let asked = Asked { id: &id, method: &method, params: &params };
            let unreached = match forward::forward(&self, &asked).await {
                Passage::Answered(reply) => return reply,
                Passage::Here(unreached) => unreached,
            };
            let answer = server.table.answer(self.clone(), Sent { id: id.clone(), trace }, &method, params.clone());
            let reply = forward::here(&self, &asked, &unreached, answer).await;
            match people::filter(&server, &self.identity, &method, reply.frame).await {
                Ok(frame) => PeerReply { frame, rest: reply.rest },
                Err(fault) => envelope::error(&id, &fault).into(),
            }
        })
    }

    /// There is only `initialized`, and nothing waits for it.
    fn notification(&self, method: &str, _params: &[u8]) -> Result<(), Violation> {
        tracing::trace!(method, "a notification");
        Ok(())
    }

    fn lane(&self, _method: &str) -> Lane {
        Lane::Ordinary
    }

    fn is_settled(&self) -> bool {
        self.client().is_some()
    }

    /// This dialect is silent about what it cannot read.
    fn malformed(&self, message: String) -> Option<Vec<u8>> {
        tracing::debug!(message, "a frame is not a message");
        None
    }

    fn answered(&self, id: RequestId, answer: Result<Bytes, Fault>) -> Result<(), Violation> {
        if self.identity.role < Role::Operator {
            tracing::warn!(client = self.identity.name, "a viewer answered a question; that does not count");
        } else if !self.forwarding.answered(&id, &answer) {
            questions::take_answer(self, id, answer);
        }
        Ok(())
    }
}
