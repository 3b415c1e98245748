//! Commands that a previous run of a thread started: looked for where they were started, and claimed from there.

use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{Captured, Environment, EnvironmentError, RemoteProcess};
use outpost_thread::Thread;
use outpost_wire::fault::{ADOPTED_SINCE, NOT_ADOPTABLE};
use outpost_wire::intent::EnvironmentId;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::processes::{BackgroundProcesses, RunningCommand};
use super::{CallContext, CallRuntime};

/// So long a search waits for another one that has found the same command.
const NOT_YET: Duration = Duration::from_millis(20);
/// So long it waits for a change: a connection that is lost and back within a moment need not be seen as one.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// A command that a previous run of the thread started.
pub(crate) struct FormerCommand {
    /// What it is called while it outlives its call.
    pub session: u64,
    pub environment: EnvironmentId,
    pub process: String,
    /// The key that it was to be claimed with.
    pub key: Option<String>,
    /// Who had it, if that is known.
    pub executor: Option<String>,
}

/// What a search for such a command found.
pub(crate) enum FoundCommand {
    Process(RemoteProcess),
    /// Another search of this thread was faster.
    Followed(Arc<RunningCommand>),
}

/// Whether an environment is bound to the executor of this name, where a name was written down.
pub(crate) fn is_executor(environment: &Environment, name: Option<&str>) -> bool {
    name.is_none_or(|name| environment.identity().is_some_and(|identity| identity.executor_id.as_deref() == Some(name)))
}

/// Where a search for such a command begins, and what ends it.
pub(crate) struct SearchAround<'a> {
    pub runtime: &'a CallRuntime,
    pub thread: &'a Thread,
    pub cancel: &'a CancellationToken,
}

impl CallContext {
    pub(super) fn search(&self) -> SearchAround<'_> {
        SearchAround { runtime: &self.runtime, thread: &self.thread, cancel: &self.cancel }
    }
}

/// Looks for a process where it was started, for as long as that place may come back. Why it is lost, if it is.
pub(crate) async fn find_again(
    around: &SearchAround<'_>,
    former: &FormerCommand,
    processes: &BackgroundProcesses,
) -> Result<FoundCommand, String> {
    let SearchAround { runtime, thread, cancel } = around;
    let FormerCommand { environment: id, process, .. } = former;
    let deadline = Instant::now() + runtime.reattach_patience();
    let mut changes = runtime.changes();
    loop {
        if let Some(running) = processes.get(former.session) {
            return Ok(FoundCommand::Followed(running));
        }
        // Before looking, so that nothing between the two is missed.
        changes.mark_unchanged();
        let view = runtime.view(thread);
        let mut look_again = deadline.min(Instant::now() + LOOK_AGAIN);
        let (place, captured) = (view.workplace(Some(id.as_str())), view.captured(id));
        let mut reason = format!("environment `{id}` could not be reached");
        match (place, captured) {
            // What would claim the command is not shown to another one.
            (Ok(place), _) if !former.is_at(place.handle) => return Err(format!("another executor answers under `{id}` now")),
            (Ok(place), _) => match place.handle.adopt(process, processes.claim(process)).await {
                Ok(found) => return Ok(FoundCommand::Process(found)),
                // Another search of this thread has just found it, and says so in a moment.
                Err(EnvironmentError::IdInUse { .. }) => {
                    look_again = deadline.min(Instant::now() + NOT_YET);
                    reason = "another call has it".to_owned();
                }
                // The connection was lost meanwhile; a claim that is repeated is the same one.
                Err(EnvironmentError::Unknown { .. } | EnvironmentError::Unreachable { .. }) => {}
                Err(error) => {
                    tracing::info!(environment = %id, process, %error, "a command of an earlier life is lost");
                    return Err(former.why_lost(&error, processes));
                }
            },
            (_, None | Some(Captured::Missing | Captured::Disabled)) => return Err(format!("environment `{id}` is not there any more")),
            (_, Some(Captured::Failed { retry_at: Some(at), .. })) => look_again = deadline.min(*at),
            (_, Some(other)) => reason = format!("environment `{id}` is {}", other.describe()),
        }
        if Instant::now() >= deadline || cancel.is_cancelled() {
            return Err(reason);
        }
        tokio::select! {
            _ = timeout_at(look_again, changes.changed()) => {}
            () = cancel.cancelled() => return Err(reason),
        }
    }
}

impl FormerCommand {
    /// Whether this executor is the one that had it, as far as that is known.
    fn is_at(&self, environment: &Environment) -> bool {
        is_executor(environment, self.executor.as_deref())
    }

    fn why_lost(&self, error: &EnvironmentError, processes: &BackgroundProcesses) -> String {
        let EnvironmentError::Fault(fault) = error else { return error.to_string() };
        let now = processes.key_id();
        match fault.code {
            ADOPTED_SINCE => "another program has claimed it since".to_owned(),
            NOT_ADOPTABLE if self.key.is_some() && self.key != now => {
                let id = |key: &Option<String>| key.clone().unwrap_or_else(|| "none".to_owned());
                let (was, is) = (id(&self.key), id(&now));
                format!("the key by which running commands are claimed was lost or replaced (it was {was} and is {is} now)")
            }
            NOT_ADOPTABLE => "its executor does not have it any more: it was restarted, or the grace of the session is over".to_owned(),
            _ => fault.message.clone(),
        }
    }
}
