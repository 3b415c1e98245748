//! `outpost chat` as it is drawn on a terminal: a real terminal, and a model of what it shows.

mod approvals;
mod commands;
mod faults;

use std::process::Command;
use std::time::Duration;

use outpost_testkit::TestTerminal;
use outpost_testkit::model::{Reply, call};
use serde_json::json;

use crate::OUTPOST;
use crate::chat::{Scene, run};

fn command(scene: &Scene, arguments: &[&str]) -> Command {
    let mut command = scene.command(arguments);
    command.env_remove("OUTPOST_PLAIN").current_dir(scene.work.path());
    command
}

/// A conversation whose prompt is there.
fn open(scene: &Scene, arguments: &[&str]) -> TestTerminal {
    let terminal = TestTerminal::start(&command(scene, &[&["chat"], arguments].concat()));
    terminal.wait_for_row("/help");
    terminal
}

fn has(terminal: &TestTerminal, text: &str) -> bool {
    terminal.rows().iter().any(|row| row.contains(text))
}

/// The row that the cursor is in.
fn typed_row(terminal: &TestTerminal) -> String {
    row_below_cursor(terminal, 0)
}

/// So many rows below the one that is typed in, in one picture.
fn row_below_cursor(terminal: &TestTerminal, further: usize) -> String {
    let screen = terminal.snapshot();
    let at = usize::from(screen.cursor_position().0) + further;
    screen.rows(0, screen.size().1.get()).nth(at).unwrap_or_default().trim_end().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_edit_what_is_typed_and_history_comes_back() {
    let scene = Scene::new(vec![Reply::message("one"), Reply::message("two"), Reply::message("three")]).await;
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("hallo\x1b[D\x1b[D\x1b[D\x1b[De\x1b[3~\x05 wrld\x1b[D\x1b[D\x1b[Do");
    terminal.wait_for_row("> hello world");
    terminal.wait_until("the cursor within the word", |_| terminal.cursor().1 == 10);
    terminal.type_keys("\x01\x1b[200~pasted\r\nlines \x1b[201~");
    terminal.wait_for_row("lines hello world");
    assert!(scene.model.requests().is_empty(), "a line end in a paste sends nothing");
    terminal.type_keys("\r");
    terminal.wait_for_row("one");
    assert_eq!(scene.told(), ["pasted\nlines hello world"]);
    // Wide characters take two columns, and a line goes on after a backslash.
    terminal.type_keys("日本\\\rab");
    terminal.wait_until("the second line", |_| typed_row(&terminal) == "  ab" && terminal.cursor().1 == 4);
    terminal.type_keys("\x1b[A\x7f");
    terminal.wait_until("one character less", |rows| rows.iter().any(|row| row == "> 本") && terminal.cursor().1 == 2);
    terminal.type_keys("\r");
    terminal.wait_for_row("two");
    assert_eq!(scene.told().pop().unwrap(), "本\nab");
    terminal.type_keys("\x1b[A\x1b[A\x1b[A\x1b[A");
    terminal.wait_for_row("> pasted");
    terminal.type_keys("\x15\x1b[B\x1b[B\x1b[B");
    terminal.type_keys("\x03");
    // In another conversation in the same directory, found by a part of it.
    terminal.wait_for_row("Ctrl-C again leaves");
    terminal.type_keys("\x03");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    assert!(!terminal.is_raw(), "the terminal is as it was");
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("\x12hello");
    terminal.wait_for_row("search: hello");
    terminal.type_keys("\r");
    terminal.wait_for_row("three");
    assert_eq!(scene.told(), ["pasted\nlines hello world"]);
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_drawn_as_markdown_while_it_streams() {
    let text = "# Title\n\nSome **bold** text.\n\n- item one\n\n```rust\nlet x = 1;\n```\n\nevil \x1b[2J\x1b]0;t\x07 end\n";
    let scene = Scene::new(vec![Reply::streamed(text)]).await;
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("go\r");
    terminal.wait_until("the whole answer", |rows| rows.iter().any(|row| row.contains("evil <U+001B>[2J<U+001B>]0;t<U+0007> end")));
    for row in ["Title", "Some bold text.", "• item one", "  let x = 1;"] {
        assert!(terminal.rows().iter().any(|seen| seen == row), "{row:?}: {:?}", terminal.rows());
    }
    assert_ne!(terminal.colour_of("let x"), terminal.colour_of("Some"), "code has colours");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_command_shows_its_last_lines_and_is_folded_at_its_end() {
    let script = "for n in $(seq 1 300); do echo line-$n; done; while [ ! -e go ]; do sleep 0.01; done; printf \"half\\\\rwhole\\\\033[2J\\\\n\"; exit 3";
    let scene = Scene::new(vec![Reply::Items(vec![run("a", script)]), Reply::message("done")]).await;
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("go\r");
    terminal.wait_until("the last lines", |rows| {
        rows.iter().any(|row| row == "  line-300") && rows.iter().any(|row| row.contains("300 lines"))
    });
    assert!(!has(&terminal, "line-200"), "{:?}", terminal.rows());
    // Keys are for the editor meanwhile, and the row below stays where it is.
    terminal.type_keys("typed meanwhile");
    terminal.wait_for_row("> typed meanwhile");
    assert!(row_below_cursor(&terminal, 1).contains("Esc stops"), "{:?}", terminal.rows());
    std::fs::write(scene.work.path().join("go"), "").unwrap();
    terminal.wait_for_row("done");
    for row in ["  line-1", "  line-8", "  line-300", "  <U+000D>whole<U+001B>[2J"] {
        assert!(terminal.rows().iter().any(|seen| seen == row), "{row:?}: {:?}", terminal.rows());
    }
    assert!(has(&terminal, "… 285 lines (") && has(&terminal, "exit code 3"), "{:?}", terminal.rows());
    assert_eq!(typed_row(&terminal), "> typed meanwhile");
    terminal.type_keys("\x03\x03");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn escape_stops_the_turn_and_ctrl_c_twice_leaves() {
    let scene = Scene::new(vec![
        Reply::Items(vec![run("a", "echo endless; sleep 1000")]),
        Reply::Items(vec![run("b", "echo endless; sleep 1000")]),
    ])
    .await;
    let mut terminal = open(&scene, &[]);
    for (number, key) in ["\x1b", "\x03"].into_iter().enumerate() {
        terminal.type_keys("never end\r");
        terminal.wait_for_row("  endless");
        terminal.wait_for_row("Esc stops");
        terminal.type_keys(key);
        terminal.wait_for_times("the turn was interrupted", number + 1);
        terminal.wait_for_row("/help");
        assert!(has(&terminal, "  endless"), "what was printed stays: {:?}", terminal.rows());
    }
    terminal.type_keys("\x03\x03");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    terminal.wait_for("goes on with this thread");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_a_check_list_and_a_patch_a_coloured_difference() {
    let plan = json!({"plan": [{"step": "look", "status": "completed"}, {"step": "change it", "status": "in_progress"}, {"step": "test", "status": "pending"}]});
    let patch = json!({"input": "*** Begin Patch\n*** Update File: a.txt\n@@\n-old line\n+new line\n*** End Patch\n"});
    let scene =
        Scene::new(vec![Reply::call("a", "update_plan", &plan), Reply::call("b", "apply_patch", &patch), Reply::message("done")]).await;
    std::fs::write(scene.work.path().join("a.txt"), "old line\n").unwrap();
    let mut terminal = open(&scene, &["-c", "approval_policy=never"]);
    terminal.type_keys("go\r");
    terminal.wait_for_row("done");
    for row in ["[x] look", "[>] change it", "[ ] test", "(+1 -1)", "  -old line", "  +new line"] {
        assert!(has(&terminal, row), "{row:?}: {:?}", terminal.rows());
    }
    assert_ne!(terminal.colour_of("-old line"), terminal.colour_of("+new line"));
    terminal.type_keys("/diff\r");
    terminal.wait_until("the difference again", |rows| rows.iter().filter(|row| row.contains("+new line")).count() == 2);
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// For screen readers, logs and simple terminals: nothing is ever drawn anew.
#[tokio::test(flavor = "multi_thread")]
async fn plain_lines_where_they_are_wanted() {
    let scene = Scene::new(vec![]).await;
    let with = |name: &str, value: &str| {
        let mut command = command(&scene, &["chat"]);
        command.env(name, value);
        command
    };
    let asked_for = command(&scene, &["chat", "--plain"]);
    for command in [with("NO_COLOR", "1"), with("OUTPOST_PLAIN", "1"), with("TERM", "dumb"), asked_for, narrow(&scene)] {
        let mut terminal = TestTerminal::start(&command);
        terminal.wait_for("Ctrl-D leaves");
        terminal.type_keys("hi\r");
        terminal.wait_for("done");
        terminal.type_keys("\x04");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
        let text = terminal.text();
        assert!(!text.contains("\x1b[?2004h") && !text.contains("\x1b[J") && !text.contains("A\x1b["), "{text:?}");
    }
}

/// A model that thinks and a command that runs for seconds: a line that counts them would be read out again and again.
#[tokio::test(flavor = "multi_thread")]
async fn plain_lines_stay_as_they_are_while_something_is_waited_for() {
    let slow = Duration::from_millis(2500);
    let scene = Scene::new(vec![]).await;
    let mut coloured = command(&scene, &["chat"]);
    coloured.env("NO_COLOR", "1");
    let exec = |value: &str| {
        let mut exec = command(&scene, &["exec", "hi"]);
        exec.env("OUTPOST_PLAIN", value);
        exec
    };
    let plain = [command(&scene, &["chat", "--plain"]), coloured, narrow(&scene), exec("1")];
    for (command, redraws) in plain.into_iter().map(|command| (command, false)).chain([(exec(""), true)]) {
        let is_chat = command.get_args().all(|argument| argument != "exec");
        scene.model.push(Reply::Later(slow, Box::new(Reply::Items(vec![run("a", "sleep 2.5; echo slept")]))));
        scene.model.push(Reply::message("all over"));
        let mut terminal = TestTerminal::start(&command);
        if is_chat {
            terminal.wait_for("Ctrl-D leaves");
            terminal.type_keys("hi\r");
        }
        terminal.wait_for("all over");
        if is_chat {
            terminal.type_keys("\x04");
        }
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
        let text = terminal.text();
        assert!(text.contains("  slept"), "{text:?}");
        assert_eq!((text.contains("\x1b[K"), text.contains("… 1 s")), (redraws, redraws), "{command:?}: {text:?}");
    }
}

/// A terminal of forty columns: set before the program starts.
fn narrow(scene: &Scene) -> Command {
    let chat = command(scene, &["chat"]);
    let mut command = Command::new("sh");
    command.args(["-c", "stty cols 40; exec \"$0\" chat", OUTPOST]);
    for (name, value) in chat.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(scene.work.path());
    command
}

/// What was sent comes back in the directory that it was sent in, and in no other.
#[tokio::test(flavor = "multi_thread")]
async fn history_is_that_of_the_directory() {
    let scene = Scene::new(vec![Reply::message("one")]).await;
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("only here\r");
    terminal.wait_for_row("one");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    let elsewhere = tempfile::tempdir().unwrap();
    for (directory, typed) in [(scene.work.path(), "> only here!"), (elsewhere.path(), "> !")] {
        let mut terminal = TestTerminal::start(command(&scene, &["chat"]).current_dir(directory));
        terminal.wait_for_row("/help");
        terminal.type_keys("\x1b[A!");
        terminal.wait_until(typed, |_| typed_row(&terminal) == typed);
        terminal.type_keys("\x03\x03");
        assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    }
}

/// The answer never ends: what there is of it is drawn.
#[tokio::test(flavor = "multi_thread")]
async fn half_an_answer_is_drawn_as_markdown() {
    let delta = |text: &str| format!("data: {}\n\n", json!({"type": "response.output_text.delta", "item_id": "m", "delta": text}));
    let table = "| name | size |\n|---|---|\n| a | 1 |\n\n";
    let begun = ["# Title\n\n", "some **bold** text\n\n", table, "```rust\nlet half = 1;\n"].map(delta).concat();
    let scene = Scene::new(vec![Reply::Silent(begun)]).await;
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("go\r");
    terminal.wait_for_row("let half = 1;");
    let rows = terminal.rows();
    assert!(["Title", "some bold text"].iter().all(|wanted| rows.iter().any(|row| row == wanted)), "{rows:?}");
    assert!(
        rows.iter().any(|row| row.contains("name") && row.contains("size")) && !rows.iter().any(|row| row.contains("|---|")),
        "{rows:?}"
    );
    assert_ne!(terminal.colour_of("let half"), terminal.colour_of("some bold"), "code has colours");
    assert!(row_below_cursor(&terminal, 1).ends_with("Esc stops"), "{rows:?}");
    terminal.type_keys("\x1b");
    terminal.wait_for_row("the turn was interrupted");
    terminal.type_keys("\x03\x03");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_row_tells_where_with_what_and_how_much() {
    let waits = "while [ ! -e over ]; do sleep 0.02; done";
    let left = call("a", "exec_command", &json!({"cmd": format!("sh -c \"{waits}\""), "yield_time_ms": 250}));
    let scene = Scene::new(vec![Reply::Items(vec![left]), Reply::message("it runs on")]).await;
    let mut terminal = open(&scene, &[]);
    let status = |terminal: &TestTerminal| row_below_cursor(terminal, 1);
    terminal
        .wait_until("where and with what", |_| status(&terminal).starts_with("local · scripted ") && status(&terminal).ends_with(" /help"));
    terminal.type_keys("go\r");
    terminal.wait_until("what is spent and left", |_| {
        ["local · scripted · ", " tokens", "% context left", "1 in background", " /help"]
            .iter()
            .all(|part| status(&terminal).contains(part))
    });
    // What is typed pushes it down, and never stands below it.
    terminal.type_keys(&"typed ".repeat(40));
    terminal.wait_until("four rows and the status", |rows| {
        rows.iter().filter(|row| row.contains("typed typed")).count() >= 3 && status(&terminal).ends_with("/help")
    });
    terminal.type_keys("\x15/ps\r");
    terminal.wait_until("the command in the background", |rows| rows.iter().any(|row| row.contains(waits)));
    terminal.type_keys("/stop\r");
    terminal.wait_for_row("1 stopped");
    terminal.wait_until("nothing in the background", |_| !status(&terminal).contains("in background"));
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// How long the turn has run, and an environment that cannot be worked in, stand in the row below for as long as it is so.
#[tokio::test(flavor = "multi_thread")]
async fn the_row_below_tells_how_long_and_what_is_not_ready() {
    let scene = Scene::new(vec![Reply::Items(vec![run("a", "while [ ! -e go ]; do sleep 0.01; done")]), Reply::message("over")]).await;
    let away = "[[environments]]\nid = \"away\"\nurl = \"ws://127.0.0.1:1\"\n";
    std::fs::write(scene.home.path().join("environments.toml"), away).unwrap();
    let mut terminal = open(&scene, &[]);
    let status = |terminal: &TestTerminal| row_below_cursor(terminal, 1);
    terminal.type_keys("go\r");
    let seconds = |status: &str| status.split(" · ").find_map(|part| part.strip_suffix(" s")?.parse::<u64>().ok());
    terminal.wait_until("the first second", |_| seconds(&status(&terminal)).is_some_and(|seconds| seconds >= 1));
    std::fs::write(scene.work.path().join("go"), "").unwrap();
    terminal.wait_until("no turn, no time", |_| status(&terminal).ends_with("/help") && seconds(&status(&terminal)).is_none());
    assert!(!status(&terminal).contains('('), "{}", status(&terminal));
    terminal.type_keys("/env local away=/tmp\r");
    terminal.wait_until("how the other one stands", |_| status(&terminal).starts_with("local away ("));
    terminal.type_keys("/env local\r");
    terminal.wait_until("one environment", |_| status(&terminal).starts_with("local · "));
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// A job of a shell: Ctrl-Z gives the terminal back to it, `fg` takes up what was typed; Ctrl-L clears the screen.
#[tokio::test(flavor = "multi_thread")]
async fn the_shell_has_the_terminal_while_it_is_suspended() {
    let scene = Scene::new(vec![Reply::message("one")]).await;
    let chat = command(&scene, &["chat"]);
    let mut shell = Command::new("bash");
    shell.args(["--norc", "--noprofile", "-i"]).current_dir(scene.work.path());
    for (name, value) in chat.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let mut terminal = TestTerminal::start(&shell);
    terminal.type_keys(&format!("PS1='shell% '\r'{OUTPOST}' chat\r"));
    terminal.wait_for_row("/help");
    terminal.type_keys("a draft");
    terminal.wait_for_row("> a draft");
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.wait_until("the shell's prompt", |_| typed_row(&terminal) == "shell%");
    terminal.type_keys("echo in-$((40 + 2))\r");
    terminal.wait_for_row("in-42");
    terminal.type_keys("fg\r");
    terminal.wait_until("the draft", |_| typed_row(&terminal) == "> a draft" && row_below_cursor(&terminal, 1).ends_with("/help"));
    terminal.type_keys("\x0c");
    terminal.wait_until("an empty screen", |rows| rows[0] == "> a draft" && !rows.iter().any(|row| row.contains("in-42")));
    terminal.type_keys(" is sent\r");
    terminal.wait_for_row("one");
    assert_eq!(scene.told(), ["a draft is sent"]);
    terminal.type_keys("\x04");
    terminal.wait_until("the shell's prompt", |_| typed_row(&terminal) == "shell%");
    terminal.type_keys("exit\r");
    terminal.exit_code();
}
