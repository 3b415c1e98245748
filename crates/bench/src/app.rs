//! Figures of app servers, ours and the peer's, driven over their standard streams with a model that answers at once:
//! `cargo xtask bench app` prints the tables of docs/performance.md. Both take their turn in every round.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use outpost_rpc::link::unix;
use outpost_rpc::link::ws::ClientOptions;
use outpost_testkit::Client;
use outpost_testkit::app::introduce;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::figure::{median, print};
use crate::turns::{ModelProcess, Peer, WANTS_TOOL, configure};

/// What to measure against what.
pub(crate) struct Plan {
    pub outpost: PathBuf,
    pub codex: Option<PathBuf>,
    /// How many threads a home holds at most; a thousand.
    pub stored: Option<usize>,
    /// A tenth of everything, to see that it works.
    pub small: bool,
    pub markdown: bool,
}

/// Threads at which memory and idling are looked at.
const LOADED: usize = 100;

/// How many of everything.
#[derive(Clone, Copy)]
struct Size {
    rounds: usize,
    turns: usize,
    stored: usize,
    long: usize,
}

/// One row: what it is, and what each contender needs, in each round.
struct Row {
    what: String,
    unit: &'static str,
    values: Vec<Vec<f64>>,
}

/// The rows of a run, filled in the order in which they are measured.
#[derive(Default)]
struct Rows(Vec<Row>);

impl Rows {
    fn add(&mut self, contender: usize, what: impl Into<String>, unit: &'static str, value: f64) {
        let what = what.into();
        let at = self.0.iter().position(|row| row.what == what).unwrap_or_else(|| {
            self.0.push(Row { what, unit, values: Vec::new() });
            self.0.len() - 1
        });
        let values = &mut self.0[at].values;
        values.resize_with(values.len().max(contender + 1), Vec::new);
        values[contender].push(value);
    }

    fn table(&self, names: &[&str], markdown: bool) -> String {
        let mut lines = vec![format!("| what | {} | ratio |", names.join(" | ")), format!("|---|{}---:|", "---:|".repeat(names.len()))];
        if !markdown {
            lines.clear();
        }
        for row in &self.0 {
            let medians: Vec<f64> = row.values.iter().map(|values| middle(values)).collect();
            let shown: Vec<String> = medians.iter().map(|value| format!("{} {}", figure(*value), row.unit)).collect();
            let ratio = medians.get(1).map_or_else(String::new, |theirs| figure(theirs / medians[0].max(f64::EPSILON)));
            lines.push(if markdown {
                format!("| {} | {} | {ratio} |", row.what, shown.join(" | "))
            } else {
                format!("{:60} {:>14} {:>14} {ratio:>8}", row.what, shown[0], shown.get(1).map_or("", String::as_str))
            });
        }
        lines.join("\n")
    }
}

fn middle(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn figure(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// A program that is measured, and the home of one round.
struct Contender<'a> {
    number: usize,
    program: &'a Path,
    home: TempDir,
    size: Size,
}

pub(crate) fn run(plan: &Plan) -> anyhow::Result<()> {
    let of = |count: usize| if plan.small { count.div_ceil(10) } else { count };
    let size = Size { rounds: if plan.small { 1 } else { 2 }, turns: of(100), stored: plan.stored.unwrap_or(of(1000)), long: of(1000) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let programs: Vec<&Path> = std::iter::once(plan.outpost.as_path()).chain(plan.codex.as_deref()).collect();
    let rows = runtime.block_on(async {
        let model = ModelProcess::start()?;
        let mut rows = Rows::default();
        for _ in 0..size.rounds {
            for (number, program) in programs.iter().enumerate() {
                let home = tempfile::tempdir()?;
                configure(home.path(), &if number == 0 { model.strict_url() } else { model.base_url() })?;
                let contender = Contender { number, program, home, size };
                contender.short(&mut rows).await?;
                // The peer has no socket of a home.
                if number == 0 {
                    contender.found(&mut rows).await?;
                }
                contender.long(&mut rows).await?;
                contender.many(&mut rows).await?;
            }
        }
        model.verdict()?;
        anyhow::Ok(rows)
    })?;
    let names = ["ours", "codex"];
    print(&rows.table(&names[..programs.len()], plan.markdown));
    Ok(())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

impl Contender<'_> {
    /// Starts it, and tells how long that took up to its first answer.
    async fn start(&self) -> anyhow::Result<(Peer, f64)> {
        let begun = Instant::now();
        let server = Peer::start_in(self.program, self.home.path()).await?;
        Ok((server, millis(begun.elapsed())))
    }

    /// Starts, memory, threads and turns.
    async fn short(&self, rows: &mut Rows) -> anyhow::Result<()> {
        let mut add = |what: &str, unit, value| rows.add(self.number, what, unit, value);
        let (server, time) = self.start().await?;
        add("start to the first answer, new home", "ms", time);
        server.end().await?;
        let (server, time) = self.start().await?;
        add("start to the first answer, used home", "ms", time);
        tokio::time::sleep(Duration::from_secs(1)).await;
        add("memory, idle", "MB", server.memory()? as f64 / 1e6);
        let mut thread = server.thread().await?;
        server.turn(&mut thread, "hello").await?;
        let (before, disk) = (server.cpu()?, bytes_below(self.home.path())?);
        let mut plain = Vec::new();
        for _ in 0..self.size.turns {
            let begun = Instant::now();
            server.turn(&mut thread, "why does it fail?").await?;
            plain.push(begun.elapsed());
        }
        let turns = self.size.turns as f64;
        add("CPU per turn", "ms", (server.cpu()? - before) / turns);
        add("bytes on disk per turn", "KB", bytes_below(self.home.path())?.saturating_sub(disk) as f64 / turns / 1e3);
        let plain = median(plain);
        add("turn, p50", "ms", millis(plain));
        let mut tools = Vec::new();
        for _ in 0..self.size.turns.div_ceil(4) {
            let begun = Instant::now();
            server.turn(&mut thread, WANTS_TOOL).await?;
            tools.push(begun.elapsed());
        }
        add("tool step (`true`), p50", "ms", millis(median(tools).saturating_sub(plain)));
        let (memory, mut starts) = (server.memory()?, Vec::new());
        for _ in 0..LOADED {
            let begun = Instant::now();
            server.thread().await?;
            starts.push(begun.elapsed());
        }
        add("`thread/start`, p50", "ms", millis(median(starts)));
        add("memory per loaded thread", "KB", server.memory()?.saturating_sub(memory) as f64 / LOADED as f64 / 1e3);
        let before = server.cpu()?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        add("CPU a second while idle with 100 threads", "ms", (server.cpu()? - before) / 2.0);
        server.end().await
    }

    /// What a verb pays that finds the owner of its home running: a connection to the socket, and the first answer.
    async fn found(&self, rows: &mut Rows) -> anyhow::Result<()> {
        let (server, _) = self.start().await?;
        let socket = self.home.path().join("run/app.sock");
        let mut times = Vec::new();
        for _ in 0..self.size.turns {
            let begun = Instant::now();
            let link = unix::connect(&socket, &ClientOptions::default()).await?;
            introduce(&mut Client::new(link), json!({})).await;
            times.push(begun.elapsed());
        }
        rows.add(self.number, "a verb that finds the owner running: connection and first answer, p50", "ms", millis(median(times)));
        server.end().await
    }

    /// A thread with many turns.
    async fn long(&self, rows: &mut Rows) -> anyhow::Result<()> {
        let long = self.size.long;
        let (server, _) = self.start().await?;
        let mut thread = server.thread().await?;
        for _ in 0..long {
            server.turn(&mut thread, "why does it fail?").await?;
        }
        server.end().await?;
        let (server, _) = self.start().await?;
        let id = json!({"threadId": thread.id});
        let mut time = async |what: String, method: &str, params: &Value| -> anyhow::Result<()> {
            let begun = Instant::now();
            server.call(method, params).await?;
            rows.add(self.number, what, "ms", millis(begun.elapsed()));
            Ok(())
        };
        time(format!("`thread/resume` with {long} turns"), "thread/resume", &id).await?;
        time(format!("`thread/fork` with {long} turns"), "thread/fork", &id).await?;
        let last = json!({"threadId": thread.id, "limit": 50, "sortDirection": "desc"});
        time(format!("`thread/turns/list`, the last 50 of {long} turns"), "thread/turns/list", &last).await?;
        let mut thread = server.follow(thread.id);
        let mut turns = Vec::new();
        for _ in 0..5 {
            let begun = Instant::now();
            server.turn(&mut thread, "why does it fail?").await?;
            turns.push(begun.elapsed());
        }
        rows.add(self.number, format!("turn after {long} turns"), "ms", millis(median(turns)));
        server.end().await
    }

    /// A home with many threads.
    async fn many(&self, rows: &mut Rows) -> anyhow::Result<()> {
        let stored = self.size.stored;
        let (server, _) = self.start().await?;
        for number in 0..stored {
            let mut thread = server.thread().await?;
            server.turn(&mut thread, &format!("question {number}")).await?;
        }
        server.end().await?;
        let (server, time) = self.start().await?;
        let mut add = |what: String, value| rows.add(self.number, what, "ms", value);
        add(format!("start with {stored} stored threads"), time);
        let page = json!({"limit": 100});
        let begun = Instant::now();
        let first = server.call("thread/list", &page).await?;
        add(format!("the first `thread/list` of 100 of {stored} after it"), millis(begun.elapsed()));
        first["data"].as_array().context("thread/list has another shape")?;
        for (what, params) in [
            (format!("`thread/list`, a page of 100 of {stored}, p50"), page),
            (format!("a search that finds nothing among {stored}, p50"), json!({"limit": 100, "searchTerm": "xyzzy-plugh"})),
        ] {
            let mut times = Vec::new();
            for _ in 0..20 {
                let begun = Instant::now();
                server.call("thread/list", &params).await?;
                times.push(begun.elapsed());
            }
            add(what, millis(median(times)));
        }
        server.end().await
    }
}

/// Of all files, as long as they are.
fn bytes_below(folder: &Path) -> anyhow::Result<u64> {
    let (mut bytes, mut open) = (0, vec![folder.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder)?.flatten() {
            // What is removed meanwhile is nothing.
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => open.push(entry.path()),
                Ok(metadata) => bytes += metadata.len(),
                Err(_) => {}
            }
        }
    }
    Ok(bytes)
}
