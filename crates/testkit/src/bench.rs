//! One executor and a way to reach it, the same for every kind of link.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use outpost_executor::{Executor, ExecutorConfig, GitSettings, Grounds, HttpTarget, InputLimits, Lifetime, OutputLimits, WorkerPatience};
use outpost_listener::listen::ListenAddr;
use outpost_rpc::link::{memory, stdio, unix, ws};
use outpost_rpc::{Link, PeerOptions};
use outpost_sandbox::{Launcher, LauncherSettings};
use outpost_wire::PathUri;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use crate::client::Client;
use crate::executor::ExecutorProcess;
use crate::readable::readable;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkKind {
    Memory,
    Stdio,
    Unix,
    WebSocket,
}

/// The servers that tests ask executors to talk to are on this machine.
const USUAL: &[&str] = &["--http-allow", "loopback"];

pub struct Bench {
    work: TempDir,
    outpost: PathBuf,
    server: Server,
}

/// What an executor is started with beyond the usual.
#[derive(Debug, Clone, Copy, Default)]
pub struct Setup<'a> {
    /// More arguments for `outpost executor`; one in memory has none.
    pub arguments: &'a [&'a str],
    /// More variables in its own environment.
    pub variables: &'a [(&'a str, &'a str)],
    /// How long file calls inside a sandbox may take; only for an executor in memory.
    pub worker_patience: WorkerPatience,
    /// What may wait for processes that do not read; only for an executor in memory.
    pub input: InputLimits,
    /// For how long a process that has ended is kept for a client that is there; only for an executor in memory.
    pub closed_retention: Option<Duration>,
    /// Whether the test looks at the executor in `/proc`; only for one in a process that outlives its connections.
    pub readable: bool,
}

enum Server {
    Memory {
        executor: Executor,
        /// Only kept.
        _home: TempDir,
    },
    Process(ExecutorProcess),
    /// A new process for every connection.
    Stdio {
        home: TempDir,
        arguments: Vec<String>,
        variables: Vec<(String, String)>,
    },
    /// An executor that runs already.
    Foreign(String),
}

impl Bench {
    /// An executor behind a link of this kind. `outpost` is the program under test. For websockets,
    /// `OUTPOST_CONFORMANCE_URL` names another executor to be tested instead.
    pub async fn new(kind: LinkKind, outpost: &str) -> Self {
        match std::env::var("OUTPOST_CONFORMANCE_URL") {
            Ok(url) if kind == LinkKind::WebSocket => {
                Self { work: tempfile::tempdir().unwrap(), outpost: PathBuf::from(outpost), server: Server::Foreign(url) }
            }
            _ => Self::with_setup(kind, outpost, &Setup::default()),
        }
    }

    /// Always the program under test, started in a particular way.
    pub fn with_setup(kind: LinkKind, outpost: &str, setup: &Setup<'_>) -> Self {
        let work = tempfile::tempdir().unwrap();
        let outpost = PathBuf::from(outpost);
        let home = tempfile::tempdir().unwrap();
        let process = |listen: &[&str], home| {
            let mut command = if setup.readable { readable(&outpost) } else { Command::new(&outpost) };
            command.arg("executor").args([listen, USUAL, setup.arguments].concat()).envs(setup.variables.iter().copied());
            ExecutorProcess::start_command(command, home)
        };
        let server = match kind {
            LinkKind::Memory => {
                assert!(setup.arguments.is_empty(), "an executor in memory has no command line");
                hear_ignored_signals();
                let mut config = config(&outpost, work.path(), home.path());
                (config.worker_patience, config.input) = (setup.worker_patience, setup.input);
                config.closed_retention = setup.closed_retention.unwrap_or(config.closed_retention);
                config.variables.extend(setup.variables.iter().map(|(name, value)| (name.into(), value.into())));
                Server::Memory { executor: Executor::new(config), _home: home }
            }
            LinkKind::Stdio => Server::Stdio {
                home,
                arguments: [USUAL, setup.arguments].concat().iter().map(|&argument| argument.to_owned()).collect(),
                variables: setup.variables.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect(),
            },
            LinkKind::Unix => {
                let listen = format!("unix://{}/executor.sock", home.path().display());
                Server::Process(process(&["--listen", &listen], home))
            }
            LinkKind::WebSocket => Server::Process(process(&["--no-auth"], home)),
        };
        Self { work, outpost, server }
    }

    /// The executor's process, where it has one that outlives its connections.
    pub fn process(&self) -> Option<&ExecutorProcess> {
        match &self.server {
            Server::Process(process) => Some(process),
            _ => None,
        }
    }

    /// `IP:PORT` of an executor that is reached by websockets.
    pub fn address(&self) -> &str {
        match &self.server {
            Server::Process(process) => process.address(),
            Server::Foreign(url) => url.strip_prefix("ws://").expect("not a websocket"),
            Server::Memory { .. } | Server::Stdio { .. } => panic!("not a websocket"),
        }
    }

    pub async fn link(&self) -> Link {
        match &self.server {
            Server::Memory { executor, .. } => {
                let (ours, theirs) = memory::pair();
                let executor = executor.clone();
                tokio::spawn(async move { executor.serve(theirs, Lifetime::Grace).await });
                ours
            }
            Server::Process(process) => connect(process.url()).await,
            Server::Foreign(url) => connect(url).await,
            Server::Stdio { home, arguments, variables } => {
                let mut command = tokio::process::Command::new(&self.outpost);
                command.args(["executor", "--listen", "stdio"]).args(arguments);
                command.env("OUTPOST_HOME", home.path()).envs(variables.iter().map(|(name, value)| (name, value)));
                stdio_link(command)
            }
        }
    }

    pub async fn connect(&self) -> Client {
        Client::new(self.link().await)
    }

    /// A client that is through the handshake.
    pub async fn client(&self) -> Client {
        let mut client = self.connect().await;
        client.hello().await;
        client
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    pub fn uri(&self, name: &str) -> String {
        PathUri::from_native(&self.path(name)).unwrap().to_string()
    }

    /// Parameters that start `argv` in the work directory.
    pub fn start(&self, id: &str, argv: &[&str]) -> Value {
        json!({"processId": id, "argv": argv, "cwd": self.uri(""), "env": {"PATH": "/usr/bin:/bin"}, "tty": false})
    }

    /// Parameters that start a shell script.
    pub fn shell(&self, id: &str, script: &str) -> Value {
        self.start(id, &["/bin/sh", "-c", script])
    }
}

/// Tests that run in the background of a script ignore interrupts, and so would the children of an executor that is
/// in this process. A signal that is heard is not inherited as ignored.
fn hear_ignored_signals() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    for kind in [SignalKind::interrupt(), SignalKind::quit(), SignalKind::hangup()] {
        if mask & (1 << (kind.as_raw_value() - 1)) != 0 {
            drop(signal(kind).unwrap());
        }
    }
}

/// The same value with some members replaced.
pub fn with(mut value: Value, changes: Value) -> Value {
    for (name, change) in changes.as_object().unwrap() {
        value[name] = change.clone();
    }
    value
}

fn config(outpost: &Path, work: &Path, home: &Path) -> ExecutorConfig {
    ExecutorConfig {
        grace: Duration::from_secs(600),
        grace_running: Duration::from_secs(600),
        closed_retention: Duration::from_secs(30),
        output: OutputLimits::default(),
        input: InputLimits::default(),
        spool_directory: Some(work.join(".spool")),
        journal_directory: None,
        lock_directory: None,
        redo_directory: Some(work.join(".redo")),
        listener: "memory".into(),
        launcher: Launcher::new(outpost, LauncherSettings { scratch: Some(home.join("cells")), ..LauncherSettings::default() }),
        worker_patience: WorkerPatience::default(),
        grounds: Grounds::default(),
        git: GitSettings { directory: Some(home.join("git")), ..GitSettings::default() },
        ids: Arc::new(|| Uuid::new_v4().to_string()),
        executor_id: Some(Uuid::new_v4().to_string()),
        version: "test".into(),
        home: Some(home.to_owned()),
        variables: std::env::vars_os().collect(),
        cwd: work.to_owned(),
        http_allow: vec![HttpTarget::Loopback],
        peer: PeerOptions { malformed: "failed to parse websocket JSON-RPC message from", ..PeerOptions::default() },
        for_caller: None,
    }
}

/// A link to an executor that listens.
pub async fn connect(url: &str) -> Link {
    let options = ws::ClientOptions::default();
    match ListenAddr::from_str(url).unwrap() {
        ListenAddr::Ws(_) => ws::connect(url, &options).await.unwrap(),
        ListenAddr::Unix(path) => unix::connect(&path, &options).await.unwrap(),
        ListenAddr::Stdio => panic!("a URL was expected"),
    }
}

fn stdio_link(mut command: tokio::process::Command) -> Link {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let link = stdio::link(output, input, "stdio");
    let sink = link.tx.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = child.wait() => {}
            () = sink.closed() => { let _ = tokio::time::timeout(Duration::from_secs(5), child.wait()).await; }
        }
    });
    link
}

/// One test over every kind of link: `over_every_link!(async fn name(bench: Bench) { … });` A list of kinds in front
/// restricts it: `over_links!([Memory, WebSocket] async fn …)`. The caller's crate must build the `outpost` binary.
#[macro_export]
macro_rules! over_every_link {
    ($(async fn $name:ident($bench:ident: Bench) $body:block)*) => {
        $crate::over_links!([Memory, Stdio, Unix, WebSocket] $(async fn $name($bench: Bench) $body)*);
    };
}

#[macro_export]
macro_rules! over_links {
    ($kinds:tt $(async fn $name:ident($bench:ident: Bench) $body:block)*) => {
        $($crate::over_links!(@one $kinds $name $bench $body);)*
    };
    (@one [$($kind:ident),*] $name:ident $bench:ident $body:block) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            async fn check($bench: $crate::Bench) $body
            $(#[allow(non_snake_case)]
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $kind() {
                check($crate::Bench::new($crate::LinkKind::$kind, env!("CARGO_BIN_EXE_outpost")).await).await;
            })*
        }
    };
}
