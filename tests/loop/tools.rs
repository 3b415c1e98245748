//! Every tool.

use outpost_runtime::StartThread;
use outpost_runtime::live::NewInput;
use outpost_testkit::LinkKind;
use outpost_testkit::model::{Reply, call};
use outpost_thread::{CallOutcome, Fact, Raw};
use serde_json::{Value, json};

use crate::harness::{Harness, Setup, next_fact, settled, turn};

fn patch(text: &str) -> Value {
    json!({"input": format!("*** Begin Patch\n{text}\n*** End Patch")})
}

#[tokio::test]
async fn a_patch_changes_all_of_its_files_or_none() {
    let good = patch(
        "*** Add File: new/a.txt\n+one\n*** Update File: b.txt\n@@\n-old\n+new\n*** Delete File: c.txt\n*** Update File: d.txt\n*** Move to: e.txt\n@@\n-x\n+y",
    );
    let bad = patch("*** Add File: f.txt\n+one\n*** Update File: b.txt\n@@\n-not there\n+new");
    let harness = Harness::local(vec![Reply::call("a", "apply_patch", &good), Reply::call("b", "apply_patch", &bad)]).await;
    let work = harness.work(0).to_path_buf();
    for (name, text) in [("b.txt", "old\n"), ("c.txt", "gone\n"), ("d.txt", "x\n")] {
        std::fs::write(work.join(name), text).unwrap();
    }
    let thread = harness.start(&[0]).await;
    turn(&thread, "patch").await;
    let read = |name: &str| std::fs::read_to_string(work.join(name)).ok();
    assert_eq!((read("new/a.txt"), read("b.txt"), read("c.txt")), (Some("one\n".into()), Some("new\n".into()), None));
    assert_eq!((read("d.txt"), read("e.txt")), (None, Some("y\n".into())));
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs[1].0, CallOutcome::Failed);
    assert!(outputs[1].1.contains("Nothing was changed") && outputs[1].1.contains("not there"), "{outputs:?}");
    assert_eq!((read("f.txt"), read("b.txt")), (None, Some("new\n".into())));
}

#[tokio::test]
async fn a_patch_in_a_command_goes_to_the_same_environment() {
    let command = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: here.txt\n+x\n*** End Patch\nEOF";
    let setup = Setup::new(
        &[LinkKind::Memory, LinkKind::WebSocket],
        vec![Reply::call("a", "exec_command", &json!({"cmd": command, "environment_id": "two"}))],
    );
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0, 1]).await;
    turn(&thread, "go").await;
    assert!(harness.work(1).join("here.txt").exists() && !harness.work(0).join("here.txt").exists());
}

#[tokio::test]
async fn an_image_is_shown() {
    let harness = Harness::local(vec![Reply::Items(vec![
        call("a", "view_image", &json!({"path": "pixel.png"})),
        call("b", "view_image", &json!({"path": "text.png"})),
    ])])
    .await;
    std::fs::write(harness.work(0).join("pixel.png"), outpost_testkit::PIXEL).unwrap();
    std::fs::write(harness.work(0).join("text.png"), b"plain").unwrap();
    let thread = harness.start(&[0]).await;
    turn(&thread, "look").await;
    let sent = harness.model.requests()[1].body["input"].as_array().unwrap().clone();
    let image = sent.iter().find(|item| item["call_id"] == "a" && item["type"] == "function_call_output").unwrap();
    assert!(image["output"][0]["image_url"].as_str().unwrap().starts_with("data:image/png;base64,iVBOR"));
    assert!(harness.outputs(thread.id()).await.iter().any(|(_, text)| text.contains("not a known kind of picture")));
}

#[tokio::test]
async fn a_plan_is_noted_and_questions_are_answered() {
    let plan = json!({"plan": [{"step": "look", "status": "completed"}, {"step": "act", "status": "in_progress"}]});
    let question = json!({"questions": [{"id": "q", "header": "h", "question": "which?", "options": [{"label": "a", "description": ""}, {"label": "b", "description": ""}]}]});
    let harness =
        Harness::local(vec![Reply::Items(vec![call("p", "update_plan", &plan), call("q", "request_user_input", &question)])]).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let asked = next_fact(&mut feed, |fact| if let Fact::ApprovalAsked(asked) = fact { Some(asked.clone()) } else { None }).await;
    assert_eq!(asked.kind.as_str(), "userInput");
    let answer = Raw::from(json!({"answers": {"q": "a"}}));
    thread.answer(asked.approval.clone(), outpost_thread::Decision::Approved, Some(answer)).await.unwrap();
    settled(&thread).await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs.iter().any(|(_, text)| text.contains("\"q\":\"a\"")), "{outputs:?}");
    let again = thread.answer(asked.approval, outpost_thread::Decision::Approved, None).await;
    assert!(again.is_err());
}

#[tokio::test]
async fn tools_of_the_client_are_run_by_the_client() {
    let harness = Harness::local(vec![Reply::call("d", "lookup", &json!({"word": "x"}))]).await;
    let mut start = StartThread::new();
    start.created.selection = Some(harness.select(&[]));
    start.created.dynamic_tools = vec![Raw::from(json!({"name": "lookup", "description": "looks up", "inputSchema": {"type": "object"}}))];
    let thread = harness.runtime.start(start).await.unwrap();
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    let asked = next_fact(&mut feed, |fact| if let Fact::ApprovalAsked(asked) = fact { Some(asked.clone()) } else { None }).await;
    assert_eq!(asked.kind.as_str(), "dynamicTool");
    let answer = Raw::from(json!({"success": true, "contentItems": [{"type": "inputText", "text": "found"}]}));
    thread.answer(asked.approval, outpost_thread::Decision::Approved, Some(answer)).await.unwrap();
    settled(&thread).await;
    let requests = harness.model.requests();
    assert!(requests[0].body["tools"].as_array().unwrap().iter().any(|tool| tool["name"] == "lookup"));
    assert_eq!(requests[1].body["input"].as_array().unwrap().last().unwrap()["output"][0]["text"], "found");
}

#[tokio::test]
async fn agents_work_in_the_same_places_and_are_counted() {
    let harness = Harness::local(vec![Reply::call("s", "spawn_agent", &json!({"message": "$ echo child > made"}))]).await;
    let thread = harness.start(&[0]).await;
    // The child asks the model, too: it runs one command and is done.
    harness.model.push(Reply::call("e", "exec_command", &json!({"cmd": "echo child > made"})));
    turn(&thread, "delegate").await;
    let state = thread.snapshot().await.unwrap();
    let child = *state.agents.keys().next().unwrap();
    let live = harness.runtime.get(child).unwrap();
    settled(&live).await;
    let made = live.snapshot().await.unwrap();
    assert_eq!(made.metadata.parent.as_ref().unwrap().thread, thread.id());
    assert_eq!(made.selection, state.selection);
    harness.model.push(Reply::call("w", "wait_agent", &json!({"targets": [child.to_string()]})));
    turn(&thread, "wait").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs.iter().any(|(_, text)| text.contains("completed")), "{outputs:?}");
    assert_eq!(harness.runtime.subtree(thread.id()).await.unwrap(), [thread.id(), child]);
    harness.model.push(Reply::call("n", "spawn_agent", &json!({"message": "x"})));
    turn(&live, "nest").await;
    let refused = harness.outputs(child).await;
    assert!(refused.iter().any(|(_, text)| text.contains("nested")), "{refused:?}");
}

#[tokio::test]
async fn a_command_of_the_user_needs_no_model() {
    let harness = Harness::local(vec![]).await;
    let thread = harness.start(&[0]).await;
    thread.shell("echo typed > typed.txt; echo out".into(), None).await.unwrap();
    settled(&thread).await;
    assert!(harness.work(0).join("typed.txt").exists());
    assert!(harness.model.requests().is_empty());
    turn(&thread, "what did I do").await;
    let sent = harness.model.requests()[0].body["input"].to_string();
    assert!(sent.contains("user_shell_command"), "{sent}");
}

#[tokio::test]
async fn project_instructions_come_from_every_environment() {
    let harness = Harness::new(Setup::new(&[LinkKind::Memory, LinkKind::WebSocket], vec![])).await;
    std::fs::write(harness.work(0).join("AGENTS.md"), "use tabs").unwrap();
    std::fs::write(harness.work(1).join("AGENTS.md"), "use spaces").unwrap();
    let thread = harness.start(&[0, 1]).await;
    turn(&thread, "hello").await;
    turn(&thread, "again").await;
    let sent = harness.model.requests()[1].body["input"].to_string();
    assert_eq!(sent.matches("use tabs").count(), 1);
    assert!(sent.contains("environment=\\\"two\\\"") && sent.contains("use spaces"), "{sent}");
}

/// What changes files runs alone: after everything that was asked for before it, before everything after it.
#[tokio::test]
async fn a_patch_waits_for_the_calls_before_it_and_holds_up_those_after_it() {
    let calls = vec![
        call("a", "exec_command", &json!({"cmd": "sleep 0.4; ls", "login": false})),
        call("b", "apply_patch", &patch("*** Add File: b.txt\n+patched")),
        call("c", "exec_command", &json!({"cmd": "cat b.txt", "login": false})),
    ];
    let harness = Harness::local(vec![Reply::Items(calls)]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(!outputs[0].1.contains("b.txt"), "{outputs:?}");
    assert!(outputs[2].1.contains("patched"), "{outputs:?}");
}

/// A command that the sandbox refused something is shown as such, to the model and to clients.
#[tokio::test]
async fn a_refusal_of_the_sandbox_is_told() {
    let refused = Reply::call("a", "exec_command", &json!({"cmd": "echo x > /usr/not-for-us", "login": false}));
    let mut setup = Setup::new(&[LinkKind::Memory], vec![refused]);
    setup.config.sandbox = outpost_runtime::permissions::SandboxMode::workspace_write();
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let finished = |entry: outpost_thread::Entry| if let Fact::CallFinished(finished) = entry.fact { Some(finished) } else { None };
    let finished = harness.entries(thread.id()).await.into_iter().find_map(finished).unwrap();
    assert_eq!(finished.detail.as_ref().unwrap().raw().read::<Value>().unwrap()["sandboxDenied"], true, "{finished:?}");
    // The rule, and what would allow it: for the model and for the user.
    let told = crate::harness::told(&finished);
    assert!(told.contains("probably kept it from something it needs: /usr/not-for-us may not be written."), "{told}");
    assert!(told.contains(r#"additional_permissions {"file_system": {"write": ["/usr/not-for-us"]}}"#), "{told}");
    let hint = finished.detail.as_ref().unwrap().raw().read::<Value>().unwrap()["sandboxHint"].as_str().unwrap().to_owned();
    assert!(hint.contains("/usr/not-for-us") && hint.contains("sandbox_workspace_write.writable_roots = [\"/usr\"]"), "{hint}");
}
