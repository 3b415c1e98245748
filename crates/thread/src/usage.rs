//! Tokens: what was used in all, and how full the model's window is.

use serde::{Deserialize, Serialize};

/// Tokens as a model reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tokens {
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

impl Tokens {
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
pub struct Usage {
    pub total: Tokens,
    /// Of the last answer.
    pub last: Tokens,
    /// What the context holds now: the last answer's total, and an estimate of what was added after it.
    pub active: u64,
}

impl Usage {
    pub(crate) fn answered(&mut self, tokens: Tokens) {
        self.total = self.total.plus(tokens);
        self.last = tokens;
        self.active = tokens.total;
    }

    /// Bytes that were added to the context since the last answer.
    pub(crate) fn added(&mut self, bytes: usize) {
        self.active = self.active.saturating_add(estimate(bytes));
    }

    pub(crate) fn compacted(&mut self, tokens: u64) {
        self.active = tokens;
    }
}

/// Tokens of a serialised item, by experience.
pub(crate) fn estimate(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(4)
}
