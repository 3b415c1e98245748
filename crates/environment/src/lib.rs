//! Reaching executors: connect, resume, catch up.
//!
//! This room knows how to get to an executor and how to stay with it. It must not know what a process is *for*, nor
//! anything of the inside of an executor: all it shares with one is the wire.

mod backoff;
mod blocks;
pub mod bootstrap;
mod connector;
mod environment;
mod files;
mod inbox;
mod process;
mod session;
mod transfer;

pub use connector::{Connector, TAKEN_OVER_EXIT, Target, TargetError};
pub use environment::{Environment, EnvironmentError, EnvironmentOptions, State};
pub use files::Files;
pub use inbox::ProcessEvent;
pub use process::{ProcessStart, RemoteProcess};
pub use transfer::{Location, Progress, Summary, Transfer, TransferError};
