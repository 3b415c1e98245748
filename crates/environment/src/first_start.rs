//! A process that is started by the very message that a connection begins with.
//!
//! It runs once, whatever happens to the connection: the client has made up the id of the session, so after a lost answer it asks for
//! that session, and learns whether it ever began.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use outpost_rpc::CallError;
use outpost_wire::exec::calls::{CarriedAnswer, CarriedCall};
use outpost_wire::exec::environment::EnvironmentInfo;
use outpost_wire::exec::process::Start;
use outpost_wire::{Fault, Method, PathUri, SharedError};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::error::Elapsed;

use crate::environment::{Environment, EnvironmentError};
use crate::process::{ProcessStart, RemoteProcess};
use crate::process_event_buffer::ProcessEventBuffer;
use crate::session::Greeting;
use crate::state::ConnectionState;

/// What to start on a machine of which nothing is known yet.
#[derive(Debug, Clone)]
pub struct FirstStart {
    /// Its directory counts only if `cwd` is not told.
    pub start: ProcessStart,
    /// Where; without it, where programs usually start there.
    pub cwd: Option<PathUri>,
    /// The session that begins with it, a UUID that was never used before.
    pub session_id: String,
}

/// A start that waits for a connection.
#[derive(Default)]
pub(crate) struct StartSlot(Mutex<Option<SentStart>>);

/// One that goes along with a connection that is being made.
pub(crate) struct SentStart {
    params: Box<RawValue>,
    pub session_id: String,
    /// It was sent, and no answer came.
    pub may_have_begun: bool,
    outcome: oneshot::Sender<StartOutcome>,
}

/// What became of it.
enum StartOutcome {
    Answered(Box<CarriedAnswer>),
    /// It was not carried out, and can be asked for in the usual way.
    NotTaken,
}

impl StartSlot {
    pub(crate) fn put(&self, start: SentStart) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(start);
    }

    /// For one connection.
    pub(crate) fn take(&self) -> Option<SentStart> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl SentStart {
    pub(crate) fn call(&self) -> CarriedCall {
        CarriedCall { method: Start::NAME.to_owned(), params: self.params.clone(), follow: None }
    }

    /// Tells what became of it, by what came of the message that carried it. It is given back where that is not known.
    pub(crate) fn settle(mut self, greeted: &Result<Result<Greeting, CallError>, Elapsed>) -> Option<Self> {
        let outcome = match greeted {
            Ok(Ok(greeting)) => match greeting.answers.as_deref() {
                Some([answer, ..]) => StartOutcome::Answered(Box::new(answer.clone())),
                _ => StartOutcome::NotTaken,
            },
            Ok(Err(CallError::Fault(_))) => StartOutcome::NotTaken,
            Ok(Err(_)) | Err(_) => {
                self.may_have_begun = true;
                return Some(self);
            }
        };
        // The caller may be gone.
        let _ = self.outcome.send(outcome);
        None
    }
}

impl Environment {
    /// Connects because a person asks for it and starts a process there, without waiting in between where the executor can do that.
    pub async fn connect_and_start(&self, first: FirstStart) -> Result<(EnvironmentInfo, RemoteProcess), EnvironmentError> {
        if !matches!(self.state(), ConnectionState::Idle) {
            return self.start_after(first).await;
        }
        let mut params = serde_json::to_value(first.start.params(None)).map_err(|error| self.nonsense(SharedError::new(error)))?;
        match (&first.cwd, params.as_object_mut()) {
            (Some(cwd), Some(params)) => drop(params.insert("cwd".into(), cwd.to_string().into())),
            (None, Some(params)) => drop(params.remove("cwd")),
            (_, None) => {}
        }
        let params = serde_json::value::to_raw_value(&params).map_err(|error| self.nonsense(SharedError::new(error)))?;
        let inbox = Arc::new(ProcessEventBuffer::default());
        if !self.shared().processes.add(&first.start.id, inbox.clone()) {
            return Err(EnvironmentError::IdInUse { id: first.start.id });
        }
        // Made before the start, so that a cancelled caller leaves nothing behind.
        let id = first.start.id.clone();
        let mut process = RemoteProcess { environment: self.clone(), id, inbox, writes: AtomicU64::new(0), session: 0, is_pulled: false };
        let (outcome, answered) = oneshot::channel();
        let session_id = first.session_id.clone();
        self.shared().first_start.put(SentStart { params, session_id, may_have_begun: false, outcome });
        let info = self.connect().await;
        // One that no connection took is not sent later.
        let may_have_begun = self.shared().first_start.take().is_some_and(|start| start.may_have_begun);
        let info = match info {
            Err(EnvironmentError::Unreachable { name, reason, obstacle }) if may_have_begun => {
                let reason = SharedError::worded(format!("{reason}; the command may or may not have been started"), reason);
                return Err(EnvironmentError::Unreachable { name, reason, obstacle });
            }
            other => other?,
        };
        match answered.await.unwrap_or(StartOutcome::NotTaken) {
            StartOutcome::Answered(answer) => match answer.error {
                Some(fault) => Err(EnvironmentError::Fault(fault)),
                None => {
                    process.session = self.shared().ready().await?.session;
                    self.shared().processes.note_unread(process.inbox.attend());
                    Ok((info, process))
                }
            },
            StartOutcome::NotTaken => {
                drop(process);
                self.start_after(first).await
            }
        }
    }

    async fn start_after(&self, first: FirstStart) -> Result<(EnvironmentInfo, RemoteProcess), EnvironmentError> {
        let info = self.connect().await?;
        let usual = || info.cwd.clone().or_else(|| info.user_home_dir.clone());
        let Some(cwd) = first.cwd.or_else(usual) else {
            return Err(EnvironmentError::Fault(Fault::invalid_request("the executor tells no directory; give one")));
        };
        let process = self.start(ProcessStart { cwd, ..first.start }).await?;
        Ok((info, process))
    }

    fn nonsense(&self, reason: impl Into<SharedError>) -> EnvironmentError {
        EnvironmentError::Nonsense { name: self.name().to_owned(), reason: reason.into() }
    }
}
