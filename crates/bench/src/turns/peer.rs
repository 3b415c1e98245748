//! The peer's server of threads, driven over its standard streams.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};

use super::model::ModelProcess;

/// Who waits for what.
#[derive(Default)]
struct Waiting {
    answers: HashMap<u64, oneshot::Sender<Value>>,
    turns: HashMap<String, mpsc::UnboundedSender<String>>,
    last: u64,
}

pub struct Peer {
    child: Child,
    input: AsyncMutex<ChildStdin>,
    waiting: Arc<Mutex<Waiting>>,
    home: TempDir,
}

pub struct PeerThread {
    id: String,
    turns: mpsc::UnboundedReceiver<String>,
}

fn lock(waiting: &Mutex<Waiting>) -> std::sync::MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peer {
    pub async fn start(codex: &Path, model: &ModelProcess) -> anyhow::Result<Self> {
        let home = tempfile::tempdir()?;
        let config = format!(
            "model = \"instant\"\nmodel_provider = \"instant\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n\
             [model_providers.instant]\nname = \"instant\"\nbase_url = \"{}\"\nwire_api = \"responses\"\nrequest_max_retries = 0\n\
             stream_max_retries = 0\nsupports_websockets = false\n",
            model.base_url()
        );
        std::fs::write(home.path().join("config.toml"), config)?;
        let mut child = Command::new(codex)
            .arg("app-server")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", home.path())
            .env("CODEX_HOME", home.path())
            .current_dir(home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let input = AsyncMutex::new(child.stdin.take().context("no input")?);
        let mut output = BufReader::with_capacity(1 << 20, child.stdout.take().context("no output")?).lines();
        let waiting: Arc<Mutex<Waiting>> = Arc::default();
        let telling = waiting.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
                let mut waiting = lock(&telling);
                if message["method"] == "turn/completed" {
                    let thread = message["params"]["threadId"].as_str().unwrap_or_default();
                    let status = message["params"]["turn"]["status"].as_str().unwrap_or_default().to_owned();
                    waiting.turns.get(thread).map(|turns| turns.send(status));
                } else if let Some(answer) = message["id"].as_u64().and_then(|id| waiting.answers.remove(&id)) {
                    let _ = answer.send(message);
                }
            }
            *lock(&telling) = Waiting::default();
        });
        let peer = Self { child, input, waiting, home };
        peer.call("initialize", &json!({"clientInfo": {"name": "bench", "title": "bench", "version": "0"}})).await?;
        peer.send(&json!({"method": "initialized"})).await?;
        Ok(peer)
    }

    async fn send(&self, message: &Value) -> anyhow::Result<()> {
        let mut input = self.input.lock().await;
        input.write_all(format!("{message}\n").as_bytes()).await?;
        Ok(input.flush().await?)
    }

    async fn call(&self, method: &str, params: &Value) -> anyhow::Result<Value> {
        let (sender, answer) = oneshot::channel();
        let id = {
            let mut waiting = lock(&self.waiting);
            waiting.last += 1;
            let id = waiting.last;
            waiting.answers.insert(id, sender);
            id
        };
        self.send(&json!({"id": id, "method": method, "params": params})).await?;
        let mut answer = answer.await.context("the peer is gone")?;
        if !answer["error"].is_null() {
            bail!("{method}: {}", answer["error"]);
        }
        Ok(answer["result"].take())
    }

    pub async fn thread(&self) -> anyhow::Result<PeerThread> {
        let started = self.call("thread/start", &json!({"cwd": self.home.path()})).await?;
        let id = started["thread"]["id"].as_str().context("no thread id")?.to_owned();
        let (sender, turns) = mpsc::unbounded_channel();
        lock(&self.waiting).turns.insert(id.clone(), sender);
        Ok(PeerThread { id, turns })
    }

    pub async fn turn(&self, thread: &mut PeerThread, text: &str) -> anyhow::Result<()> {
        self.call("turn/start", &json!({"threadId": thread.id, "input": [{"type": "text", "text": text}]})).await?;
        let status = thread.turns.recv().await.context("the peer is gone")?;
        ensure!(status == "completed", "the turn ended as {status}");
        Ok(())
    }

    /// CPU milliseconds so far, in whole ticks.
    pub fn cpu(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id().context("the peer is gone")?))?;
        let members: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        ensure!(members.len() > 12, "/proc/PID/stat has another shape");
        Ok((members[11].parse::<f64>()? + members[12].parse::<f64>()?) * 10.0)
    }
}
