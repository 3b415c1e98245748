//! One link's state: the handshake, the session that it is attached to, and what ends with the link.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use outpost_rpc::peer::{PeerReply, PeerRequest, ResponseFuture};
use outpost_rpc::{Lane, Peer, Service, Violation};
use outpost_wire::exec::process::Start;
use outpost_wire::exec::session::{INITIALIZED, InitializeParams, InitializeResponse};
use outpost_wire::{Fault, Method};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::attachment::{Extensions, SessionAttachment};
use crate::carried::Carried;
use crate::executor::ExecutorShared;
use crate::fault;
use crate::follow::{self, Follows};
use crate::http::BodyStreams;
use crate::session::ExecutorSession;
use crate::streams::Streams;
use crate::watch::SessionWatches;

pub(crate) struct ExecutorConnection {
    executor: Arc<ExecutorShared>,
    peer: Peer,
    state: Mutex<State>,
    /// Starts whose reapers have not answered yet.
    starts: Semaphore,
    /// File calls of one connection take effect in the order in which they were sent.
    file_calls: tokio::sync::Mutex<()>,
    /// Answers with output that had to wait for the client are made one after the other.
    output_answers: tokio::sync::Mutex<()>,
    /// Answers that carry bulk are made a few at a time.
    bulk_calls: Semaphore,
    streams: Streams,
    bodies: BodyStreams,
    watches: SessionWatches,
    follows: Arc<Follows>,
}

/// So many starts wait for their reapers beside each other.
const STARTS: u32 = 8;
/// No bulk is fetched for a client that has so much to read already.
const FILE_ROOM: usize = 1 << 20;
const BULK_CALLS: usize = 4;
/// So many calls may come with `initialize`.
const MAX_CARRIED: usize = 256;

enum State {
    New,
    /// `initialize` was answered, `initialized` has not come yet.
    Greeted(Attached),
    Ready(Attached),
}

#[derive(Clone)]
struct Attached {
    session: Arc<ExecutorSession>,
    attachment: Arc<SessionAttachment>,
}

impl ExecutorConnection {
    pub(crate) fn new(executor: Arc<ExecutorShared>, peer: Peer) -> Self {
        let watches = SessionWatches::new(peer.clone());
        let follows = Arc::new(Follows::new(peer.clone()));
        Self {
            executor,
            peer,
            state: Mutex::new(State::New),
            starts: Semaphore::new(STARTS as usize),
            file_calls: tokio::sync::Mutex::default(),
            output_answers: tokio::sync::Mutex::default(),
            bulk_calls: Semaphore::new(BULK_CALLS),
            streams: Streams::default(),
            bodies: BodyStreams::default(),
            watches,
            follows,
        }
    }

    pub(crate) fn executor(&self) -> &Arc<ExecutorShared> {
        &self.executor
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Open files live as long as the connection, not as long as the session.
    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }

    pub(crate) fn bodies(&self) -> &BodyStreams {
        &self.bodies
    }

    pub(crate) fn watches(&self) -> &SessionWatches {
        &self.watches
    }

    pub(crate) fn follows(&self) -> &Arc<Follows> {
        &self.follows
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn attached(&self) -> Option<(Arc<ExecutorSession>, Arc<SessionAttachment>)> {
        match &*self.lock() {
            State::New => None,
            State::Greeted(attached) | State::Ready(attached) => Some((attached.session.clone(), attached.attachment.clone())),
        }
    }

    /// Waits for the turn of a file call, and for the client to have read what it asked for before.
    pub(crate) async fn file_turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        let turn = self.file_calls.lock().await;
        self.peer.sink().room(FILE_ROOM).await;
        turn
    }

    /// Whether the client has read most of what it asked for.
    pub(crate) fn has_room(&self) -> bool {
        self.peer.sink().queued() <= FILE_ROOM
    }

    /// Waits for the turn of an answer with output, and for the client to have read what it asked for before.
    pub(crate) async fn output_turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        let turn = self.output_answers.lock().await;
        self.peer.sink().room(FILE_ROOM).await;
        turn
    }

    /// Waits until one more start may be under way.
    pub(crate) async fn start_turn(&self) -> Option<SemaphorePermit<'_>> {
        self.starts.acquire().await.ok()
    }

    /// Answers a request that comes after starts which are under way as if they were over: it begins once they are, also if the
    /// connection has ended by then. The end of a session that was asked for before must not be lost.
    async fn after_starts(self: Arc<Self>, mut answer: ResponseFuture) -> PeerReply {
        let begun = Carried::new(async move {
            let turn = self.starts.acquire_many(STARTS).await;
            // Whatever has to be in order takes its place before it first waits, and what came later is let in after that.
            let first = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await;
            drop(turn);
            (first, answer)
        });
        match begun.await {
            (Poll::Ready(reply), _) => reply,
            (Poll::Pending, answer) => answer.await,
        }
    }

    /// Waits until a bulk answer may be made; the next may be when this one is given back.
    pub(crate) async fn bulk_turn(&self) -> Option<SemaphorePermit<'_>> {
        let turn = self.bulk_calls.acquire().await.ok();
        self.peer.sink().room(FILE_ROOM).await;
        turn
    }

    /// Whether methods may be used yet; `family` names them in the refusal.
    pub(crate) fn admit(&self, family: &str) -> Result<(), Fault> {
        match &*self.lock() {
            State::New => Err(fault::not_initialized(family)),
            State::Greeted(_) => Err(fault::not_acknowledged(family)),
            State::Ready(attached) if attached.attachment.revoked().is_cancelled() => Err(fault::taken_over()),
            State::Ready(_) => Ok(()),
        }
    }

    /// The session of an admitted connection.
    pub(crate) fn session(&self) -> Result<(Arc<ExecutorSession>, Arc<SessionAttachment>), Fault> {
        self.attached().ok_or_else(|| fault::not_initialized("exec"))
    }

    pub(crate) fn initialize(self: &Arc<Self>, params: &InitializeParams) -> Result<InitializeResponse, Fault> {
        let mut state = self.lock();
        if !matches!(*state, State::New) {
            return Err(fault::initialized_twice());
        }
        // Before anything is made or done: whatever the message carries is meant for another machine.
        let own = self.executor.config.executor_id.as_deref();
        if let Some(expected) = params.expected_executor_id.as_deref().filter(|expected| own != Some(expected)) {
            return Err(fault::other_executor(expected, own));
        }
        let calls = params.calls.as_ref().map_or(0, Vec::len);
        if calls > MAX_CARRIED {
            return Err(fault::too_many_calls(calls, MAX_CARRIED));
        }
        let caller = self.executor.caller(params.caller.as_ref()).map_err(|why| fault::caller(&why))?;
        let session = match &params.resume_session_id {
            None => self.executor.create_session(params.new_session_id.as_deref(), caller.clone())?,
            // The session will be known again to the next start.
            Some(_) if self.executor.is_closing() => return Err(fault::ending()),
            Some(id) => self.executor.session(id).ok_or_else(|| fault::unknown_session(id))?,
        };
        self.follows.belong_to(self);
        let attachment =
            SessionAttachment::new(self.peer.clone(), Extensions::of(params.extensions.as_deref()), Arc::downgrade(&self.follows));
        if !session.attach(attachment.clone()) {
            return Err(fault::unknown_session(session.id()));
        }
        if let Some(caller) = caller {
            session.run_for(caller);
        }
        self.peer.admit();
        let response = InitializeResponse {
            session_id: session.id().to_owned(),
            environment_info: Some(session.caller().info(self.executor.instance_id()).clone()),
            grace_ms: u64::try_from(session.config().grace.as_millis()).ok(),
            answers: None,
        };
        let attached = Attached { session, attachment };
        // A client that sends calls along does not wait for our answer before it begins.
        *state = if calls > 0 { State::Ready(attached) } else { State::Greeted(attached) };
        Ok(response)
    }
}

impl Service for ExecutorConnection {
    fn request(self: Arc<Self>, request: PeerRequest) -> ResponseFuture {
        let (connection, executor) = (self.clone(), self.executor.clone());
        let (is_start, changes_files) = (request.method == Start::NAME, follow::may_change_files(&request.method));
        let mut answer = executor.router.answer(self, request, fault::unknown_method);
        if changes_files {
            let (follows, made) = (connection.follows.clone(), answer);
            answer = Box::pin(async move {
                let reply = made.await;
                // What it changed is told before it is answered.
                follows.settle().await;
                reply
            });
        }
        if is_start || connection.starts.available_permits() == STARTS as usize {
            return answer;
        }
        Box::pin(async move { connection.after_starts(answer).await })
    }

    fn notification(&self, method: &str, _params: &[u8]) -> Result<(), Violation> {
        if method != INITIALIZED {
            return Err(Violation(format!("unknown notification `{method}`")));
        }
        let mut state = self.lock();
        let attached = match &*state {
            State::New => return Err(Violation("`initialized` came before `initialize`".into())),
            State::Greeted(attached) | State::Ready(attached) => attached.clone(),
        };
        *state = State::Ready(attached);
        Ok(())
    }

    fn lane(&self, method: &str) -> Lane {
        self.executor.router.lane(method)
    }

    fn is_settled(&self) -> bool {
        matches!(*self.lock(), State::Ready(_))
    }
}
