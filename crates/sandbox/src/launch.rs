//! Starting a child.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::pipe::fcntl_setpipe_size;
use thiserror::Error;

use crate::cell::{Cell, Running};
use crate::child::{Child, ChildEnd, Input, Kin, Output, Terminal};
use crate::message;
use crate::policy::Policy;
use crate::pty;
use crate::zygote::Zygote;

/// How much a child can print before it has to wait.
const PIPE: usize = 256 << 10;

/// What to start. Everything is spelled out; nothing is inherited from this process.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Looked up in the child's own `PATH` unless it holds a slash.
    pub program: OsString,
    /// What the program is told as its own name, if not `program`.
    pub arg0: Option<OsString>,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    pub io: LaunchIo,
    pub policy: Policy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchIo {
    /// Three separate streams; without `stdin` the child finds its input at its end.
    Pipes { stdin: bool },
    /// One terminal for all three, which becomes the child's controlling one.
    Terminal(TerminalSize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// Why nothing was started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// The system would not run the program.
    #[error(transparent)]
    Spawn(#[from] io::Error),
    /// The policy cannot be held here, so nothing was run.
    #[error("{0}")]
    Unenforceable(String),
    #[error("its owner is gone")]
    Ended,
}

/// Starts children. Cheap to clone; all clones share one zygote.
#[derive(Debug, Clone)]
pub struct Launcher(Arc<Zygote>);

impl Launcher {
    /// `stage` is a program that calls [`crate::stage::run_if_asked`] first thing.
    pub fn new(stage: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Zygote::new(stage.into())))
    }

    /// This program as its own stage, also after its file was replaced.
    pub fn with_own_stage() -> Self {
        Self::new("/proc/self/exe")
    }

    /// Somebody whose processes end with it.
    pub fn owner(&self) -> Owner {
        Owner { zygote: self.0.clone(), state: Mutex::default() }
    }
}

/// Whoever processes belong to: nothing that was started through it outlives it.
#[derive(Debug)]
pub struct Owner {
    zygote: Arc<Zygote>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    cells: HashMap<Policy, Arc<Cell>>,
    ended: bool,
}

impl Owner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Must be called where tasks can be spawned. Waits, on this thread, until the program runs.
    pub fn start(&self, launch: &Launch) -> Result<Child, LaunchError> {
        // Everything that can fail for want of descriptors comes before the child.
        let streams = Streams::open(launch.io)?;
        let cell = self.cell(&launch.policy)?;
        let terminal = matches!(launch.io, LaunchIo::Terminal(_));
        let running = cell.start(|job| message::encode_start(job, terminal, launch), &streams.theirs())??;
        Ok(streams.child(running))
    }

    fn cell(&self, policy: &Policy) -> Result<Arc<Cell>, LaunchError> {
        let mut state = self.lock();
        if state.ended {
            return Err(LaunchError::Ended);
        }
        if let Some(cell) = state.cells.get(policy).filter(|cell| cell.is_there()) {
            return Ok(cell.clone());
        }
        let cell = Cell::adopt(self.zygote.cell(&[])?)?.map_err(LaunchError::Unenforceable)?;
        let cell = Arc::new(cell);
        state.cells.insert(policy.clone(), cell.clone());
        Ok(cell)
    }

    /// Kills everything that was started. Nothing can be started any more.
    pub fn end(&self) {
        let cells = {
            let mut state = self.lock();
            state.ended = true;
            std::mem::take(&mut state.cells)
        };
        for cell in cells.into_values() {
            cell.end();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.end();
    }
}

/// Both ends of what a child reads and writes.
enum Streams {
    Pipes { input: Option<Input>, output: Output, errors: Output, theirs: Vec<OwnedFd> },
    Terminal { input: Input, output: Output, terminal: Terminal, slave: OwnedFd },
}

impl Streams {
    fn open(io: LaunchIo) -> io::Result<Self> {
        match io {
            LaunchIo::Pipes { stdin } => {
                let (output, child_output) = io::pipe()?;
                // A child that prints a lot then waits for us less often. Who has many pipes may be refused; it works all the same.
                let _ = fcntl_setpipe_size(&output, PIPE);
                let (errors, child_errors) = io::pipe()?;
                let mut theirs: Vec<OwnedFd> = vec![child_output.into(), child_errors.into()];
                let input = if stdin {
                    let (child_input, input) = io::pipe()?;
                    theirs.push(child_input.into());
                    Some(Input::new(input.into())?)
                } else {
                    None
                };
                Ok(Self::Pipes { input, output: Output::new(output.into())?, errors: Output::new(errors.into())?, theirs })
            }
            LaunchIo::Terminal(size) => {
                let (master, slave) = pty::open(size)?;
                let (input, output) = (Input::new(master.try_clone()?)?, Output::new(master.try_clone()?)?);
                let slave = pty_slave(&slave)?;
                Ok(Self::Terminal { input, output, terminal: Terminal(master), slave })
            }
        }
    }

    fn theirs(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Pipes { theirs, .. } => theirs.iter().map(AsFd::as_fd).collect(),
            Self::Terminal { slave, .. } => vec![slave.as_fd()],
        }
    }

    fn child(self, running: Running) -> Child {
        let kin = Kin(running.clone());
        let end = ChildEnd::new(running);
        match self {
            Self::Pipes { input, output, errors, .. } => Child { kin, input, output, errors: Some(errors), terminal: None, end },
            Self::Terminal { input, output, terminal, .. } => {
                Child { kin, input: Some(input), output, errors: None, terminal: Some(terminal), end }
            }
        }
    }
}

/// The side of a terminal that a child gets, without it becoming ours.
fn pty_slave(path: &std::path::Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NOCTTY.bits();
    Ok(File::options().read(true).write(true).custom_flags(flags.cast_signed()).open(path)?.into())
}
