//! The command line against a running server: `--server URL` and `[client] server`.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use outpost_testkit::TestTerminal;
use outpost_testkit::model::{Reply, ScriptedModel};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Server, command, joined, outpost};

/// A server with an executor that has joined as `gpu`, and the home of a user who has neither.
struct Desk {
    server: Server,
    token: String,
    home: TempDir,
    _gpu: outpost_testkit::ExecutorProcess,
}

impl Desk {
    fn new() -> Self {
        let server = Server::start();
        let gpu = joined(server.url(), "gpu", &server.token(&["--executor", "gpu"]));
        let token = server.token(&["--client"]);
        Self { server, token, home: tempfile::tempdir().unwrap(), _gpu: gpu }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let arguments = [&["--server", self.server.url()], arguments].concat();
        command(self.home.path(), &arguments).env("OUTPOST_TOKEN", &self.token).output().unwrap()
    }

    fn works(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

fn id_of(lines: &str) -> String {
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    first["thread_id"].as_str().unwrap().to_owned()
}

#[test]
fn verbs_work_with_the_environments_and_threads_of_a_server() {
    let desk = Desk::new();
    let listed: Value = serde_json::from_str(&desk.works(&["env", "list", "--json"])).unwrap();
    let names: Vec<&str> = listed["environments"].as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert!(names.contains(&"gpu") && names.contains(&"local"), "{names:?}");
    assert!(desk.works(&["env", "list"]).contains("gpu"));
    // A turn on the joined executor, with its output, and another one in the same thread.
    let lines = desk.works(&["exec", "--json", "-e", "gpu=/tmp", "$ echo from-$((40 + 2)); pwd"]);
    assert!(lines.contains("from-42") && lines.contains("/tmp") && lines.contains("\"gpu\""), "{lines}");
    assert!(lines.contains("turn.completed"), "{lines}");
    let id = id_of(&lines);
    let output = desk.run(&["exec", "resume", &id, "$ echo again; false"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("again") && output.status.code() == Some(1), "{output:?}");
    // The thread is the server's, not this home's.
    assert!(desk.works(&["thread", "list"]).contains(&id));
    assert!(desk.works(&["thread", "show", &id]).contains("from-42"));
    assert!(String::from_utf8(outpost(desk.home.path(), &["thread", "list"]).stdout).unwrap().contains("no threads"));
    desk.works(&["thread", "rename", &id[id.len() - 8..], "the answer"]);
    assert!(desk.works(&["thread", "list"]).contains("the answer"));
    // What its roots come to, as the server sees them.
    let lines = desk.works(&["exec", "--json", "-e", "gpu=/tmp", "--root", "gone=gpu:/not/there", "$ true"]);
    let why = desk.works(&["thread", "why", &id_of(&lines)]);
    assert!(why.starts_with("out  gone  gpu:/not/there\n") && why.contains("No such file"), "{why}");
    let why: Value = serde_json::from_str(&desk.works(&["thread", "why", &id_of(&lines), "--json"])).unwrap();
    assert_eq!((&why["roots"][0]["id"], &why["roots"][0]["available"]), (&json!("gone"), &json!(false)));
    let fork = desk.works(&["thread", "fork", "the answer"]);
    assert!(desk.works(&["thread", "show", fork.trim()]).contains("from-42"));
    assert!(desk.works(&["thread", "verify", &id]).contains("whole"));
    desk.works(&["thread", "archive", &id]);
    assert!(desk.works(&["thread", "list", "--archived"]).contains(&id));
    desk.works(&["thread", "unarchive", &id]);
    assert!(desk.works(&["thread", "list"]).contains(&id) && !desk.works(&["thread", "list", "--archived"]).contains(&id));
    let page = desk.home.path().join("page.md");
    desk.works(&["thread", "export", &id, "--markdown", "-o", page.to_str().unwrap()]);
    let page = std::fs::read_to_string(&page).unwrap();
    assert!(page.contains("from-42") && page.contains("again"), "{page}");
    desk.works(&["thread", "rm", "--yes", fork.trim()]);
    assert!(!desk.works(&["thread", "list"]).contains(fork.trim()));
}

#[test]
fn the_configuration_can_name_the_server_and_its_token() {
    let desk = Desk::new();
    let file = desk.home.path().join("hub.token");
    std::fs::write(&file, &desk.token).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let config = format!("[client]\nserver = \"{}\"\ntoken_file = \"{}\"\n", desk.server.url(), file.display());
    std::fs::write(desk.home.path().join("config.toml"), config).unwrap();
    let listed = outpost(desk.home.path(), &["env", "list"]);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("gpu"), "{listed:?}");
    let here = outpost(desk.home.path(), &["env", "list", "-c", "client.server="]);
    assert!(!String::from_utf8_lossy(&here.stdout).contains("gpu"), "{here:?}");
}

#[test]
fn what_cannot_work_with_a_server_says_so() {
    let desk = Desk::new();
    let message = desk.refused(&["run", "-e", "gpu", "--", "true"]);
    assert!(message.contains("outpost exec --server URL"), "{message}");
    assert!(desk.refused(&["thread", "repair", "abc"]).contains("on the server's machine"));
    assert!(desk.refused(&["exec", "--cd", "/tmp", "$ true"]).contains("-e ENV=DIR"));
    assert!(desk.refused(&["exec", "-e", "nowhere", "$ true"]).contains("has no environment `nowhere`"));
    assert!(desk.refused(&["exec", "resume", "nothing", "$ true"]).contains("has no thread `nothing`"));
    let stranger = command(desk.home.path(), &["env", "list", "--server", desk.server.url()]).output().unwrap();
    assert!(String::from_utf8_lossy(&stranger.stderr).contains("OUTPOST_TOKEN"), "{stranger:?}");
}

#[test]
fn a_conversation_over_a_server_goes_line_by_line() {
    let desk = Desk::new();
    let arguments = ["chat", "-e", "gpu=/tmp", "--server", desk.server.url()];
    let mut chat = command(desk.home.path(), &arguments)
        .env("OUTPOST_TOKEN", &desk.token)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut chat.stdin.take().unwrap(), b"$ echo one-$((1 + 0))\n/status\n/env\n$ echo two-$((1 + 1))\n").unwrap();
    let output = chat.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    for word in ["one-1", "two-2", "* gpu", "offline"] {
        assert!(told.contains(word), "{word}: {told}");
    }
}

/// On a terminal it is drawn as one with threads of this home: completion there, questions as a menu, forks, and a list of the server's threads.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_over_a_server_is_drawn_on_a_terminal() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("config.toml"), "approval_policy = \"untrusted\"\nsandbox_mode = \"danger-full-access\"\n").unwrap();
    let server = Server::start_in(home, &["--listen", "ws://127.0.0.1:0"]);
    let (token, own, work) = (server.token(&["--client"]), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let _gpu = joined(server.url(), "gpu", &server.token(&["--executor", "gpu"]));
    std::fs::create_dir(work.path().join("folder")).unwrap();
    let start = |words: &[&str]| {
        let mut chat = command(own.path(), &[&["chat"], words, &["--server", server.url()]].concat());
        chat.env("OUTPOST_TOKEN", &token).env("TERM", "xterm").env_remove("OUTPOST_PLAIN").env_remove("NO_COLOR");
        TestTerminal::start(&chat)
    };
    let typed = |terminal: &TestTerminal| terminal.rows()[usize::from(terminal.cursor().0)].clone();
    let mut terminal = start(&["-e", &format!("gpu={}", work.path().display())]);
    terminal.wait_for_row("/help");
    terminal.type_keys("see @fol\t");
    terminal.wait_until("a folder of that machine", |_| typed(&terminal) == "> see @folder/");
    terminal.type_keys("\x15$ touch made\r");
    terminal.wait_for_row("> y  Yes, once");
    assert!(terminal.rows().iter().any(|row| row.contains("environment    gpu")), "{:?}", terminal.rows());
    assert!(!work.path().join("made").exists());
    terminal.type_keys("\r");
    appears(&work.path().join("made"));
    terminal.wait_for_row("/help");
    terminal.type_keys("$ touch refused\r");
    terminal.wait_for_row("$ touch refused");
    terminal.wait_for_row("> y  Yes, once");
    terminal.type_keys("n");
    terminal.wait_for_row("/help");
    terminal.type_keys("/status\r");
    terminal.wait_for_row("environments   gpu (ready)");
    let thread =
        |terminal: &TestTerminal| terminal.rows().iter().rev().find_map(|row| row.split("thread ").nth(1)?.get(..36).map(str::to_owned));
    terminal.type_keys("/thread\r");
    terminal.wait_for_row("outpost chat resume");
    let first = thread(&terminal).unwrap();
    terminal.type_keys("/fork\r");
    terminal.wait_until("another thread", |_| thread(&terminal).is_some_and(|id| id != first));
    terminal.wait_for_row("/help");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    assert!(!work.path().join("refused").exists());
    let mut terminal = start(&["resume"]);
    terminal.wait_for_row("Which thread?");
    terminal.wait_for_row("touch made");
    terminal.type_keys("\x1b[B\r");
    terminal.wait_until("the first thread", |_| thread(&terminal).is_some_and(|id| id == first));
    terminal.wait_for_row("/help");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// A server with a scripted model that may do everything.
async fn scripted(replies: Vec<Reply>) -> (Server, ScriptedModel) {
    let (model, home) = (ScriptedModel::with(replies).await, tempfile::tempdir().unwrap());
    let config = format!(
        "model = \"scripted\"\nmodel_provider = \"scripted\"\nsandbox_mode = \"danger-full-access\"\napproval_policy = \"never\"\n\
         [model_providers.scripted]\nbase_url = \"{}\"\n",
        model.base_url()
    );
    std::fs::write(home.path().join("config.toml"), config).unwrap();
    (Server::start_in(home, &["--listen", "ws://127.0.0.1:0"]), model)
}

/// Commands of a conversation are carried out by the server that drives the thread.
#[tokio::test(flavor = "multi_thread")]
async fn commands_of_a_conversation_work_over_a_server() {
    let waits = json!({"cmd": "sh -c \"while [ ! -e over ]; do sleep 0.02; done\"", "yield_time_ms": 250});
    let replies = [
        Reply::call("a", "exec_command", &waits),
        Reply::message("it runs on"),
        Reply::message("to be taken back"),
        Reply::message("a summary"),
        Reply::message("the end"),
    ];
    let (server, model) = scripted(replies.into()).await;
    let (token, own, work) = (server.token(&["--client"]), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let place = format!("local={}", work.path().display());
    let mut chat = command(own.path(), &["chat", "-e", &place, "--server", server.url()]);
    chat.env("OUTPOST_TOKEN", &token).env("TERM", "xterm").env_remove("OUTPOST_PLAIN").env_remove("NO_COLOR");
    let mut terminal = TestTerminal::start(chat.current_dir(own.path()));
    terminal.wait_for_row("/help");
    let clear = |terminal: &mut TestTerminal| {
        terminal.type_keys("\x0c");
        terminal.wait_until("an empty screen", |rows| rows[0] == ">");
    };
    terminal.type_keys("begin\r");
    terminal.wait_for_row("it runs on");
    terminal.wait_for_row("1 in background");
    // The server tells how much room its model has.
    terminal.wait_for_row("% context left");
    clear(&mut terminal);
    terminal.type_keys("/ps\r");
    terminal.wait_for_row("while [ ! -e over ]");
    terminal.type_keys("/stop\r");
    terminal.wait_for_row("1 stopped");
    terminal.wait_until("nothing in the background", |rows| rows.iter().all(|row| !row.contains("in background")));
    clear(&mut terminal);
    terminal.type_keys("/ps\r");
    terminal.wait_for_row("no command runs in the background");
    terminal.type_keys("!echo from $((20 + 3)) > made; cat made\r");
    terminal.wait_for_row("  from 23");
    assert_eq!(std::fs::read_to_string(work.path().join("made")).unwrap(), "from 23\n");
    terminal.wait_for_row("/help");
    terminal.type_keys("/model other\r");
    terminal.wait_for_row("from the next step on: model other");
    terminal.type_keys("forget this\r");
    terminal.wait_for_row("to be taken back");
    assert_eq!(model.requests().pop().unwrap().body["model"], "other");
    terminal.wait_for_row("/help");
    terminal.type_keys("/export talk.md\r");
    terminal.wait_for_row("written to talk.md");
    assert!(std::fs::read_to_string(own.path().join("talk.md")).unwrap().contains("to be taken back"), "the file is the user's");
    terminal.type_keys("/revert\r");
    terminal.wait_for_row("does not count any more");
    terminal.type_keys("/compact\r");
    terminal.wait_for_row("the conversation was summed up");
    terminal.wait_for_row("/help");
    terminal.type_keys("go on\r");
    terminal.wait_for_row("the end");
    let body = model.requests().pop().unwrap().body.to_string();
    assert!(body.contains("a summary") && !body.contains("forget this"), "{body}");
    terminal.type_keys("/why\r");
    terminal.wait_for_row("no capability roots");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    // When it is taken up again, how much room is left is known at once, and not only after the next answer.
    let mut chat = command(own.path(), &["chat", "resume", "--last", "--server", server.url()]);
    chat.env("OUTPOST_TOKEN", &token).env("TERM", "xterm").env_remove("OUTPOST_PLAIN").env_remove("NO_COLOR");
    let mut terminal = TestTerminal::start(chat.current_dir(own.path()));
    terminal.wait_for_row("% context left");
    terminal.type_keys("\x04");
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
}

/// What a user is told to type, with what they have in their environment.
fn hint_in<'a>(told: &'a str, begin: &str) -> Vec<&'a str> {
    let hint = told.split('`').find(|part| part.starts_with(begin)).unwrap_or_else(|| panic!("no hint begins with `{begin}`: {told}"));
    hint.split(' ').skip(1).collect()
}

#[test]
fn hints_lead_to_the_thread_of_the_server() {
    let desk = Desk::new();
    let begun = desk.home.path().join("begun");
    let prompt = format!("$ touch {}; sleep 1000", begun.display());
    let arguments = ["exec", "-s", "danger-full-access", "-e", "gpu=/tmp", "--server", desk.server.url(), &prompt];
    let exec = command(desk.home.path(), &arguments).env("OUTPOST_TOKEN", &desk.token).stderr(Stdio::piped()).spawn().unwrap();
    appears(&begun);
    let pid = rustix::process::Pid::from_child(&exec);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let told = String::from_utf8(exec.wait_with_output().unwrap().stderr).unwrap();
    let run = |words: &[&str]| command(desk.home.path(), words).env("OUTPOST_TOKEN", &desk.token).output().unwrap();
    // As it is printed it finds the thread; with another prompt it goes on with it.
    let resumed = run(&[&hint_in(&told, "outpost exec resume")[..], &["$ echo went-$((40 + 2))"]].concat());
    let shown = String::from_utf8_lossy(&resumed.stderr).into_owned();
    assert!(shown.contains("went-42"), "{resumed:?}");
    // So does what a conversation says at its end.
    let mut chat = command(desk.home.path(), &["chat", "-e", "gpu=/tmp", "--server", desk.server.url()]);
    let chat = chat.env("OUTPOST_TOKEN", &desk.token).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut chat = chat.unwrap();
    std::io::Write::write_all(&mut chat.stdin.take().unwrap(), b"$ echo one-$((1 + 0))\n/thread\n").unwrap();
    let told = String::from_utf8(chat.wait_with_output().unwrap().stderr).unwrap();
    let hints: Vec<&str> = told.split('`').filter(|part| part.starts_with("outpost chat resume")).collect();
    assert!(hints.len() == 2 && hints[0] == hints[1], "{told}");
    let again = run(&hint_in(&told, "outpost chat resume"));
    assert!(again.status.success() && String::from_utf8_lossy(&again.stderr).contains("> $ echo one-"), "{again:?}");
}

/// What still runs is followed and stopped where the thread is: `--wait` and `--stop` are for threads of this home.
#[tokio::test(flavor = "multi_thread")]
async fn what_still_runs_at_a_server_is_stopped_there() {
    let waits = json!({"cmd": "sh -c \"while [ ! -e over ]; do sleep 0.02; done\"", "yield_time_ms": 250});
    let (server, _model) = scripted(vec![Reply::call("a", "exec_command", &waits), Reply::message("it runs on")]).await;
    let (token, own) = (server.token(&["--client"]), tempfile::tempdir().unwrap());
    let run = |words: &[&str]| command(own.path(), words);
    let begun = run(&["exec", "--server", server.url(), "go"]).env("OUTPOST_TOKEN", &token).output().unwrap();
    let told = String::from_utf8(begun.stderr).unwrap();
    assert!(told.contains("still runs") && !told.contains("--wait"), "{told}");
    let mut chat = run(&hint_in(&told, "outpost chat resume"))
        .env("OUTPOST_TOKEN", &token)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut chat.stdin.take().unwrap(), b"/ps\n/stop\n").unwrap();
    let told = String::from_utf8(chat.wait_with_output().unwrap().stderr).unwrap();
    assert!(told.contains("while [ ! -e over ]") && told.contains("1 stopped"), "{told}");
}

#[test]
fn a_detached_turn_goes_on_at_the_server() {
    let desk = Desk::new();
    let file = desk.home.path().join("done");
    let prompt = format!("$ sleep 1; echo finished > {}", file.display());
    let id = desk.works(&["exec", "--detach", "-s", "danger-full-access", "-e", "gpu=/tmp", &prompt]).trim().to_owned();
    appears(&file);
    assert!(desk.works(&["thread", "show", &id]).contains("sleep 1"));
}

fn appears(file: &Path) {
    let until = Instant::now() + Duration::from_secs(120);
    while !file.exists() {
        assert!(Instant::now() < until, "{} does not appear", file.display());
        std::thread::sleep(Duration::from_millis(50));
    }
}
