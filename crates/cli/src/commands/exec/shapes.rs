//! The lines of `outpost exec --json`, as clients of `codex exec --json` know them.

use outpost_thread::{ThreadId, TokenTotals};
use serde::Serialize;
use serde_json::Value;

/// Counts the changes of these shapes that a reader must know of.
pub(super) const SCHEMA_VERSION: u32 = 1;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type")]
pub(super) enum LineShape {
    #[serde(rename = "thread.started")]
    ThreadStarted { thread_id: ThreadId, schema_version: u32 },
    #[serde(rename = "turn.started")]
    TurnStarted {},
    #[serde(rename = "item.started")]
    ItemStarted { item: ItemShape },
    #[serde(rename = "item.updated")]
    ItemUpdated { item: ItemShape },
    #[serde(rename = "item.completed")]
    ItemCompleted { item: ItemShape },
    #[serde(rename = "turn.completed")]
    TurnCompleted { usage: UsageShape },
    #[serde(rename = "turn.failed")]
    TurnFailed { error: MessageShape },
    /// Goes on after the end of the program.
    #[serde(rename = "command.running")]
    CommandRunning { id: String, session_id: u64, environment: String, command: String },
    /// Stands before a turn that failed.
    #[serde(rename = "error")]
    Error { message: String },
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum ItemShape {
    AgentMessage {
        id: String,
        text: String,
    },
    Reasoning {
        id: String,
        text: String,
    },
    CommandExecution {
        id: String,
        command: String,
        environment_id: Option<String>,
        aggregated_output: String,
        exit_code: Option<i64>,
        status: StatusShape,
    },
    FileChange {
        id: String,
        changes: Vec<FileChangeShape>,
        environment_id: Option<String>,
        status: StatusShape,
    },
    McpToolCall {
        id: String,
        server: String,
        tool: String,
        arguments: Value,
        result: Value,
        error: Option<MessageShape>,
        status: StatusShape,
    },
    WebSearch {
        id: String,
        query: String,
    },
    /// A picture that the model made, and the file that it was saved as.
    ImageGeneration {
        id: String,
        status: String,
        revised_prompt: Option<String>,
        saved_path: Option<String>,
    },
    TodoList {
        id: String,
        items: Vec<Todo>,
    },
    /// Something worth knowing that did not end the turn.
    Error {
        id: String,
        message: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StatusShape {
    InProgress,
    Completed,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct FileChangeShape {
    pub path: String,
    /// `add`, `delete` or `update`.
    pub kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Todo {
    pub text: String,
    pub completed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct MessageShape {
    pub message: String,
}

/// Of the whole thread, not only of this turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct UsageShape {
    input_tokens: u64,
    cached_input_tokens: u64,
    cache_write_input_tokens: u64,
    output_tokens: u64,
    reasoning_output_tokens: u64,
}

impl From<TokenTotals> for UsageShape {
    fn from(tokens: TokenTotals) -> Self {
        Self {
            input_tokens: tokens.input,
            cached_input_tokens: tokens.cached_input,
            cache_write_input_tokens: tokens.cache_write_input,
            output_tokens: tokens.output,
            reasoning_output_tokens: tokens.reasoning_output,
        }
    }
}
