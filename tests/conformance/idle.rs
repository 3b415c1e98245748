//! What an executor does while its processes do nothing, and before it has any.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use outpost_testkit::{Bench, Client, LinkKind, Setup};
use serde_json::json;

use crate::support::OUTPOST;

/// How often threads of a process have begun to wait so far.
fn waits(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    let count = |status: String| status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok());
    statuses.filter_map(count).sum()
}

/// How many processes a process has started that are still there.
fn children(pid: u32) -> usize {
    let parent = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // Behind the name, which may hold anything: the state, then the parent.
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(parent).filter(|parent| *parent == pid).count()
}

/// Sandboxes and control groups are tried with processes, which took most of the time until a new executor gave its first answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_is_greeted_before_anything_is_tried() {
    let bench = Bench::with_setup(LinkKind::WebSocket, OUTPOST, &Setup { readable: true, ..Setup::default() });
    let (mut client, pid) = (bench.client().await, bench.process().unwrap().pid());
    assert_eq!(children(pid), 0, "nothing was asked for that needs a process");
    client.result("environment/info", json!({})).await;
    assert_ne!(children(pid), 0, "what is told was not tried");
}

/// The kilobytes of files that a process has mapped, the program itself among them.
fn mapped_files(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Waits until a process has mapped less than so many kilobytes of files.
async fn until_mapped_less_than(kilobytes: u64, pid: u32) {
    let since = Instant::now();
    while mapped_files(pid) >= kilobytes {
        assert!(since.elapsed() < Duration::from_secs(30), "{} KB of files are mapped", mapped_files(pid));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Most of what an executor had mapped were pages of the program that only its start, or a client that had left, needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_without_clients_maps_little_of_its_program() {
    let bench = Bench::with_setup(LinkKind::WebSocket, OUTPOST, &Setup { readable: true, ..Setup::default() });
    let (mut client, pid) = (bench.client().await, bench.process().unwrap().pid());
    client.result("environment/info", json!({})).await;
    let used = mapped_files(pid);
    drop(client);
    until_mapped_less_than(used / 2, pid).await;
    let mut client = bench.client().await;
    client.result("environment/info", json!({})).await;
}

/// The limit of memory where no control group holds it: then the executor looks how much is used.
async fn watched_memory(client: &mut Client) -> Option<u64> {
    let info = client.result("environment/info", json!({})).await;
    let limits = info["limits"].as_array().unwrap();
    let memory = limits.iter().find(|limit| limit["what"] == "bytes of memory" && limit["mechanism"] == "watchdog")?;
    memory["value"].as_u64()
}

/// How often space and memory have to be looked at: never later than they could run out at 4 GB/s, and never more often than twice a second.
fn looks(directory: &Path, memory: Option<u64>, time: Duration) -> u64 {
    let stat = rustix::fs::statvfs(directory).unwrap();
    // A part of the memory is used.
    let free = (stat.f_bavail * stat.f_frsize).min(memory.map_or(u64::MAX, |bytes| bytes - bytes / 8));
    let pause = Duration::from_millis(free / (4 << 20)).clamp(Duration::from_millis(500), Duration::from_secs(60));
    time.as_millis().div_ceil(pause.as_millis()) as u64
}

/// Space was looked at twice a second, by a thread that was woken for it: 20 times in each time that is watched here, with two waits each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_do_nothing_wake_nothing() {
    const PROCESSES: usize = 50;
    const WATCHED: Duration = Duration::from_secs(10);
    const TIMES: usize = 6;
    let bench = Bench::with_setup(LinkKind::WebSocket, OUTPOST, &Setup { readable: true, ..Setup::default() });
    let mut client = bench.client().await;
    for index in 0..PROCESSES {
        client.start(bench.start(&format!("idle-{index}"), &["/bin/sleep", "1000"])).await;
    }
    let memory = watched_memory(&mut client).await;
    let pid = bench.process().unwrap().pid();
    let mut seen = Vec::new();
    // The starts leave something to do, for longer where other programs use the processor: the calmest time counts.
    for _ in 0..TIMES {
        let (before, since) = (waits(pid), Instant::now());
        tokio::time::sleep(WATCHED).await;
        let woken = waits(pid).saturating_sub(before);
        // A look wakes two threads, a few times each.
        let most = 8 * (looks(bench.path("").as_path(), memory, since.elapsed()) + 1);
        if woken <= most {
            return;
        }
        seen.push((woken, most));
    }
    panic!("woken so often in {WATCHED:?} by {PROCESSES} processes that sleep, each time with what is allowed: {seen:?}");
}
