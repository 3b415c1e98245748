//! Items: what a client sees of a turn.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Something that was said or done in a turn. Whatever happened in an environment names it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Item {
    UserMessage {
        id: String,
        /// As the client sent it.
        content: Vec<Value>,
        #[serde(default)]
        client_id: Option<String>,
        /// Ours: the person who said it, where clients have names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    AgentMessage {
        id: String,
        text: String,
        #[serde(default)]
        phase: Option<Phase>,
        #[serde(default)]
        memory_citation: Option<Value>,
        #[serde(default)]
        delivery: Option<Value>,
        #[serde(default)]
        questions: Option<Vec<Value>>,
        /// Ours: the agent did not say this. It stands in the place of what cannot be read any more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        damage: Option<MissingEntries>,
    },
    Reasoning {
        id: String,
        #[serde(default)]
        summary: Vec<String>,
        #[serde(default)]
        content: Vec<String>,
    },
    CommandExecution {
        id: String,
        /// For people to read.
        command: String,
        cwd: String,
        #[serde(default)]
        environment_id: Option<String>,
        #[serde(default)]
        process_id: Option<String>,
        #[serde(default)]
        source: CommandSource,
        status: WorkStatus,
        #[serde(default)]
        command_actions: Vec<CommandAction>,
        #[serde(default)]
        aggregated_output: Option<String>,
        #[serde(default)]
        exit_code: Option<i32>,
        #[serde(default)]
        duration_ms: Option<u64>,
        #[serde(default)]
        plugin_id: Option<String>,
        #[serde(default)]
        script_path: Option<String>,
        /// Ours: which rule of the sandbox refused something, and what would allow it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sandbox_hint: Option<String>,
    },
    FileChange {
        id: String,
        changes: Vec<FileUpdate>,
        status: WorkStatus,
        #[serde(default)]
        environment_id: Option<String>,
        /// Ours: why the files were not changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    McpToolCall {
        id: String,
        server: String,
        tool: String,
        arguments: Value,
        status: WorkStatus,
        #[serde(default)]
        result: Option<Value>,
        #[serde(default)]
        error: Option<Value>,
        #[serde(default)]
        duration_ms: Option<u64>,
        #[serde(default)]
        plugin_id: Option<String>,
        #[serde(default)]
        app_context: Option<Value>,
        #[serde(default)]
        mcp_app_resource_uri: Option<String>,
        #[serde(default)]
        mcp_app_ui: Option<Value>,
        #[serde(default)]
        read_only_hint: Option<bool>,
        #[serde(default)]
        environment_id: Option<String>,
    },
    DynamicToolCall {
        id: String,
        #[serde(default)]
        namespace: Option<String>,
        tool: String,
        arguments: Value,
        status: WorkStatus,
        #[serde(default)]
        content_items: Option<Vec<Value>>,
        #[serde(default)]
        success: Option<bool>,
        #[serde(default)]
        duration_ms: Option<u64>,
    },
    CollabAgentToolCall {
        id: String,
        tool: String,
        status: WorkStatus,
        sender_thread_id: String,
        receiver_thread_ids: Vec<String>,
        agents_states: BTreeMap<String, Value>,
        #[serde(default)]
        prompt: Option<String>,
        #[serde(default)]
        model: Option<String>,
        #[serde(default)]
        reasoning_effort: Option<String>,
    },
    ImageView {
        id: String,
        path: String,
        #[serde(default)]
        environment_id: Option<String>,
        /// Ours: why the picture could not be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    /// A picture that the model made.
    ImageGeneration {
        id: String,
        /// The provider's word: `in_progress`, `completed`, `failed`.
        status: String,
        /// The picture, in base64; empty as long as there is none.
        result: String,
        #[serde(default)]
        revised_prompt: Option<String>,
        /// The file on the machine that drives the thread.
        #[serde(default)]
        saved_path: Option<String>,
        #[serde(default)]
        transparent_background: Option<bool>,
        #[serde(default)]
        failure: Option<Value>,
    },
    ContextCompaction {
        id: String,
    },
    /// A review begins; `review` says of what.
    EnteredReviewMode {
        id: String,
        review: String,
    },
    /// It is over; `review` is what was found.
    ExitedReviewMode {
        id: String,
        review: String,
    },
}

/// Entries of a thread that cannot be read: ordinals `from` to `to`, both included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MissingEntries {
    pub from: u64,
    pub to: u64,
    pub what: String,
}

/// An item, and when it began and ended, in milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimedItem {
    #[serde(flatten)]
    pub item: Item,
    #[serde(default)]
    pub started_at_ms: Option<u64>,
    #[serde(default)]
    pub completed_at_ms: Option<u64>,
}

impl std::ops::Deref for TimedItem {
    type Target = Item;

    fn deref(&self) -> &Item {
        &self.item
    }
}

impl Item {
    pub fn id(&self) -> &str {
        match self {
            Self::UserMessage { id, .. }
            | Self::AgentMessage { id, .. }
            | Self::Reasoning { id, .. }
            | Self::CommandExecution { id, .. }
            | Self::FileChange { id, .. }
            | Self::McpToolCall { id, .. }
            | Self::DynamicToolCall { id, .. }
            | Self::CollabAgentToolCall { id, .. }
            | Self::ImageView { id, .. }
            | Self::ImageGeneration { id, .. }
            | Self::ContextCompaction { id }
            | Self::EnteredReviewMode { id, .. }
            | Self::ExitedReviewMode { id, .. } => id,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Phase {
    Commentary,
    PartialAnswer,
    FinalAnswer,
}

/// Who wanted a command to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum CommandSource {
    #[default]
    Agent,
    UserShell,
    UnifiedExecStartup,
    UnifiedExecInteraction,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum WorkStatus {
    InProgress,
    Completed,
    Failed,
    Declined,
}

/// What a command seems to be for. We do not guess.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum CommandAction {
    Read {
        command: String,
        name: String,
        path: String,
    },
    ListFiles {
        command: String,
        #[serde(default)]
        path: Option<String>,
    },
    Search {
        command: String,
        #[serde(default)]
        query: Option<String>,
        #[serde(default)]
        path: Option<String>,
    },
    Unknown {
        command: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FileUpdate {
    pub path: String,
    pub kind: FileUpdateKind,
    #[serde(default)]
    pub diff: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FileUpdateKind {
    Add,
    Delete,
    Update {
        #[serde(default)]
        move_path: Option<String>,
    },
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn optional_members_are_written_as_null_and_need_not_be_read() {
        let item = Item::Reasoning { id: "r".into(), summary: vec![], content: vec![] };
        assert_eq!(serde_json::to_value(&item).unwrap(), json!({"type": "reasoning", "id": "r", "summary": [], "content": []}));
        let timed = TimedItem { item, started_at_ms: Some(1), completed_at_ms: None };
        let written = json!({"type": "reasoning", "id": "r", "summary": [], "content": [], "startedAtMs": 1, "completedAtMs": null});
        assert_eq!(serde_json::to_value(&timed).unwrap(), written);
        let item: Item = serde_json::from_value(json!({"type": "agentMessage", "id": "m", "text": "x", "new": 1})).unwrap();
        let written = serde_json::to_value(&item).unwrap();
        assert_eq!(written["phase"], Value::Null);
        assert!(written.as_object().unwrap().contains_key("memoryCitation"));
        let change = FileUpdate { path: "/a".into(), kind: FileUpdateKind::Update { move_path: None }, diff: String::new() };
        assert_eq!(serde_json::to_value(&change).unwrap()["kind"], json!({"type": "update", "move_path": null}));
    }
}
