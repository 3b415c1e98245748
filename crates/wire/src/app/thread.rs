//! Threads: starting, resuming, forking, reading, naming, ending. Lists, commands that outlive their calls, and what is found by looking
//! closely have a file each.

mod care;
mod listing;
mod terminals;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::environment::{CapabilityRootParams, EnvironmentParams, ThreadEnvironment};
use super::settings::{
    ActivePermissionProfile, ApprovalsReviewer, AskForApproval, CollaborationMode, MultiAgentMode, Overrides, SandboxPolicy,
};
use super::turn::{ItemsView, Turn};
use super::unread::ThreadReadState;
use super::{Nothing, SortDirection, ThreadParams};
use crate::{app_method, encode_with_serde};

pub use care::{
    CapabilityPlugin, CapabilityProblem, CapabilityRootState, CapabilitySkill, StepEnvironment, StepSeen, ThreadCapabilities, ThreadDamage,
    ThreadVerify, ThreadVerifyResponse, ThreadWhy, ThreadWhyParams, ThreadWhyResponse,
};
pub use listing::{
    OneOrMany, ThreadItemEntry, ThreadItemsList, ThreadItemsListParams, ThreadItemsListResponse, ThreadList, ThreadListParams,
    ThreadListResponse, ThreadLoadedList, ThreadLoadedListParams, ThreadLoadedListResponse, ThreadSortKey, ThreadTurnsList,
    ThreadTurnsListParams, ThreadTurnsListResponse,
};
pub use terminals::{
    BackgroundTerminal, BackgroundTerminalsClean, BackgroundTerminalsList, BackgroundTerminalsListParams, BackgroundTerminalsListResponse,
    BackgroundTerminalsTerminate, BackgroundTerminalsTerminateParams, BackgroundTerminalsTerminateResponse, ThreadShellCommand,
    ThreadShellCommandParams,
};

app_method!(
    /// Goes on from before a turn: it and all later ones do not count any more. A running turn is stopped. What was done to files
    /// is not undone.
    ThreadRevert = "thread/revert", ThreadRevertParams => ThreadRevertResponse
);

records! {
    ThreadRevertParams {
        thread_id: String,
        /// The first turn that does not count any more.
        before_turn_id: String
    }
    ThreadRevertResponse {
        /// Without turns.
        thread: Thread,
        /// For `thread/turns/list` and `thread/items/list`, newest first.
        turns_backwards_cursor: Option<String>,
        items_backwards_cursor: Option<String>
    }
}

encode_with_serde!(ThreadRevertResponse);

app_method!(
    /// Starts a new thread; the client is subscribed to it.
    ThreadStart = "thread/start", ThreadStartParams => ThreadOpened,
    experimental [
        "environments", "selectedCapabilityRoots", "runtimeWorkspaceRoots", "dynamicTools", "permissions", "historyMode",
        "experimentalRawEvents", "allowProviderModelFallback", "projectId", "multiAgentMode", "daybreakEnabled", "mockExperimentalField",
    ]
);
app_method!(
    /// Loads a stored thread; the client is subscribed to it.
    ThreadResume = "thread/resume", ThreadResumeParams => ThreadOpened,
    experimental [
        "path", "history", "initialTurnsPage", "permissions", "runtimeWorkspaceRoots", "environments", "selectedCapabilityRoots", "after",
    ]
);
app_method!(
    /// A new thread that continues another one.
    ThreadFork = "thread/fork", ThreadForkParams => ThreadOpened,
    experimental [
        "beforeTurnId", "path", "attachToSource", "permissions", "runtimeWorkspaceRoots", "deferGoalContinuation",
        "experimentalPredictionMode", "experimentalDisablePredictionMcp", "environments", "selectedCapabilityRoots",
    ]
);
app_method!(ThreadRead = "thread/read", ThreadReadParams => ThreadReadResponse);
app_method!(ThreadArchive = "thread/archive", ThreadParams => Nothing);
app_method!(ThreadUnarchive = "thread/unarchive", ThreadParams => ThreadResponse);
app_method!(ThreadDelete = "thread/delete", ThreadParams => Nothing);
app_method!(ThreadUnsubscribe = "thread/unsubscribe", ThreadParams => ThreadUnsubscribeResponse);
app_method!(ThreadNameSet = "thread/name/set", ThreadNameSetParams => Nothing);
app_method!(ThreadCompactStart = "thread/compact/start", ThreadParams => Nothing);
app_method!(ThreadInjectItems = "thread/inject_items", ThreadInjectItemsParams => Nothing);
app_method!(
    /// Ours: resumes a thread that another program holds; that one cannot write it any more.
    ThreadTakeover = "thread/takeover", ThreadParams => ThreadOpened, experimental
);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum SandboxName {
    ReadOnly,
    WorkspaceWrite,
    DangerFullAccess,
}

impl SandboxName {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::WorkspaceWrite => "workspace-write",
            Self::DangerFullAccess => "danger-full-access",
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadStartParams {
    /// A relative one is below the server's own.
    pub cwd: Option<String>,
    pub model: Option<String>,
    pub model_provider: Option<String>,
    pub approval_policy: Option<AskForApproval>,
    pub approvals_reviewer: Option<ApprovalsReviewer>,
    pub sandbox: Option<SandboxName>,
    pub permissions: Option<String>,
    /// Keys of `config.toml` for this thread.
    pub config: Option<Value>,
    pub base_instructions: Option<String>,
    pub developer_instructions: Option<String>,
    pub ephemeral: Option<bool>,
    pub service_name: Option<String>,
    pub thread_source: Option<String>,
    /// Left out these are the defaults; `[]` is none.
    pub environments: Option<Vec<EnvironmentParams>>,
    pub selected_capability_roots: Option<Vec<CapabilityRootParams>>,
    pub runtime_workspace_roots: Option<Vec<String>>,
    pub dynamic_tools: Option<Vec<DynamicTool>>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadResumeParams {
    pub thread_id: String,
    /// The thread's journal, instead of its id.
    #[serde(default)]
    pub path: Option<String>,
    /// Items of the Responses API that a new thread begins with, instead of a thread that is stored.
    #[serde(default)]
    pub history: Option<Vec<Value>>,
    #[serde(default)]
    pub cwd: Option<String>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub model_provider: Option<String>,
    #[serde(default)]
    pub approval_policy: Option<AskForApproval>,
    #[serde(default)]
    pub approvals_reviewer: Option<ApprovalsReviewer>,
    #[serde(default)]
    pub sandbox: Option<SandboxName>,
    #[serde(default)]
    pub permissions: Option<String>,
    #[serde(default)]
    pub config: Option<Value>,
    #[serde(default)]
    pub base_instructions: Option<String>,
    #[serde(default)]
    pub developer_instructions: Option<String>,
    #[serde(default)]
    pub exclude_turns: bool,
    #[serde(default)]
    pub initial_turns_page: Option<InitialTurnsPage>,
    #[serde(default)]
    pub runtime_workspace_roots: Option<Vec<String>>,
    /// Ours.
    #[serde(default)]
    pub environments: Option<Vec<EnvironmentParams>>,
    /// Ours.
    #[serde(default)]
    pub selected_capability_roots: Option<Vec<CapabilityRootParams>>,
    /// Ours: everything durable after this ordinal is told again, as it was told when it happened.
    #[serde(default)]
    pub after: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadForkParams {
    pub thread_id: String,
    /// Refused: threads are named by their ids.
    #[serde(default)]
    pub path: Option<String>,
    #[serde(default)]
    pub cwd: Option<String>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub model_provider: Option<String>,
    #[serde(default)]
    pub approval_policy: Option<AskForApproval>,
    #[serde(default)]
    pub approvals_reviewer: Option<ApprovalsReviewer>,
    #[serde(default)]
    pub sandbox: Option<SandboxName>,
    #[serde(default)]
    pub permissions: Option<String>,
    #[serde(default)]
    pub config: Option<Value>,
    #[serde(default)]
    pub base_instructions: Option<String>,
    #[serde(default)]
    pub developer_instructions: Option<String>,
    /// The fork ends with this turn.
    #[serde(default)]
    pub last_turn_id: Option<String>,
    /// The fork ends before this turn.
    #[serde(default)]
    pub before_turn_id: Option<String>,
    #[serde(default)]
    pub ephemeral: bool,
    #[serde(default)]
    pub exclude_turns: bool,
    #[serde(default)]
    pub thread_source: Option<String>,
    #[serde(default)]
    pub runtime_workspace_roots: Option<Vec<String>>,
    /// Ours.
    #[serde(default)]
    pub environments: Option<Vec<EnvironmentParams>>,
    /// Ours.
    #[serde(default)]
    pub selected_capability_roots: Option<Vec<CapabilityRootParams>>,
}

/// The members that these three share.
macro_rules! overrides {
    ($($name:ident),+) => {
        $(impl $name {
            pub fn overrides(&self) -> Overrides {
                Overrides {
                    model: self.model.clone(),
                    model_provider: self.model_provider.clone(),
                    cwd: self.cwd.clone(),
                    approval_policy: self.approval_policy,
                    approvals_reviewer: self.approvals_reviewer,
                    sandbox: self.sandbox,
                    permissions: self.permissions.clone(),
                    config: self.config.clone(),
                    base_instructions: self.base_instructions.clone(),
                    developer_instructions: self.developer_instructions.clone(),
                }
            }
        })+
    };
}
overrides!(ThreadStartParams, ThreadResumeParams, ThreadForkParams);

/// A tool that the client runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum DynamicTool {
    Function {
        name: String,
        description: String,
        input_schema: Value,
        #[serde(default)]
        defer_loading: bool,
    },
    Namespace {
        name: String,
        description: String,
        tools: Vec<DynamicTool>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[derive(Default)]
pub struct InitialTurnsPage {
    pub limit: Option<u32>,
    pub sort_direction: Option<SortDirection>,
    pub items_view: Option<ItemsView>,
}

/// A thread that was started, resumed or forked, and how its turns are run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadOpened {
    pub thread: Thread,
    pub model: String,
    pub model_provider: String,
    pub service_tier: Option<String>,
    pub cwd: String,
    pub instruction_sources: Vec<String>,
    pub approval_policy: AskForApproval,
    pub approvals_reviewer: ApprovalsReviewer,
    pub sandbox: SandboxPolicy,
    pub reasoning_effort: Option<String>,
    pub disabled_plugin_ids: Vec<String>,
    pub runtime_workspace_roots: Vec<String>,
    pub active_permission_profile: Option<ActivePermissionProfile>,
    /// There is one way: agents are made when they are asked for.
    pub multi_agent_mode: MultiAgentMode,
    pub collaboration_mode: Option<CollaborationMode>,
    pub initial_turns_page: Option<ThreadTurnsListResponse>,
    pub turns_backwards_cursor: Option<String>,
    pub items_backwards_cursor: Option<String>,
    /// Ours: the last entry that the answer tells of. What happens after it is told as notifications.
    pub ordinal: u64,
    /// Ours: what the context of its model may hold, in tokens.
    #[serde(default)]
    pub model_context_window: Option<u64>,
}

/// A thread. Times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Thread {
    pub id: String,
    /// Shared by a thread and its sub-agents.
    pub session_id: String,
    pub forked_from_id: Option<String>,
    pub parent_thread_id: Option<String>,
    /// The first words of the user.
    pub preview: String,
    pub ephemeral: bool,
    pub model_provider: String,
    pub model: Option<String>,
    pub reasoning_effort: Option<String>,
    pub created_at: u64,
    pub updated_at: u64,
    pub recency_at: Option<u64>,
    pub status: ThreadStatus,
    pub path: Option<String>,
    pub cwd: String,
    pub cli_version: String,
    /// A word, or `{custom}` or `{subAgent}`.
    pub source: Value,
    pub originator: Option<String>,
    pub thread_source: Option<String>,
    pub agent_nickname: Option<String>,
    pub agent_role: Option<String>,
    pub git_info: Option<Value>,
    pub name: Option<String>,
    pub project_id: Option<String>,
    pub section: Option<Value>,
    pub section_entered_at: Option<u64>,
    pub history_mode: String,
    /// Null when the thread is not loaded.
    pub environments: Option<Vec<ThreadEnvironment>>,
    pub can_accept_direct_input: Option<bool>,
    /// Never used here. So is the next one.
    #[serde(default)]
    pub extra: Option<Value>,
    #[serde(default)]
    pub daybreak_enabled: Option<bool>,
    /// Ours: something of it cannot be read. Absent in a thread that is whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub damaged: bool,
    /// Ours: what that is. A list does not say it; `thread/verify` does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<ThreadDamage>,
    pub turns: Vec<Turn>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ThreadStatus {
    NotLoaded,
    Idle,
    SystemError,
    Active {
        #[serde(default)]
        active_flags: Vec<ActiveFlag>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ActiveFlag {
    WaitingOnApproval,
    WaitingOnUserInput,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadReadParams {
    pub thread_id: String,
    #[serde(default)]
    pub include_turns: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadReadResponse {
    pub thread: Thread,
    pub read_state: Option<ThreadReadState>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadResponse {
    pub thread: Thread,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadUnsubscribeResponse {
    pub status: UnsubscribeStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum UnsubscribeStatus {
    Unsubscribed,
    NotSubscribed,
    NotLoaded,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadNameSetParams {
    pub thread_id: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadInjectItemsParams {
    pub thread_id: String,
    /// Model items, as the Responses API spells them.
    pub items: Vec<Value>,
}

encode_with_serde!(ThreadOpened, ThreadReadResponse, ThreadResponse, ThreadUnsubscribeResponse,);
