//! Driving threads: models, tools, approvals.
//!
//! This room knows what a step is made of. It must not know JSON-RPC, how HTTP is served, or terminals.

pub mod agents;
mod approvals;
pub mod capabilities;
pub mod config;
pub mod counts;
pub mod denial;
mod driver;
pub mod environment_context;
pub mod extra_permissions;
pub mod feed;
pub mod follow;
mod instructions;
pub mod live;
pub mod mcp;
pub mod mirror;
pub mod model;
pub mod models;
pub mod patch;
pub mod permissions;
pub mod pictures;
pub mod plugins;
pub mod policy;
mod resting;
pub mod rules;
pub mod runtime;
pub mod secrets;
pub mod settings;
pub mod skills;
pub mod tools;

pub use config::RuntimeConfig;
pub use live::{LiveThread, NewInput, ThreadActivity, ThreadEvent};
pub use runtime::{ForkThread, Runtime, RuntimeParts, StartThread, run_uncancelled};

/// The target of log lines about what clients are told as well: a program that shows a thread to a person leaves them out.
pub const TOLD: &str = "outpost_runtime::told";
