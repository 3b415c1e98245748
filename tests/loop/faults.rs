//! Models that fail and calls that cannot be done: the turn ends clearly and the thread stays usable.

use outpost_runtime::ThreadActivity;
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
        assert_eq!(turn(&thread, "go").await, ThreadActivity::Idle);
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
    assert_eq!(output("c"), "unknown turn environment id `nowhere`; there are `one`");
    assert!(output("d").contains("*** Begin Patch"));
    assert!(output("e").contains("missing.png"));
    assert!(output("f").contains("could not be started"), "{}", output("f"));
    assert!(output("g").contains("cannot be read"));
    assert!(is_completed(&harness.turn_ends(thread.id()).await[0]));
}

/// An invented session id is answered with those that run.
#[tokio::test]
async fn a_session_that_there_is_not_is_answered_with_those_that_run() {
    let serve = |id: &str| call(id, "exec_command", &json!({"cmd": "echo up; sleep 1000", "yield_time_ms": 250, "login": false}));
    let replies = vec![
        Reply::Items(vec![serve("a"), serve("b")]),
        Reply::Items(vec![call("c", "write_stdin", &json!({"session_id": 12345}))]),
        Reply::message("I see."),
    ];
    let harness = Harness::local(replies).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let requests = harness.model.requests();
    let output = |request: usize, id: &str| {
        let sent = requests[request].body["input"].as_array().unwrap();
        sent.iter().find(|item| item["call_id"] == id && item["output"].is_string()).unwrap()["output"].as_str().unwrap().to_owned()
    };
    let session = |id: &str| {
        let told = output(1, id);
        let digits: String = told.split_once("session id: ").expect(&told).1.chars().take_while(char::is_ascii_digit).collect();
        digits
    };
    let mut running = [session("a"), session("b")];
    running.sort_by_key(|session| session.parse::<u64>().unwrap());
    let told = output(2, "c");
    assert!(told.contains("no command with the session id 12345 is running"), "{told}");
    assert!(told.ends_with(&format!("these are running: {}", running.join(", "))), "{running:?}: {told}");
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

/// A model that does the same over and over is told at the third time and stopped at the sixth.
#[tokio::test]
async fn the_same_call_over_and_over_is_pointed_out_and_ended() {
    let same = |n: usize| Reply::Items(vec![call(&format!("c{n}"), "exec_command", &json!({"cmd": "cat nothing; true", "login": false}))]);
    let harness = Harness::local((0..9).map(same).collect()).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let requests = harness.model.requests();
    assert_eq!(requests.len(), 6, "six identical calls, and no seventh");
    let is_told = |at: usize| requests[at].body.to_string().contains("<repeated_call>");
    assert!(!is_told(2) && is_told(3));
    let end = harness.turn_ends(thread.id()).await.remove(0);
    assert_eq!(end.status, outpost_thread::TurnStatus::Failed);
    assert!(end.error.unwrap().get().contains("repeatedCall"));
    // The user may insist.
    turn(&thread, "again").await;
    assert!(harness.model.requests().len() > 6);
}

/// A misspelled argument never decides on which machine something happens.
#[tokio::test]
async fn routing_does_not_go_wrong_by_spelling() {
    let patch = |environment: &str, file: &str| format!("*** Begin Patch\n{environment}*** Add File: {file}\n+x\n*** End Patch");
    let header = "*** Environment ID: two\n";
    let dressed = format!("apply_patch <<'EOF'\n{}\nEOF", patch(header, "dressed"));
    let calls = vec![
        call("a", "exec_command", &json!({"cmd": "touch wrong", "environment": "two", "login": false})),
        call("b", "apply_patch", &json!({"input": patch("", "argument"), "environment_id": "two"})),
        call("c", "apply_patch", &json!({"input": patch(header, "both"), "environment_id": "two"})),
        call("d", "apply_patch", &json!({"input": patch(header, "differ"), "environment_id": "one"})),
        call("e", "exec_command", &json!({"cmd": dressed})),
        call("f", "exec_command", &json!({"cmd": dressed.replace("dressed", "differ"), "environment_id": "one"})),
        call("g", "write_stdin", &json!({"session_id": 77})),
    ];
    let kinds = [outpost_testkit::LinkKind::Memory; 2];
    let harness = Harness::new(crate::harness::Setup::new(&kinds, vec![Reply::Items(calls)])).await;
    let thread = harness.start(&[0, 1]).await;
    turn(&thread, "go").await;
    let sent = harness.model.requests()[1].body["input"].as_array().unwrap().clone();
    let output = |id: &str| {
        sent.iter().find(|item| item["call_id"] == id && item["output"].is_string()).unwrap()["output"].as_str().unwrap().to_owned()
    };
    assert!(output("a").contains("unknown field `environment`") && output("a").contains("`environment_id`"), "{}", output("a"));
    for id in ["d", "f"] {
        assert!(output(id).contains("name one environment"), "{id}: {}", output(id));
    }
    assert!(output("g").contains("no command is running behind a session id"), "{}", output("g"));
    for (file, in_two) in [("wrong", false), ("argument", true), ("both", true), ("differ", false), ("dressed", true)] {
        assert_eq!((harness.work(0).join(file).exists(), harness.work(1).join(file).exists()), (false, in_two), "{file}");
    }
}
