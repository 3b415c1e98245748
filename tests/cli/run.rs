//! `outpost run`: streams, signals, terminals and exit codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use outpost_testkit::ExecutorProcess;

use crate::{OUTPOST, is_ignored};

fn run(arguments: &[&str]) -> Output {
    Command::new(OUTPOST).arg("run").args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn shell(script: &str) -> Output {
    run(&["--", "/bin/sh", "-c", script])
}

#[test]
fn streams_and_the_exit_code_are_the_commands_own() {
    let output = shell("echo out; echo err >&2; exit 7");
    assert_eq!((output.status.code(), output.stdout.as_slice(), output.stderr.as_slice()), (Some(7), &b"out\n"[..], &b"err\n"[..]));
    assert_eq!(shell("kill -TERM $$").status.code(), Some(143));
}

#[test]
fn failures_of_ours_are_125_and_say_what_to_do() {
    let missing = run(&["--", "/no/such/program"]);
    assert_eq!(missing.status.code(), Some(125));
    let message = String::from_utf8(missing.stderr).unwrap();
    assert!(message.contains("cannot run `/no/such/program`") && message.contains("No such file or directory"), "{message}");
    for (arguments, why) in [
        (vec!["-e", "ws://127.0.0.1:1", "--", "true"], "is unreachable"),
        (vec!["-e", "http://x", "--", "true"], "use ws://HOST:PORT, wss://HOST or unix:///PATH"),
        (vec!["--via", "exit 3", "--", "true"], "the command ended: exit status: 3"),
        (vec!["-C", "/no/such/directory", "--", "true"], "/no/such/directory"),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(why), "{arguments:?}: {message}");
        // Its causes say the same, and it is told once.
        assert!(message.matches("Connection refused").count() <= 1, "{message}");
    }
    assert_eq!(run(&["true"]).status.code(), Some(2), "the command comes after --");
}

/// An executor whose messages about a process are lost on the way, as far as `dropped` (of sed) matches them.
fn forgetful(dropped: &str) -> String {
    format!("{OUTPOST} executor --listen stdio | sed -u '{dropped}'")
}

#[test]
fn output_that_is_lost_on_the_way_is_read_again_at_the_end() {
    let output = run(&["--via", &forgetful(r#"/"process\/output"/d"#), "--", "/bin/sh", "-c", "echo one; exit 7"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(7), &b"one\n"[..]), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Nothing says that the command has ended, until its user asks.
#[test]
fn an_end_that_was_never_told_is_noticed_after_a_signal() {
    let work = tempfile::tempdir().unwrap();
    let marker = work.path().join("ran");
    let script = format!("echo one; touch {}; exit 7", marker.display());
    let via = forgetful(r#"/"process\/\(exited\|closed\)"/d"#);
    let mut child = Command::new(OUTPOST)
        .args(["run", "--via", &via, "--", "/bin/sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    while !marker.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&child);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    // The first signal may have met the command itself.
    assert!(matches!(status.code(), Some(7 | 143)), "{status}");
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(printed, "one\n");
}

#[test]
fn standard_input_is_passed_on_to_its_end() {
    let mut child = Command::new(OUTPOST).args(["run", "--", "wc", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let bytes = vec![b'x'; 3_000_000];
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "3000000");
}

/// Some programs look at what their input is, and do other things if it could have something to say.
#[test]
fn an_empty_input_is_passed_on_as_such() {
    assert_eq!(String::from_utf8(shell("readlink /proc/self/fd/0").stdout).unwrap(), "/dev/null\n");
}

#[test]
fn signals_are_passed_on() {
    for (signal, number, code) in [("INT", 2, 11), ("TERM", 15, 12), ("HUP", 1, 13)] {
        if is_ignored(number) {
            continue;
        }
        let script = format!("trap 'exit {code}' {signal}; echo ready; while :; do sleep 0.05; done");
        let mut child = Command::new(OUTPOST)
            .args(["run", "--", "/bin/sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        assert!(Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
    }
}

/// An executor that starts a command and never says so.
#[test]
fn a_start_that_is_never_answered_can_be_given_up() {
    let work = tempfile::tempdir().unwrap();
    let via = format!("{OUTPOST} executor --listen stdio | grep --line-buffered -v sandboxType");
    for (kill, code) in [(&["-TERM", "-INT"][..], 130), (&["-TERM"], 143)] {
        let runs = work.path().join("runs");
        let script = format!("touch {}; exec sleep 1000", runs.display());
        let mut command = Command::new(OUTPOST);
        command.args(["run", "--via", &via, "--", "/bin/sh", "-c", &script]).env("OUTPOST_HOME", work.path().join("home"));
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        while !runs.exists() {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        for signal in kill {
            assert!(Command::new("kill").arg(signal).arg(child.id().to_string()).status().unwrap().success());
            if line.is_empty() {
                said.read_line(&mut line).unwrap();
                assert!(line.contains("once more to give up"), "{line}");
            }
        }
        assert_eq!(child.wait().unwrap().code(), Some(code));
        said.read_to_string(&mut line).unwrap();
        assert!(line.contains("may or may not have been started"), "{line}");
        std::fs::remove_file(runs).unwrap();
    }
}

#[test]
fn a_reader_that_goes_away_ends_the_command() {
    let mut child = Command::new(OUTPOST).args(["run", "--", "yes"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut some = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn a_terminal_is_one() {
    let output = run(&["-t", "--", "/bin/sh", "-c", "test -t 0 && test -t 1 && echo yes"]);
    assert_eq!(output.stdout, b"yes\r\n");
}

#[test]
fn secrets_are_not_inherited_unless_they_are_named() {
    let output = Command::new(OUTPOST)
        .args(["run", "--set-env", "NAMED_TOKEN", "--set-env", "X=1", "--", "env"])
        .envs([("NAMED_TOKEN", "named"), ("OTHER_TOKEN", "hidden"), ("OUTPOST_LOG", "warn"), ("PLAIN", "plain")])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for wanted in ["NAMED_TOKEN=named", "X=1", "PLAIN=plain"] {
        assert!(text.lines().any(|line| line == wanted), "{wanted} is missing");
    }
    assert!(!text.contains("OTHER_TOKEN") && !text.contains("OUTPOST_"), "{text}");
}

#[test]
fn a_token_opens_a_websocket() {
    let token = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(token.path(), "s3cret\n").unwrap();
    let arguments = ["--ws-auth", "capability-token", "--ws-token-file", token.path().to_str().unwrap()];
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &arguments);
    let with = |token: Option<&str>| {
        let mut command = Command::new(OUTPOST);
        command.args(["run", "-e", executor.url(), "--", "echo", "in"]).stdin(Stdio::null()).env_remove("OUTPOST_TOKEN");
        if let Some(token) = token {
            command.env("OUTPOST_TOKEN", token);
        }
        command.output().unwrap()
    };
    assert_eq!(with(Some("s3cret")).stdout, b"in\n");
    for (token, why) in [(None, "missing websocket bearer token"), (Some("wrong"), "invalid websocket bearer token")] {
        let output = with(token);
        assert_eq!(output.status.code(), Some(125));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains("401") && message.contains(why), "{message}");
    }
}

#[test]
fn a_slow_reader_loses_nothing() {
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth", "--spool", "1048576"]);
    let script = "seq 1 2000000";
    let mut child = Command::new(OUTPOST)
        .args(["run", "-e", executor.url(), "--", "/bin/sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Longer than a poll is remembered for: nobody reads, so the child has to wait.
    std::thread::sleep(std::time::Duration::from_secs(6));
    let mut output = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    assert!(child.wait().unwrap().success());
    let expected: Vec<u8> = (1..=2_000_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    assert!(output == expected, "{} bytes came", output.len());
}

/// Without a word about it a command acts as the user; with one it is confined as an agent's command is.
#[test]
fn a_sandbox_can_be_asked_for() {
    let work = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir_in("/var/tmp").unwrap();
    let script = format!("touch inside; touch {}/outside", elsewhere.path().display());
    let run = |mode: &[&str]| {
        let mut command = Command::new(OUTPOST);
        command
            .arg("run")
            .args(mode)
            .args(["--", "sh", "-c", &script])
            .current_dir(work.path())
            .env("OUTPOST_HOME", work.path().join("home"));
        let _ = std::fs::remove_file(work.path().join("inside"));
        let _ = std::fs::remove_file(elsewhere.path().join("outside"));
        let output = command.stdin(Stdio::null()).output().unwrap();
        (work.path().join("inside").exists(), elsewhere.path().join("outside").exists(), output)
    };
    // What is configured for an agent's commands holds here as well.
    let root = format!("sandbox_workspace_write.writable_roots=[\"{}\"]", elsewhere.path().display());
    let configured = ["--sandbox", "workspace-write", "-c", &root];
    for (mode, inside, outside) in [
        (&[][..], true, true),
        (&["--sandbox", "workspace-write"], true, false),
        (&["--sandbox", "read-only"], false, false),
        (&configured, true, true),
    ] {
        let (made, escaped, output) = run(mode);
        assert_eq!((made, escaped), (inside, outside), "{mode:?}: {output:?}");
        assert_eq!(output.status.success(), inside && outside, "{mode:?}: {output:?}");
        // The rule and what would allow it are named, in one line, only where the sandbox refused something.
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let hints: Vec<&str> = told.lines().filter(|line| line.starts_with("outpost: the sandbox")).collect();
        assert_eq!(hints.len(), usize::from(!(inside && outside)), "{mode:?}: {told}");
        if inside && !outside {
            let directory = format!("writable_roots = [\"{}\"]", elsewhere.path().display());
            assert!(hints[0].contains("/outside may not be written") && hints[0].contains(&directory), "{told}");
        }
    }
}
