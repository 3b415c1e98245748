//! What goes wrong on a terminal: windows of other sizes, a terminal that is closed, garbage, and more of everything than fits.

use std::path::Path;
use std::time::Duration;

use outpost_testkit::executor::eventually;
use outpost_testkit::model::{Reply, message};
use outpost_testkit::{Narrowing, TestTerminal};
use serde_json::{Value, json};

use super::{command, has, open};
use crate::chat::{Scene, run};

#[tokio::test(flavor = "multi_thread")]
async fn another_size_of_the_window_is_taken_up_in_the_middle_of_output() {
    let script = "echo begun; while [ ! -e go ]; do sleep 0.01; done; echo over";
    let scene = Scene::new(vec![Reply::Items(vec![run("a", script)]), Reply::message(&"word ".repeat(30))]).await;
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("go\r");
    terminal.wait_for_row("  begun");
    terminal.type_keys(&"long ".repeat(20));
    terminal.wait_for_row("> long long");
    terminal.resize(12, 50);
    terminal.wait_until("the narrower prompt", |rows| rows.iter().filter(|row| row.contains("long")).count() >= 3);
    terminal.resize(30, 100);
    terminal.wait_until("the wider prompt", |rows| rows.iter().any(|row| row.starts_with("> long") && row.len() > 90));
    std::fs::write(scene.work.path().join("go"), "").unwrap();
    terminal.wait_until("the answer in the new width", |rows| rows.iter().any(|row| row.len() > 60 && row.starts_with("word word")));
    terminal.type_keys("\x03\x03");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_is_closed_does_not_end_the_turn() {
    let script = "touch begun; while [ ! -e go ]; do sleep 0.01; done; touch over";
    let scene = Scene::new(vec![Reply::Items(vec![run("a", script)]), Reply::message("finished alone")]).await;
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("go\r");
    let at = |name: &str| scene.work.path().join(name);
    eventually("the command runs", || at("begun").exists()).await;
    let mut child = terminal.hang_up();
    // The signal came before the command could end.
    std::fs::write(at("go"), "").unwrap();
    let ended = tokio::task::spawn_blocking(move || child.wait().unwrap());
    tokio::time::timeout(Duration::from_secs(120), ended).await.expect("the program does not end by itself").unwrap();
    assert!(at("over").exists());
    let mut terminal = open(&scene, &["resume", "--last"]);
    terminal.wait_for_row("finished alone");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// The same line by line, where another process goes on with it: who comes back sees the command that still runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_with_plain_lines_that_is_closed_does_not_end_the_turn() {
    // What was set for this program only would not count in another one.
    for settings in [&[][..], &["-c", "model_context_window=10000000"]] {
        let script = "touch begun; while [ ! -e go ]; do sleep 0.01; done; touch over";
        let scene = Scene::new(vec![Reply::Items(vec![run("a", script)]), Reply::message("finished alone")]).await;
        let mut terminal = TestTerminal::start(&command(&scene, &[&["chat", "--plain"], settings].concat()));
        terminal.wait_for("> ");
        terminal.type_keys("go\r");
        let at = |name: &str| scene.work.path().join(name);
        eventually("the command runs", || at("begun").exists()).await;
        let mut child = terminal.hang_up();
        let is_handed_over = settings.is_empty();
        if is_handed_over {
            let ended = tokio::task::spawn_blocking(move || child.wait().unwrap());
            tokio::time::timeout(Duration::from_secs(120), ended).await.expect("the program does not end by itself").unwrap();
            assert!(!at("over").exists(), "its end does not wait for the command");
            let mut terminal = TestTerminal::start(&command(&scene, &["chat", "resume", "--last"]));
            terminal.wait_for_row("$ sh -c");
            std::fs::write(at("go"), "").unwrap();
            terminal.wait_for_row("finished alone");
            terminal.type_keys("\x04");
            assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
        } else {
            std::fs::write(at("go"), "").unwrap();
            let ended = tokio::task::spawn_blocking(move || child.wait().unwrap());
            tokio::time::timeout(Duration::from_secs(120), ended).await.expect("the program does not end by itself").unwrap();
        }
        assert!(at("over").exists());
        let mut terminal = open(&scene, &["resume", "--last"]);
        terminal.wait_for_row("finished alone");
        assert!(!terminal.text().contains("interrupted"), "{}", terminal.text());
        terminal.type_keys("\x04");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    }
}

/// A question that is open when the terminal is closed waits for the user, and is not refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_question_outlives_a_terminal_with_plain_lines() {
    let asks = Reply::call("a", "exec_command", &json!({"cmd": "touch made"}));
    let scene = Scene::new(vec![asks, Reply::message("made it")]).await;
    let mut terminal = TestTerminal::start(&command(&scene, &["chat", "--plain"]));
    terminal.wait_for("> ");
    terminal.type_keys("go\r");
    terminal.wait_for("Allow?");
    let mut child = terminal.hang_up();
    let ended = tokio::task::spawn_blocking(move || child.wait().unwrap());
    tokio::time::timeout(Duration::from_secs(120), ended).await.expect("the program does not end by itself").unwrap();
    let mut terminal = TestTerminal::start(&command(&scene, &["chat", "resume", "--last"]));
    terminal.wait_for_row("> y  Yes, once");
    terminal.type_keys("\r");
    terminal.wait_for_row("made it");
    assert!(scene.work.path().join("made").exists());
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paste_of_a_megabyte_and_a_line_of_ten_are_taken() {
    let script = "head -c 10000000 /dev/zero | tr \"\\\\0\" x; echo; printf \"\\\\377\\\\376\\\\n\"";
    let scene = Scene::new(vec![Reply::message("read it"), Reply::Items(vec![run("a", script)]), Reply::message("over")]).await;
    let mut terminal = open(&scene, &["-c", "model_context_window=10000000"]);
    let line = "0123456789abcde\n";
    terminal.type_keys(&format!("\x1b[200~{}\x1b[201~", line.repeat((1 << 20) / line.len())));
    terminal.wait_for_row("[pasted: 65536 lines, 1048576 characters]");
    terminal.type_keys(" end\r");
    terminal.wait_for_row("read it");
    assert_eq!(scene.told()[0].len(), (1 << 20) + 4);
    terminal.type_keys("go\r");
    terminal.wait_for_row("over");
    assert!(has(&terminal, "<0xFF><0xFE>") && has(&terminal, "more bytes"), "{:?}", terminal.rows());
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// An agent that is resumed with thousands of items opens as any other; garbage that a model streams is drawn as text.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_from_a_model_is_text() {
    let garbage = "```\n\x1b[31m|||\n**_`[x](\u{202e}\n> > > #\n\u{9b}2J".repeat(50);
    let scene = Scene::new(vec![Reply::streamed(&garbage), Reply::Items(vec![message("sane again")])]).await;
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("go\r");
    terminal.wait_for_row("/help");
    terminal.type_keys("more\r");
    terminal.wait_for_row("sane again");
    let text = terminal.text();
    assert!(!text.contains('\u{202e}') && !text.contains('\u{9b}') && text.contains("<U+202E>"), "{}", Path::new("garbage").display());
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// In a window that becomes narrower and wider again, what was said stays as it was, and what is drawn anew is there once: on
/// terminals that cut long rows, and on those that break them anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_of_another_width_shows_everything_once() {
    for narrowing in [Narrowing::Cut, Narrowing::Rewrap] {
        let long = "a line that fills the window of eighty columns to its end and not more, as it is";
        let script = format!("echo \"{long}\"; while [ ! -e go ]; do sleep 0.01; done; echo over");
        let scene =
            Scene::new(vec![Reply::message("first answer"), Reply::Items(vec![run("a", &script)]), Reply::message("the end")]).await;
        let mut terminal = TestTerminal::start_on(&command(&scene, &["chat"]), narrowing);
        terminal.wait_for_row("/help");
        terminal.type_keys("hello\r");
        terminal.wait_for_row("first answer");
        terminal.wait_for_row("/help");
        terminal.type_keys("go\r");
        terminal.wait_for_row("  a line that fills");
        terminal.type_keys(&"typed ".repeat(12));
        terminal.wait_for_row("> typed typed");
        for (rows, columns) in [(24, 60), (24, 45), (24, 100), (12, 70), (24, 80)] {
            terminal.resize(rows, columns);
            let ends = usize::from(columns) - 1;
            terminal.wait_until("the status in the new width", |rows| {
                rows.iter().any(|row| row.ends_with("Esc stops") && row.chars().count() == ends)
            });
            let everything = terminal.everything();
            let count = |wanted: &str| everything.iter().filter(|row| row.starts_with(wanted)).count();
            for wanted in ["> hello", "first answer", "> go", "  a line that", "> typed", "local · scripted"] {
                assert_eq!(count(wanted), 1, "{wanted:?} with {narrowing:?} at {columns}: {everything:#?}");
            }
        }
        std::fs::write(scene.work.path().join("go"), "").unwrap();
        terminal.wait_for_row("the end");
        terminal.type_keys("\x03\x03");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
        assert!(!terminal.is_raw());
    }
}

/// The window changes while lines stream in: what was said stays as it was, the output is counted to its end, and the prompt is usable.
#[tokio::test(flavor = "multi_thread")]
async fn a_window_that_changes_while_output_streams_loses_nothing() {
    for narrowing in [Narrowing::Cut, Narrowing::Rewrap] {
        let script = "n=0; while [ ! -e go ]; do n=$((n + 1)); echo line-$n; sleep 0.005; done; echo counted-$n";
        let scene = Scene::new(vec![Reply::message("first answer"), Reply::Items(vec![run("a", script)]), Reply::message("the end")]).await;
        let mut terminal = TestTerminal::start_on(&command(&scene, &["chat"]), narrowing);
        terminal.wait_for_row("/help");
        terminal.type_keys("hello\r");
        terminal.wait_for_row("first answer");
        terminal.wait_for_row("/help");
        terminal.type_keys("go\r");
        let newest = |rows: &[String]| rows.iter().filter_map(|row| row.strip_prefix("  line-")?.parse::<u64>().ok()).max();
        terminal.wait_until("many lines", |rows| newest(rows).is_some_and(|newest| newest > 30));
        terminal.type_keys(&"typed ".repeat(12));
        for (rows, columns) in [(24, 60), (10, 45), (24, 100), (12, 70), (24, 80)] {
            let before = newest(&terminal.rows()).unwrap_or_default();
            terminal.resize(rows, columns);
            terminal.wait_until("newer lines in the new width", |rows| {
                let is_wide = rows.iter().any(|row| row.ends_with("Esc stops") && row.chars().count() == usize::from(columns) - 1);
                is_wide && newest(rows).is_some_and(|newest| newest > before)
            });
        }
        std::fs::write(scene.work.path().join("go"), "").unwrap();
        terminal.wait_for_row("the end");
        let everything = terminal.everything();
        let once = |wanted: &str| everything.iter().filter(|row| *row == wanted).count() == 1;
        assert!(["> hello", "first answer", "> go", "  line-8", "the end"].into_iter().all(once), "{narrowing:?}: {everything:#?}");
        let number = |begin: &str| {
            everything.iter().rev().find_map(|row| row.trim_start().strip_prefix(begin)?.split(' ').next()?.parse::<u64>().ok())
        };
        let (counted, left_out) = (number("counted-").unwrap(), number("▌   … ").unwrap());
        // The first eight and the last eight lines stay; the count is one of the last.
        assert_eq!(left_out + 15, counted, "{narrowing:?}: {everything:#?}");
        terminal.wait_until("the prompt", |rows| rows.iter().any(|row| row.starts_with("> typed typed")));
        terminal.type_keys("\x03\x03");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    }
}

/// A thread of five thousand items opens with its end, and what is drawn of it does not grow with it.
#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_items_of_history_open_with_their_end() {
    const ID: &str = "01928f2e-4c1d-7a33-9c55-000000000023";
    let scene = Scene::new(vec![Reply::message("still here")]).await;
    let line = |kind: &str, payload: Value| json!({"timestamp": "2026-11-15T23:01:09.992Z", "type": kind, "payload": payload});
    let mut lines = vec![line(
        "session_meta",
        json!({"id": ID, "session_id": ID, "timestamp": "2026-11-15T23:01:09.992Z", "cwd": scene.work.path(), "originator": "x",
            "cli_version": "0.166.0", "source": "exec", "model_provider": "scripted", "base_instructions": {"text": "Be good."}}),
    )];
    let said = |role: &str, text: &str| {
        let kind = if role == "assistant" { "output_text" } else { "input_text" };
        line("response_item", json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]}))
    };
    // All in one turn: nothing but its end can be shown of it.
    lines.push(line("event_msg", json!({"type": "task_started", "turn_id": "turn"})));
    lines.push(said("user", "a long task"));
    lines.push(line("event_msg", json!({"type": "user_message", "message": "a long task"})));
    lines.extend((0..5000).map(|number| said("assistant", &format!("step {number} of many"))));
    lines.push(line("event_msg", json!({"type": "task_complete", "turn_id": "turn", "last_agent_message": "step 4999 of many"})));
    let rollout = scene.work.path().join(format!("rollout-2026-11-15T23-01-09-{ID}.jsonl"));
    std::fs::write(&rollout, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let imported = scene.command(&["thread", "import", rollout.to_str().unwrap()]).output().unwrap();
    assert!(imported.status.success(), "{imported:?}");
    let mut terminal = open(&scene, &["resume", ID, "-c", "model_context_window=10000000"]);
    terminal.wait_for_row("step 4999 of many");
    let everything = terminal.everything();
    let shown = everything.iter().filter(|row| row.starts_with("step ")).count();
    assert!((100..=200).contains(&shown), "{shown} items are drawn");
    assert!(everything.iter().any(|row| row.contains("earlier messages of this turn")), "{:?}", &everything[..4]);
    terminal.type_keys("go on\r");
    terminal.wait_for_row("still here");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}
