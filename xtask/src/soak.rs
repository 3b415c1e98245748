//! Long runs: the tests run a small share of each.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;

use crate::{cargo, sh};

/// `outpost run` through a connection that is cut at random bytes.
pub(crate) fn cuts(count: u32) -> anyhow::Result<()> {
    sh(cargo()
        .args(["test", "--release", "-p", "outpost", "--test", "crash", "--", "--nocapture", "random_cuts"])
        .env("OUTPOST_SOAK_CUTS", count.to_string()))
}

/// File calls that are raced, and kills while files are written.
pub(crate) fn files(tries: u64) -> anyhow::Result<()> {
    let security = |name: &str, variable: &str, count: u64| {
        sh(cargo()
            .args(["test", "--release", "-p", "outpost", "--test", "security", "--", "--nocapture", "--test-threads", "1", name])
            .env(variable, count.max(1).to_string()))
    };
    // As root and as an ordinary user, three calls a round.
    security("x2_no_race_gets_out", "OUTPOST_SOAK_RACES", tries.div_ceil(6))?;
    // Two kinds of files.
    security("l8_a_", "OUTPOST_SOAK_KILLS", tries.div_ceil(2_000))
}

/// Threads whose writers are killed, and journals with flipped bits.
pub(crate) fn store(kills: u32, flips: u32) -> anyhow::Result<()> {
    crate::install::need("strace", "strace")?;
    let mut run = cargo();
    run.args(["test", "--release", "-p", "outpost-store", "--test", "crash", "--test", "damage", "--", "--nocapture"]);
    sh(run
        .args(["by_kills", "power_cuts", "flipped_bit"])
        .env("OUTPOST_SOAK_KILLS", kills.to_string())
        .env("OUTPOST_SOAK_POWER_CUTS", (kills / 10).to_string())
        .env("OUTPOST_SOAK_FLIPS", flips.to_string()))
}

/// Every property with cases of this run's own. The tests take the cases of one seed (`.cargo/config.toml`), so that a
/// commit passes always or never; new cases are looked for here, and the printed seed brings a found one back.
pub(crate) fn properties(cases: u32) -> anyhow::Result<()> {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    sh(cargo()
        .args(["test", "--release", "--no-fail-fast", "--workspace", "--lib", "--test", "prefix"])
        .env("PROPTEST_CASES", cases.to_string())
        .env("PROPTEST_RNG_SEED", seed.to_string()))
}

/// Threads that are opened one after the other in one server, each with a command in a directory of its own.
pub(crate) fn threads(count: u32) -> anyhow::Result<()> {
    sh(cargo()
        .args(["test", "--release", "-p", "outpost", "--test", "server", "--", "--nocapture", "threads_that_are_not_used"])
        .env("OUTPOST_SOAK_THREADS", count.to_string()))
}

/// Lists, searches and overviews among so many threads of a database, as a client of a node asks for them.
pub(crate) fn stored(count: u32) -> anyhow::Result<()> {
    sh(cargo()
        .args(["test", "-p", "outpost", "--test", "serve", "--", "--nocapture", "--exact"])
        .arg("cluster::many::lists_searches_and_overviews_among_many_threads_of_a_database")
        .env("OUTPOST_SOAK_STORED", count.to_string()))
}

/// So many threads whose node died at once, and two nodes that take them up.
pub(crate) fn orphans(count: u32) -> anyhow::Result<()> {
    sh(cargo()
        .args(["test", "-p", "outpost", "--test", "serve", "--", "--nocapture", "--exact"])
        .arg("cluster::orphans::many_orphans_at_once_are_taken_up_once_each_by_all_nodes")
        .env("OUTPOST_SOAK_ORPHANS", count.to_string()))
}

/// Nodes on one database, and all that they are connected to, fail at random while commands of their threads run; with `--kills N` nothing
/// fails but nodes, one after the other, until N kills have left commands running.
#[expect(clippy::print_stderr, reason = "this is a program for a terminal")]
pub(crate) fn cluster(options: &[&str]) -> anyhow::Result<()> {
    let number = |text: &str| text.parse::<u64>().with_context(|| format!("`{text}` is no number"));
    let (mut minutes, mut kills, mut seed) = (60, None, SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs());
    let mut rest = options;
    loop {
        rest = match rest {
            [] => break,
            ["--minutes", value, rest @ ..] => {
                minutes = number(value)?;
                rest
            }
            ["--kills", value, rest @ ..] => {
                kills = Some(number(value)?);
                rest
            }
            ["--seed", value, rest @ ..] => {
                seed = number(value)?;
                rest
            }
            [value, rest @ ..] => {
                minutes = number(value)?;
                rest
            }
        };
    }
    eprintln!("seed {seed}");
    sh(cargo()
        .args(["test", "-p", "outpost", "--test", "serve", "--", "--nocapture", "--exact"])
        .arg("cluster::soak::nodes_and_connections_fail_at_random_and_every_command_ends_once_with_its_own_result")
        .env("OUTPOST_SOAK_CLUSTER_MINUTES", minutes.to_string())
        .envs(kills.map(|kills| ("OUTPOST_SOAK_CLUSTER_KILLS", kills.to_string())))
        .env("OUTPOST_SOAK_SEED", seed.to_string()))
}
