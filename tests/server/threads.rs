//! The life of a thread: reading, naming, forking, archiving, removing; and what can be done with one that is loaded.

use std::time::Duration;

use outpost_testkit::app::{AppServer, begin, completed, notice, text, thread, turn};
use outpost_testkit::model::Reply;
use serde_json::{Value, json};

use super::OUTPOST;

#[tokio::test]
async fn a_thread_is_read_named_listed_archived_and_removed() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("one"), Reply::message("two")]).await;
    let (mut client, mut other) = (app.client().await, app.client().await);
    let id = thread(&mut client, json!({"threadSource": "test"})).await;
    assert_eq!(notice(&mut other, "thread/started").await["thread"]["id"], id.as_str());
    let named = json!({"threadId": id});
    turn(&mut client, &id, "first words").await;
    turn(&mut client, &id, "second words").await;
    client.result("thread/name/set", json!({"threadId": id, "name": " a name "})).await;
    assert_eq!(notice(&mut other, "thread/name/updated").await, json!({"threadId": id, "threadName": "a name"}));
    let read = client.result("thread/read", json!({"threadId": id, "includeTurns": true})).await["thread"].take();
    assert_eq!((&read["preview"], &read["name"], &read["status"]), (&json!("first words"), &json!("a name"), &json!({"type": "idle"})));
    assert_eq!(read["turns"][1]["items"][1]["text"], "two");
    assert!(read["path"].as_str().unwrap().ends_with(".jsonl"));
    let listed = client.result("thread/list", json!({"searchTerm": "second"})).await;
    assert_eq!(listed["data"][0]["id"], id.as_str());
    let turns = client.result("thread/turns/list", json!({"threadId": id, "limit": 1})).await;
    assert_eq!(turns["data"][0]["items"][0]["text"], "two");
    let next = json!({"threadId": id, "limit": 1, "cursor": turns["nextCursor"], "itemsView": "full"});
    let rest = client.result("thread/turns/list", next).await;
    assert_eq!((rest["data"][0]["items"].as_array().unwrap().len(), &rest["nextCursor"]), (2, &Value::Null));
    let items = client.result("thread/items/list", json!({"threadId": id, "limit": 3})).await;
    assert_eq!((items["data"].as_array().unwrap().len(), &items["nextCursor"]), (3, &json!("3")));
    assert!(items["data"][0]["startedAtMs"].is_u64() && items["data"][0]["completedAtMs"].is_u64());
    let whole = client.result("thread/verify", named.clone()).await;
    assert_eq!((&whole["whole"], &whole["damage"]), (&json!(true), &json!([])));
    client.result("thread/archive", named.clone()).await;
    assert_eq!(notice(&mut other, "thread/archived").await, named);
    assert_eq!(notice(&mut client, "thread/closed").await, named);
    assert_eq!(client.result("thread/list", json!({})).await["data"], json!([]));
    assert_eq!(client.result("thread/list", json!({"archived": true})).await["data"][0]["id"], id.as_str());
    assert_eq!(client.result("thread/loaded/list", json!({})).await["data"], json!([]));
    let back = client.result("thread/unarchive", named.clone()).await;
    assert_eq!(back["thread"]["status"], json!({"type": "notLoaded"}));
    client.error("thread/unarchive", named.clone()).await;
    client.result("thread/delete", named.clone()).await;
    assert_eq!(notice(&mut other, "thread/deleted").await, named);
    client.error("thread/read", named).await;
}

#[tokio::test]
async fn a_fork_goes_on_from_where_it_is_cut() {
    let app = AppServer::start(OUTPOST, ["one", "two", "three"].map(Reply::message).to_vec()).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let first = turn(&mut client, &id, "a").await["id"].clone();
    let second = turn(&mut client, &id, "b").await["id"].clone();
    let count = |fork: &Value| fork["thread"]["turns"].as_array().unwrap().len();
    let whole = client.result("thread/fork", json!({"threadId": id})).await;
    assert_eq!((count(&whole), &whole["thread"]["forkedFromId"]), (2, &json!(id)));
    assert_eq!(count(&client.result("thread/fork", json!({"threadId": id, "lastTurnId": first})).await), 1);
    assert_eq!(count(&client.result("thread/fork", json!({"threadId": id, "beforeTurnId": second})).await), 1);
    assert_eq!(count(&client.result("thread/fork", json!({"threadId": id, "excludeTurns": true})).await), 0);
    assert_eq!(client.error("thread/fork", json!({"threadId": id, "lastTurnId": "nope"})).await, (-32600, "turn not found: nope".into()));
    let fork = whole["thread"]["id"].as_str().unwrap().to_owned();
    turn(&mut client, &fork, "c").await;
    let told = app.model.requests().last().unwrap().body.to_string();
    assert!(told.contains("\"a\"") && told.contains("\"c\""), "{told}");
}

#[tokio::test]
async fn the_same_message_twice_is_one_message() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("one"), Reply::message("two")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let params = json!({"threadId": id, "input": text("once"), "clientUserMessageId": "key-1"});
    let first = client.result("turn/start", params.clone()).await["turn"]["id"].clone();
    completed(&mut client, first.as_str().unwrap()).await;
    let again = client.result("turn/start", params).await;
    assert_eq!((&again["turn"]["id"], &again["turn"]["status"]), (&first, &json!("completed")));
    assert_eq!(app.model.requests().len(), 1);
    let item = client.result("thread/items/list", json!({"threadId": id})).await["data"][0]["item"].clone();
    assert_eq!(item["clientId"], "key-1");
}

#[tokio::test]
async fn a_running_turn_is_steered_and_stopped_and_a_late_stop_is_answered() {
    let wait = json!({"cmd": "while [ ! -e go ]; do sleep 0.02; done"});
    let replies = vec![Reply::call("w", "exec_command", &wait), Reply::message("steered"), Reply::Silent(String::new())];
    let app = AppServer::start(OUTPOST, replies).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let first = begin(&mut client, &id, "go").await;
    client.until(|message| message["method"] == "item/started" && message["params"]["item"]["id"] == "w").await;
    let (_, message) = client.error("turn/steer", json!({"threadId": id, "expectedTurnId": "wrong", "input": text("x")})).await;
    assert_eq!(message, format!("expected active turn id `wrong` but found `{first}`"));
    let (_, message) = client.error("turn/interrupt", json!({"threadId": id, "turnId": "wrong"})).await;
    assert_eq!(message, format!("expected active turn id wrong but found {first}"));
    let steered = client.result("turn/steer", json!({"threadId": id, "expectedTurnId": first, "input": text("more")})).await;
    assert_eq!(steered["turnId"], first);
    let started = client.result("turn/start", json!({"threadId": id, "input": text("and more")})).await;
    assert_eq!(started["turn"]["id"], first, "a start while a turn runs steers it");
    std::fs::write(app.work().join("go"), "").unwrap();
    completed(&mut client, &first).await;
    let items = client.result("thread/items/list", json!({"threadId": id})).await;
    let said = items["data"].as_array().unwrap().iter().filter(|entry| entry["item"]["type"] == "userMessage").count();
    assert_eq!(said, 3);
    let second = begin(&mut client, &id, "hang").await;
    client.result("turn/interrupt", json!({"threadId": id, "turnId": second})).await;
    assert_eq!(completed(&mut client, &second).await["status"], "interrupted");
    assert_eq!(client.result("turn/interrupt", json!({"threadId": id, "turnId": second})).await, json!({}));
    client.error("turn/steer", json!({"threadId": id, "expectedTurnId": second, "input": text("x")})).await;
}

#[tokio::test]
async fn a_user_runs_commands_compacts_and_puts_items_in() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("one"), Reply::message("a summary"), Reply::message("two")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    turn(&mut client, &id, "hello").await;
    client.quiet(Duration::from_millis(20)).await;
    client.result("thread/shellCommand", json!({"threadId": id, "command": "echo typed"})).await;
    let item = client.until(|message| message["method"] == "item/completed").await;
    assert_eq!((&item["params"]["item"]["source"], &item["params"]["item"]["aggregatedOutput"]), (&json!("userShell"), &json!("typed\n")));
    notice(&mut client, "turn/completed").await;
    client.result("thread/compact/start", json!({"threadId": id})).await;
    let item = client.until(|message| message["method"] == "item/completed").await;
    assert_eq!(item["params"]["item"]["type"], "contextCompaction");
    notice(&mut client, "turn/completed").await;
    let injected = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "from elsewhere"}]});
    client.result("thread/inject_items", json!({"threadId": id, "items": [injected]})).await;
    turn(&mut client, &id, "go on").await;
    let told = app.model.requests().last().unwrap().body.to_string();
    assert!(told.contains("from elsewhere") && told.contains("a summary"), "{told}");
}

#[tokio::test]
async fn settings_stay_and_are_told() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let change = json!({"threadId": id, "model": "other", "effort": "high", "approvalPolicy": "on-request", "sandboxPolicy": {"type": "readOnly"}, "cwd": "/tmp"});
    client.result("thread/settings/update", change).await;
    let told = notice(&mut client, "thread/settings/updated").await;
    let settings = &told["threadSettings"];
    assert_eq!((&settings["model"], &settings["effort"], &settings["cwd"]), (&json!("other"), &json!("high"), &json!("/tmp")));
    assert_eq!(
        (&settings["approvalPolicy"], &settings["sandboxPolicy"]),
        (&json!("on-request"), &json!({"type": "readOnly", "networkAccess": false}))
    );
    turn(&mut client, &id, "hello").await;
    assert_eq!(app.model.requests().last().unwrap().body["model"], "other");
}

#[tokio::test]
async fn why_a_turn_worked_where_it_did_can_be_asked() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("one")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let started = client.result("turn/start", json!({"threadId": id, "input": text("x"), "environments": []})).await;
    completed(&mut client, started["turn"]["id"].as_str().unwrap()).await;
    let why = client.result("thread/why", json!({"threadId": id})).await;
    assert_eq!((&why["turnEnvironments"], &why["environments"][0]["environmentId"]), (&json!([]), &json!("local")));
    assert_eq!(why["steps"][0]["environments"], json!([]));
    assert!(why["capabilities"].is_null(), "only if it is asked for: {why}");
    let none = json!({"threadId": id, "selectedCapabilityRoots": [{"id": "gone", "location": {"type": "environment", "environmentId": "local", "path": "/not/there"}}]});
    client.result("thread/settings/update", none).await;
    let why = client.result("thread/why", json!({"threadId": id, "capabilities": true})).await;
    let root = &why["capabilities"]["roots"][0];
    assert_eq!((&root["id"], &root["available"]), (&json!("gone"), &json!(false)), "{why}");
    assert!(root["reason"].as_str().is_some_and(|reason| reason.contains("No such file")), "{why}");
}

#[tokio::test]
async fn what_is_not_to_be_kept_is_gone_with_the_server() {
    let mut app = AppServer::start(OUTPOST, vec![Reply::message("one"), Reply::message("two")]).await;
    let mut client = app.client().await;
    let opened = client.result("thread/start", json!({"ephemeral": true})).await;
    assert_eq!((&opened["thread"]["ephemeral"], &opened["thread"]["path"]), (&json!(true), &Value::Null));
    let id = opened["thread"]["id"].as_str().unwrap().to_owned();
    turn(&mut client, &id, "hello").await;
    assert_eq!(client.result("thread/list", json!({})).await["data"], json!([]));
    app.restart();
    app.client().await.error("thread/resume", json!({"threadId": id})).await;
}

#[tokio::test]
async fn commands_that_outlive_their_calls_are_listed_and_ended() {
    let long = |id: &str| Reply::call(id, "exec_command", &json!({"cmd": "sleep 600", "yield_time_ms": 250}));
    let app = AppServer::start(OUTPOST, vec![long("one"), long("two"), Reply::message("done")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    turn(&mut client, &id, "go").await;
    let named = json!({"threadId": id});
    let list = client.result("thread/backgroundTerminals/list", named.clone()).await["data"].take();
    let (first, second) = (&list[0], &list[1]);
    assert_eq!((&first["itemId"], &second["itemId"], &first["command"]), (&json!("one"), &json!("two"), &json!("sleep 600")));
    assert_eq!((&first["cwd"], &first["environmentId"]), (&json!(app.cwd()), &json!("local")));
    let end = json!({"threadId": id, "processId": first["processId"]});
    assert_eq!(client.result("thread/backgroundTerminals/terminate", end).await, json!({"terminated": true}));
    let no = json!({"threadId": id, "processId": "none"});
    assert_eq!(client.result("thread/backgroundTerminals/terminate", no).await, json!({"terminated": false}));
    client.result("thread/backgroundTerminals/clean", named.clone()).await;
    for _ in 0..6000 {
        if client.result("thread/backgroundTerminals/list", named.clone()).await["data"] == json!([]) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("they do not end");
}

#[tokio::test]
async fn a_fork_need_not_be_kept() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("first"), Reply::message("aside"), Reply::message("deeper")]).await;
    let mut app = app;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let past = turn(&mut client, &id, "remember the blue door").await;
    let forked = client.result("thread/fork", json!({"threadId": id, "ephemeral": true})).await;
    let thread = &forked["thread"];
    assert_eq!((&thread["ephemeral"], &thread["path"], &thread["forkedFromId"]), (&json!(true), &Value::Null, &json!(id)));
    assert_eq!(thread["turns"][0]["id"], past["id"], "it has the past of the other one");
    let aside = thread["id"].as_str().unwrap().to_owned();
    turn(&mut client, &aside, "and aside").await;
    let heard = app.model.requests().pop().unwrap().body.to_string();
    assert!(heard.contains("remember the blue door") && heard.contains("and aside"), "{heard}");
    // A fork of it is as fleeting; one that is kept there cannot be.
    let (_, message) = client.error("thread/fork", json!({"threadId": aside})).await;
    assert!(message.starts_with(&format!("no rollout found for thread id {aside}")), "{message}");
    let deeper = client.result("thread/fork", json!({"threadId": aside, "ephemeral": true, "lastTurnId": past["id"]})).await;
    let deeper = deeper["thread"]["id"].as_str().unwrap().to_owned();
    turn(&mut client, &deeper, "deeper").await;
    assert!(!app.model.requests().pop().unwrap().body.to_string().contains("and aside"));
    let (_, message) = client.error("thread/read", json!({"threadId": aside, "includeTurns": true})).await;
    assert_eq!(message, "ephemeral threads do not support includeTurns");
    let listed = client.result("thread/list", json!({})).await;
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "{listed}");
    let parent = client.result("thread/read", json!({"threadId": id, "includeTurns": true})).await;
    assert_eq!(parent["thread"]["turns"].as_array().unwrap().len(), 1, "the other one knows nothing of it");
    app.restart();
    let mut client = app.client().await;
    assert_eq!(client.error("thread/resume", json!({"threadId": aside})).await.1, format!("no rollout found for thread id {aside}"));
    client.result("thread/resume", json!({"threadId": id})).await;
}

#[tokio::test]
async fn instructions_may_come_with_a_resume_and_stay() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("1"), Reply::message("2"), Reply::message("3")]).await;
    let mut app = app;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({"baseInstructions": "BASE-ONE", "developerInstructions": "DEV-ONE"})).await;
    turn(&mut client, &id, "hi").await;
    let told = |app: &AppServer| {
        let asked = app.model.requests().pop().unwrap().body.to_string();
        ["BASE-ONE", "DEV-ONE", "DEV-TWO"].map(|words| asked.contains(words))
    };
    assert_eq!(told(&app), [true, true, false]);
    client.result("thread/resume", json!({"threadId": id, "developerInstructions": "DEV-TWO"})).await;
    turn(&mut client, &id, "hi").await;
    assert_eq!(told(&app), [true, false, true]);
    app.restart();
    let mut client = app.client().await;
    client.result("thread/resume", json!({"threadId": id})).await;
    turn(&mut client, &id, "hi").await;
    assert_eq!(told(&app), [true, false, true]);
}

#[tokio::test]
async fn a_thread_is_found_by_its_journal_and_by_who_made_it() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("hello")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    turn(&mut client, &id, "hi").await;
    let journal = client.result("thread/read", json!({"threadId": id})).await["thread"]["path"].clone();
    let resumed = client.result("thread/resume", json!({"threadId": "", "path": journal})).await;
    assert_eq!(resumed["thread"]["id"], id);
    for (method, params) in [
        ("thread/resume", json!({"threadId": id, "path": "/etc/passwd"})),
        ("thread/resume", json!({"threadId": id, "history": []})),
        ("thread/fork", json!({"threadId": id, "path": "/etc/passwd"})),
    ] {
        assert_eq!(client.error(method, params).await.0, -32600, "{method}");
    }
    for (originators, count) in [(json!(["test"]), 1), (json!(["other", "test"]), 1), (json!(["other"]), 0), (json!([]), 1)] {
        let listed = client.result("thread/list", json!({"originators": originators})).await;
        assert_eq!(listed["data"].as_array().unwrap().len(), count, "{originators}");
    }
}

#[tokio::test]
async fn a_users_command_ends_when_its_time_is_up() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    client.result("thread/shellCommand", json!({"threadId": id, "command": "echo $$ > pid; sleep 600", "timeoutMs": 700})).await;
    let over = notice(&mut client, "turn/completed").await;
    assert_eq!(over["turn"]["status"], "interrupted");
    // One that is quicker is left alone.
    client.result("thread/shellCommand", json!({"threadId": id, "command": "true", "timeoutMs": 600_000})).await;
    assert_eq!(notice(&mut client, "turn/completed").await["turn"]["status"], "completed");
    let pid: u32 = std::fs::read_to_string(app.work().join("pid")).unwrap().trim().parse().unwrap();
    outpost_testkit::executor::eventually("the command ends", || !outpost_testkit::executor::is_alive(pid)).await;
}

/// Where a thread works stands in lists, be it loaded or not; and one environment is the default.
#[tokio::test]
async fn lists_tell_where_threads_work_and_which_environment_is_the_default() {
    let mut app = AppServer::start(OUTPOST, vec![]).await;
    let toml = "[[environments]]\nid = \"box\"\nurl = \"ws://127.0.0.1:1\"\n";
    std::fs::write(app.home().join("environments.toml"), toml).unwrap();
    app.restart();
    let mut client = app.client().await;
    let place = |id: &str, cwd: &str| json!({"environmentId": id, "cwd": cwd, "runtimeWorkspaceRoots": [cwd]});
    let id = thread(&mut client, json!({"environments": [{"environmentId": "local", "cwd": "/tmp"}]})).await;
    turn(&mut client, &id, "hello").await;
    let listed = client.result("thread/list", json!({})).await["data"][0]["environments"].take();
    assert_eq!(listed, json!([place("local", "/tmp")]));
    client.result("thread/settings/update", json!({"threadId": id, "cwd": "/var"})).await;
    app.restart();
    let mut client = app.client().await;
    let listed = client.result("thread/list", json!({})).await["data"][0].take();
    assert_eq!((&listed["status"]["type"], &listed["environments"]), (&json!("notLoaded"), &json!([place("local", "/var")])));
    let all = client.result("environment/list", json!({})).await["data"].take();
    let defaults: Vec<_> = all.as_array().unwrap().iter().map(|entry| (&entry["environmentId"], &entry["isDefault"])).collect();
    assert_eq!(defaults, [(&json!("local"), &json!(true)), (&json!("box"), &json!(false))]);
}

/// A command of the user's runs beside what a turn does: the turn goes on, and the command can have an end of its own.
#[tokio::test]
async fn a_user_runs_commands_while_a_turn_runs() {
    let wait = |file: &str| format!("while [ ! -e {file} ]; do sleep 0.02; done");
    let held = Reply::call("held", "exec_command", &json!({"cmd": wait("go"), "yield_time_ms": 30000}));
    let app = AppServer::start(OUTPOST, vec![held, Reply::message("done")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let running = begin(&mut client, &id, "hold").await;
    client.until(|message| message["method"] == "item/started" && message["params"]["item"]["id"] == "held").await;
    let typed = |message: &Value| message["method"] == "item/completed" && message["params"]["item"]["source"] == "userShell";
    client.result("thread/shellCommand", json!({"threadId": id, "command": "echo typed"})).await;
    let item = client.until(typed).await["params"].take();
    assert_eq!((&item["turnId"], &item["item"]["aggregatedOutput"]), (&json!(running), &json!("typed\n")));
    // One whose time is up is stopped, and not the turn.
    client.result("thread/shellCommand", json!({"threadId": id, "command": wait("never"), "timeoutMs": 50})).await;
    assert_eq!(client.until(typed).await["params"]["item"]["status"], "failed");
    std::fs::write(app.work().join("go"), "").unwrap();
    assert_eq!(completed(&mut client, &running).await["status"], "completed");
    let told = app.model.requests().last().unwrap().body.to_string();
    assert!(told.contains("echo typed"), "{told}");
    assert_eq!(app.model.requests().len(), 2);
}

/// A thread goes on from a history that the client keeps, and a fork is made of a thread by its journal.
#[tokio::test]
async fn a_history_is_resumed_and_a_journal_is_forked() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("one"), Reply::message("two")]).await;
    let mut client = app.client().await;
    let said = |role: &str, kind: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]});
    let history = json!([said("user", "input_text", "the word is heron"), said("assistant", "output_text", "noted")]);
    let opened = client.result("thread/resume", json!({"threadId": "", "history": history})).await;
    let id = opened["thread"]["id"].as_str().unwrap().to_owned();
    turn(&mut client, &id, "which word?").await;
    let told = app.model.requests()[0].body["input"].to_string();
    assert!(told.contains("the word is heron") && told.contains("noted"), "{told}");
    let (_, message) = client.error("thread/resume", json!({"threadId": "", "history": [{"role": "user"}]})).await;
    assert!(message.contains("history[0]"), "{message}");
    let path = client.result("thread/read", json!({"threadId": id})).await["thread"]["path"].take();
    let fork = client.result("thread/fork", json!({"threadId": "", "path": path})).await["thread"].take();
    assert_eq!((&fork["forkedFromId"], fork["turns"].as_array().unwrap().len()), (&json!(id), 1));
    turn(&mut client, fork["id"].as_str().unwrap(), "and now?").await;
    assert!(app.model.requests()[1].body["input"].to_string().contains("the word is heron"));
    let elsewhere = app.work().join("journal.jsonl");
    std::fs::write(&elsewhere, "").unwrap();
    let (_, message) = client.error("thread/fork", json!({"threadId": "", "path": elsewhere})).await;
    assert!(message.contains("journal"), "{message}");
}

/// What the user asks of all agents lies in the home, and the trace of a request goes on to the model.
#[tokio::test]
async fn the_home_has_instructions_and_a_trace_goes_on_to_the_model() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    std::fs::write(app.home().join("AGENTS.md"), "Write British English.\n").unwrap();
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    client.send(&json!({
        "id": 77, "method": "turn/start", "params": {"threadId": id, "input": text("hello")}, "trace": {"traceparent": parent, "tracestate": "a=b"},
    }));
    let answer = client.answer(77).await;
    completed(&mut client, answer["result"]["turn"]["id"].as_str().unwrap()).await;
    turn(&mut client, &id, "again").await;
    let requests = app.model.requests();
    let (first, second) = (&requests[0], &requests[1]);
    assert!(first.head.contains(&format!("traceparent: {parent}\r\n")) && first.head.contains("tracestate: a=b\r\n"), "{}", first.head);
    assert!(!second.head.contains("traceparent"), "{}", second.head);
    assert_eq!(second.body["input"].to_string().matches("Write British English.").count(), 1);
    // What a tool may be called is known before anybody is asked.
    let tool = json!({"type": "function", "name": "mcp__x", "description": "d", "inputSchema": {}});
    let (code, message) = client.error("thread/start", json!({"dynamicTools": [tool]})).await;
    assert!(code == -32600 && message.contains("mcp__"), "{message}");
}

/// A call that is refused because its environment is not selected is seen all the same.
#[tokio::test]
async fn a_call_for_an_environment_that_is_not_selected_is_an_item() {
    let elsewhere = json!({"cmd": "echo there", "environment_id": "elsewhere"});
    let app = AppServer::start(OUTPOST, vec![Reply::call("c", "exec_command", &elsewhere)]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "go").await;
    let item = client.until(|message| message["method"] == "item/completed" && message["params"]["item"]["id"] == "c").await;
    let item = &item["params"]["item"];
    assert_eq!((&item["command"], &item["status"], &item["environmentId"]), (&json!("echo there"), &json!("failed"), &json!("elsewhere")));
    assert!(item["aggregatedOutput"].as_str().unwrap().contains("unknown turn environment id"), "{item}");
    completed(&mut client, &turn).await;
    let read = client.result("thread/read", json!({"threadId": id, "includeTurns": true})).await["thread"]["turns"][0]["items"].take();
    assert!(read.as_array().unwrap().iter().any(|shown| shown["id"] == "c" && shown["status"] == "failed"), "{read}");
}

#[tokio::test]
async fn without_environments_a_call_that_was_not_offered_is_no_item() {
    let app =
        AppServer::start(OUTPOST, vec![Reply::call("c", "exec_command", &json!({"cmd": "echo there"})), Reply::message("fine")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({"environments": []})).await;
    let turn = begin(&mut client, &id, "go").await;
    completed(&mut client, &turn).await;
    let read = client.result("thread/read", json!({"threadId": id, "includeTurns": true})).await["thread"]["turns"][0]["items"].take();
    assert!(read.as_array().unwrap().iter().all(|shown| shown["type"] != "commandExecution"), "{read}");
}
