//! Connections of the command line to a server that are cut, and servers that are started again.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};

use outpost_testkit::cutter::Cutter;
use outpost_testkit::executor::eventually;
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
    std::io::Write::write_all(&mut typed, b"$ echo 1 > one\n").unwrap();
    eventually("the first has run", || desk.file("one").exists()).await;
    cutter.cut();
    std::io::Write::write_all(&mut typed, b"$ echo 2 >> two\n").unwrap();
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
