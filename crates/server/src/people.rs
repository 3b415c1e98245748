//! Who a client is, what it may do, and how that is written down.

use outpost_store::Store;
use outpost_thread::ThreadId;
use outpost_wire::{EnvironmentId, Fault};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use subtle::ConstantTimeEq;

use crate::server::ServerShared;

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
            other => Err(format!("`{other}` is no role: use viewer, operator or admin")),
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

/// These name threads in lists; a client that is limited gets what is left of them.
const LISTS: &[&str] = &["thread/list", "thread/loaded/list", "thread/search"];

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

    /// Whether the limits of its token allow what it asks for.
    async fn check_limits(&self, server: &ServerShared, method: &str, params: &Value) -> Result<(), Fault> {
        if !self.is_limited() {
            return Ok(());
        }
        let named = named_environments(params);
        if let Some(other) =
            named.iter().find(|id| !self.environments.is_empty() && !self.environments.iter().any(|own| own.as_str() == **id))
        {
            return Err(self.refusal(&format!("its token is not for the environment `{other}`")));
        }
        // A journal or a history in the place of an id would lead past the check.
        if ["path", "history"].iter().any(|member| !params[*member].is_null()) {
            return Err(self.refusal("its token is limited, so name a thread by its id"));
        }
        let threads = named_threads(params);
        for thread in &threads {
            if !self.sees(server, *thread).await {
                return Err(self.refusal(&format!("its token is not for thread {thread}")));
            }
        }
        if !threads.is_empty() || LISTS.contains(&method) || (VIEWS.contains(&method) && method != "thread/resume") {
            return Ok(());
        }
        // What names no thread makes one, or runs beside all of them.
        let names_some = params["environments"].as_array().is_some_and(|list| !list.is_empty());
        if method == "thread/start" && self.threads.is_empty() {
            return if names_some { Ok(()) } else { Err(self.refusal("its token is for single environments, so name them")) };
        }
        Err(self.refusal("its token is limited to threads or environments, and this belongs to none"))
    }

    /// Whether a thread is within the limits of its token.
    pub(crate) async fn sees(&self, server: &ServerShared, thread: ThreadId) -> bool {
        if !self.threads.is_empty() && !self.threads.contains(&thread) {
            return false;
        }
        if self.environments.is_empty() {
            return true;
        }
        let selection = match server.runtime.get(thread) {
            Some(live) => live.snapshot().await.ok().and_then(|state| state.selection.clone()),
            None => server.runtime.store().summary(thread).await.ok().flatten().and_then(|summary| summary.selection),
        };
        selection.is_some_and(|selection| {
            selection.attachments().iter().all(|attachment| self.environments.contains(&attachment.environment_id))
        })
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

fn named_environments(params: &Value) -> Vec<&str> {
    let listed = params["environments"].as_array().into_iter().flatten().filter_map(|one| one["environmentId"].as_str());
    listed.chain(params["environmentId"].as_str()).chain(params["environment"].as_str()).collect()
}

fn named_threads(params: &Value) -> Vec<ThreadId> {
    let listed = params["threadIds"].as_array().into_iter().flatten().filter_map(Value::as_str);
    listed.chain(params["threadId"].as_str()).filter_map(|text| text.parse().ok()).collect()
}

/// Whether a client may send this.
pub(crate) async fn admit(server: &ServerShared, identity: &ClientIdentity, method: &str, params: &[u8]) -> Result<(), Fault> {
    if *identity == ClientIdentity::default() || (identity.role == Role::Admin && !identity.is_limited()) {
        return Ok(());
    }
    let params: Value = serde_json::from_slice(params).unwrap_or_default();
    identity.check_role(method, &params)?;
    identity.check_limits(server, method, &params).await
}

/// What is left of a list of threads for a client whose token is limited.
pub(crate) async fn filter(server: &ServerShared, identity: &ClientIdentity, method: &str, frame: Vec<u8>) -> Vec<u8> {
    if !identity.is_limited() || !LISTS.contains(&method) {
        return frame;
    }
    let Ok(mut answer) = serde_json::from_slice::<Value>(&frame) else { return frame };
    let Some(Value::Array(all)) = answer.pointer_mut("/result/data").map(Value::take) else { return frame };
    let mut left = Vec::new();
    for one in all {
        let named = [&one, &one["id"], &one["threadId"], &one["thread"]["id"]].into_iter().find_map(Value::as_str);
        let thread: Option<ThreadId> = named.and_then(|text| text.parse().ok());
        if let Some(thread) = thread
            && identity.sees(server, thread).await
        {
            left.push(one);
        }
    }
    answer["result"]["data"] = Value::Array(left);
    answer.to_string().into_bytes()
}

/// The secret by which nodes of a store know each other, if it has any.
pub async fn node_secret(store: &Store) -> Option<String> {
    let Store::Postgres(store) = store else { return None };
    store.shared_one(crate::forward::NODE_SECRET.0, crate::forward::NODE_SECRET.1).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_the_lists_exists_and_a_viewer_gets_none_that_changes_something() {
        let table = crate::methods::table();
        for method in VIEWS.iter().chain(ADMIN).chain(LISTS) {
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
    fn a_node_is_known_by_the_secret_only() {
        let anna = ClientIdentity { name: Some("anna".into()), role: Role::Viewer, ..ClientIdentity::default() };
        let shown = anna.credential("secret");
        assert_eq!(ClientIdentity::from_credential(&shown, "secret"), Some(ClientIdentity { is_node: true, ..anna }));
        assert_eq!(ClientIdentity::from_credential(&shown, "other"), None);
        assert_eq!(ClientIdentity::from_credential(&shown, ""), None);
        assert_eq!(ClientIdentity::from_credential("secret", "secret"), None);
    }
}
