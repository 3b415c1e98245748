//! The one error shape of the network.

use std::fmt;

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
/// Ours: `initialize` names another executor than the one that it reached.
pub const OTHER_EXECUTOR: i64 = -32011;
/// Ours: a process was claimed under a newer lease than that of the caller.
pub const ADOPTED_SINCE: i64 = -32012;
/// Ours: `process/adopt` names a process that is not there, or not under that secret.
pub const NOT_ADOPTABLE: i64 = -32013;

/// What an executor says before the reason for which it cannot hold a sandbox.
pub const UNENFORCEABLE: &str = "sandbox intent cannot be enforced on this executor: ";
/// What it says of a process that it has not started yet.
const STARTING: &str = "is starting";

/// What executors tell only in words, ours and foreign ones alike. No other file knows these words.
impl Fault {
    /// The number of the error with which the system of the machine refused.
    pub fn os_error(&self) -> Option<i32> {
        os_error(&self.message)
    }

    /// Why a sandbox cannot be held there, if that is what the fault says.
    pub fn unenforceable(&self) -> Option<&str> {
        self.message.strip_prefix(UNENFORCEABLE)
    }

    /// The process is being started; it can be asked for again.
    pub fn is_starting(&self) -> bool {
        self.message.ends_with(STARTING)
    }
}

/// The number of the system's error in a text of an executor, which some answers hold beside what they found instead of a fault.
pub fn os_error(text: &str) -> Option<i32> {
    let (_, rest) = text.split_once("(os error ")?;
    rest.split_once(')')?.0.parse().ok()
}

/// Whether such a text says that a file or a directory is not there.
pub fn is_missing(text: &str) -> bool {
    const NO_ENTRY: i32 = 2;
    const NO_DIRECTORY: i32 = 20;
    matches!(os_error(text), Some(NO_ENTRY | NO_DIRECTORY))
}

impl Fault {
    /// Takes a text, or an error whose text is told.
    pub fn new(code: i64, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string(), data: None }
    }
    pub fn invalid_request(message: impl fmt::Display) -> Self {
        Self::new(INVALID_REQUEST, message)
    }
    pub fn invalid_params(message: impl fmt::Display) -> Self {
        Self::new(INVALID_PARAMS, message)
    }
    pub fn internal(message: impl fmt::Display) -> Self {
        Self::new(INTERNAL, message)
    }
    pub fn not_found(message: impl fmt::Display) -> Self {
        Self::new(NOT_FOUND, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_executors_say_only_in_words_is_understood() {
        let says = |message: &str| Fault::internal(message);
        assert_eq!(says("cannot open x: Permission denied (os error 13)").os_error(), Some(13));
        assert_eq!(says("Permission denied (os error 13): /x: not below a root").os_error(), Some(13));
        assert_eq!(says("nothing of the system").os_error(), None);
        assert!(is_missing("No such file or directory (os error 2)") && is_missing("Not a directory (os error 20)"));
        assert!(!is_missing("Too many levels of symbolic links (os error 40)") && !is_missing("it is missing"));
        assert_eq!(says(&format!("{UNENFORCEABLE}no namespaces")).unenforceable(), Some("no namespaces"));
        assert_eq!(says("no namespaces").unenforceable(), None);
        assert!(says("process `a` is starting").is_starting() && !says("it is starting soon").is_starting());
    }
}
