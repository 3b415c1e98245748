//! Turning a launch into a child of this machine: pipes or a terminal, confinement, somebody who looks after it, an exit.
//!
//! This room knows descriptors, signals, namespaces and limits. It must not know networks, protocols or sessions.

mod cell;
mod cgroup;
mod channel;
mod child;
mod launch;
mod level;
mod limits;
mod memory;
mod message;
mod meter;
mod plan;
pub mod policy;
mod probe;
mod program;
mod pty;
mod scratch;
pub mod stage;
mod sys;
mod tried;
mod watchdog;
mod zygote;

pub use cell::Worker;
pub use channel::{Channel, Message};
pub use child::{Child, ChildEnd, Exit, Input, Kin, Output, Signal, Terminal};
pub use launch::{IdleCells, Launch, LaunchError, LaunchIo, Launcher, LauncherSettings, LossSink, Owner, TerminalSize};
pub use level::{Capacity, LEVELS, Level};
pub use limits::{Limit, Limits, Mechanism};
pub use message::{Held, Loss, Outcome};
pub use probe::{LEVEL, Row, Verdict, probe, probe_at, probe_with, told};
