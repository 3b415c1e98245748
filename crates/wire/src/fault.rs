//! The one error shape of the network.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An error as it is told to the other side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error("{message} (code {code})")]
pub struct Fault {
    pub code: i64,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// The request does not fit the state: protocol order, unknown ids, refused paths.
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters do not decode, or contradict themselves.
pub const INVALID_PARAMS: i64 = -32602;
/// The machine said no: spawn, file and network failures.
pub const INTERNAL: i64 = -32603;
/// A file, or a handle, that is not there.
pub const NOT_FOUND: i64 = -32004;
/// Foreign executors refuse to resume a session that another connection still holds.
pub const SESSION_ATTACHED: i64 = -32010;

impl Fault {
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(INVALID_REQUEST, message)
    }
    pub fn invalid_params(message: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMS, message)
    }
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(INTERNAL, message)
    }
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(NOT_FOUND, message)
    }
}
