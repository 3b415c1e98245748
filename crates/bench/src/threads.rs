//! Figures of threads: `cargo xtask bench threads` runs this. The sync cost of the disk is measured in the same run, because it
//! wanders; whatever waits for the disk is told as a ratio of it.

mod history;
mod index;
mod made;
mod writes;

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::Context;

pub use history::{IDLE, LAST_PAGE};

/// One line of the table.
pub struct Figure {
    pub what: String,
    pub value: String,
    pub reach: &'static str,
    /// Whether the reach is met; none if it is only told.
    pub met: Option<bool>,
}

impl Figure {
    pub fn new(what: impl Into<String>, value: impl Into<String>, reach: &'static str, met: bool) -> Self {
        Self { what: what.into(), value: value.into(), reach, met: Some(met) }
    }

    pub fn told(what: impl Into<String>, value: impl Into<String>) -> Self {
        Self { what: what.into(), value: value.into(), reach: "", met: None }
    }
}

/// What to leave out.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plan {
    /// A tenth of everything, to see that it works.
    pub small: bool,
    pub markdown: bool,
}

pub fn run(plan: Plan) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    let figures = runtime.block_on(async {
        let mut figures = writes::figures(plan).await?;
        figures.extend(history::figures(plan).await?);
        figures.extend(index::figures(plan).await?);
        anyhow::Ok(figures)
    })?;
    print(&table(&figures, plan.markdown));
    Ok(())
}

pub fn last_page(words: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let figure = runtime.block_on(history::last_page(words))?;
    print(&figure);
    Ok(())
}

pub fn idle(words: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    print(&runtime.block_on(history::idle(words))?);
    Ok(())
}

#[expect(clippy::print_stdout, reason = "this is a program for a terminal")]
fn print(text: &str) {
    println!("{}", text.trim_end());
}

fn table(figures: &[Figure], markdown: bool) -> String {
    let mut text = String::new();
    let wide = |of: fn(&Figure) -> &str| figures.iter().map(|figure| of(figure).chars().count()).max().unwrap_or(0);
    let (what, value, reach) = (wide(|figure| &figure.what), wide(|figure| &figure.value), wide(|figure| figure.reach).max(5));
    if markdown {
        text.push_str("| what | measured | reach | |\n|---|---|---|---|\n");
    }
    for figure in figures {
        let met = match figure.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        // Writing into a text cannot fail.
        let _ = if markdown {
            writeln!(text, "| {} | {} | {} | {met} |", figure.what, figure.value, figure.reach)
        } else {
            writeln!(text, "{:what$}  {:>value$}  {:reach$}  {met}", figure.what, figure.value, figure.reach)
        };
    }
    text
}

/// The middle one.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn ms(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

async fn timed<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<(T, Duration)> {
    let start = Instant::now();
    let done = work.await?;
    Ok((done, start.elapsed()))
}

/// Resident memory of this process, in bytes.
fn resident() -> anyhow::Result<u64> {
    status("VmRSS:")
}

fn status(name: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).context("the kernel does not tell")?;
    let kilobytes: u64 = line.split_whitespace().next().context("the kernel does not tell")?.parse()?;
    Ok(kilobytes * 1024)
}
