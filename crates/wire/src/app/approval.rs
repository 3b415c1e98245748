//! What a client is asked: whether something may be done, what a user wants, what one of its tools says.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::item::CommandAction;
use super::permission::PermissionProfile;
use crate::{encode_with_serde, method};

method!(CommandApproval = "item/commandExecution/requestApproval", CommandApprovalParams => CommandApprovalResponse);
method!(FileChangeApproval = "item/fileChange/requestApproval", FileChangeApprovalParams => FileChangeApprovalResponse);
method!(ToolCall = "item/tool/call", ToolCallParams => ToolCallResponse);
method!(McpElicitation = "mcpServer/elicitation/request", McpElicitationParams => McpElicitationResponse);
method!(UserInputRequest = "item/tool/requestUserInput", UserInputRequestParams => UserInputRequestResponse);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CommandApprovalParams {
    pub thread_id: String,
    pub turn_id: String,
    pub item_id: String,
    pub started_at_ms: u64,
    pub kind: String,
    pub environment_id: Option<String>,
    /// The question itself: the same through restarts.
    pub approval_id: Option<String>,
    pub command: Option<String>,
    pub cwd: Option<String>,
    pub command_actions: Option<Vec<CommandAction>>,
    pub reason: Option<String>,
    pub proposed_execpolicy_amendment: Option<Vec<String>>,
    #[serde(default)]
    pub proposed_network_policy_amendments: Option<Vec<Value>>,
    pub available_decisions: Option<Vec<Value>>,
    pub network_approval_context: Option<Value>,
    /// What the command wants on top of the sandbox.
    pub additional_permissions: Option<PermissionProfile>,
    /// Ours: what the answer is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<ApprovalTerms>,
}

/// What an answer is bound to, and what people should know before they give it. All of it is ours.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ApprovalTerms {
    /// Digests of what will run, of where, and of the sandbox around it. If any of them is another one when it is to run, the
    /// question is asked again under another id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The sandbox, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The program that runs the command line, and its option.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Vec<String>>,
    /// Why it is asked; `reason` is the model's own where it gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What has changed since the user agreed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<Vec<String>>,
    /// What is to become of which file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<Value>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CommandApprovalResponse {
    pub decision: ApprovalDecision,
}

/// What a user decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ApprovalDecision {
    Accept,
    AcceptForSession,
    /// Not this; go on.
    Decline,
    /// Not this, and stop.
    Cancel,
    /// Yes, and commands that begin like this are allowed from now on.
    AcceptWithExecpolicyAmendment {
        execpolicy_amendment: Vec<String>,
    },
    ApplyNetworkPolicyAmendment {
        #[cfg_attr(feature = "schema", schemars(with = "Value"))]
        network_policy_amendment: NetworkAmendment,
    },
}

/// Read and not used: there is no policy of that kind here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkAmendment(pub Value);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileChangeApprovalParams {
    pub thread_id: String,
    pub turn_id: String,
    pub item_id: String,
    pub started_at_ms: u64,
    pub environment_id: Option<String>,
    pub approval_id: Option<String>,
    pub reason: Option<String>,
    pub grant_root: Option<String>,
    /// Ours: what the answer is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<ApprovalTerms>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileChangeApprovalResponse {
    pub decision: ApprovalDecision,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolCallParams {
    pub thread_id: String,
    pub turn_id: String,
    pub call_id: String,
    pub namespace: Option<String>,
    pub tool: String,
    pub arguments: Value,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolCallResponse {
    pub content_items: Vec<Value>,
    pub success: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UserInputRequestParams {
    pub thread_id: String,
    pub turn_id: String,
    pub item_id: String,
    pub questions: Vec<Value>,
    pub is_blocking: bool,
    pub auto_resolution_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UserInputRequestResponse {
    pub answers: Value,
}

/// Something that an MCP server asks the user: a form to fill in, or a page to visit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct McpElicitationParams {
    pub thread_id: String,
    pub turn_id: Option<String>,
    pub server_name: String,
    /// `form` or `url`.
    pub mode: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_schema: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elicitation_id: Option<String>,
    #[serde(rename = "_meta")]
    pub meta: Option<Value>,
    /// Ours: where the server is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct McpElicitationResponse {
    pub action: ElicitationAction,
    #[serde(default)]
    pub content: Option<Value>,
    #[serde(rename = "_meta", default)]
    pub meta: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ElicitationAction {
    Accept,
    Decline,
    Cancel,
}

encode_with_serde!(McpElicitationResponse);
encode_with_serde!(CommandApprovalResponse, FileChangeApprovalResponse, ToolCallResponse, UserInputRequestResponse);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_words_or_words_with_more() {
        let read = |text: &str| serde_json::from_str::<ApprovalDecision>(text).unwrap();
        assert_eq!(read("\"acceptForSession\""), ApprovalDecision::AcceptForSession);
        let more = read(r#"{"acceptWithExecpolicyAmendment":{"execpolicy_amendment":["ls"]}}"#);
        assert_eq!(more, ApprovalDecision::AcceptWithExecpolicyAmendment { execpolicy_amendment: vec!["ls".into()] });
    }
}
