//! Servers behind streamable HTTP, reached from an environment.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use outpost_runtime::mcp::refresh::StatusDetail;
use outpost_testkit::model::Reply;
use outpost_testkit::{Bench, LinkKind, Setup as BenchSetup};
use outpost_thread::CallOutcome;
use serde_json::{Value, json};

use crate::harness::{Harness, OUTPOST, turn};
use crate::support::{Files, attach, setup};

pub(crate) struct HttpServer {
    child: Child,
    port: u16,
}

impl HttpServer {
    pub(crate) fn start(token: Option<&str>) -> Self {
        Self::start_with(token.map(|token| ("TOKEN", token)).as_slice())
    }

    pub(crate) fn start_with(variables: &[(&str, &str)]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/mcp/http_server.py");
        let mut command = Command::new("python3");
        command.arg(script).env_remove("TOKEN").envs(variables.iter().copied()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, port: line.trim().parse().unwrap() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    fn at(&self, path: &str) -> Value {
        json!({"url": format!("http://127.0.0.1:{}/{path}", self.port), "environment_id": "one"})
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn error_of(harness: &Harness, thread: &outpost_runtime::LiveThread) -> String {
    let status = harness.runtime.mcp_status(Some(thread.id()), StatusDetail::ToolsOnly).await.unwrap();
    status[0].error.clone().unwrap_or_else(|| panic!("{status:?}"))
}

#[tokio::test]
async fn a_server_behind_http_answers_and_an_expired_session_is_made_anew() {
    let server = HttpServer::start(None);
    let replies = ["session", "stream", "forget", "session"].map(|tool| Reply::call(tool, &format!("mcp__web__{tool}"), &json!({})));
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &Files::new(json!({"web": server.at("mcp")})), replies.to_vec())).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs.iter().all(|(outcome, _)| *outcome == CallOutcome::Completed), "{outputs:?}");
    assert_eq!((outputs[1].1.as_str(), outputs[2].1.as_str()), ("stream", "forget"));
    assert_ne!(outputs[0].1, outputs[3].1, "another session");
    assert_eq!(harness.runtime.mcp_servers(), 1);
}

#[tokio::test]
async fn a_token_is_read_where_the_environment_is_and_nowhere_else() {
    let server = HttpServer::start(Some("sesame"));
    let (mut there, mut unset) = (server.at("mcp"), server.at("mcp"));
    there["bearer_token_env_var"] = json!("MCP_TEST_SESAME");
    there["environment_id"] = json!("there");
    unset["bearer_token_env_var"] = json!("MCP_TEST_SESAME");
    let files = Files::new(json!({"a_there": there, "b_unset": unset, "c_none": server.at("mcp")}));
    let replies = vec![Reply::call("a", "mcp__a_there__stream", &json!({}))];
    let harness = Harness::new(setup(&[LinkKind::Memory], &files, replies)).await;
    let bench = Bench::with_setup(
        LinkKind::WebSocket,
        OUTPOST,
        &BenchSetup { variables: &[("MCP_TEST_SESAME", "sesame")], ..BenchSetup::default() },
    );
    attach(&harness, "there", bench);
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, "stream".into())]);
    let status = harness.runtime.mcp_status(Some(thread.id()), StatusDetail::ToolsOnly).await.unwrap();
    let states: Vec<_> = status.iter().map(|server| (server.state.as_str(), server.auth_status.as_str())).collect();
    assert_eq!(states, [("ready", "bearerToken"), ("failed", "bearerToken"), ("failed", "unsupported")]);
    assert!(status[1].error.as_ref().unwrap().contains("MCP_TEST_SESAME"), "{status:?}");
    assert!(status[2].error.as_ref().unwrap().contains("401"), "{status:?}");
}

#[tokio::test]
async fn a_server_that_moved_or_is_not_there_is_named() {
    let server = HttpServer::start(None);
    let files = Files::new(json!({"web": server.at("moved")}));
    let harness = Harness::new(setup(&[LinkKind::Memory], &files, vec![])).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let why = error_of(&harness, &thread).await;
    assert!(why.contains("http://192.0.2.1/mcp"), "{why}");
    let files = Files::new(json!({"web": {"url": "http://127.0.0.1:9/mcp", "environment_id": "one"}}));
    let harness = Harness::new(setup(&[LinkKind::Memory], &files, vec![])).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let why = error_of(&harness, &thread).await;
    assert!(why.contains("could not be started"), "{why}");
}

/// A server that was started anew does not know our session and names no request in its refusal: the session is renewed. Any other
/// refusal that names no request ends the call at once.
#[tokio::test]
async fn a_refusal_that_names_no_request_ends_its_call() {
    let server = HttpServer::start_with(&[("RESTARTED", "1")]);
    let replies = ["session", "forget", "session", "refuse"].map(|tool| Reply::call(tool, &format!("mcp__web__{tool}"), &json!({})));
    let harness = Harness::new(setup(&[LinkKind::Memory], &Files::new(json!({"web": server.at("mcp")})), replies.to_vec())).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs[..3].iter().all(|(outcome, _)| *outcome == CallOutcome::Completed), "{outputs:?}");
    assert_ne!(outputs[0].1, outputs[2].1, "another session");
    assert!(outputs[3].0 == CallOutcome::Failed && outputs[3].1.contains("these arguments are no good"), "{outputs:?}");
}
