//! The command line, as a person or a script meets it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod doctor;
mod executor;
mod run;

const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");
