//! What writing costs: durable appends against the disk's own cost, and bytes per turn.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use outpost_store::{Need, Store};
use outpost_thread::{Fact, MetadataChanged};

use super::Plan;
use super::made::{Made, open};
use crate::figure::{Figure, median, ms};

pub(super) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let home = tempfile::tempdir()?;
    let rounds = if plan.small { 30 } else { 300 };
    let mut figures = Vec::new();
    let sync = sync_cost(home.path(), rounds)?;
    let store = open(home.path())?;
    let one = one_writer(&store, rounds).await?;
    let again = sync_cost(home.path(), rounds)?;
    // The disk wanders within a run, too.
    let sync = median(vec![sync, again, (sync + again) / 2]);
    figures.push(Figure::told("append + fdatasync of this disk, p50", ms(sync)));
    let ratio = one.as_secs_f64() / sync.as_secs_f64();
    figures.push(Figure::new("durable append, one writer, p50", format!("{} = {ratio:.2}x", ms(one)), "at most 1.5x", ratio <= 1.5));
    let many = many_writers(&store, 32, rounds / 3).await?;
    let ratio = many.as_secs_f64() / sync.as_secs_f64();
    figures.push(Figure::new("durable append, 32 writers, p50", format!("{} = {ratio:.2}x", ms(many)), "at most 2x", ratio <= 2.0));
    figures.extend(bytes_per_turn(plan).await?);
    Ok(figures)
}

/// What one append and one sync cost without anything of ours.
pub(crate) fn sync_cost(home: &Path, rounds: usize) -> anyhow::Result<Duration> {
    let mut file = File::options().append(true).create(true).open(home.join("floor"))?;
    let block = [b'x'; 300];
    let mut times = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(start.elapsed());
    }
    Ok(median(times))
}

fn fact(number: usize) -> Fact {
    let name = format!("{number} {}", "x".repeat(180));
    MetadataChanged { name: Some(Some(name)), ..MetadataChanged::default() }.into()
}

async fn one_writer(store: &Store, rounds: usize) -> anyhow::Result<Duration> {
    let mut made = Made::new(store).await?;
    made.plain_turn(store).await?;
    let mut times = Vec::new();
    for number in 0..rounds {
        let start = Instant::now();
        made.append(store, vec![fact(number)], Need::Durable).await?;
        times.push(start.elapsed());
    }
    Ok(median(times))
}

async fn many_writers(store: &Store, writers: usize, rounds: usize) -> anyhow::Result<Duration> {
    let together = Arc::new(tokio::sync::Barrier::new(writers));
    let mut tasks = Vec::new();
    for _ in 0..writers {
        let (store, together) = (store.clone(), together.clone());
        tasks.push(tokio::spawn(async move {
            let mut made = Made::new(&store).await?;
            made.plain_turn(&store).await?;
            together.wait().await;
            let mut times = Vec::new();
            for number in 0..rounds {
                let start = Instant::now();
                made.append(&store, vec![fact(number)], Need::Durable).await?;
                times.push(start.elapsed());
            }
            anyhow::Ok(times)
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await??);
    }
    Ok(median(all))
}

/// Everything that this process writes while plain turns come one by one, the index included.
async fn bytes_per_turn(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let turns: u64 = if plan.small { 3 } else { 12 };
    let home = tempfile::tempdir()?;
    let store = open(home.path())?;
    let mut made = Made::new(&store).await?;
    // Others are there, too: an update among many costs more than one in an empty index.
    for _ in 0..200 {
        let mut other = Made::new(&store).await?;
        other.plain_turn(&store).await?;
        store.release(other.lease).await;
    }
    made.plain_turn(&store).await?;
    let Store::Local(local) = &store else { anyhow::bail!("not a home") };
    local.index()?.complete().await;
    let journal = local.journal(made.lease.thread).context("no journal")?;
    let (length, written) = (std::fs::metadata(&journal)?.len(), written()?);
    for _ in 0..turns {
        made.plain_turn(&store).await?;
        made.checkpoint(&store).await?;
        // Long enough for the index to be written after each.
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    let journal = (std::fs::metadata(&journal)?.len() - length) / turns;
    let all = (self::written()? - written) / turns;
    Ok(vec![
        Figure::new("journal bytes per plain turn", format!("{journal} B"), "at most 2 KB", journal <= 2048),
        Figure::new("bytes written per plain turn, all files", format!("{all} B"), "at most 16 KB", all <= 16 << 10),
    ])
}

/// Bytes that this process has given to the kernel for writing.
fn written() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("wchar:")).context("the kernel does not tell")?;
    Ok(line.trim().parse()?)
}
