//! Tools with which an agent makes other agents and talks to them.

use std::collections::BTreeMap;
use std::time::Duration;

use outpost_thread::{
    AgentClosed, AgentDetail, AgentSpawned, CallDetail, CallId, CallReport, Fact, InputOrigin, InterruptReason, ThreadId,
};
use outpost_wire::SharedError;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::call::{OwnCall, OwnTool, WrittenCall};
use super::catalogue::{function, number, string};
use super::{CallContext, CallEnd, CallPlan, Executing, RequestedCall, ResultType, StepTools, Work};
use crate::live::{NewInput, ThreadActivity};
use crate::model::ToolSpec;

pub(super) const SPAWN: OwnTool = OwnTool { name: "spawn_agent", spec: |offer| offer.agents.then(spawn_agent), read: AgentCall::read };

pub(super) const SEND: OwnTool =
    OwnTool { name: "send_input", spec: |offer| (offer.agents && offer.has_agents).then(send_input), read: AgentCall::read };

pub(super) const WAIT: OwnTool =
    OwnTool { name: "wait_agent", spec: |offer| (offer.agents && offer.has_agents).then(wait_agent), read: AgentCall::read };

pub(super) const INTERRUPT: OwnTool =
    OwnTool { name: "interrupt_agent", spec: |offer| (offer.agents && offer.has_agents).then(interrupt_agent), read: AgentCall::read };

pub(super) const CLOSE: OwnTool =
    OwnTool { name: "close_agent", spec: |offer| (offer.agents && offer.has_agents).then(close_agent), read: AgentCall::read };

pub(super) const LIST: OwnTool =
    OwnTool { name: "list_agents", spec: |offer| (offer.agents && offer.has_agents).then(list_agents), read: AgentCall::read };

fn spawn_agent() -> ToolSpec {
    function(
        "spawn_agent",
        "Starts another agent on a task of its own, in the same environments.",
        json!({
            "message": string("The task, with all that the agent must know."),
            "fork_context": {"type": "boolean", "description": "Whether it knows this conversation."},
        }),
        &["message"],
    )
}

fn target() -> Value {
    string("The id of the agent, as spawn_agent returned it.")
}

fn send_input() -> ToolSpec {
    let properties = json!({
        "target": target(),
        "message": string("The message."),
        "interrupt": {"type": "boolean", "description": "Whether to stop what it does now."},
    });
    function("send_input", "Sends a message to an agent.", properties, &["target", "message"])
}

fn wait_agent() -> ToolSpec {
    let properties = json!({
        "targets": {"type": "array", "items": {"type": "string"}},
        "timeout_ms": number("At most so long (10000 to 3600000, otherwise 30000)."),
    });
    function("wait_agent", "Waits until one of the agents has finished, and returns what it said.", properties, &["targets"])
}

fn interrupt_agent() -> ToolSpec {
    let what = "Stops what an agent does now; it can be told to go on.";
    function("interrupt_agent", what, json!({"target": target()}), &["target"])
}

fn close_agent() -> ToolSpec {
    function("close_agent", "Ends an agent that is not needed any more.", json!({"target": target()}), &["target"])
}

fn list_agents() -> ToolSpec {
    function("list_agents", "Lists your agents and what they are doing.", json!({}), &[])
}

/// What an agent wants of others.
#[derive(Debug)]
enum AgentCall {
    Spawn(Spawn),
    Send(Send),
    Wait(Wait),
    Interrupt(AgentTarget),
    Close(AgentTarget),
    List,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Spawn {
    message: String,
    #[serde(default)]
    fork_context: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Send {
    target: String,
    message: String,
    #[serde(default)]
    interrupt: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wait {
    targets: Vec<String>,
    #[serde(default)]
    timeout_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentTarget {
    target: String,
}

/// For a tool without arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl AgentCall {
    fn read(written: &WrittenCall) -> Result<Box<dyn OwnCall>, String> {
        Ok(Box::new(match written.name.as_str() {
            "spawn_agent" => Self::Spawn(written.arguments()?),
            "send_input" => Self::Send(written.arguments()?),
            "wait_agent" => Self::Wait(written.arguments()?),
            "interrupt_agent" => Self::Interrupt(written.arguments()?),
            "close_agent" => Self::Close(written.arguments()?),
            _ => {
                written.arguments::<Nothing>()?;
                Self::List
            }
        }))
    }

    /// Whether doing it twice does no harm.
    fn is_repeatable(&self) -> bool {
        matches!(self, Self::Wait(_) | Self::List | Self::Interrupt(_) | Self::Close(_))
    }

    /// The agents that it names.
    fn targets(&self) -> Vec<&str> {
        match self {
            Self::Spawn(_) | Self::List => vec![],
            Self::Send(send) => vec![&send.target],
            Self::Wait(wait) => wait.targets.iter().map(String::as_str).collect(),
            Self::Interrupt(target) | Self::Close(target) => vec![&target.target],
        }
    }

    fn detail(&self) -> CallDetail {
        let (tool, message) = match self {
            Self::Spawn(spawn) => ("spawnAgent", Some(&spawn.message)),
            Self::Send(send) => ("sendInput", Some(&send.message)),
            Self::Wait(_) => ("wait", None),
            Self::Interrupt(_) => ("interrupt", None),
            Self::Close(_) => ("closeAgent", None),
            Self::List => ("list", None),
        };
        let receivers = self.targets().into_iter().map(str::to_owned).collect();
        CallDetail::CollabAgentToolCall(AgentDetail { tool: tool.to_owned(), prompt: message.cloned(), receivers })
    }
}

/// What a call came to: what the model is told, how the agents that it is about stand, and facts.
#[derive(Default)]
struct Outcome {
    said: Value,
    states: BTreeMap<ThreadId, AgentState>,
    facts: Vec<Fact>,
}

impl Outcome {
    fn of(said: Value, id: ThreadId, status: &'static str) -> Self {
        Self { said, states: BTreeMap::from([(id, AgentState { status, message: None })]), facts: vec![] }
    }
}

/// How an agent stands, as clients are shown it.
#[derive(Serialize)]
struct AgentState {
    /// In the protocol's words: `running`, `interrupted`, `completed`, `errored`, `shutdown`.
    status: &'static str,
    message: Option<String>,
}

impl OwnCall for AgentCall {
    fn plan(self: Box<Self>, _step: &StepTools, asked: &RequestedCall<'_>) -> CallPlan {
        asked.run(None, self.is_repeatable(), Some(self.detail()), Box::new(AgentRun { call: *self, result: asked.result() }))
    }
}

/// Something that is asked of another agent.
struct AgentRun {
    call: AgentCall,
    result: ResultType,
}

impl Work for AgentRun {
    fn execute<'a>(self: Box<Self>, call: &'a CallId, context: &'a CallContext) -> Executing<'a> {
        Box::pin(execute(self.call, call, self.result, context))
    }

    fn takes_slot(&self) -> bool {
        false
    }
}

async fn execute(call: AgentCall, id: &CallId, result: ResultType, context: &CallContext) -> CallEnd {
    let done = match call {
        AgentCall::Spawn(spawn) => make(spawn, id, context).await,
        AgentCall::Send(send) => tell(send, context).await,
        AgentCall::Wait(wait) => wait_for(wait, context).await,
        AgentCall::Interrupt(target) => interrupt(&target, context).await,
        AgentCall::Close(target) => close(&target, context).await,
        AgentCall::List => Ok(list(context).await),
    };
    match done {
        Ok(Outcome { said, states, facts }) => {
            let receivers = states.keys().map(ToString::to_string).collect();
            let states = states.into_iter().map(|(id, state)| (id.to_string(), json!(state))).collect();
            let report = CallReport { receivers, states, ..CallReport::default() };
            CallEnd { facts, ..CallEnd::completed(result, id, said.to_string(), Some(report)) }
        }
        Err(why) => CallEnd::failed(result, id, why),
    }
}

async fn make(spawn: Spawn, call: &CallId, context: &CallContext) -> Result<Outcome, SharedError> {
    let child = context.runtime.spawn_agent(&context.thread, spawn.fork_context).await?;
    let spawned = AgentSpawned {
        child: child.id(),
        turn: Some(context.turn.clone()),
        call: Some(call.clone()),
        path: None,
        nickname: None,
        role: None,
    };
    let input = NewInput { origin: InputOrigin::Agent, ..NewInput::text(&spawn.message) };
    child.input(input).await.map_err(SharedError::new)?;
    Ok(Outcome { facts: vec![spawned.into()], ..Outcome::of(json!({"agent_id": child.id()}), child.id(), "running") })
}

/// An agent of this thread only.
fn own(target: &str, context: &CallContext) -> Result<ThreadId, SharedError> {
    let id = target.parse().ok().filter(|id| context.thread.agents.contains_key(id));
    id.ok_or_else(|| format!("there is no agent `{target}` here").into())
}

async fn tell(send: Send, context: &CallContext) -> Result<Outcome, SharedError> {
    let id = own(&send.target, context)?;
    let agent = context.runtime.load(id).await.map_err(SharedError::new)?;
    if send.interrupt {
        agent.interrupt(None, InterruptReason::Replaced).await.map_err(SharedError::new)?;
    }
    let input = NewInput { origin: InputOrigin::Agent, ..NewInput::text(&send.message) };
    agent.input(input).await.map_err(SharedError::new)?;
    Ok(Outcome::of(json!({"sent": true}), id, "running"))
}

async fn wait_for(wait: Wait, context: &CallContext) -> Result<Outcome, SharedError> {
    let ids = wait.targets.iter().map(|target| own(target, context)).collect::<Result<Vec<_>, _>>()?;
    let limit = Duration::from_millis(wait.timeout_ms.unwrap_or(30_000).clamp(10_000, 3_600_000));
    let any_is_done = async {
        let mut settling = JoinSet::new();
        for id in &ids {
            // Also one whose work was cut off when the program ended, and that was not resumed yet.
            let Some(agent) = context.runtime.busy(*id).await else { return };
            settling.spawn(async move { agent.settled().await });
        }
        settling.join_next().await;
    };
    tokio::select! {
        () = any_is_done => {}
        () = tokio::time::sleep(limit) => {}
        () = context.cancel.cancelled() => {}
    }
    let mut agents = serde_json::Map::new();
    let mut states = BTreeMap::new();
    for id in ids {
        let status = context.runtime.status(id);
        let is_active = matches!(status, Some(ThreadActivity::Active { .. }));
        let message = if is_active { None } else { context.runtime.last_message(id).await };
        let state = if is_active { "running" } else { "completed" };
        agents.insert(id.to_string(), json!({"status": state, "message": message}));
        let (status, message) = match status {
            Some(ThreadActivity::Broken { reason }) => ("errored", Some(reason)),
            _ => (state, message),
        };
        states.insert(id, AgentState { status, message });
    }
    Ok(Outcome { said: Value::Object(agents), states, facts: vec![] })
}

async fn interrupt(target: &AgentTarget, context: &CallContext) -> Result<Outcome, SharedError> {
    let id = own(&target.target, context)?;
    if let Some(agent) = context.runtime.live(id) {
        agent.interrupt(None, InterruptReason::Replaced).await.map_err(SharedError::new)?;
    }
    Ok(Outcome::of(json!({"interrupted": true}), id, "interrupted"))
}

async fn close(target: &AgentTarget, context: &CallContext) -> Result<Outcome, SharedError> {
    let id = own(&target.target, context)?;
    context.runtime.unload_tree(id, InterruptReason::Replaced).await.map_err(SharedError::new)?;
    let closed = AgentClosed { child: id, reason: None };
    Ok(Outcome { facts: vec![closed.into()], ..Outcome::of(json!({"closed": true}), id, "shutdown") })
}

async fn list(context: &CallContext) -> Outcome {
    let mut agents = serde_json::Map::new();
    let mut states = BTreeMap::new();
    for (id, agent) in &context.thread.agents {
        let (state, status) = match context.runtime.status(*id) {
            Some(ThreadActivity::Active { .. }) => ("running", "running"),
            _ if agent.open => ("idle", "completed"),
            _ => ("closed", "shutdown"),
        };
        agents.insert(id.to_string(), json!({"status": state}));
        states.insert(*id, AgentState { status, message: None });
    }
    Outcome { said: Value::Object(agents), states, facts: vec![] }
}
