//! Ours: moving a process from the session of one client into that of another.
//!
//! A process that was started with an [`AdoptionClaim`] belongs to the client that shows the same secret under the highest epoch. The
//! epoch is the number of the lease under which the client works, so a client that lost its lease cannot take a process back.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{encode_with_serde, method, notification};

/// Asks for `process/moved`.
pub const PROCESS_MOVES: &str = "processMoves";

/// So long is a secret at least: what is shorter could be guessed.
pub const SHORTEST_SECRET: usize = 32;

/// What a client shows to have a process. It stands in no journal and in no answer, and is not printed.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AdoptionSecret(pub String);

impl fmt::Debug for AdoptionSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdoptionSecret(…)")
    }
}

/// The number of the lease under which a client owns a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OwnerEpoch(pub u64);

impl OwnerEpoch {
    /// Whether a process that is owned under this epoch goes to a client that claims it under another one.
    pub fn yields_to(self, claimant: Self) -> bool {
        claimant > self
    }

    /// Whether a start under this epoch comes too late, because a client claimed the process under another one before it had begun.
    pub fn is_superseded_by(self, claimant: Self) -> bool {
        claimant > self
    }
}

/// Who may have a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AdoptionClaim {
    pub secret: AdoptionSecret,
    pub epoch: OwnerEpoch,
}

/// A process that was started with a claim, by a client that knows its secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AdoptableProcess {
    pub process_id: String,
    pub secret: AdoptionSecret,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AdoptParams {
    pub process_id: String,
    pub secret: AdoptionSecret,
    pub epoch: OwnerEpoch,
}

/// Where its output stands; all that is kept of it can be read from the session of the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AdoptResponse {
    pub next_seq: u64,
    pub exited: bool,
    pub closed: bool,
}

/// To the client that had the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MovedParams {
    pub process_id: String,
}

encode_with_serde!(AdoptResponse, MovedParams);

method!(
    /// Ours: moves a process with its output into the session of the caller.
    Adopt = "process/adopt", AdoptParams => AdoptResponse
);
notification!(Moved = "process/moved", MovedParams);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_newer_lease_takes_a_process() {
        assert!(OwnerEpoch(1).yields_to(OwnerEpoch(2)));
        assert!(!OwnerEpoch(2).yields_to(OwnerEpoch(2)) && !OwnerEpoch(2).yields_to(OwnerEpoch(1)));
        assert!(!OwnerEpoch(2).is_superseded_by(OwnerEpoch(2)) && OwnerEpoch(2).is_superseded_by(OwnerEpoch(3)));
    }

    #[test]
    fn a_secret_is_not_printed() {
        let claim = AdoptionClaim { secret: AdoptionSecret("abcdef".into()), epoch: OwnerEpoch(3) };
        assert!(!format!("{claim:?}").contains("abcdef"), "{claim:?}");
        assert_eq!(serde_json::to_string(&claim).unwrap(), r#"{"secret":"abcdef","epoch":3}"#);
    }
}
