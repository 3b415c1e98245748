//! What comes in: messages of the user, mail of other agents, items that a client put into the history.

use serde::{Deserialize, Serialize};

use crate::id::{InputId, TurnId};
use crate::raw::Raw;
use crate::wake::WAKE_KEY;

/// A message came in. It waits until a turn takes it up (`turnStarted.inputs`), or until the running turn's next step does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InputReceived {
    pub input: InputId,
    /// The running turn that it steers. Without it the input waits for a turn of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    #[serde(default, skip_serializing_if = "InputOrigin::is_user")]
    pub origin: InputOrigin,
    /// The client's key: the same key again is the same input, not a second one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_key: Option<String>,
    /// Who said it, where clients have names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// As the client sent it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Raw>,
    /// As the model sees it, where that is not simply the texts of `content`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<Raw>,
}

/// What waits for a turn of its own is this from now on, in this order. What waited and is not named was taken back: no turn takes it up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueChanged {
    pub queue: Vec<InputId>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum InputOrigin {
    /// A person, or the program that speaks for one.
    #[default]
    User,
    /// Another agent; counts as the start of a turn for forks of agents, not as a user message.
    Agent,
    /// Items that were given as history, without any turn: imported, injected or inherited ones. They start nothing.
    History,
    /// A shell command that the user typed; runs, asks no model.
    Shell,
}

impl InputOrigin {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    fn is_user(&self) -> bool {
        *self == Self::User
    }
}

/// An input that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedInput {
    pub id: InputId,
    /// Where the journal has it.
    #[serde(rename = "seq")]
    pub ordinal: u64,
    pub client_key: Option<String>,
    pub origin: InputOrigin,
}

impl QueuedInput {
    /// Whether the end of a command says it.
    pub fn is_wake(&self) -> bool {
        self.origin == InputOrigin::Agent && self.client_key.as_deref().is_some_and(|key| key.starts_with(WAKE_KEY))
    }
}
