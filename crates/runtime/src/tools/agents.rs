//! Tools with which an agent makes other agents and talks to them.

use std::collections::BTreeMap;
use std::time::Duration;

use outpost_thread::{
    AgentClosed, AgentDetail, AgentSpawned, CallDetail, CallId, CallReport, Fact, InputOrigin, InterruptReason, ThreadId,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::call::parse;
use super::{CallContext, CallEnd, ResultType};
use crate::live::{NewInput, ThreadActivity};

/// What an agent wants of others.
#[derive(Debug)]
pub enum AgentCall {
    Spawn(Spawn),
    Send(Send),
    Wait(Wait),
    Interrupt(AgentTarget),
    Close(AgentTarget),
    List,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spawn {
    message: String,
    #[serde(default)]
    fork_context: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Send {
    target: String,
    message: String,
    #[serde(default)]
    interrupt: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    targets: Vec<String>,
    #[serde(default)]
    timeout_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentTarget {
    target: String,
}

/// For a tool without arguments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl AgentCall {
    pub fn is_name(name: &str) -> bool {
        matches!(name, "spawn_agent" | "send_input" | "wait_agent" | "interrupt_agent" | "close_agent" | "list_agents")
    }

    pub fn read(name: &str, arguments: &str) -> Result<Self, String> {
        Ok(match name {
            "spawn_agent" => Self::Spawn(parse(name, arguments)?),
            "send_input" => Self::Send(parse(name, arguments)?),
            "wait_agent" => Self::Wait(parse(name, arguments)?),
            "interrupt_agent" => Self::Interrupt(parse(name, arguments)?),
            "close_agent" => Self::Close(parse(name, arguments)?),
            _ => {
                parse::<Nothing>(name, arguments)?;
                Self::List
            }
        })
    }

    /// Whether doing it twice does no harm.
    pub fn is_repeatable(&self) -> bool {
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

    pub fn detail(&self) -> CallDetail {
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

pub(super) async fn execute(call: AgentCall, id: &CallId, result: ResultType, context: &CallContext) -> CallEnd {
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
        Err(why) => CallEnd::failed(result, id, &why),
    }
}

async fn make(spawn: Spawn, call: &CallId, context: &CallContext) -> Result<Outcome, String> {
    let child = context.shared.clone().spawn_agent(&context.thread, spawn.fork_context).await?;
    let spawned = AgentSpawned {
        child: child.id(),
        turn: Some(context.turn.clone()),
        call: Some(call.clone()),
        path: None,
        nickname: None,
        role: None,
    };
    let input = NewInput { origin: InputOrigin::Agent, ..NewInput::text(&spawn.message) };
    child.input(input).await.map_err(|error| error.to_string())?;
    Ok(Outcome { facts: vec![spawned.into()], ..Outcome::of(json!({"agent_id": child.id()}), child.id(), "running") })
}

/// An agent of this thread only.
fn own(target: &str, context: &CallContext) -> Result<ThreadId, String> {
    let id = target.parse().ok().filter(|id| context.thread.agents.contains_key(id));
    id.ok_or_else(|| format!("there is no agent `{target}` here"))
}

async fn tell(send: Send, context: &CallContext) -> Result<Outcome, String> {
    let id = own(&send.target, context)?;
    let agent = context.shared.clone().load(id).await.map_err(|error| error.to_string())?;
    if send.interrupt {
        agent.interrupt(None, InterruptReason::Replaced).await.map_err(|error| error.to_string())?;
    }
    let input = NewInput { origin: InputOrigin::Agent, ..NewInput::text(&send.message) };
    agent.input(input).await.map_err(|error| error.to_string())?;
    Ok(Outcome::of(json!({"sent": true}), id, "running"))
}

async fn wait_for(wait: Wait, context: &CallContext) -> Result<Outcome, String> {
    let ids = wait.targets.iter().map(|target| own(target, context)).collect::<Result<Vec<_>, _>>()?;
    let limit = Duration::from_millis(wait.timeout_ms.unwrap_or(30_000).clamp(10_000, 3_600_000));
    let any_is_done = async {
        let mut settling = JoinSet::new();
        for id in &ids {
            // Also one whose work was cut off when the program ended, and that was not resumed yet.
            let Some(agent) = context.shared.clone().busy(*id).await else { return };
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
        let status = context.shared.status(id);
        let is_active = matches!(status, Some(ThreadActivity::Active { .. }));
        let message = if is_active { None } else { context.shared.last_message(id).await };
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

async fn interrupt(target: &AgentTarget, context: &CallContext) -> Result<Outcome, String> {
    let id = own(&target.target, context)?;
    if let Some(agent) = context.shared.live(id) {
        agent.interrupt(None, InterruptReason::Replaced).await.map_err(|error| error.to_string())?;
    }
    Ok(Outcome::of(json!({"interrupted": true}), id, "interrupted"))
}

async fn close(target: &AgentTarget, context: &CallContext) -> Result<Outcome, String> {
    let id = own(&target.target, context)?;
    context.shared.unload_tree(id, InterruptReason::Replaced).await.map_err(|error| error.to_string())?;
    let closed = AgentClosed { child: id, reason: None };
    Ok(Outcome { facts: vec![closed.into()], ..Outcome::of(json!({"closed": true}), id, "shutdown") })
}

async fn list(context: &CallContext) -> Outcome {
    let mut agents = serde_json::Map::new();
    let mut states = BTreeMap::new();
    for (id, agent) in &context.thread.agents {
        let (state, status) = match context.shared.status(*id) {
            Some(ThreadActivity::Active { .. }) => ("running", "running"),
            _ if agent.open => ("idle", "completed"),
            _ => ("closed", "shutdown"),
        };
        agents.insert(id.to_string(), json!({"status": state}));
        states.insert(*id, AgentState { status, message: None });
    }
    Outcome { said: Value::Object(agents), states, facts: vec![] }
}
