//! What a running call may ask of the runtime: how environments stand now, and the agents of its thread. The registry, the store and the
//! other threads of the program stay behind it.

use std::sync::Arc;
use std::time::Duration;

use outpost_environment::StepView;
use outpost_thread::{InterruptReason, Thread, ThreadId};
use outpost_wire::SharedError;
use tokio::sync::watch;

use crate::live::{LiveThread, ThreadActivity};
use crate::runtime::{RuntimeShared, ThreadError};

/// The runtime, as far as calls may use it.
///
/// A call works where its step saw, so no way leads from here to the registry, in which an id may mean another machine by now:
///
/// ```compile_fail,E0616
/// fn elsewhere(runtime: &outpost_runtime::tools::CallRuntime) -> &outpost_environment::Registry {
///     &runtime.shared.registry
/// }
/// ```
///
/// ```compile_fail,E0599
/// fn elsewhere(runtime: &outpost_runtime::tools::CallRuntime) -> outpost_environment::Registry {
///     runtime.registry()
/// }
/// ```
///
/// Nor from what the step froze:
///
/// ```compile_fail,E0609
/// fn elsewhere(step: &outpost_runtime::tools::StepTools) -> &outpost_environment::Registry {
///     &step.registry
/// }
/// ```
///
/// What the step saw can be asked:
///
/// ```
/// fn places(step: &outpost_runtime::tools::StepTools) -> usize {
///     step.view.workplaces().count()
/// }
/// fn patience(runtime: &outpost_runtime::tools::CallRuntime) -> std::time::Duration {
///     runtime.reattach_patience()
/// }
/// ```
#[derive(Clone)]
pub struct CallRuntime {
    shared: Arc<RuntimeShared>,
}

impl CallRuntime {
    pub(crate) fn new(shared: Arc<RuntimeShared>) -> Self {
        Self { shared }
    }

    /// How long a command of a previous run of the thread is looked for.
    pub fn reattach_patience(&self) -> Duration {
        self.shared.config.reattach_patience
    }

    /// Each new number is a change of an environment.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.shared.registry.changes()
    }

    /// How the environments of a thread stand now.
    pub(crate) fn view(&self, thread: &Thread) -> StepView {
        self.shared.view(thread)
    }

    pub(crate) async fn spawn_agent(&self, maker: &Thread, fork_context: bool) -> Result<LiveThread, SharedError> {
        self.shared.clone().spawn_agent(maker, fork_context).await
    }

    pub(crate) async fn load(&self, agent: ThreadId) -> Result<LiveThread, ThreadError> {
        self.shared.clone().load(agent).await
    }

    /// An agent that works, loaded if it was left in the middle of a turn.
    pub(crate) async fn busy(&self, agent: ThreadId) -> Option<LiveThread> {
        self.shared.clone().busy(agent).await
    }

    pub(crate) fn live(&self, agent: ThreadId) -> Option<LiveThread> {
        self.shared.live(agent)
    }

    pub(crate) fn status(&self, agent: ThreadId) -> Option<ThreadActivity> {
        self.shared.status(agent)
    }

    pub(crate) async fn last_message(&self, agent: ThreadId) -> Option<String> {
        self.shared.last_message(agent).await
    }

    pub(crate) async fn unload_tree(&self, agent: ThreadId, reason: InterruptReason) -> Result<Vec<ThreadId>, ThreadError> {
        self.shared.unload_tree(agent, reason).await
    }
}
