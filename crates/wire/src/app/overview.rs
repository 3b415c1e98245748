//! Ours: what a page shows of threads beside each other.

use serde::{Deserialize, Serialize};

use super::environment::ThreadEnvironment;
use super::thread::ThreadStatus;
use crate::{app_method, encode_with_serde};

app_method!(
    /// Ours: how threads stand, loaded or not: where they work, what they have spent, and who holds them. A thread that does not
    /// exist is left out.
    ThreadOverview = "thread/overview", ThreadOverviewParams => ThreadOverviewResponse, experimental
);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadOverviewParams {
    /// At most a hundred.
    pub thread_ids: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadOverviewResponse {
    pub data: Vec<ThreadOverviewEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadOverviewEntry {
    pub thread_id: String,
    pub status: ThreadStatus,
    pub environments: Vec<ThreadEnvironment>,
    /// The turn that is running.
    pub turn_id: Option<String>,
    /// Turns that are over.
    pub turns: u64,
    /// Tokens that models reported, all together.
    pub total_tokens: u64,
    pub holder: Option<ThreadHolder>,
    /// The person who started it, where clients have names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
}

/// A program that may write a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadHolder {
    pub host: String,
    pub pid: u32,
    /// What the server is called, where several share a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Where that server is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// This server.
    pub is_here: bool,
}

encode_with_serde!(ThreadOverviewResponse);
