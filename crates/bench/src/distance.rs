//! Work on a machine far away, beside ssh, scp and rsync on the same way: `cargo xtask bench distance`.
//!
//! The way is a proxy of ours with delay, a rate, and pieces that come late as if they had been lost. Everything goes through it, the peers
//! too. Flights are what the proxy counted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use outpost_testkit::app::{AppServer, thread, turn};
use outpost_testkit::flights::LinkQuality;
use outpost_testkit::model::Reply;
use outpost_testkit::{CountedLink, ExecutorProcess, FlightClock, LoginShell, Sshd};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use crate::figure::print;

pub(crate) struct Plan {
    pub outpost: String,
    pub delay_ms: u32,
    pub rate_mb: u32,
    pub losses: u32,
    pub small: bool,
    pub markdown: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self { outpost: String::new(), delay_ms: 100, rate_mb: 50, losses: 0, small: false, markdown: false }
    }
}

/// One line of the table. What there is no peer for has none.
struct Row {
    what: String,
    ours: Duration,
    flights: u64,
    peer: Option<(&'static str, Duration)>,
    /// The largest share of the peer's time that ours should take.
    most: Option<f64>,
}

/// Both ends, and the way between them.
struct Ground {
    plan_delay: Duration,
    clock: FlightClock,
    executor: CountedLink,
    ssh_config: PathBuf,
    directory: TempDir,
    outpost: String,
    _held: (ExecutorProcess, Sshd, CountedLink),
}

impl Ground {
    async fn make(plan: &Plan) -> anyhow::Result<Self> {
        let delay = Duration::from_millis(plan.delay_ms.into());
        let quality = LinkQuality { delay, rate: Some(u64::from(plan.rate_mb) * 1_000_000), losses: plan.losses };
        let clock = FlightClock::over(quality);
        let executor = ExecutorProcess::start(Path::new(&plan.outpost), &["--no-auth"]);
        let sshd = Sshd::start(LoginShell::Program("/bin/sh"));
        let (to_executor, to_sshd) = (clock.link(executor.address()).await, clock.link(&format!("127.0.0.1:{}", sshd.port())).await);
        let directory = tempfile::tempdir()?;
        // The same host behind the way.
        let through = |text: String| text.replace(&sshd.port().to_string(), &to_sshd.port().to_string());
        let known = directory.path().join("known_hosts");
        fs::write(&known, through(fs::read_to_string(sshd.known_hosts())?))?;
        let config = through(fs::read_to_string(sshd.client_config())?);
        let ssh_config = directory.path().join("ssh_config");
        fs::write(&ssh_config, config.replace(&sshd.known_hosts().display().to_string(), &known.display().to_string()))?;
        let outpost = plan.outpost.clone();
        let _held = (executor, sshd, to_sshd);
        Ok(Self { plan_delay: delay, clock, executor: to_executor, ssh_config, directory, outpost, _held })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// How long a command takes, and how many flights it is.
    async fn measured(&self, command: &mut Command) -> anyhow::Result<(Duration, u64)> {
        let (before, since) = (self.clock.flights(), Instant::now());
        let output = command.stdin(Stdio::null()).output().await.with_context(|| format!("cannot run {command:?}"))?;
        ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok((since.elapsed(), self.clock.flights() - before))
    }

    fn outpost(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.outpost);
        command.env("OUTPOST_HOME", self.at("home")).args(words);
        command
    }

    fn ssh(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg("-F").arg(&self.ssh_config).args(words);
        command
    }

    fn rsync(&self, words: &[&str]) -> Command {
        let mut command = Command::new("rsync");
        command.arg("-e").arg(format!("ssh -F {}", self.ssh_config.display())).args(words);
        command
    }

    fn far(&self, path: &Path) -> String {
        format!("{}:{}", self.executor.url(), path.display())
    }

    async fn copies(&self, what: &str, source: &Path, is_there: bool, peer: Peer) -> anyhow::Result<Row> {
        let (ours, theirs) = (self.at("ours"), self.at("theirs"));
        let boxed = |path: &Path| format!("box:{}", path.display());
        let text = |path: &Path| path.display().to_string();
        let ends = |far: &dyn Fn(&Path) -> String, to: &Path| if is_there { (text(source), far(to)) } else { (far(source), text(to)) };
        let (from, to) = ends(&|path| self.far(path), &ours);
        let (time, flights) = self.measured(&mut self.outpost(&["cp", "-q", "-r", &from, &to])).await?;
        let (from, to) = ends(&boxed, &theirs);
        let mut command = match peer {
            // Into the target, as ours.
            Peer::Rsync => self.rsync(&["-a", &format!("{from}/"), &to]),
            // The older protocol: this server offers no sftp.
            Peer::Scp => self.ssh("scp", &["-O", "-q", "-r", &from, &to]),
        };
        let (theirs_time, _) = self.measured(&mut command).await?;
        ensure!(same(&ours, &theirs)?, "the copies of {what} differ");
        for path in [&ours, &theirs] {
            if path.is_dir() { fs::remove_dir_all(path)? } else { fs::remove_file(path)? }
        }
        let most = match peer {
            Peer::Rsync => 1.2,
            Peer::Scp => 1.0,
        };
        Ok(Row { what: what.to_owned(), ours: time, flights, peer: Some((peer.name(), theirs_time)), most: Some(most) })
    }
}

#[derive(Clone, Copy)]
enum Peer {
    Rsync,
    Scp,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Rsync => "rsync",
            Self::Scp => "scp",
        }
    }
}

fn same(one: &Path, other: &Path) -> anyhow::Result<bool> {
    if !one.is_dir() {
        return Ok(fs::read(one)? == fs::read(other)?);
    }
    let mut count = 0;
    for entry in fs::read_dir(one)? {
        let name = entry?.file_name();
        count += 1;
        if !same(&one.join(&name), &other.join(&name))? {
            return Ok(false);
        }
    }
    Ok(count == fs::read_dir(other)?.count())
}

pub(crate) fn run(plan: &Plan) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rows = runtime.block_on(rows(plan))?;
    print(&format!("{} ms there and back, {} MB/s, {} of a million pieces late", plan.delay_ms, plan.rate_mb, plan.losses));
    print(&table(&rows, plan));
    Ok(())
}

async fn rows(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let ground = Ground::make(plan).await?;
    let mut rows = turns(plan, &ground).await?;
    let (ours, flights) = ground.measured(&mut ground.outpost(&["run", "-e", &ground.executor.url(), "--", "true"])).await?;
    let (theirs, _) = ground.measured(&mut ground.ssh("ssh", &["box", "true"])).await?;
    rows.push(Row { what: "`true` over a fresh connection".into(), ours, flights, peer: Some(("ssh", theirs)), most: Some(1.0) });
    let (files, megabytes) = if plan.small { (200, 5) } else { (2000, 200) };
    let tree = ground.at("tree");
    for index in 0..files {
        let folder = tree.join(format!("d{}", index % 20));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("f{index}")), format!("{index:8} ").repeat(114))?;
    }
    let (noise, words) = (ground.at("noise"), ground.at("words"));
    // Bytes that cannot be compressed, and some that can.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    fs::write(&noise, (0..megabytes << 17).flat_map(|_| random().to_le_bytes()).collect::<Vec<u8>>())?;
    fs::write(&words, (0..megabytes << 16).map(|index| format!("{:>15} ", random() % 1000 + index)).collect::<String>())?;
    for (is_there, way) in [(true, "there"), (false, "back")] {
        rows.push(ground.copies(&format!("{files} files of 1 KB {way}"), &tree, is_there, Peer::Rsync).await?);
        rows.push(ground.copies(&format!("{megabytes} MB of noise {way}"), &noise, is_there, Peer::Scp).await?);
        rows.push(ground.copies(&format!("{megabytes} MB of text {way}"), &words, is_there, Peer::Scp).await?);
    }
    Ok(rows)
}

/// Turns of an agent whose model answers at once.
async fn turns(plan: &Plan, ground: &Ground) -> anyhow::Result<Vec<Row>> {
    // Each command is another one: a model that repeats itself is stopped.
    let run = |id: String| Reply::call(&id, "exec_command", &json!({"cmd": format!("true {id}")}));
    let mut replies = vec![Reply::message("first"), Reply::message("plain"), run("one".into()), Reply::message("one")];
    replies.extend((0..10).map(|index| run(format!("ten-{index}"))));
    replies.push(Reply::message("ten"));
    let app = AppServer::start_readable(&plan.outpost, replies).await;
    let mut client = app.client().await;
    client.result("environment/add", json!({"environmentId": "far", "execServerUrl": ground.executor.url()})).await;
    let far = json!({"environments": [{"environmentId": "far", "cwd": ground.directory.path()}], "sandbox": "danger-full-access", "approvalPolicy": "never"});
    let id = thread(&mut client, far).await;
    turn(&mut client, &id, "go").await;
    let mut rows = Vec::new();
    for (what, commands) in
        [("a turn in which nothing runs", 0), ("a turn with 1 command", 1), ("a turn with 10 commands, one after the other", 10)]
    {
        // What the last one left to tell is told.
        tokio::time::sleep(ground.plan_delay * 2).await;
        let (before, since) = (ground.clock.flights(), Instant::now());
        turn(&mut client, &id, "go").await;
        let (ours, flights) = (since.elapsed(), ground.clock.flights() - before);
        ensure!(flights >= commands, "{what} took {flights} flights: not all of it ran");
        rows.push(Row { what: what.into(), ours, flights, peer: None, most: None });
    }
    Ok(rows)
}

fn table(rows: &[Row], plan: &Plan) -> String {
    let cells = rows.iter().map(|row| {
        let ms = |time: Duration| format!("{} ms", time.as_millis());
        let ratio = row.peer.map(|(_, theirs)| row.ours.as_secs_f64() / theirs.as_secs_f64());
        let met = match (ratio, row.most) {
            (Some(ratio), Some(most)) if ratio <= most => "met",
            (Some(_), Some(_)) => "MISSED",
            _ => "",
        };
        [
            row.what.clone(),
            ms(row.ours),
            row.flights.to_string(),
            row.peer.map(|(name, theirs)| format!("{name} {}", ms(theirs))).unwrap_or_default(),
            ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default(),
            row.most.map(|most| format!("at most {most}")).unwrap_or_default(),
            met.to_owned(),
        ]
    });
    let head = ["what", "ours", "flights", "peer", "ours/peer", "reach", ""].map(str::to_owned);
    let cells: Vec<[String; 7]> = std::iter::once(head).chain(cells).collect();
    let wide = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let line = |row: &[String; 7]| {
        if plan.markdown {
            return format!("| {} |\n", row.join(" | "));
        }
        let padded: Vec<String> = row.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", wide(column))).collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    let mut text = String::new();
    for (index, row) in cells.iter().enumerate() {
        text.push_str(&line(row));
        if index == 0 && plan.markdown {
            text.push_str("|---|---:|---:|---:|---:|---|---|\n");
        }
    }
    text
}
