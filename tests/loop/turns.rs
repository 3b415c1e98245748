//! Turns from their input to their end.

use std::time::Duration;

use outpost_environment::{ConnectPolicy, Connector};
use outpost_runtime::live::{Accepted, CommandError, InputMode, NewInput};
use outpost_runtime::{ForkThread, StartThread, ThreadActivity};
use outpost_testkit::LinkKind;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::{Reply, call, message};
use outpost_thread::{Fact, ForkPoint, InterruptReason, Marker, TurnStatus};
use serde_json::{Value, json};

use crate::harness::{Harness, Setup, is_completed, next_fact, settled, turn};

fn input_of(request: &outpost_testkit::model::Request) -> Vec<Value> {
    request.body["input"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_plain_turn_is_stored_and_told() {
    let harness = Harness::local(vec![Reply::message("hello")]).await;
    let thread = harness.start(&[0]).await;
    assert_eq!(turn(&thread, "hi").await, ThreadActivity::Idle);
    let kinds: Vec<String> = harness.entries(thread.id()).await.iter().map(|entry| entry.fact.kind().to_owned()).collect();
    assert_eq!(kinds, ["threadCreated", "inputReceived", "turnStarted", "stepCaptured", "modelAsked", "modelAnswered", "turnFinished"]);
    let request = &harness.model.requests()[0];
    let texts: Vec<String> = input_of(request).iter().map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(texts[0], "hi");
    assert!(texts[1].starts_with("<environment_context>\n") && texts[1].contains("<cwd>"), "{texts:?}");
    assert!(request.body["instructions"].as_str().unwrap().len() > 100);
}

#[tokio::test]
async fn the_second_turn_sees_the_first_and_is_told_nothing_twice() {
    let harness = Harness::local(vec![Reply::message("first"), Reply::message("second")]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "one").await;
    turn(&thread, "two").await;
    let input = input_of(&harness.model.requests()[1]);
    let texts: Vec<&str> = input.iter().map(|item| item["content"][0]["text"].as_str().unwrap()).collect();
    assert_eq!((texts.len(), texts[0], texts[2], texts[3]), (4, "one", "first", "two"));
    assert_eq!(texts.iter().filter(|text| text.starts_with("<environment_context>")).count(), 1);
}

#[tokio::test]
async fn commands_run_where_they_are_meant_to() {
    let harness = Harness::local(vec![Reply::call("c1", "exec_command", &json!({"cmd": "pwd; echo to-stderr >&2; exit 3"}))]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let outputs = harness.outputs(thread.id()).await;
    assert!(outputs[0].1.contains("Exit code: 3"), "{outputs:?}");
    assert!(outputs[0].1.contains(harness.work(0).to_str().unwrap()) && outputs[0].1.contains("to-stderr"), "{outputs:?}");
    let sent = input_of(&harness.model.requests()[1]);
    assert_eq!(sent.last().unwrap()["call_id"], "c1");
}

#[tokio::test]
async fn calls_of_one_answer_run_at_once_and_are_told_in_order() {
    let dance = |own: &str, other: &str| json!({"cmd": format!("touch {own}; while [ ! -e {other} ]; do sleep 0.01; done; echo {own}")});
    let both = Reply::Items(vec![call("a", "exec_command", &dance("left", "right")), call("b", "exec_command", &dance("right", "left"))]);
    let harness = Harness::local(vec![both]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "dance").await;
    let sent = input_of(&harness.model.requests()[1]);
    let ids: Vec<&Value> = sent.iter().filter(|item| item["type"] == "function_call_output").map(|item| &item["call_id"]).collect();
    assert_eq!(ids, ["a", "b"]);
}

/// O2: the same key is the same turn.
#[tokio::test]
async fn a_repeated_input_is_the_same_turn() {
    let harness = Harness::local(vec![]).await;
    let thread = harness.start(&[0]).await;
    let keyed = || NewInput { client_key: Some("k1".into()), ..NewInput::text("once") };
    let Accepted::Started(first) = thread.input(keyed()).await.unwrap() else { panic!() };
    settled(&thread).await;
    assert_eq!(thread.input(keyed()).await.unwrap(), Accepted::Known(Some(first)));
    settled(&thread).await;
    assert_eq!(harness.turn_ends(thread.id()).await.len(), 1);
    assert_eq!(harness.model.requests().len(), 1);
}

#[tokio::test]
async fn steering_reaches_the_running_turn() {
    let slow = Reply::call("c", "exec_command", &json!({"cmd": "while [ ! -e go ]; do sleep 0.01; done"}));
    let harness = Harness::local(vec![slow]).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    let Accepted::Started(running) = thread.input(NewInput::text("begin")).await.unwrap() else { panic!() };
    next_fact(&mut feed, |fact| matches!(fact, Fact::CallStarted(_)).then_some(())).await;
    assert_eq!(thread.input(NewInput::text("and this")).await.unwrap(), Accepted::Steered(running));
    let wrong = NewInput { mode: InputMode::Steer { expected: Some("other".into()) }, ..NewInput::text("x") };
    assert!(matches!(thread.input(wrong).await, Err(CommandError::OtherTurn { .. })));
    let idle = NewInput { mode: InputMode::StartIfIdle, ..NewInput::text("x") };
    assert_eq!(thread.input(idle).await, Err(CommandError::Busy));
    std::fs::write(harness.work(0).join("go"), "").unwrap();
    settled(&thread).await;
    let sent = input_of(&harness.model.requests()[1]);
    assert_eq!(sent.last().unwrap()["content"][0]["text"], "and this");
    assert_eq!(harness.turn_ends(thread.id()).await.len(), 1);
    let late = NewInput { mode: InputMode::Steer { expected: None }, ..NewInput::text("late") };
    assert_eq!(thread.input(late).await, Err(CommandError::NoTurn));
}

#[tokio::test]
async fn an_interrupted_turn_ends_at_once_and_the_next_one_works() {
    let forever = Reply::call("c", "exec_command", &json!({"cmd": "echo $$ > pid; sleep 1000", "yield_time_ms": 30000}));
    let harness = Harness::local(vec![forever, Reply::message("back")]).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    let Accepted::Started(running) = thread.input(NewInput::text("begin")).await.unwrap() else { panic!() };
    next_fact(&mut feed, |fact| matches!(fact, Fact::CallStarted(_)).then_some(())).await;
    let pid_file = harness.work(0).join("pid");
    while std::fs::read_to_string(&pid_file).map_or(true, |pid| pid.trim().is_empty()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    thread.interrupt(Some(running.clone()), InterruptReason::User).await.unwrap();
    let end = harness.turn_ends(thread.id()).await.remove(0);
    assert_eq!((end.status, end.reason, end.marker), (TurnStatus::Interrupted, Some(InterruptReason::User), Marker::User));
    // A late interrupt is answered at once.
    thread.interrupt(Some(running), InterruptReason::User).await.unwrap();
    turn(&thread, "again").await;
    let sent = input_of(&harness.model.requests()[1]);
    let told = sent.iter().filter_map(|item| item["content"][0]["text"].as_str()).find(|text| text.starts_with("<turn_aborted>"));
    assert!(told.is_some(), "{sent:?}");
    let pid = std::fs::read_to_string(pid_file).unwrap().trim().to_owned();
    eventually("the command is ended", || !std::path::Path::new("/proc").join(&pid).exists()).await;
}

#[tokio::test]
async fn a_command_that_takes_long_goes_on_behind_a_session_id() {
    let start = Reply::call("c", "exec_command", &json!({"cmd": "echo ready; read line; echo got $line", "yield_time_ms": 250}));
    let harness = Harness::local(vec![start, Reply::message("waiting")]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "begin").await;
    let first = harness.outputs(thread.id()).await.remove(0).1;
    let session: u64 = first.split("session id: ").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    harness.model.push(Reply::call("d", "write_stdin", &json!({"session_id": session, "chars": "it\n", "yield_time_ms": 30000})));
    turn(&thread, "go on").await;
    let second = harness.outputs(thread.id()).await.remove(1).1;
    assert!(second.contains("got it") && second.contains("Exit code: 0"), "{second}");
    harness.model.push(Reply::call("e", "write_stdin", &json!({"session_id": session})));
    turn(&thread, "once more").await;
    assert!(harness.outputs(thread.id()).await.remove(2).1.contains("no command with the session id"));
}

#[tokio::test]
async fn a_model_may_use_the_ids_of_its_calls_again() {
    let call = |word: &str| Reply::call("call_0", "exec_command", &json!({"cmd": format!("echo {word} >> runs; echo {word}")}));
    let replies = vec![call("one"), call("two"), Reply::message("done"), call("two"), Reply::message("done")];
    let harness = Harness::local(replies).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "twice in one turn").await;
    turn(&thread, "and in the next").await;
    let outputs: Vec<String> = harness.outputs(thread.id()).await.into_iter().map(|(_, output)| output).collect();
    assert_eq!(outputs.len(), 3, "{outputs:?}");
    for (output, word) in outputs.iter().zip(["one", "two", "two"]) {
        assert!(output.contains(word) && output.contains("Exit code: 0"), "{output}");
    }
}

#[tokio::test]
async fn a_fork_goes_its_own_way_with_the_same_environments() {
    let harness = Harness::local(vec![Reply::message("one"), Reply::message("two"), Reply::message("fork")]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "first").await;
    turn(&thread, "second").await;
    let fork = harness.runtime.fork(ForkThread::new(thread.id(), ForkPoint::BeforeUserMessage(1))).await.unwrap();
    turn(&fork, "another").await;
    let sent = input_of(&harness.model.requests()[2]);
    let texts: Vec<&str> = sent.iter().filter_map(|item| item["content"][0]["text"].as_str()).collect();
    assert!(texts.contains(&"first") && texts.contains(&"another") && !texts.contains(&"second"), "{texts:?}");
    let state = fork.snapshot().await.unwrap();
    assert_eq!(state.selection, Some(harness.select(&[0])));
    assert_eq!(state.metadata.forked_from, Some(thread.id()));
}

#[tokio::test]
async fn threads_are_resumed_once_and_unloaded() {
    let harness = Harness::local(vec![]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "hello").await;
    let id = thread.id();
    let same = harness.runtime.resume(id).await.unwrap();
    same.input(NewInput::text("again")).await.unwrap();
    settled(&thread).await;
    assert_eq!(harness.turn_ends(id).await.len(), 2);
    harness.runtime.unload(id, InterruptReason::Shutdown).await;
    assert!(harness.runtime.get(id).is_none());
    let (a, b) = tokio::join!(harness.runtime.resume(id), harness.runtime.resume(id));
    let (a, b) = (a.unwrap(), b.unwrap());
    let mut feed = b.subscribe();
    a.input(NewInput::text("both see it")).await.unwrap();
    next_fact(&mut feed, |fact| matches!(fact, Fact::TurnFinished(_)).then_some(())).await;
    let report = harness.runtime.shutdown(Duration::from_secs(60)).await;
    assert_eq!(report.completed, [id]);
    assert!(report.timed_out.is_empty() && report.submit_failed.is_empty());
}

#[tokio::test]
async fn history_can_be_given_and_ids_reserved() {
    let harness = Harness::local(vec![]).await;
    let mut start = StartThread::new();
    let id = outpost_thread::ThreadId::new(uuid::Uuid::now_v7());
    start.reserved = Some(id);
    start.history = vec![outpost_thread::Raw::from(message("an old answer"))];
    start.created.selection = Some(harness.select(&[]));
    let thread = harness.runtime.start(start).await.unwrap();
    assert_eq!(thread.id(), id);
    turn(&thread, "go on").await;
    let sent = input_of(&harness.model.requests()[0]);
    assert_eq!(sent[0]["content"][0]["text"], "an old answer");
}

#[tokio::test]
async fn the_context_is_compacted_when_it_is_full_and_on_demand() {
    let harness = Harness::local(vec![Reply::message("one"), Reply::message("SUMMARY"), Reply::message("two")]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "remember the blue door").await;
    thread.compact().await.unwrap();
    settled(&thread).await;
    turn(&thread, "go on").await;
    let requests = harness.model.requests();
    assert!(input_of(&requests[1]).last().unwrap()["content"][0]["text"].as_str().unwrap().starts_with("<compaction_request>"));
    let texts: Vec<String> =
        input_of(&requests[2]).iter().map(|item| item["content"][0]["text"].as_str().unwrap_or_default().to_owned()).collect();
    assert_eq!(texts[0], "remember the blue door");
    assert!(texts[1].contains("SUMMARY") && !texts.iter().any(|text| text == "one"), "{texts:?}");
    assert!(texts.iter().any(|text| text.starts_with("<environment_context>")), "{texts:?}");
    let ends = harness.turn_ends(thread.id()).await;
    assert!(ends.iter().all(is_completed) && ends.len() == 3);
    // It opens like this again after it was unloaded.
    harness.runtime.unload(thread.id(), InterruptReason::Shutdown).await;
    let thread = harness.runtime.resume(thread.id()).await.unwrap();
    turn(&thread, "and on").await;
    let last = input_of(harness.model.requests().last().unwrap());
    assert_eq!(last[0]["content"][0]["text"], "remember the blue door");
}

/// A model that says nothing when it is asked for a summary does not take the history with it.
#[tokio::test]
async fn an_empty_summary_replaces_nothing() {
    let harness = Harness::local(vec![Reply::message("one"), Reply::message(" "), Reply::message("two")]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "remember the blue door").await;
    thread.compact().await.unwrap();
    settled(&thread).await;
    let end = harness.turn_ends(thread.id()).await.remove(1);
    assert_eq!(end.status, TurnStatus::Failed);
    assert!(end.error.unwrap().get().contains("said nothing"));
    turn(&thread, "go on").await;
    let texts = input_of(harness.model.requests().last().unwrap()).to_vec();
    assert!(texts.iter().any(|item| item["content"][0]["text"] == "one"), "{texts:?}");
}

/// Of a history that came in one piece, only what the user said last is kept.
#[tokio::test]
async fn a_compaction_keeps_words_and_not_what_came_with_them() {
    let harness = Harness::local(vec![Reply::message("SUMMARY"), Reply::message("two")]).await;
    let mut start = outpost_runtime::StartThread::new();
    start.created.selection = Some(harness.select(&[0]));
    let message = |role: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]});
    start.history = vec![message("user", "the blue door").into(), message("assistant", "a long answer").into()];
    let thread = harness.runtime.start(start).await.unwrap();
    thread.compact().await.unwrap();
    settled(&thread).await;
    turn(&thread, "go on").await;
    let sent = serde_json::to_string(&input_of(harness.model.requests().last().unwrap())).unwrap();
    assert!(sent.contains("the blue door") && sent.contains("SUMMARY") && !sent.contains("a long answer"), "{sent}");
}

#[tokio::test]
async fn budgets_stop_a_turn_and_say_so() {
    let mut setup = crate::harness::Setup::new(
        &[outpost_testkit::LinkKind::Memory],
        vec![Reply::call("a", "exec_command", &json!({"cmd": "true"})), Reply::call("b", "exec_command", &json!({"cmd": "true"}))],
    );
    setup.config.budgets.turn_tokens = Some(2);
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "work").await;
    let end = harness.turn_ends(thread.id()).await.remove(0);
    assert_eq!((end.status, end.reason), (TurnStatus::Interrupted, Some(InterruptReason::Budget)));
    assert!(end.error.unwrap().get().contains("turn_tokens"));
    assert_eq!(harness.model.requests().len(), 1);
}

/// A turn's budget counts from its first entry, whoever goes on with it.
#[tokio::test]
async fn a_restart_does_not_refill_a_budget() {
    let run = |id: &str, cmd: &str| Reply::call(id, "exec_command", &json!({"cmd": cmd}));
    let mut setup = crate::harness::Setup::new(&[outpost_testkit::LinkKind::Memory], vec![run("a", "true"), run("b", "true")]);
    setup.config.approval = outpost_runtime::policy::ApprovalPolicy::Untrusted;
    // Every answer costs two.
    setup.config.budgets.turn_tokens = Some(3);
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let asked = |fact: &Fact| if let Fact::ApprovalAsked(asked) = fact { Some(asked.approval.clone()) } else { None };
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("work")).await.unwrap();
    let first = next_fact(&mut feed, asked).await;
    let again = harness.restarted().await;
    let thread = again.take_over(thread.id()).await.unwrap();
    let mut feed = thread.subscribe();
    thread.answer(first, outpost_thread::Decision::Approved, None).await.unwrap();
    let second = next_fact(&mut feed, asked).await;
    thread.answer(second, outpost_thread::Decision::Approved, None).await.unwrap();
    settled(&thread).await;
    let end = harness.turn_ends(thread.id()).await.remove(0);
    assert_eq!((end.status, end.reason), (TurnStatus::Interrupted, Some(InterruptReason::Budget)));
    assert_eq!(harness.model.requests().len(), 2);
}

/// Time runs out also while a command runs and nobody asks anything.
#[tokio::test]
async fn a_turn_that_takes_too_long_is_stopped() {
    let forever = Reply::call("c", "exec_command", &json!({"cmd": "sleep 1000", "yield_time_ms": 30000}));
    let mut setup = crate::harness::Setup::new(&[outpost_testkit::LinkKind::Memory], vec![forever]);
    setup.config.budgets.turn_seconds = Some(1);
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "work").await;
    let end = harness.turn_ends(thread.id()).await.remove(0);
    assert_eq!((end.status, end.reason), (TurnStatus::Interrupted, Some(InterruptReason::Budget)));
    assert!(end.error.unwrap().get().contains("turn_seconds"));
    turn(&thread, "again").await;
    assert!(is_completed(&harness.turn_ends(thread.id()).await[1]));
}

/// New threads are told in order, to those who come late and to those who come back, and nobody is told of internal ones.
#[tokio::test]
async fn created_threads_are_told_in_order() {
    let harness = Harness::local(vec![]).await;
    let mut early = harness.runtime.created();
    let first = harness.start(&[0]).await.id();
    let mut internal = StartThread::new();
    internal.created.source = Some(outpost_thread::Raw::from(json!({"internal": "memory_consolidation"})));
    let hidden = harness.runtime.start(internal).await.unwrap();
    let second = harness.start(&[0]).await.id();
    let fork = harness.runtime.fork(ForkThread::new(first, ForkPoint::Interrupted(Marker::Off))).await.unwrap().id();
    let read = |cursor: &mut outpost_runtime::feed::FeedReader<outpost_thread::ThreadId>| {
        std::iter::from_fn(|| match cursor.try_next() {
            Some(outpost_runtime::feed::Read::Event(id)) => Some(id),
            _ => None,
        })
        .collect::<Vec<_>>()
    };
    assert_eq!(read(&mut early), [first, second, fork]);
    assert_eq!(read(&mut harness.runtime.created()), [first, second, fork]);
    let number = early.position();
    let third = harness.start(&[0]).await.id();
    assert_eq!(read(&mut harness.runtime.created_from(number)), [third]);
    assert!(harness.runtime.get(hidden.id()).is_none() && !harness.runtime.loaded().contains(&hidden.id()));
    // It works all the same.
    turn(&hidden, "think").await;
    assert_eq!(harness.turn_ends(hidden.id()).await.len(), 1);
}

/// Whoever is in the middle of something when time is up is named, and ends when it can.
#[tokio::test]
async fn a_shutdown_says_whom_it_did_not_wait_for() {
    let harness = Harness::local(vec![]).await;
    let vm = outpost_wire::intent::EnvironmentId::parse("vm").unwrap();
    harness.runtime.registry().announce(vm.clone()).unwrap();
    let (mut quick, mut slow) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        quick.push(harness.start(&[0]).await.id());
        let thread = harness.start_in(vec![harness.attachment("vm", 0)]).await;
        slow.push(thread.id());
        // Its driver waits for a place that is still coming.
        tokio::spawn(async move { thread.shell("true".into(), None).await });
    }
    for ids in [&mut quick, &mut slow] {
        ids.sort_by_key(ToString::to_string);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Long enough for those that can end.
    let report = harness.runtime.shutdown(Duration::from_secs(3)).await;
    assert_eq!((report.completed, report.timed_out, report.submit_failed), (quick.clone(), slow.clone(), vec![]));
    let loaded = harness.runtime.loaded();
    assert!(loaded.len() == 3 && slow.iter().all(|id| loaded.contains(id)), "those that are not complete are still there");
    harness.runtime.registry().provision_failed(&vm, "no room").unwrap();
    let report = harness.runtime.shutdown(Duration::from_secs(60)).await;
    assert!(report.timed_out.is_empty() && report.submit_failed.is_empty());
    assert!(harness.runtime.loaded().is_empty());
}

#[tokio::test]
async fn a_thread_is_resumed_by_its_journal() {
    let home = tempfile::tempdir().unwrap();
    let local = crate::harness::on_disk(home.path());
    let mut setup = crate::harness::Setup::new(&[outpost_testkit::LinkKind::Memory], vec![]);
    setup.store = outpost_store::Store::Local(local.clone());
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "hello").await;
    let id = thread.id();
    let journal = local.journal(id).unwrap();
    assert_eq!(harness.runtime.resume_journal(&journal).await.unwrap().id(), id);
    let copy = home.path().join(journal.file_name().unwrap());
    std::fs::copy(&journal, &copy).unwrap();
    let refusal = |error: outpost_runtime::runtime::ThreadError| error.to_string();
    let other = harness.runtime.resume_journal(&copy).await.map(|_| ()).map_err(refusal).unwrap_err();
    assert!(other.contains("is running already, from"), "{other}");
    harness.runtime.unload(id, InterruptReason::Shutdown).await;
    assert_eq!(harness.runtime.resume_journal(&journal).await.unwrap().id(), id);
    let foreign = home.path().join(format!("{}.jsonl", uuid::Uuid::now_v7()));
    std::fs::write(&foreign, "").unwrap();
    let other = harness.runtime.resume_journal(&foreign).await.map(|_| ()).map_err(refusal).unwrap_err();
    assert!(other.contains("thread import"), "{other}");
}

/// However many calls an answer asks for, no more than 32 run at the same time, and all of them run.
#[tokio::test]
async fn a_long_answer_does_not_run_all_at_once() {
    let command = "mkdir -p now; touch now/$$; ls now | wc -l >> counts; sleep 0.02; rm now/$$";
    let calls = (0..150).map(|number| call(&format!("c{number}"), "exec_command", &json!({"cmd": command, "login": false})));
    let harness = Harness::local(vec![Reply::Items(calls.collect()), Reply::message("done")]).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "go").await;
    let counts = std::fs::read_to_string(harness.work(0).join("counts")).unwrap();
    let counts: Vec<usize> = counts.lines().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!(counts.len(), 150);
    assert!(counts.iter().all(|count| *count <= 32), "{:?}", counts.iter().max());
    let outputs = harness.outputs(thread.id()).await;
    assert_eq!(outputs.iter().filter(|(outcome, _)| *outcome == outpost_thread::CallOutcome::Completed).count(), 150);
}

/// A thread that takes no requests when the program ends is told apart from one that took it and did not end.
#[tokio::test]
async fn a_thread_that_does_not_take_its_shutdown_request_is_reported() {
    let mut setup = Setup::new(&[LinkKind::Memory], vec![]);
    setup.config.patience.primary = Duration::from_secs(600);
    let harness = Harness::new(setup).await;
    let idle = harness.start(&[0]).await;
    // Its driver waits for an environment that is being connected for ever.
    let never = Connector::new("never", || async { std::future::pending().await });
    harness.runtime.registry().attach("never".parse().unwrap(), never, ConnectPolicy::Lazy).unwrap();
    let thread = harness.start_in(vec![harness.attachment("never", 0)]).await;
    thread.input(NewInput::text("go")).await.unwrap();
    // So many others wait already that nothing more is taken.
    let asking: Vec<_> =
        (0..100).map(|_| thread.clone()).map(|thread| tokio::spawn(async move { drop(thread.snapshot().await) })).collect();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(asking.iter().all(|one| !one.is_finished()));
    let report = harness.runtime.shutdown(Duration::from_secs(3)).await;
    assert_eq!((report.completed, report.submit_failed, report.timed_out), (vec![idle.id()], vec![thread.id()], vec![]));
}
