//! A fork costs the same however long the thread is that it continues. The only test of its program, so that the bytes that the
//! process reads are those of the fork.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{Registry, RegistryOptions};
use outpost_runtime::config::RuntimeConfig;
use outpost_runtime::model::built_in;
use outpost_runtime::models::Models;
use outpost_runtime::rules::CommandRules;
use outpost_runtime::{ForkThread, Runtime, RuntimeParts};
use outpost_store::{CommitConfig, Durability, LocalConfig, LocalStore, MemoryStore, Store, keep_checkpoint, open};
use outpost_testkit::threads::{BigThread, make};
use outpost_thread::{ForkPoint, InterruptReason, Marker, ThreadId, TurnId};
use uuid::Uuid;

/// Bytes that this process has read so far, from wherever.
fn read_so_far() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// A thread that was opened is looked through for damage meanwhile; nobody tells when that is over.
async fn at_rest() {
    let mut before = read_so_far();
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = read_so_far();
        // Looking reads a little, too.
        if now - before < 1024 {
            return;
        }
        before = now;
    }
}

fn runtime(store: Store) -> Runtime {
    let ids: Arc<dyn Fn() -> String + Send + Sync> = Arc::new(|| Uuid::new_v4().to_string());
    let config = RuntimeConfig { model: "scripted".into(), model_provider: "ollama".into(), ..RuntimeConfig::default() };
    let models = Models::new(built_in(), (config.model_provider.clone(), config.model.clone()), Arc::new(|_| None), ids.clone());
    Runtime::new(RuntimeParts {
        config,
        store,
        ephemeral: Store::Memory(MemoryStore::new(Arc::new(|| 0), None)),
        registry: Registry::new(RegistryOptions::default()),
        models,
        rules: CommandRules::default(),
        clock: Arc::new(|| 1_763_247_600_000),
        ids,
        thread_ids: Arc::new(|| ThreadId::new(Uuid::now_v7())),
    })
}

/// What was read for a fork that returns no turns, and which entries of it had to be read to open it again.
struct Cost {
    loaded: u64,
    stored: u64,
    after_last_turn: u64,
    entries: u64,
    /// For all turns of the fork, and for all turns of the thread itself.
    turns: (u64, u64),
}

async fn cost(turns: u64) -> Cost {
    let home = tempfile::tempdir().unwrap();
    let store = Store::Local(
        LocalStore::open(LocalConfig {
            home: home.path().to_owned(),
            instance: "one".into(),
            host: "here".into(),
            clock: Arc::new(|| 1_763_247_600_000),
            durability: Durability::Effect,
            commit: CommitConfig::default(),
            lease_ms: 30_000,
            redactor: None,
        })
        .unwrap(),
    );
    let thread = ThreadId::new(Uuid::now_v7());
    let lease = make(&store, BigThread { thread, turns, text: 2_000, at: 1_763_247_600_000 }).await;
    keep_checkpoint(&store, &open(&store, thread).await.unwrap().thread).await.unwrap();
    store.release(lease).await;
    let runtime = runtime(store.clone());
    let fork = async |point: ForkPoint| {
        let before = read_so_far();
        let live = runtime.fork(ForkThread::new(thread, point)).await.unwrap();
        let read = read_so_far() - before;
        let state = live.snapshot().await.unwrap();
        assert_eq!((state.turns, state.metadata.forked_from), (turns, Some(thread)));
        (live.id(), read)
    };
    fork(ForkPoint::Interrupted(Marker::User)).await;
    let (_, stored) = fork(ForkPoint::Interrupted(Marker::User)).await;
    let (_, after_last_turn) = fork(ForkPoint::AfterTurn(TurnId(format!("turn-{}", turns - 1)))).await;
    runtime.resume(thread).await.unwrap();
    // Whatever else still reads only adds to it.
    let (mut child, mut loaded) = (thread, u64::MAX);
    for _ in 0..5 {
        at_rest().await;
        let (id, read) = fork(ForkPoint::Interrupted(Marker::User)).await;
        (child, loaded) = (id, loaded.min(read));
    }
    runtime.unload(child, InterruptReason::Shutdown).await;
    let entries = open(&store, child).await.unwrap().folded;
    let history = async |id: ThreadId| {
        let before = read_so_far();
        store.history(id, 0).await.unwrap().rest().await.unwrap();
        read_so_far() - before
    };
    Cost { loaded, stored, after_last_turn, entries, turns: (history(child).await, history(thread).await) }
}

#[tokio::test]
async fn a_fork_reads_as_much_of_ten_turns_as_of_ten_thousand() {
    let (short, long) = (cost(10).await, cost(10_000).await);
    // Numbers have more digits in the longer one.
    let is_same = |one: u64, other: u64| one.abs_diff(other) <= 256;
    assert!(is_same(short.loaded, long.loaded), "loaded: {} and {} bytes", short.loaded, long.loaded);
    assert!(is_same(short.stored, long.stored), "not loaded: {} and {} bytes", short.stored, long.stored);
    assert!(is_same(short.after_last_turn, long.after_last_turn), "{} and {} bytes", short.after_last_turn, long.after_last_turn);
    assert_eq!((short.entries, long.entries), (1, 1), "its own entry");
    let (own, parents) = long.turns;
    assert!(own <= parents + 4096, "with turns {own} bytes, reading them {parents}");
}
