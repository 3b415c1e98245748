//! What the limits of a token leave of the protocol: threads, and the environments that may be named.

use outpost_store::{ClaimError, ReadError, Store};
use outpost_thread::ThreadId;
use outpost_wire::Fault;
use outpost_wire::app::methods::{MethodSubject, access};
use outpost_wire::intent::Selection;
use serde_json::Value;

use super::{ClientIdentity, Role};
use crate::fault;
use crate::methods::reading;
use crate::server::ServerShared;

impl ClientIdentity {
    /// Whether the limits of its token allow what it asks for.
    pub(super) async fn check_limits(&self, server: &ServerShared, method: &str, params: &Value) -> Result<(), Fault> {
        if !self.is_limited() {
            return Ok(());
        }
        let threads = self.check_names(method, params)?;
        for thread in &threads {
            if !self.sees(server, *thread).await? {
                return Err(self.refusal(&format!("its token is not for thread {thread}")));
            }
        }
        if self.environments.is_empty() && moves(params) {
            for thread in threads {
                self.check_move(server, thread, params).await?;
            }
        }
        Ok(())
    }

    /// A token that is limited to threads, and not to environments, leaves each where it works: it may take environments away.
    async fn check_move(&self, server: &ServerShared, thread: ThreadId, params: &Value) -> Result<(), Fault> {
        let (state, _, _) = reading::state_of(server, thread).await?;
        let selection = state.selection.unwrap_or_default();
        let named = named_environments(params).unwrap_or_default();
        let is_own = |id: &str| selection.attachments().iter().any(|attachment| attachment.environment_id.as_str() == id);
        if let Some(other) = named.iter().find(|id| !is_own(id)) {
            let limits = "its token is limited to threads, and this one does not work in";
            return Err(self.refusal(&format!(
                "{limits} the environment `{other}`; a token for both says so: --thread {thread} --environment {other}"
            )));
        }
        // Whatever selects anew makes `local` the machine of the node that drives the thread. That node checks it.
        if selection.attachments().iter().any(|attachment| attachment.environment_id.is_local())
            && let Some(host) = state.local_host.filter(|host| is_other_host(server, host))
            && !is_driven_elsewhere(server, thread).await?
        {
            return Err(self.refusal(&format!("its token is limited to threads, and `local` of this one is the machine {host}")));
        }
        Ok(())
    }

    /// Whether the limits of its token allow what it names; the threads that are left to check.
    pub(super) fn check_names(&self, method: &str, params: &Value) -> Result<Vec<ThreadId>, Fault> {
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
        // Files of the server's machine are in no environment.
        if !is_free_of_files(&params["input"]) {
            return Err(self.refusal("its token is limited, so write input as objects, and send a picture itself instead of a path"));
        }
        // A server's program runs where its declaration says.
        if !params["config"]["mcp_servers"].is_null() {
            return Err(self.refusal("its token is limited, so it declares no MCP servers"));
        }
        // An answer may carry a rule about commands, which counts for every thread. Handlers read it in a list as well.
        let answer = &params["detail"];
        if method == "thread/approval/answer" && !(answer.is_null() || answer.is_object() && answer["prefix"].is_null()) {
            return Err(
                self.refusal("its token is limited, so it makes no rules about commands; approve this command, or those of this thread")
            );
        }
        if method == "thread/fork" && !self.threads.is_empty() {
            return Err(self.refusal("its token is limited to threads, so it starts none"));
        }
        let access = access(method);
        if access.subject == MethodSubject::Threads {
            return named_threads(params).ok_or_else(|| self.refusal("its token is limited, so name a thread by its id"));
        }
        if access.subject == MethodSubject::ThreadLists || access.role == Role::Viewer {
            return Ok(Vec::new());
        }
        // What is about no thread makes one, or runs beside all of them.
        let names_some = params["environments"].as_array().is_some_and(|list| !list.is_empty());
        if method == "thread/start" && self.threads.is_empty() {
            return if names_some { Ok(Vec::new()) } else { Err(self.refusal("its token is for single environments, so name them")) };
        }
        Err(self.refusal("its token is limited to threads or environments, and this belongs to none"))
    }

    /// Whether the limits of its token allow answers to questions of a thread, which it hears of because it opened the other one. Agents
    /// belong to the thread that made them; they must not work elsewhere.
    pub(crate) async fn may_answer(&self, server: &ServerShared, thread: ThreadId, opened: ThreadId) -> Result<bool, Fault> {
        let of_places = Self { threads: Vec::new(), ..self.clone() };
        Ok(self.sees(server, opened).await? && (thread == opened || of_places.sees(server, thread).await?))
    }

    /// Whether a thread is within the limits of its token. Where a thread works may have to be read from the store, which may not answer.
    pub(crate) async fn sees(&self, server: &ServerShared, thread: ThreadId) -> Result<bool, Fault> {
        if !self.threads.is_empty() && !self.threads.contains(&thread) {
            return Ok(false);
        }
        if self.environments.is_empty() {
            return Ok(true);
        }
        // A thread without environments works in none of these.
        let is_within = |selection: &Selection| {
            let mut attachments = selection.attachments().iter().peekable();
            attachments.peek().is_some() && attachments.all(|attachment| self.environments.contains(&attachment.environment_id))
        };
        // One that is just being unloaded is in the store.
        if let Some(live) = server.runtime.get(thread)
            && let Ok(state) = live.snapshot().await
        {
            // The turn that runs may work elsewhere than the thread does.
            return Ok(state.selection.as_ref().is_some_and(is_within) && state.effective_selection().is_some_and(is_within));
        }
        match server.runtime.store().summary(thread).await {
            Ok(summary) => Ok(summary.and_then(|summary| summary.selection).as_ref().is_some_and(is_within)),
            // What is wrong with one thread alone is in the way of no other.
            Err(ReadError::NotFound(_) | ReadError::Lineage { .. } | ReadError::Journal { .. }) => Ok(false),
            Err(error) => Err(fault::read(error)),
        }
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

/// Whether a request changes where a thread works. A new working directory is written as a selection, too.
fn moves(params: &Value) -> bool {
    const PLACES: [&str; 6] = ["environments", "selectedCapabilityRoots", "environmentId", "environment", "cwd", "runtimeWorkspaceRoots"];
    PLACES.iter().any(|member| !params[*member].is_null())
}

/// Whether no part of what is said is a file of the server's machine.
fn is_free_of_files(input: &Value) -> bool {
    let is_free = |part: &Value| part["type"].as_str().is_some_and(|kind| kind != "localImage");
    input.is_null() || input.as_array().is_some_and(|parts| parts.iter().all(is_free))
}

/// Whether this is the name of another machine than that of this node.
fn is_other_host(server: &ServerShared, host: &str) -> bool {
    matches!(server.runtime.store(), Store::Postgres(store) if store.host() != host)
}

/// Whether requests about a thread are passed on to another node.
async fn is_driven_elsewhere(server: &ServerShared, thread: ThreadId) -> Result<bool, Fault> {
    let Store::Postgres(store) = server.runtime.store() else { return Ok(false) };
    if server.runtime.get(thread).is_some() {
        return Ok(false);
    }
    match store.holder(thread).await {
        Ok(holder) => Ok(holder.is_some_and(|holder| holder.instance != store.instance())),
        Err(ClaimError::NotFound(_)) => Ok(false),
        Err(error) => Err(Fault::internal(error)),
    }
}

/// What is left of a list of threads for a client whose token is limited.
pub(crate) async fn filter(server: &ServerShared, identity: &ClientIdentity, method: &str, frame: Vec<u8>) -> Result<Vec<u8>, Fault> {
    if !identity.is_limited() || access(method).subject != MethodSubject::ThreadLists {
        return Ok(frame);
    }
    let Ok(mut answer) = serde_json::from_slice::<Value>(&frame) else { return Ok(frame) };
    let Some(Value::Array(all)) = answer.pointer_mut("/result/data").map(Value::take) else { return Ok(frame) };
    let mut left = Vec::new();
    for one in all {
        let named = [&one, &one["id"], &one["threadId"], &one["thread"]["id"]].into_iter().find_map(Value::as_str);
        let thread: Option<ThreadId> = named.and_then(|text| text.parse().ok());
        if let Some(thread) = thread
            && identity.sees(server, thread).await?
        {
            left.push(one);
        }
    }
    answer["result"]["data"] = Value::Array(left);
    Ok(answer.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_thread_that_is_named_beside_the_matter_opens_nothing() {
        let thread = "0199a3c0-0000-7000-8000-000000000001";
        let one = ClientIdentity { threads: vec![thread.parse().unwrap()], ..ClientIdentity::default() };
        let place = ClientIdentity { environments: vec!["box".parse().unwrap()], ..ClientIdentity::default() };
        let names = json!({"threadId": thread, "threadIds": [thread]});
        let free = |method: &&&str| access(method).subject == MethodSubject::Server && access(method).role != Role::Viewer;
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
    }

    /// A rule counts for every thread. A struct is read from a list as well.
    #[test]
    fn a_limited_token_makes_no_rule_by_an_answer() {
        let thread = "0199a3c0-0000-7000-8000-000000000001";
        let one = ClientIdentity { threads: vec![thread.parse().unwrap()], ..ClientIdentity::default() };
        let answer = |detail: Value| json!({"threadId": thread, "approvalId": "a", "decision": "approved", "detail": detail});
        for detail in [Value::Null, json!({}), json!({"success": true, "contentItems": []}), json!({"prefix": null})] {
            assert!(one.check_names("thread/approval/answer", &answer(detail.clone())).is_ok(), "{detail}");
        }
        for detail in [json!({"prefix": ["touch"]}), json!({"prefix": "touch"}), json!([["touch"]])] {
            assert!(one.check_names("thread/approval/answer", &answer(detail.clone())).is_err(), "{detail}");
        }
    }

    /// Where the schema of the protocol says `environment`, the check looks.
    #[test]
    fn no_method_names_an_environment_where_the_check_does_not_look() {
        let schema: Value = serde_json::from_str(include_str!("../../../../schema/app.json")).unwrap();
        let places = ["environments[].environmentId", "selectedCapabilityRoots[].location.environmentId", "environmentId"];
        let mut seen = Vec::new();
        for (method, shapes) in schema["methods"].as_object().unwrap() {
            let mut found = Vec::new();
            members(&schema["$defs"], &shapes["params"], "", &mut vec![], &mut found);
            for path in found {
                assert!(places.contains(&path.as_str()), "{method} names an environment in `{path}`");
                seen.push(format!("{method} {path}"));
            }
        }
        for known in ["turn/start environments[].environmentId", "thread/shellCommand environmentId", "fs/readFile environmentId"] {
            assert!(seen.iter().any(|one| one == known), "{known} is not found in {seen:#?}");
        }
    }

    /// The paths of all texts that are called after environments.
    fn members(defs: &Value, shape: &Value, path: &str, inside: &mut Vec<String>, found: &mut Vec<String>) {
        let name = shape["$ref"].as_str().and_then(|name| name.rsplit('/').next());
        if let Some(name) = name.filter(|name| !inside.iter().any(|outer| outer == name)) {
            inside.push(name.to_owned());
            members(defs, &defs[name], path, inside, found);
            inside.pop();
        }
        for (name, inner) in shape["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let is_text = inner["type"] == "string" || inner["type"].as_array().is_some_and(|kinds| kinds.contains(&json!("string")));
            if is_text && name.to_lowercase().contains("environment") {
                found.push(path.clone());
            }
            members(defs, inner, &path, inside, found);
        }
        for choice in ["anyOf", "oneOf", "allOf"].iter().flat_map(|key| shape[*key].as_array().into_iter().flatten()) {
            members(defs, choice, path, inside, found);
        }
        if shape["items"].is_object() {
            members(defs, &shape["items"], &format!("{path}[]"), inside, found);
        }
    }

    #[test]
    fn a_limited_token_says_nothing_that_is_a_file_of_the_server() {
        let thread = "0199a3c0-0000-7000-8000-000000000001";
        let one = ClientIdentity { threads: vec![thread.parse().unwrap()], ..ClientIdentity::default() };
        let said = |input: Value| json!({"threadId": thread, "input": input});
        let picture = json!({"type": "localImage", "path": "/etc/logo.png"});
        for method in ["turn/start", "turn/steer", "thread/queue/add", "thread/queue/update"] {
            assert!(one.check_names(method, &said(json!([{"type": "text", "text": "hi"}]))).is_ok(), "{method}");
            for input in
                [json!([picture]), json!([["localImage", "/etc/logo.png"]]), json!({"0": picture}), json!([{"type": ["localImage"]}])]
            {
                assert!(one.check_names(method, &said(input.clone())).is_err(), "{method} {input}");
            }
        }
    }
}
