//! The app protocol, spoken by hand to a real server with a scripted model.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agents;
mod answers;
mod approvals;
mod commands;
mod damage;
mod doors;
mod ends;
mod environments;
mod events;
mod files;
mod handshake;
mod journal;
mod many;
mod permissions;
mod revert;
mod rubbish;
mod selection;
mod smaller;
mod subscribers;
mod threads;

pub const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");
