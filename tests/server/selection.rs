//! Which environments a turn works in: what is asked for, for how long, and what survives.

use std::path::Path;

use outpost_testkit::app::{AppServer, completed, text, thread, turn};
use outpost_testkit::model::Reply;
use outpost_testkit::{Client, ExecutorProcess};
use serde_json::{Value, json};

use super::OUTPOST;

/// A server, an executor `worker` that it knows, and a directory there.
struct Two {
    app: AppServer,
    executor: ExecutorProcess,
    there: tempfile::TempDir,
}

impl Two {
    async fn new(replies: usize) -> Self {
        let calls = (0..replies).map(|n| Reply::call(&format!("call-{n}"), "exec_command", &json!({"cmd": "pwd"})));
        // Each turn asks twice: for the command, and for the last word.
        let replies = calls.flat_map(|call| [call, Reply::message("done")]).collect();
        let app = AppServer::start(OUTPOST, replies).await;
        let home = tempfile::tempdir().unwrap();
        // Its login shell is not that of whoever runs the tests.
        let variables = [("HOME", home.path().to_str().unwrap().to_owned())];
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        let executor = ExecutorProcess::start_with(Path::new(OUTPOST), &["--no-auth"], &variables, home);
        Self { app, executor, there: tempfile::tempdir().unwrap() }
    }

    async fn client(&self) -> Client {
        let mut client = self.app.client().await;
        let add = json!({"environmentId": "worker", "execServerUrl": self.executor.url()});
        assert_eq!(client.result("environment/add", add).await, json!({}));
        client.result("environment/info", json!({"environmentId": "worker"})).await;
        client
    }

    fn here(&self) -> Value {
        json!({"environmentId": "local", "cwd": self.app.cwd()})
    }

    fn there(&self) -> Value {
        json!({"environmentId": "worker", "cwd": self.there.path()})
    }
}

/// Runs a turn with these parameters and tells where its command ran; nothing if none did.
async fn ran(client: &mut Client, thread: &str, more: Value) -> Option<String> {
    let mut params = json!({"threadId": thread, "input": text("where?")});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let started = client.result("turn/start", params).await;
    let id = started["turn"]["id"].as_str().unwrap().to_owned();
    completed(client, &id).await;
    let items = client.result("thread/items/list", json!({"threadId": thread, "turnId": id})).await;
    let command = items["data"].as_array().unwrap().iter().find(|entry| entry["item"]["type"] == "commandExecution").cloned();
    // One that was refused because there is no environment is an item without one.
    command.and_then(|entry| entry["item"]["environmentId"].as_str().map(str::to_owned))
}

fn ids(thread: &Value) -> Vec<&str> {
    thread["environments"].as_array().unwrap().iter().map(|entry| entry["environmentId"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_turn_has_its_own_selection_and_the_thread_keeps_its_own() {
    let two = Two::new(6).await;
    let mut client = two.client().await;
    let id = thread(&mut client, json!({"environments": [two.here()]})).await;
    assert_eq!(ran(&mut client, &id, json!({"environments": [two.there()]})).await.as_deref(), Some("worker"));
    assert_eq!(ran(&mut client, &id, json!({})).await.as_deref(), Some("local"));
    assert_eq!(ran(&mut client, &id, json!({"environments": []})).await, None);
    let scoped = json!({"environments": [two.there()], "environmentsScope": "thread"});
    assert_eq!(ran(&mut client, &id, scoped).await.as_deref(), Some("worker"));
    assert_eq!(ran(&mut client, &id, json!({})).await.as_deref(), Some("worker"));
    let read = client.result("thread/read", json!({"threadId": id})).await;
    assert_eq!(ids(&read["thread"]), ["worker"]);
    let (code, message) =
        client.error("turn/start", json!({"threadId": id, "input": [], "environments": [{"environmentId": "ghost", "cwd": "/"}]})).await;
    assert_eq!((code, message.as_str()), (-32600, "unknown turn environment id `ghost`"));
}

#[tokio::test]
async fn what_is_not_said_is_the_default_and_added_environments_are_no_part_of_it() {
    let two = Two::new(1).await;
    let mut client = two.client().await;
    let opened = client.result("thread/start", json!({})).await;
    assert_eq!(ids(&opened["thread"]), ["local"]);
    assert_eq!(opened["thread"]["environments"][0]["cwd"], two.app.cwd());
    let none = client.result("thread/start", json!({"environments": []})).await;
    assert!(ids(&none["thread"]).is_empty());
    let both = client.result("thread/start", json!({"environments": [two.there(), two.here()]})).await;
    assert_eq!(ids(&both["thread"]), ["worker", "local"]);
}

#[tokio::test]
async fn a_directory_moves_the_primary_and_widens_nothing() {
    let two = Two::new(1).await;
    let mut client = two.client().await;
    let id = thread(&mut client, json!({"environments": [two.there(), two.here()]})).await;
    ran(&mut client, &id, json!({"cwd": "/tmp"})).await;
    let read = client.result("thread/read", json!({"threadId": id})).await;
    assert_eq!(ids(&read["thread"]), ["worker", "local"]);
    assert_eq!(read["thread"]["environments"][0]["cwd"], "/tmp");
    assert_eq!(read["thread"]["environments"][1]["cwd"], two.app.cwd());
}

#[tokio::test]
async fn resume_and_fork_keep_the_selection_and_can_change_it() {
    let mut two = Two::new(2).await;
    let mut client = two.client().await;
    let roots = json!([{"id": "skills", "location": {"type": "environment", "environmentId": "worker", "path": "/srv/skills"}}]);
    let id = thread(&mut client, json!({"environments": [two.there()], "selectedCapabilityRoots": roots})).await;
    turn(&mut client, &id, "first").await;
    let fork = client.result("thread/fork", json!({"threadId": id})).await;
    assert_eq!(ids(&fork["thread"]), ["worker"]);
    let moved = client.result("thread/fork", json!({"threadId": id, "environments": [two.here()]})).await;
    assert_eq!(ids(&moved["thread"]), ["local"]);
    two.app.restart();
    // Nobody has added the environment yet: it stays in the selection all the same.
    let mut client = two.app.client().await;
    let resumed = client.result("thread/resume", json!({"threadId": id})).await;
    assert_eq!(ids(&resumed["thread"]), ["worker"]);
    let changed = client.result("thread/resume", json!({"threadId": id, "environments": [two.here()]})).await;
    assert_eq!(ids(&changed["thread"]), ["local"]);
    client.result("thread/settings/update", json!({"threadId": id, "environments": []})).await;
    let read = client.result("thread/read", json!({"threadId": id})).await;
    assert!(ids(&read["thread"]).is_empty());
}
