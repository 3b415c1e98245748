//! `wait_for_environment`: until one that is starting is ready or has failed.

use std::time::Duration;

use outpost_environment::Captured;
use outpost_thread::CallId;
use outpost_wire::intent::EnvironmentId;
use serde::Deserialize;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::call::{OwnCall, OwnTool, WrittenCall};
use super::catalogue::{function, string};
use super::{CallContext, CallEnd, CallPlan, Executing, RequestedCall, ResultType, StepTools, Work};
use crate::model::ToolSpec;

const LONGEST: Duration = Duration::from_secs(300);

pub(super) const TOOL: OwnTool =
    OwnTool { name: "wait_for_environment", spec: |offer| offer.starting.then(spec), read: WrittenCall::call::<WaitForEnvironment> };

fn spec() -> ToolSpec {
    let properties = json!({"environment_id": string("The environment that is starting.")});
    function("wait_for_environment", "Waits until an environment that is starting is ready or has failed.", properties, &["environment_id"])
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitForEnvironment {
    environment_id: String,
}

struct WaitRun {
    id: EnvironmentId,
    result: ResultType,
}

impl OwnCall for WaitForEnvironment {
    fn plan(self: Box<Self>, step: &StepTools, asked: &RequestedCall<'_>) -> CallPlan {
        step.plan_wait(asked, *self)
    }
}

impl StepTools {
    fn plan_wait(&self, asked: &RequestedCall<'_>, wait: WaitForEnvironment) -> CallPlan {
        let member = self.view.selected().find(|member| member.id.as_str() == wait.environment_id);
        let Some(member) = member else {
            return asked.fail(self.unknown_environment(&wait.environment_id));
        };
        let id = member.id.clone();
        asked.run(Some(id.clone()), true, None, Box::new(WaitRun { id, result: asked.result() }))
    }
}

impl Work for WaitRun {
    fn execute<'a>(self: Box<Self>, call: &'a CallId, context: &'a CallContext) -> Executing<'a> {
        Box::pin(self.wait(call, context))
    }

    fn takes_slot(&self) -> bool {
        false
    }
}

impl WaitRun {
    /// What is waited for is the next step's business, so it is looked at anew each time; nothing is run there.
    async fn wait(self, call: &CallId, context: &CallContext) -> CallEnd {
        let deadline = Instant::now() + LONGEST;
        let mut changes = context.runtime.changes();
        loop {
            changes.mark_unchanged();
            let view = context.runtime.view(&context.thread);
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
