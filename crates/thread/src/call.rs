//! Tool calls and the questions that may stand before them.

use outpost_wire::intent::EnvironmentId;
use serde::{Deserialize, Serialize};

use crate::detail::{ApprovalDetail, ApprovalKind, CallDetail, CallReport, CommandDetail, Recorded, read_or_default};
use crate::id::{ApprovalId, CallId, TurnId};
use crate::raw::Raw;

/// A call that a model item asks for. Its parameters stand in the item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallRequest {
    pub call: CallId,
    pub tool: String,
    /// Which of the answer's items it is.
    #[serde(default)]
    pub item: usize,
}

/// A call is about to have its effect. Written, and made durable, before the effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallStarted {
    pub turn: TurnId,
    pub call: CallId,
    pub tool: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentId>,
    /// The process by which it can be found again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// Which key its adoption secret was made with. Not the key, and not the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adoption_key: Option<String>,
    /// The executor that is to have it, if that says who it is: another one under the same name is not asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
    /// Running it twice does no harm, so that an unknown fate need not be shown as lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeatable: bool,
    /// What clients are shown of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Recorded<CallDetail>>,
}

impl CallStarted {
    /// The command that it runs, if it runs one.
    pub fn command(&self) -> Option<CommandDetail> {
        match self.detail.as_ref()?.read() {
            CallDetail::CommandExecution(command) => Some(command),
            _ => None,
        }
    }
}

/// A call ended, one way or another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallFinished {
    pub turn: TurnId,
    pub call: CallId,
    pub outcome: CallOutcome,
    /// Model items: what the model is told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<Raw>,
    /// What clients are shown of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Recorded<CallReport>>,
}

impl CallFinished {
    /// How it ended; empty if nothing was recorded.
    pub fn report(&self) -> CallReport {
        read_or_default(self.detail.as_ref())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CallOutcome {
    Completed,
    Failed,
    /// The user, or a rule, said no.
    Declined,
    /// Its fate is unknown. Shown as such, never guessed, never run again.
    Lost,
    /// Stopped with its turn.
    Aborted,
}

/// A question to the user. It waits as long as it must, through restarts, under the same id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalAsked {
    pub turn: TurnId,
    pub approval: ApprovalId,
    /// The call that waits for the answer. None for a question that no call waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<EnvironmentId>,
    pub kind: ApprovalKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Recorded<ApprovalDetail>>,
}

impl ApprovalAsked {
    /// What the user is asked; empty if nothing was recorded.
    pub fn question(&self) -> ApprovalDetail {
        read_or_default(self.detail.as_ref())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalAnswered {
    pub approval: ApprovalId,
    pub decision: Decision,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Raw>,
    /// Who answered, where clients have names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Decision {
    Approved,
    ApprovedForThread,
    Denied,
    /// Denied, and the turn is to be stopped.
    Aborted,
    TimedOut,
}

impl Decision {
    pub const fn permits(self) -> bool {
        matches!(self, Self::Approved | Self::ApprovedForThread)
    }
}

/// A call of the running turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    pub id: CallId,
    pub tool: String,
    pub state: CallState,
    /// The entry whose items hold its parameters, and which item it is.
    #[serde(rename = "askedSeq")]
    pub asked_ordinal: u64,
    pub item: usize,
    pub started: Option<CallStarted>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CallState {
    /// Whether it may run is not decided yet.
    Requested,
    /// A question stands before it.
    Waiting,
    /// The question was answered: it may run, or it must be told that it may not.
    Answered(Decision),
    Started,
    Finished,
}

/// A question that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    pub id: ApprovalId,
    pub call: Option<CallId>,
    #[serde(rename = "askedSeq")]
    pub asked_ordinal: u64,
    pub asked: ApprovalAsked,
}
