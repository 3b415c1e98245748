//! `outpost shell` on a real terminal.

use std::path::Path;
use std::process::{Command, Stdio};

use outpost_testkit::{Cutter, ExecutorProcess, TestTerminal};

use crate::{OUTPOST, is_ignored};

/// An executor with a home of its own, and `bash` without anybody's start-up files.
fn executor() -> ExecutorProcess {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().to_str().unwrap().to_owned();
    ExecutorProcess::start_with(Path::new(OUTPOST), &["--no-auth"], &[("HOME", &path), ("SHELL", "/bin/bash"), ("PS1", "$ ")], home)
}

fn shell(url: &str) -> TestTerminal {
    let mut command = Command::new(OUTPOST);
    command.args(["shell", "-e", url]).env("TERM", "xterm");
    TestTerminal::start(&command)
}

#[test]
fn it_is_a_login_shell_with_a_terminal_and_its_own_exit_code() {
    let executor = executor();
    let mut terminal = shell(executor.url());
    terminal.type_keys("shopt -q login_shell && test -t 0 && echo is-$((40+2))-$TERM in $PWD\r");
    terminal.wait_for(&format!("is-42-xterm in {}", executor.home().display()));
    assert!(terminal.is_raw());
    // An interrupt is a key for the shell there, not the end of the one here.
    terminal.type_keys("PS1=ready-$((1+1))'> '\r");
    terminal.wait_for("ready-2> ");
    // It says so itself: whoever is interrupted between two commands may not notice.
    terminal.type_keys("sh -c 'echo asleep-$((1+1)); exec sleep 1000'\r");
    terminal.wait_for("asleep-2");
    terminal.type_keys("\x03");
    // It throws away what is typed before it is back.
    terminal.wait_for_times("ready-2> ", 2);
    terminal.type_keys("echo again-$((40+3))\r");
    terminal.wait_for("again-43");
    terminal.type_keys("exit 7\r");
    assert_eq!(terminal.exit_code(), Some(7));
    assert!(!terminal.is_raw());
}

#[test]
fn the_size_of_the_window_is_passed_on() {
    let executor = executor();
    let mut terminal = shell(executor.url());
    terminal.type_keys("until [ \"$(stty size)\" = '24 80' ]; do sleep 0.05; done; echo first-$((1+1))\r");
    terminal.wait_for("first-2");
    terminal.resize(33, 101);
    terminal.type_keys("until [ \"$(stty size)\" = '33 101' ]; do sleep 0.05; done; echo second-$((1+1))\r");
    terminal.wait_for("second-2");
    terminal.type_keys("exit\r");
    assert_eq!(terminal.exit_code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_is_told_and_the_shell_goes_on() {
    let executor = executor();
    let cutter = Cutter::start(executor.address(), vec![]).await;
    let mut terminal = shell(&cutter.url());
    terminal.type_keys("here=$$; echo pid-$((1+1))\r");
    terminal.wait_for("pid-2");
    cutter.cut();
    terminal.wait_for("trying to get it back");
    // Typed and resized meanwhile: neither is lost.
    terminal.resize(40, 90);
    terminal.type_keys("until [ \"$(stty size)\" = '40 90' ]; do sleep 0.05; done; test $here = $$ && echo same-$((1+1))\r");
    cutter.mend();
    terminal.wait_for("connected again");
    terminal.wait_for("same-2");
    terminal.type_keys("exit 3\r");
    assert_eq!(terminal.exit_code(), Some(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_can_leave_also_without_a_connection() {
    let executor = executor();
    let mut terminal = shell(executor.url());
    terminal.type_keys("echo a~.b ~$((1+1))\r");
    terminal.wait_for("a~.b ~2");
    terminal.type_keys("~?");
    terminal.wait_for("~. leaves");
    terminal.type_keys("~~\r~.");
    assert_eq!(terminal.exit_code(), Some(125));
    assert!(!terminal.is_raw());

    let cutter = Cutter::start(executor.address(), vec![]).await;
    let mut terminal = shell(&cutter.url());
    terminal.type_keys("echo up-$((1+1))\r");
    terminal.wait_for("up-2");
    cutter.cut();
    terminal.wait_for("trying to get it back");
    terminal.type_keys("\r~.");
    assert_eq!(terminal.exit_code(), Some(125));
    assert!(!terminal.is_raw());
    terminal.wait_for("ends when the executor's grace is over");
}

/// A shell that runs a script in the background, or a `trap`, hands on that Ctrl-C is ignored. It counts all the same for a program that
/// its user's terminal belongs to.
#[test]
fn ctrl_c_of_a_terminal_reaches_a_command_whatever_was_inherited() {
    let mut trapped = Command::new("sh");
    trapped.args([
        "-c",
        "trap '' INT; exec \"$@\"",
        "sh",
        OUTPOST,
        "run",
        "--",
        "sh",
        "-c",
        "trap 'exit 9' INT; echo ready; while :; do sleep 0.1; done",
    ]);
    let mut terminal = TestTerminal::start(&trapped);
    terminal.wait_for("ready");
    terminal.type_keys("\x03");
    assert_eq!(terminal.exit_code(), Some(9), "{}", terminal.text());
}

#[test]
fn signals_leave_the_terminal_as_it_was() {
    let executor = executor();
    for (signal, code) in [("TERM", 143), ("HUP", 129), ("INT", 130)] {
        if is_ignored(code - 128) {
            continue;
        }
        let mut terminal = shell(executor.url());
        terminal.type_keys("echo up-$((1+1))\r");
        terminal.wait_for("up-2");
        assert!(terminal.is_raw());
        assert!(Command::new("kill").args([&format!("-{signal}"), &terminal.pid().to_string()]).status().unwrap().success());
        assert_eq!(terminal.exit_code(), Some(code), "{signal}");
        assert!(!terminal.is_raw(), "{signal}");
    }
}

#[test]
fn what_cannot_be_is_told() {
    let output = Command::new(OUTPOST).arg("shell").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("needs a terminal"));
    let mut terminal = shell("ws://127.0.0.1:1");
    assert_eq!(terminal.exit_code(), Some(125));
    terminal.wait_for("is unreachable");
}
