//! Threads that are large: what is read of them is bounded, whatever their size. `OUTPOST_SOAK_BYTES` makes a larger one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;
use std::time::Instant;

use outpost_store::{ImportOutcome, LocalConfig, LocalStore, Need, PageRequest, Store, export, import_export, open};
use outpost_testkit::threads::{BigThread, make};
use outpost_thread::{Checkpoint, Cut, Fact, ThreadForked};
use support::{config, entries, id, local, plain_turn};

/// The most memory that this process ever held, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// A home where nobody looks for secrets, which would cost more than all the rest.
fn plain(home: &Path, instance: &str) -> Store {
    Store::Local(LocalStore::open(LocalConfig { redactor: None, ..config(home, instance) }).unwrap())
}

#[tokio::test]
async fn a_large_thread_opens_in_bounded_memory() {
    const TEXT: usize = 100 << 10;
    let bytes: u64 = std::env::var("OUTPOST_SOAK_BYTES").map_or(24 << 20, |text| text.parse().unwrap());
    let turns = bytes / TEXT as u64;
    let home = tempfile::tempdir().unwrap();
    let store = plain(home.path(), "writer");
    let lease = make(&store, BigThread { thread: id(1), turns, text: TEXT, at: 1 }).await;
    store.release(lease).await;
    drop(store);
    let before = peak();
    let store = plain(home.path(), "reader");
    let start = Instant::now();
    let page = store.page(id(1), PageRequest { before: None, turns: 10, bytes: 8 << 20 }).await.unwrap();
    let took = start.elapsed();
    assert_eq!(page.entries.len(), 60);
    assert_eq!(page.entries.last().unwrap().ordinal, 1 + turns * 6);
    let middle = 1 + turns / 2 * 6;
    let found = store.entries(id(1), vec![middle, 2, 1 + turns * 6]).await.unwrap();
    assert_eq!(found.iter().map(|entry| entry.ordinal).collect::<Vec<_>>(), [middle, 2, 1 + turns * 6]);
    let grown = peak().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more for a page of {bytes}");
    eprintln!("{bytes} bytes: last page after {took:?}, {} MB at most", peak() >> 20);
    let start = Instant::now();
    let verdict = store.verify(id(1), None).await.unwrap();
    assert!(verdict.is_whole() && verdict.entries == 1 + turns * 6);
    eprintln!("verified after {:?}, {} MB at most", start.elapsed(), peak() >> 20);
    assert!(peak().saturating_sub(before) < 16 << 20);
}

#[tokio::test]
async fn opening_and_forking_do_not_depend_on_the_length() {
    let home = tempfile::tempdir().unwrap();
    let store = local(home.path(), "writer");
    let mut folded = Vec::new();
    for (number, turns) in [(1, 10), (2, 1000)] {
        let lease = make(&store, BigThread { thread: id(number), turns, text: 200, at: 1 }).await;
        let opened = open(&store, id(number)).await.unwrap();
        assert_eq!((opened.folded, opened.thread.turns), (1 + turns * 6, turns));
        let sum = store.head(id(number)).await.unwrap().sum;
        let checkpoint = Checkpoint::of(&opened.thread, sum).unwrap();
        let size = checkpoint.encode().unwrap().len();
        assert!(size < 100_000, "the state of an idle thread has {size} bytes");
        store.put_checkpoint(&checkpoint).await.unwrap();
        let next = opened.thread.last + 1;
        store.append(&lease, entries(next, plain_turn(turns + 1)), Need::Stored).await.unwrap();
        folded.push(open(&store, id(number)).await.unwrap().folded);
        let cut = Cut { ordinal: next + 5, close: None };
        let forked = ThreadForked::new(id(number + 10), id(number));
        store.fork(outpost_store::ForkRequest { forked, cut, at: 5 }).await.unwrap();
        let head = store.head(id(number + 10)).await.unwrap();
        assert!(head.bytes < 2000, "a fork has {} bytes", head.bytes);
        assert!(matches!(head.first.unwrap().fact, Fact::ThreadForked(_)));
        let Store::Local(local) = &store else { panic!() };
        let journal = std::fs::metadata(local.journal(id(number)).unwrap()).unwrap().len();
        assert!(journal / turns < 2048, "{} bytes for a turn", journal / turns);
    }
    assert_eq!(folded, [6, 6]);
}

#[tokio::test]
async fn a_long_thread_is_ready_to_be_opened_after_its_import() {
    let home = tempfile::tempdir().unwrap();
    let store = local(home.path(), "writer");
    let lease = make(&store, BigThread { thread: id(1), turns: 500, text: 20, at: 1 }).await;
    store.release(lease).await;
    let exported = home.path().join("thread.export");
    export(&store, id(1), &mut std::fs::File::create(&exported).unwrap()).await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let store = local(elsewhere.path(), "importer");
    assert_eq!(import_export(&exported, &store).await.unwrap().outcome, ImportOutcome::Created);
    let opened = open(&store, id(1)).await.unwrap();
    assert_eq!((opened.folded, opened.thread.turns), (0, 500));
}
