//! What a client hears of a turn, and in which order.

use outpost_testkit::Client;
use outpost_testkit::app::{AppServer, begin, completed, notice, thread, turn};
use outpost_testkit::model::Reply;
use serde_json::{Value, json};

use super::OUTPOST;

/// Everything that came, up to and with the end of the turn.
async fn heard(client: &mut Client, turn: &str) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let message = client.until(|_| true).await;
        let is_end = message["method"] == "turn/completed" && message["params"]["turn"]["id"] == turn;
        all.push(message);
        if is_end {
            return all;
        }
    }
}

/// A message in a few words.
fn words(message: &Value) -> String {
    let params = &message["params"];
    let more = match message["method"].as_str() {
        Some("item/started" | "item/completed") => params["item"]["type"].as_str().unwrap_or_default(),
        Some("thread/status/changed") => params["status"]["type"].as_str().unwrap_or_default(),
        _ => "",
    };
    format!("{} {more}", message["method"].as_str().unwrap_or("answer")).trim().to_owned()
}

#[tokio::test]
async fn the_answer_comes_first_and_the_end_comes_last() {
    let call = Reply::call("call-1", "exec_command", &json!({"cmd": "echo hi; exit 7"}));
    let app = AppServer::start(OUTPOST, vec![call, Reply::message("all good")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    assert_eq!(words(&client.until(|_| true).await), "thread/started");
    let request = client.request("turn/start", json!({"threadId": id, "input": outpost_testkit::app::text("go")}));
    let answer = client.until(|_| true).await;
    assert_eq!(answer["id"], request, "{answer}");
    assert_eq!((&answer["result"]["turn"]["status"], &answer["result"]["turn"]["startedAt"]), (&json!("inProgress"), &Value::Null));
    let turn = answer["result"]["turn"]["id"].as_str().unwrap().to_owned();
    let all = heard(&mut client, &turn).await;
    // When its environment is connected is up to that.
    let beside = |words: &String| words.ends_with("outputDelta") || words == "thread/environment/connected";
    let order: Vec<String> = all.iter().map(words).filter(|words| !beside(words)).collect();
    assert_eq!(
        order,
        [
            "thread/status/changed active",
            "turn/started",
            "item/started userMessage",
            "item/completed userMessage",
            "thread/tokenUsage/updated",
            "item/started commandExecution",
            "item/completed commandExecution",
            "item/started agentMessage",
            "item/completed agentMessage",
            "thread/tokenUsage/updated",
            "thread/status/changed idle",
            "turn/completed",
        ]
    );
    let command = all.iter().find(|message| words(message) == "item/completed commandExecution").unwrap();
    let item = &command["params"]["item"];
    assert_eq!((&item["status"], &item["exitCode"], &item["environmentId"]), (&json!("failed"), &json!(7), &json!("local")));
    assert_eq!((&item["id"], &item["aggregatedOutput"], &item["cwd"]), (&json!("call-1"), &json!("hi\n"), &json!(app.cwd())));
    let output: String =
        all.iter().filter(|message| words(message).ends_with("outputDelta")).map(|m| m["params"]["delta"].as_str().unwrap()).collect();
    assert_eq!(output, "hi\n");
    let last = &all.last().unwrap()["params"]["turn"];
    assert_eq!(last["items"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&last["items"][0]["text"], &last["itemsView"], &last["status"]),
        (&json!("all good"), &json!("summary"), &json!("completed"))
    );
    for message in &all {
        assert!(message["emittedAtMs"].is_u64(), "{message}");
    }
}

#[tokio::test]
async fn what_may_be_left_out_is_there_as_null() {
    let app = AppServer::start(OUTPOST, vec![Reply::message("hi")]).await;
    let mut client = app.client().await;
    let opened = client.result("thread/start", json!({})).await;
    let has = |value: &Value, members: &[&str]| {
        for member in members {
            assert!(value.as_object().unwrap().contains_key(*member), "{member} is missing in {value}");
        }
    };
    has(&opened, &["serviceTier", "reasoningEffort", "instructionSources", "activePermissionProfile"]);
    has(&opened["thread"], &["forkedFromId", "name", "gitInfo", "path", "section", "agentRole", "environments", "turns", "projectId"]);
    let id = opened["thread"]["id"].as_str().unwrap();
    let turn = turn(&mut client, id, "hello").await;
    has(&turn, &["error", "startedAt", "completedAt", "durationMs", "itemsView"]);
    let usage = client.until(|message| message["method"] == "thread/tokenUsage/updated").await;
    has(&usage["params"]["tokenUsage"], &["modelContextWindow", "total", "last"]);
    let items = client.result("thread/items/list", json!({"threadId": id})).await;
    has(&items, &["nextCursor", "backwardsCursor"]);
    has(&items["data"][0]["item"]["content"][0], &["text_elements"]);
    has(&items["data"][1]["item"], &["phase", "memoryCitation"]);
}

#[tokio::test]
async fn a_turn_that_fails_says_why_and_leaves_the_thread_usable() {
    let replies = vec![Reply::status(400, r#"{"error":{"message":"nope"}}"#), Reply::message("fine")];
    let app = AppServer::start(OUTPOST, replies).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "go").await;
    let all = heard(&mut client, &turn).await;
    let order: Vec<String> = all.iter().map(words).collect();
    let error = order.iter().position(|words| words == "error").expect("an error");
    assert_eq!(order[error..], ["error", "thread/status/changed systemError", "turn/completed"]);
    let ended = &all.last().unwrap()["params"]["turn"];
    assert_eq!((&ended["status"], &ended["error"]["codexErrorInfo"]), (&json!("failed"), &json!("other")));
    assert!(ended["error"]["message"].as_str().unwrap().contains("nope"));
    assert_eq!(outpost_testkit::app::turn(&mut client, &id, "again").await["status"], "completed");
}

#[tokio::test]
async fn what_the_model_thinks_says_and_plans_is_told_as_it_comes() {
    let answer = "event: x\ndata: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"message\",\"id\":\"m1\",\"role\":\"assistant\",\"content\":[]}}\n\n\
                  data: {\"type\":\"response.output_text.delta\",\"item_id\":\"m1\",\"delta\":\"one \"}\n\n\
                  data: {\"type\":\"response.output_text.delta\",\"item_id\":\"m1\",\"delta\":\"two\"}\n\n\
                  data: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"message\",\"id\":\"m1\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"one two\"}]}}\n\n\
                  data: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":1,\"output_tokens\":1,\"total_tokens\":2}}}\n\n";
    let think = json!({"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "hm"}]});
    let plan = json!({"plan": [{"step": "a", "status": "in_progress"}]}).to_string();
    let plan = json!({"type": "function_call", "call_id": "p", "name": "update_plan", "arguments": plan});
    let app = AppServer::start(OUTPOST, vec![Reply::Items(vec![think, plan]), Reply::Cut(answer.into())]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "go").await;
    let all = heard(&mut client, &turn).await;
    let of = |method: &str| {
        all.iter().filter(|message| message["method"] == method).map(|message| message["params"].clone()).collect::<Vec<_>>()
    };
    let deltas: String = of("item/agentMessage/delta").iter().map(|params| params["delta"].as_str().unwrap().to_owned()).collect();
    assert_eq!(deltas, "one two");
    let starts = of("item/started").iter().filter(|params| params["item"]["id"].as_str().unwrap().starts_with("m1.")).count();
    let ends = of("item/completed")
        .iter()
        .filter(|params| params["item"]["id"].as_str().unwrap().starts_with("m1.") && params["item"]["text"] == "one two")
        .count();
    assert_eq!((starts, ends), (1, 1));
    assert_eq!(of("turn/plan/updated")[0]["plan"], json!([{"step": "a", "status": "inProgress"}]));
    let read = client.result("thread/turns/list", json!({"threadId": id, "itemsView": "full"})).await;
    assert_eq!(
        read["data"][0]["plan"],
        json!({"explanation": null, "plan": [{"step": "a", "status": "inProgress"}]}),
        "who comes later sees it"
    );
    let thought = of("item/completed").into_iter().find(|params| params["item"]["type"] == "reasoning").unwrap();
    assert_eq!(thought["item"]["summary"], json!(["hm"]));
    what_is_read_is_what_was_told(&mut client, &id).await;
}

async fn what_is_read_is_what_was_told(client: &mut Client, thread: &str) {
    let read = client.result("thread/read", json!({"threadId": thread, "includeTurns": true})).await;
    let types: Vec<&str> =
        read["thread"]["turns"][0]["items"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["userMessage", "reasoning", "agentMessage"]);
}

fn patch(id: &str, lines: &str) -> Reply {
    Reply::call(id, "apply_patch", &json!({"input": format!("*** Begin Patch\n{lines}\n*** End Patch\n")}))
}

#[tokio::test]
async fn the_diff_of_a_turn_adds_up_and_every_change_is_shown_where_it_is() {
    let replies = vec![
        patch("p1", "*** Add File: new.txt\n+one\n*** Update File: old.txt\n@@\n-line 9\n+nine"),
        patch("p2", "*** Update File: new.txt\n@@\n one\n+two\n*** Delete File: gone.txt"),
        Reply::message("done"),
        patch("p3", "*** Delete File: new.txt\n*** Update File: old.txt\n*** Move to: moved.txt\n@@\n-line 2\n+two"),
        Reply::message("done"),
    ];
    let app = AppServer::start(OUTPOST, replies).await;
    let before: String = (1..=12).map(|n| format!("line {n}\n")).collect();
    std::fs::write(app.work().join("old.txt"), &before).unwrap();
    std::fs::write(app.work().join("gone.txt"), "was here\n").unwrap();
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let first = begin(&mut client, &id, "go").await;
    let all = heard(&mut client, &first).await;
    let changes = |wanted: &str, call: &str| {
        let fits = |m: &&Value| words(m) == wanted && (m["params"]["item"]["id"] == call || m["params"]["itemId"] == call);
        let found = all.iter().find(fits).unwrap_or_else(|| panic!("no {wanted} of {call}"));
        if wanted.starts_with("item/fileChange/") { found["params"]["changes"].clone() } else { found["params"]["item"]["changes"].clone() }
    };
    // Before anybody has looked at the file the hunk is well-formed, but stands nowhere; afterwards it says where it is.
    assert_eq!(changes("item/started fileChange", "p1")[1]["diff"], "@@ -1,1 +1,1 @@\n-line 9\n+nine\n");
    let placed = "@@ -6,7 +6,7 @@\n line 6\n line 7\n line 8\n-line 9\n+nine\n line 10\n line 11\n line 12\n";
    assert_eq!(changes("item/completed fileChange", "p1")[1]["diff"], placed);
    assert_eq!(changes("item/fileChange/patchUpdated", "p1"), changes("item/completed fileChange", "p1"));
    assert_eq!(changes("item/completed fileChange", "p1")[0]["diff"], "one\n", "a new file is its text");
    assert_eq!(changes("item/completed fileChange", "p2")[1]["diff"], "was here\n", "so is one that is gone");
    let diffs: Vec<&Value> = all.iter().filter(|m| m["method"] == "turn/diff/updated").map(|m| &m["params"]).collect();
    assert_eq!(diffs.len(), 2);
    let expected = format!(
        "diff --git a/gone.txt b/gone.txt\ndeleted file mode 100644\n--- a/gone.txt\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-was here\n\
         diff --git a/new.txt b/new.txt\nnew file mode 100644\n--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n\
         diff --git a/old.txt b/old.txt\n--- a/old.txt\n+++ b/old.txt\n{placed}"
    );
    assert_eq!(diffs[1]["diff"], expected);
    assert_eq!((&diffs[1]["turnId"], &diffs[1]["threadId"]), (&json!(first), &json!(id)));
    assert!(diffs[1]["ordinal"].is_u64());
    // Another turn begins with nothing changed.
    let second = begin(&mut client, &id, "again").await;
    let all = heard(&mut client, &second).await;
    let last = all.iter().rfind(|m| m["method"] == "turn/diff/updated").unwrap();
    assert!(last["params"]["diff"].as_str().unwrap().contains("diff --git a/new.txt b/new.txt\ndeleted file mode"), "{last}");
    assert!(!last["params"]["diff"].as_str().unwrap().contains("gone.txt"), "{last}");
    let moved = all.iter().find(|m| words(m) == "item/completed fileChange").unwrap()["params"]["item"]["changes"][1].clone();
    assert!(moved["diff"].as_str().unwrap().starts_with("@@ -1,5 +1,5 @@\n line 1\n-line 2\n+two\n"), "{moved}");
    std::fs::write(app.work().join("old.txt"), before.replace("line 9\n", "nine\n")).unwrap();
    // And what git reads is what was done.
    let undo = app.work().join("undo.patch");
    std::fs::write(&undo, &expected).unwrap();
    std::fs::write(app.work().join("new.txt"), "one\ntwo\n").unwrap();
    let git = std::process::Command::new("git").args(["apply", "-R", "undo.patch"]).current_dir(app.work()).output().unwrap();
    assert!(git.status.success(), "{}", String::from_utf8_lossy(&git.stderr));
    assert_eq!(std::fs::read_to_string(app.work().join("old.txt")).unwrap(), before);
    assert!(app.work().join("gone.txt").exists() && !app.work().join("new.txt").exists());
}

#[tokio::test]
async fn items_say_when_they_began_and_ended_heard_or_read() {
    let call = Reply::call("c", "exec_command", &json!({"cmd": "true"}));
    let app = AppServer::start(OUTPOST, vec![call, Reply::message("done")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "go").await;
    let all = heard(&mut client, &turn).await;
    let read = client.result("thread/read", json!({"threadId": id, "includeTurns": true})).await;
    let items = read["thread"]["turns"][0]["items"].as_array().unwrap().clone();
    let completed: Vec<Value> = all.iter().filter(|m| m["method"] == "item/completed").map(|m| m["params"]["item"].clone()).collect();
    assert_eq!(items, completed);
    for item in &items {
        assert!(item["startedAtMs"].as_u64() <= item["completedAtMs"].as_u64() && item["startedAtMs"].is_u64(), "{item}");
    }
    let begun = all.iter().find(|m| words(m) == "item/started commandExecution").unwrap();
    assert_eq!(begun["params"]["item"]["completedAtMs"], Value::Null);
    assert_eq!(begun["params"]["item"]["startedAtMs"], begun["params"]["startedAtMs"]);
}

#[tokio::test]
async fn thoughts_and_their_summaries_are_told_paragraph_by_paragraph() {
    let delta = |kind: &str, index: &str, at: u32, text: &str| json!({"type": format!("response.{kind}.delta"), "item_id": "r1", index: at, "delta": text});
    let thought = json!({"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two"}],
        "content": [{"type": "reasoning_text", "text": "deep"}]});
    let said = json!({"type": "message", "id": "m1", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]});
    let chunks = vec![
        delta("reasoning_text", "content_index", 0, "deep"),
        delta("reasoning_summary_text", "summary_index", 0, "on"),
        delta("reasoning_summary_text", "summary_index", 0, "e"),
        delta("reasoning_summary_text", "summary_index", 1, "two"),
        json!({"type": "response.output_item.done", "item": thought}),
        json!({"type": "response.output_item.done", "item": said}),
        json!({"type": "response.completed", "response": {"usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}}}),
    ];
    let app = AppServer::start(OUTPOST, vec![Reply::Chunks(chunks)]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "go").await;
    let all = heard(&mut client, &turn).await;
    let told: Vec<String> = all
        .iter()
        .filter(|m| m["method"].as_str().is_some_and(|method| method.starts_with("item/reasoning/")))
        .map(|m| {
            let (params, method) = (&m["params"], m["method"].as_str().unwrap().trim_start_matches("item/reasoning/"));
            let index = params.get("summaryIndex").or_else(|| params.get("contentIndex")).unwrap();
            format!("{method} {index} {}", params["delta"].as_str().unwrap_or_default()).trim().to_owned()
        })
        .collect();
    let expected = [
        "textDelta 0 deep",
        "summaryPartAdded 0",
        "summaryTextDelta 0 on",
        "summaryTextDelta 0 e",
        "summaryPartAdded 1",
        "summaryTextDelta 1 two",
    ];
    assert_eq!(told, expected);
    let item = all.iter().find(|m| words(m) == "item/completed reasoning").unwrap();
    assert_eq!((&item["params"]["item"]["summary"], &item["params"]["item"]["content"]), (&json!(["one", "two"]), &json!(["deep"])));
}

#[tokio::test]
async fn a_long_output_is_told_with_both_ends_and_what_is_missing() {
    let long = Reply::call("call-1", "exec_command", &json!({"cmd": "seq 6000", "login": false}));
    let app = AppServer::start(OUTPOST, vec![long, Reply::message("done")]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = client.result("turn/start", json!({"threadId": id, "input": outpost_testkit::app::text("go")})).await;
    let all = heard(&mut client, turn["turn"]["id"].as_str().unwrap()).await;
    let command = all.iter().find(|message| words(message) == "item/completed commandExecution").unwrap();
    let output = command["params"]["item"]["aggregatedOutput"].as_str().unwrap();
    assert!(output.starts_with("1\n2\n") && output.ends_with("\n6000\n"), "{output}");
    assert!(output.contains("bytes left out") && output.len() < 10_000, "{}", output.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_sandbox_lost_is_told_to_those_who_hear_of_the_thread() {
    let waits = "echo x > ready; until [ -e go ]; do sleep 0.02; done";
    let command = Reply::call("a", "exec_command", &json!({"cmd": waits, "yield_time_ms": 30000}));
    let app = AppServer::start(OUTPOST, vec![command, Reply::message("done")]).await;
    let at = |name: &str| app.work().join(name);
    std::fs::write(at(".envrc"), "old").unwrap();
    let mut client = app.client().await;
    let id = thread(&mut client, json!({"sandbox": "workspace-write"})).await;
    let turn = begin(&mut client, &id, "go").await;
    outpost_testkit::executor::eventually("the command runs", || at("ready").exists()).await;
    std::fs::write(at("aside"), "new").unwrap();
    std::fs::rename(at("aside"), at(".envrc")).unwrap();
    let warning = notice(&mut client, "warning").await;
    let message = warning["message"].as_str().unwrap();
    assert!(warning["threadId"] == id.as_str() && message.contains(".envrc") && message.contains("read-only"), "{warning}");
    std::fs::write(at("go"), "").unwrap();
    completed(&mut client, &turn).await;
}

/// A picture that the model makes is an item: it begins when the provider begins it, and holds the picture at its end.
#[tokio::test]
async fn a_picture_of_the_model_is_an_item() {
    let whole = outpost_testkit::model::image("ig_1");
    let begun = json!({"type": "image_generation_call", "id": "ig_1", "status": "in_progress", "result": null});
    let events = [
        json!({"type": "response.output_item.added", "item": begun}),
        json!({"type": "response.output_item.done", "item": whole}),
        json!({"type": "response.completed", "response": {"id": "r", "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}}}),
    ];
    let app = AppServer::start(OUTPOST, vec![Reply::Events(events.to_vec())]).await;
    let mut client = app.client().await;
    let id = thread(&mut client, json!({})).await;
    let turn = begin(&mut client, &id, "draw").await;
    let all = heard(&mut client, &turn).await;
    let items: Vec<&Value> = all.iter().filter(|message| message["params"]["item"]["type"] == "imageGeneration").collect();
    assert_eq!(items.iter().map(|message| &message["method"]).collect::<Vec<_>>(), ["item/started", "item/completed"]);
    let [begun, ended] = [0, 1].map(|at| &items[at]["params"]["item"]);
    assert_eq!((&begun["id"], &begun["status"], &begun["result"]), (&ended["id"], &json!("in_progress"), &json!("")));
    assert_eq!((&ended["status"], &ended["result"]), (&json!("completed"), &json!(outpost_testkit::model::PIXEL)));
    assert_eq!(ended["revisedPrompt"], "a single pixel");
    assert!(std::path::Path::new(ended["savedPath"].as_str().unwrap()).exists());
    let read = client.result("thread/read", json!({"threadId": id, "includeTurns": true})).await;
    let read = read["thread"]["turns"][0]["items"].as_array().unwrap().iter().find(|item| item["type"] == "imageGeneration").unwrap();
    assert_eq!((&read["id"], &read["result"]), (&ended["id"], &ended["result"]));
}
