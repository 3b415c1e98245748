//! One process for all who mean the same, and none when nobody is left.

use std::time::Duration;

use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::{Runtime, StartThread};
use outpost_testkit::LinkKind;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::Reply;
use outpost_thread::{CallOutcome, InterruptReason, Raw};
use serde_json::json;

use crate::harness::{Harness, turn};
use crate::support::{Files, living, server, setup, starts};

/// A server that writes down each of its starts, and where.
fn counted(directory: &tempfile::TempDir) -> (serde_json::Value, std::path::PathBuf) {
    let file = directory.path().join("starts");
    let mut counted = server("good");
    counted["env"] = json!({"STARTS": file});
    (counted, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_threads_use_one_process_and_none_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let (counted, file) = counted(&directory);
    let replies = (0..50).map(|_| Reply::call("a", "mcp__s__pid", &json!({}))).collect();
    // Each turn asks twice; what comes to whom does not matter.
    let harness = Harness::new(setup(&[LinkKind::Memory], &Files::new(json!({"s": counted})), replies)).await;
    let mut turns = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let thread = harness.start(&[0]).await;
        turns.spawn(async move {
            turn(&thread, "go").await;
            thread.id()
        });
    }
    let mut answers = Vec::new();
    for id in turns.join_all().await {
        answers.extend(harness.outputs(id).await);
    }
    assert_eq!(answers.len(), 50);
    assert_eq!(starts(&file).len(), 1);
    let pid = starts(&file)[0].to_string();
    assert!(answers.iter().all(|(outcome, text)| *outcome == CallOutcome::Completed && *text == pid), "{answers:?}");
    assert_eq!(living(&file), 1);
    harness.runtime.shutdown(Duration::from_secs(10)).await;
    eventually("no process is left", || living(&file) == 0).await;
}

#[tokio::test]
async fn a_server_that_nobody_uses_is_ended_after_its_grace() {
    let directory = tempfile::tempdir().unwrap();
    let (counted, file) = counted(&directory);
    let mut setup = setup(&[LinkKind::Memory], &Files::new(json!({"s": counted})), vec![]);
    setup.config.mcp.limits.grace = Duration::from_millis(300);
    let harness = Harness::new(setup).await;
    let (one, two) = (harness.start(&[0]).await, harness.start(&[0]).await);
    turn(&one, "go").await;
    turn(&two, "go").await;
    harness.runtime.unload(one.id(), InterruptReason::User).await;
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(living(&file), 1, "a loaded thread keeps its servers");
    harness.runtime.unload(two.id(), InterruptReason::User).await;
    eventually("it is ended", || living(&file) == 0).await;
    let again = harness.runtime.resume(two.id()).await.unwrap();
    turn(&again, "go on").await;
    assert_eq!((starts(&file).len(), living(&file)), (2, 1));
}

async fn started_with(runtime: &Runtime, harness: &Harness, mode: &SandboxMode) {
    let mut start = StartThread::new();
    start.created.selection = Some(harness.select(&[0]));
    start.created.settings.sandbox = Some(Raw::of(mode).unwrap());
    let thread = runtime.start(start).await.unwrap();
    turn(&thread, "go").await;
}

#[tokio::test]
async fn threads_with_other_rights_do_not_share() {
    let directory = tempfile::tempdir().unwrap();
    let (counted, file) = counted(&directory);
    let harness = Harness::new(setup(&[LinkKind::Memory], &Files::new(json!({"s": counted})), vec![])).await;
    for mode in [SandboxMode::DangerFullAccess, SandboxMode::DangerFullAccess, SandboxMode::workspace_write()] {
        started_with(&harness.runtime, &harness, &mode).await;
    }
    // What runs in a sandbox may not write there; that it was started is seen in the pool.
    assert_eq!(starts(&file).len(), 1);
    assert_eq!(harness.runtime.mcp_servers(), 2);
}
