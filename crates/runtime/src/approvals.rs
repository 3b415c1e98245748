//! Questions to the user, and the answers that hold for longer than one call.

use std::collections::HashSet;

use outpost_environment::{Environment, Workplace};
use outpost_thread::ApprovalAsked;
use outpost_wire::intent::EnvironmentId;
use serde::Deserialize;
use serde_json::{Value, json};

/// A question that stands before a call.
#[derive(Debug, Clone)]
pub struct Question {
    /// `command`, `fileChange`, `permissions`, `userInput`, `dynamicTool`, `mcpTool`, `mcpElicitation`.
    pub kind: &'static str,
    pub environment: Option<EnvironmentId>,
    pub detail: Value,
}

/// What the user allowed for the life of this thread in this program. It is keyed by the executor that answers behind an
/// environment, so that another machine under the same name starts with nothing.
#[derive(Debug, Default)]
pub struct Grants(HashSet<String>);

impl Grants {
    pub fn holds(&self, key: &str) -> bool {
        self.0.contains(key)
    }

    pub fn remember(&mut self, asked: &ApprovalAsked) {
        self.0.extend(key_in(asked));
        self.0.extend(keys_in(asked));
    }
}

/// The parts that a question is about, each of which its answer is remembered for.
fn keys_in(asked: &ApprovalAsked) -> Vec<String> {
    #[derive(Deserialize)]
    struct Keyed {
        keys: Vec<String>,
    }
    asked.detail.as_ref().and_then(|detail| detail.read::<Keyed>().ok()).map(|keyed| keyed.keys).unwrap_or_default()
}

/// What a question is about, where its answer is to be remembered.
pub fn key_in(asked: &ApprovalAsked) -> Option<String> {
    #[derive(Deserialize)]
    struct Keyed {
        key: String,
    }
    Some(asked.detail.as_ref()?.read::<Keyed>().ok()?.key)
}

/// What an answer for the thread is remembered under: which machine, and exactly what was asked.
pub fn key(place: &Workplace<'_>, what: &Value) -> String {
    key_of(Some(&place.attachment.environment_id), Some(place.handle), what)
}

pub fn key_of(id: Option<&EnvironmentId>, handle: Option<&Environment>, what: &Value) -> String {
    let executor = handle.and_then(|handle| handle.identity()?.executor_id);
    // Without an identity nobody can tell machines apart, and the handle is all there is.
    let generation = if executor.is_none() { handle.map(Environment::generation) } else { None };
    json!([id, executor, generation, what]).to_string()
}
