//! Threads that another node of the store drives: what a client of ours asks about them is passed on to that node, and what the node says
//! of them is passed back. See docs/decisions/0026-any-node-serves-any-thread.md.
//!
//! A client has one link to each node that it needs. Requests keep their ids there, since the link is this client's alone; questions of the
//! node get new ones, since ours have numbers, too.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use futures_util::StreamExt;
use outpost_rpc::frame::{self, FrameLimits, RpcMessage};
use outpost_rpc::link::FrameSource;
use outpost_rpc::{Close, FrameSink};
use outpost_store::Store;
use outpost_thread::ThreadId;
use outpost_wire::{Fault, RequestId, envelope};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::connection::ClientConnection;
use crate::people::ClientIdentity;

/// The kind and the key under which a store keeps the secret by which its nodes know each other.
pub(crate) const NODE_SECRET: (&str, &str) = ("secret", "nodes");

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
pub(crate) struct Forwarding {
    /// How the client introduced itself, to say the same to others.
    introduction: Mutex<Option<Bytes>>,
    links: AsyncMutex<HashMap<String, Arc<NodeLink>>>,
    /// Which thread is passed on to which node.
    threads: Mutex<HashMap<ThreadId, Weak<NodeLink>>>,
    questions: Arc<Mutex<Questions>>,
    /// Threads that this node drives now: what another one says of them is over.
    taken: Arc<Mutex<HashSet<ThreadId>>>,
}

/// Questions of other nodes that the client was asked.
#[derive(Default)]
struct Questions {
    next: u64,
    open: HashMap<String, (FrameSink, RequestId)>,
}

/// A client's link to another node.
struct NodeLink {
    sink: FrameSink,
    waiting: Arc<Mutex<HashMap<RequestId, oneshot::Sender<Vec<u8>>>>>,
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

impl Forwarding {
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
                Err(error) => envelope::error(&id, &Fault::invalid_request(error.to_string())),
            },
            Err(fault) => envelope::error(&id, fault),
        });
        true
    }

    fn known(&self, thread: ThreadId) -> Option<Arc<NodeLink>> {
        let mut threads = lock(&self.threads);
        threads.retain(|_, link| link.upgrade().is_some_and(|link| !link.sink.is_closed()));
        threads.get(&thread)?.upgrade()
    }
}

fn plain_response(id: &RequestId, result: &Value) -> Vec<u8> {
    serde_json::json!({"id": id, "result": result}).to_string().into_bytes()
}

/// Passes a request on if another node drives its thread; nothing if it is to be answered here.
pub(crate) async fn forward(connection: &Arc<ClientConnection>, id: &RequestId, method: &str, params: &Bytes) -> Option<Vec<u8>> {
    let Store::Postgres(store) = connection.server.runtime.store() else { return None };
    if method == "thread/takeover"
        && let Some(thread) = thread_in(params)
    {
        lock(&connection.forwarding.threads).remove(&thread);
        lock(&connection.forwarding.taken).insert(thread);
    }
    // A node that was asked by another one answers by itself: two that each take the other for the holder would go on for ever.
    if connection.identity.is_node || OWN.contains(&method) || connection.client().is_none() {
        return None;
    }
    let forwarding = &connection.forwarding;
    let thread = thread_in(params)?;
    if connection.server.runtime.get(thread).is_some() {
        return None;
    }
    let link = match forwarding.known(thread) {
        Some(link) => link,
        None if READS.contains(&method) => return None,
        None => {
            let holder = store.holder(thread).await.ok().flatten().filter(|holder| holder.instance != store.instance())?;
            let address = holder.address.clone()?;
            match connect(connection, &holder.instance, &address).await {
                Ok(link) => link,
                Err(why) => {
                    tracing::warn!(%thread, node = %holder, why, "the node of a thread cannot be reached");
                    return None;
                }
            }
        }
    };
    let (sender, answer) = oneshot::channel();
    lock(&link.waiting).insert(id.clone(), sender);
    let raw: &RawValue = serde_json::from_slice(params).ok()?;
    if link.sink.send(envelope::request(id, method, raw)) {
        if method != "thread/unsubscribe" {
            lock(&forwarding.taken).remove(&thread);
            lock(&forwarding.threads).insert(thread, Arc::downgrade(&link));
        }
        if let Ok(frame) = answer.await {
            return Some(frame);
        }
    }
    lock(&link.waiting).remove(id);
    Some(envelope::error(id, &Fault::internal(format!("the node that drives thread {thread} is gone; resume the thread"))))
}

/// The client's link to a node, made if there is none.
async fn connect(connection: &Arc<ClientConnection>, instance: &str, address: &str) -> Result<Arc<NodeLink>, String> {
    let forwarding = &connection.forwarding;
    let mut links = forwarding.links.lock().await;
    links.retain(|_, link| !link.sink.is_closed());
    if let Some(link) = links.get(instance) {
        return Ok(link.clone());
    }
    let Store::Postgres(store) = connection.server.runtime.store() else { return Err("this store has no nodes".into()) };
    let secret = store.shared_one(NODE_SECRET.0, NODE_SECRET.1).await?.ok_or("the nodes of this store have no secret")?;
    let bearer = connection.identity.credential(&secret);
    let mut link = outpost_environment::dial(address, Some(bearer)).await.map_err(|error| error.to_string())?;
    link.gate.open();
    let introduction = lock(&forwarding.introduction).clone().ok_or("the client has not introduced itself")?;
    let raw: &RawValue = serde_json::from_slice(&introduction).map_err(|error| error.to_string())?;
    link.tx.send(envelope::request(&RequestId::Number(0), "initialize", raw));
    match link.rx.next().await.map(|frame| frame.map_err(|error| error.to_string()).map(|frame| decode(&frame))) {
        Some(Ok(Some(RpcMessage::Response { .. }))) => {}
        Some(Ok(Some(RpcMessage::Error { fault, .. }))) => return Err(fault.message),
        Some(Err(error)) => return Err(error),
        _ => return Err("it does not speak this protocol".into()),
    }
    let waiting = Arc::<Mutex<HashMap<RequestId, oneshot::Sender<Vec<u8>>>>>::default();
    let reading = Reading {
        client: connection.outlet.clone_sink(),
        node: link.tx.clone(),
        waiting: waiting.clone(),
        questions: forwarding.questions.clone(),
        taken: forwarding.taken.clone(),
        asked: HashMap::new(),
        threads: HashSet::new(),
    };
    let reading = AbortOnDropHandle::new(tokio::spawn(reading.run(link.rx)));
    let made = Arc::new(NodeLink { sink: link.tx, waiting, _reading: reading });
    links.insert(instance.to_owned(), made.clone());
    Ok(made)
}

fn decode(frame: &Bytes) -> Option<RpcMessage> {
    frame::decode(frame, FrameLimits::default()).ok()
}

/// Reads what a node says until the link ends.
struct Reading {
    client: FrameSink,
    node: FrameSink,
    waiting: Arc<Mutex<HashMap<RequestId, oneshot::Sender<Vec<u8>>>>>,
    questions: Arc<Mutex<Questions>>,
    taken: Arc<Mutex<HashSet<ThreadId>>>,
    /// What the node's questions are called here.
    asked: HashMap<RequestId, String>,
    /// Those that the client heard of through this link.
    threads: HashSet<ThreadId>,
}

impl Reading {
    async fn run(mut self, mut frames: FrameSource) {
        while let Some(Ok(frame)) = frames.next().await {
            self.take(&frame);
        }
        self.node.close(Close::new(Close::NORMAL, ""));
        // Dropping the senders answers the requests that wait.
        lock(&self.waiting).clear();
        lock(&self.questions).open.retain(|name, _| !self.asked.values().any(|own| own == name));
        for thread in self.threads.iter().filter(|thread| !lock(&self.taken).contains(*thread)) {
            let closed = serde_json::json!({"method": "thread/closed", "params": {"threadId": thread}});
            self.client.send(closed.to_string().into_bytes());
        }
    }

    fn take(&mut self, frame: &Bytes) {
        match decode(frame) {
            Some(RpcMessage::Response { id, .. } | RpcMessage::Error { id, .. }) => {
                if let Some(waiting) = lock(&self.waiting).remove(&id) {
                    let _ = waiting.send(frame.to_vec());
                }
            }
            // What is about no thread, this node says itself.
            Some(RpcMessage::Notification { method, params }) => {
                let Some(thread) = thread_in(&params).filter(|thread| !lock(&self.taken).contains(thread)) else { return };
                self.threads.insert(thread);
                if method == "thread/closed" {
                    self.threads.remove(&thread);
                }
                if method == "serverRequest/resolved" {
                    return self.resolved(&params);
                }
                self.client.send(frame.to_vec());
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
