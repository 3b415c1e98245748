//! Environments through the protocol: adding, asking, watching, forgetting.

use std::path::Path;

use outpost_testkit::ExecutorProcess;
use outpost_testkit::app::{AppServer, notice};
use outpost_testkit::model::Reply;
use serde_json::json;

use super::OUTPOST;

#[tokio::test]
async fn an_environment_is_added_asked_listed_and_forgotten() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let mut client = app.client().await;
    let id = json!({"environmentId": "worker"});
    assert_eq!(client.result("environment/status", id.clone()).await["status"], "unknown");
    client.result("environment/add", json!({"environmentId": "worker", "execServerUrl": executor.url()})).await;
    let info = client.result("environment/info", id.clone()).await;
    assert!(info["shell"]["path"].as_str().unwrap().starts_with('/') && info["cwd"].as_str().unwrap().starts_with("file:///"), "{info}");
    assert_eq!(client.result("environment/status", id.clone()).await, json!({"status": "ready", "error": null}));
    let list = client.result("environment/list", json!({})).await;
    let entries = list["data"].as_array().unwrap();
    assert_eq!(entries.iter().map(|entry| entry["environmentId"].as_str().unwrap()).collect::<Vec<_>>(), ["local", "worker"]);
    assert_eq!((&entries[0]["isDefault"], &entries[1]["isDefault"], &entries[1]["state"]), (&json!(true), &json!(false), &json!("ready")));
    assert_eq!(entries[1]["executorId"], info["executorId"]);
    client.result("environment/remove", id.clone()).await;
    assert_eq!(client.result("environment/status", id).await["status"], "unknown");
    let (_, message) = client.error("environment/remove", json!({"environmentId": "local"})).await;
    assert!(message.contains("reserved"), "{message}");
}

/// A machine can be looked at by itself: what its sandbox holds, what ran there, and what still runs.
#[tokio::test]
async fn what_threads_do_in_an_environment_is_told() {
    let run = |id: &str, command: &str| Reply::call(id, "exec_command", &json!({"cmd": command, "yield_time_ms": 250}));
    let replies = vec![run("a", "exit 3"), run("b", "sleep 600"), Reply::message("done")];
    let app = AppServer::start(OUTPOST, replies).await;
    let mut client = app.client().await;
    let info = client.result("environment/info", json!({"environmentId": "local"})).await;
    assert!(info["sandbox"].as_array().unwrap().iter().any(|row| row["promise"].is_string() && row["holds"].is_boolean()), "{info}");
    assert!(info["executorVersion"].is_string() && info["limits"].is_array(), "{info}");
    let settings = json!({"sandbox": "danger-full-access", "approvalPolicy": "never"});
    let id = outpost_testkit::app::thread(&mut client, settings).await;
    assert_eq!(outpost_testkit::app::turn(&mut client, &id, "go").await["status"], "completed");
    let told = client.result("environment/activity", json!({"environmentId": "local"})).await;
    let commands = told["commands"].as_array().unwrap();
    let of = |command: &str| commands.iter().find(|one| one["command"].as_str().unwrap().contains(command)).unwrap();
    assert_eq!((&of("exit 3")["threadId"], &of("exit 3")["exitCode"], &of("exit 3")["status"]), (&json!(id), &json!(3), &json!("failed")));
    let processes = told["processes"].as_array().unwrap();
    assert_eq!((processes.len(), &processes[0]["threadId"]), (1, &json!(id)), "{told}");
    let process = json!({"threadId": id, "processId": processes[0]["processId"]});
    assert_eq!(client.result("thread/backgroundTerminals/terminate", process).await, json!({"terminated": true}));
    let elsewhere = client.result("environment/activity", json!({"environmentId": "elsewhere"})).await;
    assert_eq!(elsewhere, json!({"processes": [], "commands": []}));
}

#[tokio::test]
async fn one_that_cannot_be_reached_says_so() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    client.result("environment/add", json!({"environmentId": "dead", "execServerUrl": "ws://127.0.0.1:1"})).await;
    let (code, message) = client.error("environment/info", json!({"environmentId": "dead"})).await;
    assert!(code == -32603 && message.starts_with("failed to get info for environment `dead`: "), "{message}");
    let status = client.result("environment/status", json!({"environmentId": "dead"})).await;
    assert!(status["status"] == "disconnected" && status["error"].is_string(), "{status}");
}

#[tokio::test]
async fn whoever_watches_is_told_how_everything_stands_and_every_change() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let mut client = app.client().await;
    client.result("environment/watch", json!({})).await;
    let first = notice(&mut client, "environment/changed").await;
    assert_eq!((&first["environmentId"], &first["event"]), (&json!("local"), &json!("replayed")));
    client.result("environment/add", json!({"environmentId": "worker", "execServerUrl": executor.url()})).await;
    let mut sequence = first["sequence"].as_u64().unwrap();
    loop {
        let change = client.until(|message| message["method"] == "environment/changed").await["params"].clone();
        let next = change["sequence"].as_u64().unwrap();
        assert!(next >= sequence, "{change}");
        sequence = next;
        if change["environmentId"] == "worker" && change["state"] == "ready" {
            break;
        }
    }
}

#[tokio::test]
async fn those_who_hear_of_a_thread_hear_of_its_environments() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let (mut client, mut stranger) = (app.client().await, app.client().await);
    client.result("environment/add", json!({"environmentId": "worker", "execServerUrl": executor.url()})).await;
    let environment = json!({"environmentId": "worker", "cwd": "/tmp"});
    let id = outpost_testkit::app::thread(&mut client, json!({"environments": [environment]})).await;
    outpost_testkit::app::thread(&mut stranger, json!({})).await;
    client.result("environment/info", json!({"environmentId": "worker"})).await;
    client.quiet(std::time::Duration::from_millis(50)).await;
    drop(executor);
    assert_eq!(notice(&mut client, "thread/environment/disconnected").await, json!({"threadId": id, "environmentId": "worker"}));
    let heard = stranger.quiet(std::time::Duration::from_millis(50)).await;
    assert!(heard.iter().all(|message| message["method"] != "thread/environment/disconnected"), "{heard:?}");
}

/// What `outpost env add` writes takes effect in a server that runs, and so does what somebody types into the file.
#[tokio::test]
async fn the_file_is_followed_while_the_server_runs() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    client.result("environment/watch", json!({})).await;
    let outpost = |arguments: &[&str]| {
        let mut command = std::process::Command::new(OUTPOST);
        let output = command.args(arguments).env("OUTPOST_HOME", app.home()).env_remove("OUTPOST_EXEC_SERVER_URL").output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    outpost(&["env", "add", "later", "--url", "ws://127.0.0.1:1"]);
    let is = |id: &'static str, event: &'static str| {
        move |message: &serde_json::Value| message["params"]["environmentId"] == id && message["params"]["event"] == event
    };
    client.until(is("later", "added")).await;
    outpost(&["env", "remove", "later"]);
    client.until(is("later", "removed")).await;
}

/// An entry that is wrong is shown, also where it has no id that could be shown.
#[tokio::test]
async fn an_entry_without_a_usable_id_is_shown_as_failed() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let file = "[[environments]]\nid = \"local\"\nurl = \"ws://127.0.0.1:1\"\n\n[[environments]]\nid = \"a b\"\nurl = \"ws://127.0.0.1:1\"\n\n\
                [[environments]]\nurl = \"ws://127.0.0.1:1\"\n\n[[environments]]\nid = \"good\"\nurl = \"ws://127.0.0.1:1\"\n";
    let mut client = app.client().await;
    client.result("environment/watch", json!({})).await;
    std::fs::write(app.home().join("environments.toml"), file).unwrap();
    client.until(|message| message["params"]["environmentId"] == "good").await;
    let list = client.result("environment/list", json!({})).await;
    let failed = list["data"].as_array().unwrap().iter().filter(|entry| entry["state"] == "failed");
    let shown: Vec<(&str, &str)> =
        failed.map(|entry| (entry["environmentId"].as_str().unwrap(), entry["reason"].as_str().unwrap())).collect();
    assert_eq!(shown.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ["environments.toml:1", "environments.toml:5", "environments.toml:9"]);
    for ((_, reason), word) in shown.iter().zip(["reserved", "a b", "without `id`"]) {
        assert!(reason.contains(word), "{word}: {reason}");
    }
}

/// All that a loaded thread names are asked for at once, although none of them answers; only one that waits for the user is left alone.
#[tokio::test]
async fn a_thread_that_is_loaded_connects_its_environments() {
    let mut app = AppServer::start(OUTPOST, vec![Reply::message("one")]).await;
    let mut listeners = Vec::new();
    let mut tables = String::new();
    for (name, connect) in [("first", "lazy"), ("second", "lazy"), ("asleep", "manual")] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tables += &format!("[[environments]]\nid = \"{name}\"\nurl = \"ws://{address}\"\nconnect = \"{connect}\"\n");
        listeners.push(listener);
    }
    std::fs::write(app.home().join("environments.toml"), tables).unwrap();
    app.restart();
    let mut client = app.client().await;
    let named: Vec<_> = ["first", "second", "asleep"].map(|name| json!({"environmentId": name, "cwd": "/srv"})).into();
    let id = outpost_testkit::app::thread(&mut client, json!({"environments": named})).await;
    // Whatever is connected by the turn goes with the server.
    client.result("thread/name/set", json!({"threadId": id, "name": "kept"})).await;
    outpost_testkit::app::turn(&mut client, &id, "go").await;
    drop(client);
    app.restart();
    let mut client = app.client().await;
    for listener in &listeners {
        // Those of before.
        while tokio::time::timeout(std::time::Duration::from_millis(100), listener.accept()).await.is_ok() {}
    }
    client.result("thread/resume", json!({"threadId": id})).await;
    let soon = |listener| tokio::time::timeout(std::time::Duration::from_secs(60), tokio::net::TcpListener::accept(listener));
    let first = soon(&listeners[0]).await.expect("the first environment is connected").unwrap();
    let second = soon(&listeners[1]).await.expect("the second environment is connected while the first does not answer").unwrap();
    let asleep = tokio::time::timeout(std::time::Duration::from_millis(300), listeners[2].accept()).await;
    assert!(asleep.is_err(), "one that waits for the user was connected");
    drop((first, second));
}
