//! Threads: starting, resuming, forking, reading, listing, naming, ending.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::environment::{CapabilityRootParams, EnvironmentParams, ThreadEnvironment};
use super::item::TimedItem;
use super::settings::{
    ActivePermissionProfile, ApprovalsReviewer, AskForApproval, CollaborationMode, MultiAgentMode, Overrides, SandboxPolicy,
};
use super::turn::{ItemsView, Turn};
use super::unread::ThreadReadState;
use super::{Nothing, SortDirection, ThreadParams};
use crate::{app_method, encode_with_serde};

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
app_method!(
    ThreadList = "thread/list", ThreadListParams => ThreadListResponse,
    experimental ["parentThreadId", "ancestorThreadId", "attachedToThreadId", "projectId"]
);
app_method!(ThreadLoadedList = "thread/loaded/list", ThreadLoadedListParams => ThreadLoadedListResponse);
app_method!(ThreadArchive = "thread/archive", ThreadParams => Nothing);
app_method!(ThreadUnarchive = "thread/unarchive", ThreadParams => ThreadResponse);
app_method!(ThreadDelete = "thread/delete", ThreadParams => Nothing);
app_method!(ThreadUnsubscribe = "thread/unsubscribe", ThreadParams => ThreadUnsubscribeResponse);
app_method!(ThreadNameSet = "thread/name/set", ThreadNameSetParams => Nothing);
app_method!(ThreadTurnsList = "thread/turns/list", ThreadTurnsListParams => ThreadTurnsListResponse);
app_method!(ThreadItemsList = "thread/items/list", ThreadItemsListParams => ThreadItemsListResponse);
app_method!(ThreadCompactStart = "thread/compact/start", ThreadParams => Nothing);
app_method!(ThreadShellCommand = "thread/shellCommand", ThreadShellCommandParams => Nothing, experimental ["environmentId"]);
app_method!(ThreadInjectItems = "thread/inject_items", ThreadInjectItemsParams => Nothing);
app_method!(
    BackgroundTerminalsList = "thread/backgroundTerminals/list",
    BackgroundTerminalsListParams => BackgroundTerminalsListResponse, experimental
);
app_method!(
    BackgroundTerminalsTerminate = "thread/backgroundTerminals/terminate",
    BackgroundTerminalsTerminateParams => BackgroundTerminalsTerminateResponse, experimental
);
app_method!(BackgroundTerminalsClean = "thread/backgroundTerminals/clean", ThreadParams => Nothing, experimental);
app_method!(
    /// Ours: looks at every byte of a thread.
    ThreadVerify = "thread/verify", ThreadParams => ThreadVerifyResponse, experimental
);
app_method!(
    /// Ours: resumes a thread that another program holds; that one cannot write it any more.
    ThreadTakeover = "thread/takeover", ThreadParams => ThreadOpened, experimental
);
app_method!(
    /// Ours: what a thread's steps saw, and why.
    ThreadWhy = "thread/why", ThreadWhyParams => ThreadWhyResponse, experimental
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

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadListParams {
    pub cursor: Option<String>,
    pub limit: Option<u32>,
    pub sort_key: Option<ThreadSortKey>,
    pub sort_direction: Option<SortDirection>,
    pub model_providers: Option<Vec<String>>,
    pub source_kinds: Option<Vec<String>>,
    pub archived: Option<bool>,
    pub cwd: Option<OneOrMany>,
    pub search_term: Option<String>,
    pub originators: Option<Vec<String>>,
    pub excluded_thread_ids: Option<Vec<String>>,
    pub section_id: Option<String>,
    pub parent_thread_id: Option<String>,
    pub ancestor_thread_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl From<OneOrMany> for Vec<String> {
    fn from(given: OneOrMany) -> Self {
        match given {
            OneOrMany::One(one) => vec![one],
            OneOrMany::Many(many) => many,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ThreadSortKey {
    CreatedAt,
    UpdatedAt,
    RecencyAt,
    /// There are no sections here; by creation.
    SectionPosition,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadListResponse {
    pub data: Vec<Thread>,
    pub next_cursor: Option<String>,
    pub backwards_cursor: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadLoadedListParams {
    pub cursor: Option<String>,
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadLoadedListResponse {
    pub data: Vec<String>,
    pub next_cursor: Option<String>,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadTurnsListParams {
    pub thread_id: String,
    #[serde(default)]
    pub cursor: Option<String>,
    #[serde(default)]
    pub limit: Option<u32>,
    #[serde(default)]
    pub sort_direction: Option<SortDirection>,
    #[serde(default)]
    pub items_view: Option<ItemsView>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadTurnsListResponse {
    pub data: Vec<Turn>,
    pub next_cursor: Option<String>,
    pub backwards_cursor: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadItemsListParams {
    pub thread_id: String,
    #[serde(default)]
    pub turn_id: Option<String>,
    /// A cursor that a page came with.
    #[serde(default)]
    pub cursor: Option<Value>,
    #[serde(default)]
    pub limit: Option<u32>,
    #[serde(default)]
    pub sort_direction: Option<SortDirection>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadItemsListResponse {
    pub data: Vec<ThreadItemEntry>,
    pub next_cursor: Option<String>,
    pub backwards_cursor: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadItemEntry {
    pub turn_id: String,
    pub item: TimedItem,
    pub started_at_ms: Option<u64>,
    pub completed_at_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadShellCommandParams {
    pub thread_id: String,
    pub command: String,
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Ours: where; the primary one if it is left out.
    #[serde(default)]
    pub environment_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadInjectItemsParams {
    pub thread_id: String,
    /// Model items, as the Responses API spells them.
    pub items: Vec<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackgroundTerminalsListParams {
    pub thread_id: String,
    #[serde(default)]
    pub cursor: Option<String>,
    #[serde(default)]
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackgroundTerminalsListResponse {
    pub data: Vec<BackgroundTerminal>,
    pub next_cursor: Option<String>,
}

/// A command that outlived its call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackgroundTerminal {
    pub item_id: String,
    pub process_id: String,
    pub command: String,
    pub cwd: String,
    pub environment_id: Option<String>,
    pub os_pid: Option<u32>,
    pub cpu_percent: Option<f64>,
    pub rss_kb: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackgroundTerminalsTerminateParams {
    pub thread_id: String,
    pub process_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackgroundTerminalsTerminateResponse {
    pub terminated: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadVerifyResponse {
    pub whole: bool,
    pub entries: u64,
    pub ordinal: u64,
    pub bytes: u64,
    pub damage: Vec<ThreadDamage>,
    /// Entries that an earlier repair gave up.
    pub given_up: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadDamage {
    /// Whose journal: a fork's past lies in the journals of others.
    pub thread_id: String,
    pub from: u64,
    pub to: u64,
    pub what: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadWhyParams {
    pub thread_id: String,
    /// The last one if it is left out.
    #[serde(default)]
    pub turn_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadWhyResponse {
    pub turn_id: Option<String>,
    /// The selection that came with the turn, if one did.
    pub turn_environments: Option<Vec<ThreadEnvironment>>,
    /// The thread's own selection.
    pub environments: Option<Vec<ThreadEnvironment>>,
    pub steps: Vec<StepSeen>,
}

/// What one step froze.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepSeen {
    pub step: u32,
    pub ordinal: u64,
    pub environments: Vec<StepEnvironment>,
    pub detail: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepEnvironment {
    pub environment_id: String,
    pub state: String,
    pub generation: Option<u64>,
    pub executor_id: Option<String>,
}

encode_with_serde!(
    ThreadOpened,
    ThreadReadResponse,
    ThreadResponse,
    ThreadListResponse,
    ThreadLoadedListResponse,
    ThreadUnsubscribeResponse,
    ThreadTurnsListResponse,
    ThreadItemsListResponse,
    BackgroundTerminalsListResponse,
    BackgroundTerminalsTerminateResponse,
    ThreadVerifyResponse,
    ThreadWhyResponse,
);
