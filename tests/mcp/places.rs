//! Where servers run, what they are given there and how they are spoken to: scenarios 82 to 86 of the environments, on real executors.

use std::time::Duration;

use outpost_environment::{ConnectPolicy, Connector};
use outpost_rpc::link::ws;
use outpost_runtime::StartThread;
use outpost_runtime::mcp::refresh::{ClientToolCall, ServerStatus, StatusDetail};
use outpost_testkit::executor::eventually;
use outpost_testkit::model::{Reply, call};
use outpost_testkit::{Bench, Cutter, LinkKind, Setup as BenchSetup};
use outpost_thread::{CallOutcome, Fact};
use outpost_wire::PathUri;
use outpost_wire::intent::{CapabilityRoot, EnvironmentId};
use serde_json::{Value, json};

use crate::harness::{Harness, OUTPOST, told, turn};
use crate::http::HttpServer;
use crate::support::{Files, SERVER, attach, server, setup};

async fn status(harness: &Harness, thread: &outpost_runtime::LiveThread) -> Vec<ServerStatus> {
    harness.runtime.mcp_status(Some(thread.id()), StatusDetail::ToolsOnly).await.unwrap()
}

/// How one server stands, and why.
fn stands<'a>(status: &'a [ServerStatus], name: &str) -> (&'a str, &'a str) {
    let server = status.iter().find(|server| server.name == name).unwrap_or_else(|| panic!("no {name}: {status:?}"));
    (server.state.as_str(), server.error.as_deref().unwrap_or_default())
}

fn in_environment(mut server: Value, environment: &str) -> Value {
    server["environment_id"] = json!(environment);
    server
}

/// There is no environment `local` here.
#[tokio::test]
async fn s82_a_server_runs_in_an_environment_that_is_there_and_nowhere_else() {
    let web = HttpServer::start(None);
    let mut foreign = server("good");
    foreign["cwd"] = json!("C:\\srv");
    let servers = json!({
        "unknown": in_environment(server("good"), "nowhere"),
        "local_program": in_environment(server("good"), "local"),
        "local_web": {"url": web.url()},
        "there_program": server("good"),
        "there_web": {"url": web.url(), "environment_id": "one"},
        "foreign": foreign,
    });
    let replies = vec![Reply::Items(vec![
        call("a", "mcp__there_program__echo", &json!({"text": "from there"})),
        call("b", "mcp__there_web__stream", &json!({})),
    ])];
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &Files::new(servers), replies)).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let mut outputs = harness.outputs(thread.id()).await;
    outputs.sort_by(|one, other| one.1.cmp(&other.1));
    assert_eq!(outputs, [(CallOutcome::Completed, "from there".into()), (CallOutcome::Completed, "stream".into())]);
    let status = status(&harness, &thread).await;
    for (name, environment) in [("unknown", "nowhere"), ("local_program", "local"), ("local_web", "local")] {
        let (state, why) = stands(&status, name);
        assert!(state == "failed" && why.contains(&format!("environment `{environment}` is not ready: missing")), "{name}: {why}");
    }
    let (state, why) = stands(&status, "foreign");
    assert!(state == "failed" && why.contains("C:"), "a directory of another kind of machine is named: {why}");
}

/// What a plugin may say: it runs where it lies, below its own directory, with nothing that belongs to the machine that runs the threads.
#[tokio::test]
async fn s83_a_plugin_stays_in_its_place() {
    let web = HttpServer::start(Some("sesame"));
    let program = |more: Value| {
        let mut program = json!({"command": "python3", "args": ["${PLUGIN_ROOT}/server.py"]});
        program.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        program
    };
    let servers = json!({
        "below": program(json!({"cwd": "./sub"})),
        "escapes": program(json!({"cwd": "../elsewhere"})),
        "moves": program(json!({"environment_id": "local"})),
        "reads_ours": program(json!({"env_vars": [{"name": "HOME", "source": "local"}]})),
        "insists": program(json!({"required": true})),
        "bearer": {"url": web.url(), "bearer_token_env_var": "MCP_TEST_SESAME"},
        "headers": {"url": web.url(), "env_http_headers": {"x-home": "HOME"}},
    });
    let replies = vec![Reply::Items(vec![call("a", "mcp__below__where", &json!({})), call("b", "mcp__bearer__stream", &json!({}))])];
    let harness = Harness::new(setup(&[LinkKind::Memory], &Files::new(json!({})), replies)).await;
    let variables = BenchSetup { variables: &[("MCP_TEST_SESAME", "sesame")], ..BenchSetup::default() };
    attach(&harness, "there", Bench::with_setup(LinkKind::WebSocket, OUTPOST, &variables));
    let plugin = tempfile::tempdir().unwrap();
    std::fs::create_dir(plugin.path().join("sub")).unwrap();
    std::fs::copy(SERVER, plugin.path().join("server.py")).unwrap();
    std::fs::write(plugin.path().join("plugin.json"), json!({"name": "p", "mcpServers": servers}).to_string()).unwrap();
    let mut start = StartThread::new();
    start.created.selection = Some(harness.select(&[0]));
    let (id, path) = (EnvironmentId::parse("there").unwrap(), PathUri::from_native(plugin.path()).unwrap());
    start.created.capability_roots = vec![CapabilityRoot::new("p", id, path)];
    let thread = harness.runtime.start(start).await.unwrap();
    turn(&thread, "go").await;
    let below = plugin.path().canonicalize().unwrap().join("sub").display().to_string();
    let outputs: Vec<String> = harness.outputs(thread.id()).await.into_iter().map(|(_, text)| text).collect();
    assert!(outputs.contains(&below) && outputs.contains(&"stream".to_owned()), "{outputs:?}");
    let status = status(&harness, &thread).await;
    for name in ["below", "bearer"] {
        assert_eq!(stands(&status, name), ("ready", ""));
        let server = status.iter().find(|server| server.name == name).unwrap();
        assert_eq!(server.environment_id.as_deref(), Some("there"), "the place is forced");
    }
    for (name, word) in
        [("moves", "environment_id"), ("reads_ours", "source = \"local\""), ("insists", "required"), ("headers", "env_http_headers")]
    {
        let (state, why) = stands(&status, name);
        assert!(state == "failed" && why.contains(word), "{name}: {why}");
    }
    let why = harness.runtime.why(thread.id()).await.unwrap();
    assert!(why.roots[0].warnings.iter().any(|warning| warning.contains("`escapes`")), "{:?}", why.roots);
    assert!(status.iter().all(|server| server.name != "escapes"));
}

/// Variables are those of the machine where the server runs, few of them, and never ours.
#[tokio::test]
async fn s84_a_server_is_given_variables_of_its_own_machine() {
    // This process has one of these, too, with another value.
    let ours = std::env::var("CARGO_PKG_NAME").unwrap();
    let (mut plain, mut named) = (in_environment(server("good"), "there"), in_environment(server("good"), "there"));
    plain["env"] = json!({"GIVEN": "yes"});
    named["env_vars"] = json!(["THERE_ONLY", {"name": "CARGO_PKG_NAME", "source": "remote"}]);
    let ask = |id: &str, server: &str, name: &str| call(id, &format!("mcp__{server}__variable"), &json!({"name": name}));
    let replies = vec![Reply::Items(vec![
        ask("plain core", "plain", "PATH"),
        ask("plain other", "plain", "THERE_ONLY"),
        ask("plain given", "plain", "GIVEN"),
        ask("named core", "named", "PATH"),
        ask("named", "named", "THERE_ONLY"),
        ask("named same", "named", "CARGO_PKG_NAME"),
        ask("named other", "named", "THERE_TOO"),
        ask("named given", "named", "GIVEN"),
    ])];
    let harness = Harness::new(setup(&[LinkKind::Memory], &Files::new(json!({"plain": plain, "named": named})), replies)).await;
    let variables = [("THERE_ONLY", "there"), ("THERE_TOO", "also there"), ("CARGO_PKG_NAME", "theirs")];
    let there = BenchSetup { variables: &variables, ..BenchSetup::default() };
    attach(&harness, "there", Bench::with_setup(LinkKind::WebSocket, OUTPOST, &there));
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let entries = harness.entries(thread.id()).await;
    let output = |id: &str| {
        let finished = entries.iter().find_map(|entry| match &entry.fact {
            Fact::CallFinished(finished) if finished.call.as_str() == id => Some(told(finished)),
            _ => None,
        });
        finished.unwrap()
    };
    assert_ne!((output("plain core").as_str(), output("named core").as_str()), ("not set", "not set"));
    assert_eq!((output("plain other").as_str(), output("plain given").as_str()), ("not set", "yes"));
    assert_eq!((output("named").as_str(), output("named same").as_str()), ("there", "theirs"));
    assert_ne!(ours, "theirs");
    assert_eq!((output("named other").as_str(), output("named given").as_str()), ("not set", "not set"));
}

/// Thirty calls at once, each larger than a pipe holds: none is mixed with another, in neither direction.
#[tokio::test]
async fn s85_messages_keep_their_order_and_are_not_mixed() {
    let text = |number: usize| format!("{number:02}").repeat(40_000);
    let calls = (0..30).map(|number| call(&format!("c{number}"), "mcp__s__length", &json!({"text": text(number)}))).collect();
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &Files::new(json!({"s": server("good")})), vec![Reply::Items(calls)])).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let entries = harness.entries(thread.id()).await;
    let finished: Vec<(String, String)> = entries
        .iter()
        .filter_map(|entry| match &entry.fact {
            Fact::CallFinished(finished) => Some((finished.call.as_str().to_owned(), told(finished))),
            _ => None,
        })
        .collect();
    assert_eq!(finished.len(), 30);
    for (id, output) in finished {
        let number: usize = id[1..].parse().unwrap();
        assert_eq!(output, format!("80000 {number:02}{number:02}"), "{id}");
    }
}

/// What a server writes while nobody can hear it is read afterwards, and no byte is missing.
#[tokio::test]
async fn s85_what_was_written_while_the_connection_was_lost_is_read_afterwards() {
    let bench = Bench::with_setup(LinkKind::WebSocket, OUTPOST, &BenchSetup::default());
    let cutter = Cutter::start(bench.address(), vec![]).await;
    let servers = json!({"s": in_environment(server("good"), "there")});
    let go = tempfile::tempdir().unwrap();
    let flag = go.path().join("go").display().to_string();
    let harness = Harness::new(setup(&[LinkKind::Memory], &Files::new(servers), vec![])).await;
    let url = cutter.url();
    let connector = Connector::new("there", move || {
        let url = url.clone();
        async move { ws::connect(&url, &ws::ClientOptions::default()).await }
    });
    harness.runtime.registry().attach(EnvironmentId::parse("there").unwrap(), connector, ConnectPolicy::Lazy).unwrap();
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let arguments = json!({"file": flag, "bytes": 2_000_000}).as_object().cloned();
    let call = ClientToolCall { server: "s".into(), tool: "late".into(), arguments, meta: None };
    let (runtime, id) = (harness.runtime.clone(), thread.id());
    let called = tokio::spawn(async move { runtime.mcp_call(id, call).await });
    let begun = go.path().join("go.begun");
    eventually("the server has the call", || begun.exists()).await;
    cutter.cut();
    std::fs::write(&flag, "").unwrap();
    // It writes what it has to say to nobody.
    tokio::time::sleep(Duration::from_millis(300)).await;
    cutter.mend();
    let result = called.await.unwrap().unwrap();
    let text = result.content[0]["text"].as_str().unwrap();
    assert!(text.len() == 2_000_000 && text.bytes().all(|byte| byte == b'x'), "{} bytes", text.len());
    assert!(cutter.connections() > 1);
}

#[tokio::test]
async fn s85_a_line_may_not_be_longer_than_its_limit() {
    let replies =
        vec![Reply::call("a", "mcp__s__echo", &json!({"text": "y".repeat(100_000)})), Reply::call("b", "mcp__s__echo", &json!({}))];
    let mut setup = setup(&[LinkKind::WebSocket], &Files::new(json!({"s": server("good")})), replies);
    setup.config.mcp.limits.message = 64 << 10;
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs[0].0 == CallOutcome::Failed && outputs[0].1.contains("a line of more than 65536 bytes"), "{outputs:?}");
}

/// A server that takes a request and never answers: the request is given up, and whoever held it learns that.
async fn mute(method: &str) {
    let directory = tempfile::tempdir().unwrap();
    let released = directory.path().join("released");
    let web = HttpServer::start_with(&[("MUTE", method), ("RELEASED", released.to_str().unwrap())]);
    let servers = json!({"web": {"url": web.url(), "environment_id": "one", "startup_timeout_sec": 1}});
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &Files::new(servers), vec![])).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let status = status(&harness, &thread).await;
    let (state, why) = stands(&status, "web");
    assert!(state == "failed" && why.contains("did not answer within 1 s"), "{method}: {why}");
    // The executor has let go of the connection, although it lives on and so does ours to it.
    eventually("the request is given up", || released.exists()).await;
}

#[tokio::test]
async fn s86_a_handshake_that_takes_too_long_releases_the_executor() {
    mute("initialize").await;
}

#[tokio::test]
async fn s86_a_list_that_takes_too_long_releases_the_executor() {
    mute("tools/list").await;
}
