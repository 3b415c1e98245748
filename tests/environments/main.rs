//! Environments: which there are, how each stands, what a step may use, and what happens when they break. The names of
//! tests carry the numbers of the scenarios that they show.
//!
//! Some scenarios are shown elsewhere: 13 to 16 beside the file's parser (`environment/src/config/tests.rs`), 36 and 44 to
//! 46 beside the decisions (`environment/src/selection.rs`), the reordering of 22 beside the inbox (`environment/src/process_event_buffer.rs`),
//! 25 in `tests/conformance`. 41 is about what a model is told and belongs to those who tell it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod capability;
mod chaos;
mod config;
mod faults;
mod http;
mod identity;
mod joined;
mod pending;
mod recovery;
mod registry;
mod step;
mod support;
mod transfer;
