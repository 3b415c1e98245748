//! Reaching executors: which environments there are, how to get to each, and how to stay with it.
//!
//! This room knows configuration, connections, sessions and the frozen view of a step. It must not know what a process is
//! *for*, nor anything of the inside of an executor: all it shares with one is the wire.

mod admission;
mod backoff;
mod blocks;
pub mod bootstrap;
pub mod capability;
pub mod config;
mod connector;
mod definition;
mod discovery;
mod environment;
mod files;
mod http;
mod inbox;
mod memory;
mod narrowing;
mod pending;
mod process;
pub mod provider;
mod registry;
pub mod route;
pub mod selection;
mod session;
mod state;
mod supervisor;
mod transfer;
mod usage;
mod version;
mod view;
mod watching;

pub use admission::{Admission, SOURCES};
pub use backoff::{Backoff, Waits};
pub use capability::{Access, ResolvedRoot, gather_roots, resolve_selected_capability_roots};
pub use connector::{
    Carrier, CommandLine, Complaints, Connector, Door, Journey, Means, NoExecutor, Refusal, TAKEN_OVER_EXIT, Target, TargetError, Token,
};
pub use definition::{Definition, DefinitionError, Setup, Ssh, Way};
pub use discovery::{ChangedFolder, Discoveries, DiscoveryError, Wanted};
pub use environment::{ConnectPolicy, Environment, EnvironmentError, EnvironmentOptions, Heartbeat, Repeat};
pub use files::Files;
pub use http::{BodyError, HttpBody, HttpCall, HttpHead};
pub use inbox::ProcessEvent;
pub use memory::SessionMemory;
pub use narrowing::{Asking, Fence, Narrowing};
pub use pending::{Provided, ReportError};
pub use process::{ProcessStart, RemoteProcess};
pub use provider::{Configuration, DefaultChoice, Entry, Nameless, Snapshot, Variable};
pub use registry::{Cause, Change, Event, InfoError, News, Origin, Registry, RegistryError, RegistryOptions, Standing, Status, Watcher};
pub use state::{Connected, Failure, FailureKind, Identity, State};
pub use transfer::{Location, Progress, Summary, Transfer, TransferError, TransferOptions};
pub use view::{Captured, Member, StepView, ViewError, Workplace};
pub use watching::{FileChanges, FileWatch};
