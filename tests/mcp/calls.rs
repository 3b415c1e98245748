//! Tools of servers, used by a turn.

use outpost_testkit::model::{Reply, call};
use outpost_thread::{CallOutcome, Fact};
use serde_json::{Value, json};

use crate::harness::{is_completed, turn};
use crate::support::{harness, offered, server};

#[tokio::test]
async fn a_turn_uses_a_tool_of_a_server() {
    let harness = harness(json!({"s": server("good")}), vec![Reply::call("a", "mcp__s__echo", &json!({"text": "hello"}))]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    assert!(offered(&harness, 0).contains(&"mcp__s__echo".to_owned()));
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, "hello".into())]);
    assert!(harness.turn_ends(thread.id()).await.iter().all(is_completed));
    let entries = harness.entries(thread.id()).await;
    let started = entries.iter().find_map(|entry| if let Fact::CallStarted(started) = &entry.fact { Some(started) } else { None });
    let detail: Value = started.unwrap().detail.as_ref().unwrap().raw().read().unwrap();
    assert_eq!((&detail["type"], &detail["server"], &detail["tool"]), (&json!("mcpToolCall"), &json!("s"), &json!("echo")));
    assert_eq!(detail["arguments"], json!({"text": "hello"}));
    let finished = entries.iter().find_map(|entry| if let Fact::CallFinished(finished) = &entry.fact { Some(finished) } else { None });
    let detail: Value = finished.unwrap().detail.as_ref().unwrap().raw().read().unwrap();
    assert_eq!(detail["result"]["content"][0]["text"], "hello");
    assert!(detail["error"].is_null() && detail["durationMs"].is_u64());
}

#[tokio::test]
async fn results_of_every_kind_reach_the_model() {
    let calls = ["fail", "picture", "a tool.with/strange name"].map(|name| {
        let clean = name.replace(['.', '/', ' '], "_");
        call(name, &format!("mcp__s__{clean}"), &json!({}))
    });
    let harness = harness(json!({"s": server("good")}), vec![Reply::Items(calls.to_vec())]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs.contains(&(CallOutcome::Failed, "The tool reports that it failed:\nit went wrong".into())), "{outputs:?}");
    assert!(outputs.contains(&(CallOutcome::Completed, "called a tool.with/strange name".into())), "{outputs:?}");
    let sent = harness.model.requests()[1].body["input"].as_array().unwrap().clone();
    let picture = sent.iter().find(|item| item["call_id"] == "picture" && item["type"] == "function_call_output").unwrap();
    let pixel = format!("data:image/png;base64,{}", outpost_wire::base64::encode(outpost_testkit::PIXEL));
    assert_eq!(picture["output"][1]["image_url"], pixel);
}
