//! Servers that are measured: how each is started, weighed and ended.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::floor;
use crate::wire::Wire;

/// Ticks of `/proc/PID/stat`; Linux shows a hundred per second whatever it counts in itself.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Outpost,
    Floor,
    Codex,
}

#[derive(Debug, Clone)]
pub(crate) struct Contender {
    pub kind: Kind,
    program: PathBuf,
    arguments: &'static [&'static str],
}

impl Contender {
    pub(crate) fn outpost(program: PathBuf) -> Self {
        Self { kind: Kind::Outpost, program, arguments: &["executor", "--no-auth", "--listen", "ws://127.0.0.1:0"] }
    }

    pub(crate) fn floor() -> anyhow::Result<Self> {
        Ok(Self { kind: Kind::Floor, program: std::env::current_exe()?, arguments: &[floor::VERB] })
    }

    pub(crate) fn codex(program: PathBuf) -> Self {
        Self { kind: Kind::Codex, program, arguments: &["exec-server", "--listen", "ws://127.0.0.1:0"] }
    }

    pub(crate) fn name(&self) -> &'static str {
        match self.kind {
            Kind::Outpost => "outpost",
            Kind::Floor => "floor",
            Kind::Codex => "codex",
        }
    }

    /// A server in a home of its own, which listens.
    pub(crate) fn start(&self) -> anyhow::Result<Server> {
        let home = tempfile::tempdir()?;
        let started = Instant::now();
        let mut child = Command::new(&self.program)
            .args(self.arguments)
            .env("HOME", home.path())
            .env("OUTPOST_HOME", home.path())
            .env("CODEX_HOME", home.path())
            .current_dir(home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let output = child.stdout.take().context("no output")?;
        let mut server = Server { child, address: String::new(), home, started, contender: self.clone() };
        let mut url = String::new();
        BufReader::new(output).read_line(&mut url)?;
        let address = url.trim().strip_prefix("ws://").map(|rest| rest.trim_end_matches('/'));
        server.address = address.with_context(|| format!("{} printed `{}` instead of its URL", self.name(), url.trim()))?.to_owned();
        Ok(server)
    }
}

/// A running contender; ended when dropped.
pub(crate) struct Server {
    child: Child,
    address: String,
    home: TempDir,
    pub started: Instant,
    pub contender: Contender,
}

impl Server {
    /// A connection that is past the handshake.
    pub(crate) fn connect(&self) -> anyhow::Result<Wire> {
        Wire::connect(&self.address, "{\"clientName\":\"bench\"}")
    }

    /// The same, back in a session whose connection was lost. The server may need a moment to notice the loss.
    pub(crate) fn resume(&self, session: &str) -> anyhow::Result<Wire> {
        let params = format!("{{\"clientName\":\"bench\",\"resumeSessionId\":\"{session}\"}}");
        let since = Instant::now();
        loop {
            match Wire::connect(&self.address, &params) {
                Err(_) if since.elapsed() < Duration::from_secs(5) => std::thread::sleep(Duration::from_millis(2)),
                outcome => return outcome,
            }
        }
    }

    /// `IP:PORT`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A path for files that go away with the server.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn proc(&self, file: &str) -> anyhow::Result<String> {
        Ok(std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id()))?)
    }

    /// Resident memory in KiB.
    pub(crate) fn memory(&self) -> anyhow::Result<f64> {
        let status = self.proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    /// CPU seconds of the server alone, without its children. The total of the process is cut to ticks, the clocks of its
    /// threads are exact but forget threads that ended; neither is ever too large.
    pub(crate) fn cpu(&self) -> anyhow::Result<f64> {
        let mut nanoseconds = 0.0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))?.flatten() {
            // A thread may end between the list and the look.
            let clock = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            nanoseconds += clock.split(' ').next().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        }
        let stat = self.proc("stat")?;
        let members: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        ensure!(members.len() > 12, "/proc/PID/stat has another shape");
        let ticks = members[11].parse::<f64>()? + members[12].parse::<f64>()?;
        Ok((nanoseconds / 1e9).max(ticks / TICKS_PER_SECOND))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(1) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
