//! What ordinary clients ask besides threads and turns: the configuration, goals, queues, searches, and what there is not.

use outpost_testkit::app::{AppServer, begin, completed, introduce, notice, text, thread, turn};
use outpost_testkit::model::Reply;
use serde_json::{Value, json};

use super::OUTPOST;

#[tokio::test]
async fn the_configuration_is_read_and_written() {
    let app = AppServer::start_with(OUTPOST, vec![], "# mine\napproval_policy = \"never\" # ever\n").await;
    let mut client = app.client().await;
    let read = client.result("config/read", json!({"includeLayers": true})).await;
    assert_eq!((&read["config"]["model"], &read["config"]["approval_policy"]), (&json!("scripted"), &json!("never")));
    let file = app.home().join("config.toml").display().to_string();
    assert_eq!(read["origins"]["model"]["name"], json!({"type": "user", "file": file}));
    assert_eq!(read["layers"][1]["config"]["model_providers"]["mock"]["name"], "mock");
    let version = &read["origins"]["model"]["version"];
    let edits = json!([
        {"keyPath": "projects.\"/some.where\".trust_level", "value": "trusted", "mergeStrategy": "upsert"},
        {"keyPath": "budgets", "value": {"turn_tokens": 5}, "mergeStrategy": "replace"},
    ]);
    let written = client.result("config/batchWrite", json!({"edits": edits, "expectedVersion": version, "filePath": null})).await;
    assert_eq!((&written["status"], &written["filePath"]), (&json!("ok"), &json!(file)));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("# mine\n") && text.contains("\"never\" # ever") && text.contains("[projects.\"/some.where\"]"), "{text}");
    let read = client.result("config/read", json!({})).await;
    assert_eq!((&read["config"]["projects"]["/some.where"]["trust_level"], &read["layers"]), (&json!("trusted"), &Value::Null));
    let stale = json!({"keyPath": "model", "value": "x", "mergeStrategy": "replace", "expectedVersion": version});
    let (code, message) = client.error("config/value/write", stale).await;
    assert!(code == -32600 && message.contains("changed meanwhile"), "{message}");
    for (key, value) in [("approval_policy", json!("sometimes")), ("model", json!({"a": 1})), ("a..b", json!(1))] {
        let (code, message) = client.error("config/value/write", json!({"keyPath": key, "value": value, "mergeStrategy": "replace"})).await;
        assert_eq!(code, -32600, "{key}: {message}");
    }
    let elsewhere = json!({"keyPath": "model", "value": "x", "mergeStrategy": "replace", "filePath": "/etc/passwd"});
    assert_eq!(client.error("config/value/write", elsewhere).await.0, -32600);
}

#[tokio::test]
async fn a_goal_is_kept_with_its_thread() {
    let mut app = AppServer::start(OUTPOST, vec![Reply::message("done")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    turn(&mut client, &id, "go").await;
    assert_eq!(client.result("thread/goal/get", json!({"threadId": id})).await, json!({"goal": null}));
    assert_eq!(client.error("thread/goal/set", json!({"threadId": id})).await.0, -32600);
    client.result("thread/goal/set", json!({"threadId": id, "objective": "all green", "tokenBudget": 100})).await;
    let told = notice(&mut client, "thread/goal/updated").await;
    assert_eq!((&told["goal"]["objective"], &told["goal"]["status"]), (&json!("all green"), &json!("active")));
    client.result("thread/goal/set", json!({"threadId": id, "status": "paused", "tokenBudget": null})).await;
    app.restart();
    let mut client = app.client().await;
    let goal = client.result("thread/goal/get", json!({"threadId": id})).await["goal"].take();
    assert_eq!((&goal["objective"], &goal["status"], &goal["tokenBudget"]), (&json!("all green"), &json!("paused"), &Value::Null));
    assert_eq!(client.result("thread/goal/clear", json!({"threadId": id})).await, json!({"cleared": true}));
    assert_eq!(client.result("thread/goal/clear", json!({"threadId": id})).await, json!({"cleared": false}));
    let update = json!({"threadId": id, "gitInfo": {"branch": "main", "sha": "abc"}});
    let git = client.result("thread/metadata/update", update).await["thread"]["gitInfo"].take();
    assert_eq!((&git["branch"], &git["sha"]), (&json!("main"), &json!("abc")));
}

#[tokio::test]
async fn what_was_said_is_found() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("The walrus sleeps. A WALRUS!"), Reply::message("No animals here.")]).await;
    let mut client = app.client().await;
    let first = thread(&mut client, json!({})).await;
    let said = turn(&mut client, &first, "tell me something").await;
    let second = thread(&mut client, json!({})).await;
    turn(&mut client, &second, "and now").await;
    let found = client.result("thread/search", json!({"searchTerm": "walrus"})).await;
    assert_eq!(found["data"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!(found["data"][0]["thread"]["id"], first);
    assert!(found["data"][0]["snippet"].as_str().unwrap().contains("walrus sleeps"), "{found}");
    let places = client.result("thread/searchOccurrences", json!({"threadId": first, "searchTerm": "walrus"})).await;
    let places = places["data"].as_array().unwrap();
    assert_eq!(places.len(), 2);
    assert_eq!((&places[0]["turnId"], &places[0]["turnCursor"]), (&said["id"], &json!("0")));
    assert_eq!(places[0]["snippetMatchRange"], json!({"start": 4, "end": 10}));
    let wanted = json!({"threadId": first, "turnId": said["id"], "itemIds": [places[0]["itemId"]]});
    let items = client.result("thread/items/read", wanted).await;
    assert_eq!(items["data"].as_array().unwrap().len(), 1);
    assert_eq!(items["data"][0]["item"]["text"], "The walrus sleeps. A WALRUS!");
}

#[tokio::test]
async fn an_input_waits_for_its_turn() {
    let replies = vec![Reply::call("c", "exec_command", &json!({"cmd": "while [ ! -e go ]; do sleep 0.05; done"})), Reply::message("one")];
    let app = AppServer::start(OUTPOST, replies).await;
    app.model.push(Reply::message("two"));
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let first = begin(&mut client, &id, "wait").await;
    client.until(|message| message["method"] == "item/started" && message["params"]["item"]["type"] == "commandExecution").await;
    let added = client.result("thread/queue/add", json!({"threadId": id, "clientUserMessageId": "k", "input": text("next")})).await;
    let submission = &added["queuedSubmission"];
    assert!(submission["clientUserMessageId"] == "k" && submission["input"][0]["text"] == "next", "{added}");
    let list = client.result("thread/queue/list", json!({"threadId": id})).await;
    assert_eq!(list, json!({"data": [submission], "nextCursor": null}));
    std::fs::write(app.work().join("go"), "").unwrap();
    completed(&mut client, &first).await;
    let second = client.until(|message| message["method"] == "turn/completed").await["params"]["turn"].take();
    assert_ne!(second["id"], first);
    assert_eq!(client.result("thread/queue/list", json!({"threadId": id})).await["data"], json!([]));
}

/// Everything that changes what waits; and what the model hears in the end.
#[tokio::test]
async fn what_waits_can_be_changed_moved_and_taken_back() {
    let replies = vec![Reply::call("c", "exec_command", &json!({"cmd": "while [ ! -e go ]; do sleep 0.05; done"})), Reply::message("one")];
    let app = AppServer::start(OUTPOST, replies).await;
    app.model.push(Reply::message("two"));
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let first = begin(&mut client, &id, "wait").await;
    client.until(|message| message["method"] == "item/started" && message["params"]["item"]["type"] == "commandExecution").await;
    for name in ["a", "b", "c", "d"] {
        let said = json!({"threadId": id, "clientUserMessageId": name, "input": text(&format!("say {name}"))});
        let added = client.result("thread/queue/add", said).await;
        assert_eq!(added["queuedSubmission"]["id"], name);
        assert_eq!(notice(&mut client, "thread/queue/changed").await, json!({"threadId": id}));
    }
    let at = |name: &str| json!({"threadId": id, "queuedSubmissionId": name});
    let deleted = client.result("thread/queue/delete", at("b")).await;
    assert_eq!(deleted, json!({"deleted": true}));
    notice(&mut client, "thread/queue/changed").await;
    assert_eq!(client.result("thread/queue/delete", at("b")).await, json!({"deleted": false}), "once is enough");
    let mut other = at("c");
    other["input"] = text("say something else");
    let updated = client.result("thread/queue/update", other).await;
    assert_eq!(
        (&updated["queuedSubmission"]["id"], &updated["queuedSubmission"]["input"][0]["text"]),
        (&json!("c"), &json!("say something else"))
    );
    client.result("thread/queue/reorder", json!({"threadId": id, "queuedSubmissionIds": ["d", "c", "a"]})).await;
    for wrong in [json!(["d", "c"]), json!(["d", "c", "a", "a"]), json!(["d", "c", "x"])] {
        let (code, _) = client.error("thread/queue/reorder", json!({"threadId": id, "queuedSubmissionIds": wrong})).await;
        assert_eq!(code, -32600);
    }
    let list = client.result("thread/queue/list", json!({"threadId": id})).await;
    let ids: Vec<&str> = list["data"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["d", "c", "a"]);
    // One does not wait: it steers the running turn, as `turn/start` would.
    let taken = client.result("thread/queue/start", at("a")).await;
    assert_eq!(taken["turn"]["id"], first);
    let said = client.until(|m| m["method"] == "item/completed" && m["params"]["item"]["clientId"] == "a").await;
    assert_eq!(said["params"]["turnId"], first);
    let (_, message) = client.error("thread/queue/start", at("b")).await;
    assert!(message.contains("no queued submission `b`"), "{message}");
    std::fs::write(app.work().join("go"), "").unwrap();
    completed(&mut client, &first).await;
    notice(&mut client, "thread/queue/changed").await;
    client.until(|message| message["method"] == "turn/completed").await;
    let last = app.model.requests().pop().unwrap().body.to_string();
    let places: Vec<Option<usize>> = ["say a", "say d", "say something else"].iter().map(|said| last.find(said)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}");
    assert!(!last.contains("say b") && !last.contains("say c"), "{last}");
    let (_, message) = client.error("thread/queue/start", json!({"threadId": id})).await;
    assert_eq!(message, "nothing is queued");
    // The same key is still the same input.
    let again = client.result("thread/queue/add", json!({"threadId": id, "clientUserMessageId": "d", "input": text("again")})).await;
    assert_eq!(again["queuedSubmission"]["id"], "d");
    assert_eq!(client.result("thread/queue/list", json!({"threadId": id})).await["data"], json!([]));
}

#[tokio::test]
async fn a_review_is_a_turn_that_says_when_it_begins_and_what_it_found() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("The loop never ends.")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let target = json!({"type": "commit", "sha": "abc123", "title": "A loop"});
    let begun = client.result("review/start", json!({"threadId": id, "target": target, "delivery": "inline"})).await;
    assert_eq!((&begun["reviewThreadId"], &begun["turn"]["status"]), (&json!(id), &json!("inProgress")));
    let turn = begun["turn"]["id"].as_str().unwrap().to_owned();
    assert_eq!(completed(&mut client, &turn).await["status"], "completed");
    let read = client.result("thread/read", json!({"threadId": id, "includeTurns": true})).await;
    let items = read["thread"]["turns"][0]["items"].as_array().unwrap();
    let kinds: Vec<&str> = items.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["userMessage", "enteredReviewMode", "agentMessage", "exitedReviewMode"]);
    assert_eq!(items[1]["review"], "Review of commit abc123 (A loop)");
    assert_eq!(items[3]["review"], "The loop never ends.");
    let asked = app.model.requests().pop().unwrap().body.to_string();
    assert!(asked.contains("Review the changes of commit `abc123`") && asked.contains("You are the reviewer"), "{asked}");
    for wrong in [json!({"type": "custom", "instructions": " "}), json!({"type": "nothing"}), json!("all")] {
        assert_eq!(client.error("review/start", json!({"threadId": id, "target": wrong})).await.0, -32600);
    }
}

#[tokio::test]
async fn what_there_is_not_is_told_truly() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    assert_eq!(client.result("account/read", json!({})).await, json!({"account": null, "requiresOpenaiAuth": false}));
    assert_eq!(client.result("configRequirements/read", Value::Null).await, json!({"requirements": null}));
    assert_eq!(client.result("mcpServerStatus/list", json!({})).await, json!({"data": [], "nextCursor": null}));
    let here = client.result("skills/list", json!({})).await;
    assert_eq!(here, json!({"data": [{"cwd": app.cwd(), "skills": [], "errors": []}]}));
    let hooks = client.result("hooks/list", json!({"cwds": ["/a"]})).await;
    assert_eq!(hooks, json!({"data": [{"cwd": "/a", "hooks": [], "warnings": [], "errors": []}]}));
    for (method, params) in [
        ("modelProvider/capabilities/read", json!({})),
        ("collaborationMode/list", json!({})),
        ("experimentalFeature/list", json!({})),
        ("plugin/list", json!({})),
        ("plugin/installed", json!({})),
        ("permissionProfile/list", json!({})),
        ("model/list", json!({})),
        ("account/rateLimits/read", Value::Null),
        ("account/logout", Value::Null),
        ("account/bedrock/checkGovCloudRequirements", json!({})),
        ("config/mcpServer/reload", Value::Null),
        ("skills/extraRoots/set", json!({"extraRoots": []})),
    ] {
        assert!(client.result(method, params).await.is_object(), "{method}");
    }
    let diagnostics = client.result("server/diagnostics", json!({})).await;
    assert!(diagnostics["process"]["residentMemoryBytes"].as_u64() > Some(1 << 20), "{diagnostics}");
    let id = thread(&mut client, json!({})).await;
    for (method, params) in [
        ("account/login/start", json!({"type": "apiKey", "apiKey": "x"})),
        ("mcpServer/tool/call", json!({"threadId": id, "server": "s", "tool": "t"})),
        ("mcpServer/resource/read", json!({"server": "s", "uri": "u"})),
    ] {
        let (code, message) = client.error(method, params).await;
        assert!(code == -32600 && !message.contains("unknown variant"), "{method}: {message}");
    }
    let mut plain = app.connect().await;
    introduce(&mut plain, json!({})).await;
    let (_, message) = plain.error("thread/queue/list", json!({"threadId": id})).await;
    assert_eq!(message, "thread/queue/list requires experimentalApi capability");
}

/// Skills of this machine: the home's, and those of a folder that a client adds. Whoever lists them hears of changes.
#[tokio::test]
async fn skills_are_listed_and_changes_are_told() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let extra = app.work().join("extra");
    write_skill(&extra, "one");
    assert_eq!(client.result("skills/extraRoots/set", json!({"extraRoots": [app.work().join("extra")]})).await, json!({}));
    let list = client.result("skills/list", json!({"cwds": [app.cwd()]})).await["data"][0].take();
    let skill = &list["skills"][0];
    assert_eq!((&skill["name"], &skill["scope"], &skill["enabled"]), (&json!("one"), &json!("user"), &json!(true)), "{list}");
    assert_eq!(skill["path"], json!(app.work().join("extra/one/SKILL.md")));
    let relative = client.result("skills/list", json!({"cwds": ["relative"]})).await["data"][0].take();
    assert!(relative["errors"][0]["message"].as_str().unwrap().contains("not absolute"), "{relative}");
    changes_are_heard(&mut client, |number| write_skill(&extra, &format!("new-{number}"))).await;
}

/// Waits until the watch over this machine's skills is at work: the first look may come after the first change, but not after all.
async fn changes_are_heard(client: &mut outpost_testkit::Client, change: impl Fn(usize)) {
    for number in 0..10 {
        change(number);
        let heard = tokio::time::timeout(std::time::Duration::from_secs(3), client.until(|message| message["method"] == "skills/changed"));
        if heard.await.is_ok() {
            return;
        }
    }
    panic!("nothing was told");
}

fn write_skill(folder: &std::path::Path, name: &str) {
    let folder = folder.join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("SKILL.md"), format!("---\nname: {name}\ndescription: d\n---\n")).unwrap();
}

/// Nobody need have listed skills to hear that they are others now.
#[tokio::test]
async fn changed_skills_are_told_to_whoever_is_there() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let skills = app.home().join("skills");
    std::fs::create_dir_all(&skills).unwrap();
    let mut client = app.client().await;
    changes_are_heard(&mut client, |number| write_skill(&skills, &format!("new-{number}"))).await;
}

/// The folder itself, and the one above it, are made while the server runs: where they would be is watched.
#[tokio::test]
async fn a_folder_of_skills_that_is_made_later_is_noticed() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let skills = app.home().join("skills");
    changes_are_heard(&mut client, |number| write_skill(&skills, &format!("new-{number}"))).await;
    // The home of the server's user is the same directory.
    write_skill(&app.home().join(".agents/skills"), "late");
    let deadline = std::time::Duration::from_secs(30);
    let names = tokio::time::timeout(deadline, async {
        loop {
            notice(&mut client, "skills/changed").await;
            let list = client.result("skills/list", json!({"cwds": [app.cwd()]})).await["data"][0].take();
            let skills = list["skills"].as_array().unwrap().iter();
            let names: Vec<String> = skills.filter_map(|skill| skill["name"].as_str().map(str::to_owned)).collect();
            if names.contains(&"late".to_owned()) {
                return names;
            }
        }
    });
    names.await.expect("it is noticed before folders are looked at again without a reason");
}

const HOLD: &str = "while [ ! -e go ]; do sleep 0.02; done";

#[tokio::test]
async fn what_was_deleted_can_be_said_again() {
    let wait = Reply::call("wait", "exec_command", &json!({"cmd": HOLD, "yield_time_ms": 30000}));
    let app = AppServer::start(OUTPOST, vec![wait, Reply::message("one"), Reply::message("two")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let first = begin(&mut client, &id, "one").await;
    let add = json!({"threadId": id, "input": text("later"), "clientUserMessageId": "k"});
    client.result("thread/queue/add", add).await;
    client.result("thread/queue/delete", json!({"threadId": id, "queuedSubmissionId": "k"})).await;
    std::fs::write(app.work().join("go"), "").unwrap();
    completed(&mut client, &first).await;
    let params = json!({"threadId": id, "input": text("now"), "clientUserMessageId": "k"});
    let started = client.result("turn/start", params).await;
    let second = started["turn"]["id"].as_str().unwrap().to_owned();
    assert_ne!(second, first);
    assert_eq!(completed(&mut client, &second).await["status"], "completed");
}

#[tokio::test]
async fn a_turn_that_waits_keeps_nothing_back_and_ends_with_its_input() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("done")]).await;
    let (mut client, mut other) = (app.client().await, app.client().await);
    let id = thread(&mut client, json!({})).await;
    client.result("thread/shellCommand", json!({"threadId": id, "command": format!("echo begun; {HOLD}")})).await;
    // It waits behind a command, of which the client goes on to hear.
    let named = client.request("turn/start", json!({"threadId": id, "input": text("one"), "clientUserMessageId": "k"}));
    let nameless = client.request("turn/start", json!({"threadId": id, "input": text("two")}));
    let last = client.request("turn/start", json!({"threadId": id, "input": text("three"), "clientUserMessageId": "l"}));
    client.until(|message| message["method"] == "item/commandExecution/outputDelta").await;
    // Others are answered meanwhile, on the same connection, too.
    let queue = loop {
        let listed = client.result("thread/queue/list", json!({"threadId": id})).await;
        if listed["data"].as_array().unwrap().len() == 3 {
            break listed["data"].clone();
        }
    };
    let of = |said: &str| queue.as_array().unwrap().iter().find(|one| one["input"][0]["text"] == said).unwrap()["id"].clone();
    for (request, said) in [(named, "one"), (nameless, "two")] {
        let gone = json!({"threadId": id, "queuedSubmissionId": of(said)});
        assert_eq!(other.result("thread/queue/delete", gone).await["deleted"], true);
        let answer = client.answer(request).await;
        assert!(answer["error"]["message"].as_str().is_some_and(|why| why.contains("was deleted from the queue")), "{answer}");
    }
    std::fs::write(app.work().join("go"), "").unwrap();
    let answer = client.answer(last).await;
    let turn = answer["result"]["turn"]["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
    assert_eq!(completed(&mut client, &turn).await["status"], "completed");
}

#[tokio::test]
async fn the_configured_effort_counts_and_what_a_thread_cannot_have_is_told() {
    let top = "approval_policy = \"never\"\nsandbox_mode = \"workspace-write\"\nmodel_reasoning_effort = \"high\"\n";
    let app = AppServer::start_with(OUTPOST, vec![Reply::message("one"), Reply::message("two")], top).await;
    let mut client = app.client().await;
    let opened = client.result("thread/start", json!({})).await;
    assert_eq!((&opened["reasoningEffort"], &opened["thread"]["reasoningEffort"]), (&json!("high"), &json!("high")));
    let id = opened["thread"]["id"].as_str().unwrap();
    turn(&mut client, id, "hi").await;
    let config = json!({
        "model_reasoning_effort": "low", "sandbox_workspace_write": {"network_access": true, "writable_roots": ["/x"]},
        "model_verbosity": "low", "mcp_servers": {},
    });
    let other = client.result("thread/start", json!({"config": config})).await;
    let warning = notice(&mut client, "configWarning").await;
    let summary = warning["summary"].as_str().unwrap();
    assert!(summary.contains("model_verbosity") && summary.contains("sandbox_workspace_write.writable_roots"), "{summary}");
    assert!(!summary.contains("effort") && !summary.contains("network") && !summary.contains("mcp"), "{summary}");
    assert_eq!((&other["reasoningEffort"], &other["sandbox"]["networkAccess"]), (&json!("low"), &json!(true)));
    turn(&mut client, other["thread"]["id"].as_str().unwrap(), "hi").await;
    let efforts: Vec<Value> = app.model.requests().iter().map(|request| request.body["reasoning"]["effort"].clone()).collect();
    assert_eq!(efforts, ["high", "low"]);
    let (_, why) = client.error("thread/start", json!({"config": {"model": 5}})).await;
    assert!(why.contains("`config.model` must be a string, not 5"), "{why}");
    // What a thread has is not widened for the sake of it.
    let config = json!({"sandbox_workspace_write.network_access": true});
    let resumed = client.result("thread/resume", json!({"threadId": id, "config": config})).await;
    assert_eq!(resumed["sandbox"]["networkAccess"], false);
    assert!(notice(&mut client, "configWarning").await["summary"].as_str().unwrap().contains("network_access"));
}

#[tokio::test]
async fn members_of_an_input_may_be_null() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("hello")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let input = json!([{"type": "text", "text": "hi", "text_elements": null}]);
    let started = client.result("turn/start", json!({"threadId": id, "input": input})).await;
    let item = client.until(|message| message["method"] == "item/completed" && message["params"]["item"]["type"] == "userMessage").await;
    assert_eq!(item["params"]["item"]["content"][0]["text_elements"], json!([]));
    completed(&mut client, started["turn"]["id"].as_str().unwrap()).await;
}
