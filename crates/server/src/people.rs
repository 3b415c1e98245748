//! Who a client is, what it may do, and how that is written down.

mod limits;

use outpost_store::Store;
use outpost_thread::ThreadId;
use outpost_wire::{EnvironmentId, Fault};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use subtle::ConstantTimeEq;

use crate::server::ServerShared;

pub(crate) use limits::filter;

/// What a client may do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// Reads threads and follows them.
    Viewer,
    /// Starts turns, runs commands, answers questions.
    Operator,
    /// Changes the server, too: its configuration and its environments.
    #[default]
    Admin,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        })
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "viewer" => Ok(Self::Viewer),
            "operator" => Ok(Self::Operator),
            "admin" => Ok(Self::Admin),
            other => Err(format!("`{other}` is not a role: use viewer, operator or admin")),
        }
    }
}

/// Who a client is. By default it may do everything, and has no name: the credential of the server itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIdentity {
    pub name: Option<String>,
    pub role: Role,
    /// Only threads that work in these, and nothing beside them; all if there are none.
    pub environments: Vec<EnvironmentId>,
    /// Only these threads; all if there are none.
    pub threads: Vec<ThreadId>,
    /// It speaks for another node of the store.
    #[serde(skip)]
    pub is_node: bool,
}

/// What a viewer may ask for.
const VIEWS: &[&str] = &[
    "initialize",
    "account/read",
    "collaborationMode/list",
    "environment/activity",
    "environment/list",
    "environment/status",
    "environment/watch",
    "experimentalFeature/list",
    "model/list",
    "permissionProfile/list",
    "server/diagnostics",
    "skills/list",
    "thread/backgroundTerminals/list",
    "thread/entries/list",
    "thread/goal/get",
    "thread/items/list",
    "thread/items/read",
    "thread/list",
    "thread/loaded/list",
    "thread/overview",
    "thread/queue/list",
    "thread/read",
    "thread/readState/update",
    "thread/resume",
    "thread/search",
    "thread/searchOccurrences",
    "thread/turns/list",
    "thread/unsubscribe",
    "thread/verify",
    "thread/why",
];

/// What changes the server, or runs beside threads on its machine.
const ADMIN: &[&str] = &[
    "config/batchWrite",
    "config/mcpServer/reload",
    "config/value/write",
    "environment/add",
    "environment/remove",
    "experimentalFeature/enablement/set",
    "plugin/install",
    "plugin/uninstall",
    "skills/config/write",
    "skills/extraRoots/set",
];

impl ClientIdentity {
    pub fn is_limited(&self) -> bool {
        !self.environments.is_empty() || !self.threads.is_empty()
    }

    fn role_for(method: &str) -> Role {
        if VIEWS.contains(&method) {
            Role::Viewer
        } else if ADMIN.contains(&method) {
            Role::Admin
        } else {
            Role::Operator
        }
    }

    fn refusal(&self, what: &str) -> Fault {
        let name = self.name.as_deref().unwrap_or("this token");
        Fault::invalid_request(format!("{name} may not do that: {what}"))
    }

    /// Whether it may send this at all.
    fn check_role(&self, method: &str, params: &Value) -> Result<(), Fault> {
        let needed = Self::role_for(method);
        if self.role < needed {
            return Err(self.refusal(&format!("`{method}` needs the role {needed}, and its role is {}", self.role)));
        }
        // A viewer follows a thread as it is; what else a resume can carry changes it.
        let extra = ["threadId", "excludeTurns", "after", "initialTurnsPage"];
        let changes = |params: &Value| {
            params.as_object().is_some_and(|members| members.iter().any(|(key, value)| !extra.contains(&key.as_str()) && !value.is_null()))
        };
        if self.role == Role::Viewer && method == "thread/resume" && changes(params) {
            return Err(self.refusal("a viewer resumes a thread as it is"));
        }
        Ok(())
    }

    /// What it shows to another node: the secret of the nodes, and who it is.
    pub(crate) fn credential(&self, secret: &str) -> String {
        let who = serde_json::to_string(self).unwrap_or_default();
        format!("{secret}.{}", who.bytes().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    pub(crate) fn from_credential(bearer: &str, secret: &str) -> Option<Self> {
        let (shown, who) = bearer.split_once('.')?;
        if secret.is_empty() || !bool::from(shown.as_bytes().ct_eq(secret.as_bytes())) {
            return None;
        }
        let bytes: Option<Vec<u8>> =
            who.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect();
        Some(Self { is_node: true, ..serde_json::from_slice(&bytes?).ok()? })
    }
}

/// Parameters as the checks read them: a handler would read a list as well, and pass over what is nested too deeply for us.
fn readable(params: &[u8]) -> Option<Value> {
    serde_json::from_slice(params).ok().filter(|params: &Value| params.is_object() || params.is_null())
}

/// Whether a client may send this.
pub(crate) async fn admit(server: &ServerShared, identity: &ClientIdentity, method: &str, params: &[u8]) -> Result<(), Fault> {
    if *identity == ClientIdentity::default() || (identity.role == Role::Admin && !identity.is_limited()) {
        return Ok(());
    }
    let params = readable(params).ok_or_else(|| identity.refusal("its parameters must be an object, and not nested deeply"))?;
    identity.check_role(method, &params)?;
    identity.check_limits(server, method, &params).await
}

/// The secret by which nodes of a store know each other, if it has any.
pub async fn node_secret(store: &Store) -> Option<String> {
    let Store::Postgres(store) = store else { return None };
    store.shared_one(crate::forward::NODE_SECRET.0, crate::forward::NODE_SECRET.1).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::limits::{ABOUT_THREADS, LISTS};
    use super::*;

    #[test]
    fn every_method_of_the_lists_exists_and_a_viewer_gets_none_that_changes_something() {
        let table = crate::methods::table();
        for method in VIEWS.iter().chain(ADMIN).chain(LISTS).chain(ABOUT_THREADS) {
            assert!(table.names().contains(method), "{method}");
        }
        let viewer = ClientIdentity { role: Role::Viewer, ..ClientIdentity::default() };
        for method in [
            "turn/start",
            "turn/steer",
            "turn/interrupt",
            "thread/start",
            "thread/takeover",
            "command/exec",
            "fs/readFile",
            "thread/name/set",
        ] {
            assert!(viewer.check_role(method, &Value::Null).is_err(), "{method}");
        }
        assert!(viewer.check_role("thread/resume", &serde_json::json!({"threadId": "x"})).is_ok());
        assert!(viewer.check_role("thread/resume", &serde_json::json!({"threadId": "x", "model": "m"})).is_err());
        let operator = ClientIdentity { role: Role::Operator, ..ClientIdentity::default() };
        assert!(operator.check_role("turn/start", &Value::Null).is_ok() && operator.check_role("environment/add", &Value::Null).is_err());
    }

    #[test]
    fn parameters_that_the_checks_cannot_read_are_refused() {
        let deep = format!("{{\"threadId\":\"x\",\"y\":{}{}}}", "[".repeat(200), "]".repeat(200));
        for unreadable in ["[\"x\"]", "\"x\"", "1", deep.as_str()] {
            assert_eq!(readable(unreadable.as_bytes()), None, "{unreadable}");
        }
        assert_eq!((readable(b"null"), readable(b"{}")), (Some(Value::Null), Some(json!({}))));
    }

    #[test]
    fn a_node_is_known_by_the_secret_only() {
        let anna = ClientIdentity { name: Some("anna".into()), role: Role::Viewer, ..ClientIdentity::default() };
        let shown = anna.credential("secret");
        assert_eq!(ClientIdentity::from_credential(&shown, "secret"), Some(ClientIdentity { is_node: true, ..anna }));
        assert_eq!(ClientIdentity::from_credential(&shown, "other"), None);
        assert_eq!(ClientIdentity::from_credential(&shown, ""), None);
        assert_eq!(ClientIdentity::from_credential("secret", "secret"), None);
    }
}
