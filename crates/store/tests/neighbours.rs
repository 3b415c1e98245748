//! What stands among the journals and is none does not keep anybody from the others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::Duration;

use outpost_store::{ListQuery, Store};
use rustix::fs::{CWD, FileType, mknodat};
use support::{id, local, start};

#[tokio::test]
async fn a_pipe_a_device_an_endless_file_and_a_ring_of_links_do_not_stop_a_list() {
    let home = tempfile::tempdir().unwrap();
    let store = local(home.path(), "writer");
    let (lease, _) = start(&store, 1).await;
    store.release(lease).await;
    let Store::Local(home_store) = &store else { panic!() };
    let day = home_store.journal(id(1)).unwrap().parent().unwrap().to_owned();
    drop(store);
    let name = |number: u64| day.join(format!("{}.jsonl", id(number)));
    mknodat(CWD, name(2), FileType::Fifo, 0o600.into(), 0).unwrap();
    symlink("/dev/zero", name(3)).unwrap();
    symlink(name(5), name(4)).unwrap();
    symlink(name(4), name(5)).unwrap();
    symlink(&day, day.join("again")).unwrap();
    symlink(home.path().join("threads"), day.join("2026")).unwrap();
    // A terabyte of nothing.
    File::create(name(6)).unwrap().set_len(1 << 40).unwrap();
    fs::write(name(7), "no journal\n").unwrap();
    fs::create_dir(name(8)).unwrap();
    let store = local(home.path(), "reader");
    let listed = tokio::time::timeout(Duration::from_secs(60), store.list(ListQuery::default())).await.expect("the list waits").unwrap();
    assert_eq!(listed.threads.iter().map(|thread| thread.id).collect::<Vec<_>>(), [id(1)]);
    for odd in 2..=8 {
        let opened = tokio::time::timeout(Duration::from_secs(60), outpost_store::open(&store, id(odd))).await.expect("it waits");
        assert!(opened.is_err(), "{odd}");
    }
    assert!(outpost_store::open(&store, id(1)).await.is_ok());
}
