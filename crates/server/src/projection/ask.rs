//! Questions, as clients are asked them.

use outpost_thread::{ApprovalAsked, ApprovalId, ApprovalKind};
use outpost_wire::app::approval::{
    ApprovalTerms, CommandApproval, CommandApprovalParams, FileChangeApproval, FileChangeApprovalParams, McpElicitation,
    McpElicitationParams, ToolCall, ToolCallParams, UserInputRequest, UserInputRequestParams,
};
use outpost_wire::app::item::CommandAction;
use outpost_wire::app::permission::{PermissionsApproval, PermissionsApprovalParams};
use outpost_wire::shown::{Form, Untrusted};
use outpost_wire::{Method, RequestId, envelope};
use serde::Deserialize;
use serde_json::{Value, json};

/// A question, and how it is worded.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovalPrompt {
    pub approval: ApprovalId,
    pub params: Params,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Params {
    Command(Box<CommandApprovalParams>),
    FileChange(FileChangeApprovalParams),
    Permissions(PermissionsApprovalParams),
    Tool(ToolCallParams),
    Input(UserInputRequestParams),
    Elicitation(McpElicitationParams),
    McpTool(McpElicitationParams),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionKind {
    Command,
    FileChange,
    Permissions,
    DynamicTool,
    UserInput,
    /// A server asks something.
    McpElicitation,
    /// Whether a tool of a server may run.
    McpTool,
}

/// Whom and when a question is about.
pub struct About<'a> {
    pub thread: &'a str,
    pub item: &'a str,
    pub at: u64,
}

/// What an MCP server wrote.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Request {
    mode: Option<String>,
    message: String,
    requested_schema: Option<Value>,
    url: Option<String>,
    elicitation_id: Option<String>,
    #[serde(rename = "_meta")]
    meta: Option<Value>,
}

impl ApprovalPrompt {
    /// Nothing for a kind of question that this protocol has no words for.
    pub fn of(asked: &ApprovalAsked, about: &About<'_>) -> Option<Self> {
        let detail = asked.question();
        let request: Request = serde_json::from_value(detail.request).unwrap_or_default();
        let (server, tool) = (detail.server.unwrap_or_default(), detail.tool.unwrap_or_default());
        let (thread_id, turn_id, item_id) = (about.thread.to_owned(), asked.turn.to_string(), about.item.to_owned());
        let environment_id = asked.environment.as_ref().map(ToString::to_string);
        let approval_id = Some(asked.approval.to_string());
        let terms = Some(ApprovalTerms {
            digest: detail.key,
            sandbox: detail.sandbox,
            program: detail.program,
            why: detail.why.clone(),
            changed: detail.changed.clone(),
            changes: (!detail.changes.is_empty()).then(|| detail.changes.iter().map(|change| json!(change)).collect()),
        });
        // What the model says comes before what we know, unless the user has agreed to something else.
        let reason = detail.reason.or(detail.why);
        let reason = match detail.changed.as_deref() {
            Some(changed) => Some(format!("Asked again, because {} changed. {}", changed.join(" and "), reason.unwrap_or_default())),
            None => reason,
        };
        let params = match &asked.kind {
            ApprovalKind::Command => Params::Command(Box::new(CommandApprovalParams {
                thread_id,
                turn_id,
                item_id,
                started_at_ms: about.at,
                kind: "command".into(),
                environment_id,
                approval_id,
                command_actions: detail.command.clone().map(|command| vec![CommandAction::Unknown { command }]),
                command: detail.command,
                cwd: detail.cwd,
                reason,
                proposed_network_policy_amendments: None,
                available_decisions: Some(decisions(detail.prefix_rule.as_deref())),
                proposed_execpolicy_amendment: detail.prefix_rule,
                network_approval_context: None,
                additional_permissions: detail.additional_permissions.and_then(|profile| profile.read().ok()),
                terms,
            })),
            ApprovalKind::FileChange => Params::FileChange(FileChangeApprovalParams {
                thread_id,
                turn_id,
                item_id,
                started_at_ms: about.at,
                environment_id,
                approval_id,
                reason,
                grant_root: None,
                terms,
            }),
            ApprovalKind::Permissions => Params::Permissions(PermissionsApprovalParams {
                thread_id,
                turn_id,
                item_id,
                started_at_ms: about.at,
                environment_id,
                approval_id,
                cwd: detail.cwd.unwrap_or_default(),
                permissions: detail.permissions.and_then(|profile| profile.read().ok()).unwrap_or_default(),
                reason,
            }),
            ApprovalKind::DynamicTool => Params::Tool(ToolCallParams {
                thread_id,
                turn_id,
                call_id: item_id,
                namespace: detail.namespace,
                tool,
                arguments: detail.arguments,
            }),
            ApprovalKind::UserInput => Params::Input(UserInputRequestParams {
                thread_id,
                turn_id,
                item_id,
                questions: detail.questions.into_iter().map(question).collect(),
                is_blocking: true,
                auto_resolution_ms: None,
            }),
            ApprovalKind::McpElicitation => Params::Elicitation(McpElicitationParams {
                thread_id,
                turn_id: Some(turn_id),
                server_name: server,
                mode: request.mode.unwrap_or_else(|| "form".into()),
                message: request.message,
                requested_schema: request.requested_schema,
                url: request.url,
                elicitation_id: request.elicitation_id,
                meta: request.meta,
                environment_id,
            }),
            // The protocol asks about a tool as if its server did: a form without members.
            ApprovalKind::McpTool => Params::McpTool(McpElicitationParams {
                thread_id,
                turn_id: Some(turn_id),
                message: format!(
                    "Let the tool `{}` of the MCP server `{}` run? {}",
                    word(&tool),
                    word(&server),
                    reason.unwrap_or_default()
                ),
                server_name: server,
                mode: "form".into(),
                requested_schema: Some(json!({"type": "object", "properties": {}})),
                url: None,
                elicitation_id: None,
                meta: Some(json!({
                    "codex_approval_kind": "mcp_tool_call", "persist": ["session"], "tool_name": tool, "tool_params": detail.arguments,
                    "itemId": item_id,
                })),
                environment_id,
            }),
            ApprovalKind::Unknown(_) => return None,
        };
        Some(Self { approval: asked.approval.clone(), params })
    }

    pub fn kind(&self) -> QuestionKind {
        match self.params {
            Params::Command(_) => QuestionKind::Command,
            Params::FileChange(_) => QuestionKind::FileChange,
            Params::Permissions(_) => QuestionKind::Permissions,
            Params::Tool(_) => QuestionKind::DynamicTool,
            Params::Input(_) => QuestionKind::UserInput,
            Params::Elicitation(_) => QuestionKind::McpElicitation,
            Params::McpTool(_) => QuestionKind::McpTool,
        }
    }

    /// The same question without the rule that the agent suggests.
    pub fn without_rule(&self) -> Self {
        let mut plain = self.clone();
        if let Params::Command(params) = &mut plain.params {
            params.available_decisions = Some(decisions(None));
            params.proposed_execpolicy_amendment = None;
        }
        plain
    }

    /// The request under this number.
    pub fn frame(&self, number: i64) -> Vec<u8> {
        let id = RequestId::Number(number);
        match &self.params {
            Params::Command(params) => envelope::request(&id, CommandApproval::NAME, params.as_ref()),
            Params::FileChange(params) => envelope::request(&id, FileChangeApproval::NAME, params),
            Params::Permissions(params) => envelope::request(&id, PermissionsApproval::NAME, params),
            Params::Tool(params) => envelope::request(&id, ToolCall::NAME, params),
            Params::Input(params) => envelope::request(&id, UserInputRequest::NAME, params),
            Params::Elicitation(params) | Params::McpTool(params) => envelope::request(&id, McpElicitation::NAME, params),
        }
    }
}

/// A name that a server chose, inside a sentence of ours.
fn word(name: &str) -> String {
    Untrusted::from(name).show(Form::Word)
}

fn decisions(prefix: Option<&[String]>) -> Vec<Value> {
    let mut decisions = vec![json!("accept"), json!("acceptForSession")];
    if let Some(prefix) = prefix {
        decisions.push(json!({"acceptWithExecpolicyAmendment": {"execpolicy_amendment": prefix}}));
    }
    decisions.extend([json!("decline"), json!("cancel")]);
    decisions
}

/// A question with every member that clients expect.
fn question(mut question: Value) -> Value {
    if let Some(members) = question.as_object_mut() {
        for (member, usual) in [("header", json!("")), ("isOther", json!(false)), ("isSecret", json!(false)), ("options", Value::Null)] {
            members.entry(member).or_insert(usual);
        }
        let id = members.get("question").cloned().unwrap_or_default();
        members.entry("id").or_insert(id);
    }
    question
}
