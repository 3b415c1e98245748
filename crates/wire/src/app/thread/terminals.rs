//! Commands of a thread that are not calls of its model, or outlive them.

use serde::{Deserialize, Serialize};

use crate::app::{Nothing, ThreadParams};
use crate::{app_method, encode_with_serde};

app_method!(ThreadShellCommand = "thread/shellCommand", ThreadShellCommandParams => Nothing, experimental ["environmentId"]);
app_method!(
    BackgroundTerminalsList = "thread/backgroundTerminals/list",
    BackgroundTerminalsListParams => BackgroundTerminalsListResponse, experimental
);
app_method!(
    BackgroundTerminalsTerminate = "thread/backgroundTerminals/terminate",
    BackgroundTerminalsTerminateParams => BackgroundTerminalsTerminateResponse, experimental
);
app_method!(BackgroundTerminalsClean = "thread/backgroundTerminals/clean", ThreadParams => Nothing, experimental);

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

encode_with_serde!(BackgroundTerminalsListResponse, BackgroundTerminalsTerminateResponse);
