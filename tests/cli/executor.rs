//! `outpost executor`: what it refuses to start with, and how it ends.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use outpost_testkit::ExecutorProcess;

use crate::OUTPOST;

fn executor(arguments: &[&str]) -> Output {
    let home = tempfile::tempdir().unwrap();
    Command::new(OUTPOST).arg("executor").args(arguments).env("OUTPOST_HOME", home.path()).stdin(Stdio::null()).output().unwrap()
}

fn refusal(arguments: &[&str]) -> String {
    let output = executor(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(output.stdout.is_empty(), "something was said to launchers");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn an_open_port_is_refused() {
    assert!(refusal(&["--listen", "ws://0.0.0.0:0"]).contains("say who may connect"));
    assert!(refusal(&["--listen", "ws://0.0.0.0:0", "--no-auth"]).contains("--no-auth is for loopback addresses only"));
}

#[test]
fn half_of_an_authentication_is_refused() {
    assert!(refusal(&["--ws-auth", "capability-token"]).contains("--ws-token-file"));
    assert!(refusal(&["--ws-auth", "signed-bearer-token"]).contains("--ws-shared-secret-file"));
    assert!(refusal(&["--ws-token-sha256", "00"]).contains("but not --ws-auth"));
    assert!(refusal(&["--ws-auth", "capability-token", "--ws-token-sha256", "00"]).contains("64 hexadecimal digits"));
    assert!(refusal(&["--ws-auth", "capability-token", "--ws-token-file", "relative"]).contains("must be absolute"));
    let short = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(short.path(), "too short\n").unwrap();
    let path = short.path().to_str().unwrap();
    assert!(refusal(&["--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", path]).contains("at least 32"));
    std::fs::write(short.path(), " \n").unwrap();
    assert!(refusal(&["--ws-auth", "capability-token", "--ws-token-file", path]).contains("is empty"));
}

#[test]
fn a_listen_url_is_checked() {
    for (url, why) in
        [("ws://localhost:0", "an IP address and a port"), ("http://127.0.0.1:1", "unsupported listen URL"), ("unix://x", "absolute")]
    {
        assert!(refusal(&["--listen", url, "--no-auth"]).contains(why), "{url}");
    }
    assert!(refusal(&["--concurrent-requests", "0"]).contains("--concurrent-requests"));
    assert!(refusal(&["--listen", "ws://127.0.0.1:0", "--no-auth", "--keep"]).contains("--keep goes with --listen stdio"));
}

#[test]
fn a_port_in_use_is_told() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("ws://{}", taken.local_addr().unwrap());
    let output = executor(&["--listen", &url, "--no-auth"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains(&format!("cannot listen on {url}")));
}

#[test]
fn it_ends_cleanly_when_asked() {
    let mut executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    assert!(executor.is_running());
    assert_eq!(executor.stop(), Some(0));
    // Only what outlives a start is left.
    let directory = std::fs::read_dir(executor.home().join("executor")).unwrap();
    let mut left: Vec<_> = directory.map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["identity", "place.json"]);
}

#[test]
fn its_identity_stays_and_its_alias_works() {
    let home = tempfile::tempdir().unwrap();
    let mut first = ExecutorProcess::start_in(Path::new(OUTPOST), &["--no-auth"], home);
    let path = first.home().join("executor/identity");
    let identity = std::fs::read_to_string(&path).unwrap();
    let home = first.kill_and_keep_home();
    let second = ExecutorProcess::start_in(Path::new(OUTPOST), &["--no-auth"], home);
    assert_eq!(std::fs::read_to_string(second.home().join("executor/identity")).unwrap(), identity);
    let help = Command::new(OUTPOST).args(["exec-server", "--help"]).output().unwrap();
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--concurrent-requests"));
}

/// What was tried is reported by the next start under the same conditions, and by no other.
#[test]
fn what_was_tried_is_not_tried_again_under_the_same_conditions() {
    let home = tempfile::tempdir().unwrap();
    let told = || {
        let mut child = Command::new(OUTPOST)
            .args(["executor", "--listen", "stdio"])
            .env("OUTPOST_HOME", home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let asked = concat!(
            "{\"id\":1,\"method\":\"initialize\",\"params\":{\"clientName\":\"test\"}}\n",
            "{\"method\":\"initialized\"}\n",
            "{\"id\":2,\"method\":\"environment/info\",\"params\":{}}\n"
        );
        child.stdin.as_mut().unwrap().write_all(asked.as_bytes()).unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let answer = answers.find_map(|line| line.ok().filter(|line| line.contains("\"id\":2"))).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(answer.contains("a level of the sandbox"), "{answer}");
        answer
    };
    let first = told();
    let file = home.path().join("executor/tried.json");
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(kept.as_array().unwrap().len(), 1, "{kept}");
    let conditions = kept[0]["conditions"].as_str().unwrap();
    assert!(conditions.starts_with("boot ") && conditions.contains("namespace") && conditions.contains("program"), "{conditions}");
    let write = |changed: &serde_json::Value| std::fs::write(&file, changed.to_string()).unwrap();
    // A finding that no trial on any machine could make.
    let mut changed = kept.clone();
    changed[0]["capacity"] = serde_json::json!({"level": "landlock", "why": "the moon is full", "mapsUsers": false});
    write(&changed);
    assert!(told().contains("the moon is full"));
    // After another boot it does not count.
    changed[0]["conditions"] = conditions.replace("boot ", "boot x").into();
    write(&changed);
    assert_eq!(told().contains("the moon is full"), first.contains("the moon is full"));
    // A sandbox is as strong as it can be, whatever the file says.
    changed[0]["conditions"] = conditions.into();
    write(&changed);
    let level =
        |text: &str| ["full", "mounts", "landlock"].into_iter().find(|level| text.contains(&format!("\"{level}\""))).map(str::to_owned);
    let work = tempfile::tempdir_in("/var/tmp").unwrap();
    let script = "mkdir -p .codex 2>/dev/null && touch .codex/x 2>/dev/null && echo open || echo held";
    let run = Command::new(OUTPOST)
        .args(["run", "--sandbox", "workspace-write", "--", "sh", "-c", script])
        .env("OUTPOST_HOME", home.path())
        .current_dir(work.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout).trim().to_owned();
    let held = level(&first).as_deref() == Some("landlock") || said == "held";
    assert!(held, "{run:?}");
}
