//! `exec_command`: a command in an environment.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{Environment, EnvironmentError, ProcessStart, Repeat};
use outpost_thread::{ApprovalDetail, ApprovalKind, CallDetail, CallId, CallStarted, CommandDetail, CommandOrigin, Raw, WakeSet};
use outpost_wire::PathUri;
use outpost_wire::exec::files::{GetMetadata, GetMetadataParams};
use outpost_wire::exec::policy::{Grant, SandboxContext};
use outpost_wire::exec::process::{EnvPolicy, Inherit, ProcessParams, Terminate};
use outpost_wire::intent::EnvironmentId;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{OwnCall, OwnTool, WrittenCall};
use super::catalogue::{Offer, function, number, object, string, with_environment};
use super::command_report::report;
use super::earlier::session_of;
use super::former::{FormerCommand, FoundCommand, find_again};
use super::patching::named_once;
use super::permit::{SandboxPermissions, additional, permissions};
use super::processes::BackgroundProcesses;
use super::{ApprovedCall, CallContext, CallEnd, CallPlan, Executing, RequestedCall, ResultType, StepTools, USER_COMMAND, Work};
use crate::approvals::Bound;
use crate::denial::Around;
use crate::extra_permissions::ExtraPermissions;
use crate::model::ToolSpec;
use crate::patch;
use crate::policy::{ApprovalRequest, Course};
use crate::rules::{self, RulesVerdict};

const DEFAULT_YIELD: u64 = 10_000;
/// A command that the user wrote is waited for until it ends: no model is there to come back for its output.
const UNTIL_IT_ENDS: Duration = Duration::MAX;
/// So long a command that was stopped may take to be gone.
const LAST_WORDS: Duration = Duration::from_secs(2);
pub(super) const DEFAULT_OUTPUT_TOKENS: usize = 10_000;

pub(super) const TOOL: OwnTool =
    OwnTool { name: "exec_command", spec: |offer| (offer.environments > 0).then(|| spec(offer)), read: WrittenCall::call::<ExecCommand> };

fn spec(offer: &Offer) -> ToolSpec {
    let mut properties = object(json!({
        "cmd": {"type": "string"},
        "workdir": string("Default: the environment's directory."),
        "tty": {"type": "boolean", "description": "Run on a terminal."},
        "yield_time_ms": number("Wait so long for its end (250 to 30000, default 10000)."),
        "max_output_tokens": {"type": "number"},
        "wake": {"type": "boolean", "description": "If it goes on after this call: begin a turn when it ends."},
    }));
    if offer.escalation {
        properties.insert("sandbox_permissions".into(), sandbox_permissions(offer));
        properties.insert("justification".into(), string("One sentence for the user that says why, if they are asked."));
        let words = "With require_escalated: the first words of commands that the user may allow for good.";
        properties.insert("prefix_rule".into(), json!({"type": "array", "items": {"type": "string"}, "description": words}));
    }
    if offer.permissions {
        properties.insert(
            "additional_permissions".into(),
            permissions("With with_additional_permissions: what this one command needs. Relative paths start at its directory."),
        );
    }
    function(
        "exec_command",
        "Runs a shell command. If it does not end in time it goes on, and you get a session id for it.",
        with_environment(properties, offer),
        &["cmd"],
    )
}

fn sandbox_permissions(offer: &Offer) -> Value {
    let mut names = vec!["use_default", "require_escalated"];
    let mut description =
        String::from("`require_escalated` asks the user to let it run outside of the sandbox. Only when it cannot work inside.");
    if offer.permissions {
        names.insert(1, "with_additional_permissions");
        description.push_str(" `with_additional_permissions` asks for no more than additional_permissions says; prefer it.");
    }
    json!({"type": "string", "enum": names, "description": description})
}

/// As the model writes it. What it writes under another name is refused: an environment that is misspelled is another machine.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExecCommand {
    cmd: String,
    #[serde(default)]
    workdir: Option<String>,
    #[serde(default)]
    shell: Option<String>,
    #[serde(default)]
    login: Option<bool>,
    #[serde(default)]
    tty: bool,
    #[serde(default)]
    yield_time_ms: Option<u64>,
    #[serde(default)]
    max_output_tokens: Option<usize>,
    #[serde(default)]
    wake: bool,
    #[serde(default)]
    environment_id: Option<String>,
    #[serde(default)]
    sandbox_permissions: Option<SandboxPermissions>,
    #[serde(default)]
    additional_permissions: Option<Value>,
    #[serde(default)]
    justification: Option<String>,
    #[serde(default)]
    prefix_rule: Option<Vec<String>>,
}

/// A command that may run.
pub(super) struct ExecRun {
    origin: Origin,
    processes: Arc<BackgroundProcesses>,
    detail: CommandDetail,
    /// What it is called while it outlives its call.
    session: u64,
    yield_time: Duration,
    output_tokens: usize,
    /// If it outlives its call, a turn begins when it ends.
    wake: bool,
    result: ResultType,
}

enum Origin {
    Start {
        environment: Environment,
        start: Box<ProcessStart>,
        sandbox: Option<SandboxContext>,
        around: Option<Box<Around>>,
    },
    /// It was started by a previous run of this thread.
    Adopt(FormerCommand),
}

impl OwnCall for ExecCommand {
    fn plan(self: Box<Self>, step: &StepTools, asked: &RequestedCall<'_>) -> CallPlan {
        step.plan_exec(asked, *self)
    }
}

impl StepTools {
    fn plan_exec(&self, asked: &RequestedCall<'_>, exec: ExecCommand) -> CallPlan {
        let (call, fail) = (asked.call, |why: &str| asked.fail(why));
        let dressed = patch::parse_command(&exec.cmd);
        let header = dressed.as_ref().and_then(|(_, parsed)| parsed.as_ref().ok()?.environment.as_deref());
        let environment = match named_once(exec.environment_id.as_deref(), header) {
            Ok(environment) => environment,
            Err(why) => return fail(&why),
        };
        let place = match self.place(environment) {
            Ok(place) => place,
            Err(why) => {
                let (cwd, named) = (exec.workdir.as_deref().unwrap_or_default(), exec.environment_id.as_deref());
                let begun = CommandDetail {
                    command: exec.cmd.clone(),
                    cwd: cwd.to_owned(),
                    environment_id: named.map(str::to_owned),
                    ..CommandDetail::default()
                };
                return self.refuse_place(asked, &why, CallDetail::CommandExecution(begun));
            }
        };
        let cwd = directory(&place.attachment.cwd, exec.workdir.as_deref());
        // A patch that is dressed up as a command is a patch, in the same environment and under the same gate.
        if let Some((inner, parsed)) = dressed {
            let cwd = directory(&cwd, inner);
            if exec.additional_permissions.is_some() {
                return fail("A patch cannot be given additional permissions; ask for them with request_permissions first.");
            }
            return match parsed {
                Ok(patch) => self.plan_patch(asked, patch, &place, &cwd),
                Err(error) => fail(&error.to_string()),
            };
        }
        let mut sandbox = self.sandbox(&place);
        let escalated = exec.sandbox_permissions == Some(SandboxPermissions::RequireEscalated);
        if let Some(fixed) = self.fixed(place.handle).filter(|_| escalated) {
            let why = format!("This command may not leave the sandbox: {fixed} fixes what work may do there. Run it without escalation.");
            let begun = command_detail(&exec.cmd, &cwd, &place.attachment.environment_id);
            return asked.refuse(&why, CallDetail::CommandExecution(begun));
        }
        let additional = match (additional(exec.sandbox_permissions, exec.additional_permissions.as_ref(), &cwd), &sandbox) {
            (Err(why), _) => return fail(&why),
            (Ok(more), Some(sandbox)) => more.beyond_on_machine(sandbox),
            // Where there is no sandbox there is nothing to add.
            (Ok(_), None) => ExtraPermissions::default(),
        };
        if let Some(why) = self.forbidden(place.handle, &additional) {
            return fail(&why);
        }
        let Some(info) = self.info(&place.attachment.environment_id) else { return fail("the environment tells nothing about itself") };
        let shell = exec.shell.clone().unwrap_or_else(|| info.shell.path.clone());
        let full_access = self.mode_in(place.handle).is_full_access();
        let request = ApprovalRequest { escalated, widened: !additional.is_empty(), full_access };
        let id = place.attachment.environment_id.clone();
        let mut verdict = self.rules.judge(&exec.cmd, id.as_str());
        // The rules are about what a shell does with a command; what another program does is unknown.
        if verdict == RulesVerdict::Allowed && !rules::is_shell(&shell, &info.shell.path) {
            verdict = RulesVerdict::Silent;
        }
        let (sandboxed, why) = match self.course(place.handle, &verdict, request) {
            Course::Run { sandboxed } => (sandboxed, None),
            Course::Ask { sandboxed, why } => (sandboxed, Some(why)),
            Course::Refuse { why } => {
                let begun = CallDetail::CommandExecution(command_detail(&exec.cmd, &cwd, &id));
                return asked.refuse(&format!("This command may not run: {why}."), begun);
            }
        };
        let beyond = why.is_some() || request.widened || !sandboxed && !request.full_access;
        let process = self.processes.name(session_of(call), &call.id);
        let flag = if exec.login.unwrap_or(true) { "-lc" } else { "-c" };
        let start = ProcessStart {
            id: process.clone(),
            argv: vec![shell, flag.to_owned(), exec.cmd.clone()],
            cwd: cwd.clone(),
            env_policy: Some(variables()),
            env: overlay(&self.thread.to_string(), id.as_str()),
            tty: exec.tty,
            // Nothing will ever be written to a command that the user wrote; one that reads finds the end of its input.
            pipe_stdin: !exec.tty && !self.scripted,
            profiles: Some(self.thread.to_string()),
            adoption: self.processes.claim(&process),
        };
        sandbox = sandbox.filter(|_| sandboxed);
        if let Some(sandbox) = &mut sandbox {
            additional.widen(sandbox, Grant::Required);
        }
        if let Some(why) = why {
            let what = json!(["command", start.argv, start.cwd, start.tty, start.pipe_stdin, start.env_policy, start.env]);
            let bound = Bound::exactly(&place, &what, sandbox.as_ref());
            if !asked.is_granted(&bound) {
                let more = (!additional.is_empty()).then_some(&additional);
                let detail = ApprovalDetail {
                    command: Some(exec.cmd.clone()),
                    cwd: Some(cwd.to_syntax()),
                    environment_id: Some(id.to_string()),
                    why: Some(why),
                    reason: exec.justification.clone(),
                    escalated: Some(escalated),
                    prefix_rule: offered(&exec).cloned(),
                    program: Some(start.argv[..2].to_vec()),
                    sandbox: Some(self.around(&place, sandboxed)),
                    additional_permissions: more.and_then(|more| Raw::of(&more.profile()).ok()),
                    words: more.map(ExtraPermissions::words).unwrap_or_default(),
                    ..ApprovalDetail::default()
                };
                return asked.bound_question(ApprovalKind::Command, Some(id), &bound, detail);
            }
        }
        let detail = CommandDetail { beyond_sandbox: Some(beyond), until_it_ends: self.scripted, ..command_detail(&exec.cmd, &cwd, &id) };
        let around = sandbox.as_ref().map(|sandbox| {
            Box::new(Around {
                mode: self.mode_in(place.handle),
                context: sandbox.clone(),
                cwd: cwd.clone(),
                fixed: self.fixed(place.handle),
                silence: self.silence_in(place.handle),
            })
        });
        let run = ExecRun {
            origin: Origin::Start { environment: place.handle.clone(), start: Box::new(start), sandbox, around },
            processes: self.processes.clone(),
            detail: detail.clone(),
            session: session_of(call),
            yield_time: if self.scripted { UNTIL_IT_ENDS } else { yield_time(exec.yield_time_ms) },
            output_tokens: exec.max_output_tokens.unwrap_or(DEFAULT_OUTPUT_TOKENS).min(DEFAULT_OUTPUT_TOKENS),
            wake: exec.wake,
            result: asked.result(),
        };
        CallPlan::Run(Box::new(ApprovedCall {
            call: call.id.clone(),
            tool: call.tool.clone(),
            environment: Some(id.clone()),
            process: Some(process),
            adoption_key: self.processes.key_id(),
            executor: place.handle.identity().and_then(|identity| identity.executor_id),
            repeatable: false,
            detail: Some(CallDetail::CommandExecution(detail)),
            work: Box::new(run),
        }))
    }

    /// A command that the user typed. It runs as the user, not as the agent: without a sandbox.
    pub(crate) fn user_command(&self, call: &CallId, command: &str, id: &EnvironmentId) -> ApprovedCall {
        let process = self.processes.name(0, call);
        let place = self.view.workplace(Some(id.as_str()));
        let work: Box<dyn Work> = match (place, self.info(id)) {
            (Ok(place), Some(info)) => {
                let start = ProcessStart {
                    id: process.clone(),
                    argv: vec![info.shell.path.clone(), "-lc".to_owned(), command.to_owned()],
                    cwd: place.attachment.cwd.clone(),
                    env_policy: Some(variables()),
                    env: overlay(&self.thread.to_string(), id.as_str()),
                    tty: false,
                    pipe_stdin: false,
                    profiles: Some(self.thread.to_string()),
                    adoption: self.processes.claim(&process),
                };
                Box::new(ExecRun {
                    origin: Origin::Start { environment: place.handle.clone(), start: Box::new(start), sandbox: None, around: None },
                    processes: self.processes.clone(),
                    detail: CommandDetail::default(),
                    session: 0,
                    yield_time: UNTIL_IT_ENDS,
                    output_tokens: DEFAULT_OUTPUT_TOKENS,
                    wake: false,
                    result: ResultType::Function,
                })
            }
            (Err(error), _) => Box::new(CallEnd::failed(ResultType::Function, call, error)),
            (_, None) => Box::new(CallEnd::failed(ResultType::Function, call, "the environment tells nothing about itself")),
        };
        let place = self.view.workplace(Some(id.as_str())).ok();
        let executor = place.as_ref().and_then(|place| place.handle.identity()?.executor_id);
        let cwd = place.map(|place| place.attachment.cwd.clone());
        let source = CommandOrigin::UserShell;
        let detail = cwd.map(|cwd| CallDetail::CommandExecution(CommandDetail { source, ..command_detail(command, &cwd, id) }));
        ApprovedCall {
            call: call.clone(),
            tool: USER_COMMAND.into(),
            environment: Some(id.clone()),
            process: Some(process),
            adoption_key: self.processes.key_id(),
            executor,
            repeatable: false,
            detail,
            work,
        }
    }
}

fn yield_time(wanted_ms: Option<u64>) -> Duration {
    Duration::from_millis(wanted_ms.unwrap_or(DEFAULT_YIELD).clamp(250, 30_000))
}

/// Whether a command of a previous run was waited for until it ended: one that the user wrote.
fn was_awaited(started: &CallStarted) -> bool {
    started.command().is_some_and(|command| command.is_awaited())
}

fn command_detail(command: &str, cwd: &PathUri, id: &EnvironmentId) -> CommandDetail {
    CommandDetail { command: command.to_owned(), cwd: cwd.to_syntax(), environment_id: Some(id.to_string()), ..CommandDetail::default() }
}

/// The rule that the model suggests, if it is about this very command and not about nearly everything.
fn offered(exec: &ExecCommand) -> Option<&Vec<String>> {
    let prefix = exec.prefix_rule.as_ref().filter(|prefix| !rules::is_broad(prefix))?;
    let script = rules::split(&exec.cmd);
    let is_own = script.commands.iter().any(|words| words.starts_with(prefix));
    (script.is_plain && is_own).then_some(prefix)
}

/// A directory as the model names it, below another one unless it is absolute.
pub(super) fn directory(base: &PathUri, path: Option<&str>) -> PathUri {
    match path {
        None | Some("") => base.clone(),
        Some(path) => PathUri::from_syntax(path).unwrap_or_else(|_| base.join(path)),
    }
}

/// The executor's own variables without anything that looks like a secret.
fn variables() -> EnvPolicy {
    EnvPolicy { inherit: Inherit::All, ignore_default_excludes: false, exclude: vec![], set: BTreeMap::new(), include_only: vec![] }
}

/// Why a command cannot be started, with what to do about a machine that holds no sandbox.
fn no_start(environment: &Environment, error: &EnvironmentError) -> String {
    let place = environment.id().map(|id| format!(" in environment `{id}`")).unwrap_or_default();
    match error {
        EnvironmentError::Fault(fault) => match fault.unenforceable() {
            Some(reason) => format!("the sandbox cannot be held{place}: {reason}; `outpost doctor` on that machine says what to do"),
            None => error.to_string(),
        },
        _ => error.to_string(),
    }
}

/// The likeliest reason why a command cannot be started, which executors do not tell apart from others.
async fn no_directory(environment: &Environment, cwd: PathUri, sandbox: Option<SandboxContext>) -> Option<String> {
    let shown = cwd.to_syntax();
    let place = environment.id().map(|id| format!(" in environment `{id}`")).unwrap_or_default();
    let params = GetMetadataParams { path: cwd, follow_symlinks: None, sandbox };
    match environment.call::<GetMetadata>(&params, Repeat::Harmless).await {
        Err(EnvironmentError::Fault(fault)) if fault.code == outpost_wire::fault::NOT_FOUND => {
            Some(format!("there is no directory {shown}{place}"))
        }
        Ok(found) if !found.is_directory => Some(format!("{shown}{place} is not a directory")),
        _ => None,
    }
}

/// What every command of an agent finds in its environment: there is no screen and no pager.
fn overlay(thread: &str, environment: &str) -> BTreeMap<String, String> {
    let fixed = [("TERM", "dumb"), ("NO_COLOR", "1"), ("PAGER", "cat"), ("GIT_PAGER", "cat"), ("OUTPOST_AGENT", "1")];
    let named = [("OUTPOST_THREAD_ID", thread), ("OUTPOST_ENVIRONMENT_ID", environment)];
    fixed.into_iter().chain(named).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

impl Work for ExecRun {
    fn execute<'a>(self: Box<Self>, call: &'a CallId, context: &'a CallContext) -> Executing<'a> {
        Box::pin(self.run(call, context))
    }
}

impl ExecRun {
    /// A command of a previous run. Its parameters are read again from what asked for it.
    pub(crate) fn adopted(started: &CallStarted, item: Option<&Raw>, processes: Arc<BackgroundProcesses>) -> Option<Self> {
        #[derive(Deserialize)]
        struct Item {
            #[serde(default)]
            arguments: String,
        }
        let exec =
            item.and_then(|item| item.read::<Item>().ok()).and_then(|item| serde_json::from_str::<ExecCommand>(&item.arguments).ok());
        Some(Self {
            origin: Origin::Adopt(FormerCommand {
                session: 0,
                environment: started.environment.clone()?,
                process: started.process.clone()?,
                key: started.adoption_key.clone(),
                executor: started.executor.clone(),
            }),
            processes,
            detail: started.command().unwrap_or_default(),
            session: 0,
            yield_time: if was_awaited(started) { UNTIL_IT_ENDS } else { yield_time(exec.as_ref().and_then(|exec| exec.yield_time_ms)) },
            wake: exec.as_ref().is_some_and(|exec| exec.wake),
            output_tokens: exec.and_then(|exec| exec.max_output_tokens).unwrap_or(DEFAULT_OUTPUT_TOKENS).min(DEFAULT_OUTPUT_TOKENS),
            result: ResultType::of(item),
        })
    }

    async fn run(self, call: &CallId, context: &CallContext) -> CallEnd {
        let session = if self.session == 0 { context.session_of(call) } else { self.session };
        let Self { origin, processes, detail, yield_time, output_tokens, wake, result, .. } = self;
        let (process, around) = match origin {
            Origin::Start { environment, start, sandbox, around } => {
                let (id, cwd) = (start.id.clone(), start.cwd.clone());
                let started = tokio::select! {
                    started = environment.start_within(*start, sandbox.clone()) => started,
                    () = context.cancel.cancelled() => {
                        tokio::spawn(withdraw(environment.clone(), id));
                        return CallEnd::aborted();
                    }
                };
                match started {
                    Ok(process) => (Ok(process), around),
                    Err(EnvironmentError::Unknown { .. } | EnvironmentError::Lost { .. } | EnvironmentError::Gone { .. }) => {
                        tracing::debug!(id, "the start of a command is unknown");
                        return CallEnd::lost(result, call);
                    }
                    Err(error) => {
                        let why = no_directory(&environment, cwd, sandbox).await.unwrap_or_else(|| no_start(&environment, &error));
                        return CallEnd::failed(result, call, format!("The command could not be started: {why}"));
                    }
                }
            }
            Origin::Adopt(former) => match find_again(&context.search(), &FormerCommand { session, ..former }, &processes).await {
                Ok(FoundCommand::Process(process)) => (Ok(process), None),
                Ok(FoundCommand::Followed(running)) => (Err(running), None),
                Err(reason) => return CallEnd::lost_because(result, call, &reason),
            },
        };
        let running = match process {
            Ok(process) => processes.follow(call.clone(), process, detail, around),
            Err(running) => running,
        };
        let end = tokio::select! {
            end = running.wait(yield_time) => end,
            () = context.cancel.cancelled() => {
                let _ = tokio::time::timeout(Duration::from_secs(5), running.process.terminate()).await;
                // How it ended is told a moment later.
                running.wait(LAST_WORDS).await
            }
        };
        if end.is_none()
            && !context.cancel.is_cancelled()
            && let Some(evicted) = processes.keep(session, running.clone())
        {
            let _ = tokio::time::timeout(Duration::from_secs(2), evicted.process.terminate()).await;
        }
        let wakes = wake && end.is_none() && !context.cancel.is_cancelled();
        let mut told = report(result, call, &running, end, session, output_tokens);
        if let Some(environment) = running.process.environment().id().cloned().filter(|_| wakes) {
            let process = running.process.id().to_owned();
            let executor = running.process.environment().identity().and_then(|identity| identity.executor_id);
            told.facts
                .push(WakeSet { session, call: call.clone(), environment, process, adoption_key: processes.key_id(), executor }.into());
        }
        told
    }
}

/// A start whose caller is gone may have been sent, and its machine may be out of reach for a while.
async fn withdraw(environment: Environment, process_id: String) {
    if let Err(error) = environment.call::<Terminate>(&ProcessParams { process_id }, Repeat::Harmless).await {
        tracing::debug!(environment = environment.name(), %error, "a command that is not wanted any more could not be stopped");
    }
}

impl CallContext {
    /// What a call's command is called while it outlives it.
    fn session_of(&self, call: &CallId) -> u64 {
        let turn = self.thread.turn.as_ref();
        turn.and_then(|turn| turn.calls.iter().find(|known| known.id == *call)).map_or(0, session_of)
    }
}
