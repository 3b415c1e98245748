//! Lists and searches among many threads, and how long the index takes to be made anew.

use std::time::{Duration, Instant};

use anyhow::ensure;
use outpost_store::{ListQuery, Store};

use super::Plan;
use super::made::{Made, open};
use crate::figure::{Figure, cpu, median, ms};

const ROUNDS: usize = 40;

pub(super) async fn figures(plan: Plan) -> anyhow::Result<Vec<Figure>> {
    let count: usize = if plan.small { 1_000 } else { 10_000 };
    let home = tempfile::tempdir()?;
    let store = open(home.path())?;
    for _ in 0..count {
        let mut made = Made::new(&store).await?;
        made.plain_turns(&store, 3).await?;
        store.release(made.lease).await;
    }
    let mut figures = Vec::new();
    drop(store);
    let bytes = size(&home.path().join("threads"))?;
    // Made from nothing, in a program that has just started.
    let store = open(home.path())?;
    let start = Instant::now();
    let page = store.list(ListQuery::default()).await?;
    let listing = start.elapsed();
    ensure!(page.threads.len() == 25, "the list has {} threads", page.threads.len());
    let Store::Local(local) = &store else { anyhow::bail!("not a home") };
    let before = cpu();
    local.index()?.complete().await;
    let words = start.elapsed().saturating_sub(listing);
    let rate = |time: Duration| bytes as f64 / 1e6 / time.as_secs_f64();
    // A busy machine takes its time; what is spent on it is the same there.
    let (rate, spent) = (rate(words), rate(cpu() - before));
    figures.push(Figure::new(
        format!("list of {count} threads rebuilt, first page told"),
        ms(listing),
        "at most 1 s",
        listing <= Duration::from_secs(1),
    ));
    figures.push(Figure::new(
        format!("full text of {:.0} MB", bytes as f64 / 1e6),
        format!("{rate:.0} MB/s, {spent:.0} MB per second of CPU"),
        "at least 30 MB/s",
        rate >= 30.0,
    ));
    let listing = asked(&store, ListQuery::default()).await?;
    figures.push(Figure::new(format!("page of 25 among {count}, p50"), ms(listing), "at most 3 ms", listing <= Duration::from_millis(3)));
    let miss = ListQuery { search: Some("nothinglikeit".into()), ..ListQuery::default() };
    let missing = asked(&store, miss).await?;
    figures.push(Figure::new(
        format!("search miss among {count}, p50"),
        ms(missing),
        "at most 30 ms",
        missing <= Duration::from_millis(30),
    ));
    let hit = ListQuery { search: Some("parser question".into()), ..ListQuery::default() };
    figures.push(Figure::told(format!("search with {count} hits, p50"), ms(asked(&store, hit).await?)));
    let (seen, pages) = paged(&store).await?;
    let what = format!("threads seen in {pages} pages, equal times among them");
    figures.push(Figure::new(what, format!("{seen} of {count}"), "all, once each", seen == count));
    Ok(figures)
}

async fn asked(store: &Store, query: ListQuery) -> anyhow::Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        store.list(query.clone()).await?;
        times.push(start.elapsed());
    }
    Ok(median(times))
}

async fn paged(store: &Store) -> anyhow::Result<(usize, usize)> {
    let mut seen = std::collections::HashSet::new();
    let (mut query, mut pages) = (ListQuery { limit: 100, ..ListQuery::default() }, 0);
    loop {
        let page = store.list(query.clone()).await?;
        pages += 1;
        for thread in page.threads {
            ensure!(seen.insert(thread.id), "thread {} is on two pages", thread.id);
        }
        match page.next {
            Some(next) => query.after = Some(next),
            None => return Ok((seen.len(), pages)),
        }
    }
}

fn size(folder: &std::path::Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let is_journal = entry.path().extension().is_some_and(|extension| extension == "jsonl");
        bytes += match entry.metadata()? {
            meta if meta.is_dir() => size(&entry.path())?,
            meta if is_journal => meta.len(),
            _ => 0,
        };
    }
    Ok(bytes)
}
