//! One end of a link: answers the other side's requests, makes its own.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use outpost_wire::SharedError;
use outpost_wire::envelope::{self, MALFORMED_ID, TraceContext};
use outpost_wire::{Encode, Fault, Method, Notification, RequestId};
use serde::Serialize;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::task::coop::unconstrained;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::frame::{self, FrameLimits, RpcMessage};
use crate::link::{Close, FrameSink, HandshakeGate, Link, LinkError, Liveness};
use crate::pending::Pending;
use crate::router::{Dispatch, Lane};

/// What this end does for the other one.
pub trait Service: Send + Sync + 'static {
    /// Answers a request with a whole frame. The first poll happens in arrival order and is never cut short to be fair
    /// to other tasks, so whatever must be in order takes its place in a queue before it first waits.
    fn request(self: Arc<Self>, request: PeerRequest) -> ResponseFuture;
    /// Takes a notification; a violation ends the link.
    fn notification(&self, method: &str, params: &[u8]) -> Result<(), Violation>;
    /// Which lane a method belongs to, for [`Dispatch::Lanes`].
    fn lane(&self, method: &str) -> Lane;
    /// Whether requests may run beside each other yet. Until then they are taken strictly one by one.
    fn is_settled(&self) -> bool;
    /// What to say about a frame that is no message. By default its sender is told, under an id that stands for the one that
    /// could not be read; some dialects are silent.
    fn malformed(&self, message: String) -> Option<Vec<u8>> {
        Some(envelope::error(&MALFORMED_ID, &Fault::invalid_request(message)))
    }
    /// Takes an answer to a request that was not made by [`Peer::call`]. By default there is none.
    fn answered(&self, id: RequestId, _answer: Result<Bytes, Fault>) -> Result<(), Violation> {
        Err(Violation(format!("an answer to a request that was never made: {id:?}")))
    }
    /// Waits until this end can take more; meanwhile nothing is read from the link.
    fn room(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// A reply, in time.
pub type ResponseFuture = Pin<Box<dyn Future<Output = PeerReply> + Send>>;

/// The answer to a request, and what is still to be told once it is on its way.
pub struct PeerReply {
    pub frame: Vec<u8>,
    pub rest: Option<Rest>,
}

/// Work that follows an answer and ends, at the latest, with the link. It holds up nothing: not its lane, not the link.
pub type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

impl From<Vec<u8>> for PeerReply {
    fn from(frame: Vec<u8>) -> Self {
        Self { frame, rest: None }
    }
}

/// A request to be answered.
pub struct PeerRequest {
    pub id: RequestId,
    pub method: String,
    pub params: Bytes,
    pub trace: Option<TraceContext>,
}

/// The other side broke the protocol in a way that no answer can tell it.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct Violation(pub String);

/// Bounds of one peer. Sizes are in bytes.
#[derive(Debug, Clone)]
pub struct PeerOptions {
    pub dispatch: Dispatch,
    pub frame: FrameLimits,
    /// No further request is taken while more than this is queued for the other side.
    pub outbound: usize,
    /// No further request is taken while those that wait hold more than this.
    pub waiting: usize,
    /// Prefix of the message about malformed frames; the link's name follows.
    pub malformed: &'static str,
}

impl Default for PeerOptions {
    fn default() -> Self {
        Self {
            dispatch: Dispatch::StepAside,
            frame: FrameLimits::default(),
            outbound: 4 << 20,
            waiting: 8 << 20,
            malformed: "failed to parse JSON-RPC message from",
        }
    }
}

/// A handle to call the other side; cheap to clone.
#[derive(Clone)]
pub struct Peer {
    sink: FrameSink,
    pending: Arc<Pending>,
    gate: HandshakeGate,
    liveness: Liveness,
    received: Arc<AtomicU64>,
    retired: Arc<Retirement>,
}

#[derive(Default)]
struct Retirement {
    token: CancellationToken,
    close: OnceLock<Close>,
}

/// How long requests of a retired link may take to answer that they were overtaken, and a broken one to say why.
const RETIREMENT: std::time::Duration = std::time::Duration::from_secs(1);

#[derive(Debug, Error)]
pub enum CallError {
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("the connection was lost")]
    Lost,
    #[error("the answer to `{method}` is invalid: {why}")]
    Nonsense {
        method: &'static str,
        #[source]
        why: SharedError,
    },
}

impl Peer {
    /// Makes a peer of a link. The future must be polled for anything to happen and ends with the link.
    pub fn new<S: Service>(
        link: Link,
        options: PeerOptions,
        service: impl FnOnce(&Peer) -> Arc<S>,
    ) -> (Self, impl Future<Output = LinkEnd> + Send + 'static) {
        let peer = Self {
            sink: link.tx.clone(),
            pending: Arc::default(),
            gate: link.gate.clone(),
            liveness: link.liveness.clone(),
            received: Arc::default(),
            retired: Arc::default(),
        };
        let service = service(&peer);
        let driver = Driver {
            peer: peer.clone(),
            service,
            link,
            options,
            tasks: JoinSet::new(),
            rests: JoinSet::new(),
            held: HashMap::new(),
            waiting: 0,
        };
        (peer, driver.run())
    }

    pub fn sink(&self) -> &FrameSink {
        &self.sink
    }

    /// When the other side was last known to be there.
    pub fn liveness(&self) -> &Liveness {
        &self.liveness
    }

    /// So many messages have come in.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Lifts the limits of an unauthenticated connection.
    pub fn admit(&self) {
        self.gate.open();
    }

    /// Takes no further request, lets those that wait give their answer, then closes the link.
    pub fn retire(&self, close: Close) {
        let _ = self.retired.close.set(close);
        self.retired.token.cancel();
    }

    pub async fn call<M: Method>(&self, params: &M::Params) -> Result<M::Output, CallError> {
        let result = self.call_raw(M::NAME, params).await?;
        frame::decoded(M::read_output(&result)).map_err(|why| CallError::Nonsense { method: M::NAME, why })
    }

    /// A call whose answer stays text.
    pub async fn call_raw<P: Serialize + ?Sized>(&self, method: &str, params: &P) -> Result<Bytes, CallError> {
        self.ask(|id| envelope::request(id, method, params)).await
    }

    /// A call whose parameters carry bulk bytes: they are written once, where they are sent from.
    pub async fn call_bulk<M: Method<Params: Encode>>(&self, params: &M::Params) -> Result<M::Output, CallError> {
        let result = self.ask(|id| envelope::bulk_request(id, M::NAME, params)).await?;
        frame::decode_value(&result).map_err(|why| CallError::Nonsense { method: M::NAME, why })
    }

    async fn ask(&self, message: impl FnOnce(&RequestId) -> Vec<u8>) -> Result<Bytes, CallError> {
        let ticket = self.pending.register().ok_or(CallError::Lost)?;
        if !self.sink.send(message(&ticket.id())) {
            return Err(CallError::Lost);
        }
        match ticket.answer().await {
            Some(Ok(result)) => Ok(result),
            Some(Err(fault)) => Err(CallError::Fault(fault)),
            None => Err(CallError::Lost),
        }
    }

    pub fn notify<N: Notification>(&self, params: &N::Params) -> bool {
        self.sink.send(envelope::notification(N::NAME, params))
    }
}

/// How a link ended.
#[derive(Debug)]
pub enum LinkEnd {
    /// The other side ended it cleanly, or this side closed it.
    Closed(Option<Close>),
    Failed(LinkError),
    Violated(Violation),
}

struct Driver<S> {
    peer: Peer,
    service: Arc<S>,
    link: Link,
    options: PeerOptions,
    /// Requests that wait for something; dropped, and so cancelled, with the link.
    tasks: JoinSet<Option<Rest>>,
    /// What follows answers that are already given; dropped with the link as well.
    rests: JoinSet<()>,
    held: HashMap<Id, usize>,
    waiting: usize,
}

impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        self.peer.pending.close();
        // However it ends, aborted or not: this link has no reader any more.
        self.peer.sink.close(Close::new(Close::NORMAL, ""));
    }
}

impl<S: Service> Driver<S> {
    async fn run(mut self) -> LinkEnd {
        let lanes = self.options.dispatch.lanes();
        let sink = self.peer.sink.clone();
        let retired = self.peer.retired.clone();
        let end = loop {
            let has_room = self.waiting <= self.options.waiting;
            let outbound = self.options.outbound;
            tokio::select! {
                biased;
                () = sink.closed() => match sink.close_reason() {
                    Some(close) => break LinkEnd::Closed(Some(close)),
                    None => break self.last_words(&lanes).await,
                },
                () = retired.token.cancelled() => {
                    let _ = tokio::time::timeout(RETIREMENT, async { while self.tasks.join_next().await.is_some() {} }).await;
                    break LinkEnd::Closed(retired.close.get().cloned());
                }
                Some(done) = self.tasks.join_next_with_id(), if !self.tasks.is_empty() => self.finish(done),
                Some(_) = self.rests.join_next(), if !self.rests.is_empty() => {}
                frame = async { self.service.room().await; sink.room(outbound).await; self.link.rx.next().await }, if has_room => match frame {
                    Some(Ok(frame)) => if let Err(violation) = self.take(&frame, &lanes).await {
                        sink.close(Close::new(Close::PROTOCOL, violation.to_string()));
                        break LinkEnd::Violated(violation);
                    },
                    Some(Err(error)) => break LinkEnd::Failed(error),
                    None => break LinkEnd::Closed(None),
                },
            }
        };
        // Others may hold the sink for longer than the link is good for.
        sink.close(match (&end, retired.close.get()) {
            (_, Some(close)) => close.clone(),
            (LinkEnd::Failed(error @ LinkError::Protocol(_)), _) => Close::new(Close::PROTOCOL, error.to_string()),
            _ => Close::new(Close::NORMAL, ""),
        });
        end
    }

    /// The other side takes nothing any more; what it still says may tell why.
    async fn last_words(&mut self, lanes: &Lanes) -> LinkEnd {
        let listening = async {
            loop {
                match self.link.rx.next().await {
                    Some(Ok(frame)) => {
                        if let Err(violation) = self.take(&frame, lanes).await {
                            return LinkEnd::Violated(violation);
                        }
                    }
                    Some(Err(error)) => return LinkEnd::Failed(error),
                    None => return LinkEnd::Closed(None),
                }
            }
        };
        tokio::time::timeout(RETIREMENT, listening).await.unwrap_or(LinkEnd::Closed(None))
    }

    fn finish(&mut self, done: Result<(Id, Option<Rest>), JoinError>) {
        let (id, rest) = done.unwrap_or_else(|error| (error.id(), None));
        self.waiting -= self.held.remove(&id).unwrap_or_default();
        self.go_on(rest);
    }

    fn go_on(&mut self, rest: Option<Rest>) {
        if let Some(rest) = rest {
            self.rests.spawn(rest);
        }
    }

    async fn take(&mut self, frame: &Bytes, lanes: &Lanes) -> Result<(), Violation> {
        self.peer.received.fetch_add(1, Ordering::Relaxed);
        match frame::decode(frame, self.options.frame) {
            Err(malformed) => {
                let message = format!("{} {}: {malformed}", self.options.malformed, self.link.name);
                if let Some(frame) = self.service.malformed(message) {
                    self.peer.sink.send(frame);
                }
                Ok(())
            }
            Ok(RpcMessage::Request { id, method, params, trace }) => {
                let lane = self.service.lane(&method);
                let answer = self.service.clone().request(PeerRequest { id, method, params, trace });
                self.dispatch(answer, lanes.of(lane), frame.len()).await;
                Ok(())
            }
            Ok(RpcMessage::Notification { method, params }) => self.service.notification(&method, &params),
            Ok(RpcMessage::Response { id, result }) => self.resolve(id, Ok(result)),
            Ok(RpcMessage::Error { id, fault }) => self.resolve(id, Err(fault)),
        }
    }

    fn resolve(&self, id: RequestId, answer: Result<Bytes, Fault>) -> Result<(), Violation> {
        match self.peer.pending.resolve(&id, answer) {
            None => Ok(()),
            Some(answer) => self.service.answered(id, answer),
        }
    }

    async fn dispatch(&mut self, answer: ResponseFuture, lane: Option<Arc<Semaphore>>, size: usize) {
        let sink = self.peer.sink.clone();
        if !self.service.is_settled() {
            let reply = answer.await;
            sink.send(reply.frame);
            self.go_on(reply.rest);
            return;
        }
        let mut task: Pin<Box<dyn Future<Output = Option<Rest>> + Send>> = Box::pin(async move {
            // Permits are asked for in arrival order, so a lane is first come, first served.
            let _permit = match &lane {
                Some(lane) => lane.acquire().await.ok(),
                None => None,
            };
            let reply = answer.await;
            sink.send(reply.frame);
            reply.rest
        });
        // This task may have used up its share of the runtime. Then whatever the answer waits for would turn it away
        // without a place in the queue, and a later request might overtake it.
        match unconstrained(task.as_mut()).poll_unpin(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(rest) => self.go_on(rest),
            Poll::Pending => {
                // It is polled again at once, with a waker that works, so nothing that it waits for is missed.
                let size = size + 1024;
                self.held.insert(self.tasks.spawn(task).id(), size);
                self.waiting += size;
            }
        }
    }
}

/// The permits of each lane; none where nothing is limited.
pub(crate) struct Lanes {
    pub control: Option<Arc<Semaphore>>,
    pub ordinary: Option<Arc<Semaphore>>,
}

impl Lanes {
    fn of(&self, lane: Lane) -> Option<Arc<Semaphore>> {
        match lane {
            Lane::Control => self.control.clone(),
            Lane::Ordinary => self.ordinary.clone(),
        }
    }
}
