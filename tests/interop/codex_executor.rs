//! Our client with the real executor.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use outpost_testkit::Cutter;

use crate::{OUTPOST, codex};

/// The peer's executor; killed when dropped.
pub(crate) struct CodexExecutor {
    child: Child,
    pub url: String,
    _home: tempfile::TempDir,
}

impl CodexExecutor {
    pub(crate) fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut child = Command::new(codex())
            .args(["exec-server", "--listen", "ws://127.0.0.1:0"])
            .env("CODEX_HOME", home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned(), _home: home }
    }
}

impl CodexExecutor {
    /// kill -9, of the real program too.
    pub(crate) fn kill(self) {
        kill_tree(self.child.id());
    }
}

/// Kills a process and what it started. The launcher would go alone otherwise.
pub(crate) fn kill_tree(pid: u32) {
    let children = children(pid);
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    children.into_iter().for_each(kill_tree);
}

/// By the parents that processes name. The kernel's own list of children leaves some out while others end, and names only those
/// of one thread: the program that it left out once lived on, and nothing was ever lost.
fn children(pid: u32) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parent = |child: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    numbers.filter(|child| parent(child) == Some(pid)).collect()
}

impl Drop for CodexExecutor {
    fn drop(&mut self) {
        // The launcher passes this on to the real program, which a kill would not reach.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

async fn run(url: &str, command: &[&str]) -> std::process::Output {
    let mut outpost = tokio::process::Command::new(OUTPOST);
    outpost.args(["run", "-e", url, "--"]).args(command).stdin(Stdio::null()).output().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_runs_on_the_real_executor() {
    let executor = CodexExecutor::start();
    let output = run(&executor.url, &["/bin/sh", "-c", "echo out; echo err >&2; exit 7"]).await;
    assert_eq!(output.status.code(), Some(7));
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    let large = run(&executor.url, &["/bin/sh", "-c", "seq 1 300000"]).await;
    assert_eq!(large.stdout.len(), 1_988_895);
    let missing = run(&executor.url, &["/no/such/program"]).await;
    assert_eq!(missing.status.code(), Some(125));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_to_the_real_executor_is_taken_up_again() {
    let executor = CodexExecutor::start();
    let cutter = Cutter::start(executor.url.strip_prefix("ws://").unwrap(), vec![6_000, 9_000]).await;
    let counter = tempfile::NamedTempFile::new().unwrap();
    let script = format!("echo run >> {}; for i in $(seq 1 40); do echo line $i; sleep 0.05; done", counter.path().display());
    let output = run(&cutter.url(), &["/bin/sh", "-c", &script]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: String = (1..=40).map(|n| format!("line {n}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert!(cutter.connections() > 1, "it was never cut");
    assert_eq!(std::fs::read_to_string(counter.path()).unwrap(), "run\n");
}
