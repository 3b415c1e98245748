//! From layers of configuration to the servers of a thread.
//!
//! What lies in files is the lower layer; what a client gave at the start of the thread lies over it and is never lost by
//! reading the files again. Plugins and projects come last: they add servers and replace none.

use std::collections::BTreeMap;

use outpost_thread::Settings;
use outpost_wire::SharedError;
use serde_json::{Map, Value};

use super::declaration::{DeclarationError, DeclarationOrigin, KNOWN, declaration};
use super::{Declared, McpLimits};

/// The setting of a thread that holds the servers that were given at its start.
pub const SESSION_LAYER: &str = "mcpServers";

/// Servers by name, as they are written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerLayer(pub BTreeMap<String, Value>);

impl ServerLayer {
    /// From the value of `mcp_servers`. Nothing is an empty layer.
    pub fn of(value: Option<&Value>) -> Result<Self, SharedError> {
        match value {
            None | Some(Value::Null) => Ok(Self::default()),
            Some(Value::Object(servers)) => Ok(Self(servers.iter().map(|(name, value)| (name.clone(), value.clone())).collect())),
            Some(_) => Err("`mcp_servers` is a table of servers by name".into()),
        }
    }

    /// The layer that a thread carries with itself.
    pub fn of_thread(settings: &Settings) -> Result<Self, SharedError> {
        Self::of(settings.other.get(SESSION_LAYER))
    }

    /// Says which keys have no effect. Once, when a layer comes, and not whenever it is looked at.
    pub(crate) fn tell_unknown_keys(&self) {
        for (server, value) in &self.0 {
            for key in value.as_object().into_iter().flat_map(Map::keys).filter(|key| !KNOWN.contains(&key.as_str())) {
                tracing::warn!("mcp_servers.{server}: the key `{key}` is not known and has no effect");
            }
        }
    }

    /// Puts one over the other. A server that names its own program or address is another server; one that does not
    /// changes what it names.
    pub(super) fn over(mut self, upper: &Self) -> (Self, Vec<String>) {
        let mut changed = Vec::new();
        for (name, above) in &upper.0 {
            changed.push(name.clone());
            let replaces = |members: &Map<String, Value>| members.contains_key("command") || members.contains_key("url");
            match (self.0.get_mut(name), above) {
                (Some(Value::Object(below)), Value::Object(above)) if !replaces(above) => below.extend(above.clone()),
                _ => drop(self.0.insert(name.clone(), above.clone())),
            }
        }
        (self, changed)
    }
}

/// All servers of a thread that configuration declares.
pub fn merged(files: &ServerLayer, session: &ServerLayer, limits: &McpLimits) -> Declared {
    let (layer, own) = files.clone().over(session);
    let read = |(name, value): (&String, &Value)| {
        let origin = if own.contains(name) { DeclarationOrigin::Thread } else { DeclarationOrigin::Config };
        (name.clone(), declaration(name, value, &origin, limits))
    };
    layer.0.iter().map(read).collect()
}

/// Adds servers whose names are free. Returns the names that were not.
pub fn add(to: &mut Declared, more: Declared) -> Vec<String> {
    let mut taken = Vec::new();
    for (name, declared) in more {
        match to.entry(name) {
            std::collections::btree_map::Entry::Vacant(place) => drop(place.insert(declared)),
            std::collections::btree_map::Entry::Occupied(known) => taken.push(known.key().clone()),
        }
    }
    taken
}

/// What is wrong with declarations, if anything is. That a client has to give a value again is no error of the declaration.
pub fn problems(declared: &Declared) -> Vec<String> {
    let wrong = declared.values().filter_map(|declared| declared.as_ref().err());
    wrong.filter(|error| !matches!(error, DeclarationError::Withheld { .. })).map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn layer(value: Value) -> ServerLayer {
        ServerLayer::of(Some(&value)).unwrap()
    }

    #[test]
    fn the_threads_own_layer_lies_over_the_files() {
        let files = layer(json!({"a": {"command": "one"}, "b": {"command": "two", "args": ["x"]}, "c": {"command": "three"}}));
        let session = layer(json!({"b": {"enabled": false}, "c": {"url": "http://h/mcp"}, "d": {"command": "four"}}));
        let all = merged(&files, &session, &McpLimits::default());
        let origins: Vec<_> = all.values().map(|server| server.as_ref().unwrap().origin.clone()).collect();
        assert_eq!(origins, [DeclarationOrigin::Config, DeclarationOrigin::Thread, DeclarationOrigin::Thread, DeclarationOrigin::Thread]);
        let b = all["b"].as_ref().unwrap();
        assert!(!b.enabled, "only what it names is changed");
        assert!(matches!(&all["c"].as_ref().unwrap().transport, super::super::declaration::McpTransport::Http(_)));
    }

    #[test]
    fn what_is_added_replaces_nothing() {
        let limits = McpLimits::default();
        let mut all = merged(&layer(json!({"a": {"command": "one"}})), &ServerLayer::default(), &limits);
        let more = merged(&layer(json!({"a": {"command": "evil"}, "b": {"command": "two"}})), &ServerLayer::default(), &limits);
        assert_eq!(add(&mut all, more), ["a"]);
        assert_eq!(all.len(), 2);
        assert!(format!("{:?}", all["a"]).contains("one"));
    }

    #[test]
    fn a_layer_is_a_table() {
        assert!(ServerLayer::of(Some(&json!([1]))).is_err());
        assert_eq!(ServerLayer::of(None), Ok(ServerLayer::default()));
        assert_eq!(problems(&merged(&layer(json!({"a": 1, "b": {}})), &ServerLayer::default(), &McpLimits::default())).len(), 2);
    }
}
