//! A turn: from the input that starts it to the fact that ends it.

use outpost_wire::intent::Selection;
use serde::{Deserialize, Serialize};

use crate::call::{Approval, Call};
use crate::grant::PermissionsGranted;
use crate::id::{InputId, Ordinal, TurnId};
use crate::raw::Raw;
use crate::state::Settings;

/// A turn began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnStarted {
    pub turn: TurnId,
    /// The inputs that it takes up, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<InputId>,
    #[serde(default, skip_serializing_if = "TurnKind::is_regular")]
    pub kind: TurnKind,
    /// For this turn only; afterwards the thread's own selection holds again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_turn: Option<TurnId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_turn: Option<TurnId>,
}

impl TurnStarted {
    /// A regular turn about which nothing else is known.
    pub fn new(turn: TurnId, inputs: Vec<InputId>) -> Self {
        Self { turn, inputs, kind: TurnKind::Regular, selection: None, output_schema: None, root_turn: None, parent_turn: None }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TurnKind {
    #[default]
    Regular,
    /// Only compacts.
    Compact,
    /// Runs a command of the user's; asks no model.
    Shell,
    Review,
}

impl TurnKind {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    fn is_regular(&self) -> bool {
        *self == Self::Regular
    }
}

/// A turn ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnFinished {
    /// None ends a history that was given without turns; a turn id is never invented for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    pub status: TurnStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<InterruptReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Raw>,
    /// Whether and as whom the model is told that the turn was stopped.
    #[serde(default, skip_serializing_if = "Marker::is_off")]
    pub marker: Marker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TurnStatus {
    Completed,
    Failed,
    Interrupted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum InterruptReason {
    User,
    Replaced,
    Shutdown,
    Budget,
    /// In a fork, whose parent may have gone on.
    Forked,
}

/// How the model learns of an interruption.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Marker {
    #[default]
    Off,
    User,
    Developer,
}

impl Marker {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

/// A turn that is running.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    pub id: TurnId,
    pub kind: TurnKind,
    #[serde(rename = "startedSeq")]
    pub started_ordinal: Ordinal,
    pub started_at: u64,
    /// The tokens that the thread had used by then.
    #[serde(default)]
    pub tokens_before: u64,
    /// For this turn only.
    pub selection: Option<Selection>,
    /// For the rest of this turn only, over those of the thread.
    #[serde(default)]
    pub settings: Settings,
    pub output_schema: Option<Raw>,
    pub inputs: Vec<InputId>,
    /// The step that was captured last.
    pub step: Option<u32>,
    /// Where that step was captured.
    #[serde(rename = "stepSeq")]
    pub step_ordinal: Ordinal,
    pub asked: bool,
    /// The answer to this step is whole.
    pub answered: bool,
    /// The last answer wants to be followed by another request.
    pub follow_up: bool,
    /// The step before which the context was compacted.
    pub compacted_before: Option<u32>,
    pub calls: Vec<Call>,
    pub approvals: Vec<Approval>,
    /// What was granted for this turn only.
    #[serde(default)]
    pub grants: Vec<PermissionsGranted>,
    /// The user answered a question by stopping the turn, or it was open where a fork was cut.
    pub stopped: bool,
}

impl Turn {
    pub(crate) fn new(fact: &TurnStarted, ordinal: Ordinal, at: u64, tokens_before: u64) -> Self {
        Self {
            id: fact.turn.clone(),
            kind: fact.kind,
            started_ordinal: ordinal,
            started_at: at,
            tokens_before,
            selection: fact.selection.clone(),
            settings: Settings::default(),
            output_schema: fact.output_schema.clone(),
            inputs: fact.inputs.clone(),
            step: None,
            step_ordinal: ordinal,
            asked: false,
            answered: false,
            follow_up: true,
            compacted_before: None,
            calls: Vec::new(),
            approvals: Vec::new(),
            grants: Vec::new(),
            stopped: false,
        }
    }

    /// The number of the next step.
    pub fn next_step(&self) -> u32 {
        match self.step {
            None => 0,
            Some(step) if self.answered => step.saturating_add(1),
            Some(step) => step,
        }
    }
}
