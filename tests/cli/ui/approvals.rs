//! Questions, answered by choosing.

use std::time::{Duration, Instant};

use outpost_testkit::TestTerminal;
use outpost_testkit::model::{Reply, call};
use serde_json::json;

use super::{has, open, typed_row};
use crate::chat::Scene;

/// Types a key until it is taken: for a moment after a message it is not.
fn answer_until(terminal: &mut TestTerminal, key: &str, wanted: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while !has(terminal, wanted) {
        assert!(Instant::now() < end, "{wanted:?} is not to be seen: {:?}", terminal.rows());
        std::thread::sleep(Duration::from_millis(800));
        terminal.type_keys(key);
    }
}

fn touch(id: &str, file: &str) -> serde_json::Value {
    call(id, "exec_command", &json!({"cmd": format!("touch {file}")}))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_a_menu_and_only_what_was_seen_is_allowed() {
    let long = format!("true{}touch evil", "\n".repeat(400));
    let scene = Scene::new(vec![
        Reply::Items(vec![touch("a", "yes")]),
        Reply::Items(vec![touch("b", "no")]),
        Reply::call("c", "exec_command", &json!({"cmd": long})),
        Reply::message("fine"),
    ])
    .await;
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("go\r");
    terminal.wait_for_row("> y  Yes, once");
    for row in
        ["$ touch yes", "environment    local", "directory", "Allow?", "a  Yes, always in this thread", "n  No", "s  No, and stop the turn"]
    {
        assert!(has(&terminal, row), "{row:?}: {:?}", terminal.rows());
    }
    terminal.type_keys("\r");
    terminal.wait_for_row("$ touch no");
    terminal.wait_for_row("> y  Yes, once");
    terminal.type_keys("\x1b[B\x1b[B\r");
    terminal.wait_for_row("395 more lines");
    terminal.wait_for_row("> v  View all of it first");
    assert!(scene.work.path().join("yes").exists() && !scene.work.path().join("no").exists());
    // A yes to what was not shown is none.
    terminal.type_keys("y\r");
    terminal.wait_for_row("not all of it was shown");
    terminal.wait_for_row("> v  View all of it first");
    assert!(!terminal.text().contains("touch evil"));
    terminal.type_keys("v");
    terminal.wait_for("touch evil");
    terminal.wait_for_row("> y  Yes, once");
    assert!(has(&terminal, "environment    local"), "what the program knows stands by the menu: {:?}", terminal.rows());
    // A letter alone allows nothing, and neither does a message that was meant for the agent.
    terminal.type_keys("what does it do?\r");
    terminal.wait_for_row("> n  No");
    assert!(!scene.work.path().join("evil").exists());
    terminal.type_keys("\x1b[A\x1b[A");
    terminal.wait_for_row("> y  Yes, once");
    assert!(!scene.work.path().join("evil").exists());
    // Enter counts again once the message is over.
    answer_until(&mut terminal, "\r", "fine");
    assert!(scene.work.path().join("evil").exists());
    terminal.type_keys("/quit\r");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// Keys of a message that is being typed when a question comes are no answer to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_does_not_take_the_keys_of_a_message() {
    let go = tempfile::tempdir().unwrap();
    let file = go.path().join("go");
    let scene = Scene::new(vec![Reply::Once(file.clone(), Box::new(Reply::Items(vec![touch("a", "made")]))), Reply::message("fine")]).await;
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("go\r");
    terminal.wait_for_row("Esc stops");
    terminal.type_keys("yes");
    terminal.wait_for_row("> yes");
    std::fs::write(file, "").unwrap();
    terminal.wait_for_row("a question waits for an answer");
    terminal.type_keys(" and y");
    terminal.wait_for_row("> yes and y");
    assert!(!scene.work.path().join("made").exists());
    terminal.type_keys("\t");
    terminal.wait_for_row("> y  Yes, once");
    terminal.type_keys("n");
    terminal.wait_for_row("fine");
    terminal.wait_until("the draft is back", |_| typed_row(&terminal) == "> yes and y");
    assert!(!scene.work.path().join("made").exists());
    terminal.type_keys("\x03\x03");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_with_options_is_answered_with_a_line() {
    let question = json!({"questions": [{"id": "q", "header": "h", "question": "Which colour?", "options": [
        {"label": "red", "description": "warm"}, {"label": "blue", "description": "cold"}]}]});
    let scene = Scene::new(vec![Reply::call("c", "request_user_input", &question), Reply::message("fine")]).await;
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("go\r");
    terminal.wait_for_row("2  blue  cold");
    terminal.wait_until("the prompt of an answer", |_| typed_row(&terminal).starts_with('?'));
    terminal.type_keys("2\r");
    terminal.wait_for_row("fine");
    let body = scene.model.requests().pop().unwrap().body.to_string();
    assert!(body.contains(r#"\"q\":\"blue\""#), "{body}");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// Every answer of the menu does what it says: for this thread, by a rule, no, and an end of the turn.
#[tokio::test(flavor = "multi_thread")]
async fn each_answer_reaches_as_far_as_it_says() {
    let ruled = |id: &str, file: &str| {
        call(id, "exec_command", &json!({"cmd": format!("mkdir {file}"), "justification": "to have a folder", "prefix_rule": ["mkdir"]}))
    };
    let patch = json!({"input": "*** Begin Patch\n*** Update File: a.txt\n@@\n-old line\n+new line\n*** End Patch\n"});
    let scene = Scene::new(vec![
        Reply::Items(vec![touch("a", "once")]),
        Reply::Items(vec![call("a2", "exec_command", &json!({"cmd": "rm once"}))]),
        Reply::Items(vec![touch("a3", "once")]),
        Reply::Items(vec![ruled("b", "one")]),
        Reply::Items(vec![ruled("b2", "two")]),
        Reply::call("c", "apply_patch", &patch),
        Reply::Items(vec![touch("d", "stopped")]),
        Reply::message("never said"),
    ])
    .await;
    let at = |name: &str| scene.work.path().join(name);
    std::fs::write(at("a.txt"), "old line\n").unwrap();
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("go\r");
    terminal.wait_for_row("$ touch once");
    terminal.wait_for_row("> y  Yes, once");
    terminal.type_keys("\x1b[B\r");
    // The next question is about another command; the first one is not asked about again.
    terminal.wait_for_row("$ rm once");
    terminal.wait_for_row("> y  Yes, once");
    assert!(at("once").exists());
    terminal.type_keys("\r");
    terminal.wait_for_row("$ mkdir one");
    assert!(at("once").exists(), "allowed for the thread, made again after it was removed");
    for row in ["agent's reason to have a folder", "r  Yes, and always allow commands that begin with `mkdir`"] {
        terminal.wait_for_row(row);
    }
    terminal.type_keys("\x1b[B\x1b[B\r");
    terminal.wait_for_row("Change these files?");
    terminal.wait_for_row("> y  Yes, once");
    assert!(at("one").exists() && at("two").exists(), "the rule counts at once");
    assert!(std::fs::read_to_string(scene.home.path().join("rules.toml")).unwrap().contains("mkdir"));
    for row in ["a.txt", "-old line", "+new line"] {
        assert!(has(&terminal, row), "{row:?}: {:?}", terminal.rows());
    }
    assert!(!terminal.rows().iter().any(|row| row == "│"), "no row is empty: {:?}", terminal.rows());
    terminal.type_keys("n");
    terminal.wait_for_row("$ touch stopped");
    terminal.wait_for_row("> y  Yes, once");
    assert_eq!(std::fs::read_to_string(at("a.txt")).unwrap(), "old line\n");
    terminal.type_keys("s");
    terminal.wait_for_row("/help");
    assert!(!at("stopped").exists() && scene.model.requests().len() == 7, "{:?}", terminal.rows());
    terminal.type_keys("\x03\x03");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// What could deceive is marked in the menu as everywhere, a long line is broken so that each row says whose it is, and `notify` hears of
/// the question and of the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_shows_exactly_what_would_run_and_is_notified() {
    let command = format!("touch p\u{430}ss \u{202e}\u{1b}[2J {}", "long ".repeat(40));
    let scene = Scene::new(vec![Reply::call("a", "exec_command", &json!({"cmd": command})), Reply::message("as you wish")]).await;
    let heard = scene.work.path().join("heard");
    let script = format!("printf '%s\\n' \"$1\" >> {}", heard.display());
    let config = std::fs::read_to_string(scene.home.path().join("config.toml")).unwrap();
    let config = format!("notify = [\"sh\", \"-c\", {}, \"notify\"]\n{config}", serde_json::Value::from(script));
    std::fs::write(scene.home.path().join("config.toml"), config).unwrap();
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("go\r");
    terminal.wait_for_row("> y  Yes, once");
    assert!(has(&terminal, "│ $ touch p<U+0430:\u{430}>ss <U+202E><U+001B>[2J long"), "{:?}", terminal.rows());
    let rows = terminal.rows();
    let longs: Vec<&String> = rows.iter().filter(|row| row.contains("long")).collect();
    assert!(longs.len() >= 3 && longs.iter().all(|row| row.starts_with("│ ")), "{longs:?}");
    let place = format!("directory      {}", scene.work.path().display());
    assert!(has(&terminal, &place) && has(&terminal, "asked because"), "{rows:?}");
    let news = || -> Vec<String> {
        let text = std::fs::read_to_string(&heard).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["type"].as_str().unwrap().to_owned()).collect()
    };
    outpost_testkit::executor::eventually("the question is notified", || news() == ["question"]).await;
    terminal.type_keys("n");
    terminal.wait_for_row("as you wish");
    outpost_testkit::executor::eventually("the end is notified", || news() == ["question", "turn_completed"]).await;
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}
