//! What `exec` says of the environments of its thread, beside what their commands do.

use std::time::Duration;

use outpost_environment::{Environment, EnvironmentState, Registry, RegistryEvent, Watcher};
use outpost_runtime::live::LiveThread;
use outpost_sandbox::Level;
use outpost_wire::intent::{Attachment, EnvironmentId};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::agents::Agents;
use crate::shortfall::Shortfall;

/// So long a machine that was asked what its sandbox holds is waited for when the turn is over.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// The environments of the thread, as far as there is something to say of them.
pub(super) struct Machines {
    selected: Vec<EnvironmentId>,
    registry: Option<(Registry, Watcher)>,
    is_sandboxed: bool,
    /// Machines that were asked what their sandbox holds.
    asked: JoinSet<Option<String>>,
}

impl Machines {
    pub(super) async fn of(agents: &Agents, thread: &LiveThread) -> anyhow::Result<Self> {
        let selection = thread.snapshot().await?.effective_selection().cloned().unwrap_or_default();
        let selected = Vec::from(selection).into_iter().map(|attachment: Attachment| attachment.environment_id).collect();
        // A server tells of them at their calls.
        let runtime = agents.own_runtime().ok();
        let is_sandboxed = runtime.is_some_and(|runtime| !runtime.config().sandbox.is_full_access());
        let registry = runtime.map(|runtime| (runtime.registry().clone(), runtime.registry().watch()));
        Ok(Self { selected, registry, is_sandboxed, asked: JoinSet::new() })
    }

    /// Why the next one cannot be used, or what its sandbox does not hold. Each has one remark.
    pub(super) async fn remark(&mut self) -> String {
        let Some((registry, watcher)) = &mut self.registry else { return std::future::pending().await };
        loop {
            let change = tokio::select! {
                Some(answer) = self.asked.join_next() => match answer {
                    Ok(Some(remark)) => return remark,
                    _ => continue,
                },
                change = watcher.next() => change,
            };
            let RegistryEvent::Environment { id, standing, .. } = change.event else { continue };
            let Some(at) = self.selected.iter().position(|selected| *selected == id) else { continue };
            match standing {
                EnvironmentState::Failed { reason, .. } => {
                    self.selected.remove(at);
                    return format!("environment `{id}` cannot be used: {reason}");
                }
                // The first line has told of this machine.
                EnvironmentState::Ready if self.is_sandboxed && !id.is_local() => {
                    self.selected.remove(at);
                    registry.get(&id).map(|environment| self.asked.spawn(async move { shortfall(&environment).await }));
                }
                _ => {}
            }
        }
    }

    /// What is left to say at the end of a turn.
    pub(super) async fn last_remarks(&mut self) -> Vec<String> {
        let mut remarks = Vec::new();
        // A machine that answered and was done at once is not passed over.
        while let Ok(remark) = timeout(Duration::ZERO, self.remark()).await {
            remarks.push(remark);
        }
        let ended = async {
            while let Some(answer) = self.asked.join_next().await {
                remarks.extend(answer.ok().flatten());
            }
        };
        // One that does not answer is not waited for any longer.
        let _ = timeout(LAST_ANSWER, ended).await;
        remarks
    }
}

/// What the sandbox of an environment does not hold, as its executor tells.
async fn shortfall(environment: &Environment) -> Option<String> {
    let info = environment.full_info().await.ok()?;
    let short = Shortfall::of(&info).filter(|short| short.level != Some(Level::Full.name()))?;
    Some(format!("environment `{}`: the sandbox there {short}", environment.name()))
}
