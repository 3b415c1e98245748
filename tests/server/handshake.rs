//! The handshake, the gates, and what is refused with which words.

use std::time::Duration;

use outpost_testkit::app::{AppServer, introduce, thread};
use serde_json::{Value, json};

use super::OUTPOST;

const INVALID: i64 = -32600;
const NOBODY: &str = "00000000-0000-7000-8000-000000000000";

#[tokio::test]
async fn nothing_goes_before_the_handshake_and_there_is_one() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.connect().await;
    assert_eq!(client.error("thread/list", json!({})).await, (INVALID, "Not initialized".into()));
    let (code, message) = client.error("no/such", json!({})).await;
    assert!(
        code == INVALID && message.starts_with("Invalid request: unknown variant `no/such`, expected one of `initialize`"),
        "{message}"
    );
    let told = introduce(&mut client, Value::Null).await;
    assert_eq!((told["platformFamily"].as_str(), told["platformOs"].as_str()), (Some("unix"), Some("linux")));
    assert_eq!(told["codexHome"], app.home().display().to_string());
    let version = told["userAgent"].as_str().unwrap().split_once('/').unwrap().1;
    assert!(version.starts_with(|digit: char| digit.is_ascii_digit()), "{told}");
    let again = json!({"clientInfo": {"name": "test", "version": "1"}});
    assert_eq!(client.error("initialize", again).await, (INVALID, "Already initialized".into()));
}

#[tokio::test]
async fn a_name_that_no_header_can_hold_is_refused() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.connect().await;
    let (code, message) = client.error("initialize", json!({"clientInfo": {"name": "a\nb", "version": "1"}})).await;
    assert!(code == INVALID && message.contains("clientInfo.name"), "{message}");
}

#[tokio::test]
async fn what_is_experimental_needs_to_be_asked_for() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.connect().await;
    introduce(&mut client, Value::Null).await;
    let add = json!({"environmentId": "w", "execServerUrl": "ws://127.0.0.1:1"});
    let rows = [
        ("environment/add", add, "environment/add requires experimentalApi capability"),
        ("thread/start", json!({"environments": []}), "thread/start.environments requires experimentalApi capability"),
        (
            "turn/start",
            json!({"threadId": NOBODY, "input": [], "environmentsScope": "thread"}),
            "turn/start.environmentsScope requires experimentalApi capability",
        ),
        (
            "thread/start",
            json!({"approvalPolicy": {"granular": {"mcp_elicitations": true, "rules": true, "sandbox_approval": true}}}),
            "askForApproval.granular requires experimentalApi capability",
        ),
        // What cannot be understood is told first.
        ("environment/add", json!({}), "Invalid request: missing field `environmentId`"),
    ];
    for (method, params, expected) in rows {
        assert_eq!(client.error(method, params).await, (INVALID, expected.into()), "{method}");
    }
    client.result("thread/start", json!({"environments": null, "experimentalRawEvents": false})).await;
}

#[tokio::test]
async fn refusals_have_the_words_that_clients_know() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    let idle = thread(&mut client, json!({})).await;
    let kept = thread(&mut client, json!({"ephemeral": true})).await;
    let entry = |id: &str, cwd: &str| json!({"environmentId": id, "cwd": cwd});
    let rows: Vec<(&str, Value, String)> = vec![
        ("thread/start", Value::Null, "Invalid request: missing field `params`".into()),
        ("thread/read", json!({}), "Invalid request: missing field `threadId`".into()),
        ("thread/start", json!({"environments": [entry("ghost", "/")]}), "unknown turn environment id `ghost`".into()),
        (
            "thread/start",
            json!({"environments": [entry("local", "/"), entry("local", "/")]}),
            "duplicate turn environment id `local`".into(),
        ),
        (
            "thread/start",
            json!({"environments": [entry("local", "rel/path")]}),
            "invalid cwd for environment `local`: path `rel/path` does not use absolute POSIX or Windows path syntax".into(),
        ),
        (
            "thread/start",
            json!({"sandbox": "read-only", "permissions": ":workspace"}),
            "`permissions` cannot be combined with `sandbox`".into(),
        ),
        ("environment/info", json!({"environmentId": "ghost"}), "unknown environment id `ghost`".into()),
        ("turn/start", json!({"threadId": NOBODY, "input": []}), format!("thread not found: {NOBODY}")),
        ("turn/steer", json!({"threadId": NOBODY, "expectedTurnId": "t", "input": []}), format!("thread not found: {NOBODY}")),
        ("turn/interrupt", json!({"threadId": NOBODY, "turnId": "t"}), format!("thread not found: {NOBODY}")),
        ("thread/read", json!({"threadId": NOBODY}), format!("thread not loaded: {NOBODY}")),
        ("thread/turns/list", json!({"threadId": NOBODY}), format!("thread not loaded: {NOBODY}")),
        ("thread/resume", json!({"threadId": NOBODY}), format!("no rollout found for thread id {NOBODY}")),
        ("thread/fork", json!({"threadId": NOBODY}), format!("no rollout found for thread id {NOBODY}")),
        ("thread/archive", json!({"threadId": NOBODY}), format!("no rollout found for thread id {NOBODY}")),
        ("thread/delete", json!({"threadId": NOBODY}), format!("no rollout found for thread id {NOBODY}")),
        ("thread/name/set", json!({"threadId": NOBODY, "name": "x"}), format!("no rollout found for thread id {NOBODY}")),
        ("thread/unarchive", json!({"threadId": NOBODY}), format!("no archived rollout found for thread id {NOBODY}")),
        ("thread/list", json!({"cursor": "garbage"}), "invalid cursor: garbage".into()),
        ("thread/read", json!({"threadId": kept, "includeTurns": true}), "ephemeral threads do not support includeTurns".into()),
    ];
    for (method, params, expected) in rows {
        assert_eq!(client.error(method, params.clone()).await, (INVALID, expected), "{method} {params}");
    }
    let begins = [
        ("thread/read", json!({"threadId": "x"}), "invalid thread id: "),
        ("thread/start", json!({"cwd": 5}), "Invalid request: invalid type: "),
        ("thread/start", json!({"approvalPolicy": "x"}), "Invalid request: unknown variant `x`, expected one of "),
        ("environment/add", json!({"environmentId": "", "execServerUrl": "ws://x"}), "invalid environment: environment id cannot be empty"),
        (
            "environment/add",
            json!({"environmentId": "w", "execServerUrl": ""}),
            "invalid environment: environment `w` requires an exec-server url",
        ),
        ("environment/add", json!({"environmentId": "w", "execServerUrl": "none"}), "an environment cannot use disabled exec-server url"),
        (
            "environment/add",
            json!({"environmentId": "local", "execServerUrl": "ws://x"}),
            "invalid environment: environment id `local` is reserved",
        ),
    ];
    for (method, params, expected) in begins {
        let (code, message) = client.error(method, params).await;
        assert!(code == INVALID && message.starts_with(expected), "{method}: {message}");
    }
    let (_, message) = client.error("thread/turns/list", json!({"threadId": idle})).await;
    assert!(message.starts_with(&format!("thread {idle} is not materialized yet; ")), "{message}");
    assert_eq!(client.result("thread/unsubscribe", json!({"threadId": NOBODY})).await, json!({"status": "notLoaded"}));
    client.result("thread/loaded/list", json!({"bogus": 1})).await;
}

#[tokio::test]
async fn what_is_no_request_gets_no_answer_and_does_no_harm() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.client().await;
    for text in [
        "nonsense",
        "[]",
        "[{\"id\":1}]",
        "{}",
        "{\"id\":7}",
        "{\"id\":null,\"method\":\"thread/list\",\"params\":{}}",
        "{\"id\":1.5,\"method\":\"thread/list\",\"params\":{}}",
        "{\"id\":99,\"result\":{}}",
        "{\"method\":\"no/such\"}",
    ] {
        client.send_text(text);
    }
    client.send(&json!({"id": "a text", "method": "thread/list", "params": {}, "jsonrpc": "2.0"}));
    let answer = client.next_answer().await;
    assert_eq!(answer["id"], "a text");
    assert!(answer.get("jsonrpc").is_none() && answer["result"]["data"].is_array(), "{answer}");
    assert!(client.quiet(Duration::from_millis(50)).await.is_empty());
}

#[tokio::test]
async fn a_client_need_not_hear_what_it_does_not_want() {
    let app = AppServer::start(OUTPOST, vec![]).await;
    let mut client = app.connect().await;
    introduce(&mut client, json!({"optOutNotificationMethods": ["thread/started", "item/started", "not/there"]})).await;
    let id = thread(&mut client, json!({})).await;
    let turn = outpost_testkit::app::begin(&mut client, &id, "hello").await;
    outpost_testkit::app::completed(&mut client, &turn).await;
    let heard = client.quiet(Duration::from_millis(50)).await;
    let methods: Vec<&str> = heard.iter().filter_map(|message| message["method"].as_str()).collect();
    assert!(!methods.contains(&"thread/started") && !methods.contains(&"item/started"), "{methods:?}");
    assert!(methods.contains(&"item/completed"), "{methods:?}");
}
