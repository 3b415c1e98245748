//! Turning a launch into a child of this machine: pipes or a terminal, confinement, a reaper that looks after it, an exit.
//!
//! This room knows descriptors, signals, namespaces and limits. It must not know networks, protocols or sessions.

mod cell;
mod cgroup;
mod channel;
mod child;
pub mod home;
mod launch;
mod level;
mod limits;
mod memory;
mod message;
mod meter;
mod mount_table;
mod plan;
pub mod policy;
mod probe;
mod program;
mod pty;
mod scratch;
mod shares;
pub mod stage;
mod sys;
mod tree;
mod tried;
mod watchdog;
mod zygote;

pub use cell::WorkerHandle;
pub use channel::{Channel, ChannelMessage};
pub use child::{Child, ChildEnd, ChildInput, ChildTerminal, Exit, Output, ProcessTree, Signal};
pub use launch::{
    IdleCells, Launch, LaunchError, LaunchIo, Launcher, LauncherSettings, Layering, LossSink, OrderedStart, ProcessScope, TerminalSize,
};
pub use level::{Capacity, LEVELS, Level};
pub use limits::{EffectiveLimit, Limits, Mechanism};
pub use message::{HoldMechanism, Loss, OrderOutcome};
pub use mount_table::MountTable;
pub use probe::{HostVerdict, LEVEL, PromiseRow, probe, probe_at, probe_with, told};
pub use sys::{give_back_memory, give_back_program};
pub use tree::remove_tree;
