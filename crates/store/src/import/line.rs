//! One line of a rollout. Everything but the envelope stays JSON: what this program does not know it must not lose.

use outpost_wire::calendar::utc_millis;
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Clone, Deserialize)]
pub(super) struct RolloutLine {
    #[serde(default)]
    pub timestamp: String,
    /// Only lines of paginated rollouts have one.
    #[serde(default)]
    pub ordinal: Option<u64>,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub payload: Value,
}

impl RolloutLine {
    pub(super) fn at(&self) -> Option<u64> {
        utc_millis(&self.timestamp)
    }

    /// The member of that name in the payload, as text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.payload.get(name)?.as_str()
    }

    /// The kind inside of the payload, which events and items have.
    pub(super) fn inner(&self) -> &str {
        self.text("type").unwrap_or_default()
    }
}

/// The prefix of another rollout that a fork stands on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct RolloutBase {
    /// Which file: a rollout id, which differs from the thread id after a revert.
    #[serde(rename = "thread_id")]
    pub rollout: String,
    pub end_ordinal_exclusive: u64,
}

/// What the first line says that is needed to find the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RolloutHead {
    pub thread: String,
    pub base: Option<RolloutBase>,
}

impl RolloutHead {
    pub(super) fn of(line: &RolloutLine) -> Option<Self> {
        if line.kind != "session_meta" {
            return None;
        }
        let base = line.payload.get("history_base").and_then(|base| RolloutBase::deserialize(base).ok());
        Some(Self { thread: line.text("id")?.to_owned(), base })
    }
}
