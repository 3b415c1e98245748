//! Long runs: the tests run a small share of each.

use crate::{cargo, sh};

/// `outpost run` through a connection that is cut at random bytes.
pub fn cuts(count: u32) -> anyhow::Result<()> {
    sh(cargo()
        .args(["test", "--release", "-p", "outpost", "--test", "crash", "--", "--nocapture", "random_cuts"])
        .env("OUTPOST_SOAK_CUTS", count.to_string()))
}

/// Threads whose writers are killed, and journals with flipped bits.
pub fn store(kills: u32, flips: u32) -> anyhow::Result<()> {
    crate::install::strace()?;
    let mut run = cargo();
    run.args(["test", "--release", "-p", "outpost-store", "--test", "crash", "--test", "damage", "--", "--nocapture"]);
    sh(run
        .args(["by_kills", "power_cuts", "flipped_bit"])
        .env("OUTPOST_SOAK_KILLS", kills.to_string())
        .env("OUTPOST_SOAK_POWER_CUTS", (kills / 10).to_string())
        .env("OUTPOST_SOAK_FLIPS", flips.to_string()))
}
