//! Who plays in the demo: a second executor, and this program as it runs the thread.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use outpost_sandbox::{Limits, probe, remove_tree};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;
use uuid::Uuid;

use super::COUNT;
use super::cable::Cable;
use crate::home::{EXECUTOR, Home};

/// How long the second executor may take to listen.
const START: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// Everything that is there for the demo. The processes end when it is dropped.
pub(super) struct Company {
    pub scratch: PathBuf,
    /// Where the thread works here, and there.
    pub local: PathBuf,
    pub worker: PathBuf,
    pub cable: Cable,
    /// Why there is no sandbox, if there is none.
    pub no_sandbox: Option<String>,
    /// What the sandbox of this machine does not hold, if anything.
    pub shortfall: Option<String>,
    program: PathBuf,
    home: PathBuf,
    token: String,
    executor: Child,
}

/// A run of `outpost exec --json`.
pub(super) struct DemoRun {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
    read: Vec<Value>,
}

impl Company {
    pub(super) async fn gather(scratch: &Path, home: &Home) -> anyhow::Result<Self> {
        let (local, worker) = (scratch.join("local"), scratch.join("worker"));
        let worker_home = scratch.join("worker-home");
        for directory in [&local, &worker, &worker_home, &scratch.join("user")] {
            DirBuilder::new().mode(0o700).create(directory).with_context(|| format!("{} cannot be made", directory.display()))?;
        }
        std::fs::write(worker.join("count.sh"), COUNT).with_context(|| format!("nothing can be written in {}", worker.display()))?;
        let verdict = probe(&worker_home);
        let (no_sandbox, shortfall) = (verdict.refusal(), verdict.shortfall());
        let program = std::env::current_exe().context("this program does not know where it is")?;
        let mut executor = plain(&program, scratch)
            .args(["executor", "--listen", "ws://127.0.0.1:0"])
            .env("OUTPOST_HOME", &worker_home)
            .current_dir(&worker)
            .stdout(Stdio::piped())
            .stderr(log(&scratch.join("worker.log"))?)
            .spawn()
            .context("a second executor cannot be started")?;
        let out = executor.stdout.take().context("a second executor cannot be heard")?;
        let url = timeout(START, BufReader::new(out).lines().next_line()).await;
        let Ok(Ok(Some(url))) = url else { bail!("the second executor does not listen: {}", tail(&scratch.join("worker.log"))) };
        let address = url.trim().strip_prefix("ws://").with_context(|| format!("`{url}` is not an address"))?.to_owned();
        let token = std::fs::read_to_string(worker_home.join("tokens").join(EXECUTOR)).context("the second executor has no token")?;
        let cable = Cable::lay(address).await.context("no port of this machine can be used")?;
        Ok(Self {
            scratch: scratch.to_owned(),
            local,
            worker,
            cable,
            no_sandbox,
            shortfall,
            program,
            home: home.path().to_owned(),
            token: token.trim().to_owned(),
            executor,
        })
    }

    /// A new thread here and there, and its first turn.
    pub(super) fn begin(&self, prompt: &str) -> anyhow::Result<DemoRun> {
        let (here, there) = (format!("local={}", self.local.display()), format!("worker={}", self.worker.display()));
        let mode = if self.no_sandbox.is_some() { "danger-full-access" } else { "workspace-write" };
        self.exec(&["-e", &here, "-e", &there, "--provider", "offline", "--sandbox", mode, "--thread-source", "demo", prompt])
    }

    /// The thread again; without a prompt, what it was at.
    pub(super) fn resume(&self, thread: &str, prompt: Option<&str>) -> anyhow::Result<DemoRun> {
        let mut arguments = vec!["resume", thread];
        arguments.extend(prompt);
        self.exec(&arguments)
    }

    fn exec(&self, arguments: &[&str]) -> anyhow::Result<DemoRun> {
        let attached = format!("worker={}", self.cable.url());
        let log_file = self.scratch.join("exec.log");
        let mut child = self
            .command()
            .args(["-c", "store=local", "-c", "approval_policy=never", "exec", "--json", "--unkept", "--attach", &attached])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(log(&log_file)?)
            .spawn()
            .context("this program cannot be started again")?;
        let out = child.stdout.take().context("the program cannot be heard")?;
        Ok(DemoRun { child, lines: BufReader::new(out).lines(), log: log_file, read: Vec::new() })
    }

    /// This program as a user starts it, with the home of the user who started the demo.
    fn command(&self) -> Command {
        let mut command = plain(&self.program, &self.scratch);
        command.env("OUTPOST_HOME", &self.home).env("OUTPOST_TOKEN", &self.token).current_dir(&self.local);
        command
    }

    /// How this program is called from where the demo was started.
    pub(super) fn called(&self) -> String {
        let same = |path: &Path| path.canonicalize().is_ok_and(|path| self.program.canonicalize().is_ok_and(|own| own == path));
        let on_path = std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|place| same(&place.join("outpost"))));
        if on_path {
            return "outpost".to_owned();
        }
        let below = std::env::current_dir().ok().and_then(|here| self.program.strip_prefix(here).ok().map(Path::to_owned));
        below.unwrap_or_else(|| self.program.clone()).display().to_string()
    }

    /// What a verb prints, as one line.
    pub(super) async fn words(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = self.command().args(arguments).output().await.context("this program cannot be started again")?;
        if !output.status.success() {
            bail!("`outpost {}`: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Waits until a command there has counted so far.
    pub(super) async fn reaches(&self, file: &str, count: usize, within: Duration) -> anyhow::Result<()> {
        let file = self.worker.join(file);
        let counted = async {
            while std::fs::read_to_string(&file).unwrap_or_default().lines().count() < count {
                tokio::time::sleep(LOOK).await;
            }
        };
        timeout(within, counted).await.with_context(|| format!("the command at `worker` does not get to line {count}"))
    }

    /// Ends the second executor.
    pub(super) async fn leave(mut self) {
        let _ = self.executor.kill().await;
    }
}

impl DemoRun {
    /// The id of the thread.
    pub(super) async fn thread(&mut self, within: Duration) -> anyhow::Result<String> {
        while let Some(line) = self.next(within).await? {
            if let Some(id) = line["thread_id"].as_str() {
                return Ok(id.to_owned());
            }
        }
        bail!("no thread was started: {}", tail(&self.log))
    }

    /// All that it tells, to a good end.
    pub(super) async fn end(&mut self, within: Duration) -> anyhow::Result<Vec<Value>> {
        while self.next(within).await?.is_some() {}
        let status = timeout(within, self.child.wait()).await.context("the program does not end")??;
        // A command of the turn may fail, and one of the demo does; the turn itself must not.
        let is_whole = self.read.last().is_some_and(|line| line["type"] == "turn.completed");
        if !status.success() && !is_whole {
            let last = || self.read.last().map(ToString::to_string).unwrap_or_default();
            let said = tail(&self.log);
            bail!("the turn did not end well: {}", if said.is_empty() { last() } else { said });
        }
        Ok(self.read.clone())
    }

    async fn next(&mut self, within: Duration) -> anyhow::Result<Option<Value>> {
        let line = timeout(within, self.lines.next_line()).await.context("the thread tells nothing any more")??;
        let line = line.map(|line| serde_json::from_str::<Value>(&line).with_context(|| format!("`{line}`"))).transpose()?;
        self.read.extend(line.clone());
        Ok(line)
    }

    /// kill -9.
    pub(super) async fn kill(&mut self) -> io::Result<()> {
        self.child.kill().await
    }
}

/// This program without anything that the user's own environment would add: profiles of shells, other executors, other places
/// for temporary files.
fn plain(program: &Path, scratch: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("HOME", scratch.join("user")).stdin(Stdio::null()).kill_on_drop(true);
    for name in ["OUTPOST_EXEC_SERVER_URL", "OUTPOST_LOG", "TMPDIR", "BASH_ENV", "ENV"] {
        command.env_remove(name);
    }
    command
}

/// A throw-away directory. Not below `/tmp`, where every sandbox may write.
pub(super) struct DemoDirectory(PathBuf);

impl DemoDirectory {
    pub(super) fn new() -> anyhow::Result<Self> {
        let name = format!("outpost-demo-{}", &Uuid::new_v4().simple().to_string()[..8]);
        let mut places = vec![PathBuf::from("/var/tmp"), std::env::temp_dir()];
        places.dedup();
        let mut refusals = Vec::new();
        for place in places {
            let path = place.join(&name);
            match has_room(&place).and_then(|()| Ok(DirBuilder::new().mode(0o700).create(&path)?)) {
                Ok(()) => return Ok(Self(path)),
                Err(error) => refusals.push(format!("{}: {error}", place.display())),
            }
        }
        bail!("there is no place for a throw-away directory; make room, or set TMPDIR to another place ({})", refusals.join("; "))
    }

    /// One that is there already.
    pub(super) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Something that is just ending may still write there, so it is gone only when it stays away.
    pub(super) async fn remove(self) {
        let mut quiet = 0;
        for _ in 0..100 {
            quiet = if self.0.exists() { 0 } else { quiet + 1 };
            let _ = remove_tree(&self.0);
            if quiet > 2 {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
        tracing::warn!("{} could not be removed; remove it by hand", self.0.display());
    }
}

/// Where less is free, a session that writes is stopped.
fn has_room(place: &Path) -> anyhow::Result<()> {
    let space = rustix::fs::statvfs(place).map_err(io::Error::from)?;
    let (free, needed) = (space.f_bavail.saturating_mul(space.f_frsize), Limits::default().free_space.unwrap_or_default());
    ensure!(free >= needed, "only {} MiB are free, and commands are stopped below {} MiB", free >> 20, needed >> 20);
    Ok(())
}

fn log(file: &Path) -> io::Result<Stdio> {
    File::options().create(true).append(true).open(file).map(Stdio::from)
}

/// What a program said last.
fn tail(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
