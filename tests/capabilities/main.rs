//! Capability roots, skills and plugins, with real executors and a model that says what it was told to say. Test names carry the
//! numbers of the scenarios.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "shared with the tests of the loop")]
#[path = "../loop/harness.rs"]
mod harness;

mod faults;
mod handles;
mod host;
mod plugins;
mod roots;
mod skills;
mod stage;
mod verbs;
