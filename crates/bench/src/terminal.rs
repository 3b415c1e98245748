//! Figures of `outpost chat` on a terminal: the first paint, from a key to its echo while a command prints without a pause, and memory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use outpost_testkit::TestTerminal;
use outpost_testkit::model::{Reply, ScriptedModel};
use serde_json::json;
use tempfile::TempDir;

use crate::figure::{Figure, median, print, table};

pub(crate) struct Plan {
    pub outpost: PathBuf,
    pub small: bool,
    pub markdown: bool,
}

const FIRST_PAINT: Duration = Duration::from_millis(40);
const ECHO: Duration = Duration::from_millis(16);
const MEMORY: u64 = 128 << 20;

/// A line that the command prints, with its end.
const LINE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef\n";

/// A home with a model that lets a command print about 50 MB/s until there is a file.
struct Stage {
    home: TempDir,
    work: TempDir,
    model: ScriptedModel,
}

impl Stage {
    async fn new() -> anyhow::Result<Self> {
        // In pieces with pauses, so that the rate is the same on every machine that can print faster.
        let script = format!("while [ ! -e stop ]; do yes {} | head -c 2500000; sleep 0.04; done", LINE.trim_end());
        let print = json!({"cmd": script, "yield_time_ms": 30000});
        let model = ScriptedModel::with(vec![Reply::call("a", "exec_command", &print), Reply::message("over")]).await;
        let stage = Self { home: TempDir::new()?, work: TempDir::new()?, model };
        let config = format!(
            "model = \"scripted\"\nmodel_provider = \"scripted\"\nsandbox_mode = \"danger-full-access\"\napproval_policy = \"never\"\n\
             [model_providers.scripted]\nbase_url = \"{}\"\n",
            stage.model.base_url()
        );
        std::fs::write(stage.home.path().join("config.toml"), config)?;
        Ok(stage)
    }

    fn chat(&self, outpost: &Path) -> TestTerminal {
        let mut command = Command::new(outpost);
        command.arg("chat").current_dir(self.work.path()).env("OUTPOST_HOME", self.home.path()).env("HOME", self.work.path());
        command.env("TERM", "xterm-256color");
        for name in ["NO_COLOR", "OUTPOST_PLAIN", "OUTPOST_EXEC_SERVER_URL"] {
            command.env_remove(name);
        }
        TestTerminal::start(&command)
    }
}

pub(crate) fn run(plan: &Plan) -> anyhow::Result<()> {
    let outpost = std::path::absolute(&plan.outpost)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The model is a task of this runtime; the measuring blocks.
    let stage = runtime.block_on(Stage::new())?;
    let serving = std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    let figures = measure(plan, &outpost, &stage)?;
    print(&table(&figures, plan.markdown));
    drop(serving);
    Ok(())
}

fn measure(plan: &Plan, outpost: &Path, stage: &Stage) -> anyhow::Result<Vec<Figure>> {
    let rounds = if plan.small { 3 } else { 15 };
    let mut paints = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        let mut terminal = stage.chat(outpost);
        terminal.wait_for("> ");
        paints.push(began.elapsed());
        terminal.wait_for_row("/help");
        terminal.type_keys("\x04");
        terminal.exit_code();
    }
    let mut terminal = stage.chat(outpost);
    terminal.wait_for_row("/help");
    terminal.type_keys("go\r");
    terminal.wait_for_row("lines");
    let (began_at, lines_before) = (Instant::now(), lines(&terminal));
    let keys = if plan.small { 20 } else { 200 };
    let mut echoes = Vec::new();
    for number in 0..keys {
        let key = char::from(b'a' + u8::try_from(number % 26).unwrap_or(0));
        let row = |terminal: &TestTerminal| terminal.rows()[usize::from(terminal.cursor().0)].clone();
        let before = row(&terminal);
        let began = Instant::now();
        terminal.type_keys(&key.to_string());
        terminal.wait_until("the key", |_| row(&terminal).starts_with("> ") && row(&terminal) != before);
        echoes.push(began.elapsed());
        if number % 20 == 19 {
            terminal.type_keys("\x15");
            terminal.wait_until("an empty line", |_| row(&terminal) == ">");
        }
        std::thread::sleep(Duration::from_millis(7));
    }
    let memory = peak_memory(terminal.pid())?;
    let printed = lines(&terminal).zip(lines_before).map(|(after, before)| {
        let bytes = (after - before) * LINE.len() as u64;
        format!("{:.0} MB/s", bytes as f64 / 1e6 / began_at.elapsed().as_secs_f64())
    });
    std::fs::write(stage.work.path().join("stop"), "")?;
    terminal.wait_for_row("over");
    terminal.type_keys("\x03\x03");
    terminal.exit_code();
    echoes.sort();
    let at = |share: usize| echoes[(echoes.len() * share / 100).min(echoes.len() - 1)];
    let milliseconds = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
    let paint = median(paints);
    Ok(vec![
        Figure::new("first paint after the start, median", milliseconds(paint), "40 ms", paint <= FIRST_PAINT),
        Figure::new("from a key to its echo beside 50 MB/s of output, median", milliseconds(at(50)), "16 ms", at(50) <= ECHO),
        Figure::told("the same, 95 of 100 keys", milliseconds(at(95))),
        Figure::told("output that came in meanwhile", printed.unwrap_or_else(|| "unknown".to_owned())),
        Figure::new("most memory of the program", format!("{} MiB", memory >> 20), "128 MiB", memory <= MEMORY),
    ])
}

/// How many lines the running command has printed, as the conversation tells it.
fn lines(terminal: &TestTerminal) -> Option<u64> {
    terminal.rows().iter().find_map(|row| row.rsplit(", ").next()?.strip_suffix(" lines")?.parse().ok())
}

fn peak_memory(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).context("the program is gone")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("the kernel tells no memory")?;
    let kilobytes: u64 = line.split_whitespace().next().unwrap_or_default().parse()?;
    Ok(kilobytes << 10)
}
