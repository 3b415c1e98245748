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

/// These are about the threads that they name. A thread that is named to any other method means nothing there: it does what it does
/// beside all threads.
const ABOUT_THREADS: &[&str] = &[
    "app/list",
    "mcpServer/resource/read",
    "mcpServer/tool/call",
    "mcpServerStatus/list",
    "review/start",
    "thread/approval/answer",
    "thread/archive",
    "thread/backgroundTerminals/clean",
    "thread/backgroundTerminals/list",
    "thread/backgroundTerminals/terminate",
    "thread/compact/start",
    "thread/delete",
    "thread/entries/list",
    "thread/fork",
    "thread/goal/clear",
    "thread/goal/get",
    "thread/goal/set",
    "thread/inject_items",
    "thread/items/list",
    "thread/items/read",
    "thread/metadata/update",
    "thread/name/set",
    "thread/overview",
    "thread/queue/add",
    "thread/queue/delete",
    "thread/queue/list",
    "thread/queue/reorder",
    "thread/queue/start",
    "thread/queue/update",
    "thread/read",
    "thread/readState/update",
    "thread/resume",
    "thread/revert",
    "thread/sample",
    "thread/searchOccurrences",
    "thread/settings/update",
    "thread/shellCommand",
    "thread/takeover",
    "thread/turns/list",
    "thread/unarchive",
    "thread/unsubscribe",
    "thread/verify",
    "thread/why",
    "turn/interrupt",
    "turn/settings/update",
    "turn/start",
    "turn/steer",
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

    /// Whether the limits of its token allow what it asks for.
    async fn check_limits(&self, server: &ServerShared, method: &str, params: &Value) -> Result<(), Fault> {
        if !self.is_limited() {
            return Ok(());
        }
        for thread in self.check_names(method, params)? {
            if !self.sees(server, thread).await {
                return Err(self.refusal(&format!("its token is not for thread {thread}")));
            }
        }
        Ok(())
    }

    /// Whether the limits of its token allow what it names; the threads that are left to check.
    fn check_names(&self, method: &str, params: &Value) -> Result<Vec<ThreadId>, Fault> {
        let unreadable = || self.refusal("its token is limited, so write environments and capability roots as objects with their ids");
        let named = named_environments(params).ok_or_else(unreadable)?;
        if let Some(other) =
            named.iter().find(|id| !self.environments.is_empty() && !self.environments.iter().any(|own| own.as_str() == **id))
        {
            return Err(self.refusal(&format!("its token is not for the environment `{other}`")));
        }
        // A journal or a history in the place of an id would lead past the check.
        if ["path", "history"].iter().any(|member| !params[*member].is_null()) {
            return Err(self.refusal("its token is limited, so name a thread by its id"));
        }
        // A server's program runs where its declaration says.
        if !params["config"]["mcp_servers"].is_null() {
            return Err(self.refusal("its token is limited, so it declares no MCP servers"));
        }
        if method == "thread/fork" && !self.threads.is_empty() {
            return Err(self.refusal("its token is limited to threads, so it starts none"));
        }
        if ABOUT_THREADS.contains(&method) {
            return named_threads(params).ok_or_else(|| self.refusal("its token is limited, so name a thread by its id"));
        }
        if LISTS.contains(&method) || VIEWS.contains(&method) {
            return Ok(Vec::new());
        }
        // What is about no thread makes one, or runs beside all of them.
        let names_some = params["environments"].as_array().is_some_and(|list| !list.is_empty());
        if method == "thread/start" && self.threads.is_empty() {
            return if names_some { Ok(Vec::new()) } else { Err(self.refusal("its token is for single environments, so name them")) };
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
        // A thread without environments works in none of these.
        selection.is_some_and(|selection| {
            let mut attachments = selection.attachments().iter().peekable();
            attachments.peek().is_some() && attachments.all(|attachment| self.environments.contains(&attachment.environment_id))
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

/// All environments that are named; nothing if some cannot be read here, since a handler may read them all the same.
fn named_environments(params: &Value) -> Option<Vec<&str>> {
    let elements = |member: &str| match &params[member] {
        Value::Null => Some(<&[Value]>::default()),
        Value::Array(list) => Some(list.as_slice()),
        _ => None,
    };
    let attached = elements("environments")?.iter().map(|one| one["environmentId"].as_str());
    let roots = elements("selectedCapabilityRoots")?.iter().map(|one| one["location"]["environmentId"].as_str());
    let alone = ["environmentId", "environment"].into_iter().filter_map(|member| params[member].as_str()).map(Some);
    attached.chain(roots).chain(alone).collect()
}

/// All threads that are named; nothing if there is none, or one that is no id.
fn named_threads(params: &Value) -> Option<Vec<ThreadId>> {
    let listed = match &params["threadIds"] {
        Value::Null => None,
        list => Some(list.as_array()?),
    };
    let alone = &params["threadId"];
    if listed.is_none() && alone.is_null() {
        return None;
    }
    let all = listed.into_iter().flatten().chain(Some(alone).filter(|alone| !alone.is_null()));
    all.map(|one| one.as_str()?.parse::<ThreadId>().ok()).collect()
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
    use serde_json::json;

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
    fn a_thread_that_is_named_beside_the_matter_opens_nothing() {
        let thread = "0199a3c0-0000-7000-8000-000000000001";
        let one = ClientIdentity { threads: vec![thread.parse().unwrap()], ..ClientIdentity::default() };
        let place = ClientIdentity { environments: vec!["box".parse().unwrap()], ..ClientIdentity::default() };
        let names = json!({"threadId": thread, "threadIds": [thread]});
        let free = |method: &&&str| !ABOUT_THREADS.contains(*method) && !VIEWS.contains(*method) && !LISTS.contains(*method);
        let table = crate::methods::table();
        for method in table.names().iter().filter(free) {
            for who in [&one, &place] {
                assert!(who.check_names(method, &names).is_err(), "{method}");
            }
        }
        assert!(["command/exec", "fs/readFile", "process/spawn", "config/value/write", "thread/start"].iter().all(|name| free(&name)));
        assert_eq!(one.check_names("turn/start", &names).unwrap().len(), 2);
        assert!(one.check_names("thread/fork", &names).is_err() && place.check_names("thread/fork", &names).is_ok());
        for unnamed in [json!({}), json!({"threadId": "x"}), json!({"threadId": 1}), json!({"threadIds": thread})] {
            assert!(one.check_names("thread/read", &unnamed).is_err(), "{unnamed}");
        }
    }

    #[test]
    fn environments_that_the_check_cannot_read_are_refused() {
        let place = ClientIdentity { environments: vec!["box".parse().unwrap()], ..ClientIdentity::default() };
        let own = json!({"environmentId": "box", "cwd": "/"});
        let root = |location: Value| json!({"environments": [own], "selectedCapabilityRoots": [{"id": "r", "location": location}]});
        let good = [json!({"environments": [own]}), root(json!({"type": "environment", "environmentId": "box", "path": "/"}))];
        for params in good {
            assert!(place.check_names("thread/start", &params).is_ok(), "{params}");
        }
        for params in [
            json!({"environments": [own, ["local", "/"]]}),
            json!({"environments": [own, {"environmentId": ["local"]}]}),
            json!({"environments": {"0": own}}),
            json!({"environments": [own, {"environmentId": "local"}]}),
            root(json!({"type": "environment", "environmentId": "local", "path": "/"})),
            root(json!(["environment", "local", "/"])),
            json!({"environments": [own], "selectedCapabilityRoots": [["r", {"type": "environment", "environmentId": "local", "path": "/"}]]}),
            json!({"environments": [own], "config": {"mcp_servers": {"x": {"command": "id"}}}}),
        ] {
            assert!(place.check_names("thread/start", &params).is_err(), "{params}");
        }
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
