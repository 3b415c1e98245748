//! A real `outpost serve` and real executors that dial in to it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use outpost_testkit::ExecutorProcess;
use tempfile::TempDir;

pub(crate) const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");

/// `outpost serve` in a process and a home of its own; killed when dropped.
pub(crate) struct Server {
    child: Child,
    url: String,
    home: Option<TempDir>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), &["--listen", "ws://127.0.0.1:0"])
    }

    pub(crate) fn start_in(home: TempDir, arguments: &[&str]) -> Self {
        let mut command = command(home.path(), &["serve"]);
        command.args(arguments);
        Self::launch(command, home)
    }

    pub(crate) fn launch(command: Command, home: TempDir) -> Self {
        Self::try_launch(command, home).unwrap_or_else(|_| panic!("the server did not say where it listens"))
    }

    /// One that may not come up, as when its database is away: then its home is for the next start.
    pub(crate) fn try_launch(mut command: Command, home: TempDir) -> Result<Self, TempDir> {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        if url.is_empty() {
            child.wait().unwrap();
            return Err(home);
        }
        Ok(Self { child, url: url.trim().to_owned(), home: Some(home) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// `IP:PORT`.
    pub(crate) fn address(&self) -> &str {
        self.url.split_once("://").unwrap().1
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.as_ref().unwrap().path()
    }

    /// kill -9, and what is left of it.
    pub(crate) fn kill(mut self) -> TempDir {
        self.end();
        self.home.take().unwrap()
    }

    /// Ends it politely, as a service manager would, and what is left of it.
    pub(crate) fn stop(mut self) -> TempDir {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap();
        self.home.take().unwrap()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Makes a token with `outpost token create`; returns its secret.
    pub(crate) fn token(&self, scope: &[&str]) -> String {
        token(self.home(), scope)
    }

    /// The secret that clients on this machine show.
    pub(crate) fn own_token(&self) -> String {
        std::fs::read_to_string(self.home().join("tokens/app")).unwrap().trim().to_owned()
    }

    /// A plain HTTP request; the status and the body.
    pub(crate) async fn get(&self, path: &str, bearer: Option<&str>) -> (u16, String) {
        let bearer = bearer.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        http(self.address(), &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{bearer}\r\n")).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes a token in a home.
pub(crate) fn token(home: &Path, scope: &[&str]) -> String {
    let made = outpost(home, &[&["token", "create"], scope].concat());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    String::from_utf8(made.stdout).unwrap().trim().to_owned()
}

/// Sends bytes and reads until the other side ends; the status and the body of the answer.
pub(crate) async fn http(address: &str, request: &str) -> (u16, String) {
    let answer = answer(address, request).await;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

/// The whole answer.
pub(crate) async fn answer(address: &str, request: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// The program with a home, and nothing of the environment of whoever runs the tests that could matter.
pub(crate) fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(OUTPOST);
    command.args(arguments).env("OUTPOST_HOME", home).stdin(Stdio::null());
    for name in ["OUTPOST_TOKEN", "OUTPOST_EXEC_SERVER_URL", "OPENAI_API_KEY", "OUTPOST_LOG"] {
        command.env_remove(name);
    }
    command
}

/// Runs the program to its end.
pub(crate) fn outpost(home: &Path, arguments: &[&str]) -> Output {
    command(home, arguments).output().unwrap()
}

/// An executor that has joined.
pub(crate) fn joined(url: &str, id: &str, token: &str) -> ExecutorProcess {
    joined_in(url, id, token, tempfile::tempdir().unwrap())
}

pub(crate) fn joined_in(url: &str, id: &str, token: &str, home: TempDir) -> ExecutorProcess {
    // Login shells read the profile of whoever runs the tests otherwise, and may take their time with it.
    let profile = home.path().to_str().unwrap().to_owned();
    let variables = [("OUTPOST_TOKEN", token), ("HOME", profile.as_str())];
    let executor = ExecutorProcess::start_with(Path::new(OUTPOST), &["--join", url, "--id", id], &variables, home);
    assert_eq!(executor.url(), format!("joined {url} as {id}"));
    executor
}

/// One that has joined and that the test looks at in `/proc`.
pub(crate) fn joined_readable(url: &str, id: &str, token: &str) -> ExecutorProcess {
    let home = tempfile::tempdir().unwrap();
    let mut command = outpost_testkit::readable(Path::new(OUTPOST));
    command.args(["executor", "--join", url, "--id", id]).env("OUTPOST_TOKEN", token).env("HOME", home.path());
    ExecutorProcess::start_command(command, home)
}

/// An executor that may not be let in: what it says until it is killed or has said what is waited for.
pub(crate) struct Trying {
    child: Child,
    said: std::sync::mpsc::Receiver<String>,
    _home: TempDir,
}

impl Trying {
    pub(crate) fn start(arguments: &[&str], token: &str, home: TempDir) -> Self {
        let mut child = command(home.path(), &["executor"])
            .args(arguments)
            .env("OUTPOST_TOKEN", token)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, said) = std::sync::mpsc::channel();
        let streams: [Box<dyn Read + Send>; 2] = [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for stream in streams {
            let send = send.clone();
            std::thread::spawn(move || BufReader::new(stream).lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        }
        Self { child, said, _home: home }
    }

    /// Waits for a line with this in it.
    pub(crate) fn says(&self, text: &str) -> String {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let mut heard = Vec::new();
        while let Ok(line) = self.said.recv_timeout(until.saturating_duration_since(std::time::Instant::now())) {
            if line.contains(text) {
                return line;
            }
            heard.push(line);
        }
        panic!("it does not say `{text}`, but {heard:#?}");
    }
}

impl Drop for Trying {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a process has a TCP socket that listens.
pub(crate) fn listens(pid: u32) -> bool {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|target| target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned))
        .collect();
    let listening = |table: &str| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        // The fourth column is the state, the tenth the socket.
        let fields = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        fields.filter(|fields| fields.get(3) == Some(&"0A")).filter_map(|fields| fields.get(9).map(|inode| (*inode).to_owned())).collect()
    };
    let all: Vec<String> = ["tcp", "tcp6"].into_iter().flat_map(|table| -> Vec<String> { listening(table) }).collect();
    sockets.iter().any(|socket| all.contains(socket))
}

/// A client of the app protocol, by hand.
pub(crate) struct App {
    link: outpost_rpc::Link,
    next: i64,
    /// What came without being asked for.
    pub heard: Vec<serde_json::Value>,
}

impl App {
    pub(crate) async fn connect(url: &str, token: &str) -> Self {
        let options = outpost_rpc::link::ws::ClientOptions { bearer: Some(token.to_owned()), ..Default::default() };
        let link = outpost_rpc::link::ws::connect(url, &options).await.unwrap();
        let mut app = Self { link, next: 1, heard: Vec::new() };
        let client = serde_json::json!({"clientInfo": {"name": "test", "version": "1"}, "capabilities": {"experimentalApi": true}});
        app.call("initialize", client).await;
        app.link.tx.send(serde_json::json!({"method": "initialized"}).to_string());
        app
    }

    pub(crate) async fn call(&mut self, method: &str, params: serde_json::Value) -> serde_json::Value {
        let id = self.next;
        self.next += 1;
        self.link.tx.send(serde_json::json!({"id": id, "method": method, "params": params}).to_string());
        loop {
            let message = self.read().await.expect("the connection was lost");
            if message["id"] == id && message.get("method").is_none() {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            self.heard.push(message);
        }
    }

    /// A call that is refused: the message.
    pub(crate) async fn refused(&mut self, method: &str, params: serde_json::Value) -> String {
        let id = self.next;
        self.next += 1;
        self.link.tx.send(serde_json::json!({"id": id, "method": method, "params": params}).to_string());
        loop {
            let message = self.read().await.expect("the connection was lost");
            if message["id"] == id && message.get("method").is_none() {
                let why = message["error"]["message"].as_str();
                return why.unwrap_or_else(|| panic!("{method} is not refused: {message}")).to_owned();
            }
            self.heard.push(message);
        }
    }

    /// Waits for a notification of this name.
    pub(crate) async fn notified(&mut self, method: &str) -> serde_json::Value {
        if let Some(index) = self.heard.iter().position(|message| message["method"] == method) {
            return self.heard.remove(index)["params"].take();
        }
        loop {
            let mut message = self.read().await.expect("the connection was lost");
            if message["method"] == method {
                return message["params"].take();
            }
            self.heard.push(message);
        }
    }

    /// Answers under an id, whether it was asked or not.
    pub(crate) fn answer(&self, id: &serde_json::Value, result: serde_json::Value) {
        self.link.tx.send(serde_json::json!({"id": id, "result": result}).to_string());
    }

    /// Waits for a request of this name: the id to answer under.
    pub(crate) async fn asked(&mut self, method: &str) -> serde_json::Value {
        let is_it = |message: &serde_json::Value| message["method"] == method && message.get("id").is_some();
        if let Some(index) = self.heard.iter().position(is_it) {
            return self.heard.remove(index)["id"].take();
        }
        loop {
            let mut message = self.read().await.expect("the connection was lost");
            if is_it(&message) {
                return message["id"].take();
            }
            self.heard.push(message);
        }
    }

    /// The next message; nothing once the connection is over.
    pub(crate) async fn read(&mut self) -> Option<serde_json::Value> {
        use futures_util::StreamExt;
        let frame = tokio::time::timeout(std::time::Duration::from_secs(120), self.link.rx.next()).await.expect("nothing comes");
        frame?.ok().map(|frame| serde_json::from_slice(&frame).unwrap())
    }
}
