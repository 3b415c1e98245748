//! Environments: adding, asking, watching, and naming them in a selection.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::item::WorkStatus;
use super::{NoParams, Nothing};
use crate::exec::environment::SandboxRow;
use crate::{app_method, encode_with_serde};

/// One environment as a client selects it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentParams {
    pub environment_id: String,
    /// Absolute, as that machine spells it.
    pub cwd: String,
    /// Left out it is the working directory; `[]` is nowhere.
    #[serde(default)]
    pub runtime_workspace_roots: Option<Vec<String>>,
}

/// One environment of a thread's selection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadEnvironment {
    pub environment_id: String,
    pub cwd: String,
    pub runtime_workspace_roots: Vec<String>,
}

/// A folder in an environment that offers skills, plugins or MCP servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapabilityRootParams {
    pub id: String,
    pub location: CapabilityRootLocation,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum CapabilityRootLocation {
    Environment { environment_id: String, path: String },
}

app_method!(
    /// Adds an environment, or gives one that there is another address. Answered at once; connecting goes on behind it.
    EnvironmentAdd = "environment/add", EnvironmentAddParams => Nothing, experimental
);
app_method!(
    /// Connects if need be and tells what is there.
    EnvironmentInfo = "environment/info", EnvironmentIdParams => EnvironmentInfoResponse, experimental
);
app_method!(
    /// How an environment stands. Never connects.
    EnvironmentStatus = "environment/status", EnvironmentIdParams => EnvironmentStatusResponse, experimental
);
app_method!(
    /// Ours: all environments.
    EnvironmentList = "environment/list", NoParams => EnvironmentListResponse, experimental
);
app_method!(
    /// Ours: forgets an environment. Threads that name it find it missing.
    EnvironmentRemove = "environment/remove", EnvironmentIdParams => Nothing, experimental
);
app_method!(
    /// Ours: how every environment stands, as `environment/changed`, and every change from then on.
    EnvironmentWatch = "environment/watch", NoParams => EnvironmentWatchResponse, experimental
);

app_method!(
    /// Ours: what threads do in an environment: commands that run there now, and the last ones that ran. Never connects.
    EnvironmentActivity = "environment/activity", EnvironmentActivityParams => EnvironmentActivityResponse, experimental
);

records! {
    EnvironmentActivityParams { environment_id: String; limit: Option<u32> }
    EnvironmentActivityResponse {
        /// Commands that outlived their calls, of threads that are loaded here.
        processes: Vec<EnvironmentProcess>,
        /// Of the threads that were used last, the newest command first.
        commands: Vec<EnvironmentCommand>
    }
    EnvironmentProcess { thread_id: String, process_id: String, command: String, cwd: String }
    EnvironmentCommand {
        thread_id: String,
        item_id: String,
        command: String,
        cwd: String,
        status: WorkStatus,
        exit_code: Option<i32>,
        /// In milliseconds since 1970.
        started_at_ms: Option<u64>,
        duration_ms: Option<u64>
    }
}

encode_with_serde!(EnvironmentActivityResponse);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentAddParams {
    pub environment_id: String,
    pub exec_server_url: String,
    #[serde(default)]
    pub connect_timeout_ms: Option<u64>,
    #[serde(default)]
    pub auth_bearer_token: Option<String>,
    #[serde(default)]
    pub websocket_request_id: Option<String>,
    #[serde(default)]
    pub skills: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentIdParams {
    pub environment_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentInfoResponse {
    pub shell: EnvironmentShell,
    /// A `file://` URI.
    pub cwd: Option<String>,
    /// Ours: which install answers, and which start of it.
    pub executor_id: Option<String>,
    pub instance_id: Option<String>,
    pub platform_os: Option<String>,
    pub executor_version: Option<String>,
    /// Ours: what a sandbox holds there, and by what.
    pub sandbox: Vec<SandboxRow>,
    /// Ours: what a session may use, in words.
    pub limits: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentShell {
    pub name: String,
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentStatusResponse {
    pub status: EnvironmentStatusKind,
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum EnvironmentStatusKind {
    Ready,
    Pending,
    Disconnected,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentListResponse {
    pub data: Vec<EnvironmentEntry>,
}

/// An environment and how it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentEntry {
    pub environment_id: String,
    /// `idle`, `connecting`, `ready`, `recovering`, `needs login`, `failed`, `missing` or `disabled`.
    pub state: String,
    pub reason: Option<String>,
    pub generation: u64,
    pub address: String,
    /// The primary of threads that select nothing.
    pub is_default: bool,
    pub is_configured: bool,
    pub executor_id: Option<String>,
    pub instance_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EnvironmentWatchResponse {
    pub data: Vec<EnvironmentEntry>,
}

encode_with_serde!(EnvironmentInfoResponse, EnvironmentStatusResponse, EnvironmentListResponse, EnvironmentWatchResponse);
