//! How long a model may think, in the words of this API: a number of tokens for older models, a level for newer ones.

use serde_json::{Value, json};

use crate::model::Prompt;
use crate::model::facts::ThinkingForm;

/// The least budget that the API takes.
const LEAST: u64 = 1024;

/// What a request says about thinking.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Thinking {
    pub thinking: Option<Value>,
    pub effort: Option<String>,
}

/// `may_think` is false where the API refuses thinking with a budget: in the middle of calls that were made without.
pub(super) fn of(prompt: &Prompt, max_tokens: u64, may_think: bool) -> Thinking {
    let effort = prompt.effort.as_deref();
    if prompt.facts.binds_thoughts {
        // Such a model always thinks, and shows what it thought only if asked. A thought is void once anything before it has
        // changed (other tools, other instructions, a summary): void ones are to be left out rather than refused.
        let thinking = json!({
            "type": "adaptive", "display": "summarized", "block_binding": {"prefix_mismatch_behavior": "drop_block"},
        });
        return Thinking { thinking: Some(thinking), effort: effort.map(|effort| prompt.facts.effort(effort).to_owned()) };
    }
    let Some(effort) = effort.filter(|effort| *effort != "none") else { return Thinking::default() };
    match prompt.facts.thinking {
        ThinkingForm::None => Thinking::default(),
        ThinkingForm::Adaptive => {
            Thinking { thinking: Some(json!({"type": "adaptive"})), effort: Some(prompt.facts.effort(effort).to_owned()) }
        }
        ThinkingForm::Budget => {
            let wanted = match effort {
                "minimal" => LEAST,
                "low" => 4096,
                "medium" => 10_000,
                "high" => 20_000,
                _ => 31_000,
            };
            // The budget is a part of the answer.
            let budget = wanted.min(max_tokens.saturating_sub(LEAST));
            let thinking = (may_think && budget >= LEAST).then(|| json!({"type": "enabled", "budget_tokens": budget}));
            Thinking { thinking, effort: None }
        }
    }
}
