//! Reading the configuration again: what a thread was given stays, what is the same keeps running, and nothing is changed by
//! a configuration that is broken.

use std::path::PathBuf;

use outpost_runtime::StartThread;
use outpost_runtime::live::{LiveThread, NewInput};
use outpost_runtime::mcp::SESSION_LAYER;
use outpost_runtime::mcp::refresh::{ClientToolCall, RefreshMode, StatusDetail};
use outpost_testkit::LinkKind;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::Reply;
use outpost_thread::{CallOutcome, Decision, Fact, InterruptReason, Raw};
use serde_json::{Value, json};

use crate::harness::{Harness, next_fact, settled, turn};
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
async fn s89_an_injected_server_and_a_changed_file_both_survive() {
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
async fn s89_a_broken_configuration_fails_the_refresh_and_changes_nothing() {
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
    assert!(error.contains(".mcp.json") && error.contains("is not valid JSON"), "{error}");
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
async fn s89_a_refresh_by_itself_does_what_it_can() {
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
    assert!(report.failed[0].1.to_string().contains("either `command`"), "{report:?}");
    assert_eq!(stage.names(&healthy).await, ready(&["injected", "new"]));
    assert_eq!(stage.names(&sick).await, before);
}

/// A file that changes is seen without anybody asking for a refresh, also by a thread that does nothing.
#[tokio::test]
async fn s89_a_changed_file_is_taken_up_by_an_idle_thread() {
    let stage = Stage::new().await;
    let thread = stage.thread().await;
    let unloaded = stage.thread().await;
    stage.harness.runtime.unload(unloaded.id(), InterruptReason::User).await;
    let before = starts(&stage.file("kept"));
    stage.files.change(json!({"kept": counted(&stage.directory, "kept"), "new": counted(&stage.directory, "new")}));
    eventually("the new one is started, and the one that is gone has ended", || {
        living(&stage.file("new")) == 1 && living(&stage.file("gone")) == 0
    })
    .await;
    assert_eq!(starts(&stage.file("kept")), before, "what is the same keeps its process");
    assert_eq!((starts(&stage.file("injected")).len(), living(&stage.file("injected"))), (1, 1));
    assert_eq!(stage.names(&thread).await, ready(&["injected", "kept", "new"]));
    // One that is broken changes nothing.
    stage.files.spoil_loudly("line 3 is broken");
    stage.files.change(json!({"kept": counted(&stage.directory, "kept")}));
    eventually("the next good one counts", || living(&stage.file("new")) == 0).await;
    assert_eq!(starts(&stage.file("kept")), before);
}

/// The same for `.mcp.json` where the thread works, watched by the executor there.
#[tokio::test]
async fn s89_a_project_that_changes_is_taken_up_by_an_idle_thread() {
    let directory = tempfile::tempdir().unwrap();
    let mut setup = setup(&[LinkKind::WebSocket], &Files::new(json!({"kept": counted(&directory, "kept")})), vec![]);
    setup.config.mcp.limits.grace = std::time::Duration::from_millis(100);
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let file = directory.path().join("project");
    let project = |name: &str| {
        let declared = json!({name: {"command": "python3", "args": [crate::support::SERVER], "env": {"STARTS": file}}});
        std::fs::write(harness.work(0).join(".mcp.json"), declared.to_string()).unwrap();
    };
    // The watch begins when the first step is under way; until then a change is seen by the next step.
    let mut number = 0;
    let began = std::time::Instant::now();
    while living(&file) == 0 {
        number += 1;
        project(&format!("project{number}"));
        // A server needs a while to begin, and is not replaced meanwhile.
        let written = std::time::Instant::now();
        while living(&file) == 0 && written.elapsed() < std::time::Duration::from_secs(5) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(120), "the project's server is not taken up");
    }
    let pid = starts(&directory.path().join("kept"));
    // One that is broken changes nothing; one that is gone takes its server with it.
    let before = starts(&file).len();
    std::fs::write(harness.work(0).join(".mcp.json"), "{").unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(900)).await;
    assert_eq!((starts(&file).len(), living(&file)), (before, 1));
    turn(&thread, "go on").await;
    assert_eq!(living(&file), 1, "a step goes on with what was last good");
    std::fs::remove_file(harness.work(0).join(".mcp.json")).unwrap();
    eventually("its server has ended", || living(&file) == 0).await;
    assert_eq!(starts(&directory.path().join("kept")), pid);
}

/// What one thread finds changed in a capability root, others that have it learn, too.
#[tokio::test]
async fn s89_a_changed_plugin_is_taken_up_by_other_threads() {
    let directory = tempfile::tempdir().unwrap();
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &Files::new(json!({})), vec![])).await;
    let plugin = directory.path().join("plugin");
    std::fs::create_dir(&plugin).unwrap();
    let declare = |servers: Value| {
        std::fs::write(plugin.join("plugin.json"), json!({"name": "p", "mcpServers": servers}).to_string()).unwrap();
    };
    let own = |name: &str| json!({"command": "python3", "args": [crate::support::SERVER], "env": {"STARTS": directory.path().join(name)}});
    declare(json!({"old": own("old")}));
    let begin = async || {
        let mut start = StartThread::new();
        start.created.selection = Some(harness.select(&[0]));
        let id = outpost_wire::intent::EnvironmentId::parse("one").unwrap();
        let path = outpost_wire::PathUri::from_native(&plugin).unwrap();
        start.created.capability_roots = vec![outpost_wire::intent::CapabilityRoot::new("p", id, path)];
        let thread = harness.runtime.start(start).await.unwrap();
        turn(&thread, "go").await;
        thread
    };
    let (active, idle) = (begin().await, begin().await);
    let mut feed = idle.subscribe();
    declare(json!({"old": own("old"), "new": own("new")}));
    turn(&active, "go on").await;
    let heard =
        async {
            loop {
                if let outpost_runtime::feed::Read::Event(outpost_runtime::live::ThreadEvent::Mcp(
                    outpost_runtime::mcp::McpEvent::Startup { server, state, .. },
                )) = feed.next().await
                    && (server.as_str(), state.as_str()) == ("new", "ready")
                {
                    return;
                }
            }
        };
    tokio::time::timeout(std::time::Duration::from_secs(20), heard).await.expect("the idle thread hears nothing of the new server");
    assert_eq!((starts(&directory.path().join("old")).len(), starts(&directory.path().join("new")).len()), (1, 1));
}

/// A server asks the user something; meanwhile everything is read again; the answer still reaches it.
#[tokio::test]
async fn s89_a_question_survives_a_refresh() {
    let directory = tempfile::tempdir().unwrap();
    let files = Files::new(json!({"s": server("good")}));
    let mut setup = setup(&[LinkKind::WebSocket], &files, vec![Reply::call("a", "mcp__s__ask", &json!({}))]);
    setup.config.mcp.limits.grace = std::time::Duration::from_millis(50);
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let asked = next_fact(&mut feed, |fact| if let Fact::ApprovalAsked(asked) = fact { Some(asked.clone()) } else { None }).await;
    // The server that asks is not even declared any more.
    files.write(json!({"new": counted(&directory, "new")}));
    harness.runtime.mcp_refresh(RefreshMode::Strict).await.unwrap();
    eventually("the refresh has had its effect", || living(&directory.path().join("new")) == 1).await;
    let answer = Raw::from(json!({"content": {"colour": "blue"}}));
    thread.answer(asked.approval.clone(), Decision::Approved, Some(answer)).await.unwrap();
    settled(&thread).await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs, [(CallOutcome::Completed, r#"{"action": "accept", "content": {"colour": "blue"}}"#.into())]);
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
