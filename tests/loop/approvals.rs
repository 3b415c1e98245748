//! Questions before calls.

use outpost_runtime::ThreadActivity;
use outpost_runtime::live::NewInput;
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::policy::ApprovalPolicy;
use outpost_runtime::rules::{CommandRule, CommandRules, RuleDecision, Word};
use outpost_testkit::LinkKind;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::{Reply, call};
use outpost_thread::{CallOutcome, Decision, InterruptReason, TurnStatus};
use serde_json::json;

use crate::harness::{Harness, Setup, asked, next_fact, settled, turn};

async fn asking(policy: ApprovalPolicy, replies: Vec<Reply>) -> Harness {
    let mut setup = Setup::new(&[LinkKind::Memory], replies);
    setup.config.approval = policy;
    Harness::new(setup).await
}

#[tokio::test]
async fn yes_no_and_stop() {
    for (decision, ran, outcome, status) in [
        (Decision::Approved, true, CallOutcome::Completed, TurnStatus::Completed),
        (Decision::Denied, false, CallOutcome::Declined, TurnStatus::Completed),
        (Decision::Aborted, false, CallOutcome::Declined, TurnStatus::Interrupted),
    ] {
        let harness = asking(ApprovalPolicy::Untrusted, vec![Reply::call("a", "exec_command", &json!({"cmd": "touch ran"}))]).await;
        let thread = harness.start(&[0]).await;
        let mut feed = thread.subscribe();
        thread.input(NewInput::text("go")).await.unwrap();
        let question = next_fact(&mut feed, asked).await;
        assert_eq!((question.kind.as_str(), question.environment.as_ref().unwrap().as_str()), ("command", "one"));
        assert_eq!(thread.status(), ThreadActivity::Active { waits_for_approval: true, waits_for_input: false });
        assert!(!harness.work(0).join("ran").exists());
        thread.answer(question.approval, decision, None).await.unwrap();
        settled(&thread).await;
        assert_eq!(harness.work(0).join("ran").exists(), ran, "{decision:?}");
        assert_eq!(harness.outputs(thread.id()).await[0].0, outcome, "{decision:?}");
        assert_eq!(harness.turn_ends(thread.id()).await[0].status, status, "{decision:?}");
    }
}

#[tokio::test]
async fn an_answer_for_the_thread_holds_for_exactly_that() {
    let run = |id: &str, cmd: &str| Reply::call(id, "exec_command", &json!({"cmd": cmd}));
    let harness = asking(ApprovalPolicy::Untrusted, vec![run("a", "touch x"), run("b", "touch x"), run("c", "touch y")]).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let first = next_fact(&mut feed, asked).await;
    thread.answer(first.approval, Decision::ApprovedForThread, None).await.unwrap();
    let second = next_fact(&mut feed, asked).await;
    assert!(second.detail.unwrap().raw().get().contains("touch y"));
    thread.answer(second.approval, Decision::Denied, None).await.unwrap();
    settled(&thread).await;
    let outcomes: Vec<CallOutcome> = harness.outputs(thread.id()).await.into_iter().map(|(outcome, _)| outcome).collect();
    assert_eq!(outcomes, [CallOutcome::Completed, CallOutcome::Completed, CallOutcome::Declined]);
}

#[tokio::test]
async fn rules_allow_ask_and_forbid() {
    let rule = |word: &str, decision| CommandRule {
        prefix: vec![Word::One(word.into())],
        decision,
        reason: Some("by rule".into()),
        environment: None,
    };
    let calls = vec![
        call("a", "exec_command", &json!({"cmd": "echo fine"})),
        call("b", "exec_command", &json!({"cmd": "touch asked"})),
        call("c", "exec_command", &json!({"cmd": "echo x && rm -rf y"})),
    ];
    let mut setup = Setup::new(&[LinkKind::Memory], vec![Reply::Items(calls)]);
    setup.config.approval = ApprovalPolicy::OnRequest;
    setup.rules =
        CommandRules::new(vec![rule("echo", RuleDecision::Allow), rule("touch", RuleDecision::Ask), rule("rm", RuleDecision::Forbid)])
            .unwrap();
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let question = next_fact(&mut feed, asked).await;
    assert!(question.detail.unwrap().raw().get().contains("by rule"));
    thread.answer(question.approval, Decision::Approved, None).await.unwrap();
    settled(&thread).await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs.iter().any(|(outcome, text)| *outcome == CallOutcome::Failed && text.contains("by rule")), "{outputs:?}");
    assert!(outputs.iter().any(|(_, text)| text.contains("fine")));
    assert!(harness.work(0).join("asked").exists());
}

#[tokio::test]
async fn leaving_the_sandbox_is_asked_or_refused() {
    let escalated =
        || Reply::call("a", "exec_command", &json!({"cmd": "true", "sandbox_permissions": "require_escalated", "justification": "must"}));
    for (policy, asks) in [(ApprovalPolicy::OnRequest, true), (ApprovalPolicy::Never, false)] {
        let mut setup = Setup::new(&[LinkKind::Memory], vec![escalated()]);
        setup.config.approval = policy;
        setup.config.sandbox = SandboxMode::workspace_write();
        let harness = Harness::new(setup).await;
        let thread = harness.start(&[0]).await;
        let mut feed = thread.subscribe();
        thread.input(NewInput::text("go")).await.unwrap();
        if asks {
            let question = next_fact(&mut feed, asked).await;
            assert!(question.detail.as_ref().unwrap().raw().get().contains("must"));
            thread.answer(question.approval, Decision::Approved, None).await.unwrap();
        }
        settled(&thread).await;
        let expected = if asks { CallOutcome::Completed } else { CallOutcome::Failed };
        assert_eq!(harness.outputs(thread.id()).await[0].0, expected, "{policy:?}");
    }
}

/// A yes to a shell is no yes to everything that is typed into it later.
#[tokio::test]
async fn what_is_typed_into_an_allowed_shell_is_asked_about() {
    let escalated = json!({"cmd": "sh", "sandbox_permissions": "require_escalated", "justification": "must", "yield_time_ms": 250});
    let plain = json!({"cmd": "sh", "yield_time_ms": 250});
    for (policy, shell, is_asked) in [
        (ApprovalPolicy::OnRequest, &escalated, true),
        (ApprovalPolicy::OnRequest, &plain, false),
        (ApprovalPolicy::Untrusted, &plain, true),
        (ApprovalPolicy::Never, &plain, false),
    ] {
        let mut setup = Setup::new(&[LinkKind::Memory], vec![Reply::call("a", "exec_command", shell), Reply::message("it runs")]);
        setup.config.approval = policy;
        setup.config.sandbox = SandboxMode::workspace_write();
        let harness = Harness::new(setup).await;
        let thread = harness.start(&[0]).await;
        let mut feed = thread.subscribe();
        thread.input(NewInput::text("go")).await.unwrap();
        if shell == &escalated || policy == ApprovalPolicy::Untrusted {
            let question = next_fact(&mut feed, asked).await;
            thread.answer(question.approval, Decision::Approved, None).await.unwrap();
        }
        settled(&thread).await;
        let output = harness.outputs(thread.id()).await[0].1.clone();
        let session: u64 = output.split("session id: ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
        let typed =
            |id: &str, chars: &str| Reply::call(id, "write_stdin", &json!({"session_id": session, "chars": chars, "yield_time_ms": 1000}));
        harness.model.push(typed("b", "touch typed\n"));
        harness.model.push(typed("c", "touch more\n"));
        thread.input(NewInput::text("type")).await.unwrap();
        if is_asked {
            let question = next_fact(&mut feed, asked).await;
            let detail = question.detail.as_ref().unwrap().raw().get().to_owned();
            assert!(detail.contains("touch typed") && detail.contains("\"typedInto\":\"sh\""), "{detail}");
            assert!(!harness.work(0).join("typed").exists());
            thread.answer(question.approval, Decision::Approved, None).await.unwrap();
            // Each text is a question of its own.
            let question = next_fact(&mut feed, asked).await;
            assert!(question.detail.as_ref().unwrap().raw().get().contains("touch more"));
            thread.answer(question.approval, Decision::Denied, None).await.unwrap();
        }
        settled(&thread).await;
        eventually("what was allowed is done", || harness.work(0).join("typed").exists()).await;
        if is_asked {
            assert!(!harness.work(0).join("more").exists(), "{policy:?}");
        } else {
            eventually("nothing is asked about", || harness.work(0).join("more").exists()).await;
        }
    }
}

/// A question waits through a restart, under the same id.
#[tokio::test]
async fn a_question_survives_a_restart() {
    let harness = asking(ApprovalPolicy::Untrusted, vec![Reply::call("a", "exec_command", &json!({"cmd": "touch ran"}))]).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let question = next_fact(&mut feed, asked).await;
    // A new program on the same store: the old one is gone without a word.
    let id = thread.id();
    let again = harness.restarted().await;
    let thread = again.take_over(id).await.unwrap();
    assert_eq!(thread.status(), ThreadActivity::Active { waits_for_approval: true, waits_for_input: false });
    let state = thread.snapshot().await.unwrap();
    assert_eq!(state.turn.unwrap().approvals[0].id, question.approval);
    thread.answer(question.approval, Decision::Approved, None).await.unwrap();
    settled(&thread).await;
    assert!(harness.work(0).join("ran").exists());
    again.unload(id, InterruptReason::Shutdown).await;
}

#[tokio::test]
async fn patches_are_asked_about_when_nothing_is_trusted() {
    let patch = json!({"input": "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch"});
    let harness = asking(ApprovalPolicy::Untrusted, vec![Reply::call("a", "apply_patch", &patch)]).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let question = next_fact(&mut feed, asked).await;
    assert_eq!((question.kind.as_str(), question.environment.unwrap().as_str()), ("fileChange", "one"));
    thread.answer(question.approval, Decision::Approved, None).await.unwrap();
    settled(&thread).await;
    assert!(harness.work(0).join("a").exists());
    let _ = turn(&thread, "thanks").await;
}

fn patch(id: &str, environment: &str, hunk: &str) -> Reply {
    let text = format!("*** Begin Patch\n*** Environment ID: {environment}\n{hunk}\n*** End Patch");
    Reply::call(id, "apply_patch", &json!({"input": text}))
}

async fn read_only(policy: ApprovalPolicy, replies: Vec<Reply>) -> Harness {
    let mut setup = Setup::new(&[LinkKind::Memory, LinkKind::Memory], replies);
    setup.config.approval = policy;
    setup.config.sandbox = SandboxMode::named("read-only").unwrap();
    Harness::new(setup).await
}

/// Where nothing may be written the user is asked about a patch, and one that they agree to is applied where it was meant.
#[tokio::test]
async fn a_patch_that_the_sandbox_does_not_allow_is_asked_about_and_applied() {
    for policy in [ApprovalPolicy::OnRequest, ApprovalPolicy::Untrusted] {
        let replies = vec![
            patch("a", "two", "*** Add File: deep/er/new\n+x\n*** Add File: beside\n+b"),
            // The user said always, and to each of the files.
            patch("b", "two", "*** Update File: deep/er/new\n@@\n-x\n+y"),
            patch("c", "two", "*** Delete File: beside"),
            // Another environment is another matter.
            patch("d", "one", "*** Add File: deep/er/new\n+z"),
            Reply::message("done"),
        ];
        let harness = read_only(policy, replies).await;
        let thread = harness.start(&[0, 1]).await;
        let mut feed = thread.subscribe();
        thread.input(NewInput::text("go")).await.unwrap();
        let first = next_fact(&mut feed, asked).await;
        assert_eq!((first.kind.as_str(), first.environment.as_ref().unwrap().as_str()), ("fileChange", "two"), "{policy:?}");
        assert!(!harness.work(1).join("beside").exists());
        thread.answer(first.approval, Decision::ApprovedForThread, None).await.unwrap();
        let second = next_fact(&mut feed, asked).await;
        assert_eq!(second.environment.as_ref().unwrap().as_str(), "one", "{policy:?}");
        thread.answer(second.approval, Decision::Denied, None).await.unwrap();
        settled(&thread).await;
        let outputs = harness.outputs(thread.id()).await;
        assert_eq!(std::fs::read_to_string(harness.work(1).join("deep/er/new")).unwrap(), "y\n", "{policy:?} {outputs:?}");
        assert!(!harness.work(1).join("beside").exists() && !harness.work(0).join("deep").exists(), "{policy:?} {outputs:?}");
        let outcomes: Vec<CallOutcome> = outputs.iter().map(|(outcome, _)| *outcome).collect();
        assert_eq!(outcomes, [CallOutcome::Completed, CallOutcome::Completed, CallOutcome::Completed, CallOutcome::Declined]);
    }
}

/// What the user agrees to is a path. A link that leads elsewhere is none, and where nobody may be asked nothing is written.
#[tokio::test]
async fn a_patch_goes_nowhere_else_and_never_unasked() {
    let elsewhere = tempfile::tempdir().unwrap();
    for policy in [ApprovalPolicy::OnRequest, ApprovalPolicy::Never] {
        let harness = read_only(policy, vec![patch("a", "one", "*** Add File: link/x\n+x"), Reply::message("done")]).await;
        std::os::unix::fs::symlink(elsewhere.path(), harness.work(0).join("link")).unwrap();
        let thread = harness.start(&[0, 1]).await;
        let mut feed = thread.subscribe();
        thread.input(NewInput::text("go")).await.unwrap();
        if policy == ApprovalPolicy::OnRequest {
            let question = next_fact(&mut feed, asked).await;
            thread.answer(question.approval, Decision::Approved, None).await.unwrap();
        }
        settled(&thread).await;
        let outputs = harness.outputs(thread.id()).await;
        assert_eq!(outputs[0].0, CallOutcome::Failed, "{outputs:?}");
        assert!(outputs[0].1.contains("Nothing was changed") && !elsewhere.path().join("x").exists(), "{outputs:?}");
    }
}

/// An answer can allow more than the one command: a rule is made, kept, and holds from then on.
#[tokio::test]
async fn an_answer_can_make_a_rule() {
    let run = |id: &str, cmd: &str, prefix: &[&str]| Reply::call(id, "exec_command", &json!({"cmd": cmd, "prefix_rule": prefix}));
    let replies = vec![run("a", "touch one", &["touch"]), run("b", "touch two", &[]), run("c", "bash -c 'touch three'", &["bash"])];
    let harness = asking(ApprovalPolicy::Untrusted, replies).await;
    let kept = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let keeping = kept.clone();
    harness.runtime.keep_rules_with(std::sync::Arc::new(move |rule| {
        keeping.lock().unwrap().push(rule.to_toml());
        Ok(())
    }));
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let question = next_fact(&mut feed, asked).await;
    let detail: serde_json::Value = question.detail.as_ref().unwrap().raw().read().unwrap();
    assert_eq!(detail["prefixRule"], json!(["touch"]));
    let answer = |prefix: &[&str]| Some(outpost_thread::Raw::from(json!({"prefix": prefix})));
    // Nobody allows everything by an answer.
    let refused = thread.answer(question.approval.clone(), Decision::Approved, answer(&["bash"])).await;
    assert!(refused.unwrap_err().to_string().contains("would allow everything"));
    thread.answer(question.approval, Decision::Approved, answer(&["touch"])).await.unwrap();
    // The second command runs unasked; the third is asked about, and nothing broad is offered for it.
    let question = next_fact(&mut feed, asked).await;
    let detail: serde_json::Value = question.detail.as_ref().unwrap().raw().read().unwrap();
    assert_eq!((&detail["command"], &detail["prefixRule"]), (&json!("bash -c 'touch three'"), &json!(null)));
    assert!(harness.work(0).join("two").exists());
    thread.answer(question.approval, Decision::Denied, answer(&["rm"])).await.unwrap();
    settled(&thread).await;
    assert_eq!(*kept.lock().unwrap(), ["[[rules]]\nprefix = [\"touch\"]\ndecision = \"allow\"\nreason = \"allowed by an answer\"\n"]);
}

fn detail(asked: &outpost_thread::ApprovalAsked) -> serde_json::Value {
    asked.detail.as_ref().unwrap().raw().read().unwrap()
}

/// A yes to a command in a sandbox is no yes to the same command without one.
#[tokio::test]
async fn an_answer_is_bound_to_the_sandbox() {
    let mut setup = Setup::new(&[LinkKind::Memory], vec![Reply::call("a", "exec_command", &json!({"cmd": "touch ran"}))]);
    setup.config.approval = ApprovalPolicy::Untrusted;
    setup.config.sandbox = SandboxMode::workspace_write();
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let first = next_fact(&mut feed, asked).await;
    assert_eq!(detail(&first)["sandbox"], "workspace-write, no network");
    assert_eq!(detail(&first)["program"].as_array().unwrap().len(), 2);

    let mut config = harness.config();
    config.sandbox = SandboxMode::DangerFullAccess;
    let again = harness.restarted_as(config.clone(), CommandRules::default());
    let thread = again.take_over(thread.id()).await.unwrap();
    let mut feed = thread.subscribe();
    thread.answer(first.approval.clone(), Decision::Approved, None).await.unwrap();
    let second = next_fact(&mut feed, asked).await;
    assert_ne!(second.approval, first.approval);
    assert_eq!((&detail(&second)["sandbox"], &detail(&second)["changed"]), (&json!("none"), &json!(["the sandbox"])));
    assert!(!harness.work(0).join("ran").exists(), "nobody agreed to this");

    // The second answer counts, also after one more restart, and nobody is asked for ever.
    let last = harness.restarted_as(config, CommandRules::default());
    let thread = last.take_over(thread.id()).await.unwrap();
    thread.answer(second.approval, Decision::Approved, None).await.unwrap();
    settled(&thread).await;
    assert!(harness.work(0).join("ran").exists());
    assert_eq!(harness.outputs(thread.id()).await[0].0, CallOutcome::Completed);
    last.unload(thread.id(), InterruptReason::Shutdown).await;
}

/// What the rules forbid by now does not run, whatever was agreed to before.
#[tokio::test]
async fn an_answer_is_no_way_around_rules_that_came_later() {
    let harness = asking(ApprovalPolicy::Untrusted, vec![Reply::call("a", "exec_command", &json!({"cmd": "touch ran"}))]).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let question = next_fact(&mut feed, asked).await;
    let rule = CommandRule { prefix: vec![Word::One("touch".into())], decision: RuleDecision::Forbid, reason: None, environment: None };
    let again = harness.restarted_as(harness.config(), CommandRules::new(vec![rule]).unwrap());
    let thread = again.take_over(thread.id()).await.unwrap();
    thread.answer(question.approval, Decision::Approved, None).await.unwrap();
    settled(&thread).await;
    assert!(!harness.work(0).join("ran").exists());
    assert_eq!(harness.outputs(thread.id()).await[0].0, CallOutcome::Failed);
    again.unload(thread.id(), InterruptReason::Shutdown).await;
}

/// A yes is to the machine that was named: another one behind the same id does not run it.
#[tokio::test]
async fn an_answer_is_bound_to_the_machine() {
    let elsewhere = tempfile::tempdir().unwrap();
    let mark = elsewhere.path().join("ran");
    let command = json!({"cmd": format!("touch {}", mark.display())});
    let mut setup = Setup::new(&[LinkKind::WebSocket, LinkKind::WebSocket], vec![Reply::call("a", "exec_command", &command)]);
    setup.config.approval = ApprovalPolicy::Untrusted;
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let question = next_fact(&mut feed, asked).await;
    // Another program, and another machine behind the same id.
    let again = harness.restarted().await;
    let id = outpost_wire::intent::EnvironmentId::parse("one").unwrap();
    again.registry().attach(id.clone(), harness.way(1), outpost_environment::ConnectPolicy::Lazy).unwrap();
    again.registry().info(&id).await.unwrap();
    let thread = again.take_over(thread.id()).await.unwrap();
    thread.answer(question.approval, Decision::Approved, None).await.unwrap();
    settled(&thread).await;
    assert!(!mark.exists(), "it ran on a machine that nobody was asked about");
    assert_eq!(harness.outputs(thread.id()).await[0].0, CallOutcome::Failed);
    again.unload(thread.id(), InterruptReason::Shutdown).await;
}

/// A rule allows what a shell does with a command, not what any program does that is named as the shell.
#[tokio::test]
async fn a_program_in_the_place_of_the_shell_is_asked_about() {
    let evil = json!({"cmd": "ls", "shell": "./evil"});
    let mut setup = Setup::new(&[LinkKind::Memory], vec![Reply::call("a", "exec_command", &evil)]);
    setup.config.approval = ApprovalPolicy::Untrusted;
    let rule = CommandRule { prefix: vec![Word::One("ls".into())], decision: RuleDecision::Allow, reason: None, environment: None };
    setup.rules = CommandRules::new(vec![rule]).unwrap();
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let question = next_fact(&mut feed, asked).await;
    assert_eq!(detail(&question)["program"], json!(["./evil", "-lc"]));
    thread.answer(question.approval, Decision::Denied, None).await.unwrap();
    settled(&thread).await;
}

/// Settings that cannot be read are refused, and where a journal has them no step begins; the usual ones do not take their place.
#[tokio::test]
async fn settings_that_cannot_be_read_stop_the_work() {
    use outpost_thread::{Raw, Settings, SettingsChanged};
    let run = Reply::call("a", "exec_command", &json!({"cmd": "touch ran"}));
    let harness = asking(ApprovalPolicy::Never, vec![Reply::message("hello"), run]).await;
    let wrong = |value: serde_json::Value| Settings { sandbox: Some(Raw::from(value)), ..Settings::default() };
    for value in [json!("readonly"), json!({"type": "read-only"})] {
        let mut start = outpost_runtime::StartThread::new();
        start.created.settings = wrong(value.clone());
        let error = harness.runtime.start(start).await.err().unwrap().to_string();
        assert!(error.contains("`sandbox`") && error.contains("read-only") && error.contains("workspaceWrite"), "{error}");
    }
    let thread = harness.start(&[0]).await;
    let _ = turn(&thread, "hello").await;
    let refused = thread.input(NewInput { settings: wrong(json!("readonly")), ..NewInput::text("go") }).await.unwrap_err();
    assert!(refused.to_string().contains("`sandbox`"), "{refused}");
    let policy = Settings { approval_policy: Some(Raw::from(json!("Untrusted"))), ..Settings::default() };
    let refused = thread.change(vec![SettingsChanged { settings: policy.clone() }.into()]).await.unwrap_err();
    assert!(refused.to_string().contains("`approvalPolicy`") && refused.to_string().contains("on-request"), "{refused}");
    // Another program wrote it.
    let id = thread.id();
    harness.runtime.unload(id, InterruptReason::Shutdown).await;
    let store = harness.runtime.store();
    let lease = store.claim(id, outpost_store::ClaimMode::TakeOver).await.unwrap();
    let ordinal = store.head(id).await.unwrap().last + 1;
    let entry = outpost_thread::Entry { ordinal, at: 1, fact: SettingsChanged { settings: policy }.into() };
    store.append(&lease, vec![entry], outpost_store::Need::Durable).await.unwrap();
    store.release(lease).await;
    let again = harness.restarted().await;
    let thread = again.take_over(id).await.unwrap();
    thread.input(NewInput::text("go")).await.unwrap();
    settled(&thread).await;
    let end = harness.turn_ends(id).await.pop().unwrap();
    assert_eq!(end.status, TurnStatus::Failed);
    assert!(end.error.unwrap().get().contains("`approvalPolicy`"));
    assert!(!harness.work(0).join("ran").exists());
    again.unload(id, InterruptReason::Shutdown).await;
}
