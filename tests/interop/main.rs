//! Programs of others, unchanged: the released Codex as client and as executor. `cargo xtask test` installs it and names
//! it in `OUTPOST_TEST_CODEX`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clients;
mod codex_client;
mod codex_environment;
mod codex_executor;
mod codex_rollouts;
mod codex_tui;

use std::path::PathBuf;

const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");

fn codex() -> PathBuf {
    PathBuf::from(std::env::var_os("OUTPOST_TEST_CODEX").expect("run these tests with `cargo xtask test`"))
}
