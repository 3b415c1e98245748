//! `outpost run` through a connection that is cut again and again.

use std::path::Path;
use std::process::Stdio;

use outpost_testkit::{Cutter, ExecutorProcess};

const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");

const LINES: u32 = 2_900_000;

/// Numbered lines, so that a missing or doubled byte anywhere changes the result.
fn expected(lines: u32) -> Vec<u8> {
    (1..=lines).flat_map(|n| format!("{n}\n").into_bytes()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_megabytes_arrive_whole_and_the_command_runs_once() {
    // Cut during the upgrade, the handshake, the start, the first output, and at odd places of the bulk.
    let plan = vec![150, 700, 2_500, 10_001, 1_000_003, 4_000_037, 77, 7_000_001];
    let connections = run_through(&plan).await;
    assert!(connections >= plan.len(), "only {connections} connections");
}

/// Runs a command that prints 20 MB through connections that are cut as planned; nothing may be missing, nothing doubled,
/// and it may run only once. Returns how many connections it took.
async fn run_through(plan: &[u64]) -> usize {
    let executor = ExecutorProcess::start(Path::new(OUTPOST), &["--no-auth"]);
    let cutter = Cutter::start(executor.address(), plan.to_vec()).await;
    let counter = executor.home().join("runs");
    let script = format!("echo run >> {}; seq 1 {LINES}", counter.display());
    let output = tokio::process::Command::new(OUTPOST)
        .args(["run", "-e", &cutter.url(), "--", "/bin/sh", "-c", &script])
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "plan {plan:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(&counter).unwrap(), "run\n", "plan {plan:?}");
    assert!(output.stdout == expected(LINES), "plan {plan:?}: {} bytes came", output.stdout.len());
    cutter.connections()
}

/// Cuts at random bytes while a child prints; `OUTPOST_SOAK_CUTS` says how many (`cargo xtask soak cuts`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_cuts_lose_and_double_nothing() {
    let count: usize = std::env::var("OUTPOST_SOAK_CUTS").map_or(6, |count| count.parse().expect("a number"));
    let mut done = 0;
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    while done < count {
        // Each command survives a few cuts, so that they fall into every part of its life.
        let plan: Vec<u64> = (0..(count - done).min(20)).map(|_| random(&mut seed) % 3_000_000).collect();
        done += run_through(&plan).await - 1;
        println!("{done} of {count} cuts");
    }
}

/// A step of splitmix64; the same cuts in every run.
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
