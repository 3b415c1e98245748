//! What a thread sees of its servers: who is asked, what is told, what is kept apart.

use outpost_environment::{ConnectPolicy, Connector, EnvironmentState};
use outpost_rpc::link::ws;
use outpost_runtime::StartThread;
use outpost_runtime::feed::{FeedReader, Read};
use outpost_runtime::live::{LiveThread, NewInput, ThreadActivity, ThreadEvent};
use outpost_runtime::mcp::McpEvent;
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::policy::ApprovalPolicy;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::{Reply, call};
use outpost_testkit::{Bench, Cutter, LinkKind, Setup as BenchSetup};
use outpost_thread::{ApprovalAsked, CallOutcome, Decision, Fact, Raw};
use outpost_wire::PathUri;
use outpost_wire::intent::{CapabilityRoot, EnvironmentId};
use serde_json::{Value, json};

use crate::harness::{Harness, is_completed, next_fact, settled, turn};
use crate::support::{Files, harness, offered, server, setup};

async fn asked(feed: &mut FeedReader<ThreadEvent>) -> ApprovalAsked {
    next_fact(feed, |fact| if let Fact::ApprovalAsked(asked) = fact { Some((**asked).clone()) } else { None }).await
}

fn detail(asked: &ApprovalAsked) -> Value {
    asked.detail.as_ref().unwrap().raw().read().unwrap()
}

async fn with_policy(policy: ApprovalPolicy, replies: Vec<Reply>) -> (Harness, LiveThread, FeedReader<ThreadEvent>) {
    let mut setup = setup(&[LinkKind::Memory], &Files::new(json!({"s": server("good")})), replies);
    setup.config.approval = policy;
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    (harness, thread, feed)
}

#[tokio::test]
async fn a_tool_that_destroys_is_asked_about_once() {
    let twice = vec![Reply::call("a", "mcp__s__destroy", &json!({})), Reply::call("b", "mcp__s__destroy", &json!({"x": 1}))];
    let (harness, thread, mut feed) = with_policy(ApprovalPolicy::OnRequest, twice).await;
    let question = asked(&mut feed).await;
    assert_eq!(question.kind.as_str(), "mcpTool");
    let detail = detail(&question);
    assert_eq!((&detail["server"], &detail["tool"], &detail["environmentId"]), (&json!("s"), &json!("destroy"), &json!("one")));
    thread.answer(question.approval, Decision::ApprovedForThread, None).await.unwrap();
    settled(&thread).await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs, vec![(CallOutcome::Completed, "called destroy".to_owned()); 2]);
}

#[tokio::test]
async fn what_the_user_says_no_to_does_not_run() {
    let (harness, thread, mut feed) =
        with_policy(ApprovalPolicy::Untrusted, vec![Reply::call("a", "mcp__s__echo", &json!({"text": "x"}))]).await;
    let question = asked(&mut feed).await;
    thread.answer(question.approval, Decision::Denied, None).await.unwrap();
    settled(&thread).await;
    assert_eq!(harness.outputs(thread.id()).await[0].0, CallOutcome::Declined);
}

#[tokio::test]
async fn nobody_is_asked_where_nobody_may_be() {
    let replies = vec![Reply::call("a", "mcp__s__destroy", &json!({})), Reply::call("b", "mcp__s__ask", &json!({}))];
    let (harness, thread, _) = with_policy(ApprovalPolicy::Never, replies).await;
    settled(&thread).await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs[0], (CallOutcome::Completed, "called destroy".into()));
    assert_eq!(outputs[1], (CallOutcome::Completed, r#"{"action": "decline"}"#.into()));
}

#[tokio::test]
async fn progress_reaches_clients() {
    let (harness, thread, mut feed) = with_policy(ApprovalPolicy::OnRequest, vec![Reply::call("a", "mcp__s__progress", &json!({}))]).await;
    settled(&thread).await;
    let mut notes = Vec::new();
    while let Some(Read::Event(event)) = feed.try_next() {
        if let ThreadEvent::Mcp(McpEvent::Progress { call, progress, total, message }) = event {
            notes.push((call, progress, total, message.unwrap()));
        }
    }
    assert_eq!(notes, [("a".into(), 1.0, Some(2.0), "step 1".into()), ("a".into(), 2.0, Some(2.0), "step 2".into())]);
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, "there".into())]);
}

#[tokio::test]
async fn a_question_of_a_server_is_put_to_the_user() {
    let (harness, thread, mut feed) = with_policy(ApprovalPolicy::OnRequest, vec![Reply::call("a", "mcp__s__ask", &json!({}))]).await;
    let question = asked(&mut feed).await;
    assert_eq!((question.kind.as_str(), &question.call), ("mcpElicitation", &None));
    let detail = detail(&question);
    assert_eq!((&detail["server"], &detail["callId"]), (&json!("s"), &json!("a")));
    assert_eq!(detail["request"]["message"], "Which colour?");
    assert_eq!(detail["request"]["requestedSchema"]["required"], json!(["colour"]));
    assert_eq!(thread.status(), ThreadActivity::Active { waits_for_approval: false, waits_for_input: true });
    let answer = Raw::from(json!({"content": {"colour": "blue"}}));
    thread.answer(question.approval, Decision::Approved, Some(answer)).await.unwrap();
    settled(&thread).await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs, [(CallOutcome::Completed, r#"{"action": "accept", "content": {"colour": "blue"}}"#.into())]);
}

#[tokio::test]
async fn a_question_does_not_outlive_its_call() {
    let (harness, thread, mut feed) = with_policy(ApprovalPolicy::OnRequest, vec![Reply::call("a", "mcp__s__ask", &json!({}))]).await;
    let question = asked(&mut feed).await;
    // The program ends without a word; another one takes the thread up.
    let restarted = harness.restarted().await;
    let taken = restarted.take_over(thread.id()).await.unwrap();
    assert_eq!(settled(&taken).await, ThreadActivity::Idle);
    assert!(taken.answer(question.approval.clone(), Decision::Approved, None).await.is_err());
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs[0].0, CallOutcome::Lost, "{outputs:?}");
    let entries = harness.entries(thread.id()).await;
    let ended = entries.iter().any(|entry| matches!(&entry.fact, Fact::ApprovalAnswered(answered) if answered.approval == question.approval && answered.decision == Decision::TimedOut));
    assert!(ended);
}

#[tokio::test]
async fn resources_are_listed_and_read() {
    let replies = vec![
        Reply::Items(vec![
            call("a", "list_mcp_resources", &json!({})),
            call("b", "list_mcp_resource_templates", &json!({"server": "s"})),
            call("c", "read_mcp_resource", &json!({"server": "s", "uri": "memo:one"})),
            call("d", "read_mcp_resource", &json!({"server": "s", "uri": "memo:two"})),
            call("e", "read_mcp_resource", &json!({"server": "other", "uri": "memo:one"})),
        ]),
        Reply::message("done"),
    ];
    let harness = harness(json!({"s": server("good")}), replies).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    assert!(offered(&harness, 0).contains(&"read_mcp_resource".to_owned()));
    let outputs: Vec<String> = harness.outputs(thread.id()).await.into_iter().map(|(_, text)| text).collect();
    let has = |text: &str| outputs.iter().any(|output| output.contains(text));
    assert!(has("\"uri\":\"memo:one\"") && has("\"uriTemplate\":\"memo:{name}\"") && has("\"server\":\"s\""), "{outputs:?}");
    assert!(outputs.contains(&"the memo".to_owned()), "{outputs:?}");
    assert!(has("there is no memo:two") && has("there is no MCP server `other`; there are: s"), "{outputs:?}");
}

#[tokio::test]
async fn a_changed_list_is_seen_by_the_next_step_and_not_by_this_one() {
    let replies = vec![
        Reply::Items(vec![call("a", "mcp__s__grow", &json!({})), call("b", "mcp__s__grown", &json!({}))]),
        Reply::call("c", "mcp__s__grown", &json!({})),
    ];
    let harness = harness(json!({"s": server("good")}), replies).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs.iter().any(|(_, text)| text.contains("no tool `mcp__s__grown` in this step")), "{outputs:?}");
    assert_eq!(outputs.last().unwrap(), &(CallOutcome::Completed, "called grown".into()), "{outputs:?}");
    assert!(!offered(&harness, 0).contains(&"mcp__s__grown".to_owned()));
    assert!(offered(&harness, 1).contains(&"mcp__s__grown".to_owned()));
}

#[tokio::test]
async fn only_what_is_enabled_is_offered() {
    let (mut some, mut none, mut off) = (server("good"), server("good"), server("good"));
    some["enabled_tools"] = json!(["echo", "pid"]);
    some["disabled_tools"] = json!(["pid"]);
    none["disabled_tools"] = json!(["echo"]);
    off["enabled"] = json!(false);
    let harness = harness(json!({"some": some, "none": none, "off": off}), vec![]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let offered = offered(&harness, 0);
    let of = |server: &str| offered.iter().filter(|name| name.starts_with(&format!("mcp__{server}__"))).count();
    assert_eq!((of("some"), of("off")), (1, 0));
    assert!(of("none") > 5 && !offered.contains(&"mcp__none__echo".to_owned()));
}

#[tokio::test]
async fn a_server_is_given_few_variables_and_its_own_directory() {
    let (mut plain, mut named) = (server("good"), server("good"));
    plain["env"] = json!({"GIVEN": "yes"});
    named["env_vars"] = json!(["CARGO_MANIFEST_DIR"]);
    named["cwd"] = json!("/");
    let ask = |id: &str, server: &str, name: &str| call(id, &format!("mcp__{server}__variable"), &json!({"name": name}));
    let replies = vec![Reply::Items(vec![
        ask("a", "plain", "GIVEN"),
        ask("b", "plain", "CARGO_MANIFEST_DIR"),
        ask("c", "named", "CARGO_MANIFEST_DIR"),
        ask("d", "plain", "OUTPOST_ENVIRONMENT_ID"),
        call("e", "mcp__named__where", &json!({})),
        call("f", "mcp__plain__where", &json!({})),
    ])];
    // The executor in memory has the variables of this process.
    let harness = harness(json!({"plain": plain, "named": named}), replies).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let entries = harness.entries(thread.id()).await;
    let output = |id: &str| {
        let finished = entries.iter().find_map(|entry| match &entry.fact {
            Fact::CallFinished(finished) if finished.call.as_str() == id => Some(crate::harness::told(finished)),
            _ => None,
        });
        finished.unwrap()
    };
    assert_eq!((output("a"), output("b"), output("d")), ("yes".into(), "not set".into(), "one".into()));
    assert_eq!(output("e"), "/");
    assert_eq!(output("f"), harness.work(0).canonicalize().unwrap().display().to_string());
    assert_ne!(output("c"), "not set");
}

#[tokio::test]
async fn a_server_works_under_the_sandbox_of_its_thread() {
    let outside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let target = outside.path().join("file");
    let write = |id: &str, path: &str| call(id, "mcp__s__write", &json!({"path": path}));
    let replies = vec![Reply::Items(vec![write("a", &target.display().to_string()), write("b", "inside")])];
    let files = Files::new(json!({"s": {"command": "python3", "args": ["server.py", "good"], "environment_id": "one"}}));
    let mut setup = setup(&[LinkKind::WebSocket], &files, replies);
    setup.config.sandbox = SandboxMode::workspace_write();
    let harness = Harness::new(setup).await;
    std::fs::copy(crate::support::SERVER, harness.work(0).join("server.py")).unwrap();
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs.iter().filter(|(outcome, _)| *outcome == CallOutcome::Failed).count(), 1, "{outputs:?}");
    assert!(!target.exists() && harness.work(0).join("inside").exists(), "{outputs:?}");
}

#[tokio::test]
async fn a_project_declares_servers_that_run_where_it_lies() {
    let replies = vec![Reply::call("a", "mcp__project__where", &json!({}))];
    let harness = Harness::new(setup(&[LinkKind::Memory, LinkKind::WebSocket], &Files::new(json!({})), replies)).await;
    let declared = json!({"mcpServers": {
        "project": {"command": "python3", "args": [crate::support::SERVER, "good"]},
        "thief": {"type": "http", "url": "http://127.0.0.1:9/mcp", "bearer_token_env_var": "HOME"},
    }});
    std::fs::write(harness.work(1).join(".mcp.json"), declared.to_string()).unwrap();
    let thread = harness.start(&[0, 1]).await;
    turn(&thread, "go").await;
    let there = harness.work(1).canonicalize().unwrap().display().to_string();
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, there)]);
    let status = harness.runtime.mcp_status(Some(thread.id()), outpost_runtime::mcp::refresh::StatusDetail::Full).await.unwrap();
    assert_eq!(
        status.iter().map(|server| (server.name.as_str(), server.state.as_str())).collect::<Vec<_>>(),
        [("project", "ready"), ("thief", "failed")]
    );
    assert_eq!(status[0].environment_id.as_deref(), Some("two"));
    assert_eq!((status[0].resources.len(), status[0].resource_templates.len(), status[0].auth_status.as_str()), (1, 1, "unsupported"));
    assert!(status[1].error.as_ref().unwrap().contains("bearer_token_env_var"));
}

#[tokio::test]
async fn a_plugin_brings_its_server_along() {
    let replies = vec![Reply::call("a", "mcp__plugged__where", &json!({}))];
    let harness = Harness::new(setup(&[LinkKind::WebSocket], &Files::new(json!({})), replies)).await;
    let plugin = harness.work(0).join("plugin");
    std::fs::create_dir_all(plugin.join(".claude-plugin")).unwrap();
    std::fs::write(plugin.join(".claude-plugin/plugin.json"), r#"{"name": "tools"}"#).unwrap();
    std::fs::copy(crate::support::SERVER, plugin.join("server.py")).unwrap();
    let declared = json!({"mcpServers": {"plugged": {"command": "python3", "args": ["${CLAUDE_PLUGIN_ROOT}/server.py"]}}});
    std::fs::write(plugin.join(".mcp.json"), declared.to_string()).unwrap();
    let mut start = StartThread::new();
    start.created.selection = Some(harness.select(&[0]));
    let id = EnvironmentId::parse("one").unwrap();
    start.created.capability_roots = vec![CapabilityRoot::new("tools", id, PathUri::from_native(&plugin).unwrap())];
    let thread = harness.runtime.start(start).await.unwrap();
    turn(&thread, "go").await;
    let there = plugin.canonicalize().unwrap().display().to_string();
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, there)]);
    let status = harness.runtime.mcp_status(Some(thread.id()), outpost_runtime::mcp::refresh::StatusDetail::Full).await.unwrap();
    assert_eq!((status[0].origin.as_str(), status[0].state.as_str()), ("plugin tools", "ready"));
}

#[tokio::test]
async fn a_project_that_cannot_be_read_is_told_and_spoils_nothing() {
    let harness = harness(json!({"s": server("good")}), vec![]).await;
    std::fs::write(harness.work(0).join(".mcp.json"), "{\"mcpServers\": ").unwrap();
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    turn(&thread, "go").await;
    assert!(offered(&harness, 0).contains(&"mcp__s__echo".to_owned()));
    let mut told = Vec::new();
    while let Some(Read::Event(event)) = feed.try_next() {
        if let ThreadEvent::Mcp(McpEvent::Warning { message }) = event {
            told.push(message);
        }
    }
    assert!(told.len() == 1 && told[0].contains(".mcp.json in `one` is not valid JSON"), "{told:?}");
}

/// An environment `there`, behind a connection that can be cut.
fn attach_there(harness: &Harness, cutter: &Cutter) {
    let url = cutter.url();
    let connector = Connector::new("there", move || {
        let url = url.clone();
        async move { ws::connect(&url, &ws::ClientOptions::default()).await }
    });
    let id = EnvironmentId::parse("there").unwrap();
    harness.runtime.registry().attach(id, connector, ConnectPolicy::Lazy).unwrap();
}

/// The machine of a required server is cut off while the agent works elsewhere: the turn goes on without the server, and the next one
/// has it again.
#[tokio::test]
async fn a_required_server_whose_machine_is_cut_off_does_not_end_a_running_turn() {
    let bench = Bench::with_setup(LinkKind::WebSocket, crate::harness::OUTPOST, &BenchSetup::default());
    let cutter = Cutter::start(bench.address(), vec![]).await;
    let mut there = server("good");
    (there["environment_id"], there["required"]) = (json!("there"), json!(true));
    let waits = json!({"cmd": "while [ ! -e go ]; do sleep 0.02; done", "login": false, "yield_time_ms": 30_000});
    let replies = vec![
        Reply::call("a", "exec_command", &waits),
        Reply::call("b", "mcp__s__echo", &json!({"text": "x"})),
        Reply::call("c", "exec_command", &json!({"cmd": "echo on", "login": false})),
        Reply::message("done"),
        Reply::call("d", "mcp__s__echo", &json!({"text": "again"})),
    ];
    let mut setup = setup(&[LinkKind::Memory], &Files::new(json!({"s": there})), replies);
    setup.config.mcp.limits.patience = std::time::Duration::from_millis(500);
    setup.config.mcp.limits.fallen = std::time::Duration::ZERO;
    let harness = Harness::new(setup).await;
    attach_there(&harness, &cutter);
    let id = EnvironmentId::parse("there").unwrap();
    // It is there before the turn begins: what is required is not waited for without an end.
    harness.runtime.registry().info(&id).await.unwrap();
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    next_fact(&mut feed, |fact| matches!(fact, Fact::CallStarted(_)).then_some(())).await;
    assert!(offered(&harness, 0).contains(&"mcp__s__echo".to_owned()));
    cutter.cut();
    let is_ready = || matches!(harness.runtime.registry().standing(&id), EnvironmentState::Ready);
    eventually("the connection is lost", || !is_ready()).await;
    std::fs::write(harness.work(0).join("go"), "").unwrap();
    settled(&thread).await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(is_completed(&harness.turn_ends(thread.id()).await[0]), "{outputs:?}");
    assert!(outputs[1].0 == CallOutcome::Failed && outputs[2].1.contains("on"), "{outputs:?}");
    cutter.mend();
    eventually("the connection is back", is_ready).await;
    turn(&thread, "again").await;
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs[3], (CallOutcome::Completed, "again".into()), "{outputs:?}");
}

#[tokio::test]
async fn a_call_survives_a_lost_connection() {
    let bench = Bench::with_setup(LinkKind::WebSocket, crate::harness::OUTPOST, &BenchSetup::default());
    let cutter = Cutter::start(bench.address(), vec![]).await;
    let mut there = server("good");
    there["environment_id"] = json!("there");
    let harness = harness(json!({"s": there}), vec![Reply::call("a", "mcp__s__slow", &json!({"seconds": 2}))]).await;
    attach_there(&harness, &cutter);
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    next_fact(&mut feed, |fact| matches!(fact, Fact::CallStarted(_)).then_some(())).await;
    cutter.cut();
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    cutter.mend();
    settled(&thread).await;
    assert_eq!(harness.outputs(thread.id()).await, [(CallOutcome::Completed, "awake".into())]);
    assert!(cutter.connections() > 1);
}

#[tokio::test]
async fn an_unknown_environment_is_named() {
    let mut lost = server("good");
    lost["environment_id"] = json!("nowhere");
    let harness = harness(json!({"s": lost}), vec![]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let status = harness.runtime.mcp_status(Some(thread.id()), outpost_runtime::mcp::refresh::StatusDetail::ToolsOnly).await.unwrap();
    assert!(status[0].error.as_ref().unwrap().contains("`nowhere` is not ready: missing"), "{status:?}");
}

#[tokio::test]
async fn a_step_keeps_its_binding_when_the_handle_is_replaced() {
    let harness = harness(
        json!({"s": server("good")}),
        vec![Reply::call("a", "mcp__s__pid", &json!({})), Reply::call("b", "mcp__s__pid", &json!({}))],
    )
    .await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    harness.replace(0).await;
    turn(&thread, "again").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs.iter().all(|(outcome, _)| *outcome == CallOutcome::Completed), "{outputs:?}");
}

#[tokio::test]
async fn bad_servers_of_a_client_are_refused_before_there_is_a_thread() {
    let harness = harness(json!({}), vec![]).await;
    for wrong in [json!({"x": {"command": 3}}), json!([1]), json!({"a b": {"command": "x"}})] {
        let mut start = StartThread::new();
        start.created.selection = Some(harness.select(&[0]));
        start.created.settings.other.insert("mcpServers".into(), wrong);
        assert!(harness.runtime.start(start).await.is_err());
    }
    assert!(harness.runtime.loaded().is_empty());
}
