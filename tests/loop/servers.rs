//! A server that one command starts is there for the commands of later turns, in every kind of environment.

use outpost_runtime::permissions::SandboxMode;
use outpost_testkit::LinkKind;
use outpost_testkit::model::Reply;
use outpost_thread::CallOutcome;
use serde_json::json;

use crate::harness::{Harness, Setup, turn};

/// As a development server does: it stays in the foreground and answers on the loopback.
const SERVER: &str = r#"exec perl -MIO::Socket::INET -e '
    my $server = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1", LocalPort => 8124) or die "no server: $!";
    open(my $ready, ">", "ready") or die; close $ready;
    while (my $client = $server->accept) { print $client "served\n"; close $client }'"#;
/// Waits for the server's word that it listens, which it gives in the workspace.
const CLIENT: &str = r#"n=0; while [ ! -e ready ] && [ $n -lt 400 ]; do n=$((n + 1)); sleep 0.05; done; perl -MIO::Socket::INET -e '
    my $link = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => 8124) or die "not there: $!\n"; print "it says ", scalar <$link>'"#;

/// The default sandbox has no network: the two meet on the loopback of their session.
async fn a_server_outlives_its_turn(kind: LinkKind) {
    let start = Reply::call("a", "exec_command", &json!({"cmd": SERVER, "login": false, "yield_time_ms": 250}));
    let ask = Reply::call("b", "exec_command", &json!({"cmd": CLIENT, "login": false, "yield_time_ms": 30000}));
    let mut setup = Setup::new(&[kind], vec![start, Reply::message("it runs"), ask]);
    setup.config.sandbox = SandboxMode::workspace_write();
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "start the server").await;
    turn(&thread, "ask it").await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs.len(), 2, "{outputs:?}");
    assert!(outputs[1].0 == CallOutcome::Completed && outputs[1].1.contains("it says served"), "{outputs:?}");
}

#[tokio::test]
async fn here() {
    a_server_outlives_its_turn(LinkKind::Memory).await;
}

#[tokio::test]
async fn on_a_remote_environment() {
    a_server_outlives_its_turn(LinkKind::WebSocket).await;
}

#[tokio::test]
async fn on_an_environment_behind_a_program() {
    a_server_outlives_its_turn(LinkKind::Stdio).await;
}
