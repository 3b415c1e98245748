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
    /// Whether to look at what the capability roots of the thread come to now, too.
    #[serde(default)]
    pub capabilities: bool,
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
    /// If it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<ThreadCapabilities>,
}

/// What the capability roots of a thread, and what is installed where it works, come to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadCapabilities {
    pub roots: Vec<CapabilityRootState>,
    pub skills: Vec<CapabilitySkill>,
    pub plugins: Vec<CapabilityPlugin>,
    /// What is wrong with files that were found.
    pub warnings: Vec<CapabilityProblem>,
}

/// Whether a root is in a step, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapabilityRootState {
    pub id: String,
    pub environment_id: String,
    /// As that machine spells it.
    pub path: String,
    pub available: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How many skills it offers.
    pub skills: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapabilitySkill {
    pub name: String,
    pub description: String,
    /// What the model calls it by.
    pub address: String,
    pub environment_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapabilityPlugin {
    pub name: String,
    /// The capability root that it is, or what its machine calls it.
    pub root: String,
    pub environment_id: String,
    /// As that machine spells it.
    pub directory: String,
    pub mcp_servers: Vec<String>,
    pub hooks_not_run: Vec<String>,
    /// It is no capability root of the thread, but installed on a machine that it works on.
    pub installed: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapabilityProblem {
    pub environment_id: String,
    pub path: String,
    pub message: String,
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
