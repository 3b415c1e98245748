//! Threads that another node of the store drives: what a client of ours asks about them is passed on to that node, and what the node says
//! of them is passed back. See docs/decisions/0026-any-node-serves-any-thread.md.
//!
//! A client has one link to each node that it needs. Requests keep their ids there, since the link is this client's alone; questions of the
//! node get new ones, since ours have numbers, too.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, Shared};
use futures_util::{FutureExt, StreamExt};
use outpost_rpc::frame::{self, FrameLimits, RpcMessage};
use outpost_rpc::link::FrameSource;
use outpost_rpc::peer::PeerReply;
use outpost_rpc::{Close, FrameSink, Link, PeerOptions};
use outpost_store::{ClaimError, OrphanAnswer, OrphanFate, PostgresStore, Store, ThreadTenure};
use outpost_thread::ThreadId;
use outpost_wire::SharedError;
use outpost_wire::{Fault, RequestId, envelope};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::connection::ClientConnection;
use crate::people::ClientIdentity;

/// The kind and the key under which a store keeps the secret by which its nodes know each other.
pub(crate) const NODE_SECRET: (&str, &str) = ("secret", "nodes");

/// How long a node may take until it has answered the handshake. One whose machine is gone does not answer at all.
pub(crate) const DIAL: Duration = Duration::from_secs(5);

/// So long after the end of a node's lease its threads are with other nodes.
const TAKEN_UP: Duration = Duration::from_secs(3);
/// How often it is looked who drives a thread whose node cannot be reached.
const LOOK: Duration = Duration::from_millis(250);

/// These say what is stored; any node can answer them. While a thread is passed on, they are as well: its node knows how it stands.
const READS: &[&str] = &[
    "thread/read",
    "thread/turns/list",
    "thread/items/list",
    "thread/items/read",
    "thread/overview",
    "thread/searchOccurrences",
    "thread/verify",
    "thread/why",
    "thread/goal/get",
    "thread/queue/list",
    "thread/unsubscribe",
];
/// These are about this node.
const OWN: &[&str] = &["thread/takeover", "thread/fork", "initialize"];

/// What a client of ours has at other nodes.
#[derive(Default)]
pub(crate) struct ThreadForwarding {
    /// How the client introduced itself, to say the same to others.
    introduction: Mutex<Option<Bytes>>,
    /// By the instances of the nodes. Those who need the same node share its link, and before that the attempt to make it.
    links: Mutex<HashMap<String, SharedLink>>,
    /// Which thread is passed on to which node.
    threads: Routes,
    questions: Arc<Mutex<Questions>>,
    /// Threads that this node drives now: what another one says of them is over.
    taken: Arc<Mutex<HashSet<ThreadId>>>,
    /// Threads that this node is about to drive: that another one lets go of them is no news.
    taking: Arc<Mutex<HashSet<ThreadId>>>,
}

/// A link that is made, or was made, or could not be made.
type SharedLink = Shared<BoxFuture<'static, Result<Arc<NodeLink>, SharedError>>>;
type Routes = Arc<Mutex<HashMap<ThreadId, Weak<NodeLink>>>>;
/// An answer, and what is dropped once it is on its way to the client.
type NodeAnswer = (Vec<u8>, oneshot::Sender<()>);
type Waiting = Arc<Mutex<HashMap<RequestId, oneshot::Sender<NodeAnswer>>>>;

/// Questions of other nodes that the client was asked.
#[derive(Default)]
struct Questions {
    next: u64,
    open: HashMap<String, (FrameSink, RequestId)>,
}

/// A client's link to another node.
struct NodeLink {
    sink: FrameSink,
    waiting: Waiting,
    _reading: AbortOnDropHandle<()>,
}

impl Drop for NodeLink {
    fn drop(&mut self) {
        self.sink.close(Close::new(Close::NORMAL, "the client left"));
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AboutThread {
    thread_id: Option<String>,
    thread: Option<AboutId>,
}

#[derive(Deserialize)]
struct AboutId {
    id: String,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn thread_in(params: &[u8]) -> Option<ThreadId> {
    let AboutThread { thread_id, thread } = serde_json::from_slice(params).ok()?;
    thread_id.or_else(|| thread.map(|thread| thread.id))?.parse().ok()
}

impl ThreadForwarding {
    pub(crate) fn introduced(&self, params: &Bytes) {
        lock(&self.introduction).get_or_insert_with(|| params.clone());
    }

    /// Hands an answer to the node that asked; false if it is not one of theirs.
    pub(crate) fn answered(&self, id: &RequestId, answer: &Result<Bytes, Fault>) -> bool {
        let RequestId::Text(name) = id else { return false };
        let Some((sink, id)) = lock(&self.questions).open.remove(name) else { return false };
        sink.send(match answer {
            Ok(result) => match serde_json::from_slice::<Value>(result) {
                Ok(result) => plain_response(&id, &result),
                Err(error) => envelope::error(&id, &Fault::invalid_request(error)),
            },
            Err(fault) => envelope::error(&id, fault),
        });
        true
    }

    fn known(&self, thread: ThreadId) -> Option<Arc<NodeLink>> {
        let mut threads = lock(&self.threads);
        threads.retain(|_, link| link.strong_count() > 0);
        // Those of a link that has ended are removed when the client is told.
        threads.get(&thread)?.upgrade().filter(|link| !link.sink.is_closed())
    }

    /// A takeover begins; whether the thread is passed on until then.
    fn take_over(&self, thread: ThreadId) -> bool {
        lock(&self.taking).insert(thread);
        lock(&self.threads).contains_key(&thread)
    }

    /// A takeover is over: if it went well, this node drives the thread from now on, else all is as it was.
    fn took_over(&self, thread: ThreadId, is_taken: bool, was_routed: bool, client: &FrameSink) {
        lock(&self.taking).remove(&thread);
        if is_taken {
            lock(&self.taken).insert(thread);
            lock(&self.threads).remove(&thread);
        } else if was_routed && !lock(&self.threads).contains_key(&thread) {
            // What the other node said meanwhile was held back.
            client.send(closed(thread));
        }
    }
}

fn closed(thread: ThreadId) -> Vec<u8> {
    serde_json::json!({"method": "thread/closed", "params": {"threadId": thread}}).to_string().into_bytes()
}

#[derive(Deserialize)]
struct Outcome {
    error: Option<serde::de::IgnoredAny>,
}

fn is_refusal(frame: &[u8]) -> bool {
    serde_json::from_slice(frame).map_or(true, |Outcome { error }| error.is_some())
}

/// A request as it came.
pub(crate) struct Asked<'a> {
    pub id: &'a RequestId,
    pub method: &'a str,
    pub params: &'a Bytes,
}

/// Where a request is answered.
pub(crate) enum Passage {
    /// It was passed on, or is refused.
    Answered(PeerReply),
    Here(Unreached),
}

/// The node that drives a thread and could not be reached, if there is one.
#[derive(Default)]
pub(crate) struct Unreached(Option<String>);

/// Answers a request here. A thread that is taken over is not passed on any more once that has gone well; one that another node claimed
/// since it was looked who has it is resumed there.
pub(crate) async fn here(
    connection: &ClientConnection,
    asked: &Asked<'_>,
    unreached: &Unreached,
    answer: impl Future<Output = PeerReply>,
) -> PeerReply {
    if asked.method == "thread/resume" {
        let reply = answer.await;
        return match is_refusal(&reply.frame) {
            true => claimed_meanwhile(connection, asked, unreached).await.unwrap_or(reply),
            false => reply,
        };
    }
    let Some(thread) = Some(asked.params).filter(|_| asked.method == "thread/takeover").and_then(|params| thread_in(params)) else {
        return answer.await;
    };
    let was_routed = connection.forwarding.take_over(thread);
    let reply = answer.await;
    connection.forwarding.took_over(thread, !is_refusal(&reply.frame), was_routed, &connection.outlet.clone_sink());
    reply
}

/// Passes on what was refused here, if a node has its thread that was not asked yet.
async fn claimed_meanwhile(connection: &ClientConnection, asked: &Asked<'_>, unreached: &Unreached) -> Option<PeerReply> {
    let (store, thread) = elsewhere(connection, asked)?;
    let holder = store.holder(thread).await.ok().flatten()?;
    if holder.instance == store.instance() || unreached.0.as_ref() == Some(&holder.instance) {
        return None;
    }
    let link = connect(connection, &holder.instance, holder.address.as_deref()?).await.ok()?;
    Some(pass_on(connection, &link, thread, asked).await)
}

fn plain_response(id: &RequestId, result: &Value) -> Vec<u8> {
    serde_json::json!({"id": id, "result": result}).to_string().into_bytes()
}

/// The store and the thread of a request that another node may have to answer.
fn elsewhere<'a>(connection: &'a ClientConnection, asked: &Asked<'_>) -> Option<(&'a PostgresStore, ThreadId)> {
    let Store::Postgres(store) = connection.server.runtime.store() else { return None };
    // A node that was asked by another one answers by itself: two that each take the other for the holder would go on for ever.
    if connection.identity.is_node || OWN.contains(&asked.method) || connection.client().is_none() {
        return None;
    }
    let thread = thread_in(asked.params)?;
    connection.server.runtime.get(thread).is_none().then_some((store, thread))
}

/// Passes a request on if another node drives its thread.
pub(crate) async fn forward(connection: &ClientConnection, asked: &Asked<'_>) -> Passage {
    let Some((store, thread)) = elsewhere(connection, asked) else { return Passage::Here(Unreached::default()) };
    // Who resumes a thread may do so because it moved.
    let known = connection.forwarding.known(thread).filter(|_| asked.method != "thread/resume");
    let way = match known {
        Some(link) => Way::Node(link),
        None if READS.contains(&asked.method) => Way::Here(Unreached::default()),
        None => {
            // A client whose node was killed comes at once, and the lease of that node is not over yet.
            let patience = if asked.method == "thread/resume" { store.node_lease() + TAKEN_UP } else { Duration::ZERO };
            find(connection, store, thread, patience).await
        }
    };
    match way {
        Way::Node(link) => Passage::Answered(pass_on(connection, &link, thread, asked).await),
        Way::Here(unreached) => Passage::Here(unreached),
        Way::Refused(fault) => Passage::Answered(envelope::error(asked.id, &fault).into()),
    }
}

/// Sends a request to the node that drives its thread, and waits for the answer.
async fn pass_on(connection: &ClientConnection, link: &Arc<NodeLink>, thread: ThreadId, asked: &Asked<'_>) -> PeerReply {
    let (Asked { id, method, params }, forwarding) = (asked, &connection.forwarding);
    let raw: &RawValue = match serde_json::from_slice(params) {
        Ok(raw) => raw,
        Err(error) => return envelope::error(id, &Fault::invalid_request(error)).into(),
    };
    let (sender, answer) = oneshot::channel();
    lock(&link.waiting).insert((*id).clone(), sender);
    if link.sink.send(envelope::request(id, method, raw)) {
        if *method != "thread/unsubscribe" {
            lock(&forwarding.taken).remove(&thread);
            lock(&forwarding.threads).insert(thread, Arc::downgrade(link));
        }
        if let Ok((frame, sent)) = answer.await {
            // It may be with another node when it is asked for again.
            if *method == "thread/unsubscribe" && !is_refusal(&frame) {
                lock(&forwarding.threads).remove(&thread);
            }
            return PeerReply { frame, rest: Some(Box::pin(async move { drop(sent) })) };
        }
    }
    lock(&link.waiting).remove(*id);
    envelope::error(id, &Fault::internal(format!("the node that drives thread {thread} is gone; resume the thread"))).into()
}

/// Where a thread is.
enum Way {
    Node(Arc<NodeLink>),
    Here(Unreached),
    Refused(Fault),
}

/// Finds the node that drives a thread. One that cannot be reached may be dead: until the patience is over it is waited for the end of its
/// lease, and for the next holder.
async fn find(connection: &ClientConnection, store: &PostgresStore, thread: ThreadId, patience: Duration) -> Way {
    let until = Instant::now() + patience;
    let mut unreached: Option<(String, SharedError)> = None;
    loop {
        let is_over = Instant::now() >= until;
        let (holder, fate) = match store.tenure(thread).await {
            Ok(ThreadTenure::Held(holder)) => (Some(holder), OrphanFate::Idle),
            Ok(ThreadTenure::Orphaned(orphan)) => (None, orphan.fate(store.host())),
            Err(ClaimError::NotFound(_)) => (None, OrphanFate::Idle),
            // What cannot be known now is the other nodes' as long as that may be.
            Err(_) => (None, OrphanFate::TakeUp),
        };
        if holder.is_none() && unreached.is_some() {
            match fate.when_asked(is_over) {
                OrphanAnswer::Open => {}
                OrphanAnswer::Wait => {
                    sleep(LOOK).await;
                    continue;
                }
                OrphanAnswer::Refuse => {
                    return Way::Refused(Fault::internal(format!(
                        "the node that drove thread {thread} is gone, and no other one goes on with it; resume the thread to go on here"
                    )));
                }
            }
        }
        let holder = holder.filter(|holder| holder.instance != store.instance());
        let Some((holder, address)) = holder.and_then(|holder| holder.address.clone().map(|address| (holder, address))) else {
            lock(&connection.forwarding.threads).remove(&thread);
            return Way::Here(Unreached::default());
        };
        let why = match &unreached {
            // It had its time.
            Some((instance, why)) if is_over && *instance == holder.instance => why.clone(),
            _ => match connect(connection, &holder.instance, &address).await {
                Ok(link) => return Way::Node(link),
                Err(why) => why,
            },
        };
        if is_over {
            tracing::warn!(%thread, node = %holder, %why, "the node of a thread cannot be reached");
            return Way::Here(Unreached(Some(holder.instance)));
        }
        unreached = Some((holder.instance, why));
        sleep(LOOK).await;
    }
}

/// The client's link to a node, made if there is none. A node that does not answer delays only those who need that very node.
async fn connect(connection: &ClientConnection, instance: &str, address: &str) -> Result<Arc<NodeLink>, SharedError> {
    let link = {
        let mut links = lock(&connection.forwarding.links);
        // One that is being made is waited for; one that could not be made is tried again.
        links.retain(|_, link| link.peek().is_none_or(|made| made.as_ref().is_ok_and(|made| !made.sink.is_closed())));
        links.entry(instance.to_owned()).or_insert_with(|| make_link(connection, address.to_owned()).shared()).clone()
    };
    link.await
}

/// Makes a link to a node. The future is kept by the connection, and so it must not hold it.
fn make_link(connection: &ClientConnection, address: String) -> BoxFuture<'static, Result<Arc<NodeLink>, SharedError>> {
    let (store, identity) = (connection.server.runtime.store().clone(), connection.identity.clone());
    let (client, forwarding) = (connection.outlet.clone_sink(), &connection.forwarding);
    let introduction = lock(&forwarding.introduction).clone();
    let (questions, routes) = (forwarding.questions.clone(), forwarding.threads.clone());
    let (taken, taking) = (forwarding.taken.clone(), forwarding.taking.clone());
    Box::pin(async move {
        let Store::Postgres(store) = store else { return Err("this store has no nodes".into()) };
        let secret = store.shared_one(NODE_SECRET.0, NODE_SECRET.1).await?.ok_or("the nodes of this store have no secret")?;
        let introduction = introduction.ok_or("the client has not introduced itself")?;
        let link = tokio::time::timeout(DIAL, introduced(&address, identity.credential(&secret), &introduction)).await;
        let link = link.map_err(|_| format!("it does not answer within {} seconds", DIAL.as_secs()))??;
        let waiting = Waiting::default();
        Ok(Arc::new_cyclic(|own| {
            let (node, waiting_here, own) = (link.tx.clone(), waiting.clone(), own.clone());
            let reading = Reading { client, node, waiting: waiting_here, questions, taken, taking, asked: HashMap::new(), routes, own };
            let reading = AbortOnDropHandle::new(tokio::spawn(reading.run(link.rx)));
            NodeLink { sink: link.tx, waiting, _reading: reading }
        }))
    })
}

/// A link on which the client's introduction was answered.
async fn introduced(address: &str, bearer: String, introduction: &[u8]) -> Result<Link, SharedError> {
    let mut link = outpost_environment::dial(address, Some(bearer)).await.map_err(SharedError::new)?;
    link.gate.open();
    let raw: &RawValue = serde_json::from_slice(introduction).map_err(SharedError::new)?;
    link.tx.send(envelope::request(&RequestId::Number(0), "initialize", raw));
    loop {
        match link.rx.next().await.map(|frame| frame.map_err(SharedError::new).map(|frame| decode(&frame))) {
            Some(Ok(Some(RpcMessage::Response { .. }))) => return Ok(link),
            // What the node tells all of its clients.
            Some(Ok(Some(RpcMessage::Notification { .. }))) => {}
            Some(Ok(Some(RpcMessage::Error { fault, .. }))) => return Err(fault.message.into()),
            Some(Err(error)) => return Err(error),
            _ => return Err("it does not speak this protocol".into()),
        }
    }
}

fn decode(frame: &Bytes) -> Option<RpcMessage> {
    frame::decode(frame, FrameLimits::default()).ok()
}

/// Reads what a node says until the link ends.
struct Reading {
    client: FrameSink,
    node: FrameSink,
    waiting: Waiting,
    questions: Arc<Mutex<Questions>>,
    taken: Arc<Mutex<HashSet<ThreadId>>>,
    taking: Arc<Mutex<HashSet<ThreadId>>>,
    /// What the node's questions are called here.
    asked: HashMap<RequestId, String>,
    /// Which thread is passed on to which node, and which of them this one is.
    routes: Routes,
    own: Weak<NodeLink>,
}

impl Reading {
    async fn run(mut self, mut frames: FrameSource) {
        loop {
            // A client that reads slowly slows its node down, and not the whole program.
            self.client.room(PeerOptions::default().outbound).await;
            let Some(Ok(frame)) = frames.next().await else { break };
            if let Some(sent) = self.take(&frame) {
                // What the node says after an answer, the client hears after it. The other end is dropped in any case.
                let _ = sent.await;
            }
        }
        self.node.close(Close::new(Close::NORMAL, ""));
        // Dropping the senders answers the requests that wait.
        lock(&self.waiting).clear();
        lock(&self.questions).open.retain(|name, _| !self.asked.values().any(|own| own == name));
        let passed_on: Vec<ThreadId> = {
            let mut routes = lock(&self.routes);
            let threads = routes.iter().filter(|(_, link)| Weak::ptr_eq(link, &self.own)).map(|(thread, _)| *thread).collect();
            routes.retain(|_, link| !Weak::ptr_eq(link, &self.own));
            threads
        };
        for thread in passed_on.into_iter().filter(|thread| !lock(&self.taking).contains(thread)) {
            self.client.send(closed(thread));
        }
    }

    /// Whether the client is to hear this of a thread from this node.
    fn tells(&self, thread: ThreadId, method: &str) -> bool {
        if lock(&self.taken).contains(&thread) {
            return false;
        }
        let mut routes = lock(&self.routes);
        match routes.get(&thread) {
            Some(link) if link.strong_count() > 0 && !Weak::ptr_eq(link, &self.own) => return false,
            Some(_) if method == "thread/closed" => {
                routes.remove(&thread);
                return !lock(&self.taking).contains(&thread);
            }
            // Only followers of a thread hear of its turns: an agent's thread is followed together with the one that made it.
            None if method.starts_with("turn/") || method.starts_with("item/") => {
                routes.insert(thread, self.own.clone());
            }
            _ => {}
        }
        true
    }

    /// Takes a frame; if it is an answer, what tells when the client has it.
    fn take(&mut self, frame: &Bytes) -> Option<oneshot::Receiver<()>> {
        match decode(frame) {
            Some(RpcMessage::Response { id, .. } | RpcMessage::Error { id, .. }) => {
                let waiting = lock(&self.waiting).remove(&id)?;
                let (sent, is_sent) = oneshot::channel();
                waiting.send((frame.to_vec(), sent)).ok()?;
                return Some(is_sent);
            }
            // What is about no thread, this node says itself.
            Some(RpcMessage::Notification { method, params }) => {
                thread_in(&params).filter(|thread| self.tells(*thread, &method))?;
                if method == "serverRequest/resolved" {
                    self.resolved(&params);
                } else {
                    self.client.send(frame.to_vec());
                }
            }
            Some(RpcMessage::Request { id, method, params, .. }) => {
                let name = {
                    let mut questions = lock(&self.questions);
                    questions.next += 1;
                    let name = format!("node-{}", questions.next);
                    questions.open.insert(name.clone(), (self.node.clone(), id.clone()));
                    name
                };
                self.asked.insert(id, name.clone());
                if let Ok(raw) = serde_json::from_slice::<&RawValue>(&params) {
                    self.client.send(envelope::request(&RequestId::Text(name), &method, raw));
                }
            }
            None => {}
        }
        None
    }

    fn resolved(&mut self, params: &[u8]) {
        let Ok(mut params) = serde_json::from_slice::<Value>(params) else { return };
        let id: Option<RequestId> = serde_json::from_value(params["requestId"].clone()).ok();
        if let Some(name) = id.and_then(|id| self.asked.remove(&id)) {
            lock(&self.questions).open.remove(&name);
            params["requestId"] = Value::from(name);
        }
        self.client.send(serde_json::json!({"method": "serverRequest/resolved", "params": params}).to_string().into_bytes());
    }
}

/// Who a node says that its client is, if it knows the secret of the nodes.
pub(crate) fn identify(bearer: &str, secret: &str) -> Option<ClientIdentity> {
    ClientIdentity::from_credential(bearer, secret)
}
