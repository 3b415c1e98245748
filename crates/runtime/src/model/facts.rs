//! What is known of models by their names: a table, which configuration overrides.
//!
//! Names are matched by what they begin with (`name.rs`), so that dated and sized variants share a row. What is not in the table gets
//! defaults that every current server takes.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::name::{ModelName, RowReach};
use super::price::TokenPrice;

/// What a request must know of its model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFacts {
    /// In tokens: what is asked and what is answered together.
    pub context_window: u64,
    /// The most tokens of an answer, where the wire wants to be told.
    pub max_output: Option<u64>,
    /// Whether it can be shown images.
    pub vision: bool,
    /// Whether it is asked for pictures that it makes itself. They are charged for, so that only configuration says so.
    pub image_generation: bool,
    /// Whether one answer may hold several calls.
    pub parallel_calls: bool,
    /// Whether its provider can hold an answer to a JSON schema.
    pub structured: bool,
    /// The levels of effort that it has; empty where they are not known, and then any is passed on.
    pub efforts: Vec<String>,
    pub thinking: ThinkingForm,
    /// Whether its thoughts are void once anything that stood before them has changed. It thinks whether it is asked to or not.
    pub binds_thoughts: bool,
    /// What its provider asks for, where that is known.
    pub price: Option<TokenPrice>,
    /// Whether the table or the configuration knows it.
    pub is_known: bool,
}

/// How the Anthropic wire asks a model to think.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThinkingForm {
    None,
    /// With a number of tokens.
    #[default]
    Budget,
    /// The model decides, by a level.
    Adaptive,
}

/// The window of models that are not known.
pub const DEFAULT_WINDOW: u64 = 128_000;

impl Default for ModelFacts {
    fn default() -> Self {
        Self {
            context_window: DEFAULT_WINDOW,
            max_output: None,
            vision: true,
            image_generation: false,
            parallel_calls: true,
            structured: false,
            efforts: Vec::new(),
            thinking: ThinkingForm::Budget,
            binds_thoughts: false,
            price: None,
            is_known: false,
        }
    }
}

/// What configuration says of a model, in the place of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOverrides {
    pub context_window: Option<u64>,
    pub max_output_tokens: Option<u64>,
    pub vision: Option<bool>,
    pub image_generation: Option<bool>,
    pub parallel_calls: Option<bool>,
    pub efforts: Option<Vec<String>>,
    pub thinking: Option<ThinkingForm>,
    pub price: Option<TokenPrice>,
}

/// A row of the table.
struct Row {
    /// What names of this family begin with.
    prefix: &'static str,
    context_window: u64,
    vision: bool,
    parallel_calls: bool,
    efforts: &'static [&'static str],
}

impl Row {
    /// Of a family that makes one call in an answer.
    const fn one_call(self) -> Self {
        Self { parallel_calls: false, ..self }
    }
}

const fn row(prefix: &'static str, context_window: u64, vision: bool, efforts: &'static [&'static str]) -> Row {
    Row { prefix, context_window, vision, parallel_calls: true, efforts }
}

const LOW_TO_HIGH: &[&str] = &["low", "medium", "high"];
const MINIMAL_TO_HIGH: &[&str] = &["minimal", "low", "medium", "high"];
const NONE_TO_XHIGH: &[&str] = &["none", "low", "medium", "high", "xhigh"];
const NONE_TO_MAX: &[&str] = &["none", "low", "medium", "high", "xhigh", "max"];

/// The longest prefix that fits counts. Claude's rows are made from its versions.
const TABLE: &[Row] = &[
    row("gpt-5", 272_000, true, MINIMAL_TO_HIGH),
    row("gpt-5-codex", 272_000, true, LOW_TO_HIGH),
    row("gpt-5.1", 272_000, true, &["none", "low", "medium", "high"]),
    row("gpt-5.2", 272_000, true, NONE_TO_XHIGH),
    row("gpt-5.3", 272_000, true, NONE_TO_XHIGH),
    row("gpt-5.4", 272_000, true, NONE_TO_XHIGH),
    row("gpt-5.5", 272_000, true, NONE_TO_XHIGH),
    row("gpt-5.6", 272_000, true, NONE_TO_MAX),
    row("gpt-6", 922_000, true, NONE_TO_MAX),
    row("gpt-4.1", 1_047_576, true, &[]),
    row("gpt-4o", 128_000, true, &[]),
    row("gpt-oss", 131_072, false, LOW_TO_HIGH),
    row("o1", 200_000, true, LOW_TO_HIGH),
    row("o3", 200_000, true, LOW_TO_HIGH),
    row("o4-mini", 200_000, true, LOW_TO_HIGH),
    row("gemini-2", 1_048_576, true, LOW_TO_HIGH),
    row("gemini-3", 1_048_576, true, LOW_TO_HIGH),
    row("qwen2.5", 32_768, false, &[]),
    row("qwen2.5-vl", 32_768, true, &[]),
    row("qwen3", 40_960, false, &[]),
    row("qwen3-coder", 262_144, false, &[]),
    row("qwen3-vl", 262_144, true, &[]),
    // vLLM's documentation says of Llama 3, and of no other family of the table, that it has no parallel calls.
    row("llama3", 131_072, false, &[]).one_call(),
    row("llama-3", 131_072, false, &[]).one_call(),
    row("llama-4", 131_072, true, &[]),
    row("gemma3", 131_072, true, &[]),
    row("gemma-3", 131_072, true, &[]),
    row("mistral", 131_072, false, &[]),
    row("devstral", 131_072, false, &[]),
    row("codestral", 262_144, false, &[]),
    row("deepseek", 131_072, false, &[]),
    row("kimi-k2", 262_144, false, &[]),
    row("glm-4", 131_072, false, &[]),
    row("minimax-m2", 196_608, false, &[]),
    row("phi-4", 16_384, false, &[]),
    row("phi4", 16_384, false, &[]),
];

impl ModelFacts {
    /// What is known of a model: the configuration's word, then the table's, then the defaults.
    pub fn of(name: &str, overrides: &BTreeMap<String, ModelOverrides>) -> Self {
        let mut facts = Self::in_table(name).unwrap_or_default();
        if let Some(own) = overrides.get(name) {
            facts.context_window = own.context_window.unwrap_or(facts.context_window);
            facts.max_output = own.max_output_tokens.or(facts.max_output);
            facts.vision = own.vision.unwrap_or(facts.vision);
            facts.image_generation = own.image_generation.unwrap_or(facts.image_generation);
            facts.parallel_calls = own.parallel_calls.unwrap_or(facts.parallel_calls);
            facts.efforts = own.efforts.clone().unwrap_or(facts.efforts);
            facts.thinking = own.thinking.unwrap_or(facts.thinking);
            facts.price = own.price.or(facts.price);
            facts.is_known = true;
        }
        facts
    }

    /// The level of effort that the model has and that is nearest to the one that is wanted. Where its levels are not known it is passed on.
    pub fn effort<'a>(&'a self, wanted: &'a str) -> &'a str {
        const LEVELS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
        let level = |effort: &str| LEVELS.iter().position(|level| *level == effort);
        if self.efforts.is_empty() || self.efforts.iter().any(|effort| effort == wanted) {
            return wanted;
        }
        let Some(at) = level(wanted) else { return wanted };
        let distance = |effort: &&String| level(effort).map_or(usize::MAX, |level| level.abs_diff(at));
        self.efforts.iter().min_by_key(distance).map_or(wanted, String::as_str)
    }

    fn in_table(name: &str) -> Option<Self> {
        let name = ModelName::read(name);
        if let Some(version) = name.after("claude-").map(Version::read) {
            return Some(ModelFacts { price: TokenPrice::listed(&name), ..claude(version) });
        }
        let row = name.row(TABLE, |row| row.prefix, RowReach::Family)?;
        let efforts = row.efforts.iter().map(|effort| (*effort).to_owned()).collect();
        let structured = name.after("gpt-").is_some() || name.after("o").is_some();
        Some(Self {
            context_window: row.context_window,
            vision: row.vision,
            parallel_calls: row.parallel_calls,
            efforts,
            structured,
            price: TokenPrice::listed(&name),
            is_known: true,
            ..Self::default()
        })
    }
}

/// Claude's version: the first two short numbers of the name, before the family or behind it. A date is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32);

impl Version {
    fn read(name: &str) -> Self {
        let numbers = name.split(['-', '@', ':', '.']).filter(|part| part.len() <= 2).filter_map(|part| part.parse().ok());
        let mut numbers = numbers.into_iter();
        // A name without a number is taken for a recent one.
        Self(numbers.next().unwrap_or(4), numbers.next().unwrap_or(0))
    }
}

fn claude(version: Version) -> ModelFacts {
    let thinking = match version {
        _ if version >= Version(4, 6) => ThinkingForm::Adaptive,
        _ if version >= Version(3, 7) => ThinkingForm::Budget,
        _ => ThinkingForm::None,
    };
    let efforts: &[&str] = match version {
        _ if version >= Version(4, 7) => &["low", "medium", "high", "xhigh", "max"],
        _ if version >= Version(4, 6) => &["low", "medium", "high", "max"],
        _ => LOW_TO_HIGH,
    };
    let max_output = match version {
        _ if version >= Version(5, 0) => 128_000,
        _ if version >= Version(4, 5) => 64_000,
        _ if version >= Version(3, 7) => 32_000,
        _ if version >= Version(3, 5) => 8192,
        _ => 4096,
    };
    ModelFacts {
        context_window: if version >= Version(5, 0) { 1_000_000 } else { 200_000 },
        max_output: Some(max_output),
        vision: true,
        image_generation: false,
        parallel_calls: true,
        structured: version >= Version(4, 5),
        efforts: efforts.iter().map(|effort| (*effort).to_owned()).collect(),
        thinking,
        binds_thoughts: version >= Version(5, 1),
        price: None,
        is_known: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str) -> ModelFacts {
        ModelFacts::of(name, &BTreeMap::new())
    }

    #[test]
    fn the_longest_prefix_counts_whatever_stands_in_front() {
        assert_eq!(facts("qwen3:8b").context_window, 40_960);
        assert_eq!(facts("Qwen/Qwen3-Coder-30B-A3B-Instruct").context_window, 262_144);
        assert_eq!(facts("openai/gpt-oss-20b").efforts, LOW_TO_HIGH);
        assert!(!facts("my-own").is_known && facts("my-own").context_window == DEFAULT_WINDOW);
    }

    #[test]
    fn a_family_without_parallel_calls_is_known() {
        for (name, parallel) in [("llama3.2", false), ("meta-llama/Llama-3.1-8B-Instruct", false), ("llama-4-scout", true), ("gpt-5", true)]
        {
            assert_eq!(facts(name).parallel_calls, parallel, "{name}");
        }
        let own = ModelOverrides { parallel_calls: Some(true), ..ModelOverrides::default() };
        assert!(ModelFacts::of("llama3.2", &[("llama3.2".to_owned(), own)].into()).parallel_calls);
    }

    #[test]
    fn claude_thinks_as_its_version_does() {
        for (name, form) in [
            ("claude-3-5-haiku-20241022", ThinkingForm::None),
            ("claude-3-7-sonnet-latest", ThinkingForm::Budget),
            ("claude-sonnet-4-20250514", ThinkingForm::Budget),
            ("claude-haiku-4-5-20251001", ThinkingForm::Budget),
            ("us.anthropic.claude-opus-4-6-v1", ThinkingForm::Adaptive),
            ("anthropic/claude-sonnet-4.6", ThinkingForm::Adaptive),
            ("claude-opus-5", ThinkingForm::Adaptive),
        ] {
            assert_eq!((facts(name).thinking, facts(name).binds_thoughts), (form, false), "{name}");
        }
        for name in ["claude-fable-5-1", "claude-opus-5-5", "us.anthropic.claude-sonnet-5-5"] {
            assert!(facts(name).binds_thoughts && facts(name).context_window == 1_000_000, "{name}");
        }
        assert_eq!(facts("claude-3-opus-20240229").max_output, Some(4096));
    }

    #[test]
    fn an_effort_that_a_model_does_not_have_is_the_nearest_that_it_has() {
        assert_eq!(facts("gpt-5").effort("xhigh"), "high");
        assert_eq!(facts("gpt-5.1").effort("minimal"), "none");
        assert_eq!(facts("gpt-5.2").effort("xhigh"), "xhigh");
        assert_eq!(facts("my-own").effort("xhigh"), "xhigh");
        assert_eq!(facts("gpt-5").effort("as you like"), "as you like");
    }

    #[test]
    fn configuration_counts_before_the_table() {
        let own = ModelOverrides { context_window: Some(8192), vision: Some(true), ..ModelOverrides::default() };
        let facts = ModelFacts::of("qwen3:8b", &[("qwen3:8b".to_owned(), own)].into());
        assert_eq!((facts.context_window, facts.vision, facts.is_known), (8192, true, true));
    }
}
