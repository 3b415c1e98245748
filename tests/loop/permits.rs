//! Permissions that a model asks for and a user grants.

use std::path::Path;

use outpost_runtime::ThreadActivity;
use outpost_runtime::live::{LiveThread, NewInput};
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::policy::{AllowedQuestions, ApprovalPolicy, Granular};
use outpost_testkit::LinkKind;
use outpost_testkit::model::Reply;
use outpost_thread::{ApprovalAsked, CallOutcome, Decision, Fact, GrantScope, PermissionsGranted, Raw};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Harness, Setup, asked, is_completed, next_fact, settled, turn};

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

fn detail(asked: &ApprovalAsked) -> Value {
    asked.detail.as_ref().unwrap().raw().read().unwrap()
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

/// `/tmp` in a sandbox is the session's own: a file of the machine's is asked for, shown and granted like any other.
#[tokio::test]
async fn a_file_below_the_machines_tmp_is_asked_for() {
    let data = tempfile::tempdir_in("/tmp").unwrap();
    let file = data.path().join("file");
    std::fs::write(&file, "of the machine").unwrap();
    let cat = |id: &str| run(id, &format!("cat {}", file.display()));
    let asks = request("b", &json!({"file_system": {"read": [file]}}));
    let mut setup = Setup::new(&[LinkKind::Memory], vec![cat("a"), asks, cat("c"), Reply::message("done")]);
    setup.config.sandbox = SandboxMode::workspace_write();
    setup.config.approval = ApprovalPolicy::OnRequest;
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let question = answer(&thread, Decision::Approved, None).await;
    assert_eq!(detail(&question)["permissions"]["fileSystem"]["read"], json!([file]));
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs[0].1.contains("No such file") && outputs[2].1.contains("of the machine"), "{outputs:?}");
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
    let quiet = Granular { granular: AllowedQuestions { request_permissions: false, ..AllowedQuestions::default() } };
    for policy in [ApprovalPolicy::Never, ApprovalPolicy::Granular(quiet)] {
        let data = TempDir::new().unwrap();
        let harness = with_policy(policy, &[LinkKind::Memory], vec![request("a", &writing(data.path())), Reply::message("done")]).await;
        let thread = harness.start(&[0]).await;
        assert_eq!(turn(&thread, "go").await, ThreadActivity::Idle);
        let (outcome, text) = harness.outputs(thread.id()).await.remove(0);
        assert_eq!(outcome, CallOutcome::Declined);
        assert!(text.contains("no question was asked"), "{text}");
        assert!(!harness.model.requests()[0].body.to_string().contains("request_permissions"), "it is not offered");
        assert!(!harness.entries(thread.id()).await.iter().any(|entry| matches!(entry.fact, Fact::ApprovalAsked(_))));
    }
}

/// A grant is for one environment: commands and patches there have it, those elsewhere do not.
#[tokio::test]
async fn a_grant_holds_in_its_environment_only() {
    let data = TempDir::new().unwrap();
    let path = |name: &str| data.path().join(name).display().to_string();
    let touch = |id: &str, environment: &str, name: &str| {
        Reply::call(id, "exec_command", &json!({"cmd": format!("touch {}", path(name)), "environment_id": environment}))
    };
    let patch = |id: &str, environment: &str, name: &str| {
        let text = format!("*** Begin Patch\n*** Environment ID: {environment}\n*** Add File: {}\n+x\n*** End Patch", path(name));
        Reply::call(id, "apply_patch", &json!({"input": text}))
    };
    for remote in [LinkKind::WebSocket, LinkKind::Stdio] {
        let ask = json!({"environment_id": "two", "permissions": writing(data.path())});
        let replies = vec![
            Reply::call("a", "request_permissions", &ask),
            touch("b", "one", "command-one"),
            touch("c", "two", "command-two"),
            patch("d", "one", "patch-one"),
            patch("e", "two", "patch-two"),
            Reply::message("done"),
        ];
        let harness = harness(&[LinkKind::Memory, remote], replies).await;
        let thread = harness.start(&[0, 1]).await;
        let mut feed = thread.subscribe();
        thread.input(NewInput::text("go")).await.unwrap();
        let question = next_fact(&mut feed, asked).await;
        assert_eq!(question.environment.unwrap().as_str(), "two");
        thread.answer(question.approval, Decision::Approved, None).await.unwrap();
        // Where nothing was granted the user is asked about the patch.
        let question = next_fact(&mut feed, asked).await;
        assert_eq!((question.kind.as_str(), question.environment.unwrap().as_str()), ("fileChange", "one"));
        thread.answer(question.approval, Decision::Denied, None).await.unwrap();
        settled(&thread).await;
        let made: Vec<bool> =
            ["command-one", "command-two", "patch-one", "patch-two"].iter().map(|name| Path::new(&path(name)).exists()).collect();
        assert_eq!(made, [false, true, false, true], "{remote:?}: {:?}", harness.outputs(thread.id()).await);
        for name in ["command-two", "patch-two"] {
            std::fs::remove_file(path(name)).unwrap();
        }
    }
}

/// What is granted for the thread is there after a restart, for the same machine only, and not in a fork.
#[tokio::test]
async fn what_is_granted_for_the_thread_survives_a_restart() {
    let data = TempDir::new().unwrap();
    let touch = |id: &str, name: &str| run(id, &format!("touch {}", data.path().join(name).display()));
    let harness =
        harness(&[LinkKind::WebSocket, LinkKind::WebSocket], vec![request("a", &writing(data.path())), Reply::message("done")]).await;
    let thread = harness.start(&[0]).await;
    answer(&thread, Decision::ApprovedForThread, None).await;
    assert_eq!(grants(&harness, &thread).await[0].scope, GrantScope::Thread);
    assert!(harness.outputs(thread.id()).await[0].1.contains("rest of this thread"));
    let again = harness.restarted().await;
    let live = again.take_over(thread.id()).await.unwrap();
    let attempt = async |live: &LiveThread, name: &str| {
        harness.model.push(touch(name, name));
        harness.model.push(Reply::message("done"));
        turn(live, "go on").await;
        data.path().join(name).exists()
    };
    assert!(attempt(&live, "resumed").await);
    let point = outpost_thread::ForkPoint::Interrupted(outpost_thread::Marker::Off);
    let fork = again.fork(outpost_runtime::ForkThread::new(thread.id(), point)).await.unwrap();
    assert!(!attempt(&fork, "forked").await);
    // Another machine answers under the name.
    let id = outpost_wire::intent::EnvironmentId::parse("one").unwrap();
    again.registry().attach(id.clone(), harness.way(1), outpost_environment::ConnectPolicy::Lazy).unwrap();
    again.registry().info(&id).await.unwrap();
    assert!(!attempt(&live, "stranger").await);
    // And again the one that it was granted for.
    again.registry().attach(id.clone(), harness.way(0), outpost_environment::ConnectPolicy::Lazy).unwrap();
    again.registry().info(&id).await.unwrap();
    assert!(attempt(&live, "returned").await);
}

#[tokio::test]
async fn relative_paths_unknown_ids_and_rubbish() {
    let data = TempDir::new().unwrap();
    std::os::unix::fs::symlink("/etc", data.path().join("link")).unwrap();
    let ask = |id: &str, arguments: Value| Reply::call(id, "request_permissions", &arguments);
    let harness = harness(
        &[LinkKind::Memory],
        vec![
            ask("a", json!({"environment_id": "nowhere", "permissions": writing(data.path())})),
            ask("b", json!({"permissions": {"filesystem": {"write": ["/x"]}}})),
            ask("c", json!({"permissions": {}})),
            ask("d", json!({"reason": "none"})),
            ask("e", json!({"permissions": {"file_system": {"write": ["here"], "read": ["/etc"]}}})),
            ask("f", json!({"permissions": {"file_system": {"write": [".git"]}}})),
            Reply::message("done"),
        ],
    )
    .await;
    std::fs::create_dir(harness.work(0).join(".git")).unwrap();
    let thread = harness.start(&[0]).await;
    let question = answer(&thread, Decision::Approved, None).await;
    assert_eq!(detail(&question)["permissions"]["fileSystem"]["write"], json!([harness.work(0).join(".git")]));
    let outputs = harness.outputs(thread.id()).await;
    let expected =
        ["unknown turn environment id `nowhere`", "filesystem", "ask for nothing", "missing field `permissions`", "allowed already"];
    for ((_, text), expected) in outputs.iter().zip(expected) {
        assert!(text.contains(expected), "{text}");
    }
    assert!(outputs[5].1.contains("Granted"), "{outputs:?}");
}

/// What the user grants and the machine cannot give is told, and stands in nobody's way afterwards.
#[tokio::test]
async fn what_the_environment_cannot_give_is_told() {
    let grounds = TempDir::new().unwrap();
    let root = grounds.path().canonicalize().unwrap();
    for name in ["work", "given", "kept"] {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    std::os::unix::fs::symlink(root.join("kept"), root.join("link")).unwrap();
    let ceiling = root.join("ceiling.toml");
    let rules = format!("network = 'restricted'\nread = ['/']\nwrite = ['{0}/work', '{0}/given']\n", root.display());
    std::fs::write(&ceiling, rules).unwrap();
    let arguments = ["--ceiling", ceiling.to_str().unwrap()];
    let setup = outpost_testkit::bench::Setup { arguments: &arguments, ..outpost_testkit::bench::Setup::default() };
    let bench = std::sync::Arc::new(outpost_testkit::Bench::with_setup(LinkKind::WebSocket, crate::harness::OUTPOST, &setup));
    let paths: Vec<_> = ["given", "kept", "link", "missing"].iter().map(|name| root.join(name)).collect();
    let wanted = json!({"network": {"enabled": true}, "file_system": {"write": paths}});
    let script = "for name in given kept link; do touch ../$name/x; done; touch here";
    let harness = harness(&[], vec![request("a", &wanted), run("b", script), Reply::message("done")]).await;
    let id = outpost_wire::intent::EnvironmentId::parse("held").unwrap();
    harness
        .runtime
        .registry()
        .attach(id.clone(), crate::harness::connector("held", bench), outpost_environment::ConnectPolicy::Lazy)
        .unwrap();
    let cwd = outpost_wire::PathUri::from_native(&root.join("work")).unwrap();
    let thread = harness.start_in(vec![outpost_wire::intent::Attachment::new(id, cwd)]).await;
    answer(&thread, Decision::ApprovedForThread, None).await;
    let told = &harness.outputs(thread.id()).await[0].1;
    let (given, refused) = told.split_once("could not give").unwrap();
    assert!(given.contains("given") && !given.contains("kept"), "{told}");
    for expected in ["network: ", "ceiling", "its real path is", "does not exist"] {
        assert!(refused.contains(expected), "{expected}: {told}");
    }
    let made = |name: &str| root.join(name).exists();
    assert_eq!((made("given/x"), made("kept/x"), made("work/here")), (true, false, true), "{:?}", harness.outputs(thread.id()).await);
}

/// A place that was granted and is then made a link to another one gives nothing of that one.
#[tokio::test]
async fn a_grant_does_not_follow_a_link_that_is_put_in_its_place() {
    let (other, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let place = outside.path().canonicalize().unwrap().join("place");
    std::fs::create_dir(&place).unwrap();
    let harness = harness(
        &[LinkKind::Memory],
        vec![
            request("a", &writing(&place)),
            run("b", &format!("touch {}/inside", place.display())),
            Reply::message("done"),
            run("c", &format!("touch {}/direct {}/through; touch here", other.path().display(), place.display())),
            Reply::message("done"),
        ],
    )
    .await;
    let thread = harness.start(&[0]).await;
    answer(&thread, Decision::ApprovedForThread, None).await;
    assert!(place.join("inside").exists(), "{:?}", harness.outputs(thread.id()).await);
    std::fs::rename(&place, outside.path().join("away")).unwrap();
    std::os::unix::fs::symlink(other.path(), &place).unwrap();
    turn(&thread, "again").await;
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0, "{:?}", harness.outputs(thread.id()).await);
    assert!(harness.work(0).join("here").exists(), "{:?}", harness.outputs(thread.id()).await);
}

fn additional(id: &str, command: &str, permissions: &Value) -> Reply {
    let arguments = json!({
        "cmd": command, "sandbox_permissions": "with_additional_permissions", "additional_permissions": permissions, "justification": "must",
    });
    Reply::call(id, "exec_command", &arguments)
}

#[tokio::test]
async fn one_command_gets_exactly_what_it_asked_for() {
    let (data, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let file = other.path().join("file");
    std::fs::write(&file, "").unwrap();
    let script = format!("touch {}/x; touch {}/y; touch here; true", data.path().display(), other.path().display());
    let replies = vec![
        additional("a", &script, &writing(data.path())),
        run("b", &format!("touch {}/later", data.path().display())),
        // The same again is granted for the thread; with other permissions it is another question.
        additional("c", &script, &writing(data.path())),
        additional("d", &script, &writing(other.path())),
        // One file is enough, too.
        additional("e", &format!("echo more > {}", file.display()), &writing(&file)),
        Reply::message("done"),
    ];
    let harness = harness(&[LinkKind::WebSocket], replies).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let question = next_fact(&mut feed, asked).await;
    assert_eq!(question.kind.as_str(), "command");
    let shown = detail(&question);
    assert_eq!(shown["additionalPermissions"]["fileSystem"]["write"], json!([data.path()]));
    assert_eq!((&shown["reason"], &shown["escalated"]), (&json!("must"), &json!(false)));
    thread.answer(question.approval, Decision::ApprovedForThread, None).await.unwrap();
    let question = next_fact(&mut feed, asked).await;
    assert_eq!(question.call.as_ref().unwrap().as_str(), "d");
    thread.answer(question.approval, Decision::Denied, None).await.unwrap();
    let question = next_fact(&mut feed, asked).await;
    thread.answer(question.approval, Decision::Approved, None).await.unwrap();
    settled(&thread).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "more\n", "{:?}", harness.outputs(thread.id()).await);
    let exists = |directory: &TempDir, name: &str| directory.path().join(name).exists();
    assert!(exists(&data, "x") && harness.work(0).join("here").exists());
    assert!(!exists(&other, "y") && !exists(&data, "later"), "{:?}", harness.outputs(thread.id()).await);
    assert!(grants(&harness, &thread).await.is_empty());
}

#[tokio::test]
async fn additional_permissions_are_refused_where_nobody_is_asked_and_checked_everywhere() {
    let data = TempDir::new().unwrap();
    let harness = with_policy(
        ApprovalPolicy::Never,
        &[LinkKind::Memory],
        vec![
            additional("a", "touch ran", &writing(data.path())),
            additional("b", "touch ran", &json!({"everything": true})),
            Reply::call("c", "exec_command", &json!({"cmd": "touch ran", "sandbox_permissions": "with_additional_permissions"})),
            Reply::call("d", "exec_command", &json!({"cmd": "touch ran", "additional_permissions": writing(data.path())})),
            Reply::call("e", "exec_command", &json!({"cmd": "touch ran", "sandbox_permissions": "all"})),
            // What the sandbox gives anyway needs no question.
            additional("f", "touch fine", &json!({"file_system": {"write": ["."], "read": ["/etc"]}})),
            Reply::message("done"),
        ],
    )
    .await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    let expected = ["`never`", "everything", "needs `additional_permissions`", "count only with", "unknown variant `all`"];
    for ((outcome, text), expected) in outputs.iter().zip(expected) {
        assert!(*outcome == CallOutcome::Failed && text.contains(expected), "{expected}: {text}");
    }
    assert!(!harness.work(0).join("ran").exists() && harness.work(0).join("fine").exists(), "{outputs:?}");
}

#[tokio::test]
async fn a_question_for_permissions_survives_a_restart() {
    let data = TempDir::new().unwrap();
    let touch = run("b", &format!("touch {}/x", data.path().display()));
    let harness = harness(&[LinkKind::WebSocket], vec![request("a", &writing(data.path())), touch, Reply::message("done")]).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let question = next_fact(&mut feed, asked).await;
    assert_eq!(thread.status(), ThreadActivity::Active { waits_for_approval: true, waits_for_input: false });
    let again = harness.restarted().await;
    let thread = again.take_over(thread.id()).await.unwrap();
    assert_eq!(thread.snapshot().await.unwrap().turn.unwrap().approvals[0].id, question.approval);
    thread.answer(question.approval, Decision::Approved, None).await.unwrap();
    settled(&thread).await;
    assert!(data.path().join("x").exists());
}

/// Wherever a thread is cut after the answer, it ends with one grant and with what the grant was for.
#[tokio::test]
async fn cut_after_any_entry_the_grant_is_there_once() {
    let data = TempDir::new().unwrap();
    let touch = || run("b", &format!("touch {}/x", data.path().display()));
    let harness = harness(&[LinkKind::WebSocket], vec![request("a", &writing(data.path())), touch(), Reply::message("done")]).await;
    let thread = harness.start(&[0]).await;
    answer(&thread, Decision::ApprovedForThread, Some(json!({"permissions": {"fileSystem": {"write": [data.path()]}}}))).await;
    let journal = harness.entries(thread.id()).await;
    let at = |wanted: fn(&Fact) -> bool| journal.iter().position(|entry| wanted(&entry.fact)).unwrap();
    let (answered, ended) = (at(|fact| matches!(fact, Fact::ApprovalAnswered(_))), at(|fact| matches!(fact, Fact::CallFinished(_))));
    assert!(ended - answered >= 3, "started, granted, finished");
    for cut in answered..=ended {
        std::fs::remove_file(data.path().join("x")).unwrap();
        let store = crate::harness::memory();
        let lease = store.create(thread.id()).await.unwrap();
        store.append(&lease, journal[..=cut].to_vec(), outpost_store::Need::Stored).await.unwrap();
        let runtime = harness.restarted_on(store);
        harness.model.push(touch());
        harness.model.push(Reply::message("done"));
        let live = runtime.take_over(thread.id()).await.unwrap();
        settled(&live).await;
        assert!(data.path().join("x").exists(), "cut after {:?}", journal[cut].fact.kind());
        let again = runtime.store().history(thread.id(), 0).await.unwrap().rest().await.unwrap().entries;
        let granted = again.iter().filter(|entry| matches!(entry.fact, Fact::PermissionsGranted(_))).count();
        // Between the fact and the end of its call the second one finds that nothing is left to grant.
        assert_eq!(granted, 1, "cut after {:?}", journal[cut].fact.kind());
    }
}
