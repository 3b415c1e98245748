//! Who a client is, what it may do, and how that is written down.

mod limits;

use outpost_store::Store;
use outpost_thread::ThreadId;
use outpost_wire::app::methods::access;
use outpost_wire::{EnvironmentId, Fault};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use subtle::ConstantTimeEq;

use crate::server::ServerShared;

pub(crate) use limits::filter;
pub use outpost_wire::app::methods::Role;

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

impl ClientIdentity {
    pub fn is_limited(&self) -> bool {
        !self.environments.is_empty() || !self.threads.is_empty()
    }

    fn refusal(&self, what: &str) -> Fault {
        let name = self.name.as_deref().unwrap_or("this token");
        Fault::invalid_request(format!("{name} may not do that: {what}"))
    }

    /// Whether it may send this at all.
    fn check_role(&self, method: &str, params: &Value) -> Result<(), Fault> {
        let needed = access(method).role;
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

    use super::*;

    #[test]
    fn a_viewer_gets_no_method_that_changes_something() {
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
