//! What this host can hold, and by what: asked once, told by the executor and by the self-check.

use serde::Serialize;

/// One promise on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// What is promised, in a few words.
    pub promise: &'static str,
    pub holds: bool,
    /// What holds it, or would.
    pub mechanism: String,
    /// Why it does not hold, or with which restriction it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What this host can hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    pub rows: Vec<Row>,
}

impl Verdict {
    /// Whether everything that the default policy (workspace-write) needs is there.
    pub fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.holds)
    }
}

/// Tries what can be tried without leaving anything behind.
pub fn probe() -> Verdict {
    Verdict::default()
}
