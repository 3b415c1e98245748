//! The tools that a model is offered, and what becomes of a call: it runs, the user is asked, or it ends at once.
//!
//! Planning works on what the step froze and has no way to the registry of environments, so a call cannot end up anywhere but on
//! the machine that the step saw. Only two things look at environments anew while a call runs, and neither starts anything
//! there: waiting for one, and finding a command of a previous run of the thread. What they may ask: `reach.rs`.

mod agents;
mod call;
pub mod catalogue;
pub mod command_report;
pub(crate) mod earlier;
pub(crate) mod exec;
pub(crate) mod former;
mod image;
pub(crate) mod left;
pub(crate) mod mcp;
pub(crate) mod narrow;
pub mod output;
mod patching;
pub(crate) mod permit;
mod plan;
pub mod processes;
mod reach;
mod skill;
mod stdin;
mod tidy;
mod wait;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{Captured, StepView, ViewError, Workplace};
use outpost_thread::{
    ApprovalDetail, ApprovalKind, Call, CallDetail, CallId, CallOutcome, CallReport, CallStarted, Context, Decision, Fact,
    PermissionsGranted, Raw, Recorded, StepEnvironment, Thread, ThreadId, TurnId,
};
use outpost_wire::exec::environment::EnvironmentInfo;
use outpost_wire::exec::policy::{Grant, SandboxContext};
use outpost_wire::intent::EnvironmentId;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::call::{OwnTool, WrittenCall};
use self::earlier::EarlierCommand;
use self::exec::ExecRun;
pub(crate) use self::patching::APPLIED;
pub use self::reach::CallRuntime;
use crate::approvals::{ApprovalQuestion, Bound, SessionApprovals, changed};
use crate::capabilities::StepCapabilities;
use crate::environment_context::{AnnouncedEnvironment, EnvironmentContext};
use crate::extra_permissions::ExtraPermissions;
use crate::feed::ThreadFeed;
use crate::live::ThreadEvent;
use crate::mcp::Binding;
use crate::model::ToolSpec;
use crate::permissions::SandboxMode;
use crate::policy::ApprovalPolicy;
use crate::rules::CommandRules;
use crate::tools::processes::BackgroundProcesses;

/// Our own tools, in the order in which the model is told of them.
const OWN: [OwnTool; 15] = [
    exec::TOOL,
    patching::TOOL,
    stdin::TOOL,
    image::TOOL,
    permit::TOOL,
    plan::UPDATE,
    plan::QUESTIONS,
    wait::TOOL,
    skill::TOOL,
    agents::SPAWN,
    agents::SEND,
    agents::WAIT,
    agents::INTERRUPT,
    agents::CLOSE,
    agents::LIST,
];

/// What a step can use, frozen when it began.
pub struct StepTools {
    pub view: StepView,
    pub specs: Arc<[ToolSpec]>,
    pub mode: SandboxMode,
    pub approval: ApprovalPolicy,
    /// What the user granted beyond the mode, in whichever environment.
    pub(crate) grants: Vec<PermissionsGranted>,
    /// Skills, plugins, and why roots are in or out.
    pub capabilities: StepCapabilities,
    pub(crate) dynamic: Vec<DynamicTool>,
    pub(crate) processes: Arc<BackgroundProcesses>,
    pub(crate) rules: Arc<CommandRules>,
    /// Whether a user can be asked.
    pub(crate) questions: bool,
    pub(crate) thread: ThreadId,
    /// What the ready environments tell about themselves.
    pub(crate) infos: Vec<(EnvironmentId, EnvironmentInfo)>,
    /// The MCP servers of this step; calls go through them and no others.
    pub(crate) mcp: Arc<Binding>,
    /// The model only runs what the user wrote, line by line.
    pub(crate) scripted: bool,
    /// What the step saw, if that was in a previous run of the thread: what it asked for is done there or nowhere.
    pub(crate) seen: Option<Vec<StepEnvironment>>,
}

/// A tool that the client runs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DynamicTool {
    pub name: String,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub input_schema: Value,
}

/// What a command that the user typed is called in the journal.
pub(crate) const USER_COMMAND: &str = "shell";

/// What is to become of a call.
pub(crate) enum CallPlan {
    Run(Box<ApprovedCall>),
    Ask(Box<ApprovalQuestion>),
    End(CallEnd),
}

/// Whether the user was asked already.
pub(crate) enum Consent {
    Open,
    /// They answered, and the answer is about exactly what the key is a digest of; some questions are about nothing that could
    /// change.
    Given {
        answer: Option<Raw>,
        key: Option<String>,
    },
    /// It was begun before a restart, and no question was needed.
    Begun,
}

/// A call that is to be planned.
pub(crate) struct RequestedCall<'a> {
    pub call: &'a Call,
    pub item: &'a Raw,
    pub grants: &'a SessionApprovals,
    pub consent: Consent,
    /// The command of a previous run of the thread that it wants to write to.
    pub earlier: Option<EarlierCommand>,
}

impl RequestedCall<'_> {
    fn result(&self) -> ResultType {
        ResultType::of(Some(self.item))
    }

    fn fail(&self, why: impl fmt::Display) -> CallPlan {
        CallPlan::End(CallEnd::failed(self.result(), &self.call.id, why))
    }

    /// The same for a call that clients are to see all the same, as the item that it would have been.
    fn refuse(&self, why: &str, begun: CallDetail) -> CallPlan {
        let refused = CallEnd::failed(self.result(), &self.call.id, why);
        let report = CallReport { begun: Some(begun.into()), ..CallReport::failed(why) };
        CallPlan::End(CallEnd { report: Some(report.into()), ..refused })
    }

    /// Whether no question is needed: the user said yes to exactly this, or answered for longer.
    fn is_granted(&self, bound: &Bound) -> bool {
        let is_given = match &self.consent {
            Consent::Open => false,
            Consent::Given { key, .. } => key.as_ref() == Some(&bound.exact),
            Consent::Begun => true,
        };
        is_given || self.grants.holds(&bound.lasting)
    }

    /// A question whose answer is bound to this. If something else was agreed to, it says what has changed since.
    fn bound_question(
        &self,
        kind: ApprovalKind,
        environment: Option<EnvironmentId>,
        bound: &Bound,
        mut detail: ApprovalDetail,
    ) -> CallPlan {
        bound.write(&mut detail);
        if let Consent::Given { key: Some(asked), .. } = &self.consent {
            detail.changed = Some(changed(asked, &bound.exact).into_iter().map(str::to_owned).collect());
        }
        CallPlan::Ask(Box::new(ApprovalQuestion { kind, environment, detail }))
    }

    /// A call that runs and need not be found again.
    fn run(&self, environment: Option<EnvironmentId>, repeatable: bool, detail: Option<CallDetail>, work: Box<dyn Work>) -> CallPlan {
        let (call, tool) = (self.call.id.clone(), self.call.tool.clone());
        CallPlan::Run(Box::new(ApprovedCall {
            call,
            tool,
            environment,
            process: None,
            adoption_key: None,
            executor: None,
            repeatable,
            detail,
            work,
        }))
    }

    /// Waits for the user's answer, and then is that answer.
    fn question(&self, kind: ApprovalKind, detail: ApprovalDetail) -> CallPlan {
        match &self.consent {
            Consent::Open => CallPlan::Ask(Box::new(ApprovalQuestion { kind, environment: None, detail })),
            Consent::Given { answer, .. } => self.answered(answer.as_ref()),
            Consent::Begun => self.answered(None),
        }
    }

    fn answered(&self, answer: Option<&Raw>) -> CallPlan {
        let answer: Value = answer.and_then(|answer| answer.read().ok()).unwrap_or(Value::Null);
        self.run(None, true, None, Box::new(plan::answered(self.result(), &self.call.id, &answer)))
    }
}

/// How a call ended.
#[derive(Debug, Clone)]
pub(crate) struct CallEnd {
    pub outcome: CallOutcome,
    /// What the model is told.
    pub items: Vec<Raw>,
    /// What clients are shown.
    pub report: Option<Recorded<CallReport>>,
    /// What else became true by it.
    pub facts: Vec<Fact>,
}

/// A call that may run.
pub(crate) struct ApprovedCall {
    pub call: CallId,
    pub tool: String,
    pub environment: Option<EnvironmentId>,
    /// The process by which it can be found again.
    pub process: Option<String>,
    /// The key by which the process is claimed later.
    pub adoption_key: Option<String>,
    /// Who has the process.
    pub executor: Option<String>,
    pub repeatable: bool,
    pub detail: Option<CallDetail>,
    pub work: Box<dyn Work>,
}

/// What a call does once it may run.
pub(crate) trait Work: Send {
    fn execute<'a>(self: Box<Self>, call: &'a CallId, context: &'a CallContext) -> Executing<'a>;

    /// Whether nothing else may run beside it. Commands are on their own anyway; what reads files and then writes them, types
    /// into a command, or does something that only its server understands, must not be mixed with calls of the same answer.
    fn runs_alone(&self, _is_repeatable: bool) -> bool {
        false
    }

    /// Whether it needs a machine that others need, too. Those that only wait would block all others.
    fn takes_slot(&self) -> bool {
        true
    }
}

/// A call at work.
pub(crate) type Executing<'a> = Pin<Box<dyn Future<Output = CallEnd> + Send + 'a>>;

/// The answer is there already.
impl Work for CallEnd {
    fn execute<'a>(self: Box<Self>, _call: &'a CallId, _context: &'a CallContext) -> Executing<'a> {
        Box::pin(std::future::ready(*self))
    }

    fn takes_slot(&self) -> bool {
        false
    }
}

/// What a running call may use besides its step.
pub(crate) struct CallContext {
    pub runtime: CallRuntime,
    /// As it was when the call began.
    pub thread: Arc<Thread>,
    pub turn: TurnId,
    pub cancel: CancellationToken,
    pub feed: Arc<ThreadFeed<ThreadEvent>>,
    /// Where a call puts what it must ask the user while it runs.
    pub questions: mpsc::UnboundedSender<mcp::CallQuestion>,
}

impl ApprovedCall {
    pub(crate) fn started(&self, turn: TurnId) -> CallStarted {
        CallStarted {
            turn,
            call: self.call.clone(),
            tool: self.tool.clone(),
            environment: self.environment.clone(),
            process: self.process.clone(),
            adoption_key: self.adoption_key.clone(),
            executor: self.executor.clone(),
            repeatable: self.repeatable,
            detail: self.detail.clone().map(Into::into),
        }
    }

    pub(crate) fn runs_alone(&self) -> bool {
        self.work.runs_alone(self.repeatable)
    }

    /// A command that the user typed does not wait.
    pub(crate) fn takes_slot(&self) -> bool {
        self.tool != USER_COMMAND && self.work.takes_slot()
    }

    /// A command of a previous run of this thread.
    pub(crate) fn adopt(started: &CallStarted, item: Option<&Raw>, processes: Arc<BackgroundProcesses>) -> Option<Self> {
        Some(Self {
            call: started.call.clone(),
            tool: started.tool.clone(),
            environment: started.environment.clone(),
            process: started.process.clone(),
            adoption_key: started.adoption_key.clone(),
            executor: started.executor.clone(),
            repeatable: false,
            detail: None,
            work: Box::new(ExecRun::adopted(started, item, processes)?),
        })
    }

    pub(crate) async fn execute(self, context: CallContext) -> CallEnd {
        self.work.execute(&self.call, &context).await
    }
}

/// The kind of item that answers a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultType {
    Function,
    Custom,
}

impl ResultType {
    pub(crate) fn of(item: Option<&Raw>) -> Self {
        #[derive(Deserialize)]
        struct Kind {
            #[serde(rename = "type", default)]
            kind: String,
        }
        match item.map(Raw::read::<Kind>) {
            Some(Ok(item)) if item.kind == "custom_tool_call" => Self::Custom,
            _ => Self::Function,
        }
    }

    /// The item with a result: a text, or a list of parts.
    pub(crate) fn item(self, call: &CallId, output: impl Into<Value>) -> Raw {
        let kind = match self {
            Self::Function => "function_call_output",
            Self::Custom => "custom_tool_call_output",
        };
        Raw::from(json!({"type": kind, "call_id": call, "output": output.into()}))
    }
}

/// What the model is told of a call that is not known to have had its effect.
const LOST: &str = "its outcome is unknown. It was not run again: it may have done all of its work, a part, or nothing. Look before you \
                    repeat it.";

impl CallEnd {
    pub(crate) fn completed(result: ResultType, call: &CallId, output: impl Into<Value>, report: Option<CallReport>) -> Self {
        Self { outcome: CallOutcome::Completed, items: vec![result.item(call, output)], report: report.map(Into::into), facts: vec![] }
    }

    /// It could not be done; the model is told why, in words or in those of an error.
    pub(crate) fn failed(result: ResultType, call: &CallId, why: impl fmt::Display) -> Self {
        let why = why.to_string();
        Self {
            outcome: CallOutcome::Failed,
            items: vec![result.item(call, why.as_str())],
            report: Some(CallReport::failed(&why).into()),
            facts: vec![],
        }
    }

    pub(crate) fn declined(result: ResultType, call: &CallId, decision: Decision) -> Self {
        let text = match decision {
            Decision::TimedOut => "The question whether this may run was not answered in time, so it did not run.",
            _ => "The user said no to this call, so it did not run. Do not try the same by other means; ask, or go on without it.",
        };
        Self { outcome: CallOutcome::Declined, items: vec![result.item(call, text)], report: None, facts: vec![] }
    }

    /// Stopped with its turn. The context tells the model so in the place of the output, and the turn's own mark says why.
    pub(crate) fn aborted() -> Self {
        Self { outcome: CallOutcome::Aborted, items: vec![], report: None, facts: vec![] }
    }

    /// Its outcome is unknown. It is not tried again.
    pub(crate) fn lost(result: ResultType, call: &CallId) -> Self {
        let text = format!("This call was running when the program or its connection ended, and {LOST}");
        Self { outcome: CallOutcome::Lost, items: vec![result.item(call, text)], report: None, facts: vec![] }
    }

    /// The same, with the reason for which it was not found again.
    pub(crate) fn lost_because(result: ResultType, call: &CallId, reason: &str) -> Self {
        let text = format!("This call was running when the program or its connection ended. It was not found again: {reason}. So {LOST}");
        let report = CallReport::failed(&format!("lost: {reason}"));
        Self { outcome: CallOutcome::Lost, items: vec![result.item(call, text)], report: Some(report.into()), facts: vec![] }
    }
}

impl StepTools {
    pub(crate) fn info(&self, id: &EnvironmentId) -> Option<&EnvironmentInfo> {
        self.infos.iter().find(|(known, _)| known == id).map(|(_, info)| info)
    }

    /// Where a call goes that names this environment, or none.
    pub(crate) fn place(&self, id: Option<&str>) -> Result<Workplace<'_>, String> {
        let place = self.view.workplace(id).map_err(|error| match error {
            ViewError::NotSelected(id) => self.unknown_environment(&id),
            other => other.to_string(),
        })?;
        let Some(seen) = &self.seen else { return Ok(place) };
        let now = &place.attachment;
        let then = seen.iter().find(|seen| id.is_none_or(|id| seen.id.as_str() == id));
        let executor = place.handle.identity().and_then(|identity| identity.executor_id);
        let differs = |then: &Option<String>, now: Option<String>| then.is_some() && now.is_some() && *then != now;
        match then {
            Some(then)
                if then.id == now.environment_id
                    && !differs(&then.executor, executor)
                    && !differs(&then.cwd, Some(now.cwd.to_syntax())) =>
            {
                Ok(place)
            }
            _ => Err(format!(
                "The environments of this thread were changed between the request for this call and now: it would run in {} of `{}`, which \
                 is not where it was meant to run. Nothing was done. If it is still wanted, ask for it again.",
                now.cwd.to_syntax(),
                now.environment_id,
            )),
        }
    }

    /// What a model is told that names an environment which this step does not have.
    pub(crate) fn unknown_environment(&self, id: &str) -> String {
        let known: Vec<String> = self.view.selected().map(|member| format!("`{}`", member.id)).collect();
        let known = if known.is_empty() { "there are none".to_owned() } else { format!("there are {}", known.join(", ")) };
        format!("unknown turn environment id `{id}`; {known}")
    }

    /// The end of a call whose environment cannot be used. Clients see it as the item that it would have been, unless the step has no
    /// environment at all: then the tool was not offered either.
    fn refuse_place(&self, asked: &RequestedCall<'_>, why: &str, begun: CallDetail) -> CallPlan {
        match self.view.selected().next() {
            Some(_) => asked.refuse(why, begun),
            None => asked.fail(why),
        }
    }

    /// What is to become of a call.
    pub(crate) fn plan(&self, asked: &RequestedCall<'_>) -> CallPlan {
        if let Some(plan) = self.plan_mcp(asked) {
            return plan;
        }
        match self.understood(asked) {
            Err(why) if !self.specs.iter().any(|spec| spec.name == asked.call.tool) => {
                let names: Vec<&str> = self.specs.iter().map(|spec| spec.name.as_str()).collect();
                asked.fail(format!("{why}; there are: {}", names.join(", ")))
            }
            Err(why) => asked.fail(why),
            Ok(plan) => plan,
        }
    }

    /// The same; an error is a sentence for the model about what it wrote.
    fn understood(&self, asked: &RequestedCall<'_>) -> Result<CallPlan, String> {
        let written = WrittenCall::of(asked.item)?;
        if let Some(tool) = written.own() {
            return Ok((tool.read)(&written)?.plan(self, asked));
        }
        if !self.dynamic.iter().any(|tool| tool.name == written.name) {
            return Err(format!("there is no tool `{}`", written.name));
        }
        let (call_type, arguments) = (Some("dynamicToolCall".to_owned()), written.arguments()?);
        let detail = ApprovalDetail { call_type, tool: Some(written.name), arguments, ..ApprovalDetail::default() };
        Ok(asked.question(ApprovalKind::DynamicTool, detail))
    }

    /// The sandbox for work in an environment: the thread's mode, and what the user granted there.
    pub(crate) fn sandbox(&self, place: &Workplace<'_>) -> Option<SandboxContext> {
        let mut context = self.mode.context_in(place.attachment, place.handle.narrowing())?;
        self.granted(place).widen(&mut context, Grant::Optional);
        Some(context)
    }

    /// The sandbox around a call, in words for the user who is asked about it.
    fn around(&self, place: &Workplace<'_>, sandboxed: bool) -> String {
        let mode = self.mode_in(place.handle);
        if !sandboxed && !mode.is_full_access() {
            return "none: it leaves the sandbox".into();
        }
        let granted = self.granted(place).words();
        let more: String = granted.iter().filter(|_| sandboxed).map(|word| format!(", granted: {word}")).collect();
        let fixed = self.fixed(place.handle).map(|_| format!("; here {}", place.handle.narrowing().words())).unwrap_or_default();
        format!("{}{more}{fixed}", mode.words())
    }

    /// What the user granted in an environment and still holds.
    fn granted(&self, place: &Workplace<'_>) -> ExtraPermissions {
        permit::held(&self.grants, place)
    }

    /// What the model is to know about where it works.
    pub(crate) fn surroundings(&self, today: &str) -> EnvironmentContext {
        let places = self.view.selected().filter_map(|member| {
            let attachment = member.attachment.as_ref()?;
            let info = self.info(&member.id);
            let (state, reason) = (state_name(&member.captured), reason(&member.captured));
            Some(AnnouncedEnvironment {
                id: member.id.to_string(),
                cwd: attachment.cwd.to_syntax(),
                state: state.to_owned(),
                reason,
                shell: info.map(|info| info.shell.name.clone()),
                os: info.and_then(|info| info.platform_os.clone()),
                permissions: Some(self.permissions_told(member.captured.handle())),
                granted: member.captured.handle().map_or(vec![], |handle| self.granted(&Workplace { attachment, handle }).words()),
                workspace_roots: attachment.workspace_roots.iter().map(outpost_wire::PathUri::to_syntax).collect(),
                executor: member.captured.handle().and_then(|handle| handle.identity()?.executor_id),
            })
        });
        EnvironmentContext { places: places.collect(), date: today.to_owned(), timezone: "UTC".into(), ..EnvironmentContext::default() }
    }

    /// What the projects in the environments ask of agents, unless the model was told already.
    pub(crate) async fn instructions(&self, context: Option<&Context>, patience: Duration) -> Vec<Raw> {
        crate::instructions::gather(self, context, patience).await
    }
}

/// Whether a tool of ours has that name.
pub fn is_own(name: &str) -> bool {
    OWN.iter().any(|tool| tool.name == name) || mcp::is_own(name)
}

/// How an environment stands, in one word.
pub(crate) fn state_name(captured: &Captured) -> &'static str {
    match captured {
        Captured::Ready(_) => "ready",
        Captured::Starting => "starting",
        Captured::Recovering { .. } => "recovering",
        Captured::Failed { .. } => "failed",
        Captured::Asleep => "asleep",
        Captured::Missing => "missing",
        Captured::Disabled => "disabled",
    }
}

fn reason(captured: &Captured) -> Option<String> {
    match captured {
        Captured::Recovering { reason } | Captured::Failed { reason, .. } => Some(reason.clone()),
        _ => None,
    }
}
