//! Many clients on one thread: each hears everything once, whatever becomes of the others.

use std::time::Duration;

use outpost_testkit::app::{AppServer, begin, completed, text, thread, turn};
use outpost_testkit::model::Reply;
use outpost_testkit::{Client, RawSocket};
use serde_json::{Value, json};

use super::OUTPOST;

/// What was told of items and turns, in order, without what is only told on the way.
fn durable(messages: &[Value]) -> Vec<(String, String)> {
    let told = |message: &Value| {
        let params = &message["params"];
        let method = message["method"].as_str()?;
        let id = match method {
            "item/started" | "item/completed" => params["item"]["id"].as_str()?,
            "turn/started" | "turn/completed" => params["turn"]["id"].as_str()?,
            _ => return None,
        };
        Some((method.to_owned(), id.to_owned()))
    };
    messages.iter().filter_map(told).collect()
}

/// The last place in the thread that these messages tell of.
fn ordinal(messages: &[Value]) -> u64 {
    messages.iter().filter_map(|message| message["params"]["ordinal"].as_u64()).max().unwrap_or(0)
}

fn calls(turn: &str, count: usize) -> Vec<Reply> {
    let call = |n: usize| Reply::call(&format!("{turn}-{n}"), "exec_command", &json!({"cmd": format!("echo {n}")}));
    (0..count).map(call).chain([Reply::message("done")]).collect()
}

#[tokio::test]
async fn a_client_that_was_cut_off_and_came_back_has_missed_nothing_and_heard_nothing_twice() {
    let mut replies = calls("first", 1);
    replies.push(Reply::call("wait", "exec_command", &json!({"cmd": "while [ ! -e go ]; do sleep 0.02; done"})));
    replies.extend(calls("second", 3));
    let app = AppServer::start(OUTPOST, replies).await;
    let (mut steady, mut other) = (app.client().await, app.client().await);
    let id = thread(&mut steady, json!({})).await;
    turn(&mut steady, &id, "first").await;
    let opened = other.result("thread/resume", json!({"threadId": id})).await;
    assert_eq!(opened["thread"]["turns"].as_array().unwrap().len(), 1);
    let before = opened["ordinal"].as_u64().unwrap();
    let second = begin(&mut steady, &id, "second").await;
    // The second client hears the beginning, and is cut off in the middle of the turn.
    other.until(|message| message["method"] == "item/started" && message["params"]["item"]["id"] == "wait").await;
    let mut heard = Vec::new();
    heard.extend(other.quiet(Duration::from_millis(20)).await);
    // `until` took this one out of what was kept.
    let reached = ordinal(&heard).max(before);
    other.close();
    std::fs::write(app.work().join("go"), "").unwrap();
    completed(&mut steady, &second).await;
    let mut back = app.client().await;
    let params = json!({"threadId": id, "excludeTurns": true, "after": reached});
    back.result("thread/resume", params).await;
    let third = begin(&mut steady, &id, "third").await;
    completed(&mut steady, &third).await;
    let again = back.until(|message| message["method"] == "turn/completed" && message["params"]["turn"]["id"] == third.as_str()).await;
    let mut late = back.quiet(Duration::from_millis(50)).await;
    late.push(again);
    let all: Vec<(String, String)> = durable(&heard).into_iter().chain(durable(&late)).collect();
    let mut once = all.clone();
    once.sort();
    once.dedup();
    let doubled: Vec<_> = all.iter().filter(|told| all.iter().filter(|other| other == told).count() > 1).collect();
    assert!(doubled.is_empty(), "told twice: {doubled:?}");
    // Everything that the steady one heard since the other one came, the other one has heard as well.
    let steady: Vec<(String, String)> = durable(&steady.quiet(Duration::from_millis(50)).await);
    let since = steady.iter().position(|(method, turn)| method == "turn/started" && *turn == second).unwrap();
    let mut missing: Vec<_> = steady[since..].iter().filter(|told| !once.contains(told)).collect();
    // The one message that was waited for above.
    missing.retain(|told| told.1 != "wait" || told.0 != "item/started");
    assert!(missing.is_empty(), "never told: {missing:?}");
}

#[tokio::test]
async fn two_hundred_clients_hear_a_turn_beside_one_that_never_reads() {
    let output = json!({"cmd": "head -c 200000 /dev/zero | tr '\\0' x", "yield_time_ms": 30000});
    let app = AppServer::start(OUTPOST, vec![Reply::call("much", "exec_command", &output), Reply::message("done")]).await;
    let mut worker = app.client().await;
    let id = thread(&mut worker, json!({})).await;
    turn_of_nothing(&app, &mut worker, &id).await;
    let deaf = deaf_client(&app, &id).await;
    let mut others = Vec::new();
    for _ in 0..200 {
        let mut client = app.client().await;
        client.result("thread/resume", json!({"threadId": id, "excludeTurns": true})).await;
        others.push(client);
    }
    let heard = begin(&mut worker, &id, "much").await;
    assert_eq!(completed(&mut worker, &heard).await["status"], "completed");
    for client in &mut others {
        assert_eq!(completed(client, &heard).await["status"], "completed");
    }
    drop(deaf);
}

/// Somebody who asks to hear of a thread and then reads nothing.
async fn deaf_client(app: &AppServer, thread: &str) -> RawSocket {
    let mut deaf = RawSocket::websocket(app.url().strip_prefix("ws://").unwrap()).await;
    let hello = json!({"id": 1, "method": "initialize", "params": {"clientInfo": {"name": "deaf", "version": "1"}}});
    deaf.call(&hello).await;
    let resume = json!({"id": 2, "method": "thread/resume", "params": {"threadId": thread}});
    deaf.send(outpost_testkit::raw::TEXT, resume.to_string().as_bytes()).await;
    deaf
}

#[tokio::test]
async fn one_that_never_reads_holds_up_nobody() {
    // More output than any queue holds.
    let flood = json!({"cmd": "head -c 20000000 /dev/zero | tr '\\0' x", "yield_time_ms": 30000});
    let app =
        AppServer::start(OUTPOST, vec![Reply::call("flood", "exec_command", &flood), Reply::message("done"), Reply::message("again")])
            .await;
    let mut worker = app.client().await;
    let id = thread(&mut worker, json!({})).await;
    turn_of_nothing(&app, &mut worker, &id).await;
    let deaf = deaf_client(&app, &id).await;
    let mut others = Vec::new();
    for _ in 0..10 {
        let mut client = app.client().await;
        client.result("thread/resume", json!({"threadId": id, "excludeTurns": true})).await;
        others.push(client);
    }
    let flooded = begin(&mut worker, &id, "flood").await;
    assert_eq!(completed(&mut worker, &flooded).await["status"], "completed");
    for client in &mut others {
        assert_eq!(completed(client, &flooded).await["status"], "completed");
    }
    assert_eq!(turn(&mut worker, &id, "and again").await["status"], "completed");
    drop(deaf);
}

/// Something must have been said before a thread can be resumed by others.
async fn turn_of_nothing(app: &AppServer, client: &mut Client, id: &str) {
    let before = app.model.requests().len();
    client.result("thread/shellCommand", json!({"threadId": id, "command": "true"})).await;
    client.until(|message| message["method"] == "turn/completed").await;
    assert_eq!(app.model.requests().len(), before, "a command of the user asks no model");
}

#[tokio::test]
async fn one_that_reads_late_is_caught_up() {
    let flood = json!({"cmd": "head -c 12000000 /dev/zero | tr '\\0' x", "yield_time_ms": 30000});
    let app = AppServer::start(OUTPOST, vec![Reply::call("flood", "exec_command", &flood), Reply::message("done")]).await;
    let mut worker = app.client().await;
    let id = thread(&mut worker, json!({})).await;
    turn_of_nothing(&app, &mut worker, &id).await;
    let mut late = app.client().await;
    late.result("thread/resume", json!({"threadId": id})).await;
    let flooded = begin(&mut worker, &id, "flood").await;
    completed(&mut worker, &flooded).await;
    // Only now does it read, and the feed has long forgotten the beginning.
    assert_eq!(completed(&mut late, &flooded).await["status"], "completed");
    let told = durable(&late.quiet(Duration::from_millis(50)).await);
    for expected in [("item/started", "flood"), ("item/completed", "flood")] {
        let count = told.iter().filter(|(method, id)| (method.as_str(), id.as_str()) == expected).count();
        assert_eq!(count, 1, "{expected:?} in {told:?}");
    }
}

#[tokio::test]
async fn many_hear_the_same() {
    let app = AppServer::start(OUTPOST, calls("only", 3)).await;
    let mut first = app.client().await;
    let id = thread(&mut first, json!({})).await;
    first.result("thread/name/set", json!({"threadId": id, "name": "shared"})).await;
    turn_of_nothing(&app, &mut first, &id).await;
    let mut clients = vec![first];
    for _ in 0..3 {
        let mut client = app.client().await;
        client.result("thread/resume", json!({"threadId": id})).await;
        clients.push(client);
    }
    clients[0].quiet(Duration::from_millis(20)).await;
    let started = clients[1].result("turn/start", json!({"threadId": id, "input": text("go")})).await;
    let turn = started["turn"]["id"].as_str().unwrap().to_owned();
    let mut told = Vec::new();
    for client in &mut clients {
        completed(client, &turn).await;
        told.push(durable(&client.quiet(Duration::from_millis(50)).await));
    }
    assert!(!told[0].is_empty() && told.iter().all(|one| *one == told[0]), "{told:?}");
    clients[2].result("thread/unsubscribe", json!({"threadId": id})).await;
    assert_eq!(clients[2].result("thread/unsubscribe", json!({"threadId": id})).await, json!({"status": "notSubscribed"}));
}

#[tokio::test]
async fn whoever_resumes_a_thread_that_it_hears_of_misses_nothing_and_hears_nothing_twice() {
    const TURNS: usize = 60;
    let app = AppServer::start(OUTPOST, (0..TURNS).map(|n| Reply::message(&format!("{n}"))).collect()).await;
    let mut client = app.client().await;
    let mut worker = app.client().await;
    let id = thread(&mut worker, json!({})).await;
    turn_of_nothing(&app, &mut worker, &id).await;
    client.result("thread/resume", json!({"threadId": id, "excludeTurns": true})).await;
    let mut turns = Vec::new();
    for n in 0..TURNS {
        turns.push(begin(&mut worker, &id, &format!("{n}")).await);
        // Two at once, while the turn runs.
        for _ in 0..2 {
            client.request("thread/resume", json!({"threadId": id, "excludeTurns": true}));
        }
        completed(&mut worker, &turns[n]).await;
    }
    client.result("thread/resume", json!({"threadId": id, "excludeTurns": true})).await;
    let last = turns.last().unwrap().as_str();
    let end = client.until(|message| message["method"] == "turn/completed" && message["params"]["turn"]["id"] == last).await;
    let mut heard = client.quiet(Duration::from_millis(300)).await;
    heard.push(end);
    let told = durable(&heard);
    for turn in &turns {
        for method in ["turn/started", "turn/completed"] {
            let count = told.iter().filter(|(name, id)| name == method && id == turn).count();
            assert_eq!(count, 1, "{method} of {turn}");
        }
    }
    let mut once = told.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), told.len(), "something was told twice");
}
