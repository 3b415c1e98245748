//! Turning a launch into a child of this machine: pipes or a terminal, a process group, an exit.
//!
//! This room knows descriptors and signals. It must not know networks, protocols or sessions. For now a child is
//! launched plainly; confinement will be built in here and nowhere else.

mod child;
mod launch;
pub mod policy;
mod probe;
mod program;
mod pty;
pub mod stage;

pub use child::{Child, ChildEnd, Exit, Input, Output, ProcessGroup, Signal, Terminal};
pub use launch::{Launch, LaunchIo, Launcher, TerminalSize};
pub use probe::{Row, Verdict, probe};
