//! What `exec` says of the environments of its thread, beside what their commands do.

use outpost_environment::{ConnectionState, Environment, EnvironmentState, Registry, RegistryEvent, Watcher};
use outpost_runtime::live::LiveThread;
use outpost_sandbox::Level;
use outpost_wire::intent::{Attachment, EnvironmentId};

use crate::agents::Agents;
use crate::shortfall::Shortfall;

/// The environments of the thread, as far as there is something to say of them.
pub(super) struct Machines {
    selected: Vec<EnvironmentId>,
    registry: Option<(Registry, Watcher)>,
    is_sandboxed: bool,
}

impl Machines {
    pub(super) async fn of(agents: &Agents, thread: &LiveThread) -> anyhow::Result<Self> {
        let selection = thread.snapshot().await?.effective_selection().cloned().unwrap_or_default();
        let selected = Vec::from(selection).into_iter().map(|attachment: Attachment| attachment.environment_id).collect();
        // A server tells of them at their calls.
        let runtime = agents.own_runtime().ok();
        let is_sandboxed = runtime.is_some_and(|runtime| !runtime.config().sandbox.is_full_access());
        let registry = runtime.map(|runtime| (runtime.registry().clone(), runtime.registry().watch()));
        Ok(Self { selected, registry, is_sandboxed })
    }

    /// Why the next one cannot be used, or what its sandbox does not hold. Each has one remark.
    pub(super) async fn remark(&mut self) -> String {
        let Some((registry, watcher)) = &mut self.registry else { return std::future::pending().await };
        loop {
            let RegistryEvent::Environment { id, standing, .. } = watcher.next().await.event else { continue };
            let Some(at) = self.selected.iter().position(|selected| *selected == id) else { continue };
            let remark = match standing {
                EnvironmentState::Failed { reason, .. } => Some(format!("environment `{id}` cannot be used: {reason}")),
                // The first line has told of this machine.
                EnvironmentState::Ready if self.is_sandboxed && !id.is_local() => {
                    registry.get(&id).and_then(|environment| shortfall(&environment))
                }
                _ => None,
            };
            if let Some(remark) = remark {
                self.selected.remove(at);
                return remark;
            }
        }
    }
}

/// What the sandbox of an environment does not hold, as far as its executor has told.
fn shortfall(environment: &Environment) -> Option<String> {
    let ConnectionState::Ready(connected) = environment.state() else { return None };
    let short = Shortfall::of(&connected.info).filter(|short| short.level != Some(Level::Full.name()))?;
    Some(format!("environment `{}`: the sandbox there {short}", environment.name()))
}
