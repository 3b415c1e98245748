//! What a client that follows a thread sees of the agents that the thread makes.

use outpost_testkit::Client;
use outpost_testkit::app::{AppServer, begin, completed, notice, thread};
use outpost_testkit::model::Reply;
use serde_json::{Value, json};

use super::OUTPOST;
use super::approvals::{answer, asked};

const ASKING: &str = "approval_policy = \"untrusted\"\nsandbox_mode = \"danger-full-access\"\n[agents]\nmax_depth = 2\n";
const REQUEST: &str = "item/commandExecution/requestApproval";

fn spawn(id: &str, message: &str) -> Reply {
    Reply::call(id, "spawn_agent", &json!({"message": message}))
}

fn touch(id: &str, file: &str) -> Reply {
    Reply::call(id, "exec_command", &json!({"cmd": format!("touch {file}")}))
}

async fn item(client: &mut Client, id: &str) -> Value {
    client.until(|message| message["method"] == "item/completed" && message["params"]["item"]["id"] == id).await["params"]["item"].take()
}

async fn of_thread(client: &mut Client, method: &str, thread: &str) -> Value {
    client.until(|message| message["method"] == method && message["params"]["threadId"] == thread).await["params"].take()
}

/// The id of the agent that a call made.
async fn made(client: &mut Client, call: &str) -> String {
    let item = item(client, call).await;
    let child = item["receiverThreadIds"][0].as_str().unwrap_or_else(|| panic!("no receiver: {item}")).to_owned();
    assert_eq!(item["agentsStates"], json!({&child: {"status": "running", "message": null}}), "{item}");
    child
}

/// Agents of agents, too: they are announced, they are heard from their first turn on, and their questions are asked.
#[tokio::test]
async fn agents_are_heard_and_ask() {
    let app = AppServer::start_with(OUTPOST, vec![], ASKING).await;
    app.model.push_for("\"text\":\"inner job\"", touch("inner", "made"));
    app.model.push_for("\"text\":\"outer job\"", spawn("deeper", "inner job"));
    app.model.push_for("\"text\":\"begin\"", spawn("spawned", "outer job"));
    let mut client = app.client().await;
    let root = thread(&mut client, json!({})).await;
    begin(&mut client, &root, "begin").await;
    let child = made(&mut client, "spawned").await;
    let grandchild = made(&mut client, "deeper").await;
    for (agent, maker) in [(&child, &root), (&grandchild, &child)] {
        let started = client.until(|message| message["params"]["thread"]["id"] == **agent).await;
        assert_eq!(started["method"], "thread/started");
        assert_eq!(started["params"]["thread"]["parentThreadId"], **maker);
        let turn = of_thread(&mut client, "turn/started", agent).await;
        assert_eq!(turn["turn"]["status"], "inProgress");
        // What was asked of it, before anything else.
        assert_eq!(of_thread(&mut client, "item/started", agent).await["item"]["type"], "userMessage");
    }
    let question = asked(&mut client, REQUEST).await;
    assert_eq!(question["params"]["threadId"], grandchild);
    assert!(!app.work().join("made").exists());
    answer(&client, &question, json!({"decision": "accept"}));
    of_thread(&mut client, "serverRequest/resolved", &grandchild).await;
    assert_eq!(of_thread(&mut client, "turn/completed", &grandchild).await["turn"]["status"], "completed");
    assert!(app.work().join("made").exists());
    // Whoever does not hear of the root any more does not hear of its agents.
    client.result("thread/unsubscribe", json!({"threadId": root})).await;
    let status = client.result("thread/unsubscribe", json!({"threadId": grandchild})).await;
    assert_eq!(status["status"], "notSubscribed");
}

/// A client that comes later, also after a restart, is asked what the agents still want to know.
#[tokio::test]
async fn whoever_comes_later_is_asked_as_well() {
    let mut app = AppServer::start_with(OUTPOST, vec![], ASKING).await;
    app.model.push_for("\"text\":\"job\"", touch("inner", "made"));
    app.model.push_for("\"text\":\"begin\"", spawn("spawned", "job"));
    let mut client = app.client().await;
    let root = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &root, "begin").await;
    let child = made(&mut client, "spawned").await;
    asked(&mut client, REQUEST).await;
    completed(&mut client, &turn).await;
    let mut second = app.client().await;
    second.result("thread/resume", json!({"threadId": root})).await;
    assert_eq!(asked(&mut second, REQUEST).await["params"]["threadId"], child);
    app.restart();
    let mut third = app.client().await;
    third.result("thread/resume", json!({"threadId": root})).await;
    let question = asked(&mut third, REQUEST).await;
    assert_eq!(question["params"]["threadId"], child);
    answer(&third, &question, json!({"decision": "accept"}));
    assert_eq!(of_thread(&mut third, "turn/completed", &child).await["turn"]["status"], "completed");
    // Telling it more and ending it is seen, too.
    let call = |id: &str, tool: &str, arguments: Value| Reply::call(id, tool, &arguments);
    app.model.push_for("\"text\":\"wait\"", call("waited", "wait_agent", json!({"targets": [child]})));
    begin(&mut third, &root, "wait").await;
    let waited = item(&mut third, "waited").await;
    assert_eq!(waited["receiverThreadIds"], json!([child]));
    assert_eq!(waited["agentsStates"], json!({&child: {"status": "completed", "message": "done"}}));
    app.model.push_for("\"text\":\"close\"", call("closed", "close_agent", json!({"target": child})));
    begin(&mut third, &root, "close").await;
    assert_eq!(item(&mut third, "closed").await["agentsStates"], json!({&child: {"status": "shutdown", "message": null}}));
    assert_eq!(notice(&mut third, "thread/closed").await["threadId"], child);
}
