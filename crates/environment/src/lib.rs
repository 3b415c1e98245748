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
mod first_start;
mod followed;
mod foreign;
mod http;
mod narrowing;
mod output_tail;
mod pace;
mod pending;
mod process;
mod process_event_buffer;
pub mod provider;
mod registry;
pub mod route;
pub mod selection;
mod session;
mod session_store;
mod state;
mod supervisor;
mod transfer;
mod usage;
mod version;
mod view;
mod watching;

pub use admission::{EnvironmentAdmission, SOURCES};
pub use backoff::{Backoff, Waits};
pub use capability::{CapabilityAccess, ResolvedRoot, gather_roots, resolve_selected_capability_roots};
pub use connector::{
    Carrier, CommandLine, Complaints, Connector, ExecutorAddress, FIRST_CONNECTION, JoinedLinks, Journey, LinkRefused, Means, NoExecutor,
    TAKEN_OVER_EXIT, TargetError, Token, dial,
};
pub use definition::{ConnectionWay, Definition, DefinitionError, Setup, Ssh};
pub use discovery::{ChangedFolder, Discoveries, DiscoveryError, WantedFolder};
pub use environment::{ConnectPolicy, Environment, EnvironmentError, EnvironmentOptions, Heartbeat, Repeat};
pub use files::Files;
pub use first_start::FirstStart;
pub use foreign::slurm;
pub use http::{BodyError, HttpBody, HttpCall, HttpHead};
pub use narrowing::{Fence, NarrowedApproval, Narrowing};
pub use output_tail::OutputTail;
pub use pending::{Provided, ReportError};
pub use process::{ProcessStart, RemoteProcess};
pub use process_event_buffer::ProcessEvent;
pub use provider::{ActiveConfiguration, ConfigurationSnapshot, ConfiguredEnvironment, DefaultChoice, Nameless, StartChoice, Variable};
pub use registry::{
    EnvironmentOrigin, EnvironmentRow, EnvironmentState, FailureCause, InfoError, Registry, RegistryChange, RegistryError, RegistryEvent,
    RegistryOptions, RegistryTransition, Watcher,
};
pub use session_store::SessionMemory;
pub use state::{Connected, ConnectionState, ExecutorIdentity, Failure, FailureKind, Obstacle};
pub use transfer::{ExcludePattern, Location, PatternError, Transfer, TransferError, TransferOptions, TransferProgress, TransferSummary};
pub use view::{Captured, StepView, ViewError, ViewMember, Workplace};
pub use watching::{FileChanges, FileWatch};
