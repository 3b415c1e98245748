//! Questions: who is asked, who answers, and what a restart leaves of them.

use std::time::Duration;

use outpost_testkit::Client;
use outpost_testkit::app::{AppServer, begin, completed, notice, thread};
use outpost_testkit::model::{Reply, call};
use serde_json::{Value, json};

use super::OUTPOST;

const ASKING: &str = "approval_policy = \"untrusted\"\nsandbox_mode = \"danger-full-access\"\n";
const REQUEST: &str = "item/commandExecution/requestApproval";

fn touch(id: &str, file: &str) -> Reply {
    Reply::call(id, "exec_command", &json!({"cmd": format!("touch {file}; echo made"), "justification": "it is needed"}))
}

pub(crate) async fn asked(client: &mut Client, method: &str) -> Value {
    client.until(|message| message["method"] == method && message.get("id").is_some()).await
}

pub(crate) fn answer(client: &Client, request: &Value, result: Value) {
    client.send(&json!({"id": request["id"], "result": result}));
}

#[tokio::test]
async fn two_are_asked_and_one_answers() {
    let app = AppServer::start_with(OUTPOST, vec![Reply::message("hello"), touch("c", "made"), Reply::message("done")], ASKING).await;
    let (mut one, mut two) = (app.client().await, app.client().await);
    let id = thread(&mut one, json!({})).await;
    outpost_testkit::app::turn(&mut one, &id, "hi").await;
    two.result("thread/resume", json!({"threadId": id})).await;
    let turn = begin(&mut one, &id, "go").await;
    let (first, second) = (asked(&mut one, REQUEST).await, asked(&mut two, REQUEST).await);
    assert_eq!(first, second, "the same question under the same number");
    let params = &first["params"];
    assert_eq!((&params["environmentId"], &params["itemId"], &params["turnId"]), (&json!("local"), &json!("c"), &json!(turn)));
    assert_eq!((&params["reason"], &params["cwd"]), (&json!("it is needed"), &json!(app.cwd())));
    assert!(!app.work().join("made").exists());
    answer(&two, &second, json!({"decision": "accept"}));
    for client in [&mut one, &mut two] {
        let resolved = notice(client, "serverRequest/resolved").await;
        assert_eq!((&resolved["requestId"], &resolved["threadId"]), (&first["id"], &json!(id)));
    }
    // The other answer comes too late and does no harm.
    answer(&one, &first, json!({"decision": "cancel"}));
    assert_eq!(completed(&mut one, &turn).await["status"], "completed");
    assert_eq!(completed(&mut two, &turn).await["status"], "completed");
    assert!(app.work().join("made").exists());
}

/// Whatever comes after it, also in the same moment, from the same client or from another one.
#[tokio::test]
async fn of_two_answers_the_first_counts() {
    let files: Vec<String> = (0..12).map(|number| format!("made-{number}")).collect();
    let calls = files
        .iter()
        .enumerate()
        .map(|(number, file)| call(&format!("c{number}"), "exec_command", &json!({"cmd": format!("touch {file}")})));
    let app = AppServer::start_with(OUTPOST, vec![Reply::Items(calls.collect()), Reply::message("done")], ASKING).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "go").await;
    for _ in &files {
        let request = asked(&mut client, REQUEST).await;
        answer(&client, &request, json!({"decision": "decline"}));
        for _ in 0..3 {
            answer(&client, &request, json!({"decision": "accept"}));
        }
    }
    assert_eq!(completed(&mut client, &turn).await["status"], "completed");
    let made: Vec<&String> = files.iter().filter(|file| app.work().join(file).exists()).collect();
    assert!(made.is_empty(), "ran although it was declined: {made:?}");
}

#[tokio::test]
async fn no_is_told_and_stop_stops() {
    let replies = vec![touch("c1", "one"), Reply::message("went on"), touch("c2", "two")];
    let app = AppServer::start_with(OUTPOST, replies, ASKING).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "go").await;
    let request = asked(&mut client, REQUEST).await;
    let status = client
        .until(|message| message["method"] == "thread/status/changed" && message["params"]["status"]["activeFlags"] != json!([]))
        .await;
    assert_eq!(status["params"]["status"]["activeFlags"], json!(["waitingOnApproval"]));
    answer(&client, &request, json!({"decision": "decline"}));
    let item = client.until(|message| message["method"] == "item/completed" && message["params"]["item"]["id"] == "c1").await;
    assert_eq!(item["params"]["item"]["status"], "declined");
    assert_eq!(completed(&mut client, &turn).await["status"], "completed");
    let turn = begin(&mut client, &id, "again").await;
    let request = asked(&mut client, REQUEST).await;
    answer(&client, &request, json!({"decision": "cancel"}));
    assert_eq!(completed(&mut client, &turn).await["status"], "interrupted");
    assert!(!app.work().join("one").exists() && !app.work().join("two").exists());
}

#[tokio::test]
async fn an_open_question_survives_a_kill_and_is_asked_again() {
    let app = AppServer::start_with(OUTPOST, vec![touch("c", "made"), Reply::message("done")], ASKING).await;
    let mut app = app;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    begin(&mut client, &id, "go").await;
    let before = asked(&mut client, REQUEST).await;
    app.restart();
    let mut client = app.client().await;
    let resumed = client.result("thread/resume", json!({"threadId": id})).await;
    assert_eq!(resumed["thread"]["status"], json!({"type": "active", "activeFlags": ["waitingOnApproval"]}));
    let items = resumed["thread"]["turns"][0]["items"].as_array().unwrap();
    assert_eq!((&items[1]["id"], &items[1]["status"]), (&json!("c"), &json!("inProgress")));
    let after = asked(&mut client, REQUEST).await;
    assert_eq!(after["params"]["approvalId"], before["params"]["approvalId"]);
    assert!(!app.work().join("made").exists());
    answer(&client, &after, json!({"decision": "accept"}));
    let turn = after["params"]["turnId"].as_str().unwrap();
    assert_eq!(completed(&mut client, turn).await["status"], "completed");
    assert!(app.work().join("made").exists());
}

#[tokio::test]
async fn a_question_that_nobody_asks_any_more_is_taken_back() {
    let app = AppServer::start_with(OUTPOST, vec![touch("c", "made")], ASKING).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "go").await;
    let request = asked(&mut client, REQUEST).await;
    client.result("turn/interrupt", json!({"threadId": id, "turnId": turn})).await;
    assert_eq!(notice(&mut client, "serverRequest/resolved").await["requestId"], request["id"]);
    completed(&mut client, &turn).await;
    client.quiet(Duration::from_millis(20)).await;
    answer(&client, &request, json!({"decision": "accept"}));
    // That the thread rests now may be told late; nothing is said about the answer.
    let told = client.quiet(Duration::from_millis(100)).await;
    assert!(told.iter().all(|message| message["method"] == "thread/status/changed"), "{told:?}");
    assert!(!app.work().join("made").exists());
}

#[tokio::test]
async fn a_client_that_cannot_answer_leaves_it_to_those_who_can() {
    let app = AppServer::start_with(
        OUTPOST,
        vec![Reply::message("hello"), touch("c1", "a"), Reply::message("done"), touch("c2", "b"), Reply::message("done")],
        ASKING,
    )
    .await;
    let (mut one, mut two) = (app.client().await, app.client().await);
    let id = thread(&mut one, json!({})).await;
    outpost_testkit::app::turn(&mut one, &id, "hi").await;
    two.result("thread/resume", json!({"threadId": id})).await;
    let refuse =
        |client: &Client, request: &Value| client.send(&json!({"id": request["id"], "error": {"code": -32601, "message": "what?"}}));
    let turn = begin(&mut one, &id, "go").await;
    let (first, second) = (asked(&mut one, REQUEST).await, asked(&mut two, REQUEST).await);
    refuse(&one, &first);
    answer(&two, &second, json!({"decision": "accept"}));
    assert_eq!(completed(&mut one, &turn).await["status"], "completed");
    assert!(app.work().join("a").exists());
    // If nobody can, it is a no.
    let turn = begin(&mut one, &id, "again").await;
    let (first, second) = (asked(&mut one, REQUEST).await, asked(&mut two, REQUEST).await);
    refuse(&one, &first);
    refuse(&two, &second);
    assert_eq!(completed(&mut one, &turn).await["status"], "completed");
    assert!(!app.work().join("b").exists());
}

#[tokio::test]
async fn the_client_runs_its_own_tools() {
    let call = |id: &str, tool: &str| Reply::call(id, tool, &json!({"city": "Bern"}));
    let app = AppServer::start(OUTPOST, vec![call("d1", "weather"), call("d2", "maps__find"), Reply::message("done")]).await;
    let mut client = app.client().await;
    let tool =
        |name: &str| json!({"type": "function", "name": name, "description": "d", "inputSchema": {"type": "object", "properties": {}}});
    let tools = json!([tool("weather"), {"type": "namespace", "name": "maps", "description": "n", "tools": [tool("find")]}]);
    let id = thread(&mut client, json!({"dynamicTools": tools})).await;
    let turn = begin(&mut client, &id, "go").await;
    let request = asked(&mut client, "item/tool/call").await;
    let params = &request["params"];
    assert_eq!((&params["tool"], &params["namespace"], &params["callId"]), (&json!("weather"), &Value::Null, &json!("d1")));
    assert_eq!(params["arguments"], json!({"city": "Bern"}));
    answer(&client, &request, json!({"contentItems": [{"type": "inputText", "text": "rain"}], "success": true}));
    let item = client.until(|message| message["method"] == "item/completed" && message["params"]["item"]["id"] == "d1").await;
    assert_eq!((&item["params"]["item"]["success"], &item["params"]["item"]["status"]), (&json!(true), &json!("completed")));
    let request = asked(&mut client, "item/tool/call").await;
    assert_eq!((&request["params"]["tool"], &request["params"]["namespace"]), (&json!("find"), &json!("maps")));
    answer(&client, &request, json!({"contentItems": [{"type": "inputText", "text": "nowhere"}], "success": false}));
    let item = client.until(|message| message["method"] == "item/completed" && message["params"]["item"]["id"] == "d2").await;
    assert_eq!((&item["params"]["item"]["status"], &item["params"]["item"]["tool"]), (&json!("failed"), &json!("find")));
    assert_eq!(completed(&mut client, &turn).await["status"], "completed");
    let told = app.model.requests().last().unwrap().body.to_string();
    assert!(told.contains("rain") && told.contains("nowhere"), "{told}");
}

#[tokio::test]
async fn the_user_is_asked_what_the_model_wants_to_know() {
    let questions = json!({"questions": [{"id": "q", "header": "Which", "question": "Which one?", "options": null}]});
    let app = AppServer::start(OUTPOST, vec![Reply::call("q1", "request_user_input", &questions), Reply::message("done")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "go").await;
    let request = asked(&mut client, "item/tool/requestUserInput").await;
    assert_eq!(request["params"]["questions"][0]["question"], "Which one?");
    answer(&client, &request, json!({"answers": {"q": {"answers": ["the left one"]}}}));
    assert_eq!(completed(&mut client, &turn).await["status"], "completed");
    assert!(app.model.requests().last().unwrap().body.to_string().contains("the left one"));
}

#[tokio::test]
async fn a_yes_to_commands_that_begin_alike_is_a_rule_that_stays() {
    let touch = |id: &str, file: &str| Reply::call(id, "exec_command", &json!({"cmd": format!("touch {file}"), "prefix_rule": ["touch"]}));
    let replies = vec![touch("c1", "one"), Reply::message("done"), touch("c2", "two"), Reply::message("done"), touch("c3", "three")];
    let mut app = AppServer::start_with(OUTPOST, replies, ASKING).await;
    app.model.push(Reply::message("done"));
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "go").await;
    let request = asked(&mut client, REQUEST).await;
    assert_eq!(request["params"]["proposedExecpolicyAmendment"], json!(["touch"]));
    let amended = json!({"acceptWithExecpolicyAmendment": {"execpolicy_amendment": ["touch"]}});
    assert!(request["params"]["availableDecisions"].as_array().unwrap().contains(&amended), "{request}");
    answer(&client, &request, json!({"decision": amended}));
    completed(&mut client, &turn).await;
    let rules = std::fs::read_to_string(app.home().join("rules.toml")).unwrap();
    assert!(rules.contains("touch") && rules.contains("allow"), "{rules}");
    // Another thread is not asked any more, and neither is one after a restart.
    let other = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &other, "go").await;
    assert_eq!(completed(&mut client, &turn).await["status"], "completed");
    app.restart();
    let mut client = app.client().await;
    let third = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &third, "go").await;
    assert_eq!(completed(&mut client, &turn).await["status"], "completed");
    assert!(app.work().join("one").exists() && app.work().join("two").exists() && app.work().join("three").exists());
}

#[tokio::test]
async fn when_the_last_who_could_answer_leaves_it_is_a_no() {
    let replies = vec![Reply::message("hello"), touch("c1", "a"), Reply::message("done"), touch("c2", "b"), Reply::message("done")];
    let app = AppServer::start_with(OUTPOST, replies, ASKING).await;
    let mut unable = app.client().await;
    let id = thread(&mut unable, json!({})).await;
    outpost_testkit::app::turn(&mut unable, &id, "hi").await;
    for leaves in ["closes", "unsubscribes"] {
        let mut able = app.client().await;
        able.result("thread/resume", json!({"threadId": id})).await;
        let turn = begin(&mut unable, &id, "go").await;
        let request = asked(&mut unable, REQUEST).await;
        asked(&mut able, REQUEST).await;
        unable.send(&json!({"id": request["id"], "error": {"code": -32601, "message": "what?"}}));
        // Taken before the other one leaves: an answer to something that is asked later.
        unable.result("thread/loaded/list", json!({})).await;
        match leaves {
            "closes" => able.close(),
            _ => drop(able.result("thread/unsubscribe", json!({"threadId": id})).await),
        }
        assert_eq!(completed(&mut unable, &turn).await["status"], "completed", "{leaves}");
    }
    assert!(!app.work().join("a").exists() && !app.work().join("b").exists());
}

/// Commands and paths stay byte-exact on the wire; what an answer is bound to stands beside them, and if it has changed meanwhile, it
/// is asked again.
#[tokio::test]
async fn an_answer_is_bound_to_its_terms() {
    let evil = "true \r\u{202e}\u{200b}\u{1b}[2J; touch made";
    let call = Reply::call("c", "exec_command", &json!({"cmd": evil, "justification": "it is needed"}));
    let mut app = AppServer::start_with(OUTPOST, vec![call, Reply::message("done")], ASKING).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    begin(&mut client, &id, "go").await;
    let first = asked(&mut client, REQUEST).await;
    let terms = &first["params"]["terms"];
    assert_eq!(first["params"]["command"], evil);
    assert_eq!((&terms["sandbox"], &terms["why"]), (&json!("none"), &json!("no rule allows it")));
    assert!(terms["program"].as_array().unwrap().len() == 2 && terms["changed"].is_null(), "{terms}");
    let file = app.home().join("config.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config.replace("danger-full-access", "workspace-write")).unwrap();
    app.restart();
    let mut client = app.client().await;
    client.result("thread/resume", json!({"threadId": id})).await;
    let same = asked(&mut client, REQUEST).await;
    assert_eq!(same["params"]["approvalId"], first["params"]["approvalId"]);
    answer(&client, &same, json!({"decision": "accept"}));
    let again = asked(&mut client, REQUEST).await;
    assert_ne!(again["params"]["approvalId"], first["params"]["approvalId"]);
    let now = &again["params"]["terms"];
    assert_eq!((&now["changed"], &now["sandbox"]), (&json!(["the sandbox"]), &json!("workspace-write, no network")));
    assert_ne!(now["digest"], terms["digest"]);
    assert_eq!(again["params"]["reason"], "Asked again, because the sandbox changed. it is needed");
    assert!(!app.work().join("made").exists());
    answer(&client, &again, json!({"decision": "decline"}));
    notice(&mut client, "turn/completed").await;
    assert!(!app.work().join("made").exists());
}
