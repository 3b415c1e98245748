//! JSON that is carried and not understood: model items, tool parameters, what a newer program wrote.

use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// A JSON text as it was received. Cloning is cheap; two are equal if their bytes are.
#[derive(Clone)]
pub struct Raw(Arc<RawValue>);

impl Raw {
    /// Takes a JSON text. Line breaks between its tokens become blanks, so that it fits on a line of a journal.
    pub fn parse(text: impl Into<String>) -> Result<Self, serde_json::Error> {
        let mut text = text.into();
        if text.contains(['\n', '\r']) {
            // A line break inside of a JSON string is always escaped, so these stand between tokens.
            text = text.replace(['\n', '\r'], " ");
        }
        RawValue::from_string(text).map(|raw| Self(Arc::from(raw)))
    }

    /// What `value` serialises to.
    pub fn of(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        Self::parse(serde_json::to_string(value)?)
    }

    /// The JSON text.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.get())
    }
}

impl From<serde_json::Value> for Raw {
    fn from(value: serde_json::Value) -> Self {
        // The text of a value is always valid JSON; `null` stands for the impossible.
        Self::parse(value.to_string()).unwrap_or_else(|_| Self(Arc::from(RawValue::NULL.to_owned())))
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl PartialEq for Raw {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Raw {}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(|raw| Self(Arc::from(raw)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_between_tokens_do_not_survive() {
        let raw = Raw::parse("{\n  \"a\": \"x\\ny\"\r\n}").unwrap();
        assert_eq!(raw.get(), "{   \"a\": \"x\\ny\"  }");
        assert_eq!(raw.read::<serde_json::Value>().unwrap()["a"], "x\ny");
    }

    #[test]
    fn what_is_no_json_is_refused() {
        assert!(Raw::parse("{").is_err());
    }
}
