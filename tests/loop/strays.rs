//! Calls that come too late: after a restart, after the user said stop, beside a turn they are not meant for. They are done
//! where and when they were meant, or not at all.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{ConnectPolicy, Connector, EnvironmentState};
use outpost_rpc::link::ws;
use outpost_runtime::live::{CommandError, NewInput};
use outpost_runtime::policy::ApprovalPolicy;
use outpost_store::Store;
use outpost_testkit::cutter::Cutter;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::Reply;
use outpost_testkit::{ExecutorProcess, LinkKind};
use outpost_thread::{CallOutcome, Decision, Fact, InterruptReason, SelectionChanged};
use outpost_wire::intent::{EnvironmentId, Selection};
use serde_json::json;

use crate::harness::{Harness, OUTPOST, Setup, asked, next_fact, on_disk, settled, turn};

fn started(fact: &Fact) -> Option<()> {
    matches!(fact, Fact::CallStarted(_)).then_some(())
}

/// The user says yes to a command, but the thread works elsewhere by then.
#[tokio::test]
async fn an_approved_call_does_not_move_with_the_thread() {
    let touch = || Reply::call("a", "exec_command", &json!({"cmd": "touch ran"}));
    let mut setup = Setup::new(&[LinkKind::Memory, LinkKind::Memory], vec![touch(), Reply::message("well"), touch()]);
    setup.config.approval = ApprovalPolicy::Untrusted;
    let harness = Harness::new(setup).await;
    let attachment = |id: &str, index: usize| Selection::new(vec![harness.attachment(id, index)]).unwrap();
    // Another machine; and another directory of the same one.
    for selection in [attachment("two", 1), attachment("one", 1)] {
        let thread = harness.start(&[0]).await;
        let mut feed = thread.subscribe();
        thread.input(NewInput::text("go")).await.unwrap();
        let question = next_fact(&mut feed, asked).await;
        let again = harness.restarted().await;
        let thread = again.take_over(thread.id()).await.unwrap();
        let moved = SelectionChanged { selection: Some(selection), ..SelectionChanged::default() };
        thread.change(vec![moved.into()]).await.unwrap();
        thread.answer(question.approval, Decision::Approved, None).await.unwrap();
        settled(&thread).await;
        let (outcome, told) = harness.outputs(thread.id()).await.remove(0);
        assert_eq!(outcome, CallOutcome::Failed);
        assert!(told.contains("not where it was meant to run"), "{told}");
        assert!(!harness.work(0).join("ran").exists() && !harness.work(1).join("ran").exists());
        again.unload(thread.id(), InterruptReason::Shutdown).await;
    }
}

/// An executor behind a connection that can be cut.
async fn behind_a_cutter(harness: &Harness, name: &str) -> (ExecutorProcess, Arc<Cutter>) {
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let cutter = Arc::new(Cutter::start(executor.address(), vec![]).await);
    let url = cutter.url();
    let connector = Connector::new(name, move || {
        let url = url.clone();
        async move { ws::connect(&url, &ws::ClientOptions::default()).await }
    });
    let id = EnvironmentId::parse(name).unwrap();
    harness.runtime.registry().attach(id.clone(), connector, ConnectPolicy::Lazy).unwrap();
    harness.runtime.registry().info(&id).await.unwrap();
    (executor, cutter)
}

/// The machine is out of reach when the user stops the turn. When it is back, nothing happens there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_stopped_does_not_happen_later() {
    let patch = "*** Begin Patch\n*** Add File: late\n+x\n*** End Patch";
    for call in [Reply::call("a", "exec_command", &json!({"cmd": "touch late"})), Reply::call("a", "apply_patch", &json!({"input": patch}))]
    {
        let mut setup = Setup::new(&[LinkKind::Memory], vec![call, Reply::call("b", "exec_command", &json!({"cmd": "true"}))]);
        setup.config.approval = ApprovalPolicy::Untrusted;
        let harness = Harness::new(setup).await;
        let (_executor, cutter) = behind_a_cutter(&harness, "far").await;
        let thread = harness.start_in(vec![harness.attachment("far", 0)]).await;
        let mut feed = thread.subscribe();
        thread.input(NewInput::text("go")).await.unwrap();
        let question = next_fact(&mut feed, asked).await;
        let (registry, far) = (harness.runtime.registry(), EnvironmentId::parse("far").unwrap());
        cutter.cut();
        eventually("the cut is felt", || !matches!(registry.standing(&far), EnvironmentState::Ready)).await;
        thread.answer(question.approval, Decision::Approved, None).await.unwrap();
        next_fact(&mut feed, started).await;
        thread.interrupt(None, InterruptReason::User).await.unwrap();
        settled(&thread).await;
        cutter.mend();
        registry.info(&far).await.unwrap();
        // Whatever waited for the connection was sent before this.
        thread.input(NewInput::text("look")).await.unwrap();
        let question = next_fact(&mut feed, asked).await;
        thread.answer(question.approval, Decision::Approved, None).await.unwrap();
        settled(&thread).await;
        let outputs = harness.outputs(thread.id()).await;
        assert_eq!(outputs.iter().map(|(outcome, _)| *outcome).collect::<Vec<_>>(), [CallOutcome::Aborted, CallOutcome::Completed]);
        assert!(!harness.work(0).join("late").exists());
    }
}

/// What is meant for another machine does not join a turn that runs on this one.
#[tokio::test]
async fn a_turn_for_another_place_is_not_mixed_into_a_running_one() {
    let slow = json!({"cmd": "while [ ! -e go ]; do sleep 0.01; done", "yield_time_ms": 30000});
    let setup = Setup::new(&[LinkKind::Memory, LinkKind::Memory], vec![Reply::call("a", "exec_command", &slow)]);
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    let mut feed = thread.subscribe();
    thread.input(NewInput::text("go")).await.unwrap();
    next_fact(&mut feed, started).await;
    let other = NewInput { turn_selection: Some(harness.select(&[1])), ..NewInput::text("there") };
    assert!(matches!(thread.input(other.clone()).await, Err(CommandError::OwnTurn)));
    let shaped = NewInput { output_schema: Some(json!({"type": "object"}).into()), ..NewInput::text("shaped") };
    assert!(matches!(thread.input(shaped).await, Err(CommandError::OwnTurn)));
    std::fs::write(harness.work(0).join("go"), "").unwrap();
    settled(&thread).await;
    harness.model.push(Reply::call("b", "exec_command", &json!({"cmd": "touch here"})));
    thread.input(other).await.unwrap();
    settled(&thread).await;
    assert!(harness.work(1).join("here").exists());
}

/// Whoever asks for a thread and does not wait for it leaves it free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resume_that_nobody_waits_for_holds_nothing() {
    let home = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(&[LinkKind::Memory], vec![]);
    setup.store = Store::Local(on_disk(home.path()));
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "hello").await;
    for micros in (0..200).map(|round| round * 10) {
        harness.runtime.unload(thread.id(), InterruptReason::Shutdown).await;
        let _ = tokio::time::timeout(Duration::from_micros(micros), harness.runtime.resume(thread.id())).await;
        let resumed = harness.runtime.resume(thread.id()).await.map(|live| live.id());
        assert_eq!(resumed.map_err(|error| error.to_string()), Ok(thread.id()), "left after {micros} us");
    }
    // One that is just being unloaded is given back before it is taken again.
    for _ in 0..20 {
        let (_, resumed) = tokio::join!(harness.runtime.unload(thread.id(), InterruptReason::Shutdown), async {
            tokio::task::yield_now().await;
            harness.runtime.resume(thread.id()).await.map(|live| live.id())
        });
        assert_eq!(resumed.map_err(|error| error.to_string()), Ok(thread.id()));
    }
}
