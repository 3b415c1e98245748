//! Tools of MCP servers, and the tools with which a model looks at their resources.

mod content;

use std::sync::Arc;
use std::time::Duration;

use outpost_mcp::{
    Elicitation, ElicitationAnswer, ElicitationListener, McpConnection, PendingElicitation, ProgressNote, ServerTool, ToolRequest,
};
use outpost_thread::{ApprovalDetail, ApprovalKind, CallDetail, CallId, McpDetail};
use outpost_wire::SharedError;
use outpost_wire::intent::EnvironmentId;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::content::{embedded, parts, shortened, told};
use super::narrow;
use super::{CallContext, CallEnd, CallPlan, Executing, RequestedCall, ResultType, StepTools, Work};
use crate::approvals::{Bound, key_of};
use crate::feed::ThreadFeed;
use crate::live::ThreadEvent;
use crate::mcp::binding::BoundServer;
use crate::mcp::{Binding, McpEvent};
use crate::model::{ToolInput, ToolSpec};
use crate::policy::ApprovalPolicy;

const LIST: &str = "list_mcp_resources";
const TEMPLATES: &str = "list_mcp_resource_templates";
const READ: &str = "read_mcp_resource";

/// A question that a running call puts to the user.
pub(crate) struct CallQuestion {
    pub call: CallId,
    pub environment: Option<EnvironmentId>,
    pub detail: ApprovalDetail,
    pub reply: oneshot::Sender<ElicitationAnswer>,
}

/// A call that may run.
pub(crate) struct McpRun {
    target: Target,
    result: ResultType,
    environment: Option<EnvironmentId>,
    /// Whether its questions may be put to the user.
    asks: bool,
    /// The server runs at least as long as its call.
    _binding: Arc<Binding>,
}

enum Target {
    Tool { connection: Arc<dyn McpConnection>, tool: String, arguments: Option<Map<String, Value>>, timeout: Duration },
    List { servers: Vec<(String, Arc<dyn McpConnection>)>, templates: bool },
    Read { connection: Arc<dyn McpConnection>, uri: String },
}

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
    #[serde(default)]
    arguments: String,
}

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct ResourceArguments {
    server: Option<String>,
    uri: Option<String>,
}

pub(super) fn is_own(name: &str) -> bool {
    matches!(name, LIST | TEMPLATES | READ)
}

/// What the model is told of the tools of servers.
pub(crate) fn specs(binding: &Binding) -> Vec<ToolSpec> {
    let mut specs = Vec::new();
    for server in &binding.servers {
        specs.extend(server.tools.iter().map(|bound| ToolSpec {
            name: bound.qualified.clone(),
            description: bound.tool.description.clone(),
            input: ToolInput::Object(schema(&bound.tool)),
        }));
    }
    if binding.has_resources() {
        specs.extend(resource_tools());
    }
    specs
}

/// Models want an object with properties, also where a server says less.
fn schema(tool: &ServerTool) -> Value {
    let mut schema = tool.input_schema.clone();
    if let Value::Object(members) = &mut schema {
        members.entry("type").or_insert_with(|| "object".into());
        members.entry("properties").or_insert_with(|| json!({}));
    }
    schema
}

fn resource_tools() -> [ToolSpec; 3] {
    let tool = |name: &str, description: &str, properties: Value, required: &[&str]| ToolSpec {
        name: name.into(),
        description: description.into(),
        input: ToolInput::Object(json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})),
    };
    let server = json!({"type": "string", "description": "The MCP server, by its name. Without it, all of them."});
    let uri = json!({"type": "string", "description": "The address of the resource, as it was listed."});
    let one = json!({"type": "string", "description": "The MCP server that has it, by its name."});
    [
        tool(LIST, "Lists what MCP servers offer to be read: files, records, pages.", json!({"server": server.clone()}), &[]),
        tool(TEMPLATES, "Lists patterns of addresses under which MCP servers offer more to be read.", json!({"server": server}), &[]),
        tool(READ, "Reads a resource of an MCP server.", json!({"server": one, "uri": uri}), &["server", "uri"]),
    ]
}

impl StepTools {
    /// What is to become of a call, if it is one of a server's.
    pub(super) fn plan_mcp(&self, asked: &RequestedCall<'_>) -> Option<CallPlan> {
        let named: Named = asked.item.read().ok()?;
        if let Some((server, tool)) = self.mcp.tool(&named.name) {
            return Some(self.plan_tool(asked, server, tool, &named.arguments));
        }
        match named.name.as_str() {
            LIST | TEMPLATES | READ => Some(self.plan_resource(asked, &named)),
            name if name.starts_with("mcp__") => {
                let away = self.mcp.servers.iter().filter(|server| server.state != "ready");
                let reasons: Vec<String> = away
                    .map(|server| {
                        format!(
                            "`{}` is {}: {}",
                            server.name,
                            server.state,
                            server.problem.as_ref().map_or_else(|| "no reason".to_owned(), ToString::to_string)
                        )
                    })
                    .collect();
                let more =
                    if reasons.is_empty() { String::new() } else { format!(" MCP servers that are not there: {}.", reasons.join("; ")) };
                Some(asked.fail(format!("There is no tool `{name}` in this step.{more}")))
            }
            _ => None,
        }
    }

    fn plan_tool(&self, asked: &RequestedCall<'_>, server: &BoundServer, tool: &ServerTool, arguments: &str) -> CallPlan {
        let text = if arguments.trim().is_empty() { "{}" } else { arguments };
        let arguments: Map<String, Value> = match serde_json::from_str(text) {
            Ok(arguments) => arguments,
            Err(error) => return asked.fail(format!("the arguments of `{}` cannot be read: {error}", tool.name)),
        };
        let connection = match server.connection() {
            Ok(connection) => connection.clone(),
            Err(error) => return asked.fail(error),
        };
        let environment = server.environment.clone();
        let detail = McpDetail {
            server: server.name.clone(),
            tool: tool.name.clone(),
            arguments: Value::Object(arguments.clone()),
            environment_id: environment.as_ref().map(ToString::to_string),
        };
        let handle = environment.as_ref().and_then(|id| self.view.captured(id)?.handle());
        let granted = key_of(environment.as_ref(), handle, &json!(["mcpTool", server.name, tool.name]));
        // A yes is to this call; one for the thread is to the tool.
        let bound = Bound::within(granted, &json!(arguments), None);
        match self.why_ask(tool, environment.as_ref()) {
            Some(Err(why)) => return asked.fail(format!("This tool may not run: {why}.")),
            Some(Ok(why)) if !asked.is_granted(&bound) => {
                let McpDetail { server, tool: name, arguments, environment_id } = detail;
                let detail = ApprovalDetail {
                    server: Some(server),
                    tool: Some(name),
                    arguments,
                    environment_id,
                    why: Some(why.to_owned()),
                    annotations: tool.raw["annotations"].clone(),
                    ..ApprovalDetail::default()
                };
                return asked.bound_question(ApprovalKind::McpTool, environment, &bound, detail);
            }
            _ => {}
        }
        let target = Target::Tool { connection, tool: tool.name.clone(), arguments: Some(arguments), timeout: server.tool_timeout };
        let run = McpRun {
            target,
            result: asked.result(),
            environment: environment.clone(),
            asks: self.may_elicit(),
            _binding: self.mcp.clone(),
        };
        // What a server calls read-only may be done again after a restart.
        asked.run(environment, tool.read_only, Some(CallDetail::McpToolCall(detail)), Box::new(run))
    }

    /// Why the user is asked before a tool runs; an error if no question may be asked.
    fn why_ask(&self, tool: &ServerTool, environment: Option<&EnvironmentId>) -> Option<Result<&'static str, String>> {
        let own = why_ask(self.approval, tool);
        let handle = environment.and_then(|id| self.view.captured(id)?.handle());
        let there = handle.and_then(narrow::approval);
        match (own, there.and_then(|policy| why_ask(policy, tool))) {
            (None, Some(Ok(why))) if self.approval == ApprovalPolicy::Never => {
                Some(Err(format!("{why} of the environment, and the approval policy is `never`")))
            }
            (Some(Ok(why)), None) if there == Some(ApprovalPolicy::Never) => {
                Some(Err(format!("{why}, and the approval policy of the environment is `never`")))
            }
            (own, there) => own.or(there),
        }
    }
}

fn why_ask(policy: ApprovalPolicy, tool: &ServerTool) -> Option<Result<&'static str, String>> {
    let destroys = "it says of itself that it destroys something";
    match policy {
        ApprovalPolicy::Untrusted => Some(Ok("the approval policy is `untrusted`")),
        ApprovalPolicy::Never => None,
        _ if !tool.destructive => None,
        ApprovalPolicy::Granular(own) if !own.granular.mcp_elicitations => {
            Some(Err(format!("{destroys}, and such questions are switched off")))
        }
        ApprovalPolicy::OnRequest | ApprovalPolicy::Granular(_) => Some(Ok(destroys)),
    }
}

impl StepTools {
    /// Whether a server may ask the user something.
    fn may_elicit(&self) -> bool {
        let allowed = match self.approval {
            ApprovalPolicy::Never => false,
            ApprovalPolicy::Granular(own) => own.granular.mcp_elicitations,
            ApprovalPolicy::Untrusted | ApprovalPolicy::OnRequest => true,
        };
        self.questions && allowed
    }

    fn plan_resource(&self, asked: &RequestedCall<'_>, named: &Named) -> CallPlan {
        let text = if named.arguments.trim().is_empty() { "{}" } else { &named.arguments };
        let arguments: ResourceArguments = match serde_json::from_str(text) {
            Ok(arguments) => arguments,
            Err(error) => return asked.fail(format!("the arguments of `{}` cannot be read: {error}", named.name)),
        };
        let target = match self.resource_target(&named.name, arguments) {
            Ok(target) => target,
            Err(why) => return asked.fail(why),
        };
        let run = McpRun { target, result: asked.result(), environment: None, asks: false, _binding: self.mcp.clone() };
        asked.run(None, true, None, Box::new(run))
    }

    fn resource_target(&self, name: &str, arguments: ResourceArguments) -> Result<Target, SharedError> {
        if name == READ {
            let (Some(server), Some(uri)) = (arguments.server, arguments.uri) else {
                return Err(format!("`{READ}` needs `server` and `uri`").into());
            };
            let connection = self.mcp.server(&server).and_then(BoundServer::connection).map_err(SharedError::new)?;
            return Ok(Target::Read { connection: connection.clone(), uri });
        }
        let servers = match arguments.server {
            Some(server) => {
                let connection = self.mcp.server(&server).and_then(BoundServer::connection).map_err(SharedError::new)?;
                vec![(server, connection.clone())]
            }
            None => {
                let offering = self.mcp.servers.iter().filter(|server| server.listing.has_resources);
                offering.filter_map(|server| Some((server.name.clone(), server.connection.clone()?))).collect()
            }
        };
        Ok(Target::List { servers, templates: name == TEMPLATES })
    }
}

/// The thread that a call belongs to.
struct ThreadListener {
    owner: String,
    call: CallId,
    environment: Option<EnvironmentId>,
    feed: Arc<ThreadFeed<ThreadEvent>>,
    questions: Option<mpsc::UnboundedSender<CallQuestion>>,
}

impl ElicitationListener for ThreadListener {
    fn owner(&self) -> &str {
        &self.owner
    }

    fn progress(&self, note: ProgressNote) {
        let ProgressNote { progress, total, message } = note;
        let weight = 128 + message.as_ref().map_or(0, String::len);
        self.feed.publish(ThreadEvent::Mcp(McpEvent::Progress { call: self.call.to_string(), progress, total, message }), weight);
    }

    fn ask(&self, question: Elicitation) -> PendingElicitation {
        let (reply, answer) = oneshot::channel();
        let detail = ApprovalDetail {
            call_id: Some(self.call.to_string()),
            server: Some(question.server),
            request: json!(question.request),
            ..ApprovalDetail::default()
        };
        let asked = CallQuestion { call: self.call.clone(), environment: self.environment.clone(), detail, reply };
        let Some(questions) = self.questions.clone() else { return Box::pin(std::future::ready(ElicitationAnswer::Declined)) };
        Box::pin(async move {
            if questions.send(asked).is_err() {
                return ElicitationAnswer::Cancelled;
            }
            answer.await.unwrap_or(ElicitationAnswer::Cancelled)
        })
    }
}

impl Work for McpRun {
    fn execute<'a>(self: Box<Self>, call: &'a CallId, context: &'a CallContext) -> Executing<'a> {
        Box::pin(self.ask(call, context))
    }

    /// What a call does only its server understands.
    fn runs_alone(&self, is_repeatable: bool) -> bool {
        !is_repeatable
    }
}

impl McpRun {
    async fn ask(self, call: &CallId, context: &CallContext) -> CallEnd {
        let began = Instant::now();
        let result = self.result;
        match self.target {
            Target::Tool { connection, tool, arguments, timeout } => {
                let listener = ThreadListener {
                    owner: context.thread.id.to_string(),
                    call: call.clone(),
                    environment: self.environment,
                    feed: context.feed.clone(),
                    questions: self.asks.then(|| context.questions.clone()),
                };
                let request = ToolRequest { tool: &tool, arguments, meta: None, timeout, cancel: context.cancel.clone() };
                let answered = connection.call(request, &listener).await;
                told(result, call, answered, began.elapsed())
            }
            Target::List { servers, templates } => {
                let mut all = Vec::new();
                for (name, connection) in servers {
                    let listed = if templates { connection.resource_templates().await } else { connection.resources().await };
                    match listed {
                        Ok(items) => all.extend(items.into_iter().map(|mut item| {
                            item["server"] = name.as_str().into();
                            item
                        })),
                        Err(error) => all.push(json!({"server": name, "error": error.to_string()})),
                    }
                }
                let member = if templates { "resourceTemplates" } else { "resources" };
                CallEnd::completed(result, call, shortened(&json!({member: all}).to_string()), None)
            }
            Target::Read { connection, uri } => match connection.read(&uri).await {
                Ok(contents) => CallEnd::completed(result, call, parts(&contents.iter().map(embedded).collect::<Vec<_>>()), None),
                Err(error) => CallEnd::failed(result, call, error),
            },
        }
    }
}
