//! A relay: connects the streams of a child with a port of the loopback that programs of the same sandbox have.
//!
//! It is forked and runs no program, so nothing has to be found inside the sandbox. What its output cannot say is said on its
//! errors, one line each: `end COUNT` when the other side sends no more after so many bytes, `lost REASON` when the connection broke.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, write};
use rustix::process::{Pid, setpgid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stderr, stdin, stdout};

use crate::sys::{self, Fork, SignalReader};

/// A loopback answers at once, unless the program that listens does not take connections.
const PATIENCE: Duration = Duration::from_secs(10);
const BUFFER: usize = 64 << 10;

/// Connects, and forks the process that relays. The descriptors: output, errors and input.
pub(super) fn spawn(port: u16, descriptors: Vec<OwnedFd>) -> io::Result<Pid> {
    let [output, errors, input] = <[OwnedFd; 3]>::try_from(descriptors).map_err(|_| Errno::BADF)?;
    let connection = connect(port)?;
    match sys::fork()? {
        Fork::Parent(pid) => {
            // Here and there: whichever comes first, a signal to the group finds it.
            let _ = setpgid(Some(pid), Some(pid));
            Ok(pid)
        }
        Fork::Child => {
            let done = settle(&output, &errors, &input, connection).and_then(|connection| relay(&connection));
            sys::exit(i32::from(done.is_err()))
        }
    }
}

/// Servers for development often listen on one of the two addresses only.
fn connect(port: u16) -> io::Result<TcpStream> {
    let to = |address: IpAddr| TcpStream::connect_timeout(&SocketAddr::new(address, port), PATIENCE);
    match to(Ipv4Addr::LOCALHOST.into()) {
        Ok(connection) => Ok(connection),
        Err(refused) if refused.raw_os_error() == Some(libc::ECONNREFUSED) => to(Ipv6Addr::LOCALHOST.into()).map_err(|_| refused),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(Errno::TIMEDOUT.into()),
        Err(error) => Err(error),
    }
}

/// Holds the three streams and the connection, and nothing of the reaper: its end would not be noticed otherwise.
fn settle(output: &OwnedFd, errors: &OwnedFd, input: &OwnedFd, connection: TcpStream) -> io::Result<TcpStream> {
    let _ = setpgid(None, None);
    let _ = rustix::thread::set_name(c"outpost-relay");
    SignalReader::usual_ends();
    dup2_stdin(input)?;
    dup2_stdout(output)?;
    dup2_stderr(errors)?;
    sys::close_all_but(connection.as_fd())?;
    connection.set_nodelay(true)?;
    for stream in [stdin(), stdout(), connection.as_fd()] {
        fcntl_setfl(stream, fcntl_getfl(stream)? | OFlags::NONBLOCK)?;
    }
    Ok(connection)
}

/// One direction.
struct Flow<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    buffer: Vec<u8>,
    /// What of the buffer is not written yet.
    waiting: std::ops::Range<usize>,
    passed: u64,
    is_over: bool,
}

/// What a step of a flow came to.
enum Step {
    Goes,
    /// The last byte is through.
    Ended,
    /// The side that it goes to takes no more.
    Unwanted,
}

impl<'a> Flow<'a> {
    fn new(from: BorrowedFd<'a>, to: BorrowedFd<'a>) -> Self {
        Self { from, to, buffer: vec![0; BUFFER], waiting: 0..0, passed: 0, is_over: false }
    }

    /// What has to happen before it can go on.
    fn awaited(&self) -> Option<PollFd<'a>> {
        match (self.is_over, self.waiting.is_empty()) {
            (true, _) => None,
            (false, true) => Some(PollFd::from_borrowed_fd(self.from, PollFlags::IN)),
            (false, false) => Some(PollFd::from_borrowed_fd(self.to, PollFlags::OUT)),
        }
    }

    fn step(&mut self) -> io::Result<Step> {
        if self.waiting.is_empty() {
            match read(self.from, &mut self.buffer[..]) {
                Ok(0) => {
                    self.is_over = true;
                    return Ok(Step::Ended);
                }
                Ok(count) => self.waiting = 0..count,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Step::Goes),
                Err(error) => return Err(error.into()),
            }
        }
        match write(self.to, &self.buffer[self.waiting.clone()]) {
            Ok(count) => {
                self.waiting.start += count;
                self.passed += count as u64;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::PIPE) => {
                self.is_over = true;
                return Ok(Step::Unwanted);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(Step::Goes)
    }
}

/// Until both directions are over.
fn relay(connection: &TcpStream) -> io::Result<()> {
    let mut there = Flow::new(stdin(), connection.as_fd());
    let mut back = Flow::new(connection.as_fd(), stdout());
    while !(there.is_over && back.is_over) {
        let mut awaited: Vec<PollFd<'_>> = there.awaited().into_iter().chain(back.awaited()).collect();
        match poll(&mut awaited, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let stepped = if there.is_over { Ok(Step::Goes) } else { there.step() };
        match stepped {
            Ok(Step::Goes | Step::Unwanted) => {}
            Ok(Step::Ended) => drop(connection.shutdown(Shutdown::Write)),
            Err(error) => return lost(error),
        }
        let stepped = if back.is_over { Ok(Step::Goes) } else { back.step() };
        match stepped {
            Ok(Step::Goes) => {}
            Ok(Step::Ended) => say(&format!("end {}\n", back.passed)),
            // The client is gone.
            Ok(Step::Unwanted) => return Ok(()),
            Err(error) => return lost(error),
        }
    }
    Ok(())
}

fn lost(error: io::Error) -> io::Result<()> {
    say(&format!("lost {error}\n"));
    Err(error)
}

fn say(line: &str) {
    // There is no other place where a failure could be told.
    let _ = write(stderr(), line.as_bytes());
}
