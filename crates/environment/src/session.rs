//! One connection's side of the protocol: the handshake, and the events that come in.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outpost_rpc::peer::{PeerRequest, ResponseFuture};
use outpost_rpc::{CallError, Lane, Peer, Service, Violation, frame};
use outpost_wire::SharedError;
use outpost_wire::exec::adoption::{Moved, MovedParams, PROCESS_MOVES};
use outpost_wire::exec::calls::{CallChanged, CarriedAnswer, CarriedCall, FollowIds};
use outpost_wire::exec::environment::{EnvironmentInfo, Info, Unit};
use outpost_wire::exec::http::BodyDelta;
use outpost_wire::exec::policy::{SandboxLoss, SandboxLossParams};
use outpost_wire::exec::process::{Closed, ClosedParams, Exited, ExitedParams, Output, OutputParams};
use outpost_wire::exec::session::{
    CallerContext, INITIALIZED, Initialize, InitializeParams, InitializeResponse, OUTPUT_GAPS, SANDBOX_LOSSES,
};
use outpost_wire::exec::watch::Changed;
use outpost_wire::{Fault, Notification, envelope, fault};
use tokio::sync::{Notify, broadcast};

use crate::followed::FollowedCalls;
use crate::http::Bodies;
use crate::process_event_buffer::{ProcessEventBuffer, Pushed};
use crate::watching::HandleWatches;

/// How much output may wait for its readers before the link is no longer read.
const UNREAD: isize = 4 << 20;

/// So many names of processes are remembered: more than an executor lists that ended a moment ago.
const REMEMBERED: usize = 4096;

/// The processes of one session, across its connections.
#[derive(Default)]
pub(crate) struct SessionProcesses {
    inboxes: Mutex<HashMap<String, Arc<ProcessEventBuffer>>>,
    /// The names of those that were added last, whether they are still there or not.
    recent: Mutex<VecDeque<String>>,
    /// Signed, because what is read may be counted before what came is.
    unread: AtomicIsize,
    read: Notify,
    /// Ids of processes that fell behind, for the supervisor to read up.
    behind: Mutex<Vec<String>>,
    fell_behind: Notify,
}

impl SessionProcesses {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<ProcessEventBuffer>>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False if the id is taken.
    pub(crate) fn add(&self, id: &str, inbox: Arc<ProcessEventBuffer>) -> bool {
        let mut inboxes = self.lock();
        if inboxes.contains_key(id) {
            return false;
        }
        inboxes.insert(id.to_owned(), inbox);
        drop(inboxes);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == REMEMBERED {
            recent.pop_front();
        }
        recent.push_back(id.to_owned());
        true
    }

    /// Whether a process was one of ours. In a session that a previous run of this program left behind there are others, too.
    pub(crate) fn knew(&self, id: &str) -> bool {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|known| known == id)
    }

    /// Only that very process: another session may have one of the same name.
    pub(crate) fn remove(&self, id: &str, inbox: &Arc<ProcessEventBuffer>) {
        let mut inboxes = self.lock();
        if inboxes.get(id).is_some_and(|known| Arc::ptr_eq(known, inbox)) {
            inboxes.remove(id);
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<ProcessEventBuffer>> {
        self.lock().get(id).cloned()
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Gives one up.
    fn lose(&self, id: &str, reason: &str) {
        if let Some(inbox) = self.lock().remove(id) {
            inbox.lose(reason.to_owned());
        }
    }

    /// Gives all of them up and tells which those were.
    pub(crate) fn lose_all(&self, reason: &str) -> Vec<String> {
        let mut lost: Vec<String> = self.lock().drain().filter(|(_, inbox)| inbox.lose(reason.to_owned())).map(|(id, _)| id).collect();
        lost.sort_unstable();
        lost
    }

    pub(crate) fn note_unread(&self, bytes: usize) {
        self.unread.fetch_add(bytes.cast_signed(), Ordering::AcqRel);
    }

    pub(crate) fn note_read(&self, bytes: usize) {
        self.unread.fetch_sub(bytes.cast_signed(), Ordering::AcqRel);
        self.read.notify_waiters();
    }

    pub(crate) fn has_room(&self) -> bool {
        self.unread.load(Ordering::Acquire) < UNREAD
    }

    /// Waits until readers have caught up.
    pub(crate) async fn room(&self) {
        loop {
            let mut read = std::pin::pin!(self.read.notified());
            read.as_mut().enable();
            if self.has_room() {
                return;
            }
            read.await;
        }
    }

    /// Asks for what was missed of a process to be read.
    pub(crate) fn note_behind(&self, id: &str) {
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        if !behind.iter().any(|other| other == id) {
            behind.push(id.to_owned());
        }
        drop(behind);
        self.fell_behind.notify_one();
    }

    /// Waits for processes that need their log read.
    pub(crate) async fn next_behind(&self) -> String {
        loop {
            if let Some(id) = self.behind.lock().unwrap_or_else(PoisonError::into_inner).pop() {
                return id;
            }
            self.fell_behind.notified().await;
        }
    }

    fn push(&self, id: &str, seq: u64, event: Pushed) {
        let Some(inbox) = self.get(id) else { return };
        let taken = inbox.push(seq, event);
        self.note_unread(taken.bytes);
        if taken.is_behind {
            self.note_behind(id);
        }
    }
}

/// What an executor may tell us without being asked.
pub(crate) struct SessionListener {
    pub processes: Arc<SessionProcesses>,
    pub bodies: Arc<Bodies>,
    pub watches: Arc<HandleWatches>,
    pub followed: Arc<FollowedCalls>,
    /// What programs outside took away from sandboxes of the session.
    pub losses: broadcast::Sender<SandboxLossParams>,
}

impl Service for SessionListener {
    fn request(self: Arc<Self>, request: PeerRequest) -> ResponseFuture {
        let fault = Fault::new(fault::METHOD_NOT_FOUND, format!("this client does not answer `{}`", request.method));
        Box::pin(std::future::ready(envelope::error(&request.id, &fault).into()))
    }

    fn notification(&self, method: &str, params: &[u8]) -> Result<(), Violation> {
        let nonsense = |why: SharedError| Violation(format!("`{method}` makes no sense: {why}"));
        match method {
            Output::NAME => {
                let OutputParams { process_id, piece } = frame::decode_value(params).map_err(nonsense)?;
                self.processes.push(&process_id, piece.seq(), Pushed::Piece(piece));
            }
            Exited::NAME => {
                let ExitedParams { process_id, seq, exit_code, sandbox_denied, limit, notices } =
                    frame::decode_value(params).map_err(nonsense)?;
                let denied = sandbox_denied.unwrap_or(false);
                self.processes.push(&process_id, seq, Pushed::Exited { code: exit_code, denied, limit, notices });
            }
            Closed::NAME => {
                let ClosedParams { process_id, seq } = frame::decode_value(params).map_err(nonsense)?;
                self.processes.push(&process_id, seq, Pushed::Closed);
            }
            Moved::NAME => {
                let MovedParams { process_id } = frame::decode_value(params).map_err(nonsense)?;
                self.processes.lose(&process_id, "another program took it over");
            }
            BodyDelta::NAME => {
                let taken = self.bodies.push(frame::decode_value(params).map_err(nonsense)?);
                self.processes.note_unread(taken);
            }
            CallChanged::NAME => {
                let FollowIds { ids } = frame::decode_value(params).map_err(nonsense)?;
                self.followed.changed(&ids);
            }
            Changed::NAME => self.watches.push(frame::decode_value(params).map_err(nonsense)?),
            SandboxLoss::NAME => {
                let loss: SandboxLossParams = frame::decode_value(params).map_err(nonsense)?;
                let SandboxLossParams { path, held, outcome } = &loss;
                tracing::warn!(%path, ?held, ?outcome, "a program outside the sandbox took away something that the sandbox held");
                // Without a listener it is only logged.
                let _ = self.losses.send(loss);
            }
            // An executor newer than us may have more to say.
            _ => {}
        }
        Ok(())
    }

    fn lane(&self, _method: &str) -> Lane {
        Lane::Ordinary
    }

    fn is_settled(&self) -> bool {
        true
    }

    fn room(&self) -> impl Future<Output = ()> + Send {
        self.processes.room()
    }
}

/// What the handshake agreed on.
pub(crate) struct Greeting {
    pub session_id: String,
    pub info: EnvironmentInfo,
    /// How long the session outlives its connection, if the executor says so.
    pub grace: Option<Duration>,
    /// To the calls that came along, in their order; nothing from an executor that does not know of such calls.
    pub answers: Option<Vec<CarriedAnswer>>,
}

/// What a connection begins with.
#[derive(Clone)]
pub(crate) struct Opening {
    pub client_name: String,
    pub resume: Option<String>,
    /// In whose place commands run there.
    pub caller: Option<CallerContext>,
    /// The only executor that is meant, if that is known.
    pub expected: Option<String>,
    /// What a new session is to be called.
    pub new_session: Option<String>,
    pub calls: Vec<CarriedCall>,
}

pub(crate) async fn greet(peer: &Peer, opening: Opening) -> Result<Greeting, CallError> {
    let Opening { client_name, resume, caller, expected, new_session, calls } = opening;
    let params = InitializeParams {
        client_name,
        resume_session_id: resume,
        extensions: Some(vec![OUTPUT_GAPS.to_owned(), SANDBOX_LOSSES.to_owned(), PROCESS_MOVES.to_owned()]),
        caller,
        expected_executor_id: expected,
        new_session_id: new_session,
        calls: (!calls.is_empty()).then_some(calls),
    };
    let InitializeResponse { session_id, environment_info, grace_ms, answers } = peer.call::<Initialize>(&params).await?;
    if !peer.sink().send(envelope::notification(INITIALIZED, &outpost_wire::exec::session::Empty {})) {
        return Err(CallError::Lost);
    }
    // Older executors tell about themselves only when asked.
    let info = match environment_info {
        Some(info) => info,
        None => peer.call::<Info>(&Unit).await?,
    };
    Ok(Greeting { session_id, info, grace: grace_ms.map(Duration::from_millis), answers })
}
