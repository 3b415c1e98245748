//! The command line, as a person or a script meets it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod executor;
mod run;
mod thread;

const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");
