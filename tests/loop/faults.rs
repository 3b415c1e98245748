//! Models that fail and calls that cannot be done: the turn ends clearly and the thread stays usable.

use outpost_runtime::Status;
use outpost_testkit::model::{Reply, call, message, response_events};
use outpost_thread::{CallOutcome, TurnStatus};
use serde_json::json;

use crate::harness::{Harness, is_completed, turn};

/// Q4, and every fault of the list.
#[tokio::test]
async fn a_model_that_fails_ends_the_turn_and_the_next_turn_works() {
    let half = response_events(&[message("half")]);
    let half = half[..half.len() / 2].to_owned();
    let faults = [
        vec![Reply::status(400, r#"{"error":{"message":"bad request"}}"#)],
        vec![Reply::status(401, r#"{"error":{"message":"wrong key"}}"#)],
        vec![Reply::status(429, "slow down"), Reply::status(429, "slow down")],
        vec![Reply::status(500, "down"), Reply::status(500, "down")],
        vec![Reply::Cut(half.clone()), Reply::Cut(half)],
        vec![Reply::Cut("data: {garbage\n\n".into())],
        vec![Reply::Endless, Reply::Endless],
    ];
    for fault in faults {
        let harness = Harness::local(fault.clone()).await;
        let thread = harness.start(&[0]).await;
        assert_eq!(turn(&thread, "go").await, Status::Idle);
        let end = harness.turn_ends(thread.id()).await.remove(0);
        assert_eq!(end.status, TurnStatus::Failed, "{fault:?}");
        assert!(end.error.unwrap().get().contains("message"), "{fault:?}");
        turn(&thread, "again").await;
        assert!(is_completed(&harness.turn_ends(thread.id()).await[1]), "{fault:?}");
    }
}

#[tokio::test]
async fn calls_that_make_no_sense_are_answered() {
    let calls = vec![
        call("a", "fly", &json!({})),
        call("b", "exec_command", &json!({"command": "ls"})),
        call("c", "exec_command", &json!({"cmd": "true", "environment_id": "nowhere"})),
        call("d", "apply_patch", &json!({"input": "no patch"})),
        call("e", "view_image", &json!({"path": "missing.png"})),
        call("f", "exec_command", &json!({"cmd": "true", "workdir": "/does/not/exist"})),
        json!({"type": "function_call", "call_id": "g", "name": "exec_command", "arguments": "{broken"}),
    ];
    let harness = Harness::local(vec![Reply::Items(calls)]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let sent = harness.model.requests()[1].body["input"].as_array().unwrap().clone();
    let output = |id: &str| {
        sent.iter().find(|item| item["call_id"] == id && item["output"].is_string()).unwrap()["output"].as_str().unwrap().to_owned()
    };
    assert!(output("a").contains("no tool `fly`"));
    assert!(output("b").contains("cmd"));
    assert_eq!(output("c"), "unknown turn environment id `nowhere`");
    assert!(output("d").contains("*** Begin Patch"));
    assert!(output("e").contains("missing.png"));
    assert!(output("f").contains("could not be started"), "{}", output("f"));
    assert!(output("g").contains("cannot be read"));
    assert!(is_completed(&harness.turn_ends(thread.id()).await[0]));
}

#[tokio::test]
async fn two_calls_with_one_id_are_both_answered() {
    let calls = vec![call("same", "exec_command", &json!({"cmd": "echo 1"})), call("same", "exec_command", &json!({"cmd": "echo 2"}))];
    let harness = Harness::local(vec![Reply::Items(calls)]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs.iter().any(|(_, text)| text.ends_with("1\n")) && outputs.iter().any(|(_, text)| text.ends_with("2\n")), "{outputs:?}");
}

#[tokio::test]
async fn endings_of_commands_are_told_as_they_were() {
    let calls = vec![
        call("signal", "exec_command", &json!({"cmd": "kill -9 $$", "login": false})),
        call("binary", "exec_command", &json!({"cmd": "printf '\\377\\000x'"})),
        call("large", "exec_command", &json!({"cmd": "head -c 20000000 /dev/zero | tr '\\0' 'x'", "yield_time_ms": 30000})),
        call("silent", "exec_command", &json!({"cmd": "exec >&- 2>&-; sleep 0.05"})),
    ];
    let harness = Harness::local(vec![Reply::Items(calls)]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs.iter().all(|(outcome, _)| *outcome == CallOutcome::Completed), "{outputs:?}");
    let has = |text: &str| outputs.iter().any(|(_, output)| output.contains(text));
    assert!(has("Exit code: 137") && has("bytes left out"), "{:?}", outputs.iter().map(|(_, text)| text.len()).collect::<Vec<_>>());
    assert!(outputs.iter().all(|(_, text)| text.len() < 50_000));
}
