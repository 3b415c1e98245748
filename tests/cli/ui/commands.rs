//! Commands of a conversation, and the list of threads.

use std::path::Path;

use outpost_testkit::model::{Reply, call};
use outpost_testkit::{ExecutorProcess, TestTerminal};
use serde_json::json;

use super::{command, has, open, row_below_cursor, typed_row};
use crate::OUTPOST;
use crate::chat::Scene;

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

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_summed_up_and_goes_on_elsewhere() {
    let scene = Scene::new(vec![Reply::message("first answer"), Reply::message("a summary"), Reply::message("second answer")]).await;
    let folder = scene.work.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("hello\r");
    terminal.wait_for_row("first answer");
    terminal.wait_for_row("/help");
    terminal.type_keys("/compact\r");
    terminal.wait_for_row("the conversation was summed up");
    terminal.type_keys(&format!("/env local={}\r", folder.display()));
    terminal.wait_for_row("from the next step on: local");
    terminal.type_keys("go on\r");
    terminal.wait_for_row("second answer");
    let body = scene.model.requests().pop().unwrap().body.to_string();
    assert!(body.contains("a summary") && body.contains(folder.to_str().unwrap()), "{body}");
    terminal.type_keys("/env nowhere\r");
    terminal.wait_for_row("nowhere");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// `@path` and `!command` are of the environment that is selected, whichever machine and directory the program was started in.
#[tokio::test(flavor = "multi_thread")]
async fn paths_and_commands_are_those_of_the_selected_environment() {
    let scene = Scene::new(vec![]).await;
    let (executor, far) = (ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]), tempfile::tempdir().unwrap());
    let entry = format!("[[environments]]\nid = \"worker\"\nurl = \"{}\"\n", executor.url());
    std::fs::write(scene.home.path().join("environments.toml"), entry).unwrap();
    std::fs::write(scene.work.path().join("near-by.txt"), "").unwrap();
    std::fs::write(far.path().join("far-away.txt"), "").unwrap();
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("see @far\t");
    terminal.wait_for_row("nothing begins like that");
    terminal.type_keys(&format!("\x15/env worker={}\r", far.path().display()));
    terminal.wait_for_row("from the next step on: worker");
    terminal.type_keys("see @far\t");
    terminal.wait_until("a file of that machine", |_| typed_row(&terminal) == "> see @far-away.txt");
    terminal.type_keys("\x15see @near\t");
    terminal.wait_for_row("nothing begins like that");
    terminal.type_keys("\x15!echo from $(pwd)\r");
    terminal.wait_for_row("[worker] $ echo from");
    terminal.wait_for_row(&format!("  from {}", far.path().display()));
    // A machine that is gone has no files, and keeps no key waiting.
    drop(executor);
    terminal.type_keys("see @far\t and on");
    terminal.wait_until("what is typed", |_| typed_row(&terminal) == "> see @far and on");
    terminal.type_keys("\x03\x03");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_take_the_names_of_threads_processes_and_files() {
    let waits = |id: &str, file: &str| {
        let script = format!("sh -c \"while [ ! -e {file} ]; do sleep 0.02; done\"");
        call(id, "exec_command", &json!({"cmd": script, "yield_time_ms": 250}))
    };
    let scene = Scene::new(vec![Reply::Items(vec![waits("a", "first-file"), waits("b", "second-file")]), Reply::message("both run")]).await;
    let mut terminal = open(&scene, &[]);
    terminal.type_keys("go\r");
    terminal.wait_for_row("both run");
    terminal.wait_until("two in the background", |_| row_below_cursor(&terminal, 1).contains("2 in background"));
    terminal.type_keys("/ps\r");
    let number_of = |rows: &[String], file: &str| {
        let listed = rows.iter().filter(|row| row.contains(file)).filter_map(|row| row.strip_prefix("▌ ")?.split_whitespace().next());
        listed.filter_map(|number| number.parse::<u64>().ok()).next()
    };
    terminal.wait_until("both", |rows| number_of(rows, "first-file").is_some() && number_of(rows, "second-file").is_some());
    let second = number_of(&terminal.rows(), "second-file").unwrap();
    terminal.type_keys(&format!("/stop {second}\r"));
    terminal.wait_for_row("1 stopped");
    terminal.wait_until("the other one", |_| row_below_cursor(&terminal, 1).contains("1 in background"));
    terminal.type_keys("/stop it\r");
    terminal.wait_for_row("/stop takes the number of a command");
    terminal.type_keys("\x0c");
    terminal.wait_until("an empty screen", |rows| rows[0] == ">");
    terminal.type_keys("/ps\r");
    terminal.wait_for_row("first-file");
    assert!(!has(&terminal, "second-file"), "{:?}", terminal.rows());
    // Without a name, a file of the thread's own.
    terminal.type_keys("/export\r");
    terminal.wait_for_row("written to outpost-");
    let written: Vec<String> = std::fs::read_dir(scene.work.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("outpost-") && name.ends_with(".md"))
        .collect();
    let [written] = &written[..] else { panic!("{written:?}") };
    let id = written.trim_start_matches("outpost-").trim_end_matches(".md");
    assert!(std::fs::read_to_string(scene.work.path().join(written)).unwrap().contains("both run"));
    // A thread by the end of its id; a name that is none changes nothing.
    terminal.type_keys("/new\r");
    terminal.wait_until("a new thread", |_| !row_below_cursor(&terminal, 1).contains("in background"));
    terminal.wait_for_row("/help");
    terminal.type_keys("/resume nowhere\r");
    terminal.wait_for_row("there is no thread `nowhere`");
    terminal.type_keys("\x0c");
    terminal.wait_until("an empty screen", |rows| rows[0] == ">");
    terminal.type_keys(&format!("/resume {}\r", &id[id.len() - 8..]));
    terminal.wait_for_row(&format!("thread {id}"));
    terminal.wait_until("its command still runs", |_| row_below_cursor(&terminal, 1).contains("1 in background"));
    terminal.type_keys("/stop\r");
    terminal.wait_for_row("1 stopped");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}
