//! `item/permissions/requestApproval`: what clients are asked, what they may answer, and what becomes of it.

use outpost_testkit::app::{AppServer, begin, completed, introduce, notice, thread};
use outpost_testkit::model::Reply;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::OUTPOST;
use super::approvals::{answer, asked};

const ASKING: &str = "approval_policy = \"on-request\"\nsandbox_mode = \"read-only\"\n";
const REQUEST: &str = "item/permissions/requestApproval";

fn ask(id: &str, permissions: &Value) -> Reply {
    Reply::call(id, "request_permissions", &json!({"reason": "to build it", "permissions": permissions}))
}

fn touch(id: &str, directory: &TempDir, name: &str) -> Reply {
    Reply::call(id, "exec_command", &json!({"cmd": format!("touch {}", directory.path().join(name).display())}))
}

#[tokio::test]
async fn the_shapes_on_the_wire() {
    let (data, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let wanted = json!({"network": {"enabled": true}, "file_system": {"write": [data.path(), other.path()]}});
    let replies = vec![
        Reply::message("hello"),
        ask("p", &wanted),
        touch("c1", &data, "granted"),
        touch("c2", &other, "kept"),
        Reply::message("done"),
        touch("c3", &data, "over"),
        Reply::message("done"),
    ];
    let app = AppServer::start_with(OUTPOST, replies, ASKING).await;
    // A client that knows nothing of what is experimental is asked as well.
    let (mut one, mut two) = (app.client().await, app.connect().await);
    introduce(&mut two, json!({})).await;
    let id = thread(&mut one, json!({})).await;
    outpost_testkit::app::turn(&mut one, &id, "hi").await;
    two.result("thread/resume", json!({"threadId": id})).await;
    let turn = begin(&mut one, &id, "go").await;
    let (first, second) = (asked(&mut one, REQUEST).await, asked(&mut two, REQUEST).await);
    assert_eq!(first, second, "the same question under the same number");
    let mut params = first["params"].clone();
    assert!(params["startedAtMs"].take().as_u64().unwrap() > 0 && params["approvalId"].take().is_string());
    let (mut paths, mut entries) = (vec![data.path(), other.path()], vec![]);
    paths.sort();
    entries.extend(paths.iter().map(|path| json!({"path": {"type": "path", "path": path}, "access": "write"})));
    let expected = json!({
        "threadId": id, "turnId": turn, "itemId": "p", "environmentId": "local", "cwd": app.cwd(), "reason": "to build it",
        "startedAtMs": null, "approvalId": null,
        "permissions": {
            "network": {"enabled": true},
            "fileSystem": {"read": null, "write": paths, "globScanMaxDepth": null, "entries": entries},
        },
    });
    assert_eq!(params, expected);
    let waits = json!({"type": "active", "activeFlags": ["waitingOnApproval"]});
    one.until(|message| message["method"] == "thread/status/changed" && message["params"]["status"] == waits).await;
    // A part of it, and more than was asked for.
    answer(&two, &second, json!({"permissions": {"fileSystem": {"write": [data.path(), "/etc"]}}}));
    for client in [&mut one, &mut two] {
        let resolved = notice(client, "serverRequest/resolved").await;
        assert_eq!((&resolved["requestId"], &resolved["threadId"]), (&first["id"], &json!(id)));
    }
    assert_eq!(completed(&mut one, &turn).await["status"], "completed");
    assert!(data.path().join("granted").exists() && !other.path().join("kept").exists());
    let told = app.model.requests().iter().map(|request| request.body.to_string()).find(|body| body.contains("Granted in environment"));
    let told = told.unwrap();
    let granted = told.split("Granted in environment").nth(1).unwrap().split("\"}").next().unwrap().to_owned();
    assert!(granted.contains("until this turn ends") && !granted.contains("/etc") && !granted.contains("network"), "{granted}");
    // Without a scope it was for the turn.
    let turn = begin(&mut one, &id, "again").await;
    completed(&mut one, &turn).await;
    assert!(!data.path().join("over").exists());
}

#[tokio::test]
async fn nothing_granted_is_a_no() {
    let data = TempDir::new().unwrap();
    let wanted = json!({"file_system": {"write": [data.path()]}});
    let replies = vec![ask("p1", &wanted), ask("p2", &wanted), ask("p3", &wanted), touch("c", &data, "x"), Reply::message("went on")];
    let app = AppServer::start_with(OUTPOST, replies, ASKING).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "go").await;
    let request = asked(&mut client, REQUEST).await;
    answer(&client, &request, json!({"permissions": {}}));
    let request = asked(&mut client, REQUEST).await;
    answer(&client, &request, json!({"permissions": {"network": null, "fileSystem": {"read": [], "write": []}}, "scope": "session"}));
    // An answer that is none leaves the question to others, and there are none.
    let request = asked(&mut client, REQUEST).await;
    answer(&client, &request, json!({"permissions": {"fileSystem": {"write": [data.path()]}}, "scope": "forever"}));
    assert_eq!(completed(&mut client, &turn).await["status"], "completed");
    assert!(!data.path().join("x").exists());
    let told = app.model.requests().last().unwrap().body.to_string();
    assert!(told.contains("said no") && told.contains("granted nothing"), "{told}");
}

#[tokio::test]
async fn killed_while_it_waits_and_after_it_was_granted() {
    let data = TempDir::new().unwrap();
    let wanted = json!({"file_system": {"write": [data.path()]}});
    let replies =
        vec![ask("p", &wanted), touch("c1", &data, "one"), Reply::message("done"), touch("c2", &data, "two"), Reply::message("done")];
    let mut app = AppServer::start_with(OUTPOST, replies, ASKING).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    begin(&mut client, &id, "go").await;
    let before = asked(&mut client, REQUEST).await;
    app.restart();
    let mut client = app.client().await;
    let resumed = client.result("thread/resume", json!({"threadId": id})).await;
    assert_eq!(resumed["thread"]["status"], json!({"type": "active", "activeFlags": ["waitingOnApproval"]}));
    let after = asked(&mut client, REQUEST).await;
    let stripped = |request: &Value| request["params"].clone();
    assert_eq!(stripped(&after), stripped(&before), "the same question with the same id");
    answer(&client, &after, json!({"permissions": after["params"]["permissions"], "scope": "session"}));
    let turn = after["params"]["turnId"].as_str().unwrap();
    assert_eq!(completed(&mut client, turn).await["status"], "completed");
    assert!(data.path().join("one").exists());
    app.restart();
    let mut client = app.client().await;
    client.result("thread/resume", json!({"threadId": id})).await;
    let turn = begin(&mut client, &id, "again").await;
    assert_eq!(completed(&mut client, &turn).await["status"], "completed");
    assert!(data.path().join("two").exists(), "{}", app.model.requests().last().unwrap().body);
}

#[tokio::test]
async fn a_command_shows_what_it_wants_on_top() {
    let data = TempDir::new().unwrap();
    let command = json!({
        "cmd": format!("touch {}/made", data.path().display()), "sandbox_permissions": "with_additional_permissions", "justification": "to build it",
        "additional_permissions": {"file_system": {"write": [data.path()]}},
    });
    let app = AppServer::start_with(OUTPOST, vec![Reply::call("c", "exec_command", &command), Reply::message("done")], ASKING).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "go").await;
    let request = asked(&mut client, "item/commandExecution/requestApproval").await;
    let shown = &request["params"]["additionalPermissions"];
    assert_eq!((&shown["fileSystem"]["write"], &shown["network"]), (&json!([data.path()]), &Value::Null));
    assert!(!data.path().join("made").exists());
    answer(&client, &request, json!({"decision": "accept"}));
    assert_eq!(completed(&mut client, &turn).await["status"], "completed");
    assert!(data.path().join("made").exists());
}
