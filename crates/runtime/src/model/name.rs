//! How models are named: one reading of names for every table about them.

/// The name of a model as tables have it: in small letters, without what gateways put in front (`anthropic/`, `us.anthropic.`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModelName(String);

/// How much of a name a row of a table stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowReach {
    /// Every name that begins like it: dated, sized and other variants.
    Family,
    /// The model itself, dated or as a `latest`: another variant may cost a multiple.
    Model,
}

impl ModelName {
    pub(super) fn read(name: &str) -> Self {
        let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        let name = ["us.", "eu.", "apac.", "global."].iter().find_map(|region| name.strip_prefix(region)).unwrap_or(&name);
        let name = ["anthropic.", "openai.", "meta.", "qwen."].iter().find_map(|vendor| name.strip_prefix(vendor)).unwrap_or(name);
        // Claude's versions are written with a dot by some gateways.
        Self(if name.starts_with("claude-") { name.replace('.', "-") } else { name.to_owned() })
    }

    /// What follows a beginning, if the name has it.
    pub(super) fn after(&self, beginning: &str) -> Option<&str> {
        self.0.strip_prefix(beginning)
    }

    /// The row of a table that stands for the name; of several the one with the longest beginning.
    pub(super) fn row<'t, R>(
        &self,
        table: impl IntoIterator<Item = &'t R>,
        beginning: fn(&R) -> &'static str,
        reach: RowReach,
    ) -> Option<&'t R> {
        let fits = |row: &&R| match reach {
            RowReach::Family => self.after(beginning(row)).is_some(),
            RowReach::Model => self.after(beginning(row)).is_some_and(is_same_model),
        };
        table.into_iter().filter(fits).max_by_key(|row| beginning(row).len())
    }
}

/// Whether what follows a listed name is a date or a word that says nothing of another model.
fn is_same_model(rest: &str) -> bool {
    let Some(rest) = rest.strip_prefix(['-', '@', ':']) else { return rest.is_empty() };
    let mut parts = rest.split(['-', '@', ':']);
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let is_year = |part: &str| is_number(part) && part.len() >= 4;
    let is_word = |part: &str| matches!(part, "codex" | "chat" | "latest" | "preview" | "v1");
    parts.next().is_some_and(|first| is_year(first) || is_word(first)) && parts.all(|part| is_number(part) || is_word(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_without_what_gateways_add() {
        for (given, plain) in [
            ("us.anthropic.claude-opus-4.6-v1", "claude-opus-4-6-v1"),
            ("anthropic/claude-sonnet-4.6", "claude-sonnet-4-6"),
            ("Qwen/Qwen3-Coder-30B", "qwen3-coder-30b"),
            ("gpt-5.1", "gpt-5.1"),
        ] {
            assert_eq!(ModelName::read(given).0, plain);
        }
    }

    #[test]
    fn the_longest_beginning_within_reach_counts() {
        let row = |name: &str, reach| ModelName::read(name).row(&["gpt-5", "gpt-5-mini", "gpt-5.1"], |row| *row, reach).copied();
        assert_eq!(row("gpt-5-mini-2025-08-07", RowReach::Model), Some("gpt-5-mini"));
        assert_eq!(row("openai/gpt-5.1-codex", RowReach::Model), Some("gpt-5.1"));
        assert_eq!((row("gpt-5-pro", RowReach::Model), row("gpt-5-pro", RowReach::Family)), (None, Some("gpt-5")));
        assert_eq!(row("gpt-4", RowReach::Family), None);
    }
}
