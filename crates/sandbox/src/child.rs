//! A running child: its streams, its kin, its end.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::process::Signal as RawSignal;
use tokio::net::unix::pipe;

use crate::cell::{Remembered, RunningProgram};
use crate::launch::TerminalSize;
use crate::limits::EffectiveLimit;
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
    pub kin: ProcessTree,
    pub input: Option<ChildInput>,
    /// Standard output, or everything that a terminal shows.
    pub output: Output,
    pub errors: Option<Output>,
    /// To change the terminal's size later.
    pub terminal: Option<ChildTerminal>,
    pub end: ChildEnd,
}

/// The end of a child, to be waited for. Dropped before that, it is the child's end.
pub struct ChildEnd {
    running: RunningProgram,
    exit: Option<Exit>,
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// It is not known.
    Lost,
}

impl ChildEnd {
    pub(crate) fn new(running: RunningProgram) -> Self {
        Self { running, exit: None }
    }

    /// Waits for the direct child; its descendants may live on. May be called again, and dropped half-way.
    pub async fn wait(&mut self) -> Exit {
        if let Some(exit) = self.exit {
            return exit;
        }
        let exit = self.running.end().await;
        self.exit = Some(exit);
        exit
    }

    /// The same after everything was killed: does not wait for a reaper that was stopped.
    pub async fn wait_for_kill(&mut self) -> Exit {
        let running = self.running.clone();
        tokio::select! {
            biased;
            exit = self.wait() => return exit,
            () = running.make_sure_of_kill() => {}
        }
        self.wait().await
    }
}

impl Drop for ChildEnd {
    fn drop(&mut self) {
        if self.exit.is_none() {
            self.running.drop_reaper();
        }
    }
}

/// The terminal of a child.
pub struct ChildTerminal(pub(crate) OwnedFd);

impl ChildTerminal {
    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        pty::resize(&self.0, size)
    }
}

/// A child and everything that came of it, wherever it hid.
#[derive(Debug, Clone)]
pub struct ProcessTree(pub(crate) Remembered);

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

impl ProcessTree {
    /// The child's number, as it knows itself.
    pub fn leader(&self) -> u32 {
        self.0.pid()
    }

    /// Sends a signal to the child's group, if the child has not ended yet.
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
        self.0.signal(raw.as_raw());
    }

    /// Which limit the child ran into that ended like this, if that can be told. Told once.
    pub fn limit_reached(&self, exit: Exit) -> Option<EffectiveLimit> {
        self.0.limit_reached(exit)
    }

    /// Kills all of them, also those that outlived the child. Nothing happens once none is left.
    pub fn kill(&self) {
        self.0.kill();
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
            match rustix::io::read(&self.0, spare_capacity(scratch)) {
                // The kernel says that a terminal's last user has gone before it looks for what that user wrote last: a master
                // that reads while the other side writes and closes gets this error once with output still to come.
                Err(Errno::IO) => rustix::io::read(&self.0, spare_capacity(scratch))?,
                other => other?,
            };
            Ok(if scratch.len() >= WORTH_KEEPING { std::mem::take(scratch) } else { scratch.clone() })
        })
    }
}

/// A stream to the child.
pub struct ChildInput(pipe::Sender);

impl ChildInput {
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
