//! Tokens: what was used in all, and how full the model's window is.

use serde::{Deserialize, Serialize};

use crate::picture::pictures;
use crate::raw::Raw;

/// Tokens as a model reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TokenTotals {
    pub input: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_input: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_write_input: u64,
    pub output: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning_output: u64,
    pub total: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl TokenTotals {
    pub fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            cached_input: self.cached_input.saturating_add(other.cached_input),
            cache_write_input: self.cache_write_input.saturating_add(other.cache_write_input),
            output: self.output.saturating_add(other.output),
            reasoning_output: self.reasoning_output.saturating_add(other.reasoning_output),
            total: self.total.saturating_add(other.total),
        }
    }
}

/// Of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ThreadUsage {
    pub total: TokenTotals,
    /// Of the last answer.
    pub last: TokenTotals,
    /// What the context holds now: the last answer's total, and an estimate of what was added after it.
    pub active: u64,
}

impl ThreadUsage {
    pub(crate) fn answered(&mut self, tokens: TokenTotals) {
        self.total = self.total.plus(tokens);
        self.last = tokens;
        self.active = tokens.total;
    }

    /// Model items that were added to the context since the last answer.
    pub(crate) fn added(&mut self, items: &[Raw]) {
        self.active = self.active.saturating_add(estimate(items));
    }

    pub(crate) fn compacted(&mut self, tokens: u64) {
        self.active = tokens;
    }
}

/// Tokens of model items, by experience: a quarter of the bytes of texts, and for pictures what providers charge for their size.
pub fn estimate<'a>(items: impl IntoIterator<Item = &'a Raw>) -> u64 {
    let (mut bytes, mut tokens) = (0, 0);
    for item in items {
        let (shown, charged) = pictures(item.get()).unwrap_or_default();
        bytes += item.get().len().saturating_sub(shown) as u64;
        tokens += charged;
    }
    tokens + bytes.div_ceil(4)
}

#[cfg(test)]
mod tests {
    use outpost_wire::base64;
    use serde_json::json;

    use super::*;

    /// A picture of half a megabyte was once taken for more text than most models can read.
    #[test]
    fn a_picture_is_estimated_by_its_size_in_pixels() {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x03\x20\0\0\x02\x58".to_vec();
        png.resize(500_000, 0);
        let url = format!("data:image/png;base64,{}", base64::encode(&png));
        let item = Raw::from(json!({"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]}));
        let tokens = estimate([&item]);
        assert!((700..900).contains(&tokens), "{tokens}");
        assert_eq!(estimate(&[Raw::from(json!("x".repeat(398)))]), 100);
    }
}
