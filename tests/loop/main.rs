//! The agent loop, with real executors and a model that says what it was told to say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod approvals;
mod faults;
mod harness;
mod recovery;
mod selection;
mod tools;
mod turns;
