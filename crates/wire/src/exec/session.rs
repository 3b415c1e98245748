//! The handshake and the session.

use serde::{Deserialize, Serialize};

use super::environment::EnvironmentInfo;
use crate::{encode_with_serde, method};

/// Asks for chunks of lost output to be told as `{seq, gapBytes}`.
pub const OUTPUT_GAPS: &str = "outputGaps";

/// Asks for `sandbox/loss`.
pub const SANDBOX_LOSSES: &str = "sandboxLosses";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InitializeParams {
    pub client_name: String,
    #[serde(default)]
    pub resume_session_id: Option<String>,
    /// Ours: optional behaviours that the client understands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extensions: Option<Vec<String>>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InitializeResponse {
    pub session_id: String,
    /// Older executors leave it out; then the client asks `environment/info`.
    #[serde(default)]
    pub environment_info: Option<EnvironmentInfo>,
    /// Ours: how long the session outlives its connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Empty {}

encode_with_serde!(InitializeResponse, Empty);

method!(Initialize = "initialize", InitializeParams => InitializeResponse);
method!(
    /// Ours: ends the session and everything in it at once.
    SessionEnd = "session/end", Option<Empty> => Empty
);

/// The notification that completes the handshake; its parameters are ignored.
pub const INITIALIZED: &str = "initialized";
