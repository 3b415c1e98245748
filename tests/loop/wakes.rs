//! Turns that the ends of commands begin: they keep to budgets, and there are not endlessly many of them in a row.

use std::time::Duration;

use outpost_testkit::LinkKind;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::Reply;
use outpost_thread::{TurnFinished, TurnStatus};
use serde_json::json;

use crate::harness::{Harness, Setup, turn};

/// A command that outlives its call, and whose end begins a turn.
fn waking(call: &str) -> Reply {
    Reply::call(call, "exec_command", &json!({"cmd": "sleep 0.6; echo over", "yield_time_ms": 250, "login": false, "wake": true}))
}

/// How the turns of a thread ended, once there are so many.
async fn ends(harness: &Harness, thread: outpost_thread::ThreadId, count: usize) -> Vec<TurnFinished> {
    for _ in 0..1200 {
        let ends = harness.turn_ends(thread).await;
        if ends.len() >= count {
            return ends;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("there are not so many turns: {:?}", harness.turn_ends(thread).await);
}

fn why(end: &TurnFinished) -> String {
    end.error.as_ref().map(|error| error.get().to_owned()).unwrap_or_default()
}

#[tokio::test]
async fn a_woken_turn_keeps_to_the_budget_of_its_thread() {
    // Each answer of the scripted model takes two tokens: the first turn uses all of them.
    let mut setup = Setup::new(&[LinkKind::Memory], vec![waking("c"), Reply::message("waiting")]);
    setup.config.budgets.thread_tokens = Some(4);
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "tell me when it is over").await;
    let ends = ends(&harness, thread.id(), 2).await;
    assert_eq!(ends[0].status, TurnStatus::Completed, "{ends:?}");
    assert_eq!(ends[1].status, TurnStatus::Interrupted, "{ends:?}");
    assert!(why(&ends[1]).contains("budgets.thread_tokens"), "{ends:?}");
    assert_eq!(harness.model.requests().len(), 2, "the model is not asked again");
}

#[tokio::test]
async fn wake_ups_in_a_row_without_a_word_of_a_user_come_to_an_end() {
    let replies = (0..3).flat_map(|turn| [waking(&format!("c{turn}")), Reply::message("waiting")]).collect();
    let mut setup = Setup::new(&[LinkKind::Memory], replies);
    assert_eq!(setup.config.budgets.woken_turns, Some(50));
    setup.config.budgets.woken_turns = Some(2);
    let harness = Harness::new(setup).await;
    let thread = harness.start(&[0]).await;
    turn(&thread, "again and again").await;
    // The user's own, two that are woken, and one that is told to be one too many.
    let before = ends(&harness, thread.id(), 4).await;
    let statuses: Vec<TurnStatus> = before.iter().map(|end| end.status).collect();
    let completed = TurnStatus::Completed;
    assert_eq!(statuses, [completed, completed, completed, TurnStatus::Interrupted], "{before:?}");
    assert!(why(&before[3]).contains("2 turns in a row") && why(&before[3]).contains("budgets.woken_turns"), "{before:?}");
    assert_eq!(harness.model.requests().len(), 6);
    // A word of the user's begins a new count, and the model hears of the command that ended meanwhile.
    for reply in [waking("c3"), Reply::message("waiting"), Reply::message("woken again")] {
        harness.model.push(reply);
    }
    thread.settled().await;
    turn(&thread, "go on").await;
    eventually("it is woken again", || harness.model.requests().len() == 9).await;
    let told = harness.model.requests()[6].body["input"].to_string();
    assert_eq!(told.matches("which was started with wake, has ended").count(), 3, "{told}");
    let after = ends(&harness, thread.id(), 6).await;
    assert!(after[4..].iter().all(|end| end.status == completed), "{after:?}");
}
