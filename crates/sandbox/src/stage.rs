//! The small processes between the executor and what it starts: this very program, under a hidden name.
//!
//! The *zygote* is started once, has a single thread and forks *cells*; a cell belongs to one session and one policy and
//! forks *reapers*; a reaper starts one program at a time and is the parent that everything below it falls back to. So
//! nothing can be started that has no parent of ours:
//!
//! - a reaper whose socket ends kills all that it started;
//! - a cell kills whatever a reaper leaves behind, and the zygote what a cell leaves behind;
//! - all of them hear when their parent is gone.

mod confine;
mod fork_server;
mod kin;
mod reaper;
mod relay;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{DumpableBehavior, set_dumpable_behavior, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, stdin};

pub use self::confine::Quiet;
use crate::channel::Channel;
use crate::sys;

/// The hidden name of the zygote. Its standard input is its socket.
pub(crate) const ZYGOTE: &str = "__zygote";

/// What a worker does inside a cell until its socket ends. It runs in a process with a single thread.
pub type Worker = fn(Channel, &Quiet);

/// What a stage says before it is told anything.
pub(crate) const HELLO: &[u8] = b"outpost stage";

/// Whether `main` of this program offers itself as a stage. A fact about the whole process, which no value could carry from there
/// to a launcher of another crate.
static OFFERED: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_offered() -> bool {
    OFFERED.load(Ordering::Relaxed)
}

/// Must be the first thing that a program does which offers itself as a stage. Returns only if it was not asked.
pub fn run_if_asked(arguments: impl IntoIterator<Item = OsString>, worker: Worker) -> Option<ExitCode> {
    OFFERED.store(true, Ordering::Relaxed);
    if arguments.into_iter().nth(1)? != ZYGOTE {
        return None;
    }
    Some(if zygote(worker).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn zygote(worker: Worker) -> std::io::Result<()> {
    // The program that started the executor may have left something open, which would reach everything that is started here.
    sys::close_all_from(3)?;
    let control = Channel::from_descriptor(fcntl_dupfd_cloexec(stdin(), 3)?);
    let nothing = std::fs::File::open("/dev/null")?;
    dup2_stdin(&nothing)?;
    // Whatever started this one in our name may still listen there.
    dup2_stderr(&nothing)?;
    drop(nothing);
    control.send(HELLO, &[])?;
    // Out of reach of whatever happens to the terminal and the group of the executor.
    let _ = setsid();
    let _ = rustix::thread::set_name(c"outpost-zygote");
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    fork_server::run(control, fork_server::Role::Zygote, worker, Quiet::Always)
}
