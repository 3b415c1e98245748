//! What a child reads and writes: pipes or a terminal, both ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::fcntl_setpipe_size;

use super::LaunchIo;
use crate::cell::RunningProgram;
use crate::child::{Child, ChildEnd, ChildInput, ChildTerminal, Output, ProcessTree};
use crate::pty;

/// How much a child can print before it has to wait.
const PIPE: usize = 256 << 10;

/// Both ends of what a child reads and writes.
pub(super) enum Streams {
    Pipes { input: Option<ChildInput>, output: Output, errors: Output, theirs: Vec<OwnedFd> },
    Terminal { input: ChildInput, output: Output, terminal: ChildTerminal, slave: OwnedFd },
}

impl Streams {
    pub(super) fn open(io: LaunchIo) -> io::Result<Self> {
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
                    Some(ChildInput::new(input.into())?)
                } else {
                    None
                };
                Ok(Self::Pipes { input, output: Output::new(output.into())?, errors: Output::new(errors.into())?, theirs })
            }
            LaunchIo::Terminal(size) => {
                let (master, slave) = pty::open(size)?;
                let (input, output) = (ChildInput::new(master.try_clone()?)?, Output::new(master.try_clone()?)?);
                let slave = pty_slave(&slave)?;
                Ok(Self::Terminal { input, output, terminal: ChildTerminal(master), slave })
            }
        }
    }

    pub(super) fn theirs(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Pipes { theirs, .. } => theirs.iter().map(AsFd::as_fd).collect(),
            Self::Terminal { slave, .. } => vec![slave.as_fd()],
        }
    }

    /// A program of another user may open its own streams by their names (`/dev/stdout`), as any other may.
    pub(super) fn give_to(&self, (uid, gid): (u32, u32)) {
        for stream in self.theirs() {
            // Without it only those names do not work.
            let _ = rustix::fs::fchown(stream, Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid)));
        }
    }

    pub(super) fn child(self, running: RunningProgram) -> Child {
        let kin = ProcessTree(running.remembered());
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
    let opened = File::options().read(true).write(true).custom_flags(flags.cast_signed()).open(path);
    Ok(opened.map_err(pty::explained)?.into())
}
