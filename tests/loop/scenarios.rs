//! Scenarios 47 to 75 of environments as far as they concern the loop; a test carries the numbers of those that it shows.
//!
//! | scenario | where |
//! |---|---|
//! | 47 no environment, only global instructions | here |
//! | 48, 49, 51 adding, asking and host calls over the wire | the server's tests; the registry's part in tests/environments |
//! | 50 which environment: in the context, the step, the call and its paths | here |
//! | 52, 53 renderings of the context | `surroundings.rs`, beside the code |
//! | 54 told once, again after it was lost, not repeated | `turns::the_second_turn_sees_the_first_and_is_told_nothing_twice`, 61 here |
//! | 55 AGENTS.md of every environment | `tools::project_instructions_come_from_every_environment`, here |
//! | 56 an unready primary; ours is never replaced by another | here, `selection::a_dead_primary_is_not_replaced` |
//! | 57, 58 waiting for an environment | here |
//! | 59, 62 capability roots of an attachment | tests/environments/capability.rs; the directories of one executor under two ids: here |
//! | 60 agents inherit environments, starting ones included | here |
//! | 61 compaction | here |
//! | 63 tools follow the selection of the step | here, `selection::the_matrix` |
//! | 64 shells | here, `selection::environments_of_every_kind` |
//! | 65 two executors keep workspaces apart | here |
//! | 66, 68 answers hold for one environment | here |
//! | 67 patches go where their header says | here, `tools::a_patch_in_a_command_goes_to_the_same_environment`, `patch/parse.rs` |
//! | 69, 71 approvals of single network targets | not offered: a sandbox has the network or has none |
//! | 70 rules beat answers | here |
//! | 72 pictures of another machine | here |
//! | 73 what a process inherits | tests/conformance/variables.rs, tests/security/secrets.rs |
//! | 74 links under a policy | tests/security/file_calls.rs; through tools: here |
//! | 75 a user's command without a place | here; hooks are not offered |

use std::time::Duration;

use outpost_environment::Provided;
use outpost_runtime::live::{CommandError, NewInput};
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::policy::ApprovalPolicy;
use outpost_runtime::rules::{CommandRule, CommandRules, RuleDecision, Word};
use outpost_testkit::LinkKind;
use outpost_testkit::model::{Reply, call};
use outpost_thread::{CallOutcome, Decision, Fact, InterruptReason};
use outpost_wire::intent::EnvironmentId;
use serde_json::{Value, json};

use crate::harness::{Harness, Setup, next_fact, settled, turn};

const BOTH: [LinkKind; 2] = [LinkKind::Memory, LinkKind::WebSocket];

fn exec(id: &str, cmd: &str, environment: Option<&str>) -> Value {
    let mut arguments = json!({"cmd": cmd, "login": false});
    if let Some(environment) = environment {
        arguments["environment_id"] = environment.into();
    }
    call(id, "exec_command", &arguments)
}

fn texts(harness: &Harness, request: usize) -> Vec<String> {
    let body = harness.model.requests()[request].body.clone();
    let text = |item: &Value| item["content"][0]["text"].as_str().map(str::to_owned);
    body["input"].as_array().unwrap().iter().filter_map(text).collect()
}

fn id(text: &str) -> EnvironmentId {
    EnvironmentId::parse(text).unwrap()
}

fn asked(fact: &Fact) -> Option<outpost_thread::ApprovalAsked> {
    if let Fact::ApprovalAsked(asked) = fact { Some((**asked).clone()) } else { None }
}

#[tokio::test]
async fn s47_without_an_environment_only_what_holds_everywhere_is_told() {
    let harness = Harness::local(vec![]).await;
    std::fs::write(harness.work(0).join("AGENTS.md"), "use tabs").unwrap();
    let thread = harness.start(&[]).await;
    turn(&thread, "hi").await;
    let request = harness.model.requests().remove(0).body;
    assert!(request["instructions"].as_str().unwrap().len() > 100);
    assert!(!request.to_string().contains("use tabs") && !request["tools"].to_string().contains("exec_command"));
}

#[tokio::test]
async fn s50_every_trace_of_a_call_names_its_environment() {
    let calls = Reply::Items(vec![exec("a", "pwd", Some("two"))]);
    let harness = Harness::new(Setup::new(&BOTH, vec![calls])).await;
    let thread = harness.start(&[0, 1]).await;
    turn(&thread, "go").await;
    let context = texts(&harness, 0).into_iter().find(|text| text.starts_with("<environment_context>")).unwrap();
    assert!(context.contains("id=\"one\" primary=\"true\"") && context.contains("id=\"two\" primary=\"false\""), "{context}");
    for entry in harness.entries(thread.id()).await {
        match entry.fact {
            Fact::StepCaptured(step) => {
                let seen: Vec<&str> = step.environments.iter().map(|environment| environment.id.as_str()).collect();
                assert_eq!(seen, ["one", "two"]);
                assert!(step.environments.iter().all(|environment| environment.executor.is_some() && environment.state == "ready"));
            }
            Fact::CallStarted(started) => {
                assert_eq!(started.environment.unwrap().as_str(), "two");
                let detail: Value = started.detail.unwrap().raw().read().unwrap();
                assert_eq!((&detail["environmentId"], &detail["cwd"]), (&json!("two"), &json!(harness.work(1).to_str().unwrap())));
            }
            _ => {}
        }
    }
}

/// The share of each is fair, what cannot be read as text hurts nobody, and a file that comes later is told when it is there.
#[tokio::test]
async fn s55_instructions_are_shared_fairly() {
    let harness = Harness::new(Setup::new(&BOTH, vec![])).await;
    std::fs::write(harness.work(0).join("AGENTS.md"), "x".repeat(100_000)).unwrap();
    std::fs::write(harness.work(1).join("AGENTS.md"), b"two: \xff\xfe fine").unwrap();
    let thread = harness.start(&[0, 1]).await;
    turn(&thread, "hi").await;
    let told: Vec<String> = texts(&harness, 0).into_iter().filter(|text| text.starts_with("<project_instructions")).collect();
    assert_eq!(told.len(), 2);
    assert!(told[0].contains("environment=\"one\"") && told[0].len() < 20_000, "{}", told[0].len());
    assert!(told[1].contains("environment=\"two\"") && told[1].contains("fine"), "{}", told[1]);
    std::fs::write(harness.work(1).join("AGENTS.md"), "two: changed").unwrap();
    turn(&thread, "again").await;
    let told: Vec<String> = texts(&harness, 1).into_iter().filter(|text| text.starts_with("<project_instructions")).collect();
    assert_eq!(told.len(), 3, "only what is new is told");
    assert!(told[2].contains("two: changed"));
}

/// A primary that is not there yet is named in the error; nothing takes its place, and the next turn finds it.
#[tokio::test]
async fn s56_a_primary_that_is_still_coming_is_not_replaced() {
    let mut setup = Setup::new(&[LinkKind::WebSocket], vec![]);
    setup.config.patience.primary = Duration::from_millis(100);
    let harness = Harness::new(setup).await;
    harness.runtime.registry().announce(id("vm")).unwrap();
    let thread = harness.start_in(vec![harness.attachment("vm", 0), harness.attachment("one", 0)]).await;
    harness.model.push(Reply::Items(vec![exec("a", "touch wrong", None), exec("b", "touch right", Some("one"))]));
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(
        outputs.iter().any(|(outcome, text)| *outcome == CallOutcome::Failed && text.contains("`vm` is not ready: starting")),
        "{outputs:?}"
    );
    assert!(!harness.work(0).join("wrong").exists() && harness.work(0).join("right").exists());
    harness.runtime.registry().provided(&id("vm"), Provided { connector: harness.way(0), capability_roots: vec![] }).unwrap();
    harness.runtime.registry().info(&id("vm")).await.unwrap();
    harness.model.push(Reply::Items(vec![exec("c", "touch there", None)]));
    turn(&thread, "now").await;
    assert!(harness.work(0).join("there").exists());
    let last = texts(&harness, harness.model.requests().len() - 1);
    assert!(last.iter().any(|text| text.starts_with("<environment_context>") && text.contains("\"vm\" primary=\"true\"")), "{last:?}");
}

/// The tool for waiting is offered while there is something to wait for; it ends when that is there, and the step after it works there.
#[tokio::test]
async fn s57_s58_a_turn_can_wait_for_an_environment() {
    let mut setup = Setup::new(&[LinkKind::WebSocket], vec![]);
    (setup.config.patience.primary, setup.config.patience.others) = (Duration::from_millis(50), Duration::from_millis(50));
    let harness = Harness::new(setup).await;
    harness.runtime.registry().info(&id("one")).await.unwrap();
    let offers = |request: usize| harness.model.requests()[request].body["tools"].to_string().contains("wait_for_environment");
    harness.runtime.registry().announce(id("vm")).unwrap();
    let thread = harness.start_in(vec![harness.attachment("one", 0), harness.attachment("vm", 0)]).await;
    harness.model.push(Reply::call("w", "wait_for_environment", &json!({"environment_id": "vm"})));
    harness.model.push(Reply::Items(vec![exec("e", "touch waited", Some("vm"))]));
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    next_fact(&mut feed, |fact| matches!(fact, Fact::CallStarted(_)).then_some(())).await;
    harness.runtime.registry().provided(&id("vm"), Provided { connector: harness.way(0), capability_roots: vec![] }).unwrap();
    settled(&thread).await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs[0].1, "vm is ready.");
    assert!(harness.work(0).join("waited").exists(), "{outputs:?}");
    assert!(offers(0) && !offers(1), "there is nothing to wait for any more");
}

/// One that will not come is told as that, and with its reason.
#[tokio::test]
async fn s58_waiting_ends_with_a_failure_too() {
    let mut setup = Setup::new(&[LinkKind::Memory], vec![]);
    setup.config.patience.others = Duration::from_millis(50);
    let harness = Harness::new(setup).await;
    harness.runtime.registry().announce(id("vm")).unwrap();
    let thread = harness.start_in(vec![harness.attachment("one", 0), harness.attachment("vm", 0)]).await;
    harness.model.push(Reply::call("w", "wait_for_environment", &json!({"environment_id": "vm"})));
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    next_fact(&mut feed, |fact| matches!(fact, Fact::CallStarted(_)).then_some(())).await;
    harness.runtime.registry().provision_failed(&id("vm"), "no room").unwrap();
    settled(&thread).await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs[0].1.contains("failed") && outputs[0].1.contains("no room"), "{outputs:?}");
}

#[tokio::test]
async fn s60_an_agent_works_where_its_maker_works_now() {
    let mut setup = Setup::new(&BOTH, vec![]);
    setup.config.patience.others = Duration::from_millis(50);
    let harness = Harness::new(setup).await;
    harness.runtime.registry().announce(id("vm")).unwrap();
    let thread = harness.start(&[0]).await;
    // For this turn only it works elsewhere, and one of the places is still starting.
    let places = vec![harness.attachment("two", 1), harness.attachment("vm", 0)];
    let turn_selection = Some(outpost_wire::intent::Selection::new(places).unwrap());
    harness.model.push_for("\"text\":\"delegate\"", Reply::call("s", "spawn_agent", &json!({"message": "child job"})));
    harness.model.push_for("\"text\":\"child job\"", Reply::Items(vec![exec("e", "touch made", None)]));
    thread.input(NewInput { turn_selection: turn_selection.clone(), ..NewInput::text("delegate") }).await.unwrap();
    settled(&thread).await;
    let child = *thread.snapshot().await.unwrap().agents.keys().next().unwrap();
    let child = harness.runtime.get(child).unwrap();
    settled(&child).await;
    assert_eq!(child.snapshot().await.unwrap().selection, turn_selection);
    assert!(harness.work(1).join("made").exists() && !harness.work(0).join("made").exists());
}

#[tokio::test]
async fn s61_after_a_compaction_the_environments_are_told_again_once() {
    let harness = Harness::new(Setup::new(&BOTH, vec![Reply::message("one"), Reply::message("SUMMARY")])).await;
    let thread = harness.start(&[0, 1]).await;
    turn(&thread, "begin").await;
    thread.compact().await.unwrap();
    settled(&thread).await;
    turn(&thread, "go on").await;
    turn(&thread, "and on").await;
    let last = texts(&harness, harness.model.requests().len() - 1);
    let contexts: Vec<&String> = last.iter().filter(|text| text.starts_with("<environment_context>")).collect();
    assert_eq!(contexts.len(), 1, "{last:?}");
    assert!(contexts[0].contains("\"one\"") && contexts[0].contains("\"two\""));
}

/// One executor under two ids: each has its own directory and its own fence.
#[tokio::test]
async fn s62_s65_workspaces_are_kept_apart() {
    let mut setup = Setup::new(&BOTH, vec![]);
    setup.config.sandbox = SandboxMode::workspace_write();
    let harness = Harness::new(setup).await;
    let registry = harness.runtime.registry();
    registry.attach(id("same"), harness.way(1), outpost_environment::ConnectPolicy::Lazy).unwrap();
    let other = tempfile::Builder::new().prefix("outpost-loop-").tempdir_in("/var/tmp").unwrap();
    let same = outpost_wire::intent::Attachment::new(id("same"), outpost_wire::PathUri::from_native(other.path()).unwrap());
    let work = tempfile::Builder::new().prefix("outpost-loop-").tempdir_in("/var/tmp").unwrap();
    let two = outpost_wire::intent::Attachment::new(id("two"), outpost_wire::PathUri::from_native(work.path()).unwrap());
    let thread = harness.start_in(vec![two, same]).await;
    let across = |from: &std::path::Path| format!("touch own; touch {}/foreign", from.display());
    harness.model.push(Reply::Items(vec![exec("a", &across(other.path()), Some("two")), exec("b", &across(work.path()), Some("same"))]));
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    for directory in [work.path(), other.path()] {
        assert!(directory.join("own").exists() && !directory.join("foreign").exists(), "{outputs:?}");
    }
    assert!(outputs.iter().all(|(_, text)| text.contains("Exit code: 1")), "{outputs:?}");
}

#[tokio::test]
async fn s63_tools_follow_the_selection() {
    let harness = Harness::new(Setup::new(&BOTH, vec![])).await;
    let thread = harness.start(&[0]).await;
    for indices in [&[0][..], &[0, 1], &[], &[1]] {
        thread.input(NewInput { selection: Some(harness.select(indices)), ..NewInput::text("go") }).await.unwrap();
        settled(&thread).await;
        let tools = harness.model.requests().last().unwrap().body["tools"].to_string();
        assert_eq!(tools.contains("\"exec_command\""), !indices.is_empty(), "{indices:?}");
        assert_eq!(tools.contains("environment_id"), indices.len() > 1, "{indices:?}");
    }
}

#[tokio::test]
async fn s64_a_command_gets_the_shell_it_names_or_that_of_its_machine() {
    let shell = |id: &str, shell: Option<&str>| {
        let mut arguments = json!({"cmd": "echo I am $0 in $(pwd)", "login": false, "environment_id": "two"});
        if let Some(shell) = shell {
            arguments["shell"] = shell.into();
        }
        call(id, "exec_command", &arguments)
    };
    let harness = Harness::new(Setup::new(&BOTH, vec![Reply::Items(vec![shell("a", Some("/bin/sh")), shell("b", None)])])).await;
    let thread = harness.start(&[0, 1]).await;
    turn(&thread, "go").await;
    let sent = harness.model.requests()[1].body["input"].to_string();
    assert!(sent.contains("I am /bin/sh in "), "{sent}");
    let context = texts(&harness, 0).into_iter().find(|text| text.starts_with("<environment_context>")).unwrap();
    let told = context.split("<shell>").nth(2).unwrap().split('<').next().unwrap().to_owned();
    assert!(sent.contains(&format!("/{told} in ")), "{told}: {sent}");
}

/// An answer for the thread is about one machine: the same command elsewhere is asked about again.
#[tokio::test]
async fn s66_s68_an_answer_holds_for_one_environment() {
    let patch = |environment: &str| {
        let text = format!("*** Begin Patch\n*** Environment ID: {environment}\n*** Add File: p\n+x\n*** End Patch");
        Reply::call("p", "apply_patch", &json!({"input": text}))
    };
    let run = |environment: &str| Reply::Items(vec![exec("e", "touch ran", Some(environment))]);
    for (kind, replies) in [("command", [run("one"), run("one"), run("two")]), ("fileChange", [patch("one"), patch("one"), patch("two")])] {
        let mut setup = Setup::new(&BOTH, replies.to_vec());
        setup.config.approval = ApprovalPolicy::Untrusted;
        let harness = Harness::new(setup).await;
        let thread = harness.start(&[0, 1]).await;
        let mut feed = thread.subscribe();
        thread.input(NewInput::text("go")).await.unwrap();
        let first = next_fact(&mut feed, asked).await;
        assert_eq!((first.kind.as_str(), first.environment.as_ref().unwrap().as_str()), (kind, "one"));
        thread.answer(first.approval, Decision::ApprovedForThread, None).await.unwrap();
        // The second goes through unasked; the third is on another machine.
        let second = next_fact(&mut feed, asked).await;
        assert_eq!(second.environment.as_ref().unwrap().as_str(), "two", "{kind}");
        thread.answer(second.approval, Decision::Denied, None).await.unwrap();
        settled(&thread).await;
        let outcomes: Vec<CallOutcome> = harness.outputs(thread.id()).await.into_iter().map(|(outcome, _)| outcome).collect();
        assert_eq!(outcomes.last(), Some(&CallOutcome::Declined), "{kind}");
        assert!(!harness.work(1).join("ran").exists() && !harness.work(1).join("p").exists());
    }
}

#[tokio::test]
async fn s67_one_path_in_two_environments_is_two_files() {
    let patch = |environment: &str, text: &str| {
        let text =
            format!("*** Begin Patch\n*** Environment ID: {environment}\n*** Update File: same.txt\n@@\n-old\n+{text}\n*** End Patch");
        call(environment, "apply_patch", &json!({"input": text}))
    };
    let missing =
        call("m", "apply_patch", &json!({"input": "*** Begin Patch\n*** Environment ID: nowhere\n*** Add File: x\n+x\n*** End Patch"}));
    let harness = Harness::new(Setup::new(&BOTH, vec![Reply::Items(vec![patch("two", "second"), patch("one", "first"), missing])])).await;
    for index in 0..2 {
        std::fs::write(harness.work(index).join("same.txt"), "old\n").unwrap();
    }
    let thread = harness.start(&[0, 1]).await;
    turn(&thread, "go").await;
    let read = |index: usize| std::fs::read_to_string(harness.work(index).join("same.txt")).unwrap();
    assert_eq!((read(0), read(1)), ("first\n".into(), "second\n".into()));
    assert!(harness.outputs(thread.id()).await.iter().any(|(_, text)| text.contains("unknown turn environment id `nowhere`")));
}

/// What a rule forbids stays forbidden, whatever was answered before.
#[tokio::test]
async fn s70_rules_beat_answers() {
    let run = |id: &str| Reply::Items(vec![exec(id, "touch it", None)]);
    let mut setup = Setup::new(&[LinkKind::Memory], vec![run("a")]);
    setup.config.approval = ApprovalPolicy::Untrusted;
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let first = next_fact(&mut feed, asked).await;
    thread.answer(first.approval, Decision::ApprovedForThread, None).await.unwrap();
    settled(&thread).await;
    assert!(harness.work(0).join("it").exists());
    std::fs::remove_file(harness.work(0).join("it")).unwrap();
    let forbid = CommandRule {
        prefix: vec![Word::One("touch".into())],
        decision: RuleDecision::Forbid,
        reason: None,
        environment: Some("one".into()),
    };
    harness.runtime.set_rules(CommandRules::new(vec![forbid]).unwrap());
    harness.model.push(run("b"));
    turn(&thread, "again").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs[1].0 == CallOutcome::Failed && outputs[1].1.contains("a rule forbids it"), "{outputs:?}");
    assert!(!harness.work(0).join("it").exists());
}

#[tokio::test]
async fn s72_pictures_come_from_the_environment_that_has_them() {
    let view = |id: &str, environment: &str| call(id, "view_image", &json!({"path": "p.png", "environment_id": environment}));
    let harness = Harness::new(Setup::new(&BOTH, vec![Reply::Items(vec![view("a", "one"), view("b", "two")])])).await;
    std::fs::write(harness.work(1).join("p.png"), outpost_testkit::PIXEL).unwrap();
    let thread = harness.start(&[0, 1]).await;
    turn(&thread, "look").await;
    let sent = harness.model.requests()[1].body["input"].as_array().unwrap().clone();
    let output = |id: &str| sent.iter().find(|item| item["call_id"] == id && !item["output"].is_null()).unwrap()["output"].clone();
    assert!(output("a").as_str().unwrap().contains("p.png"));
    assert!(output("b")[0]["image_url"].as_str().unwrap().starts_with("data:image/png;base64,"));
}

/// Tools that touch files go through the same fence as commands.
#[tokio::test]
async fn s74_no_tool_follows_a_link_out_of_the_workspace() {
    let outside = tempfile::Builder::new().prefix("outpost-loop-").tempdir_in("/var/tmp").unwrap();
    std::fs::write(outside.path().join("file.txt"), "theirs\n").unwrap();
    let work = tempfile::Builder::new().prefix("outpost-loop-").tempdir_in("/var/tmp").unwrap();
    std::os::unix::fs::symlink(outside.path(), work.path().join("door")).unwrap();
    let patch = |text: &str| json!({"input": format!("*** Begin Patch\n{text}\n*** End Patch")});
    let calls = vec![
        call("a", "apply_patch", &patch("*** Update File: door/file.txt\n@@\n-theirs\n+ours")),
        call("b", "apply_patch", &patch("*** Add File: door/new.txt\n+ours")),
        call("c", "apply_patch", &patch("*** Delete File: door/file.txt")),
    ];
    let mut setup = Setup::new(&[LinkKind::WebSocket], vec![Reply::Items(calls)]);
    setup.config.sandbox = SandboxMode::workspace_write();
    let harness = Harness::new(setup).await;
    let place = outpost_wire::intent::Attachment::new(id("one"), outpost_wire::PathUri::from_native(work.path()).unwrap());
    let thread = harness.start_in(vec![place]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs.iter().all(|(outcome, _)| *outcome == CallOutcome::Failed), "{outputs:?}");
    assert_eq!(std::fs::read_to_string(outside.path().join("file.txt")).unwrap(), "theirs\n");
    assert!(!outside.path().join("new.txt").exists());
}

#[tokio::test]
async fn s75_a_users_command_needs_a_place() {
    let harness = Harness::local(vec![]).await;
    let thread = harness.start(&[]).await;
    let refused = thread.shell("touch x".into(), None).await;
    assert!(matches!(&refused, Err(CommandError::Invalid(why)) if why.to_string().contains("no environment is selected")), "{refused:?}");
    let unknown = thread.shell("touch x".into(), Some("nowhere".into())).await;
    assert!(matches!(&unknown, Err(CommandError::Invalid(why)) if why.to_string().contains("nowhere")), "{unknown:?}");
    assert!(harness.turn_ends(thread.id()).await.is_empty());
    harness.runtime.unload(thread.id(), InterruptReason::Shutdown).await;
}
