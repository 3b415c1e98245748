//! The agent loop, with real executors and a model that says what it was told to say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod agents;
mod approvals;
mod copies;
mod faults;
mod flights;
mod harness;
mod histories;
mod leaving;
mod narrowing;
mod permits;
mod recovery;
mod scenarios;
mod selection;
mod servers;
mod strays;
mod tools;
mod turns;
mod wakes;
mod weak;
