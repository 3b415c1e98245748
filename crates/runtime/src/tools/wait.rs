//! `wait_for_environment`: until one that is starting is ready or has failed.

use std::time::Duration;

use outpost_environment::Captured;
use outpost_thread::CallId;
use outpost_wire::intent::EnvironmentId;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::{CallContext, CallEnd, CallPlan, RequestedCall, ResultType, StepTools, Work};

const LONGEST: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitForEnvironment {
    environment_id: String,
}

pub(crate) struct WaitRun {
    id: EnvironmentId,
    result: ResultType,
}

impl StepTools {
    pub(super) fn plan_wait(&self, asked: &RequestedCall<'_>, wait: WaitForEnvironment) -> CallPlan {
        let member = self.view.selected().find(|member| member.id.as_str() == wait.environment_id);
        let Some(member) = member else {
            return asked.fail(&self.unknown_environment(&wait.environment_id));
        };
        let id = member.id.clone();
        asked.run(Some(id.clone()), true, None, Work::Wait(WaitRun { id, result: asked.result() }))
    }
}

impl WaitRun {
    /// What is waited for is the next step's business, so it is looked at anew each time; nothing is run there.
    pub(crate) async fn execute(self, call: &CallId, context: &CallContext) -> CallEnd {
        let deadline = Instant::now() + LONGEST;
        let mut changes = context.shared.registry.changes();
        loop {
            changes.mark_unchanged();
            let view = context.shared.view(&context.thread);
            let captured = view.captured(&self.id);
            let said = match captured {
                Some(Captured::Ready(_)) => Some(format!("{} is ready.", self.id)),
                Some(Captured::Starting | Captured::Recovering { .. }) if Instant::now() < deadline && !context.cancel.is_cancelled() => {
                    None
                }
                Some(other) => Some(format!("{} is {}. Go on without it.", self.id, other.describe())),
                None => Some(format!("{} is not selected any more.", self.id)),
            };
            if let Some(said) = said {
                return CallEnd::completed(self.result, call, said, None);
            }
            tokio::select! {
                _ = timeout_at(deadline, changes.changed()) => {}
                () = context.cancel.cancelled() => {}
            }
        }
    }
}
