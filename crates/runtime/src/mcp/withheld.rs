//! Values that a client gives for a server and that are not written down with the thread: a journal is copied, shown and shared, and
//! must hold no secrets.
//!
//! In their place stands a reference. What it refers to is known as long as this program runs, for the thread itself, its forks
//! and its agents. After that the server says what it needs again.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use outpost_thread::Settings;
use outpost_wire::SharedError;
use outpost_wire::secret_names::is_secret;
use serde_json::{Map, Value, json};

use super::credentials;
use super::declaration::KNOWN;
use super::layers::{SESSION_LAYER, ServerLayer};
use super::lock;
use crate::secrets::Secrets;

/// The member of an object that stands in place of a value.
const MARK: &str = "withheld";
/// Tables of a server whose values may be secrets.
const TABLES: [&str; 3] = ["env", "http_headers", "headers"];
const ARGUMENTS: &str = "args";
const URL: &str = "url";
/// Shorter values are settings, such as a level or a switch.
const SHORTEST: usize = 8;

pub(crate) struct Withheld {
    ids: Arc<dyn Fn() -> String + Send + Sync>,
    secrets: Secrets,
    values: Mutex<Values>,
}

/// Each value once, however many threads are given it.
#[derive(Default)]
struct Values {
    by_reference: HashMap<String, String>,
    by_value: HashMap<String, String>,
}

impl Withheld {
    pub(crate) fn new(ids: Arc<dyn Fn() -> String + Send + Sync>, secrets: Secrets) -> Self {
        Self { ids, secrets, values: Mutex::default() }
    }

    /// Takes values out of settings that are about to be written down.
    pub(crate) fn withhold(&self, settings: &mut Settings) {
        let Some(Value::Object(servers)) = settings.other.get_mut(SESSION_LAYER) else { return };
        for server in servers.values_mut().filter_map(Value::as_object_mut) {
            for table in TABLES {
                if let Some(Value::Object(values)) = server.get_mut(table) {
                    values.iter_mut().for_each(|(name, value)| self.take(name, value));
                }
            }
            self.take_words(server);
            // What is not known has no effect, but may still be a secret that the user meant to be used.
            server.iter_mut().filter(|(key, _)| !KNOWN.contains(&key.as_str())).for_each(|(key, value)| self.take(key, value));
        }
    }

    /// The address and the arguments, where they hold something that looks like a secret or is known to be one.
    fn take_words(&self, server: &mut Map<String, Value>) {
        if let Some(url) = server.get_mut(URL) {
            let text = url.as_str().unwrap_or_default();
            let found = credentials::in_url(text).inspect(|secret| self.secrets.register(secret)).is_some();
            if found || self.is_known(text) {
                self.put_away(url);
            }
        }
        let Some(Value::Array(arguments)) = server.get_mut(ARGUMENTS) else { return };
        let mut before: Option<String> = None;
        for argument in arguments {
            let Value::String(text) = argument else { continue };
            let found = credentials::in_argument(before.as_deref(), text).inspect(|secret| self.secrets.register(secret)).is_some();
            before = Some(text.clone());
            if found || self.is_known(text) {
                self.put_away(argument);
            }
        }
    }

    fn is_known(&self, text: &str) -> bool {
        matches!(self.secrets.redact(text), Cow::Owned(_))
    }

    fn take(&self, name: &str, value: &mut Value) {
        let Value::String(text) = value else { return };
        if text.chars().count() < SHORTEST {
            return;
        }
        if is_secret(name) {
            self.secrets.register(text.as_bytes());
            // Without the word before it, such as `Bearer`.
            if let Some((_, rest)) = text.split_once(' ') {
                self.secrets.register(rest.as_bytes());
            }
        }
        self.put_away(value);
    }

    /// Puts a reference in the place of a text.
    fn put_away(&self, value: &mut Value) {
        let Value::String(text) = value else { return };
        let mut values = lock(&self.values);
        let reference = match values.by_value.get(text.as_str()) {
            Some(known) => known.clone(),
            None => {
                let new = (self.ids)();
                values.by_value.insert(text.clone(), new.clone());
                values.by_reference.insert(new.clone(), text.clone());
                new
            }
        };
        drop(values);
        *value = json!({ MARK: reference });
    }

    /// The layer of a thread with its values, and what is missing of them, by server.
    pub(crate) fn restored(&self, settings: &Settings) -> Result<(ServerLayer, BTreeMap<String, Vec<String>>), SharedError> {
        let mut layer = ServerLayer::of_thread(settings)?;
        let mut missing = BTreeMap::new();
        for (name, server) in &mut layer.0 {
            let Value::Object(server) = server else { continue };
            let mut keys = Vec::new();
            for table in TABLES {
                if let Some(Value::Object(values)) = server.get_mut(table) {
                    keys.extend(self.put_back(values).into_iter().map(|key| format!("{table}.{key}")));
                }
            }
            if let Some(Value::Array(arguments)) = server.get_mut(ARGUMENTS) {
                let numbered = arguments.iter_mut().enumerate();
                keys.extend(numbered.filter_map(|(index, value)| (!self.restore(value)).then(|| format!("{ARGUMENTS}[{index}]"))));
            }
            // What has no effect is not missed.
            keys.extend(self.put_back(server).into_iter().filter(|key| KNOWN.contains(&key.as_str())));
            if !keys.is_empty() {
                missing.insert(name.clone(), keys);
            }
        }
        Ok((layer, missing))
    }

    /// Returns the names of those that are not known any more.
    fn put_back(&self, members: &mut Map<String, Value>) -> Vec<String> {
        members.iter_mut().filter_map(|(name, value)| (!self.restore(value)).then(|| name.clone())).collect()
    }

    /// Whether a value is there: because it was never taken away, or because it is known.
    fn restore(&self, value: &mut Value) -> bool {
        let Some(reference) = reference(value) else { return true };
        let known = lock(&self.values).by_reference.get(reference).cloned();
        let is_known = known.is_some();
        if let Some(known) = known {
            *value = Value::String(known);
        }
        is_known
    }
}

fn reference(value: &Value) -> Option<&str> {
    let members = value.as_object().filter(|members| members.len() == 1)?;
    members.get(MARK)?.as_str()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn withheld() -> Withheld {
        let next = AtomicU64::new(0);
        Withheld::new(Arc::new(move || format!("ref-{}", next.fetch_add(1, Ordering::Relaxed))), Secrets::default())
    }

    fn settings(servers: Value) -> Settings {
        let mut settings = Settings::default();
        settings.other.insert(SESSION_LAYER.into(), servers);
        settings
    }

    #[test]
    fn values_become_references_and_come_back() {
        let withheld = withheld();
        let given = json!({
            "a": {"command": "x", "args": ["--fast-mode"], "env": {"API_TOKEN": "sesame-open", "LEVEL": "3"}},
            "b": {"url": "https://h/mcp", "http_headers": {"authorization": "Bearer sesame-open-2"}, "bearer_token": "sesame-open"},
        });
        let mut settings = settings(given.clone());
        withheld.withhold(&mut settings);
        let text = serde_json::to_string(&settings).unwrap();
        assert!(!text.contains("sesame") && text.contains("\"LEVEL\":\"3\"") && text.contains("--fast-mode"), "{text}");
        let once = settings.clone();
        withheld.withhold(&mut settings);
        assert_eq!(settings, once, "a reference is not withheld again");
        let (layer, missing) = withheld.restored(&settings).unwrap();
        assert!(missing.is_empty());
        assert_eq!(serde_json::to_value(&layer.0).unwrap(), given);
        assert_eq!(withheld.secrets.redact("it printed sesame-open-2 and sesame-open"), "it printed [redacted] and [redacted]");
    }

    #[test]
    fn secrets_in_addresses_and_arguments_are_taken_out() {
        let withheld = withheld();
        withheld.secrets.register("known-to-be-one");
        let given = json!({
            "a": {"command": "x", "args": ["--fast", "--token", "sesame-open", "API_KEY=sesame-open-2", "say known-to-be-one"]},
            "b": {"url": "https://me:sesame-open-3@h/mcp"},
            "c": {"url": "https://h/mcp?team=two"},
        });
        let mut settings = settings(given.clone());
        withheld.withhold(&mut settings);
        let text = serde_json::to_string(&settings).unwrap();
        assert!(!text.contains("sesame") && !text.contains("known-to-be-one"), "{text}");
        assert!(text.contains("--fast") && text.contains("--token") && text.contains("https://h/mcp?team=two"), "{text}");
        let (layer, missing) = withheld.restored(&settings).unwrap();
        assert_eq!((serde_json::to_value(&layer.0).unwrap(), missing.len()), (given, 0));
        assert_eq!(withheld.secrets.redact("sesame-open sesame-open-3"), "[redacted] [redacted]");

        let (_, missing) = self::withheld().restored(&settings).unwrap();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(missing["a"], names(&["args[2]", "args[3]", "args[4]"]));
        assert_eq!(missing["b"], names(&["url"]));
        assert!(!missing.contains_key("c"));
    }

    #[test]
    fn another_program_says_what_is_missing() {
        let mut settings = settings(json!({"a": {"command": "x", "env": {"API_TOKEN": "sesame-open"}}, "b": {"command": "y"}}));
        withheld().withhold(&mut settings);
        let (_, missing) = withheld().restored(&settings).unwrap();
        assert_eq!(missing, BTreeMap::from([("a".to_owned(), vec!["env.API_TOKEN".to_owned()])]));
    }

    #[test]
    fn ordinary_words_are_not_taken_out_of_other_texts() {
        let withheld = withheld();
        withheld.withhold(&mut settings(json!({"a": {"command": "x", "env": {"MODE": "production"}}})));
        assert_eq!(withheld.secrets.redact("production"), "production");
    }
}
