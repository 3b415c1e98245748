//! Machines behind a real sshd, with the login shells that people have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bootstrap;
mod environment;

const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");
