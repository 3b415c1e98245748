//! Servers that misbehave: each ends in a clear error, and the thread stays usable.

use std::time::Duration;

use outpost_runtime::feed::Read;
use outpost_runtime::live::{NewInput, ThreadActivity, ThreadEvent};
use outpost_runtime::mcp::McpEvent;
use outpost_runtime::mcp::refresh::StatusDetail;
use outpost_runtime::policy::ApprovalPolicy;
use outpost_testkit::LinkKind;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::Reply;
use outpost_thread::{CallOutcome, Decision, Fact, TurnStatus};
use serde_json::{Value, json};

use crate::harness::{Harness, is_completed, next_fact, settled, turn};
use crate::support::{Files, harness, living, offered, server, setup, starts};

/// A server that does this at its start: what it is said to have done, with the thread usable and no process left.
async fn start_of(behaviour: &str, more: Value) -> String {
    let work = tempfile::tempdir().unwrap();
    let starts = work.path().join("starts");
    let mut bad = server(behaviour);
    bad["env"] = json!({"STARTS": starts});
    bad.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let servers = json!({"bad": bad, "good": server("good")});
    let harness = harness(servers, vec![Reply::call("a", "mcp__good__echo", &json!({"text": "fine"}))]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, "fine".into())]);
    assert!(harness.turn_ends(thread.id()).await.iter().all(is_completed));
    assert!(offered(&harness, 0).iter().all(|name| !name.starts_with("mcp__bad__")));
    eventually("nothing of it is left", || living(&starts) == 0).await;
    let status = harness.runtime.mcp_status(Some(thread.id()), StatusDetail::ToolsOnly).await.unwrap();
    let bad = status.into_iter().find(|status| status.name == "bad").unwrap();
    assert_eq!(bad.state, "failed");
    bad.error.unwrap()
}

#[tokio::test]
async fn one_that_never_answers() {
    let why = start_of("mute", json!({"startup_timeout_sec": 5})).await;
    assert!(why.contains("did not answer within 5 s") && why.contains("hello from the server"), "{why}");
}

#[tokio::test]
async fn one_that_prints_rubbish() {
    let why = start_of("rubbish", json!({})).await;
    assert!(why.contains("are no messages") && why.contains("Welcome!"), "{why}");
}

#[tokio::test]
async fn one_that_dies_at_once() {
    let why = start_of("dies", json!({})).await;
    assert!(why.contains("exit code 3") && why.contains("no configuration was found"), "{why}");
}

#[tokio::test]
async fn one_that_lists_without_end() {
    let why = start_of("endless", json!({})).await;
    assert!(why.contains("more than 100 pages"), "{why}");
}

#[tokio::test]
async fn one_that_lists_more_than_anybody_could_read() {
    let why = start_of("heavy", json!({})).await;
    assert!(why.contains("it lists more than 33554432 bytes"), "{why}");
}

#[tokio::test]
async fn one_that_says_what_makes_no_sense() {
    let why = start_of("shapeless", json!({})).await;
    assert!(why.contains("its answer is not what the protocol says"), "{why}");
    let why = start_of("speechless", json!({})).await;
    assert!(why.contains("it does not answer `initialize` as the protocol says"), "{why}");
}

#[tokio::test]
async fn one_that_complains_without_end() {
    let why = start_of("refuses", json!({})).await;
    assert!(why.contains("it refuses to begin: no licence !!!") && why.chars().count() < 3000, "{} characters", why.len());
}

#[tokio::test]
async fn one_that_floods_its_standard_error() {
    let harness = harness(json!({"s": server("noisy")}), vec![Reply::call("a", "mcp__s__echo", &json!({"text": "x"}))]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, "x".into())]);
}

/// Each request carries all tools, so there is an end to them. What is left out is told, and the rest can be used.
#[tokio::test]
async fn one_that_lists_more_than_a_model_could_take() {
    let (all, mut few) = (server("crowd"), server("crowd"));
    few["enabled_tools"] = json!(["dup", "t199", "vast"]);
    let harness = harness(json!({"all": all, "few": few}), vec![Reply::call("a", "mcp__few__dup", &json!({}))]).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    turn(&thread, "go").await;
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, "called dup".into())]);
    let offered = offered(&harness, 0);
    let of = |server: &str| offered.iter().filter(|name| name.starts_with(&format!("mcp__{server}__"))).count();
    assert!((40..60).contains(&of("all")), "{}", of("all"));
    assert_eq!(of("few"), 2, "{offered:?}");
    assert!(
        offered.iter().all(|name| name.len() <= 64 && name.is_ascii()) && offered.contains(&"mcp__few__t199".to_owned()),
        "{offered:?}"
    );
    let mut warnings = Vec::new();
    while let Ok(read) = tokio::time::timeout(Duration::from_millis(200), feed.next()).await {
        match read {
            Read::Event(ThreadEvent::Mcp(McpEvent::Warning { message })) => warnings.push(message),
            Read::End => break,
            _ => {}
        }
    }
    let all = warnings.iter().find(|warning| warning.contains("`all`")).unwrap();
    assert!(all.contains("`dup` is listed twice") && all.contains("choose with `enabled_tools`") && all.contains("`vast` takes"), "{all}");
    assert!(!warnings.iter().any(|warning| warning.contains("`few`") && warning.contains("choose with")), "{warnings:?}");
}

#[tokio::test]
async fn one_that_is_not_there() {
    let why = start_of("good", json!({"command": "/no/such/program"})).await;
    assert!(why.contains("could not be started"), "{why}");
}

#[tokio::test]
async fn one_whose_declaration_is_wrong() {
    let why = start_of("good", json!({"url": "http://127.0.0.1/mcp"})).await;
    assert!(why.contains("exclude each other"), "{why}");
}

#[tokio::test]
async fn a_banner_is_put_up_with() {
    let harness = harness(json!({"s": server("banner")}), vec![Reply::call("a", "mcp__s__echo", &json!({"text": "x"}))]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, "x".into())]);
}

/// A tool that kills its server: what the model is told, and that the next turn starts the server again.
async fn call_of(tool: &str, more: Value) -> String {
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("starts");
    let mut bad = server("good");
    bad["env"] = json!({"STARTS": file});
    bad.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let replies = vec![
        Reply::call("a", &format!("mcp__s__{tool}"), &json!({"seconds": 60})),
        Reply::message("too bad"),
        Reply::call("b", "mcp__s__echo", &json!({"text": "again"})),
    ];
    let mut setup = setup(&[LinkKind::Memory], &Files::new(json!({"s": bad})), replies);
    setup.config.mcp.limits.fallen = Duration::ZERO;
    // Few enough for a slow machine to write them.
    setup.config.mcp.limits.messages = 200;
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    assert_eq!(turn(&thread, "once more").await, ThreadActivity::Idle);
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!((outputs[0].0, &outputs[1]), (CallOutcome::Failed, &(CallOutcome::Completed, "again".to_owned())), "{outputs:?}");
    harness.runtime.shutdown(Duration::from_secs(10)).await;
    eventually("nothing of it is left", || living(&file) == 0).await;
    outputs[0].1.clone()
}

#[tokio::test]
async fn one_that_dies_in_a_call() {
    let why = call_of("die", json!({})).await;
    assert!(why.contains("exit code 7") && why.contains("the last words of the server"), "{why}");
}

#[tokio::test]
async fn one_that_floods() {
    let why = call_of("flood", json!({})).await;
    assert!(why.contains("messages in a second"), "{why}");
}

#[tokio::test]
async fn one_that_answers_with_too_much() {
    let why = call_of("big", json!({})).await;
    assert!(why.contains("a line of more than"), "{why}");
}

#[tokio::test]
async fn one_that_is_too_slow() {
    let why = call_of("slow", json!({"tool_timeout_sec": 1})).await;
    assert!(why.contains("did not answer within 1 s"), "{why}");
}

/// Its tools were shown to the model, the user was asked, and then it died: the call goes to the server that was shown.
#[tokio::test]
async fn one_that_dies_between_list_and_call() {
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("starts");
    let mut mortal = server("good");
    mortal["env"] = json!({"STARTS": file});
    let mut setup = setup(&[LinkKind::Memory], &Files::new(json!({"s": mortal})), vec![Reply::call("a", "mcp__s__pid", &json!({}))]);
    setup.config.approval = ApprovalPolicy::Untrusted;
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let asked = next_fact(&mut feed, |fact| if let Fact::ApprovalAsked(asked) = fact { Some(asked.clone()) } else { None }).await;
    assert!(std::process::Command::new("kill").args(["-9", &starts(&file)[0].to_string()]).status().unwrap().success());
    eventually("it is dead", || living(&file) == 0).await;
    thread.answer(asked.approval.clone(), Decision::Approved, None).await.unwrap();
    settled(&thread).await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs.len(), 1);
    assert!(outputs[0].0 == CallOutcome::Failed && outputs[0].1.contains("MCP server `s` has ended"), "{outputs:?}");
}

#[tokio::test]
async fn one_that_dies_between_two_steps() {
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("starts");
    let mut mortal = server("good");
    mortal["env"] = json!({"STARTS": file});
    let kill = format!("kill -9 $(cat {}); sleep 0.5", file.display());
    let kill = json!({"cmd": kill, "login": false, "yield_time_ms": 30_000});
    let replies = vec![Reply::call("a", "exec_command", &kill), Reply::call("b", "mcp__s__pid", &json!({}))];
    let mut setup = setup(&[LinkKind::Memory], &Files::new(json!({"s": mortal})), replies);
    setup.config.mcp.limits.fallen = Duration::from_secs(600);
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs[1].1.contains("no tool `mcp__s__pid`") && outputs[1].1.contains("has ended"), "{outputs:?}");
    assert_eq!(thread.status(), ThreadActivity::Idle);
}

/// A turn that runs goes on without a server that it had, also if the server is required: the model is told, and clients are told why.
#[tokio::test]
async fn a_required_server_that_dies_does_not_end_a_running_turn() {
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("starts");
    let mut mortal = server("good");
    mortal["env"] = json!({"STARTS": file});
    mortal["required"] = json!(true);
    let replies = vec![Reply::call("a", "mcp__s__die", &json!({})), Reply::call("b", "exec_command", &json!({"cmd": "echo on"}))];
    let mut setup = setup(&[LinkKind::Memory], &Files::new(json!({"s": mortal})), replies);
    setup.config.mcp.limits.fallen = Duration::from_secs(600);
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs[0].1.contains("the last words of the server") && outputs[1].1.contains("on"), "{outputs:?}");
    assert!(is_completed(&harness.turn_ends(thread.id()).await[0]));
    assert!(harness.model.requests()[1].body.to_string().contains("MCP server `s` cannot be used now"));
    let told = std::iter::from_fn(|| feed.try_next()).filter_map(|read| match read {
        Read::Event(ThreadEvent::Mcp(McpEvent::Startup { state, error: Some(error), .. })) => Some((state, error)),
        _ => None,
    });
    let told: Vec<(String, String)> = told.collect();
    assert!(told.iter().any(|(state, error)| state == "failed" && error.contains("the last words of the server")), "{told:?}");
}

#[tokio::test]
async fn a_required_server_that_fails_ends_the_turn_with_the_reason() {
    let mut bad = server("dies");
    bad["required"] = json!(true);
    let harness = harness(json!({"s": bad}), vec![]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let ends = harness.turn_ends(thread.id()).await;
    assert_eq!(ends[0].status, TurnStatus::Failed);
    let error: Value = ends[0].error.as_ref().unwrap().read().unwrap();
    assert!(error["message"].as_str().unwrap().contains("`s` is required and not ready"), "{error}");
    assert!(harness.model.requests().is_empty());
}

#[tokio::test]
async fn a_slow_start_holds_up_no_step_unless_it_is_required() {
    for required in [false, true] {
        let mut sleepy = server("sleepy");
        // Longer than the step takes on a busy machine, or as short as it may be.
        sleepy["args"].as_array_mut().unwrap().push(json!(if required { "3" } else { "40" }));
        sleepy["required"] = json!(required);
        let mut setup = setup(&[LinkKind::Memory], &Files::new(json!({"s": sleepy})), vec![]);
        setup.config.mcp.limits.patience = Duration::from_millis(100);
        let harness = Harness::new(setup).await;
        let thread = harness.start(&[0]).await;
        turn(&thread, "go").await;
        assert_eq!(!offered(&harness, 0).is_empty(), required);
    }
}

#[tokio::test]
async fn a_server_that_does_not_go_is_ended() {
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("starts");
    let mut stays = server("stays");
    stays["env"] = json!({"STARTS": file});
    let harness = harness(json!({"s": stays}), vec![]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    assert_eq!((starts(&file).len(), living(&file)), (1, 1));
    harness.runtime.shutdown(Duration::from_secs(10)).await;
    eventually("it is ended", || living(&file) == 0).await;
}
