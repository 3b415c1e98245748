//! Executors that dial in, tokens, and everything behind the listener of `outpost serve`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod again;
mod client;
mod cluster;
mod join;
mod metrics;
mod nodes;
mod reach;
mod shared;
mod support;
mod tls;
mod tokens;
