//! Secrets that a client gives for a server are used and never written down.

use outpost_runtime::StartThread;
use outpost_runtime::mcp::SESSION_LAYER;
use outpost_runtime::mcp::refresh::{RefreshMode, StatusDetail};
use outpost_testkit::LinkKind;
use outpost_testkit::model::Reply;
use outpost_thread::{CallOutcome, ForkPoint, InterruptReason, Marker, Settings, SettingsChanged};
use serde_json::{Value, json};

use crate::harness::{Harness, turn};
use crate::support::{Files, server, setup};

const SECRET: &str = "open-sesame-0815";

fn injected() -> Value {
    let mut given = server("good");
    given["env"] = json!({"API_TOKEN": SECRET, "LEVEL": "3"});
    json!({
        "given": given,
        "web": {"url": "http://127.0.0.1:9/mcp", "environment_id": "one", "http_headers": {"authorization": format!("Bearer {SECRET}")}},
    })
}

fn layer(servers: Value) -> Settings {
    let mut settings = Settings::default();
    settings.other.insert(SESSION_LAYER.into(), servers);
    settings
}

#[tokio::test]
async fn what_a_client_gives_is_used_not_stored_and_asked_for_again() {
    let ask = |id: &str| Reply::call(id, "mcp__given__variable", &json!({"name": "API_TOKEN"}));
    let replies = vec![ask("a"), Reply::message("1"), ask("b"), Reply::message("2"), ask("c"), Reply::message("3")];
    let harness = Harness::new(setup(&[LinkKind::Memory], &Files::new(json!({})), replies)).await;
    let mut start = StartThread::new();
    start.created.selection = Some(harness.select(&[0]));
    start.created.settings = layer(injected());
    let thread = harness.runtime.start(start).await.unwrap();
    turn(&thread, "go").await;
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, SECRET.into())], "the server has it");
    let created = format!("{:?}", harness.entries(thread.id()).await[0]);
    assert!(!created.contains(SECRET) && created.contains("API_TOKEN") && created.contains("LEVEL"), "{created}");
    // A fork, and the thread itself after it was unloaded, go on with it.
    let fork = outpost_runtime::ForkThread::new(thread.id(), ForkPoint::Interrupted(Marker::Off));
    let fork = harness.runtime.fork(fork).await.unwrap();
    turn(&fork, "you, too").await;
    assert_eq!(harness.outputs(fork.id()).await.last().unwrap().1, SECRET);
    harness.runtime.unload(thread.id(), InterruptReason::Shutdown).await;

    // Another program has not.
    let other = harness.restarted().await;
    let resumed = other.resume(thread.id()).await.unwrap();
    let status = other.mcp_status(Some(resumed.id()), StatusDetail::ToolsOnly).await.unwrap();
    let why = |index: usize| status[index].error.clone().unwrap();
    assert!(why(0).contains("the value of `env.API_TOKEN` was given by a client and is not kept in the thread"), "{}", why(0));
    assert!(why(1).contains("`http_headers.authorization`"), "{}", why(1));
    // That is no reason for a refresh to fail.
    other.mcp_refresh(RefreshMode::Strict).await.unwrap();
    resumed.change(vec![SettingsChanged { settings: layer(injected()) }.into()]).await.unwrap();
    turn(&resumed, "go on").await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs.last().unwrap(), &(CallOutcome::Completed, SECRET.into()), "{outputs:?}");
}

/// Given later, they are checked like those that come with the start.
#[tokio::test]
async fn servers_that_make_no_sense_are_refused_whenever_they_come() {
    let harness = Harness::new(setup(&[LinkKind::Memory], &Files::new(json!({})), vec![])).await;
    let thread = harness.start(&[0]).await;
    let wrong = layer(json!({"s": {"command": "a", "url": "http://h/mcp"}}));
    let error = thread.change(vec![SettingsChanged { settings: wrong }.into()]).await.unwrap_err().to_string();
    assert!(error.contains("mcp_servers.s") && error.contains("exclude each other"), "{error}");
    assert_eq!(thread.snapshot().await.unwrap().settings.other.get(SESSION_LAYER), None);
}
