//! Permissions that a model asks for and a user grants.

use std::path::Path;

use outpost_runtime::Status;
use outpost_runtime::live::{LiveThread, NewInput};
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::policy::{ApprovalPolicy, Granular, Questions};
use outpost_testkit::LinkKind;
use outpost_testkit::model::Reply;
use outpost_thread::{ApprovalAsked, CallOutcome, Decision, Fact, GrantScope, PermissionsGranted, Raw};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Harness, Setup, is_completed, next_fact, settled, turn};

/// Only the environment's own directory may be written.
fn confined() -> SandboxMode {
    SandboxMode::WorkspaceWrite { writable_roots: vec![], network_access: false, exclude_tmpdir_env_var: true, exclude_slash_tmp: true }
}

async fn harness(kinds: &[LinkKind], replies: Vec<Reply>) -> Harness {
    with_policy(ApprovalPolicy::OnRequest, kinds, replies).await
}

async fn with_policy(policy: ApprovalPolicy, kinds: &[LinkKind], replies: Vec<Reply>) -> Harness {
    let mut setup = Setup::new(kinds, replies);
    setup.config.sandbox = confined();
    setup.config.approval = policy;
    Harness::new(setup).await
}

fn request(id: &str, permissions: &Value) -> Reply {
    Reply::call(id, "request_permissions", &json!({"reason": "it must", "permissions": permissions}))
}

fn writing(path: &Path) -> Value {
    json!({"file_system": {"write": [path]}})
}

fn run(id: &str, command: &str) -> Reply {
    Reply::call(id, "exec_command", &json!({"cmd": command}))
}

fn asked(fact: &Fact) -> Option<Box<ApprovalAsked>> {
    if let Fact::ApprovalAsked(asked) = fact { Some(asked.clone()) } else { None }
}

fn detail(asked: &ApprovalAsked) -> Value {
    asked.detail.as_ref().unwrap().read().unwrap()
}

/// Says something, answers the one question that comes, and waits for the end.
async fn answer(thread: &LiveThread, decision: Decision, detail: Option<Value>) -> Box<ApprovalAsked> {
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let question = next_fact(&mut feed, asked).await;
    thread.answer(question.approval.clone(), decision, detail.map(Raw::from)).await.unwrap();
    settled(thread).await;
    question
}

async fn grants(harness: &Harness, thread: &LiveThread) -> Vec<PermissionsGranted> {
    let granted = |entry: outpost_thread::Entry| if let Fact::PermissionsGranted(fact) = entry.fact { Some(*fact) } else { None };
    harness.entries(thread.id()).await.into_iter().filter_map(granted).collect()
}

#[tokio::test]
async fn what_is_granted_for_a_turn_ends_with_it() {
    let data = TempDir::new().unwrap();
    let touch = |id: &str, name: &str| run(id, &format!("touch {}", data.path().join(name).display()));
    let harness = harness(
        &[LinkKind::Memory],
        vec![
            touch("a", "before"),
            request("b", &writing(data.path())),
            touch("c", "during"),
            Reply::message("done"),
            touch("d", "after"),
            Reply::message("done"),
        ],
    )
    .await;
    let thread = harness.start(&[0]).await;
    let question = answer(&thread, Decision::Approved, None).await;
    assert_eq!((question.kind.as_str(), question.environment.as_ref().unwrap().as_str()), ("permissions", "one"));
    let shown = detail(&question);
    assert_eq!(shown["permissions"]["fileSystem"]["write"], json!([data.path()]));
    assert_eq!((&shown["reason"], &shown["cwd"]), (&json!("it must"), &json!(harness.work(0))));
    turn(&thread, "again").await;
    let made: Vec<bool> = ["before", "during", "after"].iter().map(|name| data.path().join(name).exists()).collect();
    assert_eq!(made, [false, true, false]);
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs[1].1.contains("until this turn ends") && outputs[1].1.contains(data.path().to_str().unwrap()), "{outputs:?}");
    let grant = grants(&harness, &thread).await.pop().unwrap();
    assert_eq!((grant.scope, grant.environment.as_str(), grant.executor.is_some()), (GrantScope::Turn, "one", true));
    // The model is told what holds, and that it holds no longer.
    let told: Vec<bool> = harness.model.requests().iter().map(|request| request.body.to_string().contains("<granted>write")).collect();
    assert_eq!(told[..4], [false, false, true, true]);
    let last = harness.model.requests().last().unwrap().body.to_string();
    assert!(last.rfind("<environment_context>") > last.rfind("<granted>"), "{last}");
}

#[tokio::test]
async fn denial_is_told_and_the_turn_goes_on() {
    let data = TempDir::new().unwrap();
    for (decision, said) in [
        (Decision::Denied, None),
        (Decision::Approved, Some(json!({"permissions": {}}))),
        (Decision::Approved, Some(json!({"permissions": {"fileSystem": {"write": ["/elsewhere"]}}}))),
    ] {
        let touch = run("b", &format!("touch {}/x", data.path().display()));
        let harness = harness(&[LinkKind::Memory], vec![request("a", &writing(data.path())), touch, Reply::message("done")]).await;
        let thread = harness.start(&[0]).await;
        answer(&thread, decision, said).await;
        assert_eq!(harness.outputs(thread.id()).await[0].0, CallOutcome::Declined);
        assert!(!data.path().join("x").exists() && grants(&harness, &thread).await.is_empty());
        assert!(is_completed(&harness.turn_ends(thread.id()).await[0]));
    }
}

#[tokio::test]
async fn nobody_is_asked_where_nobody_may_be() {
    let quiet = Granular { granular: Questions { request_permissions: false, ..Questions::default() } };
    for policy in [ApprovalPolicy::Never, ApprovalPolicy::Granular(quiet)] {
        let data = TempDir::new().unwrap();
        let harness = with_policy(policy, &[LinkKind::Memory], vec![request("a", &writing(data.path())), Reply::message("done")]).await;
        let thread = harness.start(&[0]).await;
        assert_eq!(turn(&thread, "go").await, Status::Idle);
        let (outcome, text) = harness.outputs(thread.id()).await.remove(0);
        assert_eq!(outcome, CallOutcome::Declined);
        assert!(text.contains("nobody was asked"), "{text}");
        assert!(!harness.model.requests()[0].body.to_string().contains("request_permissions"), "it is not offered");
        assert!(!harness.entries(thread.id()).await.iter().any(|entry| matches!(entry.fact, Fact::ApprovalAsked(_))));
    }
}
