//! A server of threads, ours or the peer's, driven over its standard streams.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
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

pub(crate) struct Peer {
    child: Child,
    input: AsyncMutex<ChildStdin>,
    waiting: Arc<Mutex<Waiting>>,
    home: PathBuf,
    /// A home of its own is removed with it.
    _own: Option<TempDir>,
}

pub(crate) struct PeerThread {
    pub id: String,
    turns: mpsc::UnboundedReceiver<String>,
}

fn lock(waiting: &Mutex<Waiting>) -> std::sync::MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Peer {
    pub(crate) async fn start(codex: &Path, model: &ModelProcess) -> anyhow::Result<Self> {
        let home = tempfile::tempdir()?;
        configure(home.path(), &model.base_url())?;
        let peer = Self::start_in(codex, home.path()).await?;
        Ok(Self { _own: Some(home), ..peer })
    }

    /// With a home that was configured, and may have been used before.
    pub(crate) async fn start_in(program: &Path, home: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .arg("app-server")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", home)
            .env("CODEX_HOME", home)
            .env("OUTPOST_HOME", home)
            .current_dir(home)
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
        let peer = Self { child, input, waiting, home: home.to_owned(), _own: None };
        let client = json!({"name": "bench", "title": "bench", "version": "0"});
        peer.call("initialize", &json!({"clientInfo": client, "capabilities": {"experimentalApi": true}})).await?;
        peer.send(&json!({"method": "initialized"})).await?;
        Ok(peer)
    }

    async fn send(&self, message: &Value) -> anyhow::Result<()> {
        let mut input = self.input.lock().await;
        input.write_all(format!("{message}\n").as_bytes()).await?;
        Ok(input.flush().await?)
    }

    pub(crate) async fn call(&self, method: &str, params: &Value) -> anyhow::Result<Value> {
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

    pub(crate) async fn thread(&self) -> anyhow::Result<PeerThread> {
        let started = self.call("thread/start", &json!({"cwd": self.home})).await?;
        let id = started["thread"]["id"].as_str().context("no thread id")?.to_owned();
        Ok(self.follow(id))
    }

    /// Hears of the turns of a thread that is loaded.
    pub(crate) fn follow(&self, id: String) -> PeerThread {
        let (sender, turns) = mpsc::unbounded_channel();
        lock(&self.waiting).turns.insert(id.clone(), sender);
        PeerThread { id, turns }
    }

    pub(crate) async fn turn(&self, thread: &mut PeerThread, text: &str) -> anyhow::Result<()> {
        self.call("turn/start", &json!({"threadId": thread.id, "input": [{"type": "text", "text": text}]})).await?;
        let status = thread.turns.recv().await.context("the peer is gone")?;
        ensure!(status == "completed", "the turn ended as {status}");
        Ok(())
    }

    /// Resident bytes.
    pub(crate) fn memory(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().context("the peer is gone")?))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("/proc/PID/status has another shape")?;
        Ok(line.split_whitespace().next().unwrap_or_default().parse::<u64>()? << 10)
    }

    /// Ends it and waits for that.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        self.child.start_kill()?;
        self.child.wait().await?;
        Ok(())
    }

    /// CPU milliseconds so far, in whole ticks.
    pub(crate) fn cpu(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id().context("the peer is gone")?))?;
        let members: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        ensure!(members.len() > 12, "/proc/PID/stat has another shape");
        Ok((members[11].parse::<f64>()? + members[12].parse::<f64>()?) * 10.0)
    }
}

/// Writes the configuration of both programs: an instant model, no questions and no sandbox.
pub(crate) fn configure(home: &Path, base_url: &str) -> anyhow::Result<()> {
    let config = format!(
        "model = \"instant\"\nmodel_provider = \"instant\"\napproval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n\
         [model_providers.instant]\nname = \"instant\"\nbase_url = \"{base_url}\"\nwire_api = \"responses\"\nrequest_max_retries = 0\n\
         stream_max_retries = 0\nsupports_websockets = false\n"
    );
    Ok(std::fs::write(home.join("config.toml"), config)?)
}
