//! Secret values, registered once, and their removal from any text before it is logged or stored.
//!
//! A registry is a value that is passed in. It must not know where secrets come from or where texts go.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use memchr::memmem::Finder;

/// What stands in a text instead of a secret.
pub const REDACTED: &str = "[redacted]";
/// Shorter values are no secrets that could be kept by hiding them: they are in every text.
const SHORTEST: usize = 8;

/// The secrets of a program. Cheap to clone; all clones are one registry.
#[derive(Clone, Default)]
pub struct Secrets(Arc<RwLock<Vec<Finder<'static>>>>);

impl Secrets {
    /// Registers a value, and the way in which JSON spells it.
    pub fn register(&self, value: impl AsRef<[u8]>) {
        let value = value.as_ref().trim_ascii();
        self.add(value);
        if let Ok(text) = std::str::from_utf8(value)
            && let Ok(quoted) = serde_json::to_string(text)
        {
            self.add(quoted.trim_matches('"').as_bytes());
        }
    }

    fn add(&self, value: &[u8]) {
        if value.len() < SHORTEST {
            return;
        }
        let mut finders = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if finders.iter().any(|finder| finder.needle() == value) {
            return;
        }
        // Longest first: a secret that holds another one is removed as a whole.
        let at = finders.partition_point(|finder| finder.needle().len() >= value.len());
        finders.insert(at, Finder::new(value).into_owned());
    }

    /// The text without secrets.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.redact_bytes(text.as_bytes()) {
            Cow::Borrowed(_) => Cow::Borrowed(text),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    /// The bytes without secrets.
    pub fn redact_bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let finders = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut text = Cow::Borrowed(bytes);
        for finder in finders.iter() {
            if finder.find(&text).is_some() {
                text = Cow::Owned(replace(&text, finder));
            }
        }
        text
    }
}

fn replace(text: &[u8], finder: &Finder<'_>) -> Vec<u8> {
    let mut result = Vec::with_capacity(text.len());
    let mut from = 0;
    for at in finder.find_iter(text) {
        result.extend_from_slice(&text[from..at]);
        result.extend_from_slice(REDACTED.as_bytes());
        from = at + finder.needle().len();
    }
    result.extend_from_slice(&text[from..]);
    result
}

/// How many there are, never which.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.read().unwrap_or_else(PoisonError::into_inner).len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        let secrets = Secrets::default();
        values.iter().for_each(|value| secrets.register(value));
        secrets
    }

    #[test]
    fn every_occurrence_goes_and_nothing_else() {
        let secrets = secrets(&["sk-12345678", "sk-12345678-longer", "  padded-secret\n"]);
        assert_eq!(secrets.redact("a sk-12345678 b sk-12345678-longer c padded-secret"), "a [redacted] b [redacted] c [redacted]");
        assert_eq!(secrets.redact("sk-12345678sk-12345678"), "[redacted][redacted]");
        assert!(matches!(secrets.redact("nothing of it: sk-1234567"), Cow::Borrowed(_)));
        assert_eq!(secrets.redact_bytes(b"\xff sk-12345678 \xfe").as_ref(), b"\xff [redacted] \xfe");
    }

    #[test]
    fn a_secret_is_found_inside_json() {
        let secrets = secrets(&["with \"quotes\" and \\ in it"]);
        let json = serde_json::to_string(&serde_json::json!({"env": {"X": "=with \"quotes\" and \\ in it="}})).unwrap();
        assert_eq!(secrets.redact(&json), r#"{"env":{"X":"=[redacted]="}}"#);
    }

    #[test]
    fn short_values_and_the_registry_itself_tell_nothing() {
        let secrets = secrets(&["", "true", "1234567", "12345678"]);
        assert_eq!(secrets.redact("true 1234567 12345678"), "true 1234567 [redacted]");
        assert_eq!(format!("{secrets:?}"), "Secrets(1)");
    }
}
