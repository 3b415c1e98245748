//! `outpost chat` as it is drawn on a terminal: a real terminal, and a model of what it shows.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use outpost_testkit::TestTerminal;
use outpost_testkit::executor::eventually;
use outpost_testkit::model::{Reply, call, message};
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

#[tokio::test(flavor = "multi_thread")]
async fn commands_of_the_conversation_do_what_they_say() {
    let scene = Scene::new(vec![Reply::message("first answer"), Reply::message("second answer")]).await;
    std::fs::create_dir(scene.work.path().join("folder")).unwrap();
    std::fs::write(scene.work.path().join("folder/file-name.txt"), "").unwrap();
    let mut terminal = open(&scene, &[]);
    for (typed, seen) in [
        ("/help\r", "Ctrl-R"),
        ("/model\r", "model scripted of provider scripted"),
        ("/model other\r", "from the next step on: model other"),
        ("/env\r", "* local"),
        ("/ps\r", "no command runs in the background"),
        ("/stop\r", "0 stopped"),
        ("/why\r", "no capability roots"),
        ("/diff\r", "no patch changed a file"),
        ("/nonsense\r", "there is no `/nonsense`"),
        ("!echo from $((20 + 3)) me\r", "  from 23 me"),
    ] {
        terminal.type_keys(typed);
        terminal.wait_for_row(seen);
    }
    terminal.type_keys("hello\r");
    terminal.wait_for_row("first answer");
    assert_eq!(scene.model.requests().pop().unwrap().body["model"], "other");
    terminal.type_keys("/status\r");
    terminal.wait_for_row("environments   local (ready)");
    terminal.wait_for_row("approvals      untrusted");
    terminal.type_keys("/export talk.md\r");
    terminal.wait_for_row("written to talk.md");
    assert!(std::fs::read_to_string(scene.work.path().join("talk.md")).unwrap().contains("first answer"));
    // Completion: a command, and a path of the environment.
    terminal.type_keys("/exp\t");
    terminal.wait_until("the command is completed", |_| typed_row(&terminal) == "> /export");
    terminal.type_keys("\x15see @fol\t");
    terminal.wait_until("the folder is completed", |_| typed_row(&terminal) == "> see @folder/");
    terminal.type_keys("\t");
    terminal.wait_until("the file is completed", |_| typed_row(&terminal) == "> see @folder/file-name.txt");
    terminal.type_keys("\x15/revert\r");
    terminal.wait_for_row("does not count any more");
    terminal.type_keys("again\r");
    terminal.wait_for_row("second answer");
    assert!(!scene.told().contains(&"hello".to_owned()), "{:?}", scene.told());
    let thread =
        |terminal: &TestTerminal| terminal.rows().iter().rev().find_map(|row| row.split("thread ").nth(1)?.get(..36).map(str::to_owned));
    terminal.type_keys("/thread\r");
    terminal.wait_for_row("outpost chat resume");
    let first = thread(&terminal).unwrap();
    terminal.type_keys("/fork\r");
    terminal.wait_until("another thread", |_| thread(&terminal).is_some_and(|id| id != first));
    terminal.wait_for_row("/help");
    // Back by the list: the newest is the fork.
    terminal.type_keys("/resume\r");
    terminal.wait_for_row("Which thread?");
    terminal.type_keys("\x1b[B\r");
    terminal.wait_until("the first thread", |_| thread(&terminal).is_some_and(|id| id == first));
    terminal.wait_for_row("/help");
    terminal.type_keys("/new\r");
    terminal.wait_until("a new thread", |_| thread(&terminal).is_some_and(|id| id != first));
    terminal.wait_for_row("/help");
    terminal.type_keys("/quit\r");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn outpost_alone_opens_it_and_resume_offers_a_list() {
    let scene = Scene::new(vec![Reply::message("one"), Reply::message("two")]).await;
    let mut terminal = TestTerminal::start(&command(&scene, &[]));
    terminal.wait_for_row("/help");
    terminal.type_keys("find me later\r");
    terminal.wait_for_row("one");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    let mut terminal = TestTerminal::start(&command(&scene, &["chat", "resume"]));
    terminal.wait_for_row("find me later");
    terminal.type_keys("\r");
    terminal.wait_for_row("/help");
    terminal.type_keys("more\r");
    terminal.wait_for_row("two");
    assert_eq!(scene.told(), ["find me later", "more"]);
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    let mut terminal = TestTerminal::start(&command(&scene, &["chat", "resume"]));
    terminal.wait_for_row("Which thread?");
    terminal.type_keys("\x1b");
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
