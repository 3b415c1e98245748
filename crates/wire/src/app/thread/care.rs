//! Ours: whether a thread is whole, and what its turns saw.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::app::ThreadParams;
use crate::app::environment::ThreadEnvironment;
use crate::{app_method, encode_with_serde};

app_method!(
    /// Ours: looks at every byte of a thread.
    ThreadVerify = "thread/verify", ThreadParams => ThreadVerifyResponse, experimental
);
app_method!(
    /// Ours: what a thread's steps saw, and why.
    ThreadWhy = "thread/why", ThreadWhyParams => ThreadWhyResponse, experimental
);

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

encode_with_serde!(ThreadVerifyResponse, ThreadWhyResponse);
