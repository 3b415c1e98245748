//! Which environments a turn works in: every row of the matrix, and no command on another machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outpost_environment::{ConnectPolicy, Connector};
use outpost_runtime::live::NewInput;
use outpost_testkit::LinkKind;
use outpost_testkit::model::{Reply, call};
use outpost_thread::{CallOutcome, Fact};
use outpost_wire::intent::{EnvironmentId, Selection};
use serde_json::{Value, json};

use crate::harness::{Harness, Setup, next_fact, settled, turn};

fn tool_names(request: &outpost_testkit::model::Request) -> Vec<String> {
    request.body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

/// Thread value × turn value: what the turn sees, and what the thread keeps.
#[tokio::test]
async fn the_matrix() {
    type Indices = &'static [usize];
    let rows: [(Indices, Option<Indices>, Indices); 8] = [
        (&[0], None, &[0]),
        (&[1], None, &[1]),
        (&[0, 1], None, &[0, 1]),
        (&[], None, &[]),
        (&[0], Some(&[]), &[]),
        (&[], Some(&[1]), &[1]),
        (&[0], Some(&[1, 0]), &[1, 0]),
        (&[0, 1], Some(&[1]), &[1]),
    ];
    let harness = Harness::new(Setup::new(&[LinkKind::Memory, LinkKind::WebSocket], vec![])).await;
    for (own, override_, effective) in rows {
        let thread = harness.start(own).await;
        let before = harness.model.requests().len();
        let turn_selection = override_.map(|indices| harness.select(indices));
        harness.model.push(Reply::call("w", "exec_command", &json!({"cmd": "pwd"})));
        thread.input(NewInput { turn_selection, ..NewInput::text("where") }).await.unwrap();
        settled(&thread).await;
        let request = &harness.model.requests()[before];
        assert_eq!(tool_names(request).contains(&"exec_command".to_owned()), !effective.is_empty(), "{own:?} {override_:?}");
        let offers_choice = request.body["tools"].to_string().contains("environment_id");
        assert_eq!(offers_choice, effective.len() > 1, "{own:?} {override_:?}");
        let output = harness.outputs(thread.id()).await.remove(0);
        match effective.first() {
            Some(primary) => assert!(output.1.contains(harness.work(*primary).to_str().unwrap()), "{own:?} {override_:?} {output:?}"),
            None => assert_eq!(output.1, "no environment is selected"),
        }
        // Afterwards the thread's own selection holds again.
        assert_eq!(thread.snapshot().await.unwrap().effective_selection(), Some(&harness.select(own)));
    }
}

#[tokio::test]
async fn a_sticky_selection_stays() {
    let harness = Harness::new(Setup::new(&[LinkKind::Memory, LinkKind::Stdio], vec![])).await;
    let thread = harness.start(&[0]).await;
    thread.input(NewInput { selection: Some(harness.select(&[1])), ..NewInput::text("move") }).await.unwrap();
    settled(&thread).await;
    harness.model.push(Reply::call("w", "exec_command", &json!({"cmd": "pwd"})));
    turn(&thread, "where").await;
    assert!(harness.outputs(thread.id()).await[0].1.contains(harness.work(1).to_str().unwrap()));
}

/// A call to a primary that is not ready never lands elsewhere.
#[tokio::test]
async fn a_dead_primary_is_not_replaced() {
    let mut setup = Setup::new(
        &[LinkKind::Memory],
        vec![Reply::Items(vec![
            call("a", "exec_command", &json!({"cmd": "touch wrong"})),
            call("b", "exec_command", &json!({"cmd": "touch right", "environment_id": "one"})),
        ])],
    );
    setup.config.patience.primary = Duration::from_secs(30);
    let harness = Harness::new(setup).await;
    let dead = outpost_environment::Connector::target("ws://127.0.0.1:9".parse().unwrap(), outpost_environment::Token::None);
    let id = outpost_wire::intent::EnvironmentId::parse("dead").unwrap();
    harness.runtime.registry().attach(id.clone(), dead, ConnectPolicy::Lazy).unwrap();
    let mut attachments = harness.select(&[0]).attachments().to_vec();
    attachments.insert(0, outpost_wire::intent::Attachment::new(id, attachments[0].cwd.clone()));
    let mut start = outpost_runtime::StartThread::new();
    start.created.selection = Some(Selection::new(attachments).unwrap());
    let thread = harness.runtime.start(start).await.unwrap();
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(!harness.work(0).join("wrong").exists() && harness.work(0).join("right").exists());
    assert!(outputs.iter().any(|(outcome, text)| *outcome == CallOutcome::Failed && text.contains("`dead` is not ready")), "{outputs:?}");
    let told = harness.model.requests()[0].body["input"].to_string();
    assert!(told.contains("id=\\\"dead\\\" primary=\\\"true\\\" status=\\\"failed\\\""), "{told}");
}

/// A replaced handle is adopted by the next step, not by the running one.
#[tokio::test]
async fn a_running_step_keeps_its_handle() {
    let slow = "while [ ! -e go ]; do sleep 0.01; done; echo $OUTPOST_MARK > seen";
    let harness = Harness::new(Setup::new(
        &[LinkKind::WebSocket],
        vec![
            Reply::call("a", "exec_command", &json!({"cmd": slow, "yield_time_ms": 30000})),
            Reply::call("b", "exec_command", &json!({"cmd": "pwd"})),
        ],
    ))
    .await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    next_fact(&mut feed, |fact| matches!(fact, Fact::CallStarted(_)).then_some(())).await;
    let before = generations(&harness, thread.id()).await;
    harness.replace(0).await;
    std::fs::write(harness.work(0).join("go"), "").unwrap();
    settled(&thread).await;
    assert!(harness.work(0).join("seen").exists());
    let after = generations(&harness, thread.id()).await;
    assert_eq!(before.len(), 1);
    assert!(after.len() == 3 && after[1] > before[0] && after[1] == after[2], "{after:?}");
    assert!(harness.outputs(thread.id()).await.iter().all(|(outcome, _)| *outcome == CallOutcome::Completed));
}

async fn generations(harness: &Harness, id: outpost_thread::ThreadId) -> Vec<u64> {
    let captured = |entry: outpost_thread::Entry| match entry.fact {
        Fact::StepCaptured(step) => step.environments[0].generation,
        _ => None,
    };
    harness.entries(id).await.into_iter().filter_map(captured).collect()
}

/// The same on every kind of link.
#[tokio::test]
async fn environments_of_every_kind() {
    let kinds = [LinkKind::Memory, LinkKind::Stdio, LinkKind::Unix, LinkKind::WebSocket];
    let calls: Vec<Value> = ["one", "two", "three", "four"]
        .iter()
        .map(|id| call(id, "exec_command", &json!({"cmd": "pwd > here", "environment_id": id})))
        .collect();
    let harness = Harness::new(Setup::new(&kinds, vec![Reply::Items(calls)])).await;
    let thread = harness.start(&[0, 1, 2, 3]).await;
    turn(&thread, "everywhere").await;
    for index in 0..4 {
        let here = std::fs::read_to_string(harness.work(index).join("here")).unwrap();
        assert_eq!(here.trim(), harness.work(index).canonicalize().unwrap().to_str().unwrap());
    }
}

/// An executor that was down when it was first used is tried again when the next turn begins, however lately it failed.
#[tokio::test]
async fn a_machine_that_is_back_works_in_the_next_turn() {
    let run = |id: &str| Reply::call(id, "exec_command", &json!({"cmd": "echo here > here", "environment_id": "late"}));
    let replies = vec![run("down"), Reply::message("too bad"), run("up"), Reply::message("done")];
    let harness = Harness::local(replies).await;
    let (is_up, way) = (Arc::new(AtomicBool::new(false)), harness.way(0));
    let seen = is_up.clone();
    let late = Connector::new("late", move || {
        let (is_up, way) = (seen.load(Ordering::Relaxed), way.clone());
        async move {
            match is_up {
                true => way.link().await,
                false => Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into()),
            }
        }
    });
    harness.runtime.registry().attach(EnvironmentId::parse("late").unwrap(), late, ConnectPolicy::Lazy).unwrap();
    let thread = harness.start_in(vec![harness.attachment("late", 0)]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs[0].0 == CallOutcome::Failed && outputs[0].1.contains("connection refused"), "{outputs:?}");
    is_up.store(true, Ordering::Relaxed);
    turn(&thread, "again").await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs[1].0, CallOutcome::Completed, "{outputs:?}");
    assert!(harness.work(0).join("here").exists());
}

/// The model is told when another machine answers under an id that it knows, and only then.
#[tokio::test]
async fn another_executor_under_an_id_is_told_to_the_model() {
    let harness = Harness::new(Setup::new(&[LinkKind::Memory, LinkKind::Memory], vec![])).await;
    let thread = harness.start(&[0]).await;
    let is_told = || {
        let body = harness.model.requests().last().unwrap().body.to_string();
        body.contains("another executor answers under this id")
    };
    turn(&thread, "one").await;
    // The same executor behind a new handle is the same machine.
    harness.replace(0).await;
    turn(&thread, "two").await;
    assert!(!is_told());
    let one = EnvironmentId::parse("one").unwrap();
    harness.runtime.registry().attach(one.clone(), harness.way(1), ConnectPolicy::Lazy).unwrap();
    harness.runtime.registry().info(&one).await.unwrap();
    turn(&thread, "three").await;
    assert!(is_told());
}
