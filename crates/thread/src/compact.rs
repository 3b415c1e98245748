//! Compaction: the model's context starts anew, the history stays where it is.

use serde::{Deserialize, Serialize};

use crate::id::{Ordinal, TurnId};
use crate::raw::Raw;

/// The context starts anew here. Nothing is copied: what is kept is named by its ordinal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContextCompacted {
    /// None outside of a turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    pub reason: CompactReason,
    /// The new beginning of the context, in order.
    pub kept: Vec<Kept>,
    /// How full the new context is.
    #[serde(default)]
    pub tokens: u64,
    /// How often the context began anew, this time included.
    #[serde(default, rename = "window")]
    pub context_generation: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kept {
    /// The model items of an older entry.
    Entry(Ordinal),
    /// A model item: the summary.
    Item(Raw),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CompactReason {
    /// A client asked for it.
    Asked,
    /// The window was nearly full.
    Full,
    /// The model changed to one that cannot read this context.
    ModelChanged,
    /// The thread goes on from an earlier place.
    Reverted,
}

/// A turn and everything after it do not count any more. They stay where they are; what the model sees instead follows as a
/// [`ContextCompacted`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnsReverted {
    /// The first turn that does not count.
    pub before: TurnId,
    /// The last entry that does.
    pub through: Ordinal,
}
