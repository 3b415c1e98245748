//! `/metrics`, and clients of the app protocol on the same address.

use serde_json::json;

use crate::support::{App, Server, joined};

/// The value of one line.
fn value(text: &str, name: &str) -> f64 {
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_turn_through_the_app_protocol_is_counted() {
    let server = Server::start();
    let _executor = joined(server.url(), "gpu", &server.token(&["--executor", "gpu"]));
    let mut app = App::connect(server.url(), &server.token(&["--client"])).await;
    let work = tempfile::tempdir().unwrap();
    let started = app
        .call(
            "thread/start",
            json!({"environments": [{"environmentId": "gpu", "cwd": work.path()}], "sandbox": "danger-full-access", "approvalPolicy": "never"}),
        )
        .await;
    let thread = started["thread"]["id"].as_str().unwrap().to_owned();
    app.call("turn/start", json!({"threadId": thread, "input": [{"type": "text", "text": "$ echo once >> counter"}]})).await;
    let done = app.notified("turn/completed").await;
    assert_eq!(done["turn"]["status"], "completed", "{done}");
    assert_eq!(std::fs::read_to_string(work.path().join("counter")).unwrap(), "once\n");
    for token in [None, Some(server.token(&["--executor", "cpu"]))] {
        assert!(matches!(server.get("/metrics", token.as_deref()).await.0, 401 | 403));
    }
    let (status, text) = server.get("/metrics", Some(&server.token(&["--metrics"]))).await;
    assert_eq!(status, 200, "{text}");
    for (name, least) in [
        ("outpost_turns_started_total", 1.0),
        ("outpost_turns_finished_total{status=\"completed\"}", 1.0),
        ("outpost_model_requests_total", 2.0),
        ("outpost_calls_started_total", 1.0),
        ("outpost_store_appends_total", 4.0),
        ("outpost_threads_loaded{state=\"idle\"}", 1.0),
        ("outpost_client_connections", 1.0),
        ("outpost_environments{state=\"ready\"}", 1.0),
        ("outpost_executor_joins_total", 2.0),
        ("outpost_executor_links{executor=\"gpu\"}", 1.0),
    ] {
        assert!(value(&text, name) >= least, "{name} in {text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn a_client_is_put_out_with_its_token() {
    let server = Server::start();
    let secret = server.token(&["--client"]);
    let mut app = App::connect(server.url(), &secret).await;
    let mut other = App::connect(server.url(), &server.own_token()).await;
    let name = &outpost_server::tokens::digest(&secret)[..12];
    assert!(crate::support::outpost(server.home(), &["token", "revoke", name]).status.success());
    assert!(app.read().await.is_none(), "it is closed within seconds");
    // Who came by another token stays.
    other.call("environment/list", json!({})).await;
}
