//! A server of others, unchanged, over both of its transports. `cargo xtask test` installs it and names it in
//! `OUTPOST_TEST_MCP_SERVER`.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{ConnectPolicy, Connector};
use outpost_rpc::link::unix;
use outpost_rpc::link::ws::ClientOptions;
use outpost_runtime::feed::Read;
use outpost_runtime::live::{NewInput, ThreadEvent};
use outpost_runtime::mcp::McpEvent;
use outpost_testkit::LinkKind;
use outpost_testkit::executor::ExecutorProcess;
use outpost_testkit::model::{Reply, call};
use outpost_thread::{CallOutcome, Decision, Fact, Raw};
use outpost_wire::PathUri;
use outpost_wire::intent::{Attachment, EnvironmentId, Selection};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Harness, OUTPOST, next_fact, settled, turn};
use crate::support::{Files, setup};

fn everything() -> PathBuf {
    PathBuf::from(std::env::var_os("OUTPOST_TEST_MCP_SERVER").expect("run these tests with `cargo xtask test`"))
}

#[tokio::test]
async fn a_real_server_over_stdio_in_a_remote_environment() {
    let files = Files::new(json!({"every": {"command": "node", "args": [everything(), "stdio"], "environment_id": "one"}}));
    let replies = vec![
        Reply::Items(vec![
            call("sum", "mcp__every__get-sum", &json!({"a": 19, "b": 23})),
            call("image", "mcp__every__get-tiny-image", &json!({})),
            call("structured", "mcp__every__get-structured-content", &json!({"location": "Chicago"})),
            call("long", "mcp__every__trigger-long-running-operation", &json!({"duration": 1, "steps": 2})),
            call("resources", "list_mcp_resources", &json!({})),
        ]),
        Reply::call("ask", "mcp__every__trigger-elicitation-request", &json!({})),
    ];
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &files, replies)).await;
    let thread = harness.start(&[0]).await;
    let (mut feed, mut facts) = (thread.subscribe(), thread.subscribe());
    thread.input(NewInput::text("go")).await.unwrap();
    let asked = next_fact(&mut facts, |fact| if let Fact::ApprovalAsked(asked) = fact { Some(asked.clone()) } else { None }).await;
    assert_eq!(asked.kind.as_str(), "mcpElicitation");
    thread.answer(asked.approval.clone(), Decision::Approved, Some(Raw::from(json!({"content": {"name": "Ada"}})))).await.unwrap();
    settled(&thread).await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs.iter().all(|(outcome, _)| *outcome == CallOutcome::Completed), "{outputs:?}");
    let has = |text: &str| outputs.iter().any(|(_, output)| output.contains(text));
    assert!(has("42") && has("Ada") && has("conditions") && has("input_image") && has("\"server\":\"every\""), "{outputs:?}");
    let mut progress = 0;
    while let Some(Read::Event(event)) = feed.try_next() {
        progress += usize::from(matches!(event, ThreadEvent::Mcp(McpEvent::Progress { .. })));
    }
    assert!(progress >= 2, "{progress}");
    harness.runtime.shutdown(Duration::from_secs(10)).await;
}

/// Whether an MCP server answers at this address in the network of this test.
async fn answers_here(address: &str) -> bool {
    let asking = async {
        let mut stream = tokio::net::TcpStream::connect((address, 3001)).await.ok()?;
        let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"},
        }})
        .to_string();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {address}\r\naccept: application/json, text/event-stream\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            hello.len()
        );
        stream.write_all(format!("{head}{hello}").as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        String::from_utf8_lossy(&answer).contains("serverInfo").then_some(())
    };
    matches!(tokio::time::timeout(Duration::from_secs(2), asking).await, Ok(Some(())))
}

/// The server and the executor are in a network of their own, where an address exists that exists nowhere else.
#[tokio::test]
async fn a_real_server_over_http_that_only_its_environment_can_reach() {
    const ADDRESS: &str = "10.213.77.1";
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("executor.sock");
    let script = format!(
        "ip link set lo up && ip address add {ADDRESS}/32 dev lo || exit 9\n\
         PORT=3001 node {} streamableHttp >&2 &\n\
         exec {OUTPOST} executor --listen unix://{} --http-allow {ADDRESS}",
        everything().display(),
        socket.display()
    );
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--net", "--kill-child", "--fork", "--pid", "--mount-proc", "sh", "-c", &script])
        .stderr(Stdio::null());
    let _there = ExecutorProcess::start_command(command, home);
    let url = format!("http://{ADDRESS}:3001/mcp");
    let files = Files::new(json!({"every": {"url": url, "environment_id": "there"}}));
    let replies = vec![
        Reply::call("sum", "mcp__every__get-sum", &json!({"a": 1, "b": 2})),
        Reply::call("long", "mcp__every__trigger-long-running-operation", &json!({"duration": 1, "steps": 2})),
    ];
    let harness = Harness::new(setup(&[LinkKind::Memory], &files, replies)).await;
    assert!(!answers_here(ADDRESS).await, "it can be reached from here");
    let socket = Arc::new(socket);
    let connector = Connector::new("there", move || {
        let socket = socket.clone();
        async move { unix::connect(&socket, &ClientOptions::default()).await }
    });
    let id = EnvironmentId::parse("there").unwrap();
    harness.runtime.registry().attach(id.clone(), connector, ConnectPolicy::Lazy).unwrap();
    let thread = harness.start(&[]).await;
    let selection = Selection::new(vec![Attachment::new(id, PathUri::from_syntax("/tmp").unwrap())]).unwrap();
    // The server needs a moment to listen.
    for _ in 0..600 {
        let status = harness.runtime.mcp_status(None, outpost_runtime::mcp::refresh::StatusDetail::ToolsOnly).await.unwrap();
        if status[0].state == "ready" {
            break;
        }
        harness.runtime.mcp_refresh(outpost_runtime::mcp::refresh::RefreshMode::Strict).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    thread.input(NewInput { selection: Some(selection), ..NewInput::text("go") }).await.unwrap();
    settled(&thread).await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs.len(), 2, "{outputs:?}");
    assert!(outputs.iter().all(|(outcome, _)| *outcome == CallOutcome::Completed) && outputs[0].1.contains('3'), "{outputs:?}");
    turn(&thread, "bye").await;
    harness.runtime.shutdown(Duration::from_secs(10)).await;
}
