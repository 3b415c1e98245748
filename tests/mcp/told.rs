//! What the model is told about servers that it cannot use.

use outpost_runtime::mcp::refresh::RefreshMode;
use outpost_testkit::LinkKind;
use outpost_testkit::model::Reply;
use outpost_thread::InterruptReason;
use serde_json::json;

use crate::harness::{Harness, turn};
use crate::support::{Files, harness, server, setup};

/// The messages about servers that the last request held, in order.
fn told(harness: &Harness) -> Vec<String> {
    let requests = harness.model.requests();
    let texts = requests.last().unwrap().body["input"].as_array().unwrap().iter().filter_map(|item| item["content"][0]["text"].as_str());
    texts.filter(|text| text.starts_with("<mcp_servers>")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_server_that_cannot_be_used_is_told_once_and_so_is_its_return() {
    let mut off = server("good");
    off["enabled"] = json!(false);
    let files = Files::new(json!({"bad": server("dies"), "good": server("good"), "off": off}));
    let harness = Harness::new(setup(&[LinkKind::Memory], &files, vec![])).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "one").await;
    let first = told(&harness);
    assert_eq!(first.len(), 1);
    assert!(first[0].contains("MCP server `bad` cannot be used now: ") && first[0].contains("exit code 3"), "{first:?}");
    assert!(!first[0].contains("no configuration was found"), "what a server says is not passed off as ours: {first:?}");
    assert!(!first[0].contains("`good`") && !first[0].contains("`off`"), "{first:?}");
    turn(&thread, "two").await;
    assert_eq!(told(&harness), first, "it is not repeated");
    // Neither after a restart, and there nothing of it is lost.
    harness.runtime.unload(thread.id(), InterruptReason::Shutdown).await;
    let other = harness.restarted().await;
    let resumed = other.resume(thread.id()).await.unwrap();
    turn(&resumed, "three").await;
    assert_eq!(told(&harness), first);
    files.write(json!({"bad": server("good"), "good": server("good")}));
    other.mcp_refresh(RefreshMode::Strict).await.unwrap();
    turn(&resumed, "four").await;
    let now = told(&harness);
    assert_eq!(now.last().unwrap(), "<mcp_servers>\nMCP server `bad` is not left out any more.\n</mcp_servers>", "{now:?}");
}

/// What a server says in its answers and of itself reaches the model: structured content, errors, instructions.
#[tokio::test]
async fn all_that_a_server_says_reaches_the_model() {
    let call = |id: &str, tool: &str| Reply::call(id, &format!("mcp__s__{tool}"), &json!({}));
    let harness = harness(json!({"s": server("teaches")}), vec![call("a", "measure"), call("b", "fail")]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs[0].1, "long\n{\"metres\":7}", "{outputs:?}");
    assert_eq!(outputs[1].1, "The tool reports that it failed:\nit went wrong", "{outputs:?}");
    let requests = harness.model.requests();
    let told = |index: usize| requests[index].body.to_string().matches("Measure twice before you cut.").count();
    assert_eq!((told(0), told(2)), (1, 1), "once, and it stays");
}
