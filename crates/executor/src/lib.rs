//! Sessions, processes, output, files and HTTP of one machine.
//!
//! This room serves the exec protocol over any link. It must not know threads, models, stores or environments: it is
//! the hands, not the head.

mod adoption;
mod attachment;
mod attributes;
mod blocking;
mod caller;
mod carried;
pub mod ceiling;
mod config;
mod connection;
mod denial;
mod devices;
mod discovery;
mod executor;
mod fault;
mod files;
mod follow;
mod git;
mod http;
mod info;
mod input;
mod installed;
mod journal;
pub mod local_directory;
pub mod locks;
mod methods;
mod mounts;
mod output;
mod past;
pub mod place;
mod policy;
mod process;
mod retained;
pub mod seat;
mod session;
mod settings;
mod snapshot;
mod spool;
mod streams;
mod trails;
mod variables;
mod walk;
mod watch;

pub use config::{CallerConfig, ExecutorConfig, IdSource};
pub use executor::{Executor, Lifetime};
pub use files::worker::{WorkerPatience, serve as serve_files};
pub use git::{GitMode, GitSettings};
pub use http::{HttpTarget, HttpTargetError};
pub use input::InputLimits;
pub use output::OutputLimits;
pub use policy::{Grounds, PolicyError};
