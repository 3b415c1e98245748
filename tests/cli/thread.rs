//! `outpost thread` as a user meets it. Threads come from rollouts that are written here by hand, in both shapes of the peer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use outpost_testkit::TestTerminal;
use outpost_testkit::postgres::Database;
use serde_json::{Value, json};

use crate::OUTPOST;

const ONE: &str = "01a1e171-6ee4-7321-aae1-be3c3a67d655";
const TWO: &str = "01a1e171-70ee-77f0-b11a-67d893ff5ea3";

/// A home for threads and one of the peer.
struct Desk {
    folder: tempfile::TempDir,
    store: Option<String>,
}

impl Desk {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), store: None }
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(OUTPOST);
        command.arg("thread").args(words).env("OUTPOST_HOME", self.home());
        if let Some(store) = &self.store {
            command.args(["--store", store]);
        }
        command.output().unwrap()
    }

    /// What a verb that works prints.
    fn says(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}{}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.says(&[words, &["--json"]].concat())).unwrap()
    }

    /// What a verb that does not work complains about.
    fn complains(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }

    fn ids(&self, words: &[&str]) -> Vec<String> {
        let list = self.json(&[&["list"], words].concat());
        list["threads"].as_array().unwrap().iter().map(|thread| thread["id"].as_str().unwrap().to_owned()).collect()
    }

    fn rollouts(&self) -> PathBuf {
        let sessions = self.folder.path().join("codex/sessions/2026/11/15");
        fs::create_dir_all(&sessions).unwrap();
        sessions
    }

    fn rollout(&self, id: &str, lines: &[Value]) -> PathBuf {
        let path = self.rollouts().join(format!("rollout-2026-11-15T23-01-09-{id}.jsonl"));
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&path, text).unwrap();
        path
    }

    fn codex(&self) -> String {
        self.folder.path().join("codex").display().to_string()
    }

    fn journal(&self, id: &str) -> PathBuf {
        fn find(folder: &Path, name: &str) -> Option<PathBuf> {
            fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
                let path = entry.path();
                if path.is_dir() { find(&path, name) } else { path.ends_with(name).then_some(path) }
            })
        }
        find(&self.home().join("threads"), &format!("{id}.jsonl")).unwrap()
    }
}

fn line(kind: &str, payload: Value) -> Value {
    json!({"timestamp": "2026-11-15T23:01:09.992Z", "type": kind, "payload": payload})
}

fn meta(id: &str, more: Value) -> Value {
    let mut payload = json!({"id": id, "session_id": id, "timestamp": "2026-11-15T23:01:09.992Z", "cwd": "/work", "originator": "x",
        "cli_version": "0.166.0", "source": "exec", "model_provider": "scripted", "base_instructions": {"text": "Be good."}});
    payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    line("session_meta", payload)
}

fn message(role: &str, text: &str) -> Value {
    let kind = if role == "assistant" { "output_text" } else { "input_text" };
    line("response_item", json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]}))
}

fn event(kind: &str, more: Value) -> Value {
    let mut payload = json!({"type": kind});
    payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    line("event_msg", payload)
}

/// A turn with a command.
fn turn(id: &str, ask: &str, answer: &str) -> Vec<Value> {
    vec![
        event("task_started", json!({"turn_id": id})),
        message("user", "<environment_context>\n<cwd>/work</cwd>\n</environment_context>"),
        line("turn_context", json!({"turn_id": id, "cwd": "/work", "model": "gpt-5", "approval_policy": "never"})),
        message("user", ask),
        event("user_message", json!({"message": ask})),
        line(
            "response_item",
            json!({"type": "function_call", "name": "exec_command", "arguments": "{\"cmd\":\"ls\"}", "call_id": format!("call-{id}")}),
        ),
        line("response_item", json!({"type": "function_call_output", "call_id": format!("call-{id}"), "output": "a.txt"})),
        message("assistant", answer),
        event("token_count", json!({"info": {"last_token_usage": {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}}})),
        event("task_complete", json!({"turn_id": id, "last_agent_message": answer})),
    ]
}

/// Both: a legacy thread of three turns, and a paginated fork of it by reference.
fn two_threads(desk: &Desk) {
    let mut lines = vec![meta(ONE, json!({"history_mode": "paginated"}))];
    for (number, ask) in ["find the flaky test", "fix it", "thank you"].iter().enumerate() {
        lines.extend(turn(&format!("turn-{number}"), ask, &format!("answer {number}")));
    }
    lines.push(line("from_the_future", json!({"x": 1})));
    for (ordinal, line) in lines.iter_mut().enumerate() {
        line["ordinal"] = json!(ordinal);
    }
    desk.rollout(ONE, &lines);
    let base = json!({"history_mode": "paginated", "forked_from_id": ONE,
        "history_base": {"thread_id": ONE, "end_ordinal_exclusive": 11, "end_byte_offset": 1}});
    let mut lines = vec![meta(TWO, base)];
    lines.extend(turn("turn-x", "go another way", "another answer"));
    for (ordinal, line) in (11..).zip(lines.iter_mut()) {
        line["ordinal"] = json!(ordinal);
    }
    desk.rollout(TWO, &lines);
}

fn the_life_of_threads(desk: &Desk) {
    assert_eq!(desk.says(&["list"]), "no threads; `outpost exec PROMPT` starts one\n");
    two_threads(desk);
    let imported = desk.json(&["import", &desk.codex()]);
    assert_eq!(imported["failed"], 0, "{imported}");
    assert_eq!(imported["imported"][0]["turns"], 3);
    assert_eq!(imported["imported"][0]["carried"], json!({"codex.from_the_future": 1}));
    assert_eq!(imported["imported"][1]["turns"], 2, "the shared turn and its own");
    // Again: the same threads.
    assert!(desk.says(&["import", &desk.codex()]).contains("was here already"));
    assert_eq!(desk.ids(&[]).len(), 2);
    assert_eq!(desk.ids(&["--search", "another"]), [TWO]);
    assert_eq!(desk.ids(&["--search", "flak"]).len(), 2);
    assert_eq!(desk.ids(&["--cwd", "/elsewhere"]), [] as [&str; 0]);
    assert_eq!(desk.ids(&["--source", "exec"]).len(), 2);
    let page = desk.json(&["list", "-n", "1", "--by", "created"]);
    let next = page["nextCursor"].as_str().unwrap();
    assert_ne!(desk.ids(&["-n", "1", "--by", "created", "--after", next]), desk.ids(&["-n", "1", "--by", "created"]));

    let shown = desk.says(&["show", ONE]);
    for part in
        ["find the flaky test", "fix it", "thank you", "exec_command {\"cmd\":\"ls\"}", "  a.txt", "answer 2", "model: gpt-5 (scripted)"]
    {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    assert!(!shown.contains("environment_context"), "{shown}");
    let last = desk.json(&["show", "d655", "-n", "1"]);
    assert_eq!(last["entries"][0]["kind"], "inputReceived");
    assert!(last["before"].as_u64().unwrap() > 1);

    let fork = desk.json(&["fork", ONE, "--before-message", "1", "--name", "other way"]);
    let fork = fork["thread"].as_str().unwrap();
    let shown = desk.says(&["show", "other way"]);
    assert!(shown.contains("find the flaky test") && !shown.contains("fix it"), "{shown}");
    assert!(desk.complains(&["fork", ONE, "--after-turn", "nope"]).contains("no turn `nope`"));

    desk.says(&["archive", fork]);
    assert_eq!((desk.ids(&[]).len(), desk.ids(&["--archived"]), desk.ids(&["--all"]).len()), (2, vec![fork.to_owned()], 3));
    desk.says(&["unarchive", "other way"]);
    assert_eq!(desk.ids(&[]).len(), 3);

    assert!(desk.complains(&["rm", ONE]).contains("--yes"));
    assert_eq!(desk.ids(&[]).len(), 3, "nothing was removed without a yes");
    desk.says(&["rm", ONE, "--yes"]);
    assert!(desk.says(&["show", fork]).contains("find the flaky test"), "a fork has its own copy");
    assert!(desk.complains(&["show", ONE]).contains("no thread"));
    assert!(desk.says(&["verify"]).contains("2 threads, 0 damaged"));
    assert!(desk.says(&["takeover", fork]).contains("no program writes it"));

    let file = desk.folder.path().join("export.jsonl");
    desk.says(&["export", fork, "-o", file.to_str().unwrap()]);
    assert!(desk.complains(&["export", fork, "-o", file.to_str().unwrap()]).contains("export.jsonl"), "nothing is overwritten");
    assert!(desk.says(&["export", fork, "--markdown"]).contains("## Turn turn-0"));
    let before = desk.json(&["show", fork, "--all"]);
    desk.says(&["rm", fork, "-y"]);
    assert!(desk.says(&["import", file.to_str().unwrap()]).contains("imported"));
    assert_eq!(desk.json(&["show", fork, "--all"])["entries"], before["entries"]);
}

#[test]
fn threads_live_and_die_in_a_home() {
    the_life_of_threads(&Desk::new());
}

#[test]
fn threads_live_and_die_in_a_database() {
    let database = Database::create();
    the_life_of_threads(&Desk { store: Some(database.url().to_owned()), ..Desk::new() });
}

#[test]
fn a_rollout_that_grew_is_continued_and_one_that_parted_is_left_alone() {
    let desk = Desk::new();
    let mut lines = vec![meta(ONE, json!({"history_mode": "legacy"}))];
    lines.extend(turn("turn-0", "first", "one"));
    let path = desk.rollout(ONE, &lines).display().to_string();
    desk.says(&["import", &path]);
    lines.extend(turn("turn-1", "second", "two"));
    desk.rollout(ONE, &lines);
    assert!(desk.says(&["import", &path]).contains("entries were added"));
    assert!(desk.says(&["show", ONE]).contains("second"));
    assert!(desk.says(&["import", &path]).contains("was here already"));
    desk.says(&["archive", ONE]);
    assert!(desk.says(&["import", &path]).contains("was here already"), "a mark is no difference");
    lines.truncate(11);
    lines.extend(turn("turn-1", "not what was said", "three"));
    desk.rollout(ONE, &lines);
    assert!(desk.says(&["import", &path]).contains("has gone its own way"));
    assert!(!desk.says(&["show", ONE]).contains("not what was said"));
}

#[test]
fn rollouts_that_are_old_compressed_damaged_or_rolled_back_are_read() {
    let desk = Desk::new();
    // No turns at all, as the first versions wrote.
    let old =
        [meta(ONE, json!({})), message("user", "hello"), message("assistant", "hi"), message("user", "again"), message("assistant", "yes")];
    let path = desk.rollout(ONE, &old);
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str("{\"torn\": ");
    fs::write(&path, zstd::encode_all(text.as_bytes(), 3).unwrap()).unwrap();
    let packed = path.with_extension("jsonl.zst");
    fs::rename(&path, &packed).unwrap();
    let imported = desk.json(&["import", packed.to_str().unwrap()]);
    assert_eq!(imported["imported"][0]["turns"], 2, "{imported}");
    assert!(imported["imported"][0]["unreadable"][0].as_str().unwrap().contains(".zst:6:"), "{imported}");

    let mut lines = vec![meta(TWO, json!({"history_mode": "legacy"}))];
    lines.extend(turn("turn-0", "keep this", "kept"));
    lines.extend(turn("turn-1", "forget this", "forgotten"));
    lines.push(event("thread_rolled_back", json!({"num_turns": 1})));
    lines.push(line("compacted", json!({"message": "a summary"})));
    lines.extend(turn("turn-2", "and this", "too").into_iter().take(4));
    let path = desk.rollout(TWO, &lines).display().to_string();
    desk.says(&["import", &path]);
    let shown = desk.says(&["show", TWO]);
    assert!(shown.contains("keep this") && !shown.contains("forget this") && shown.contains("compacted"), "{shown}");
    assert!(shown.contains("the turn was interrupted"), "what was under way there does not run here\n{shown}");

    let lonely = desk.rollout(
        "01a1e171-0000-7000-8000-000000000001",
        &[meta(
            "01a1e171-0000-7000-8000-000000000001",
            json!({"history_base": {"thread_id": "01a1e171-0000-7000-8000-000000000009", "end_ordinal_exclusive": 4}}),
        )],
    );
    let output = desk.run(&["import", lonely.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("put that file beside it"));
    assert!(desk.complains(&["import", "/no/such/file"]).contains("/no/such/file"));
}

/// Rollouts spell the source of sub-agents in another way than threads of our own.
#[test]
fn imported_sub_agents_are_found_by_their_source() {
    let desk = Desk::new();
    desk.rollout(ONE, &[vec![meta(ONE, json!({}))], turn("a", "delegate", "done")].concat());
    let source = json!({"source": {"subagent": {"thread_spawn": {"parent_thread_id": ONE, "depth": 1}}}, "thread_source": "subagent"});
    desk.rollout(TWO, &[vec![meta(TWO, source)], turn("b", "child job", "done")].concat());
    desk.says(&["import", &desk.codex()]);
    for spelling in ["subagent", "subAgent"] {
        assert_eq!(desk.ids(&["--source", spelling]), [TWO], "{spelling}");
    }
    assert_eq!(desk.ids(&["--source", "exec"]), [ONE]);
}

#[test]
fn damage_is_named_and_repaired() {
    let desk = Desk::new();
    two_threads(&desk);
    desk.says(&["import", &desk.codex()]);
    desk.says(&["list"]);
    let journal = desk.journal(ONE);
    let bytes = fs::read(&journal).unwrap();
    let mut spoiled = bytes.clone();
    let middle = bytes.len() / 2;
    spoiled[middle] ^= 1;
    fs::write(&journal, &spoiled).unwrap();
    let output = desk.run(&["verify"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("altered") && text.contains("2 threads, 1 damaged"), "{text}");
    assert!(desk.complains(&["export", ONE]).contains("repair it first"));
    assert!(desk.complains(&["repair", ONE]).contains("--yes"));
    desk.says(&["repair", ONE, "--yes"]);
    assert!(desk.says(&["verify"]).contains("2 threads, 0 damaged"));
    assert!(desk.says(&["repair", ONE]).contains("is whole"));
}

#[test]
fn an_end_that_is_missing_without_a_trace_is_known_to_the_index() {
    let desk = Desk::new();
    two_threads(&desk);
    desk.says(&["import", &desk.codex()]);
    desk.says(&["list", "--search", "thank"]);
    let journal = desk.journal(ONE);
    let text = fs::read_to_string(&journal).unwrap();
    let kept = text.trim_end().rfind('\n').unwrap() + 1;
    fs::write(&journal, &text[..kept]).unwrap();
    let output = desk.run(&["verify", ONE]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("cut off"), "{output:?}");
    desk.says(&["repair", ONE, "--yes"]);
    assert!(desk.says(&["verify"]).contains("0 damaged"));
}

#[test]
fn a_garbled_index_costs_nothing() {
    let desk = Desk::new();
    two_threads(&desk);
    desk.says(&["import", &desk.codex()]);
    let list = desk.says(&["list", "--by", "created"]);
    for garbage in [&b""[..], &b"garbage"[..], &[0; 9000]] {
        fs::write(desk.home().join("index/threads.sqlite"), garbage).unwrap();
        let again = desk.says(&["list", "--by", "created"]);
        let ids = |text: &str| text.lines().map(|line| line[..36].to_owned()).collect::<Vec<_>>();
        assert_eq!(ids(&again), ids(&list));
    }
    fs::remove_dir_all(desk.home().join("index")).unwrap();
    assert_eq!(desk.ids(&[]).len(), 2);
}

#[test]
fn what_makes_no_sense_is_said() {
    let desk = Desk::new();
    two_threads(&desk);
    desk.says(&["import", &desk.codex()]);
    assert!(desk.complains(&["show", "nope"]).contains("there is no thread `nope`"));
    assert!(desk.complains(&["show", "01a1"]).contains("could be 2 threads"));
    assert!(desk.complains(&["list", "--after", "x"]).contains("is not a cursor"));
    assert!(desk.complains(&["list", "--store", "mysql://x"]).contains("is not a store"));
    fs::write(desk.home().join("config.toml"), "store = 7\n").unwrap();
    assert!(desk.complains(&["list"]).contains("expected a string"));
    fs::write(desk.home().join("config.toml"), "store = \"postgres://x@%2Fno%2Fsuch/db\"\n").unwrap();
    assert!(desk.complains(&["list"]).contains("cannot be reached"));
}

/// On a terminal an import shows how far it is; elsewhere, and where the user wants it quiet, it does not.
#[test]
fn an_import_shows_how_far_it_is() {
    let desk = Desk::new();
    let words = "many words ".repeat(50_000);
    for id in [ONE, TWO] {
        let said = (0..8).flat_map(|number| [message("user", &format!("{number} {words}")), message("assistant", &words)]);
        desk.rollout(id, &std::iter::once(meta(id, json!({}))).chain(said).collect::<Vec<_>>());
    }
    let mut command = Command::new(OUTPOST);
    command.args(["thread", "import", &desk.codex()]).env("OUTPOST_HOME", desk.home()).env("TERM", "xterm");
    let mut terminal = TestTerminal::start(&command);
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    let shown = terminal.text();
    assert!(shown.contains("2 threads [") && shown.contains("B/s ") && shown.contains("2 threads, 0 failed"), "{shown}");
    let mut terminal = TestTerminal::start(command.arg("--quiet"));
    assert_eq!(terminal.exit_code(), Some(0), "{}", terminal.text());
    assert!(!terminal.text().contains("2 threads ["), "{}", terminal.text());
    assert!(!desk.says(&["import", &desk.codex()]).contains('['));
}
