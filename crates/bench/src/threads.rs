//! Figures of threads: `cargo xtask bench threads` runs this. The sync cost of the disk is measured in the same run, because it
//! wanders; whatever waits for the disk is told as a ratio of it.

mod history;
mod index;
mod made;
mod writes;

use std::time::{Duration, Instant};

use anyhow::Context;

pub(crate) use history::{IDLE, LAST_PAGE};
pub(crate) use made::{Made, now, open_with};
pub(crate) use writes::sync_cost;

use crate::figure::{print, table};

/// What to leave out.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Plan {
    /// A tenth of everything, to see that it works.
    pub small: bool,
    pub markdown: bool,
}

pub(crate) fn run(plan: Plan) -> anyhow::Result<()> {
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

pub(crate) fn last_page(words: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let figure = runtime.block_on(history::last_page(words))?;
    print(&figure);
    Ok(())
}

pub(crate) fn idle(words: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    print(&runtime.block_on(history::idle(words))?);
    Ok(())
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
