//! Sessions of the real program become threads: both history modes, compressed, resumed, forked.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use outpost_testkit::model::ScriptedModel;
use outpost_testkit::said::json_of;
use serde_json::{Value, json};

use crate::{OUTPOST, codex};

/// A home of the peer, with a model that says what it was told to say.
struct Peer {
    home: tempfile::TempDir,
    work: tempfile::TempDir,
    _model: ScriptedModel,
}

impl Peer {
    async fn new() -> Self {
        let model = ScriptedModel::start(vec![("exec_command", json!({"cmd": "echo from the real one"}))]).await.for_strangers();
        let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config = format!(
            "model = \"gpt-5\"\nmodel_provider = \"scripted\"\n[model_providers.scripted]\nname = \"scripted\"\nbase_url = \"{}\"\n\
             wire_api = \"responses\"\nrequires_openai_auth = false\n[analytics]\nenabled = false\n",
            model.base_url()
        );
        std::fs::write(home.path().join("config.toml"), config).unwrap();
        Self { home, work, _model: model }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(codex());
        command
            .args(words)
            .current_dir(self.work.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.home.path())
            .env("CODEX_HOME", self.home.path())
            .env("SHELL", "/bin/bash")
            .env("NO_PROXY", "127.0.0.1");
        command
    }

    async fn run(&self, words: &[&str]) {
        let mut command = tokio::process::Command::from(self.command(words));
        let output = command.stdin(Stdio::null()).output().await.unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn rollouts(&self) -> Vec<PathBuf> {
        fn find(folder: &Path, found: &mut Vec<PathBuf>) {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    find(&path, found);
                } else if path.extension().is_some_and(|extension| extension == "jsonl") {
                    found.push(path);
                }
            }
        }
        let mut found = Vec::new();
        find(&self.home.path().join("sessions"), &mut found);
        found.sort();
        found
    }
}

/// A home of ours.
struct Ours(tempfile::TempDir);

impl Ours {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn run(&self, words: &[&str]) -> Output {
        Command::new(OUTPOST).arg("thread").args(words).env("OUTPOST_HOME", self.0.path()).output().unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        json_of(&self.run(&[words, &["--json"]].concat()))
    }
}

/// What a user sees of all turns.
fn seen(ours: &Ours, thread: &str) -> String {
    let output = ours.run(&["show", thread, "--all", "--full"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn unreadable(imported: &Value) -> usize {
    imported["imported"].as_array().unwrap().iter().map(|thread| thread["unreadable"].as_array().unwrap().len()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_the_real_program_import_list_show_and_fork() {
    let peer = Peer::new().await;
    let exec = ["exec", "--skip-git-repo-check", "-s", "danger-full-access", "--json"];
    peer.run(&[&exec[..], &["the first question"]].concat()).await;
    let rollout = peer.rollouts().pop().unwrap();
    let name = rollout.file_stem().unwrap().to_str().unwrap().to_owned();
    let id = &name[name.len() - 36..];
    peer.run(&[&exec[..], &["resume", id, "the second question"]].concat()).await;

    let ours = Ours::new();
    let imported = ours.json(&["import", peer.home.path().to_str().unwrap()]);
    assert_eq!((&imported["failed"], &imported["imported"][0]["turns"]), (&json!(0), &json!(2)), "{imported}");
    assert_eq!(unreadable(&imported), 0);
    let listed = ours.json(&["list"]);
    assert_eq!(listed["threads"][0]["id"], id);
    assert_eq!((&listed["threads"][0]["preview"], &listed["threads"][0]["turns"]), (&json!("the first question"), &json!(2)));
    let shown = seen(&ours, id);
    for part in [
        "> the first question",
        "> the second question",
        "exec_command {\"cmd\":\"echo from the real one\"}",
        "  from the real one",
        "done",
    ] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    let fork = ours.json(&["fork", id, "--before-message", "1"]);
    let forked = seen(&ours, fork["thread"].as_str().unwrap());
    assert!(forked.contains("the first question") && !forked.contains("the second question"), "{forked}");
    assert_eq!(ours.json(&["list", "--search", "second"])["threads"].as_array().unwrap().len(), 1);
    // Again is the same thread, and what was added since is added here, too.
    peer.run(&[&exec[..], &["resume", id, "the third question"]].concat()).await;
    let again = ours.json(&["import", rollout.to_str().unwrap()]);
    assert!(again["imported"][0]["outcome"].as_str().unwrap().contains("added"), "{again}");
    assert!(seen(&ours, id).contains("the third question"));

    // As that program compresses what is old.
    let packed = peer.home.path().join("sessions").join(format!("{name}.jsonl.zst"));
    std::fs::write(&packed, zstd::encode_all(std::fs::File::open(&rollout).unwrap(), 3).unwrap()).unwrap();
    let other = Ours::new();
    let imported = other.json(&["import", packed.to_str().unwrap()]);
    assert_eq!(imported["imported"][0]["turns"], 3, "{imported}");
    assert_eq!(other.json(&["show", id, "--all"])["entries"], ours.json(&["show", id, "--all"])["entries"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_in_the_older_mode_import_with_their_forks() {
    let peer = Peer::new().await;
    let mut server = peer.command(&["app-server"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (mut input, output) = (server.stdin.take().unwrap(), BufReader::new(server.stdout.take().unwrap()));
    let work = peer.work.path().to_str().unwrap().to_owned();
    let talk = tokio::task::spawn_blocking(move || {
        let mut lines = output.lines();
        let mut number = 0;
        let mut call = |method: &str, params: Value, until: Option<&str>| {
            number += 1;
            writeln!(input, "{}", json!({"id": number, "method": method, "params": params})).unwrap();
            let mut result = Value::Null;
            loop {
                let message: Value = serde_json::from_str(&lines.next().expect("it ended").unwrap()).unwrap();
                assert!(message.get("error").is_none_or(|_| message["id"] != number), "{message}");
                if message["id"] == number {
                    result = message["result"].clone();
                }
                if !result.is_null() && until.is_none_or(|until| message["method"] == until) {
                    return result;
                }
            }
        };
        let client = json!({"clientInfo": {"name": "test", "version": "1", "title": null}, "capabilities": {"experimentalApi": true}});
        call("initialize", client, None);
        let start = json!({"cwd": work, "sandbox": "danger-full-access", "approvalPolicy": "never", "historyMode": "legacy"});
        let id = call("thread/start", start, None)["thread"]["id"].as_str().unwrap().to_owned();
        for text in ["run something", "and explain it"] {
            let turn = json!({"threadId": id, "input": [{"type": "text", "text": text, "text_elements": []}]});
            call("turn/start", turn, Some("turn/completed"));
        }
        call("thread/compact/start", json!({"threadId": id}), Some("turn/completed"));
        let fork = call("thread/fork", json!({"threadId": id}), None)["thread"]["id"].as_str().unwrap().to_owned();
        let turn = json!({"threadId": fork, "input": [{"type": "text", "text": "in the fork", "text_elements": []}]});
        call("turn/start", turn, Some("turn/completed"));
        (id, fork)
    });
    let (id, fork) = talk.await.unwrap();
    server.wait().unwrap();

    let ours = Ours::new();
    let imported = ours.json(&["import", peer.home.path().to_str().unwrap()]);
    assert_eq!((&imported["failed"], unreadable(&imported)), (&json!(0), 0), "{imported}");
    let shown = seen(&ours, &id);
    for part in ["> run something", "> and explain it", "from the real one", "the context was compacted"] {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    let forked = seen(&ours, &fork);
    assert!(forked.contains("> run something") && forked.contains("> in the fork"), "{forked}");
    assert!(!shown.contains("in the fork"));
}
