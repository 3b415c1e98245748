//! Disks that return other bytes than were written: whatever is changed in a journal or in content that is kept aside, `thread verify` says so, and
//! lists and readers go on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::{Episode, Random, Steps};
use crate::support::OUTPOST;

const ID: &str = "01a1e171-6ee4-7321-aae1-be3c3a67d655";

fn outpost(home: &Path, words: &[&str]) -> Output {
    Command::new(OUTPOST).args(words).env("OUTPOST_HOME", home).env_remove("OUTPOST_LOG").output().unwrap()
}

fn line(kind: &str, payload: Value) -> String {
    json!({"timestamp": "2026-11-15T23:01:09.992Z", "type": kind, "payload": payload}).to_string() + "\n"
}

fn message(role: &str, text: &str) -> String {
    let kind = if role == "assistant" { "output_text" } else { "input_text" };
    line("response_item", json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]}))
}

/// A home with one thread, of which some content is large enough to be kept aside.
fn home() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let sessions = folder.path().join("codex/sessions/2026/11/15");
    fs::create_dir_all(&sessions).unwrap();
    let mut text = line(
        "session_meta",
        json!({"id": ID, "session_id": ID, "timestamp": "2026-11-15T23:01:09.992Z", "cwd": "/work", "originator": "x",
            "cli_version": "0.166.0", "source": "exec", "model_provider": "scripted", "base_instructions": {"text": "Be good."}}),
    );
    for number in 0..4 {
        let turn = format!("turn-{number}");
        text += &line("event_msg", json!({"type": "task_started", "turn_id": turn}));
        text += &message("user", &format!("question {number}"));
        text += &line("event_msg", json!({"type": "user_message", "message": format!("question {number}")}));
        text += &message("assistant", &format!("answer {number} {}", "long ".repeat(if number == 1 { 1 << 20 } else { 3 })));
        text += &line("event_msg", json!({"type": "task_complete", "turn_id": turn, "last_agent_message": "done"}));
    }
    fs::write(sessions.join(format!("rollout-2026-11-15T23-01-09-{ID}.jsonl")), text).unwrap();
    let home = folder.path().join("home");
    let imported = outpost(&home, &["thread", "import", &folder.path().join("codex").display().to_string()]);
    assert!(imported.status.success(), "{imported:?}");
    assert!(outpost(&home, &["thread", "list"]).status.success());
    folder
}

fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { files(&path, into) } else { into.push(path) }
    }
}

/// Changes the bytes of a file; false if they are the same afterwards, or only a torn end that every kill may leave.
fn spoil(random: &mut Random, path: &Path, is_journal: bool, steps: &Steps) -> bool {
    let bytes = fs::read(path).unwrap();
    let mut lines: Vec<Vec<u8>> = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let count = lines.len();
    let (what, spoiled) = match random.below(if is_journal { 6 } else { 3 }) {
        0 => {
            let (at, bit) = (random.below(bytes.len()), random.below(8));
            let mut spoiled = bytes.clone();
            spoiled[at] ^= 1 << bit;
            (format!("bit {bit} of byte {at}"), spoiled)
        }
        1 => {
            let kept = random.below(bytes.len());
            (format!("cut to {kept} of {}", bytes.len()), bytes[..kept].to_vec())
        }
        2 => {
            let (at, length) = (random.below(bytes.len()), 1 + random.below(600));
            let mut spoiled = bytes.clone();
            let end = (at + length).min(bytes.len());
            spoiled[at..end].fill(0);
            (format!("zeros from {at} to {end}"), spoiled)
        }
        3 => {
            let gone = random.below(count);
            lines.remove(gone);
            (format!("without line {gone} of {count}"), lines.concat())
        }
        4 => {
            let (one, other) = (random.below(count), random.below(count));
            lines.swap(one, other);
            (format!("lines {one} and {other} swapped"), lines.concat())
        }
        _ => {
            let twice = random.below(count);
            let line = lines[twice].clone();
            lines.insert(twice, line);
            (format!("line {twice} twice"), lines.concat())
        }
    };
    steps.note(format!("{}: {what}", path.display()));
    fs::write(path, &spoiled).unwrap();
    let last_line = bytes.len() - lines_end(&bytes);
    let is_torn = is_journal && bytes.starts_with(&spoiled) && bytes.len() - spoiled.len() < last_line && spoiled.last() != Some(&b'\n');
    spoiled != bytes && !is_torn
}

/// Where the last line begins.
fn lines_end(bytes: &[u8]) -> usize {
    let body = &bytes[..bytes.len() - usize::from(bytes.ends_with(b"\n"))];
    body.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1)
}

pub(super) async fn run(episode: Episode, steps: Steps) {
    tokio::task::spawn_blocking(move || blocking(episode, &steps))
        .await
        .unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
}

fn blocking(episode: Episode, steps: &Steps) {
    let mut random = Random::new(episode.seed);
    let folder = home();
    let home = folder.path().join("home");
    let (mut journals, mut blobs) = (Vec::new(), Vec::new());
    files(&home.join("threads"), &mut journals);
    journals.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    files(&home.join("blobs"), &mut blobs);
    assert!(!journals.is_empty() && !blobs.is_empty(), "{journals:?} {blobs:?}");
    for _ in 0..4 {
        let is_journal = random.percent(70);
        let path = random.pick(if is_journal { &journals } else { &blobs });
        let whole = fs::read(&path).unwrap();
        let is_damaged = spoil(&mut random, &path, is_journal, steps);
        let verified = outpost(&home, &["thread", "verify"]);
        let said = format!("{}{}", String::from_utf8_lossy(&verified.stdout), String::from_utf8_lossy(&verified.stderr));
        assert!(!said.contains("panicked"), "{said}");
        if is_damaged {
            assert_eq!(verified.status.code(), Some(1), "thread verify finds nothing: {said}");
        }
        for words in [&["thread", "list"][..], &["thread", "show", ID], &["thread", "export", ID]] {
            let output = outpost(&home, words);
            let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(!said.contains("panicked") && output.status.code().is_some_and(|code| code != 101), "{words:?}: {said}");
        }
        assert!(outpost(&home, &["thread", "list"]).status.success(), "a list is stopped");
        fs::write(&path, &whole).unwrap();
    }
}
