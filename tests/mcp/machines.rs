//! What machines declare and require themselves: scenarios 87 and 88 of the environments, on real executors.

use std::path::Path;

use futures_util::StreamExt;
use outpost_environment::{ConnectPolicy, Connector};
use outpost_rpc::Link;
use outpost_runtime::live::{LiveThread, NewInput};
use outpost_runtime::mcp::refresh::{RefreshMode, ServerStatus, StatusDetail};
use outpost_runtime::mcp::{Configured, LayerSource, Requirements, ServerLayer};
use outpost_runtime::policy::ApprovalPolicy;
use outpost_runtime::{Runtime, StartThread};
use outpost_testkit::model::Reply;
use outpost_testkit::{Bench, LinkKind, Setup as BenchSetup};
use outpost_thread::{CallOutcome, Decision, Fact, Raw};
use outpost_wire::PathUri;
use outpost_wire::intent::{Attachment, CapabilityRoot, EnvironmentId, Selection};
use serde_json::json;

use crate::harness::{Harness, OUTPOST, next_fact, settled, turn};
use crate::http::HttpServer;
use crate::support::{Files, SERVER, offered, server, setup};

fn id(text: &str) -> EnvironmentId {
    EnvironmentId::parse(text).unwrap()
}

async fn status(runtime: &Runtime, thread: &LiveThread) -> Vec<ServerStatus> {
    runtime.mcp_status(Some(thread.id()), StatusDetail::ToolsOnly).await.unwrap()
}

fn names(status: &[ServerStatus]) -> Vec<(&str, &str, &str)> {
    status.iter().map(|server| (server.name.as_str(), server.state.as_str(), server.origin.as_str())).collect()
}

/// The home of the executor of the first environment.
fn home(harness: &Harness) -> &Path {
    harness.bench(0).process().unwrap().home()
}

fn program(name: &str) -> String {
    format!("[mcp_servers.{name}]\ncommand = \"python3\"\nargs = [{SERVER:?}]\n")
}

/// A machine declares a server whose token only it knows; nobody else's declaration is touched, and no turn depends on it.
#[tokio::test]
async fn s87_a_machine_declares_a_server_with_a_token_of_its_own() {
    let web = HttpServer::start(Some("sesame"));
    let files = Files::new(json!({"taken": server("good")}));
    let replies = vec![Reply::call("a", "mcp__web__stream", &json!({}))];
    let mut setup = setup(&[], &files, replies);
    setup.config.approval = ApprovalPolicy::Never;
    let harness = Harness::new(setup).await;
    let variables = BenchSetup { variables: &[("MCP_TEST_SESAME", "sesame")], ..BenchSetup::default() };
    let bench = Bench::with_setup(LinkKind::WebSocket, OUTPOST, &variables);
    let declared = format!(
        "[mcp_servers.web]\nurl = \"{}\"\nbearer_token_env_var = \"MCP_TEST_SESAME\"\nrequired = true\n\
         [mcp_servers.down]\nurl = \"http://127.0.0.1:9/mcp\"\nrequired = true\n\
         [mcp_servers.away]\ncommand = \"x\"\nenvironment_id = \"elsewhere\"\n{}{}",
        web.url(),
        program("taken"),
        program("own"),
    );
    std::fs::write(bench.process().unwrap().home().join("config.toml"), declared).unwrap();
    crate::support::attach(&harness, "one", bench);
    let work = tempfile::tempdir().unwrap();
    let place = Attachment::new(id("one"), PathUri::from_native(work.path()).unwrap());
    let thread = harness.start_in(vec![place]).await;
    turn(&thread, "go").await;
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, "stream".into())]);
    let status = status(&harness.runtime, &thread).await;
    assert_eq!(
        names(&status),
        [
            ("away", "failed", ""),
            ("down", "failed", "environment one"),
            ("own", "ready", "environment one"),
            ("taken", "ready", "config"),
            ("web", "ready", "environment one"),
        ]
    );
    assert!(status[0].error.as_ref().unwrap().contains("a machine declares what is on it"), "{status:?}");
    assert!(status.iter().all(|server| !server.required), "what a machine declares is never required");
    assert_eq!((status[4].environment_id.as_deref(), status[4].auth_status.as_str()), (Some("one"), "bearerToken"));
}

/// What is written there counts from the next step on; what cannot be read is told, and spoils nothing else.
#[tokio::test]
async fn s87_what_a_machine_declares_is_read_at_every_step() {
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &Files::new(json!({"mine": server("good")})), vec![])).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    assert_eq!(names(&status(&harness.runtime, &thread).await), [("mine", "ready", "config")]);
    std::fs::write(home(&harness).join("config.toml"), program("own")).unwrap();
    turn(&thread, "go on").await;
    assert!(offered(&harness, 1).contains(&"mcp__own__echo".to_owned()));
    std::fs::write(home(&harness).join("config.toml"), "= broken").unwrap();
    turn(&thread, "and on").await;
    let offered = offered(&harness, 2);
    assert!(offered.contains(&"mcp__mine__echo".to_owned()) && !offered.contains(&"mcp__own__echo".to_owned()), "{offered:?}");
}

/// An executor that cannot tell what its machine declares declares nothing, and everything else works.
#[tokio::test]
async fn s87_an_older_executor_is_passed_over() {
    let harness = Harness::new(setup(&[], &Files::new(json!({"mine": server("good")})), vec![])).await;
    let bench = std::sync::Arc::new(Bench::with_setup(LinkKind::WebSocket, OUTPOST, &BenchSetup::default()));
    let home = bench.process().unwrap().home().to_owned();
    std::fs::write(home.join("config.toml"), program("own")).unwrap();
    // Whatever it offers, this one does not say that it can read its configuration.
    let older = move || {
        let bench = bench.clone();
        async move {
            let Link { tx, rx, name, gate, liveness } = bench.link().await;
            let silence = |frame: bytes::Bytes| -> bytes::Bytes {
                let text = String::from_utf8_lossy(&frame).replace("\"environmentConfigRead\":true", "\"environmentConfigRead\":false");
                text.into_bytes().into()
            };
            Ok(Link { tx, rx: Box::pin(rx.map(move |frame| frame.map(silence))), name, gate, liveness })
        }
    };
    harness.runtime.registry().attach(id("one"), Connector::new("one", older), ConnectPolicy::Lazy).unwrap();
    let work = tempfile::tempdir().unwrap();
    let thread = harness.start_in(vec![Attachment::new(id("one"), PathUri::from_native(work.path()).unwrap())]).await;
    turn(&thread, "go").await;
    assert_eq!(names(&status(&harness.runtime, &thread).await), [("mine", "ready", "config")]);
}

/// A thread that works for the runtime itself keeps to what the user configured.
#[tokio::test]
async fn s87_a_reviewer_has_nothing_that_machines_declare() {
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &Files::new(json!({"mine": server("good")})), vec![])).await;
    std::fs::write(home(&harness).join("config.toml"), program("own")).unwrap();
    let mut start = StartThread::new();
    start.created.selection = Some(harness.select(&[0]));
    start.created.source = Some(Raw::from(json!({"internal": "review"})));
    let reviewer = harness.runtime.start(start).await.unwrap();
    turn(&reviewer, "go").await;
    assert_eq!(names(&status(&harness.runtime, &reviewer).await), [("mine", "ready", "config")]);
    let ordinary = harness.start(&[0]).await;
    turn(&ordinary, "go").await;
    assert_eq!(names(&status(&harness.runtime, &ordinary).await), [("mine", "ready", "config"), ("own", "ready", "environment one")]);
}

#[tokio::test]
async fn s87_servers_of_a_plugin_are_there_for_the_thread_that_selected_it() {
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &Files::new(json!({})), vec![])).await;
    let plugin = tempfile::tempdir().unwrap();
    let servers = json!({"plugged": {"command": "python3", "args": [SERVER]}});
    std::fs::write(plugin.path().join("plugin.json"), json!({"name": "p", "mcpServers": servers}).to_string()).unwrap();
    let mut start = StartThread::new();
    start.created.selection = Some(harness.select(&[0]));
    start.created.capability_roots = vec![CapabilityRoot::new("p", id("one"), PathUri::from_native(plugin.path()).unwrap())];
    let with = harness.runtime.start(start).await.unwrap();
    let without = harness.start(&[0]).await;
    turn(&with, "go").await;
    turn(&without, "go").await;
    assert_eq!(names(&status(&harness.runtime, &with).await), [("plugged", "ready", "plugin p")]);
    assert_eq!(names(&status(&harness.runtime, &without).await), []);
}

/// Plugins that are installed on a machine bring their servers along, for those who work there.
#[tokio::test]
async fn an_installed_plugin_brings_its_server_along_and_its_hooks_are_listed() {
    let replies = vec![Reply::call("a", "mcp__plugged__where", &json!({}))];
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &Files::new(json!({})), replies)).await;
    let plugin = home(&harness).join("plugins/tools");
    std::fs::create_dir_all(plugin.join("hooks")).unwrap();
    let servers = json!({"plugged": {"command": "python3", "args": ["${PLUGIN_ROOT}/server.py"]}});
    std::fs::write(plugin.join("plugin.json"), json!({"name": "tools", "mcpServers": servers}).to_string()).unwrap();
    std::fs::write(plugin.join("hooks/hooks.json"), json!({"hooks": {"Stop": []}}).to_string()).unwrap();
    std::fs::copy(SERVER, plugin.join("server.py")).unwrap();
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let there = plugin.canonicalize().unwrap().display().to_string();
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, there)]);
    let why = harness.runtime.why(thread.id()).await.unwrap();
    assert_eq!((why.plugins[0].name.as_str(), &why.plugins[0].hooks[..]), ("tools", &["Stop".to_owned()][..]));
    assert!(why.plugins[0].is_installed);
}

/// What the administrator of a machine requires holds for every server there, whoever declares it.
#[tokio::test]
async fn s88_what_a_machine_requires_decides_what_the_model_is_offered() {
    let files = Files::new(json!({"a": server("good"), "b": server("good"), "c": {"command": "other", "environment_id": "one"}}));
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &files, vec![])).await;
    let required = "[mcp_servers.a]\nidentity = { command = \"python3\" }\n[mcp_servers.c]\nidentity = { command = \"python3\" }\n";
    std::fs::write(home(&harness).join("requirements.toml"), required).unwrap();
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let offered = offered(&harness, 0);
    assert!(offered.contains(&"mcp__a__echo".to_owned()) && !offered.iter().any(|name| name.starts_with("mcp__b__")), "{offered:?}");
    let status = status(&harness.runtime, &thread).await;
    let states: Vec<_> = status.iter().map(|server| (server.name.as_str(), server.state.as_str())).collect();
    assert_eq!(states, [("a", "ready"), ("b", "disabled"), ("c", "disabled")]);
    let why = |index: usize| status[index].error.as_deref().unwrap();
    assert!(why(1).contains("requirements.toml) of environment `one` do not allow it"), "{}", why(1));
    assert!(why(2).contains("allow another server of this name"), "{}", why(2));
    // A list that cannot be read lets nothing through.
    std::fs::write(home(&harness).join("requirements.toml"), "= broken").unwrap();
    turn(&thread, "go on").await;
    assert!(crate::support::offered(&harness, 1).is_empty());
}

/// The same of the machine that runs the threads: for all servers, wherever they are.
#[tokio::test]
async fn s88_what_this_machine_requires_holds_everywhere_and_is_read_again() {
    let required = std::sync::Arc::new(std::sync::Mutex::new(json!({"a": {"identity": {"command": "python3"}}})));
    let current = required.clone();
    let servers = json!({"a": server("good"), "b": server("good")});
    let mut setup = setup(&[LinkKind::WebSocket], &Files::new(json!({})), vec![]);
    setup.config.mcp.source = LayerSource::new(move |_| {
        let mut requirements = Requirements::default();
        requirements.add("requirements.toml", Some(&current.lock().unwrap()));
        Configured { servers: ServerLayer::of(Some(&servers)), requirements }
    });
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let states = |status: Vec<ServerStatus>| status.into_iter().map(|server| server.state).collect::<Vec<_>>();
    assert_eq!(states(status(&harness.runtime, &thread).await), ["ready", "disabled"]);
    *required.lock().unwrap() = json!({"b": {"identity": {"command": "python3"}}});
    harness.runtime.mcp_refresh(RefreshMode::Strict).await.unwrap();
    assert_eq!(states(status(&harness.runtime, &thread).await), ["disabled", "ready"]);
}

/// Another machine under the same name has a server of its own; the tools come from there.
#[tokio::test]
async fn s88_the_tools_of_another_machine_are_those_of_its_own_server() {
    let replies = vec![Reply::call("a", "mcp__s__pid", &json!({})), Reply::message("ok"), Reply::call("b", "mcp__s__pid", &json!({}))];
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &Files::new(json!({"s": server("good")})), replies)).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    crate::support::attach(&harness, "one", Bench::with_setup(LinkKind::WebSocket, OUTPOST, &BenchSetup::default()));
    harness.runtime.registry().info(&id("one")).await.unwrap();
    turn(&thread, "again").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs.iter().all(|(outcome, _)| *outcome == CallOutcome::Completed), "{outputs:?}");
    assert_ne!(outputs[0].1, outputs[1].1);
}

/// The model was shown a tool, the user was asked, and then its machine was gone: the call fails and says so, and no other machine is used.
#[tokio::test]
async fn s88_a_call_goes_to_the_environment_that_was_shown_or_nowhere() {
    let mut shown = server("good");
    // The machine could come back, so it is waited for as long as the call may take.
    shown["tool_timeout_sec"] = json!(2);
    let mut setup = setup(&[], &Files::new(json!({"s": shown})), vec![Reply::call("a", "mcp__s__pid", &json!({}))]);
    setup.config.approval = ApprovalPolicy::Untrusted;
    let harness = Harness::new(setup).await;
    let work = tempfile::tempdir().unwrap();
    let place = Attachment::new(id("one"), PathUri::from_native(work.path()).unwrap());
    let bench = std::sync::Arc::new(std::sync::Mutex::new(Some(Bench::with_setup(LinkKind::WebSocket, OUTPOST, &BenchSetup::default()))));
    let url = bench.lock().unwrap().as_ref().unwrap().process().unwrap().url().to_owned();
    let connector = Connector::new("one", move || {
        let url = url.clone();
        async move { outpost_rpc::link::ws::connect(&url, &Default::default()).await }
    });
    harness.runtime.registry().attach(id("one"), connector, ConnectPolicy::Lazy).unwrap();
    let mut start = StartThread::new();
    start.created.selection = Some(Selection::new(vec![place]).unwrap());
    let thread = harness.runtime.start(start).await.unwrap();
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let asked = next_fact(&mut feed, |fact| if let Fact::ApprovalAsked(asked) = fact { Some(asked.clone()) } else { None }).await;
    // The machine goes for good, and another one takes its name.
    drop(bench.lock().unwrap().take());
    crate::support::attach(&harness, "one", Bench::with_setup(LinkKind::WebSocket, OUTPOST, &BenchSetup::default()));
    thread.answer(asked.approval.clone(), Decision::Approved, None).await.unwrap();
    settled(&thread).await;
    let outputs: Vec<(CallOutcome, String)> = harness.outputs(thread.id()).await;
    assert!(outputs[0].0 == CallOutcome::Failed && outputs[0].1.contains("MCP server `s`"), "{outputs:?}");
}
