//! Reading the configuration again: what a thread was given stays, what is the same keeps running, and nothing is changed by
//! a configuration that is broken.

use std::path::PathBuf;

use outpost_runtime::StartThread;
use outpost_runtime::live::LiveThread;
use outpost_runtime::mcp::SESSION_LAYER;
use outpost_runtime::mcp::refresh::{ClientToolCall, RefreshMode, StatusDetail};
use outpost_testkit::LinkKind;
use outpost_testkit::executor::eventually;
use outpost_thread::InterruptReason;
use serde_json::{Value, json};

use crate::harness::{Harness, turn};
use crate::support::{Files, living, server, setup, starts};

struct Stage {
    harness: Harness,
    files: Files,
    directory: tempfile::TempDir,
}

impl Stage {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let files = Files::new(json!({"kept": counted(&directory, "kept"), "gone": counted(&directory, "gone")}));
        let mut setup = setup(&[LinkKind::Memory], &files, vec![]);
        setup.config.mcp.limits.grace = std::time::Duration::from_millis(100);
        let harness = Harness::new(setup).await;
        Self { harness, files, directory }
    }

    /// A thread that a client gave a server of its own.
    async fn thread(&self) -> LiveThread {
        let mut start = StartThread::new();
        start.created.selection = Some(self.harness.select(&[0]));
        start.created.settings.other.insert(SESSION_LAYER.into(), json!({"injected": counted(&self.directory, "injected")}));
        let thread = self.harness.runtime.start(start).await.unwrap();
        turn(&thread, "go").await;
        thread
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn names(&self, thread: &LiveThread) -> Vec<(String, String)> {
        let status = self.harness.runtime.mcp_status(Some(thread.id()), StatusDetail::ToolsOnly).await.unwrap();
        status.into_iter().map(|server| (server.name, server.state)).collect()
    }
}

fn counted(directory: &tempfile::TempDir, name: &str) -> Value {
    let mut counted = server("good");
    counted["env"] = json!({"STARTS": directory.path().join(name)});
    counted
}

fn ready(names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| ((*name).to_owned(), "ready".to_owned())).collect()
}

#[tokio::test]
async fn an_injected_server_and_a_changed_file_both_survive() {
    let stage = Stage::new().await;
    let thread = stage.thread().await;
    assert_eq!(stage.names(&thread).await, ready(&["gone", "injected", "kept"]));
    stage.files.write(json!({"kept": counted(&stage.directory, "kept"), "new": counted(&stage.directory, "new")}));
    let report = stage.harness.runtime.mcp_refresh(RefreshMode::Strict).await.unwrap();
    assert_eq!(report.refreshed, [thread.id()]);
    assert_eq!(stage.names(&thread).await, ready(&["injected", "kept", "new"]));
    eventually("what is not declared any more has ended", || living(&stage.file("gone")) == 0).await;
    for same in ["kept", "injected"] {
        assert_eq!((starts(&stage.file(same)).len(), living(&stage.file(same))), (1, 1), "{same} kept running");
    }
    // Also after the thread was unloaded.
    stage.harness.runtime.unload(thread.id(), InterruptReason::User).await;
    let again = stage.harness.runtime.resume(thread.id()).await.unwrap();
    assert_eq!(stage.names(&again).await, ready(&["injected", "kept", "new"]));
}

#[tokio::test]
async fn a_broken_configuration_fails_the_refresh_and_changes_nothing() {
    let stage = Stage::new().await;
    let (one, two) = (stage.thread().await, stage.thread().await);
    let before = stage.names(&one).await;
    stage.files.spoil("config.toml: line 3 is broken");
    let error = stage.harness.runtime.mcp_refresh(RefreshMode::Strict).await.unwrap_err().to_string();
    assert!(error.contains("line 3 is broken"), "{error}");
    stage.files.write(json!({"kept": {"command": 3}}));
    let error = stage.harness.runtime.mcp_refresh(RefreshMode::Strict).await.unwrap_err().to_string();
    assert!(error.contains("mcp_servers.kept"), "{error}");
    // One thread that cannot be planned is enough.
    stage.files.write(json!({"new": counted(&stage.directory, "new")}));
    std::fs::write(stage.harness.work(0).join(".mcp.json"), "{").unwrap();
    let error = stage.harness.runtime.mcp_refresh(RefreshMode::Strict).await.unwrap_err().to_string();
    assert!(error.contains(".mcp.json") && error.contains("is no JSON"), "{error}");
    for thread in [&one, &two] {
        turn(thread, "go on").await;
        assert_eq!(stage.names(thread).await, before);
    }
    for same in ["kept", "gone", "injected"] {
        assert_eq!((starts(&stage.file(same)).len(), living(&stage.file(same))), (1, 1), "{same} was not touched");
    }
    assert!(starts(&stage.file("new")).is_empty());
}

#[tokio::test]
async fn a_refresh_by_itself_does_what_it_can() {
    let stage = Stage::new().await;
    let healthy = stage.thread().await;
    let sick = {
        let mut start = StartThread::new();
        start.created.selection = Some(stage.harness.select(&[0]));
        // It fits what lies in the file now, and not what will lie there.
        start.created.settings.other.insert(SESSION_LAYER.into(), json!({"gone": {"startup_timeout_sec": 5}}));
        let thread = stage.harness.runtime.start(start).await.unwrap();
        turn(&thread, "go").await;
        thread
    };
    let before = stage.names(&sick).await;
    stage.files.write(json!({"new": counted(&stage.directory, "new")}));
    let report = stage.harness.runtime.mcp_refresh(RefreshMode::BestEffort).await.unwrap();
    assert_eq!(report.refreshed, [healthy.id()]);
    assert_eq!(report.failed.len(), 1);
    assert!(report.failed[0].1.contains("either `command`"), "{report:?}");
    assert_eq!(stage.names(&healthy).await, ready(&["injected", "new"]));
    assert_eq!(stage.names(&sick).await, before);
}

#[tokio::test]
async fn a_client_calls_and_reads_outside_of_a_turn() {
    let stage = Stage::new().await;
    let thread = stage.thread().await;
    let call = |server: &str, tool: &str| ClientToolCall {
        server: server.into(),
        tool: tool.into(),
        arguments: json!({"text": "hi"}).as_object().cloned(),
        meta: None,
    };
    let result = stage.harness.runtime.mcp_call(thread.id(), call("injected", "echo")).await.unwrap();
    assert_eq!(result.content[0]["text"], "hi");
    let error = |error: outpost_runtime::mcp::refresh::McpRequestError| error.to_string();
    let missing = stage.harness.runtime.mcp_call(thread.id(), call("injected", "fly")).await.map_err(error).unwrap_err();
    assert!(missing.contains("has no tool `fly`"), "{missing}");
    let unknown = stage.harness.runtime.mcp_call(thread.id(), call("nobody", "fly")).await.map_err(error).unwrap_err();
    assert!(unknown.contains("there are: gone, injected, kept"), "{unknown}");
    let contents = stage.harness.runtime.mcp_read(Some(thread.id()), "kept", "memo:one").await.unwrap();
    assert_eq!(contents[0]["text"], "the memo");
    let without = stage.harness.runtime.mcp_status(None, StatusDetail::Full).await.unwrap();
    assert_eq!(without.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(), ["gone", "kept"]);
    assert!(without[0].tools.contains_key("echo") && without[0].resources.len() == 1);
}
