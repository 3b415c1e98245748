//! The page in a real browser. `cargo xtask test` installs Chromium and what drives it, and names the directory of the latter in
//! `OUTPOST_TEST_BROWSER`. Pictures of the page are left in `target/pictures`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../serve/support.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use outpost_testkit::{Cutter, ExecutorProcess};

use crate::support::{Server, joined, joined_in};

/// What the browser's script asks for, and what to do about it.
struct Stage {
    cutter: Cutter,
    executor: Option<ExecutorProcess>,
    home: Option<tempfile::TempDir>,
    token: String,
}

impl Stage {
    fn act(&mut self, wish: &str) {
        match wish {
            "cut" => self.cutter.cut(),
            "mend" => self.cutter.mend(),
            "kill" => self.home = self.executor.take().map(|mut executor| executor.kill_and_keep_home()),
            "start" => self.executor = Some(joined_in(&self.cutter.url(), "box", &self.token, self.home.take().unwrap())),
            other => panic!("nobody knows `{other}`"),
        }
    }
}

fn pictures() -> PathBuf {
    // Beside the program under test, which is in the build directory.
    let target = Path::new(support::OUTPOST).parent().unwrap().parent().unwrap();
    target.join("pictures")
}

/// A script that drives the page of a server.
fn browser(script: &str, server: &Server, profile: &Path) -> Command {
    let mut node = Command::new("node");
    node.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/web").join(script))
        .env("TOOLS", std::env::var_os("OUTPOST_TEST_BROWSER").expect("run these tests with `cargo xtask test`"))
        .env("PAGE", server.url().replacen("ws", "http", 1))
        .env("TOKEN", server.token(&["--client"]))
        .env("PICTURES", pictures())
        .env("HOME", profile);
    node
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_in_a_browser() {
    let server = Server::start();
    let token = server.token(&["--executor", "box"]);
    let cutter = Cutter::start(server.address(), Vec::new()).await;
    let executor = joined(&cutter.url(), "box", &token);
    let work = tempfile::tempdir().unwrap();
    let profile = tempfile::tempdir().unwrap();
    let mut script =
        browser("page.mjs", &server, profile.path()).env("WORK", work.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stage = Stage { cutter, executor: Some(executor), home: None, token };
    let (mut answers, wishes) = (script.stdin.take().unwrap(), BufReader::new(script.stdout.take().unwrap()));
    // The server, the proxy and the executor go on in other threads.
    tokio::task::block_in_place(|| {
        for line in wishes.lines().map_while(Result::ok) {
            if let Some(wish) = line.strip_prefix("wish ") {
                stage.act(wish);
                writeln!(answers, "done").unwrap();
            } else {
                println!("{line}");
            }
        }
    });
    assert!(script.wait().unwrap().success(), "see what it says above");
    assert_eq!(std::fs::read_to_string(work.path().join("counter")).unwrap(), "x\n", "the command ran once");
}

/// Sixty machines besides this one, with names as long as they may be, and more threads than are shown at once.
#[test]
fn a_crowd_in_a_browser() {
    let (home, work, profile) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let machine = |number: usize| {
        let id = if number == 0 { "m".repeat(64) } else { format!("machine-{number}") };
        format!("[[environments]]\nid = \"{id}\"\nurl = \"ws://127.0.0.1:9\"\nconnect = \"manual\"\n")
    };
    std::fs::write(home.path().join("environments.toml"), (0..60).map(machine).collect::<String>()).unwrap();
    let run = |arguments: &[&str]| {
        let output = support::command(home.path(), arguments).current_dir(work.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["exec", "-e", "local", "--provider", "offline", "> a needle in a haystack"]);
    let noise = "$ seq 6000\n> That was long.";
    let first = run(&["exec", "--json", "-e", "local", "--provider", "offline", "--sandbox", "danger-full-access", noise]);
    let started: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    let mut last = started["thread_id"].as_str().unwrap().to_owned();
    for _ in 0..60 {
        last = run(&["thread", "fork", &last]).trim().to_owned();
    }
    let server = Server::start_in(home, &["--listen", "ws://127.0.0.1:0"]);
    let script = browser("crowd.mjs", &server, profile.path()).stdin(Stdio::null()).output().unwrap();
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stdout));
}
