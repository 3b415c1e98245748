//! `outpost thread import` of what other programs left: where its threads work, what is shown of their calls, and sessions of Claude
//! Code, written here by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use outpost_testkit::said::json_of;
use serde_json::{Value, json};

use crate::OUTPOST;

const SESSION: &str = "7b0a4c52-51f2-4a7e-9d0e-0f6f0f9f0a01";
const ROLLOUT: &str = "01a1e171-6ee4-7321-aae1-be3c3a67d655";

struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(desk.work()).unwrap();
        desk
    }

    fn home(&self) -> PathBuf {
        self.0.path().join("home")
    }

    fn work(&self) -> PathBuf {
        self.0.path().join("work")
    }

    fn outpost(&self, words: &[&str]) -> Output {
        Command::new(OUTPOST)
            .args(words)
            .env("OUTPOST_HOME", self.home())
            .env("HOME", self.0.path())
            .current_dir(self.0.path())
            .output()
            .unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        json_of(&self.outpost(&[words, &["--json"]].concat()))
    }

    fn write(&self, name: &str, lines: &[Value]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        path
    }

    fn facts(&self, thread: &str, kind: &str) -> Vec<Value> {
        let shown = self.json(&["thread", "show", thread, "--all"]);
        let entries = shown["entries"].as_array().unwrap().iter();
        entries.filter(|entry| entry["kind"] == kind).map(|entry| entry["data"].clone()).collect()
    }
}

/// A line of a session: its name, the one that it answers, and more.
fn said(kind: &str, uuid: &str, parent: Option<&str>, content: Value, more: Value) -> Value {
    let mut line = json!({
        "type": kind, "uuid": uuid, "parentUuid": parent, "isSidechain": false, "sessionId": SESSION, "cwd": "/work/project", "version": "2.1.0",
        "gitBranch": "main", "timestamp": "2026-11-15T23:01:09.992Z", "userType": "external",
        "message": {"role": kind, "id": format!("msg-{uuid}"), "model": "claude-x", "content": content,
            "usage": {"input_tokens": 10, "output_tokens": 2, "cache_read_input_tokens": 5}},
    });
    line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    line
}

fn call(id: &str, name: &str, input: Value) -> Value {
    json!([{"type": "tool_use", "id": id, "name": name, "input": input}])
}

fn result(id: &str, content: Value) -> Value {
    json!([{"type": "tool_result", "tool_use_id": id, "content": content}])
}

#[test]
fn a_session_of_claude_code_becomes_a_thread() {
    let desk = Desk::new();
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aWNvbg=="}});
    // Two calls side by side: one answer in two lines, whose results hang beside the way.
    let both = json!({"message": {"role": "assistant", "id": "msg-both", "content": call("t1", "Bash", json!({"command": "ls -l"}))}});
    let other = json!({"message": {"role": "assistant", "id": "msg-both", "content": call("t2", "Edit",
        json!({"file_path": "/work/a", "old_string": "x", "new_string": "y"}))}});
    let lines = [
        json!({"type": "summary", "summary": "The flaky test", "leafUuid": "a3"}),
        json!({"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}}),
        said("user", "u1", None, json!([{"type": "text", "text": "look at this"}, image]), json!({})),
        said("assistant", "a0", Some("u1"), json!([{"type": "thinking", "thinking": "hm", "signature": "s"}]), json!({})),
        said("assistant", "a1", Some("a0"), Value::Null, both),
        said("assistant", "a2", Some("a1"), Value::Null, other),
        said("user", "r1", Some("a1"), result("t1", json!("total 0")), json!({"toolUseResult": {"stdout": "total 0", "stderr": ""}})),
        said("user", "r2", Some("a2"), result("t2", json!([{"type": "text", "text": "edited"}])), json!({})),
        said("assistant", "a3", Some("r2"), json!([{"type": "text", "text": "it is fixed"}]), json!({})),
        // Taken back: another message answers the same line later.
        said("user", "gone", Some("a3"), json!("this was taken back"), json!({})),
        said("assistant", "gone2", Some("gone"), json!([{"type": "text", "text": "never mind"}]), json!({})),
        json!({"type": "from-the-future", "uuid": "", "x": 1}),
        said("user", "u2", Some("a3"), json!("and now the other"), json!({})),
        said("assistant", "a4", Some("u2"), json!([{"type": "text", "text": "done as well"}]), json!({})),
    ];
    let mut text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    text.push_str("{\"torn\": ");
    let path = desk.write(&format!(".claude/projects/-work-project/{SESSION}.jsonl"), &[]);
    fs::write(&path, text).unwrap();
    let imported = desk.json(&["thread", "import", desk.0.path().join(".claude").to_str().unwrap()]);
    assert_eq!((&imported["failed"], &imported["imported"][0]["turns"]), (&json!(0), &json!(2)), "{imported}");
    assert_eq!(imported["imported"][0]["carried"], json!({"claude.from_the_future": 1, "claude.thinking": 1}));
    assert_eq!(imported["imported"][0]["unreadable"].as_array().unwrap().len(), 1);
    assert_eq!(imported["imported"][0]["thread"], SESSION);
    let markdown = String::from_utf8(desk.outpost(&["thread", "export", SESSION, "--markdown"]).stdout).unwrap();
    for part in ["# The flaky test", "look at this", "total 0", "edited", "it is fixed", "and now the other", "done as well"] {
        assert!(markdown.contains(part), "{part}\n{markdown}");
    }
    assert!(!markdown.contains("taken back") && !markdown.contains("never mind"), "{markdown}");
    let inputs = desk.facts(SESSION, "inputReceived");
    assert_eq!(inputs[0]["items"][0]["content"][1]["image_url"], "data:image/png;base64,aWNvbg==");
    let begun: Vec<Value> = desk.facts(SESSION, "callStarted").into_iter().map(|fact| fact["detail"]["type"].clone()).collect();
    assert_eq!(begun, ["commandExecution", "fileChange"]);
    // Again: the same thread; more of it is added.
    let again = desk.json(&["thread", "import", path.to_str().unwrap()]);
    assert_eq!(again["imported"][0]["outcome"], "was here already", "{again}");
    let list = desk.json(&["thread", "list"]);
    assert_eq!((&list["threads"][0]["cwd"], &list["threads"][0]["source"]), (&json!("/work/project"), &json!("claude-code")));
}

#[test]
fn sub_agents_and_summaries_of_claude_code_come_along() {
    let desk = Desk::new();
    let aside =
        |kind: &str, uuid: &str, parent: Option<&str>, content: Value| said(kind, uuid, parent, content, json!({"isSidechain": true}));
    let boundary = json!({"type": "system", "subtype": "compact_boundary", "uuid": "b1", "parentUuid": null, "logicalParentUuid": "a1",
        "isSidechain": false, "sessionId": SESSION, "timestamp": "2026-11-15T23:02:09.992Z", "compactMetadata": {"trigger": "auto"}});
    desk.write(
        &format!("projects/p/{SESSION}.jsonl"),
        &[
            said("user", "u1", None, json!("before the summary"), json!({})),
            aside("user", "s1", None, json!("a task for an agent")),
            aside("assistant", "s2", Some("s1"), json!([{"type": "text", "text": "the agent's answer"}])),
            said("assistant", "a1", Some("u1"), json!([{"type": "text", "text": "first answer"}]), json!({})),
            boundary,
            said("user", "c1", Some("b1"), json!("what happened so far"), json!({"isCompactSummary": true})),
            said("user", "u2", Some("c1"), json!("after the summary"), json!({})),
            said("assistant", "a2", Some("u2"), json!([{"type": "text", "text": "second answer"}]), json!({})),
        ],
    );
    desk.write(
        &format!("projects/p/{SESSION}/subagents/agent-4f2a.jsonl"),
        &[
            aside("user", "x1", None, json!("another task")),
            aside("assistant", "x2", Some("x1"), json!([{"type": "text", "text": "another answer"}])),
        ],
    );
    let imported = desk.json(&["thread", "import", desk.0.path().join("projects").to_str().unwrap()]);
    assert_eq!((imported["imported"].as_array().unwrap().len(), &imported["failed"]), (3, &json!(0)), "{imported}");
    let compacted = desk.facts(SESSION, "contextCompacted");
    assert_eq!((compacted.len(), &compacted[0]["reason"]), (1, &json!("full")), "{compacted:?}");
    assert!(compacted[0].to_string().contains("what happened so far"));
    let markdown = String::from_utf8(desk.outpost(&["thread", "export", SESSION, "--markdown"]).stdout).unwrap();
    assert!(
        markdown.contains("before the summary") && markdown.contains("second answer") && !markdown.contains("agent's answer"),
        "{markdown}"
    );
    let agents = desk.json(&["thread", "list", "--children-of", SESSION]);
    let mut said: Vec<&str> = agents["threads"].as_array().unwrap().iter().map(|thread| thread["preview"].as_str().unwrap()).collect();
    said.sort_unstable();
    assert_eq!(said, ["a task for an agent", "another task"], "{agents}");
}

/// How often directories are read while so many sessions are imported.
fn directory_reads(sessions: usize) -> Option<usize> {
    let desk = Desk::new();
    for number in 0..sessions {
        let (session, first) = (format!("7b0a4c52-51f2-4a7e-9d0e-{number:012}"), format!("u{number}"));
        let more = json!({"sessionId": session});
        let lines = [
            said("user", &first, None, json!("a question"), more.clone()),
            said("assistant", "a", Some(&first), json!([{"type": "text", "text": "an answer"}]), more),
        ];
        desk.write(&format!("projects/p/{session}.jsonl"), &lines);
    }
    let log = desk.0.path().join("calls");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=getdents64", "-o"]).arg(&log).arg(OUTPOST).args(["thread", "import", "--json"]);
    strace.arg(desk.0.path().join("projects")).env("OUTPOST_HOME", desk.home()).env("HOME", desk.0.path());
    let output = strace.output().ok().filter(|output| output.status.success())?;
    let imported: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((imported["imported"].as_array().unwrap().len(), &imported["failed"]), (sessions, &json!(0)), "{imported}");
    Some(fs::read_to_string(log).unwrap().lines().filter(|line| line.contains("getdents64(")).count())
}

/// Ids of Claude Code tell no time, so that a thread's journal is not where its id says. The home is looked through once and not once
/// for each of thousands.
#[test]
fn many_sessions_are_imported_without_searching_the_home_for_each() {
    let (Some(few), Some(many)) = (directory_reads(20), directory_reads(120)) else {
        eprintln!("skipped: strace is not installed, or may not be used here");
        return;
    };
    assert!(many < few + 50, "directories are read {few} times for 20 sessions and {many} times for 120");
}

fn rollout(desk: &Desk, meta: Value) -> PathBuf {
    let line = |kind: &str, payload: Value| json!({"timestamp": "2026-11-15T23:01:09.992Z", "type": kind, "payload": payload});
    let mut head =
        json!({"id": ROLLOUT, "cwd": desk.work(), "cli_version": "1", "source": "exec", "base_instructions": {"text": "Be good."}});
    head.as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
    let message = |role: &str, kind: &str, text: &str| {
        line("response_item", json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]}))
    };
    let call =
        json!({"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"bash\",\"-lc\",\"make test\"]}", "call_id": "c1"});
    let end = json!({"type": "exec_command_end", "call_id": "c1", "command": ["bash", "-lc", "make test"], "cwd": "/there", "exit_code": 2,
        "aggregated_output": "one failed", "duration": {"secs": 1, "nanos": 500_000_000}});
    desk.write(
        &format!("codex/sessions/rollout-2026-11-15T23-01-09-{ROLLOUT}.jsonl"),
        &[
            line("session_meta", head),
            message("user", "input_text", "run the tests"),
            line("response_item", call),
            line("event_msg", end),
            line("response_item", json!({"type": "function_call_output", "call_id": "c1", "output": "one failed"})),
            message("assistant", "output_text", "one failed"),
        ],
    )
}

#[test]
fn an_imported_thread_keeps_its_commands_its_parent_its_roots_and_its_environments() {
    let desk = Desk::new();
    let roots = json!([{"id": "tools", "location": {"type": "environment", "environment_id": "box", "path": "/srv/tools"}}]);
    let environments = json!([{"environment_id": "box", "cwd": "/srv/work"}]);
    let path = rollout(
        &desk,
        json!({"forked_from_id": "01a1e171-70ee-77f0-b11a-67d893ff5ea3", "selected_capability_roots": roots, "environments": environments}),
    );
    desk.json(&["thread", "import", path.to_str().unwrap()]);
    let created = desk.facts(ROLLOUT, "threadCreated").remove(0);
    assert_eq!(created["selection"][0]["environmentId"], "box", "{created}");
    assert_eq!(created["capabilityRoots"][0]["id"], "tools", "{created}");
    let list = desk.json(&["thread", "list"]);
    assert_eq!(list["threads"][0]["forkedFrom"], "01a1e171-70ee-77f0-b11a-67d893ff5ea3");
    let started = desk.facts(ROLLOUT, "callStarted").remove(0)["detail"].take();
    assert_eq!(
        (&started["type"], &started["command"], &started["cwd"]),
        (&json!("commandExecution"), &json!("make test"), &json!("/there"))
    );
    let ended = desk.facts(ROLLOUT, "callFinished").remove(0)["detail"].take();
    assert_eq!((&ended["exitCode"], &ended["aggregatedOutput"], &ended["durationMs"]), (&json!(2), &json!("one failed"), &json!(1500)));
}

fn exec(desk: &Desk, words: &[&str]) -> Output {
    let mut command = Command::new(OUTPOST);
    command.args(["exec", "--provider", "offline", "--sandbox", "danger-full-access"]).args(words);
    command.env("OUTPOST_HOME", desk.home()).env("HOME", desk.0.path()).current_dir(desk.0.path()).output().unwrap()
}

/// `$ COMMAND` runs without a model, where the thread works.
#[test]
fn an_imported_thread_works_where_it_worked_before() {
    let desk = Desk::new();
    let path = rollout(&desk, json!({}));
    desk.json(&["thread", "import", path.to_str().unwrap()]);
    let output = exec(&desk, &["resume", ROLLOUT, "$ pwd; touch here"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(Path::new(&desk.work()).join("here").exists(), "{output:?}");
}

#[test]
fn a_thread_without_an_environment_says_so() {
    let desk = Desk::new();
    let path = rollout(&desk, json!({"cwd": null}));
    desk.json(&["thread", "import", path.to_str().unwrap()]);
    let output = exec(&desk, &["resume", ROLLOUT, "$ pwd"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("no environment to work in"), "{output:?}");
}
