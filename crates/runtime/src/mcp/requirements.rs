//! What an administrator requires: which MCP servers may be used at all.
//!
//! A list allows; what is on no list is not used. Lists come from this machine and from the machine that a server is placed on,
//! and each of them must allow it. A list that cannot be read allows nothing, because what it would have forbidden is unknown.

use std::collections::BTreeMap;

use outpost_wire::SharedError;
use serde::Deserialize;
use serde_json::Value;

use super::declaration::{McpTransport, ServerDeclaration};

/// All lists that apply. Without any, everything is allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requirements(Vec<List>);

/// One list, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct List {
    source: String,
    allowed: Result<BTreeMap<String, Identity>, SharedError>,
}

/// What a server of a name must be.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Identity {
    Command { command: String },
    Url { url: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    identity: Identity,
}

impl Requirements {
    /// Adds the value of `mcp_servers` of a file of requirements. A file without it requires nothing of servers.
    pub fn add(&mut self, source: impl Into<String>, servers: Option<&Value>) {
        let Some(servers) = servers else { return };
        self.0.push(List { source: source.into(), allowed: read(servers) });
    }

    /// Adds a file that cannot be read.
    pub fn add_unreadable(&mut self, source: impl Into<String>, why: impl Into<SharedError>) {
        self.0.push(List { source: source.into(), allowed: Err(why.into()) });
    }

    /// Which lists cannot be read. They let nothing through.
    pub fn problems(&self) -> Vec<String> {
        self.0.iter().filter_map(List::problem).collect()
    }

    /// Why a server may not be used, if so.
    pub fn refusal(&self, server: &ServerDeclaration) -> Option<String> {
        self.0.iter().find_map(|list| list.refusal(server))
    }
}

fn read(servers: &Value) -> Result<BTreeMap<String, Identity>, SharedError> {
    let Value::Object(servers) = servers else { return Err("`mcp_servers` is a table of servers by name".into()) };
    let one = |(name, value): (&String, &Value)| match Written::deserialize(value) {
        Ok(written) => Ok((name.clone(), written.identity)),
        Err(error) => {
            let why =
                format!("mcp_servers.{name} needs `identity = {{ command = \"…\" }}` or `identity = {{ url = \"…\" }}`, and nothing else");
            Err(SharedError::worded(why, error))
        }
    };
    servers.iter().map(one).collect()
}

impl List {
    fn problem(&self) -> Option<String> {
        let why = self.allowed.as_ref().err()?;
        Some(format!("no MCP server may be used, because the requirements in {} cannot be read: {why}", self.source))
    }

    fn refusal(&self, server: &ServerDeclaration) -> Option<String> {
        let source = &self.source;
        let allowed = match &self.allowed {
            Ok(allowed) => allowed,
            Err(_) => return self.problem(),
        };
        let Some(identity) = allowed.get(&server.name) else {
            return Some(format!("the requirements in {source} do not allow it"));
        };
        let fits = match (identity, &server.transport) {
            (Identity::Command { command }, McpTransport::Stdio(stdio)) => *command == stdio.command,
            (Identity::Url { url }, McpTransport::Http(http)) => *url == http.url,
            _ => false,
        };
        (!fits).then(|| format!("the requirements in {source} allow another server of this name, and not this one"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::declaration::{DeclarationOrigin, declaration};
    use super::*;
    use crate::mcp::McpLimits;

    fn server(name: &str, value: Value) -> ServerDeclaration {
        declaration(name, &value, &DeclarationOrigin::Config, &McpLimits::default()).unwrap()
    }

    #[test]
    fn without_a_list_everything_is_allowed_and_with_one_only_what_is_on_it() {
        let docs = server("docs", json!({"command": "docs-mcp", "args": ["x"]}));
        let mut requirements = Requirements::default();
        requirements.add("a", None);
        assert_eq!(requirements.refusal(&docs), None);
        requirements.add("a", Some(&json!({"docs": {"identity": {"command": "docs-mcp"}}, "web": {"identity": {"url": "https://h/mcp"}}})));
        assert_eq!(requirements.refusal(&docs), None);
        assert_eq!(requirements.refusal(&server("web", json!({"url": "https://h/mcp"}))), None);
        let refused = |name: &str, value: Value| requirements.refusal(&server(name, value)).unwrap();
        assert!(refused("docs", json!({"command": "evil"})).contains("another server of this name"));
        assert!(refused("web", json!({"command": "https://h/mcp"})).contains("another server of this name"));
        assert!(refused("more", json!({"command": "docs-mcp"})).contains("do not allow it"));
        requirements.add("b", Some(&json!({})));
        assert_eq!(requirements.refusal(&docs).unwrap(), "the requirements in b do not allow it", "every list must allow it");
    }

    #[test]
    fn what_cannot_be_read_allows_nothing() {
        let docs = server("docs", json!({"command": "docs"}));
        for wrong in [json!(["docs"]), json!({"docs": {}}), json!({"docs": {"identity": {"command": "docs", "args": []}}})] {
            let mut requirements = Requirements::default();
            requirements.add("/etc/r.toml", Some(&wrong));
            let why = requirements.refusal(&docs).unwrap();
            assert!(why.contains("/etc/r.toml cannot be read"), "{wrong}: {why}");
        }
        let mut requirements = Requirements::default();
        requirements.add_unreadable("r", "line 1 is broken");
        assert!(requirements.refusal(&docs).unwrap().ends_with("line 1 is broken"));
    }
}
