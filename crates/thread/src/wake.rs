//! Commands whose end begins a turn.

use outpost_wire::intent::EnvironmentId;
use serde::{Deserialize, Serialize};

use crate::id::CallId;

/// A command outlived its call, and a turn begins when it ends. Said again by the next program that follows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WakeSet {
    /// What the model calls it.
    pub session: u64,
    pub call: CallId,
    pub environment: EnvironmentId,
    /// The process by which it can be found again.
    pub process: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adoption_key: Option<String>,
    /// The executor that has it, if that says who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
}

/// How the keys begin of inputs that the ends of commands say.
pub const WAKE_KEY: &str = "wake/";

/// No turn begins any more when that command ends: one has begun, or the model was told otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WakeEnded {
    pub session: u64,
}
