//! The pages: every link leads somewhere, what a newcomer looks for is near, the examples do what they show, and what is named is there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod blocks;
mod examples;
mod links;
mod pages;
mod security;
mod stage;
mod typed;
mod typing;
/// The hosts of the command line's tests.
#[path = "../cli/world.rs"]
#[allow(dead_code, reason = "not all of them are in the pages")]
mod world;

const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");
