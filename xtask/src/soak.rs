//! Long runs: the tests run a small share of each.

use crate::{cargo, sh};

/// `outpost run` through a connection that is cut at random bytes.
pub fn cuts(count: u32) -> anyhow::Result<()> {
    sh(cargo()
        .args(["test", "--release", "-p", "outpost", "--test", "crash", "--", "--nocapture", "random_cuts"])
        .env("OUTPOST_SOAK_CUTS", count.to_string()))
}
