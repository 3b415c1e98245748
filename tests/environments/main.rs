//! Environments: which there are, how each stands, what a step may use, and what happens when they break. The names of
//! tests carry the numbers of the scenarios that they show.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod capability;
mod chaos;
mod config;
mod faults;
mod identity;
mod joined;
mod pending;
mod recovery;
mod registry;
mod step;
mod support;
mod transfer;
