//! What a server tells and asks while one of its calls runs, and who hears it.

use std::future::Future;
use std::pin::Pin;

use serde_json::Value;

/// A question of a server to the user, in the middle of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Elicitation {
    pub server: String,
    /// As the server wrote it: `mode`, `message`, and `requestedSchema` or `url`.
    pub request: Value,
}

/// What the user said to it.
#[derive(Debug, Clone, PartialEq)]
pub enum ElicitationAnswer {
    Accepted(Option<Value>),
    Declined,
    /// The user declined, or there was no user to ask.
    Cancelled,
}

/// How far a call is.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgressNote {
    pub progress: f64,
    pub total: Option<f64>,
    pub message: Option<String>,
}

pub type PendingElicitation = Pin<Box<dyn Future<Output = ElicitationAnswer> + Send>>;

/// The caller that waits for a call.
pub trait ElicitationListener: Send + Sync {
    /// For whom the call is made. Questions that could be meant for two of them are put to neither.
    fn owner(&self) -> &str;

    fn progress(&self, note: ProgressNote);

    fn ask(&self, question: Elicitation) -> PendingElicitation;
}

/// There is no user to ask.
pub struct NoUser;

impl ElicitationListener for NoUser {
    fn owner(&self) -> &'static str {
        ""
    }

    fn progress(&self, _note: ProgressNote) {}

    fn ask(&self, _question: Elicitation) -> PendingElicitation {
        Box::pin(std::future::ready(ElicitationAnswer::Cancelled))
    }
}
