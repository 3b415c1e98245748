//! Questions, as clients are asked them.

use outpost_thread::{ApprovalAsked, ApprovalId, Raw};
use outpost_wire::app::approval::{
    CommandApproval, CommandApprovalParams, FileChangeApproval, FileChangeApprovalParams, ToolCall, ToolCallParams, UserInputRequest,
    UserInputRequestParams,
};
use outpost_wire::app::item::CommandAction;
use outpost_wire::{Method, RequestId, envelope};
use serde::Deserialize;
use serde_json::{Value, json};

/// A question, and how it is worded.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    pub approval: ApprovalId,
    pub params: Params,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Params {
    Command(CommandApprovalParams),
    FileChange(FileChangeApprovalParams),
    Tool(ToolCallParams),
    Input(UserInputRequestParams),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionKind {
    Command,
    FileChange,
    DynamicTool,
    UserInput,
}

/// Whom and when a question is about.
pub struct About<'a> {
    pub thread: &'a str,
    pub item: &'a str,
    pub at: u64,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Detail {
    command: Option<String>,
    cwd: Option<String>,
    why: Option<String>,
    reason: Option<String>,
    prefix_rule: Option<Vec<String>>,
    tool: String,
    namespace: Option<String>,
    arguments: Value,
    questions: Vec<Value>,
}

impl Ask {
    /// Nothing for a kind of question that this protocol has no words for.
    pub fn of(asked: &ApprovalAsked, about: &About<'_>) -> Option<Self> {
        let detail: Detail = asked.detail.as_ref().and_then(|raw: &Raw| raw.read().ok()).unwrap_or_default();
        let (thread_id, turn_id, item_id) = (about.thread.to_owned(), asked.turn.to_string(), about.item.to_owned());
        let environment_id = asked.environment.as_ref().map(ToString::to_string);
        let approval_id = Some(asked.approval.to_string());
        // What the model says comes first; what we know second.
        let reason = detail.reason.or(detail.why);
        let params = match asked.kind.as_str() {
            "command" => Params::Command(CommandApprovalParams {
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
                available_decisions: Some(decisions(detail.prefix_rule.as_deref())),
                proposed_execpolicy_amendment: detail.prefix_rule,
                network_approval_context: None,
                additional_permissions: None,
            }),
            "fileChange" => Params::FileChange(FileChangeApprovalParams {
                thread_id,
                turn_id,
                item_id,
                started_at_ms: about.at,
                environment_id,
                approval_id,
                reason,
                grant_root: None,
            }),
            "dynamicTool" => Params::Tool(ToolCallParams {
                thread_id,
                turn_id,
                call_id: item_id,
                namespace: detail.namespace,
                tool: detail.tool,
                arguments: detail.arguments,
            }),
            "userInput" => Params::Input(UserInputRequestParams {
                thread_id,
                turn_id,
                item_id,
                questions: detail.questions.into_iter().map(question).collect(),
                is_blocking: true,
                auto_resolution_ms: None,
            }),
            _ => return None,
        };
        Some(Self { approval: asked.approval.clone(), params })
    }

    pub fn kind(&self) -> QuestionKind {
        match self.params {
            Params::Command(_) => QuestionKind::Command,
            Params::FileChange(_) => QuestionKind::FileChange,
            Params::Tool(_) => QuestionKind::DynamicTool,
            Params::Input(_) => QuestionKind::UserInput,
        }
    }

    /// The request under this number.
    pub fn frame(&self, number: i64) -> Vec<u8> {
        let id = RequestId::Number(number);
        match &self.params {
            Params::Command(params) => envelope::request(&id, CommandApproval::NAME, params),
            Params::FileChange(params) => envelope::request(&id, FileChangeApproval::NAME, params),
            Params::Tool(params) => envelope::request(&id, ToolCall::NAME, params),
            Params::Input(params) => envelope::request(&id, UserInputRequest::NAME, params),
        }
    }
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
