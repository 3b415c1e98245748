//! The handshake and the session.

use serde::{Deserialize, Serialize};

use super::calls::{CarriedAnswer, CarriedCall};
use super::environment::EnvironmentInfo;
use crate::base64::Base64;
use crate::path::PathUri;
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
    /// Ours: in whose place the commands of the session run. Only the keeper of `local` listens to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<CallerContext>,
    /// Ours: the only executor that may take this message. Any other one refuses it, with all that it carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_executor_id: Option<String>,
    /// Ours: the id of the session that is to begin, made up by the client: after a lost answer it can ask for that session, and learns
    /// whether it began. Refused if there is one of that id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_session_id: Option<String>,
    /// Ours: made in their order as soon as there is a session, as if they had come after `initialized`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<Vec<CarriedCall>>,
}

/// What the commands of a session inherit where they run in the place of the program that asks for them: an executor that was
/// started by another program of the same user has other variables and another directory.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallerContext {
    /// `NAME=VALUE`, each with a zero byte after it: neither is always text.
    pub variables: Base64,
    pub cwd: PathUri,
    /// What the caller has put over the configuration of its home.
    #[serde(default)]
    pub settings: Vec<String>,
    /// How many files its commands may have open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
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
    /// Ours: to the calls, in their order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<Vec<CarriedAnswer>>,
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
