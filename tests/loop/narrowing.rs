//! What the entry of an environment leaves of a thread's policy there.

use outpost_environment::{Fence, NarrowedApproval, Narrowing};
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::policy::ApprovalPolicy;
use outpost_testkit::LinkKind;
use outpost_testkit::model::{Reply, call};
use serde_json::{Value, json};

use crate::harness::{Harness, Setup, turn};

fn exec(id: &str, arguments: Value) -> Value {
    call(id, "exec_command", &arguments)
}

/// One call after the other.
fn replies(calls: Vec<Value>) -> Vec<Reply> {
    calls.into_iter().map(|call| Reply::Items(vec![call])).chain([Reply::message("done")]).collect()
}

/// What came of commands of a thread with full access in an environment that says this.
async fn outputs(narrowing: Narrowing, approval: ApprovalPolicy, calls: Vec<Value>) -> (Harness, Vec<String>) {
    let mut setup = Setup::new(&[LinkKind::Memory], replies(calls));
    setup.config.approval = approval;
    setup.narrowing = narrowing;
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await.into_iter().map(|(_, output)| output).collect();
    (harness, outputs)
}

#[tokio::test]
async fn an_environment_narrows_a_thread_that_may_do_everything() {
    let narrowing = Narrowing { sandbox: Some(Fence::ReadOnly), no_network: true, ..Narrowing::default() };
    let more = json!({"file_system": {"write": ["."]}});
    let calls = vec![
        exec("a", json!({"cmd": "touch x; test ! -e x", "login": false})),
        exec("b", json!({"cmd": "touch x", "login": false})),
        exec("c", json!({"cmd": "touch x", "sandbox_permissions": "require_escalated", "justification": "it must"})),
        exec("d", json!({"cmd": "touch x", "sandbox_permissions": "with_additional_permissions", "additional_permissions": more})),
        call("e", "apply_patch", &json!({"input": "*** Begin Patch\n*** Add File: y\n+hi\n*** End Patch\n"})),
    ];
    let (harness, outputs) = outputs(narrowing, ApprovalPolicy::OnRequest, calls).await;
    assert!(outputs[0].contains("Exit code: 0"), "{outputs:?}");
    assert!(outputs[1].contains("may not be written") && outputs[1].contains("environments.toml"), "{outputs:?}");
    for refused in &outputs[2..4] {
        assert!(refused.contains("environment `one` in environments.toml") && !refused.contains("Exit code"), "{refused}");
    }
    assert!(!outputs[4].contains("A y"), "{outputs:?}");
    let told = harness.model.requests()[0].body.to_string();
    assert!(told.contains("read-only (fixed for this environment: nothing is written; no network)"), "{told}");
}

#[tokio::test]
async fn only_what_both_name_can_be_written() {
    let elsewhere = tempfile::tempdir().unwrap();
    let root = elsewhere.path().canonicalize().unwrap();
    let narrowing = Narrowing { writable_roots: Some(vec![root.display().to_string()]), ..Narrowing::default() };
    let mut setup = Setup::new(
        &[LinkKind::Memory],
        replies(vec![
            exec("a", json!({"cmd": format!("touch {}/x", root.display()), "login": false})),
            exec("b", json!({"cmd": "touch x", "login": false})),
        ]),
    );
    let writable_roots = vec![root.display().to_string()];
    setup.config.sandbox =
        SandboxMode::WorkspaceWrite { writable_roots, network_access: false, exclude_tmpdir_env_var: false, exclude_slash_tmp: true };
    setup.narrowing = narrowing;
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs[0].1.contains("Exit code: 0") && !outputs[1].1.contains("Exit code: 0"), "{outputs:?}");
}

#[tokio::test]
async fn the_stricter_of_two_approval_policies_counts() {
    let narrowing = Narrowing { approval_policy: Some(NarrowedApproval::Untrusted), ..Narrowing::default() };
    let (_harness, outputs) = outputs(narrowing, ApprovalPolicy::Never, vec![exec("a", json!({"cmd": "true"}))]).await;
    assert!(outputs[0].contains("no rule allows it") && outputs[0].contains("environments.toml"), "{outputs:?}");
    assert!(outputs[0].contains("`never`"), "{outputs:?}");
}
