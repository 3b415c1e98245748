//! What a user granted beyond the sandbox: where, for how long, and what.

use outpost_wire::intent::EnvironmentId;
use serde::{Deserialize, Serialize};

use crate::id::{CallId, TurnId};
use crate::raw::Raw;

/// Work in one environment may do more from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PermissionsGranted {
    pub turn: TurnId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    pub environment: EnvironmentId,
    /// The executor that answered behind the environment. Another one under the same id gets nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// The handle, where the executor does not say who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    pub scope: GrantScope,
    /// Only the loop understands it.
    pub permissions: Raw,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GrantScope {
    /// Until the turn ends.
    Turn,
    /// As long as the thread; not for threads that are forked from it.
    Thread,
}
