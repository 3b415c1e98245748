//! `[limits]` of config.toml, and the words in which a limit is written: what a session on this machine may use.

use std::fmt;

use outpost_sandbox::Limits;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// Those that were written down; the others are as they are by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LimitTable {
    pub processes: Option<LimitSetting>,
    pub memory: Option<LimitSetting>,
    pub open_files: Option<LimitSetting>,
    pub file_size: Option<LimitSetting>,
    pub free_space: Option<LimitSetting>,
    pub cpu_seconds: Option<LimitSetting>,
    pub home_layer: Option<LimitSetting>,
    pub required: Option<bool>,
}

impl LimitTable {
    /// Puts what was written down over these.
    pub fn over(&self, mut limits: Limits) -> Limits {
        let written = [
            (self.processes, &mut limits.processes),
            (self.memory, &mut limits.memory),
            (self.open_files, &mut limits.open_files),
            (self.file_size, &mut limits.file_size),
            (self.free_space, &mut limits.free_space),
            (self.cpu_seconds, &mut limits.cpu_seconds),
            (self.home_layer, &mut limits.home_layer),
        ];
        for (written, limit) in written {
            if let Some(LimitSetting(value)) = written {
                *limit = value;
            }
        }
        limits.required = self.required.unwrap_or(limits.required);
        limits
    }
}

/// A number, or none at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitSetting(pub Option<u64>);

impl LimitSetting {
    /// Reads `4096`, `8G` or `none`.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let shift = match &text[digits.len()..] {
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(format!("invalid limit `{text}`: use a number with K, M, G or T, or `none`")),
        };
        let number: u64 = digits.parse().map_err(|_| format!("invalid limit `{text}`: use a number with K, M, G or T, or `none`"))?;
        Self::number(number.checked_mul(1 << shift)).ok_or_else(|| format!("`{text}` is not a sensible limit"))
    }

    fn number(number: Option<u64>) -> Option<Self> {
        number.filter(|number| *number > 0).map(|number| Self(Some(number)))
    }
}

impl<'de> Deserialize<'de> for LimitSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Written)
    }
}

struct Written;

impl Visitor<'_> for Written {
    type Value = LimitSetting;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a number, or a text such as \"8G\" or \"none\"")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<LimitSetting, E> {
        LimitSetting::number(u64::try_from(number).ok()).ok_or_else(|| E::custom(format!("{number} is not a sensible limit")))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<LimitSetting, E> {
        LimitSetting::number(Some(number)).ok_or_else(|| E::custom(format!("{number} is not a sensible limit")))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<LimitSetting, E> {
        LimitSetting::parse(text).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Result<LimitTable, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_units_and_none_are_limits() {
        let table = table("processes = 64\nmemory = \"2G\"\nfile_size = \"none\"\ncpu_seconds = \"90\"").unwrap();
        let limits = table.over(Limits::default());
        assert_eq!((limits.processes, limits.memory, limits.file_size, limits.cpu_seconds), (Some(64), Some(2 << 30), None, Some(90)));
        assert_eq!(limits.open_files, Limits::default().open_files);
    }

    #[test]
    fn what_is_no_limit_is_told_with_what_would_be_one() {
        for (text, told) in [
            ("memory = \"8 GB\"", "with K, M, G or T"),
            ("memory = \"\"", "invalid limit"),
            ("memory = \"99999999999T\"", "not a sensible limit"),
            ("memory = 0", "0 is not a sensible limit"),
            ("memory = -5", "-5 is not a sensible limit"),
            ("memory = true", "such as \"8G\""),
        ] {
            let error = table(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
