//! A real app server in a process of its own, with a model that says what it was told to say, and clients of it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use outpost_rpc::link::ws::{self, ClientOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Client;
use crate::model::{Reply, ScriptedModel};
use crate::readable::readable;

/// Killed when dropped.
pub struct AppServer {
    child: Child,
    url: String,
    outpost: String,
    /// Whether the test looks at it in `/proc`.
    readable: bool,
    pub model: ScriptedModel,
    home: TempDir,
    work: TempDir,
}

impl AppServer {
    /// On a websocket that asks for nothing; commands run without a sandbox, and no questions are asked.
    pub async fn start(outpost: &str, replies: Vec<Reply>) -> Self {
        Self::start_with(outpost, replies, "approval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n").await
    }

    /// The same for a test that looks at it in `/proc`.
    pub async fn start_readable(outpost: &str, replies: Vec<Reply>) -> Self {
        Self::launched(outpost, replies, "approval_policy = \"never\"\nsandbox_mode = \"danger-full-access\"\n", true).await
    }

    /// Both.
    pub async fn start_readable_with(outpost: &str, replies: Vec<Reply>, config: &str) -> Self {
        Self::launched(outpost, replies, config, true).await
    }

    /// With these lines at the top of its configuration.
    pub async fn start_with(outpost: &str, replies: Vec<Reply>, config: &str) -> Self {
        Self::launched(outpost, replies, config, false).await
    }

    async fn launched(outpost: &str, replies: Vec<Reply>, config: &str, readable: bool) -> Self {
        let model = ScriptedModel::with(replies).await;
        let (home, work) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let config = format!(
            "model = \"scripted\"\nmodels.scripted = {{}}\nmodel_provider = \"mock\"\n{config}\n[model_providers.mock]\nname = \"mock\"\nbase_url = \"{}\"\n\
             wire_api = \"responses\"\nrequest_max_retries = 0\nstream_max_retries = 0\n",
            model.base_url()
        );
        std::fs::write(home.path().join("config.toml"), config).unwrap();
        let (child, url) = launch(program(outpost, readable), home.path(), work.path());
        Self { child, url, outpost: outpost.to_owned(), readable, model, home, work }
    }

    /// `ws://IP:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Where it was started.
    pub fn work(&self) -> &Path {
        self.work.path()
    }

    /// The directory as clients write it.
    pub fn cwd(&self) -> String {
        self.work.path().canonicalize().unwrap().display().to_string()
    }

    /// Kills it as a power cut would, and starts it again on the same home.
    pub fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        (self.child, self.url) = launch(program(&self.outpost, self.readable), self.home.path(), self.work.path());
    }

    /// Ends it politely, as a service manager would; its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }

    /// From now on it may have so many files open, and cannot help it.
    pub fn limit_files(&self, count: u64) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let limit = rustix::process::Rlimit { current: Some(count), maximum: Some(count) };
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit).unwrap();
    }

    /// A connection on which nothing was said yet.
    pub async fn connect(&self) -> Client {
        Client::new(ws::connect(&self.url, &ClientOptions::default()).await.unwrap())
    }

    /// A client that may use everything.
    pub async fn client(&self) -> Client {
        let mut client = self.connect().await;
        introduce(&mut client, json!({"experimentalApi": true})).await;
        client
    }
}

impl Drop for AppServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(outpost: &str, is_readable: bool) -> Command {
    if is_readable { readable(Path::new(outpost)) } else { Command::new(outpost) }
}

fn launch(mut program: Command, home: &Path, work: &Path) -> (Child, String) {
    let mut child = program
        .args(["app-server", "--listen", "ws://127.0.0.1:0", "--no-auth"])
        .env("OUTPOST_HOME", home)
        // The login shell of the user who runs the tests must make no difference.
        .env("HOME", home)
        .env_remove("OUTPOST_EXEC_SERVER_URL")
        .current_dir(work)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the app server cannot be started");
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    assert!(!url.is_empty(), "the app server did not say where it listens");
    (child, url.trim().to_owned())
}

/// The handshake.
pub async fn introduce(client: &mut Client, capabilities: Value) -> Value {
    let info = json!({"name": "test", "version": "1", "title": null});
    let result = client.result("initialize", json!({"clientInfo": info, "capabilities": capabilities})).await;
    client.notify("initialized", Value::Null);
    result
}

/// What a user says.
pub fn text(text: &str) -> Value {
    json!([{"type": "text", "text": text}])
}

/// A notification about a thread or a turn, by name.
pub async fn notice(client: &mut Client, method: &str) -> Value {
    client.until(|message| message["method"] == method && message.get("id").is_none()).await["params"].take()
}

/// Starts a thread with these parameters; its id.
pub async fn thread(client: &mut Client, params: Value) -> String {
    client.result("thread/start", params).await["thread"]["id"].as_str().unwrap().to_owned()
}

/// Starts a turn; its id.
pub async fn begin(client: &mut Client, thread: &str, said: &str) -> String {
    let answer = client.result("turn/start", json!({"threadId": thread, "input": text(said)})).await;
    answer["turn"]["id"].as_str().unwrap().to_owned()
}

/// Runs a turn to its end; the turn.
pub async fn turn(client: &mut Client, thread: &str, said: &str) -> Value {
    let id = begin(client, thread, said).await;
    completed(client, &id).await
}

/// Waits for the end of a turn.
pub async fn completed(client: &mut Client, id: &str) -> Value {
    let fits = |message: &Value| message["method"] == "turn/completed" && message["params"]["turn"]["id"] == id;
    client.until(fits).await["params"]["turn"].take()
}
