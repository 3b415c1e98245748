//! What tokens cost: the list prices of providers, which configuration overrides.
//!
//! They are for an idea of the cost, not for a bill: providers have tiers, discounts and longer prompts at other prices, and gateways have
//! prices of their own.

use outpost_thread::TokenTotals;
use serde::{Deserialize, Deserializer};

use super::name::{ModelName, RowReach};

/// When the prices below were looked up.
pub const LISTED: &str = "November 2026";

/// Prices of a million tokens, in millionths of a dollar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenPrice {
    #[serde(deserialize_with = "dollars")]
    pub input: u64,
    /// Of input that the provider has cached. Without it: that of other input.
    #[serde(default, deserialize_with = "some_dollars")]
    pub cached_input: Option<u64>,
    /// Of input that the provider begins to cache. Without it: that of other input.
    #[serde(default, deserialize_with = "some_dollars")]
    pub cache_write: Option<u64>,
    #[serde(deserialize_with = "dollars")]
    pub output: u64,
}

fn dollars<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let dollars = f64::deserialize(deserializer)?;
    if (0.0..1e6).contains(&dollars) {
        return Ok((dollars * 1e6).round() as u64);
    }
    Err(serde::de::Error::custom(format!("{dollars} is not a price: dollars for a million tokens, 0 or more")))
}

fn some_dollars<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    dollars(deserializer).map(Some)
}

/// A row of the list: what names begin with, then the prices in thousandths of a dollar.
type Row = (&'static str, u64, u64, u64, u64);

/// Name, input, cached input, input that is put into the cache, output.
const OPENAI: &[Row] = &[
    ("gpt-4.1", 2000, 500, 2000, 8000),
    ("gpt-4.1-mini", 400, 100, 400, 1600),
    ("gpt-4.1-nano", 100, 25, 100, 400),
    ("gpt-4o", 2500, 1250, 2500, 10_000),
    ("gpt-4o-mini", 150, 75, 150, 600),
    ("gpt-5", 1250, 125, 1250, 10_000),
    ("gpt-5.1", 1250, 125, 1250, 10_000),
    ("gpt-5-mini", 250, 25, 250, 2000),
    ("gpt-5-nano", 50, 5, 50, 400),
    ("gpt-5.2", 1750, 175, 1750, 14_000),
    ("gpt-5.3", 1750, 175, 1750, 14_000),
    ("gpt-5.4", 2500, 250, 2500, 15_000),
    ("gpt-5.4-mini", 750, 75, 750, 4500),
    ("gpt-5.4-nano", 200, 20, 200, 1250),
    ("gpt-5.5", 5000, 500, 5000, 30_000),
    ("gpt-5.6-terra", 2000, 200, 2500, 12_000),
    ("gpt-5.6-luna", 200, 20, 250, 1200),
    ("gpt-6-astra", 10_000, 1000, 12_500, 50_000),
    ("gpt-6-sol", 2000, 200, 2500, 10_000),
    ("gpt-6.1-sol", 2000, 100, 2500, 10_000),
    ("gpt-6-luna", 100, 10, 125, 500),
    ("o3", 2000, 500, 2000, 8000),
    ("o4-mini", 1100, 275, 1100, 4400),
];

const CLAUDE: &[Row] = &[
    ("claude-3-haiku", 250, 30, 300, 1250),
    ("claude-3-5-haiku", 800, 80, 1000, 4000),
    ("claude-3-5-sonnet", 3000, 300, 3750, 15_000),
    ("claude-3-7-sonnet", 3000, 300, 3750, 15_000),
    ("claude-3-opus", 15_000, 1500, 18_750, 75_000),
    ("claude-haiku-4-5", 1000, 100, 1250, 5000),
    ("claude-sonnet-4", 3000, 300, 3750, 15_000),
    ("claude-sonnet-4-5", 3000, 300, 3750, 15_000),
    ("claude-sonnet-4-6", 3000, 300, 3750, 15_000),
    ("claude-opus-4", 15_000, 1500, 18_750, 75_000),
    ("claude-opus-4-1", 15_000, 1500, 18_750, 75_000),
    ("claude-opus-4-5", 5000, 500, 6250, 25_000),
    ("claude-opus-4-6", 5000, 500, 6250, 25_000),
    ("claude-opus-4-7", 5000, 500, 6250, 25_000),
    ("claude-opus-4-8", 5000, 500, 6250, 25_000),
    ("claude-sonnet-5", 2000, 200, 2500, 10_000),
    ("claude-sonnet-5-5", 2000, 200, 2500, 10_000),
    ("claude-opus-5", 5000, 500, 6250, 25_000),
    ("claude-opus-5-5", 4000, 200, 5000, 20_000),
    ("claude-haiku-5-5", 100, 10, 125, 500),
    ("claude-fable-5", 10_000, 1000, 12_500, 50_000),
    ("claude-fable-5-1", 10_000, 250, 12_500, 50_000),
];

impl TokenPrice {
    /// The list price of a model. A variant that is not listed has none: its price may be a multiple.
    pub(super) fn listed(name: &ModelName) -> Option<Self> {
        let (_, input, cached, write, output) = *name.row(OPENAI.iter().chain(CLAUDE), |row| row.0, RowReach::Model)?;
        let price = |thousandths: u64| thousandths * 1000;
        Some(Self { input: price(input), cached_input: Some(price(cached)), cache_write: Some(price(write)), output: price(output) })
    }

    /// What so many tokens cost, in dollars.
    pub fn cost(&self, tokens: &TokenTotals) -> f64 {
        let fresh = tokens.input.saturating_sub(tokens.cached_input).saturating_sub(tokens.cache_write_input);
        let parts = [
            (fresh, self.input),
            (tokens.cached_input, self.cached_input.unwrap_or(self.input)),
            (tokens.cache_write_input, self.cache_write.unwrap_or(self.input)),
            (tokens.output, self.output),
        ];
        parts.iter().map(|(tokens, price)| *tokens as f64 * *price as f64).sum::<f64>() / 1e12
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(name: &str) -> Option<u64> {
        TokenPrice::listed(&ModelName::read(name)).map(|price| price.input)
    }

    #[test]
    fn the_longest_name_that_fits_counts() {
        let priced = [("gpt-5", 1_250_000), ("gpt-5.1-codex", 1_250_000), ("gpt-5-mini-2025-08-07", 250_000), ("gpt-6.1-sol", 2_000_000)];
        let claude = [("claude-opus-4-20250514", 15_000_000), ("claude-opus-4.5", 5_000_000), ("claude-opus-5", 5_000_000)];
        for (name, price) in priced.into_iter().chain(claude).chain([("claude-opus-5-5", 4_000_000)]) {
            assert_eq!(input(name), Some(price), "{name}");
        }
        for name in ["gpt-5-pro", "gpt-5.7", "gpt-6-nova", "gpt-oss-20b", "claude-opus-4-9", "qwen3"] {
            assert_eq!(input(name), None, "{name}");
        }
    }

    #[test]
    fn tokens_of_each_kind_have_their_price() {
        let price = TokenPrice { input: 3_000_000, cached_input: Some(300_000), cache_write: None, output: 15_000_000 };
        let tokens = TokenTotals { input: 1_000_000, cached_input: 500_000, output: 100_000, ..TokenTotals::default() };
        assert!((price.cost(&tokens) - (1.5 + 0.15 + 1.5)).abs() < 1e-9);
    }

    #[test]
    fn prices_are_written_in_dollars() {
        let price: TokenPrice = serde_json::from_str(r#"{"input": 0.15, "output": 2}"#).unwrap();
        assert_eq!((price.input, price.cached_input, price.output), (150_000, None, 2_000_000));
        assert!(serde_json::from_str::<TokenPrice>(r#"{"input": -1, "output": 2}"#).is_err());
    }
}
