//! Many files of another program at once. The only test of its program, so that the memory that the process holds is that of the
//! import.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::io::Write;
use std::path::Path;

use outpost_store::{ImportOutcome, Rollouts, Store};
use serde_json::json;
use support::local;

/// The most memory that this process ever held, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn many_sessions_take_no_more_memory_than_a_few() {
    let folder = tempfile::tempdir().unwrap();
    let text = "word ".repeat(10_000);
    for number in 0..300 {
        let id = format!("7b0a4c52-51f2-4a7e-9d0e-{number:012}");
        let project = folder.path().join(format!("projects/p{}", number % 7));
        std::fs::create_dir_all(&project).unwrap();
        let line = |kind: &str, uuid: &str, parent: Option<&str>, content: serde_json::Value| {
            json!({"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": id, "cwd": "/work", "timestamp": "2026-11-15T23:01:09.992Z",
                "message": {"role": kind, "content": content}})
        };
        let lines = [line("user", "u", None, json!(text)), line("assistant", "a", Some("u"), json!([{"type": "text", "text": text}]))];
        std::fs::write(project.join(format!("{id}.jsonl")), lines.map(|line| format!("{line}\n")).concat()).unwrap();
    }
    let store = local(&folder.path().join("home"), "one");
    let found = Rollouts::find(&folder.path().join("projects")).unwrap();
    assert_eq!(found.found.len(), 300);
    let mut settled = 0;
    for (number, rollout) in found.found.iter().enumerate() {
        let imported = found.import(rollout, &store).await.unwrap();
        assert_eq!((imported.len(), imported[0].turns), (1, 1));
        if number == 50 {
            settled = peak();
        }
    }
    let grown = peak().saturating_sub(settled);
    assert!(grown < 12 << 20, "{grown} bytes more after 250 further sessions of 100 kB");
    assert_eq!(store.threads().await.unwrap().len(), 300);
    long_session(folder.path(), &store).await;
}

/// One with many pictures: its facts are written while it is read. Importing it again compares it on the way.
async fn long_session(folder: &Path, store: &Store) {
    const LINES: usize = 100;
    let id = "7b0a4c52-51f2-4a7e-9d0e-ffffffffffff";
    let path = folder.join(format!("projects/{id}.jsonl"));
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    let picture = "A".repeat(400_000);
    for number in 0..LINES {
        let content = json!([{"type": "text", "text": format!("picture {number}")},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}}]);
        let parent = number.checked_sub(1).map(|before| format!("u{before}"));
        let line = json!({"type": "user", "uuid": format!("u{number}"), "parentUuid": parent, "sessionId": id, "cwd": "/work",
            "timestamp": "2026-11-15T23:01:09.992Z", "message": {"role": "user", "content": content}});
        writeln!(file, "{line}").unwrap();
    }
    file.into_inner().unwrap();
    let before = peak();
    for outcome in [ImportOutcome::Created, ImportOutcome::Unchanged] {
        let found = Rollouts::find(&path).unwrap();
        let imported = found.import(&found.found[0], store).await.unwrap();
        assert_eq!((imported[0].turns, imported[0].outcome), (LINES as u64, outcome));
    }
    let grown = peak().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes for a session of 40 MB; its facts take four times as much");
}
