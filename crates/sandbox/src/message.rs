//! What the executor and its stages say to each other, as bytes.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::child::Exit;
use crate::launch::Launch;

/// To the zygote or a cell. Each comes with the socket of the new process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StageOrder {
    /// Fork a cell, which is described by these bytes.
    Cell(Vec<u8>),
    /// Fork a reaper.
    Reaper { number: u64 },
    /// Fork a process that does work of ours inside, such as file calls.
    Worker { number: u64 },
    /// Kill a reaper that does not answer; what it leaves behind is killed as well.
    Fell { number: u64 },
    /// Fork a process that enters control groups by these files, uses a little memory, tries to fork, and stays until its socket ends.
    Trial { doors: Vec<PathBuf> },
}

/// To a reaper. Every order is for one job, and is not obeyed in a later one.
#[derive(Debug)]
pub(crate) enum Task {
    Start(StartOrder),
    Signal { job: u64, signal: i32 },
    Kill { job: u64 },
}

/// What has to be found at a path before something is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Check {
    pub path: PathBuf,
    /// The number of the mount; without one nothing may be there.
    pub mount: Option<u64>,
    /// Sandboxed code could have closed the way to it, so that a path that cannot be looked at says nothing.
    pub is_strict: bool,
}

impl Check {
    fn encode(&self, out: &mut MessageWriter) {
        out.text(self.path.as_os_str());
        out.number(self.mount.unwrap_or(0));
        out.byte(self.is_strict.into());
    }

    fn decode(input: &mut MessageReader<'_>) -> io::Result<Self> {
        let path = input.path()?;
        let mount = Some(input.number()?).filter(|mount| *mount != 0);
        Ok(Self { path, mount, is_strict: input.byte()? == 1 })
    }
}

/// What a cell's guard answers when it was asked to look at everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Checked {
    /// Why the cell is not good for anything new.
    pub stale: Option<String>,
    /// What has to be found before every start from now on.
    pub checks: Vec<Check>,
    /// What sandboxed code could make, because it is not there, and may not.
    pub missing: Vec<PathBuf>,
}

impl Checked {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MessageWriter::default();
        out.text(OsStr::new(self.stale.as_deref().unwrap_or_default()));
        out.list(&self.checks, |out, check| check.encode(out));
        out.list(&self.missing, |out, path| out.text(path.as_os_str()));
        out.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut input = MessageReader(bytes);
        let stale = Some(input.text()?.to_string_lossy().into_owned()).filter(|why| !why.is_empty());
        Ok(Self { stale, checks: input.list(Check::decode)?, missing: input.list(MessageReader::path)? })
    }
}

/// Something that a sandbox held was taken away by a program outside of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    pub path: PathBuf,
    pub held: HoldMechanism,
    pub outcome: OrderOutcome,
}

/// How something was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldMechanism {
    Denied,
    ReadOnly,
    /// A directory on the way to something that is denied or read-only.
    Directory,
    /// A link on the way to it.
    Link,
    /// A place of the sandbox itself, such as its workspace.
    Root,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderOutcome {
    /// It is held again.
    Restored,
    /// There is nothing at the path now.
    Missing,
    /// What is there now is not held in this sandbox; the next command gets a new one.
    Open,
    /// Where nothing was, something is held now that a program in the sandbox could have made.
    Made,
}

impl Loss {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MessageWriter::default();
        out.text(self.path.as_os_str());
        out.byte(self.held as u8);
        out.byte(self.outcome as u8);
        out.0
    }

    pub fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut input = MessageReader(bytes);
        let path = input.path()?;
        let held = match input.byte()? {
            0 => HoldMechanism::Denied,
            1 => HoldMechanism::ReadOnly,
            2 => HoldMechanism::Directory,
            3 => HoldMechanism::Link,
            _ => HoldMechanism::Root,
        };
        let outcome = match input.byte()? {
            0 => OrderOutcome::Restored,
            1 => OrderOutcome::Missing,
            2 => OrderOutcome::Open,
            _ => OrderOutcome::Made,
        };
        Ok(Self { path, held, outcome })
    }
}

/// A program to start. Descriptors that come with it: the terminal, or output, errors and perhaps input.
#[derive(Debug)]
pub(crate) struct StartOrder {
    pub job: u64,
    pub terminal: bool,
    pub program: OsString,
    pub arg0: Option<OsString>,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    /// The port that a relay connects with, in the place of the program.
    pub connect: Option<u16>,
    /// What has to be in place.
    pub checks: Vec<Check>,
    /// A process with more rights has just looked for changes.
    pub was_checked: bool,
}

/// From a reaper or a cell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StageEvent {
    Started {
        job: u64,
        pid: u32,
    },
    Failed {
        job: u64,
        errno: i32,
    },
    /// The program ended; `alone` if nothing that it started is left.
    Exited {
        job: u64,
        exit: Exit,
        alone: bool,
    },
    /// Now nothing is left.
    Alone {
        job: u64,
    },
    /// What has to be in place is not, or may not be. Nothing was started.
    Doubtful {
        job: u64,
    },
    /// A cell is ready. Its number is the one that the machine knows it by.
    Ready {
        pid: u32,
        /// Which shares come with it.
        shares: u8,
    },
    /// A cell cannot be made: why.
    Refused {
        cause: CellFailure,
        reason: String,
    },
    /// A process is in the groups that were to be tried; whether they kept it from forking.
    Tried {
        held: bool,
    },
}

/// What stood in the way of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellFailure {
    /// The policy cannot be held.
    Policy,
    /// The control groups of its session cannot be entered.
    Groups,
    /// The users of a mount cannot be mapped.
    Users,
    /// The layer over the home cannot be mounted.
    Layer,
}

#[derive(Default)]
pub(crate) struct MessageWriter(pub Vec<u8>);

impl MessageWriter {
    pub(crate) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }
    pub(crate) fn number(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }
    pub(crate) fn text(&mut self, value: &OsStr) {
        self.number(value.len() as u64);
        self.0.extend_from_slice(value.as_bytes());
    }
    pub(crate) fn list<T>(&mut self, values: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.number(values.len() as u64);
        for value in values {
            write(self, value);
        }
    }
}

pub(crate) struct MessageReader<'a>(pub &'a [u8]);

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message between our own processes is garbled")
}

impl MessageReader<'_> {
    pub(crate) fn byte(&mut self) -> io::Result<u8> {
        let (first, rest) = self.0.split_first().ok_or_else(garbled)?;
        self.0 = rest;
        Ok(*first)
    }
    pub(crate) fn number(&mut self) -> io::Result<u64> {
        let (first, rest) = self.0.split_first_chunk().ok_or_else(garbled)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*first))
    }
    pub(crate) fn text(&mut self) -> io::Result<OsString> {
        let length = usize::try_from(self.number()?).map_err(|_| garbled())?;
        let (first, rest) = self.0.split_at_checked(length).ok_or_else(garbled)?;
        self.0 = rest;
        Ok(OsString::from_vec(first.to_vec()))
    }
    pub(crate) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> io::Result<T>) -> io::Result<Vec<T>> {
        let length = self.number()?;
        (0..length).map(|_| read(self)).collect()
    }
    pub(crate) fn path(&mut self) -> io::Result<PathBuf> {
        self.text().map(PathBuf::from)
    }
}

impl StageOrder {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MessageWriter::default();
        match self {
            Self::Cell(description) => {
                out.byte(0);
                out.0.extend_from_slice(description);
            }
            Self::Reaper { number } => {
                out.byte(1);
                out.number(*number);
            }
            Self::Fell { number } => {
                out.byte(2);
                out.number(*number);
            }
            Self::Worker { number } => {
                out.byte(3);
                out.number(*number);
            }
            Self::Trial { doors } => {
                out.byte(4);
                out.list(doors, |out, door| out.text(door.as_os_str()));
            }
        }
        out.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut input = MessageReader(bytes);
        Ok(match input.byte()? {
            0 => Self::Cell(input.0.to_vec()),
            1 => Self::Reaper { number: input.number()? },
            2 => Self::Fell { number: input.number()? },
            3 => Self::Worker { number: input.number()? },
            4 => Self::Trial { doors: input.list(MessageReader::path)? },
            _ => return Err(garbled()),
        })
    }
}

/// How far a cell is known to be as it should.
#[derive(Debug, Clone, Default)]
pub(crate) struct CellStanding {
    pub checks: std::sync::Arc<Vec<Check>>,
    pub was_checked: bool,
}

/// The bytes of a start, straight from what is to be launched.
pub(crate) fn encode_start(job: u64, terminal: bool, launch: &Launch, standing: &CellStanding) -> Vec<u8> {
    let mut out = MessageWriter::default();
    out.byte(0);
    out.number(job);
    out.byte(terminal.into());
    out.text(&launch.program);
    out.byte(launch.arg0.is_some().into());
    if let Some(arg0) = &launch.arg0 {
        out.text(arg0);
    }
    out.list(&launch.args, |out, arg| out.text(arg));
    out.list(&launch.env, |out, (name, value)| {
        out.text(name);
        out.text(value);
    });
    out.text(launch.cwd.as_os_str());
    out.number(launch.connect.map_or(0, u64::from));
    out.list(&standing.checks, |out, check| check.encode(out));
    out.byte(standing.was_checked.into());
    out.0
}

impl Task {
    pub(crate) fn signal(job: u64, signal: i32) -> Vec<u8> {
        let mut out = MessageWriter::default();
        out.byte(1);
        out.number(job);
        out.number(u64::from(signal.unsigned_abs()));
        out.0
    }

    pub(crate) fn kill(job: u64) -> Vec<u8> {
        let mut out = MessageWriter::default();
        out.byte(2);
        out.number(job);
        out.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut input = MessageReader(bytes);
        Ok(match input.byte()? {
            0 => Self::Start(StartOrder {
                job: input.number()?,
                terminal: input.byte()? != 0,
                program: input.text()?,
                arg0: if input.byte()? != 0 { Some(input.text()?) } else { None },
                args: input.list(MessageReader::text)?,
                env: input.list(|input| Ok((input.text()?, input.text()?)))?,
                cwd: input.path()?,
                connect: Some(u16::try_from(input.number()?).map_err(|_| garbled())?).filter(|port| *port != 0),
                checks: input.list(Check::decode)?,
                was_checked: input.byte()? == 1,
            }),
            1 => Self::Signal { job: input.number()?, signal: i32::try_from(input.number()?).map_err(|_| garbled())? },
            2 => Self::Kill { job: input.number()? },
            _ => return Err(garbled()),
        })
    }
}

impl StageEvent {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = MessageWriter::default();
        match self {
            Self::Started { job, pid } => {
                out.byte(0);
                out.number(*job);
                out.number(u64::from(*pid));
            }
            Self::Failed { job, errno } => {
                out.byte(1);
                out.number(*job);
                out.number(u64::from(errno.unsigned_abs()));
            }
            Self::Exited { job, exit, alone } => {
                out.byte(2);
                out.number(*job);
                let (kind, value) = match exit {
                    Exit::Code(code) => (0, *code),
                    Exit::Signal(signal) => (1, *signal),
                    Exit::Lost => (2, 0),
                };
                out.byte(kind);
                out.number(u64::from(value.unsigned_abs()));
                out.byte((*alone).into());
            }
            Self::Alone { job } => {
                out.byte(3);
                out.number(*job);
            }
            Self::Ready { pid, shares } => {
                out.byte(4);
                out.number(u64::from(*pid));
                out.byte(*shares);
            }
            Self::Refused { cause, reason } => {
                out.byte(5);
                out.byte(*cause as u8);
                out.text(OsStr::new(reason));
            }
            Self::Doubtful { job } => {
                out.byte(7);
                out.number(*job);
            }
            Self::Tried { held } => {
                out.byte(6);
                out.byte((*held).into());
            }
        }
        out.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Self> {
        let mut input = MessageReader(bytes);
        let number = |input: &mut MessageReader<'_>| i32::try_from(input.number()?).map_err(|_| garbled());
        Ok(match input.byte()? {
            0 => Self::Started { job: input.number()?, pid: u32::try_from(input.number()?).map_err(|_| garbled())? },
            1 => Self::Failed { job: input.number()?, errno: number(&mut input)? },
            2 => {
                let job = input.number()?;
                let (kind, value) = (input.byte()?, number(&mut input)?);
                let exit = match kind {
                    0 => Exit::Code(value),
                    1 => Exit::Signal(value),
                    _ => Exit::Lost,
                };
                Self::Exited { job, exit, alone: input.byte()? != 0 }
            }
            3 => Self::Alone { job: input.number()? },
            4 => Self::Ready { pid: u32::try_from(input.number()?).map_err(|_| garbled())?, shares: input.byte()? },
            5 => {
                let cause = match input.byte()? {
                    0 => CellFailure::Policy,
                    1 => CellFailure::Groups,
                    2 => CellFailure::Users,
                    _ => CellFailure::Layer,
                };
                Self::Refused { cause, reason: input.text()?.to_string_lossy().into_owned() }
            }
            6 => Self::Tried { held: input.byte()? == 1 },
            7 => Self::Doubtful { job: input.number()? },
            _ => return Err(garbled()),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn news_survive_the_way() {
        for news in [
            StageEvent::Started { job: 7, pid: 12 },
            StageEvent::Failed { job: 7, errno: 2 },
            StageEvent::Exited { job: 1, exit: Exit::Signal(9), alone: true },
            StageEvent::Exited { job: 1, exit: Exit::Code(255), alone: false },
            StageEvent::Alone { job: u64::MAX },
            StageEvent::Ready { pid: 3, shares: 5 },
            StageEvent::Refused { cause: CellFailure::Policy, reason: "no".into() },
            StageEvent::Refused { cause: CellFailure::Groups, reason: "no".into() },
            StageEvent::Refused { cause: CellFailure::Users, reason: "no".into() },
            StageEvent::Refused { cause: CellFailure::Layer, reason: "no".into() },
            StageEvent::Tried { held: true },
            StageEvent::Doubtful { job: 8 },
        ] {
            assert_eq!(StageEvent::decode(&news.encode()).unwrap(), news);
        }
        for order in [
            StageOrder::Cell(vec![1, 2, 3]),
            StageOrder::Reaper { number: 4 },
            StageOrder::Fell { number: 5 },
            StageOrder::Worker { number: 6 },
            StageOrder::Trial { doors: vec!["/x".into()] },
        ] {
            assert_eq!(StageOrder::decode(&order.encode()).unwrap(), order);
        }
    }

    #[test]
    fn what_a_guard_says_survives_the_way() {
        let checks = [Some(4), None].map(|mount| Check { path: "/w/\n".into(), mount, is_strict: mount.is_some() }).to_vec();
        for stale in [None, Some("moved".to_owned())] {
            let checked = Checked { stale, checks: checks.clone(), missing: vec!["/w/x".into()] };
            assert_eq!(Checked::decode(&checked.encode()).unwrap(), checked);
        }
        for held in [HoldMechanism::Denied, HoldMechanism::ReadOnly, HoldMechanism::Directory, HoldMechanism::Link, HoldMechanism::Root] {
            for outcome in [OrderOutcome::Restored, OrderOutcome::Missing, OrderOutcome::Open, OrderOutcome::Made] {
                let loss = Loss { path: "/w".into(), held, outcome };
                assert_eq!(Loss::decode(&loss.encode()).unwrap(), loss);
            }
        }
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_no_more(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = StageEvent::decode(&bytes);
            let _ = StageOrder::decode(&bytes);
            let _ = Task::decode(&bytes);
            let _ = Checked::decode(&bytes);
            let _ = Loss::decode(&bytes);
        }
    }
}
