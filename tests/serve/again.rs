//! Connections of the command line to a server that are cut, and servers that are started again.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outpost_testkit::cutter::Cutter;
use outpost_testkit::executor::eventually;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::{Server, command};

/// A user without a server of his own, and a place to work.
struct Desk {
    home: TempDir,
    work: TempDir,
}

impl Desk {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap(), work: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// A turn with a command that runs until there is `go`.
    fn exec(&self, url: &str, token: &str, more: &[&str]) -> Child {
        let place = format!("local={}", self.work.path().display());
        let script = "$ echo begun > begun; until [ -e go ]; do sleep 0.05; done; echo seen-$((40 + 2))";
        let arguments = [&["exec", "--json", "--server", url, "-s", "danger-full-access", "-e", &place], more, &[script]].concat();
        let mut command = command(self.home.path(), &arguments);
        command.env("OUTPOST_TOKEN", token).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    async fn begins(&self) {
        eventually("the command runs", || self.file("begun").exists()).await;
    }

    fn go(&self) {
        std::fs::write(self.file("go"), "").unwrap();
    }
}

/// What a turn printed, if everything was told once.
fn whole(output: &Output) -> String {
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}\n{lines}", String::from_utf8_lossy(&output.stderr));
    let count = |what: &str| lines.lines().filter(|line| line.contains(what)).count();
    assert_eq!((count("\"turn.started\""), count("\"turn.completed\"")), (1, 1), "{lines}");
    let ended = |line: &&str| line.contains("item.completed") && line.contains("command_execution");
    let commands: Vec<&str> = lines.lines().filter(ended).collect();
    assert!(commands.len() == 1 && commands[0].contains("seen-42"), "{lines}");
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_followed_over_cuts_without_gaps_and_doubles() {
    let server = Server::start();
    let token = server.token(&["--client"]);
    let cutter = Cutter::start(server.address(), vec![]).await;
    let desk = Desk::new();
    let turn = desk.exec(&cutter.url(), &token, &[]);
    desk.begins().await;
    // Its end comes while there is no connection.
    cutter.cut();
    let before = cutter.connections();
    desk.go();
    eventually("it tries again", || cutter.connections() > before).await;
    let threads = server.home().join("threads");
    eventually("the turn is over", || holds(&threads, "turnFinished")).await;
    cutter.mend();
    let lines = whole(&turn.wait_with_output().unwrap());
    assert_eq!(lines.matches("is back").count(), 1, "{lines}");
}

/// Whether a journal below a directory has this in it.
fn holds(directory: &Path, text: &str) -> bool {
    std::process::Command::new("grep").args(["-rqs", text]).arg(directory).status().unwrap().success()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_and_started_again_is_found_again() {
    let server = Server::start();
    let (token, url) = (server.token(&["--client"]), server.url().to_owned());
    let desk = Desk::new();
    let turn = desk.exec(&url, &token, &[]);
    desk.begins().await;
    let home = server.kill();
    let _server = Server::start_in(home, &["--listen", &url]);
    desk.go();
    whole(&turn.wait_with_output().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stays_away_is_given_up() {
    let server = Server::start();
    let token = server.token(&["--client"]);
    let desk = Desk::new();
    let turn = desk.exec(server.url(), &token, &["-c", "client.patience=1"]);
    desk.begins().await;
    let _home = server.kill();
    let output = turn.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && told.contains("did not come back within 1 seconds"), "{told}");
    desk.go();
}

/// Lines that are typed while there is no connection are carried out when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_after_a_cut() {
    let server = Server::start();
    let token = server.token(&["--client"]);
    let cutter = Cutter::start(server.address(), vec![]).await;
    let desk = Desk::new();
    let place = format!("local={}", desk.work.path().display());
    let mut command = command(desk.home.path(), &["chat", "--server", &cutter.url(), "-s", "danger-full-access", "-e", &place]);
    command.env("OUTPOST_TOKEN", &token).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut chat = command.spawn().unwrap();
    let mut typed = chat.stdin.take().unwrap();
    typed.write_all(b"$ echo 1 > one\n").unwrap();
    eventually("the first has run", || desk.file("one").exists()).await;
    cutter.cut();
    typed.write_all(b"$ echo 2 >> two\n").unwrap();
    let before = cutter.connections();
    eventually("it tries again", || cutter.connections() > before).await;
    cutter.mend();
    eventually("the second has run", || desk.file("two").exists()).await;
    drop(typed);
    let mut printed = String::new();
    chat.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert!(chat.wait().unwrap().success(), "{printed}");
    assert_eq!(std::fs::read_to_string(desk.file("two")).unwrap(), "2\n", "it ran once");
}

/// Sends a signal to a program that runs.
fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits for the end of a program, but not for ever.
async fn ended(child: Child) -> Output {
    let waiting = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    tokio::time::timeout(Duration::from_secs(120), waiting).await.expect("it ends").unwrap()
}

/// A server that hangs, and one that is gone: the first signal says so, the second ends `exec`. The turn is not waited for.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_leaves_a_turn_whose_server_does_not_answer() {
    for is_gone in [false, true] {
        let server = Server::start();
        let token = server.token(&["--client"]);
        let desk = Desk::new();
        let turn = desk.exec(server.url(), &token, &[]);
        desk.begins().await;
        // What is stopped is killed when this is over.
        let _held = match is_gone {
            true => (Some(server.kill()), None),
            false => {
                server.signal(Signal::STOP);
                (None, Some(server))
            }
        };
        tokio::time::sleep(Duration::from_millis(500)).await;
        signal(&turn, Signal::TERM);
        tokio::time::sleep(Duration::from_millis(500)).await;
        signal(&turn, Signal::TERM);
        let began = Instant::now();
        let output = ended(turn).await;
        let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains("goes on there"), "{told}");
        assert!(began.elapsed() < Duration::from_secs(60), "the patience is not over");
        assert_eq!(told.contains("is lost"), is_gone, "{told}");
        desk.go();
    }
}

/// A conversation, and where its lines go.
fn conversation(desk: &Desk, url: &str, token: &str) -> (Child, ChildStdin) {
    let place = format!("local={}", desk.work.path().display());
    let mut command = command(desk.home.path(), &["chat", "--server", url, "-s", "danger-full-access", "-e", &place]);
    command.env("OUTPOST_TOKEN", token).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut chat = command.spawn().unwrap();
    let typed = chat.stdin.take().unwrap();
    (chat, typed)
}

/// Whether a conversation came to its end, and its second line was carried out once.
async fn was_taken_once(desk: &Desk, chat: Child, typed: ChildStdin) {
    eventually("the second has run", || desk.file("two").exists()).await;
    drop(typed);
    let output = ended(chat).await;
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !told.contains("not found"), "{told}");
    assert_eq!(std::fs::read_to_string(desk.file("two")).unwrap(), "2\n", "it ran once");
}

/// What is left to do when its threads are over is none of the business of clients: they wait for the next server.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_long_to_stop_is_waited_for() {
    let home = tempfile::tempdir().unwrap();
    // Told of the first turn, never answers, and is waited for.
    let hook = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let secret = home.path().join("hook.secret");
    std::fs::write(&secret, "not so secret at all\n").unwrap();
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let config = format!("[notify]\nurl = \"http://{}/\"\nsecret_file = \"{}\"\n", hook.local_addr().unwrap(), secret.display());
    std::fs::write(home.path().join("config.toml"), config).unwrap();
    let server = Server::start_in(home, &["--listen", "ws://127.0.0.1:0"]);
    let (token, url) = (server.token(&["--client"]), server.url().to_owned());
    let desk = Desk::new();
    let (chat, mut typed) = conversation(&desk, &url, &token);
    typed.write_all(b"$ echo 1 > one\n").unwrap();
    let threads = server.home().join("threads");
    eventually("the first turn is over", || holds(&threads, "turnFinished")).await;
    let began = Instant::now();
    let home = tokio::task::spawn_blocking(move || server.stop()).await.unwrap();
    assert!(began.elapsed() > Duration::from_secs(6), "it had something to wait for");
    typed.write_all(b"$ echo 2 >> two\n").unwrap();
    std::fs::remove_file(home.path().join("config.toml")).unwrap();
    let _server = Server::start_in(home, &["--listen", &url]);
    was_taken_once(&desk, chat, typed).await;
}

/// A line that is typed while there is no server is carried out by the next one, once, and not before the thread is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_typed_while_a_server_restarts_is_taken_once() {
    let server = Server::start();
    let (token, url) = (server.token(&["--client"]), server.url().to_owned());
    let desk = Desk::new();
    let (chat, mut typed) = conversation(&desk, &url, &token);
    typed.write_all(b"$ echo 1 > one\n").unwrap();
    let threads = server.home().join("threads");
    eventually("the first turn is over", || holds(&threads, "turnFinished")).await;
    let home = server.kill();
    typed.write_all(b"$ echo 2 >> two\n").unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let _server = Server::start_in(home, &["--listen", &url]);
    was_taken_once(&desk, chat, typed).await;
}

/// What a command printed before a cut is shown once, and what it printed after it, too.
#[tokio::test(flavor = "multi_thread")]
async fn output_goes_on_after_a_cut_where_it_ended() {
    for full in [false, true] {
        let server = Server::start();
        let token = server.token(&["--client"]);
        let cutter = Cutter::start(server.address(), vec![]).await;
        let desk = Desk::new();
        let place = format!("local={}", desk.work.path().display());
        let script = "$ echo before-$((40 + 1)); echo > begun; until [ -e go ]; do sleep 0.05; done; echo after-$((40 + 2))";
        let more: &[&str] = if full { &["--full"] } else { &[] };
        let url = cutter.url();
        let arguments = [&["exec", "--server", &url, "-s", "danger-full-access", "-e", &place], more, &[script]].concat();
        let mut command = command(desk.home.path(), &arguments);
        command.env("OUTPOST_TOKEN", &token).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut turn = command.spawn().unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut errors, all) = (turn.stderr.take().unwrap(), shown.clone());
        let reading = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = errors.read(&mut buffer) {
                all.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        desk.begins().await;
        eventually("its output is shown", || shown.lock().unwrap().contains("before-41")).await;
        cutter.cut();
        let before = cutter.connections();
        desk.go();
        eventually("it tries again", || cutter.connections() > before).await;
        let threads = server.home().join("threads");
        eventually("the turn is over", || holds(&threads, "turnFinished")).await;
        cutter.mend();
        let output = ended(turn).await;
        reading.join().unwrap();
        let shown = shown.lock().unwrap().clone();
        assert!(output.status.success(), "{shown}");
        assert_eq!((shown.matches("before-41").count(), shown.matches("after-42").count()), (1, 1), "{shown}");
        assert!(!shown.contains("not shown"), "{shown}");
    }
}
