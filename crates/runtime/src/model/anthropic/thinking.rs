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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ModelFacts, ModelHistory};

    fn asked(model: &str, effort: &str) -> Prompt {
        let facts = ModelFacts::of(model, &Default::default());
        Prompt { facts: facts.into(), effort: Some(effort.into()), ..Prompt::plain(model, "", ModelHistory::default()) }
    }

    #[test]
    fn an_effort_is_a_budget_of_tokens_for_models_that_want_one() {
        for (effort, budget) in [("minimal", 1024), ("low", 4096), ("medium", 10_000), ("high", 20_000), ("xhigh", 31_000), ("max", 31_000)]
        {
            let Thinking { thinking, effort: level } = of(&asked("claude-sonnet-4-5", effort), 64_000, true);
            assert_eq!((thinking, level), (Some(json!({"type": "enabled", "budget_tokens": budget})), None), "{effort}");
        }
        assert_eq!(of(&asked("claude-sonnet-4-5", "none"), 64_000, true), Thinking::default());
    }

    /// It is a part of the answer, which needs room besides; and the API takes no less than it says.
    #[test]
    fn a_budget_fits_into_the_answer_or_there_is_none() {
        let budget = |max_tokens, may_think| of(&asked("claude-sonnet-4-5", "high"), max_tokens, may_think).thinking;
        assert_eq!(budget(8192, true), Some(json!({"type": "enabled", "budget_tokens": 8192 - 1024})));
        assert_eq!(budget(2048, true), Some(json!({"type": "enabled", "budget_tokens": 1024})));
        assert_eq!(budget(2047, true), None);
        assert_eq!(budget(64_000, false), None);
    }

    #[test]
    fn newer_models_are_given_a_level_and_older_ones_nothing() {
        let adaptive = |effort: &str| Thinking { thinking: Some(json!({"type": "adaptive"})), effort: Some(effort.into()) };
        assert_eq!(of(&asked("claude-opus-4-6", "high"), 64_000, true), adaptive("high"));
        assert_eq!(of(&asked("claude-opus-4-6", "minimal"), 64_000, true), adaptive("low"));
        assert_eq!(of(&asked("claude-3-5-haiku-20241022", "high"), 8192, true), Thinking::default());
    }
}
