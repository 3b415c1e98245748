//! What a client hears without having asked.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::commands::{CommandExecOutputDelta, ProcessExited, ProcessOutputDelta};
use super::files::FsChanged;
use super::goals::{ThreadGoalCleared, ThreadGoalUpdated};
use super::item::{FileUpdate, TimedItem};
use super::journal::ThreadEntry;
use super::queue::ThreadQueueChanged;
use super::search::{FuzzySessionCompleted, FuzzySessionUpdated};
use super::settings::ThreadSettings;
use super::skills::SkillsChanged;
use super::thread::{Thread, ThreadStatus};
use super::turn::{Turn, TurnError};
use super::unread::ThreadReadStateChanged;
use crate::encode::json;

/// Declares the notifications: the enum, their names and how they are written.
macro_rules! notices {
    ($($(#[$doc:meta])* $wire:literal => $name:ident($shape:ty)),+ $(,)?) => {
        /// A notification.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Notice {
            $($(#[$doc])* $name(Box<$shape>),)+
        }

        impl Notice {
            /// All names, for those who want to know what there is.
            pub const METHODS: &'static [&'static str] = &[$($wire),+];

            pub fn method(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $wire,)+
                }
            }

            /// The shape of each.
            #[cfg(feature = "schema")]
            pub fn schemas(generator: &mut schemars::SchemaGenerator) -> Vec<(&'static str, schemars::Schema)> {
                vec![$(($wire, generator.subschema_for::<$shape>())),+]
            }

            fn params(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$name(params) => json(params, out),)+
                }
            }
        }

        $(impl From<$shape> for Notice {
            fn from(params: $shape) -> Self {
                Self::$name(Box::new(params))
            }
        })+
    };
}

notices! {
    "thread/started" => ThreadStarted(ThreadStarted),
    "thread/status/changed" => ThreadStatusChanged(ThreadStatusChanged),
    /// Turns do not count any more; the history is to be read again.
    "thread/reverted" => ThreadReverted(ThreadReverted),
    "thread/closed" => ThreadClosed(ThreadClosed),
    "thread/archived" => ThreadArchived(ThreadArchived),
    "thread/unarchived" => ThreadUnarchived(ThreadUnarchived),
    "thread/deleted" => ThreadDeleted(ThreadDeleted),
    "thread/name/updated" => ThreadNameUpdated(ThreadNameUpdated),
    "thread/settings/updated" => ThreadSettingsUpdated(ThreadSettingsUpdated),
    "thread/tokenUsage/updated" => TokenUsageUpdated(TokenUsageUpdated),
    "thread/compacted" => ThreadCompacted(ThreadCompacted),
    "thread/environment/connected" => EnvironmentConnected(EnvironmentConnected),
    "thread/environment/disconnected" => EnvironmentDisconnected(EnvironmentDisconnected),
    "turn/started" => TurnStarted(TurnStarted),
    "turn/completed" => TurnCompleted(TurnCompleted),
    "turn/plan/updated" => TurnPlanUpdated(TurnPlanUpdated),
    "turn/diff/updated" => TurnDiffUpdated(TurnDiffUpdated),
    "item/started" => ItemStarted(ItemStarted),
    "item/completed" => ItemCompleted(ItemCompleted),
    "item/agentMessage/delta" => AgentMessageDelta(AgentMessageDelta),
    "item/reasoning/summaryPartAdded" => ReasoningPartAdded(ReasoningPartAdded),
    "item/reasoning/textDelta" => ReasoningTextDelta(ReasoningTextDelta),
    "item/reasoning/summaryTextDelta" => ReasoningDelta(ReasoningDelta),
    "item/commandExecution/outputDelta" => CommandOutputDelta(CommandOutputDelta),
    "item/commandExecution/terminalInteraction" => TerminalInteraction(TerminalInteraction),
    "item/fileChange/patchUpdated" => FileChangePatchUpdated(FileChangePatchUpdated),
    "item/mcpToolCall/progress" => McpToolCallProgress(McpToolCallProgress),
    "mcpServer/startupStatus/updated" => McpServerStatusUpdated(McpServerStatusUpdated),
    "serverRequest/resolved" => ServerRequestResolved(ServerRequestResolved),
    "thread/goal/updated" => ThreadGoalUpdated(ThreadGoalUpdated),
    "thread/goal/cleared" => ThreadGoalCleared(ThreadGoalCleared),
    "thread/queue/changed" => ThreadQueueChanged(ThreadQueueChanged),
    "fuzzyFileSearch/sessionUpdated" => FuzzySessionUpdated(FuzzySessionUpdated),
    "fuzzyFileSearch/sessionCompleted" => FuzzySessionCompleted(FuzzySessionCompleted),
    "thread/readState/changed" => ThreadReadStateChanged(ThreadReadStateChanged),
    "skills/changed" => SkillsChanged(SkillsChanged),
    "fs/changed" => FsChanged(FsChanged),
    "command/exec/outputDelta" => CommandExecOutputDelta(CommandExecOutputDelta),
    "process/outputDelta" => ProcessOutputDelta(ProcessOutputDelta),
    "process/exited" => ProcessExited(ProcessExited),
    "configWarning" => ConfigWarning(ConfigWarning),
    "error" => Error(ErrorNotice),
    "warning" => Warning(Warning),
    /// Ours, for clients that ask for it.
    "thread/entry" => ThreadEntry(ThreadEntry),
    /// Ours.
    "environment/changed" => EnvironmentChanged(EnvironmentChanged),
}

impl Notice {
    /// The frame: `{"method", "params", "emittedAtMs"}`.
    pub fn frame(&self, at_ms: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(b"{\"method\":");
        json(self.method(), &mut out);
        out.extend_from_slice(b",\"params\":");
        self.params(&mut out);
        out.extend_from_slice(b",\"emittedAtMs\":");
        json(&at_ms, &mut out);
        out.push(b'}');
        out
    }
}

/// Shapes of notifications, which all look alike.
macro_rules! shapes {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field:meta])* $member:ident: $shape:ty),+ $(,)? })+) => {
        $($(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase")]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name {
            $($(#[$field])* pub $member: $shape,)+
        })+
    };
}

shapes! {
    ThreadStarted { thread: Thread }
    ThreadStatusChanged { thread_id: String, status: ThreadStatus }
    /// It is not loaded any more.
    ThreadClosed { thread_id: String }
    ThreadReverted { thread_id: String }
    ThreadArchived { thread_id: String }
    ThreadUnarchived { thread_id: String }
    ThreadDeleted { thread_id: String }
    ThreadNameUpdated { thread_id: String, thread_name: Option<String> }
    ThreadSettingsUpdated { thread_id: String, thread_settings: ThreadSettings, ordinal: Option<u64> }
    TokenUsageUpdated { thread_id: String, turn_id: String, token_usage: TokenUsage, ordinal: Option<u64> }
    TokenUsage { total: TokenCounts, last: TokenCounts, model_context_window: Option<u64> }
    ThreadCompacted { thread_id: String, turn_id: String }
    EnvironmentConnected { thread_id: String, environment_id: String }
    EnvironmentDisconnected { thread_id: String, environment_id: String }
    TurnStarted { thread_id: String, turn: Turn, ordinal: Option<u64> }
    /// The turn is over, and that cannot be lost any more. Its items are only the last message.
    TurnCompleted { thread_id: String, turn: Turn, ordinal: Option<u64> }
    TurnPlanUpdated { thread_id: String, turn_id: String, explanation: Option<String>, plan: Vec<PlanStep> }
    /// What the patches of the turn have changed since its beginning, as one unified diff.
    TurnDiffUpdated { thread_id: String, turn_id: String, diff: String, ordinal: Option<u64> }
    /// A change of files in its true places: before it is made the files were not read.
    FileChangePatchUpdated { thread_id: String, turn_id: String, item_id: String, changes: Vec<FileUpdate> }
    PlanStep { step: String, status: PlanStatus }
    ItemStarted { thread_id: String, turn_id: String, item: TimedItem, started_at_ms: u64, ordinal: Option<u64> }
    ItemCompleted { thread_id: String, turn_id: String, item: TimedItem, completed_at_ms: u64, ordinal: Option<u64> }
    AgentMessageDelta { thread_id: String, turn_id: String, item_id: String, delta: String }
    ReasoningPartAdded { thread_id: String, turn_id: String, item_id: String, summary_index: u32 }
    ReasoningTextDelta { thread_id: String, turn_id: String, item_id: String, delta: String, content_index: u32 }
    ReasoningDelta { thread_id: String, turn_id: String, item_id: String, delta: String, summary_index: u32 }
    CommandOutputDelta { thread_id: String, turn_id: String, item_id: String, delta: String }
    TerminalInteraction { thread_id: String, turn_id: String, item_id: String, process_id: String, stdin: String }
    McpToolCallProgress { thread_id: String, turn_id: String, item_id: String, message: String }
    McpServerStatusUpdated { name: String, status: String, error: Option<String>, failure_reason: Option<Value>, thread_id: Option<String> }
    /// A question was answered by any client, or was withdrawn.
    ServerRequestResolved { thread_id: String, request_id: Value }
    /// Something in a configuration has no effect, or another one than was meant.
    ConfigWarning { summary: String, details: Option<String> }
    ErrorNotice { thread_id: String, turn_id: String, error: TurnError, will_retry: bool }
    Warning { thread_id: Option<String>, message: String }
    EnvironmentChanged {
        sequence: u64,
        environment_id: String,
        state: String,
        reason: Option<String>,
        generation: u64,
        /// `replayed`, `added`, `replaced`, `changed`, `removed` or `otherExecutor`.
        event: String,
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenCounts {
    pub total_tokens: u64,
    pub input_tokens: u64,
    pub cached_input_tokens: u64,
    pub cache_write_input_tokens: u64,
    pub output_tokens: u64,
    pub reasoning_output_tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PlanStatus {
    Pending,
    InProgress,
    Completed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_stands_beside_the_parameters() {
        let notice = Notice::from(ThreadClosed { thread_id: "t".into() });
        let text = String::from_utf8(notice.frame(7)).unwrap();
        assert_eq!(text, r#"{"method":"thread/closed","params":{"threadId":"t"},"emittedAtMs":7}"#);
    }
}
