//! In what a provider differs from the wire that it speaks. Quirks are data of its entry in the configuration; each is looked at
//! in one place.

use serde::Deserialize;

/// One difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quirk {
    /// Models write calls into their text: as fenced JSON, or between `<tool_call>` tags. They are read there.
    TextCalls,
    /// The key goes into `Authorization: Bearer` on the Anthropic wire, which has a header of its own for it.
    BearerKey,
    /// The server refuses or mixes up several calls in one answer.
    NoParallelCalls,
    /// The server refuses `stream_options` of Chat Completions.
    NoStreamOptions,
    /// The server refuses marks for its prompt cache.
    NoCacheControl,
    /// Chat Completions: what the model thought goes back to it as `reasoning_content`.
    EchoReasoning,
}

impl Quirk {
    /// As they are written in the configuration.
    pub const NAMES: [&'static str; 6] =
        ["text_calls", "bearer_key", "no_parallel_calls", "no_stream_options", "no_cache_control", "echo_reasoning"];
}

/// The quirks of a provider.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Quirks(Vec<Quirk>);

impl Quirks {
    pub fn has(&self, quirk: Quirk) -> bool {
        self.0.contains(&quirk)
    }
}

impl<const N: usize> From<[Quirk; N]> for Quirks {
    fn from(quirks: [Quirk; N]) -> Self {
        Self(quirks.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_quirk_and_others_are_refused_with_the_names() {
        for name in Quirk::NAMES {
            assert!(serde_json::from_str::<Quirk>(&format!("\"{name}\"")).is_ok(), "{name}");
        }
        let error = serde_json::from_str::<Quirks>("[\"fast\"]").unwrap_err().to_string();
        assert!(error.contains("`text_calls`") && error.contains("`bearer_key`"), "{error}");
    }
}
