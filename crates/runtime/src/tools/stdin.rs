//! `write_stdin`: typing into a command that goes on behind a session id, or looking at what it has done since.

use std::sync::Arc;
use std::time::Duration;

use outpost_thread::{ApprovalDetail, ApprovalKind, CallDetail, CallId, CommandDetail, InteractionDetail, WakeEnded};
use outpost_wire::intent::EnvironmentId;
use serde::Deserialize;
use serde_json::json;

use super::call::{OwnCall, OwnTool, WrittenCall};
use super::catalogue::{function, string};
use super::command_report::report;
use super::earlier::{EarlierCommand, session_of};
use super::exec::DEFAULT_OUTPUT_TOKENS;
use super::former::{FormerCommand, FoundCommand, find_again};
use super::narrow;
use super::processes::{BackgroundProcesses, RunningCommand};
use super::{ApprovedCall, CallContext, CallEnd, CallPlan, Executing, RequestedCall, ResultType, StepTools, Work};
use crate::approvals::Bound;
use crate::model::ToolSpec;
use crate::policy::ApprovalPolicy;

pub(super) const TOOL: OwnTool = OwnTool {
    name: "write_stdin",
    spec: |offer| (offer.environments > 0 && offer.sessions).then(spec),
    read: WrittenCall::call::<WriteStdin>,
};

fn spec() -> ToolSpec {
    let properties = json!({
        "session_id": {"type": "number"},
        "chars": string("What to write; empty: only look."),
        "yield_time_ms": {"type": "number"},
        "max_output_tokens": {"type": "number"},
    });
    function("write_stdin", "Writes to a running command, or looks at what it has done since.", properties, &["session_id"])
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteStdin {
    session_id: u64,
    #[serde(default)]
    chars: String,
    #[serde(default)]
    yield_time_ms: Option<u64>,
    #[serde(default)]
    max_output_tokens: Option<usize>,
}

struct StdinRun {
    /// The command as it was started, if that was in a previous run of this thread.
    earlier: Option<EarlierCommand>,
    processes: Arc<BackgroundProcesses>,
    session: u64,
    /// The name of the write: a call that is taken up after a restart writes nothing twice.
    write: String,
    chars: String,
    yield_time: Duration,
    output_tokens: usize,
}

impl OwnCall for WriteStdin {
    fn plan(self: Box<Self>, step: &StepTools, asked: &RequestedCall<'_>) -> CallPlan {
        step.plan_stdin(asked, *self)
    }
}

impl StepTools {
    fn plan_stdin(&self, asked: &RequestedCall<'_>, write: WriteStdin) -> CallPlan {
        let call = asked.call;
        let here = self.processes.get(write.session_id).map(|running| (running.call.clone(), running.detail.clone()));
        let earlier = || asked.earlier.as_ref().map(|earlier| (earlier.call.clone(), earlier.detail.clone()));
        let Some((command, started)) = here.or_else(earlier) else {
            return asked.fail(not_running(write.session_id, &self.processes));
        };
        if let Some(first) = self.before_typing(asked, &write, &command, &started) {
            return first;
        }
        let (least, most, usual) = if write.chars.is_empty() { (5_000, 300_000, 5_000) } else { (250, 30_000, 250) };
        let run = StdinRun {
            session: write.session_id,
            write: format!("{}/{}", session_of(call), call.id.as_str()),
            earlier: asked.earlier.clone(),
            processes: self.processes.clone(),
            chars: write.chars.clone(),
            yield_time: Duration::from_millis(write.yield_time_ms.unwrap_or(usual).clamp(least, most)),
            output_tokens: write.max_output_tokens.unwrap_or(DEFAULT_OUTPUT_TOKENS).min(DEFAULT_OUTPUT_TOKENS),
        };
        CallPlan::Run(Box::new(ApprovedCall {
            call: call.id.clone(),
            tool: call.tool.clone(),
            environment: None,
            process: None,
            adoption_key: None,
            executor: None,
            // Looking twice does no harm; writing twice does.
            repeatable: write.chars.is_empty(),
            detail: Some(CallDetail::TerminalInteraction(InteractionDetail {
                process_call: Some(command.to_string()),
                stdin: write.chars,
            })),
            work: Box::new(run),
        }))
    }

    /// What comes before something is typed into a command. A yes to a command, or a rule that allows it, says nothing of what is
    /// typed into it later: a shell carries out whatever that is. Where it could do more than every command of the agent can, the
    /// user is asked again.
    fn before_typing(&self, asked: &RequestedCall<'_>, write: &WriteStdin, command: &CallId, started: &CommandDetail) -> Option<CallPlan> {
        // Interrupts and ends of input carry nothing out.
        if write.chars.chars().all(|c| matches!(c, '\u{3}' | '\u{4}' | '\u{1c}')) {
            return None;
        }
        let beyond = started.beyond_sandbox.unwrap_or(true);
        let environment: Option<EnvironmentId> = started.environment_id.as_ref().and_then(|id| id.parse().ok());
        let place = environment.as_ref().and_then(|id| self.view.workplace(Some(id.as_str())).ok());
        let policies: Vec<ApprovalPolicy> =
            place.and_then(|place| narrow::approval(place.handle)).into_iter().chain([self.approval]).collect();
        let wants = |policy: &ApprovalPolicy| match policy {
            ApprovalPolicy::Untrusted => true,
            ApprovalPolicy::Never => false,
            ApprovalPolicy::OnRequest | ApprovalPolicy::Granular(_) => beyond,
        };
        if !policies.iter().any(wants) {
            return None;
        }
        let is_off = |policy: &ApprovalPolicy| match policy {
            ApprovalPolicy::Never => true,
            ApprovalPolicy::Granular(own) => !own.granular.sandbox_approval,
            ApprovalPolicy::OnRequest | ApprovalPolicy::Untrusted => false,
        };
        if policies.iter().any(is_off) {
            return Some(asked.fail(
                "This may not be typed into the command: it would have to be asked about, and such questions are switched off; \
                 start another command instead.",
            ));
        }
        let why = match beyond {
            true => "it is typed into a command that has more than the sandbox allows",
            false => "no rule can allow what is typed into a command that runs",
        };
        let typed = json!(["stdin", write.session_id, command, environment]);
        let bound = Bound::within(typed.to_string(), &json!([typed, write.chars]), None);
        let detail = ApprovalDetail {
            command: Some(write.chars.clone()),
            cwd: Some(started.cwd.clone()),
            environment_id: started.environment_id.clone(),
            typed_into: Some(started.command.clone()),
            why: Some(format!("{why}: {}", started.command)),
            ..ApprovalDetail::default()
        };
        (!asked.is_granted(&bound)).then(|| asked.bound_question(ApprovalKind::Command, environment, &bound, detail))
    }
}

fn not_running(session: u64, processes: &BackgroundProcesses) -> String {
    let running: Vec<String> = processes.running().iter().map(|(session, _)| session.to_string()).collect();
    let known = match running.as_slice() {
        [] => "no command is running behind a session id".to_owned(),
        ids => format!("these are running: {}", ids.join(", ")),
    };
    format!("no command with the session id {session} is running, it has ended, or its session is over; {known}")
}

impl Work for StdinRun {
    fn execute<'a>(self: Box<Self>, call: &'a CallId, context: &'a CallContext) -> Executing<'a> {
        Box::pin(self.write(call, context))
    }

    /// What is typed must not be mixed with other calls of the same answer.
    fn runs_alone(&self, _is_repeatable: bool) -> bool {
        true
    }
}

impl StdinRun {
    async fn write(self, call: &CallId, context: &CallContext) -> CallEnd {
        let result = ResultType::Function;
        let running = match self.running(context).await {
            Ok(running) => running,
            Err(why) => return CallEnd::failed(result, call, why),
        };
        if !self.chars.is_empty()
            && let Err(error) = running.process.write_as(self.write.clone(), self.chars.clone().into_bytes().into()).await
        {
            return CallEnd::failed(result, call, format!("It could not be written to: {error}"));
        }
        let end = tokio::select! {
            end = running.wait(self.yield_time) => end,
            () = context.cancel.cancelled() => running.end(),
        };
        if end.is_some() {
            self.processes.forget(self.session);
        }
        let is_over = end.is_some();
        let mut told = report(result, call, &running, end, self.session, self.output_tokens);
        if is_over {
            // The model hears of it here.
            told.facts.push(WakeEnded { session: self.session }.into());
        }
        told
    }

    /// The command: as it is known here, or as it is found where it was started.
    async fn running(&self, context: &CallContext) -> Result<Arc<RunningCommand>, String> {
        if let Some(running) = self.processes.get(self.session) {
            return Ok(running);
        }
        let earlier = self.earlier.as_ref().ok_or_else(|| not_running(self.session, &self.processes))?;
        let former = FormerCommand {
            session: self.session,
            environment: earlier.environment.clone(),
            process: earlier.process.clone(),
            key: earlier.key.clone(),
            executor: earlier.executor.clone(),
        };
        let found = find_again(&context.search(), &former, &self.processes).await.map_err(|reason| {
            format!(
                "The command with the session id {} was running when the program ended, and it is lost: {reason}. Its outcome is unknown. \
                 Nothing was written to it.",
                self.session
            )
        })?;
        let process = match found {
            FoundCommand::Process(process) => process,
            FoundCommand::Followed(running) => return Ok(running),
        };
        let running = self.processes.follow_after(earlier.call.clone(), process, earlier.detail.clone(), earlier.shown);
        if let Some(evicted) = self.processes.keep(self.session, running.clone()) {
            let _ = tokio::time::timeout(Duration::from_secs(2), evicted.process.terminate()).await;
        }
        Ok(running)
    }
}
