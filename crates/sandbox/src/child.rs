//! A running child: its streams, its group, its end.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::process::{Pid, Signal as RawSignal, kill_process_group};
use tokio::net::unix::pipe;

use crate::launch::TerminalSize;
use crate::pty;

/// How much is read at once.
const READ: usize = 64 << 10;
/// A read of at least this much keeps the buffer that it filled instead of being copied out of it.
const WORTH_KEEPING: usize = READ / 2;

thread_local! {
    /// Shared by all children of a thread, so that an idle one costs no buffer.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A child that was started.
pub struct Child {
    pub group: ProcessGroup,
    pub input: Option<Input>,
    /// Standard output, or everything that a terminal shows.
    pub output: Output,
    pub errors: Option<Output>,
    /// To change the terminal's size later.
    pub terminal: Option<Terminal>,
    pub end: ChildEnd,
}

/// The end of a child, to be waited for.
pub struct ChildEnd(pub(crate) tokio::process::Child);

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// Somebody else took the status.
    Lost,
}

impl ChildEnd {
    /// Waits for the direct child; its descendants may live on. May be called again, and dropped half-way.
    pub async fn wait(&mut self) -> Exit {
        match self.0.wait().await {
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => Exit::Code(code),
                (None, Some(signal)) => Exit::Signal(signal),
                (None, None) => Exit::Lost,
            },
            Err(_) => Exit::Lost,
        }
    }
}

/// The terminal of a child.
pub struct Terminal(pub(crate) OwnedFd);

impl Terminal {
    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        pty::resize(&self.0, size)
    }
}

/// A child and what stayed in its group.
#[derive(Debug, Clone, Copy)]
pub struct ProcessGroup {
    leader: Pid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    Interrupt,
    Terminate,
    Hangup,
    Quit,
    Kill,
    User1,
    User2,
    WindowChanged,
}

impl ProcessGroup {
    pub(crate) fn of(process: &tokio::process::Child) -> io::Result<Self> {
        let leader = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        Ok(Self { leader: leader.ok_or(Errno::SRCH)? })
    }

    pub fn leader(&self) -> u32 {
        self.leader.as_raw_nonzero().get().unsigned_abs()
    }

    /// Sends a signal to the group. The caller makes sure that somebody of it is still there: its number could be
    /// somebody else's later.
    pub fn signal(&self, signal: Signal) {
        let raw = match signal {
            Signal::Interrupt => RawSignal::INT,
            Signal::Terminate => RawSignal::TERM,
            Signal::Hangup => RawSignal::HUP,
            Signal::Quit => RawSignal::QUIT,
            Signal::Kill => RawSignal::KILL,
            Signal::User1 => RawSignal::USR1,
            Signal::User2 => RawSignal::USR2,
            Signal::WindowChanged => RawSignal::WINCH,
        };
        // The group may be empty by now.
        let _ = kill_process_group(self.leader, raw);
    }
}

/// A stream from the child.
pub struct Output(pipe::Receiver);

impl Output {
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        // A terminal's master is no pipe, but is waited for and read in the same way.
        pipe::Receiver::from_owned_fd_unchecked(descriptor).map(Self)
    }

    /// Waits for output. Nothing at the end of the stream.
    pub async fn read(&self) -> Option<Vec<u8>> {
        loop {
            self.0.readable().await.ok()?;
            match self.0.try_io(|| Ok(self.read_now()?)) {
                Ok(bytes) if bytes.is_empty() => return None,
                Ok(bytes) => return Some(bytes),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                // A terminal answers so when its last user has gone.
                Err(_) => return None,
            }
        }
    }

    fn read_now(&self) -> Result<Vec<u8>, Errno> {
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            scratch.reserve(READ);
            rustix::io::read(&self.0, spare_capacity(scratch))?;
            Ok(if scratch.len() >= WORTH_KEEPING { std::mem::take(scratch) } else { scratch.clone() })
        })
    }
}

/// A stream to the child.
pub struct Input(pipe::Sender);

impl Input {
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        pipe::Sender::from_owned_fd_unchecked(descriptor).map(Self)
    }

    /// Writes as much as there is room for right now.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < bytes.len() {
            // Asked directly rather than through the readiness cache, which does not know the state before the first wait.
            match rustix::io::write(&self.0, &bytes[written..]) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(length) => written += length,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(written)
    }

    /// Writes everything, waiting for room as long as it takes.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.0.writable().await?;
            match self.0.try_write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
