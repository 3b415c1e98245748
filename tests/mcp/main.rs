//! MCP servers: real processes in real executors, used by threads whose model is scripted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod app;
mod behaviour;
mod calls;
mod cli;
mod faults;
#[path = "../loop/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of the loop, which use more of it")]
mod harness;
mod http;
#[cfg(feature = "interop")]
mod interop;
mod machines;
mod places;
mod pool;
mod refresh;
mod secrets;
mod support;
mod told;
