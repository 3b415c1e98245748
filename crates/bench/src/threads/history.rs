//! Opening, reading and forking threads of different lengths.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use outpost_store::{ClaimMode, ForkRequest, PageRequest, Store};
use outpost_thread::{Marker, ThreadForked, ThreadId};
use uuid::Uuid;

use super::made::{Made, now, open};
use super::{Plan, resident, status, timed};
use crate::figure::{Figure, median, ms};

/// The hidden verb of the child that opens the last page of a large thread.
pub(crate) const LAST_PAGE: &str = "__last-page";

/// The hidden verb of the child that holds many threads.
pub(crate) const IDLE: &str = "__idle";

const ROUNDS: usize = 15;

pub(super) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let largest = if plan.small { 1_000 } else { 10_000 };
    let home = tempfile::tempdir()?;
    for turns in [100, 1_000, 10_000].into_iter().filter(|turns| *turns <= largest) {
        let store = open(home.path())?;
        let mut made = Made::new(&store).await?;
        made.plain_turns(&store, turns).await?;
        made.checkpoint(&store).await?;
        let id = made.lease.thread;
        store.release(made.lease).await;
        let opening = opening(home.path(), id).await?;
        figures.push(Figure::new(format!("open, {turns} turns"), ms(opening), "at most 10 ms, flat", opening <= Duration::from_millis(10)));
        if turns >= 1_000 {
            let (forking, bytes) = forking(&store, id).await?;
            let what = format!("fork, {turns} turns");
            figures.push(Figure::new(
                what,
                format!("{}, {bytes} B", ms(forking)),
                "at most 10 ms, flat",
                forking <= Duration::from_millis(10),
            ));
        }
        if turns == largest {
            let reading = async { Ok(store.history(id, 0).await?.rest().await?.entries.len()) };
            let (entries, time) = timed(reading).await?;
            let what = format!("full history, {turns} turns, {entries} entries");
            figures.push(Figure::new(what, ms(time), "at most 300 ms", time <= Duration::from_millis(300)));
        }
    }
    figures.push(idle_memory(plan).await?);
    figures.push(large(plan).await?);
    Ok(figures)
}

/// With a store that has just been opened, as after a start.
async fn opening(home: &Path, id: ThreadId) -> anyhow::Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let store = open(home)?;
        let start = Instant::now();
        let opened = outpost_store::open(&store, id).await?;
        times.push(start.elapsed());
        ensure!(opened.thread.id == id, "another thread was opened");
    }
    Ok(median(times))
}

async fn forking(store: &Store, id: ThreadId) -> anyhow::Result<(Duration, u64)> {
    let (mut times, mut bytes) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let child = ThreadId::new(Uuid::now_v7());
        let start = Instant::now();
        let cut = outpost_store::open(store, id).await?.thread.cut_here(Marker::User);
        let lease = store.fork(ForkRequest { forked: ThreadForked::new(child, id), cut, at: now() }).await?;
        times.push(start.elapsed());
        bytes = store.head(child).await?.bytes;
        store.release(lease).await;
        store.delete(child, ClaimMode::IfFree).await?;
    }
    Ok((median(times), bytes))
}

/// Threads that are open, held and have nothing to do.
async fn idle_memory(plan: Plan) -> anyhow::Result<Figure> {
    let count: u64 = if plan.small { 100 } else { 1_000 };
    let home = tempfile::tempdir()?;
    let store = open(home.path())?;
    for _ in 0..count {
        let mut made = Made::new(&store).await?;
        made.plain_turns(&store, 50).await?;
        store.release(made.lease).await;
    }
    drop(store);
    // This process has room to spare from making them; another one shows what they take.
    let each: u64 = child(&[IDLE.as_ref(), home.path().as_os_str()])?.trim().parse()?;
    Ok(Figure::new("memory of a loaded, idle thread", format!("{:.1} KB", each as f64 / 1024.0), "at most 100 KB", each <= 100 << 10))
}

/// Bytes that each thread of a home takes when it is open and held.
pub(super) async fn idle(mut words: impl Iterator<Item = String>) -> anyhow::Result<String> {
    let store = open(Path::new(&words.next().context("a home")?))?;
    let ids = store.threads().await?;
    let mut held = Vec::new();
    let mut before = 0;
    for (number, id) in ids.iter().enumerate() {
        let lease = store.claim(*id, ClaimMode::IfFree).await?;
        held.push((lease, outpost_store::open(&store, *id).await?.thread));
        if number == 10 {
            // The first few make what all of them share.
            before = resident()?;
        }
    }
    let each = resident()?.saturating_sub(before) / (ids.len() as u64).saturating_sub(11).max(1);
    drop(held);
    Ok(each.to_string())
}

fn child(words: &[&OsStr]) -> anyhow::Result<String> {
    let child = Command::new(std::env::current_exe()?).args(words).output()?;
    ensure!(child.status.success(), "{words:?}: {}", String::from_utf8_lossy(&child.stderr));
    Ok(String::from_utf8(child.stdout)?)
}

/// A very large thread is opened at its end by a process that has seen nothing of it.
async fn large(plan: Plan) -> anyhow::Result<Figure> {
    let size: u64 = if plan.small { 50 << 20 } else { 1 << 30 };
    let home = tempfile::tempdir()?;
    let store = open(home.path())?;
    let mut made = Made::new(&store).await?;
    let output = "a line of output that a build has put out, and another one\n".repeat(1100);
    while store.head(made.lease.thread).await?.bytes < size {
        for _ in 0..100 {
            made.large_turn(&store, &output).await?;
        }
    }
    let id = made.lease.thread;
    store.release(made.lease).await;
    drop(store);
    let text = child(&[LAST_PAGE.as_ref(), home.path().as_os_str(), id.to_string().as_ref()])?;
    let (time, memory) = text.trim().split_once(' ').context("the child said nothing")?;
    let (time, memory): (u64, u64) = (time.parse()?, memory.parse()?);
    let value = format!("{:.1} ms, {} MB resident", time as f64 / 1000.0, memory >> 20);
    let met = time <= 1_000_000 && memory < 200 << 20;
    Ok(Figure::new(format!("last page of a thread of {} MB", size >> 20), value, "about 1 s, 200 MB", met))
}

/// Microseconds and bytes.
pub(super) async fn last_page(mut words: impl Iterator<Item = String>) -> anyhow::Result<String> {
    let home = words.next().context("a home")?;
    let id: ThreadId = words.next().context("a thread")?.parse()?;
    let start = Instant::now();
    let store = open(Path::new(&home))?;
    let page = store.page(id, PageRequest::default()).await?;
    let time = start.elapsed();
    ensure!(!page.entries.is_empty(), "the page is empty");
    Ok(format!("{} {}", time.as_micros(), status("VmHWM:")?))
}
