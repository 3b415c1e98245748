//! A reaper: starts one program at a time, and is the parent that everything started by it falls back to.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitStatus, getpid, kill_process_group, set_child_subreaper};

use super::confine::{Quiet, mount_at};
use super::kin::{self, Left};
use super::relay;
use crate::channel::Channel;
use crate::child::Exit;
use crate::message::{StageEvent, StartOrder, Task};
use crate::program;
use crate::sys::{self, SignalReader};

/// How often is looked for what has to be killed while there is something.
const PASS: Duration = Duration::from_millis(5);
/// How long a process that cannot be killed is waited for once we are to go.
const LAST_WAIT: Duration = Duration::from_secs(10);

struct Reaper<'a> {
    socket: &'a Channel,
    signals: SignalReader,
    job: Option<Job>,
    /// Everything has to go.
    killing: bool,
    quiet: &'a Quiet,
}

struct Job {
    number: u64,
    leader: Pid,
    /// Whether its end was told; its number may then belong to another process.
    exited: bool,
}

pub(super) fn run(socket: &Channel, quiet: &Quiet) -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    let mut reaper = Reaper { socket, signals: SignalReader::listen()?, job: None, killing: false, quiet };
    while reaper.wait()? {}
    reaper.wind_down();
    Ok(())
}

impl Reaper<'_> {
    /// False when it is time to go.
    fn wait(&mut self) -> io::Result<bool> {
        let timeout = if self.killing { Timespec::try_from(PASS).ok() } else { None };
        let mut events = [PollFd::new(self.socket, PollFlags::IN), PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN)];
        if poll(&mut events, timeout.as_ref()).is_err() {
            return Ok(true);
        }
        let (asked, signalled) = (!events[0].revents().is_empty(), !events[1].revents().is_empty());
        if signalled && self.signals.take() {
            return Ok(false);
        }
        if signalled || self.killing {
            self.look_after()?;
        }
        if !asked {
            return Ok(true);
        }
        match self.socket.receive() {
            Ok(Some(message)) => self.obey(Task::decode(&message.bytes)?, message.descriptors).map(|()| true),
            Ok(None) | Err(_) => Ok(false),
        }
    }

    fn obey(&mut self, task: Task, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        match task {
            Task::Start(start) => self.start(start, descriptors),
            Task::Signal { job, signal } => {
                if let Some(current) = self.job.as_ref().filter(|current| current.number == job && !current.exited)
                    && let Some(signal) = Signal::from_named_raw(signal)
                {
                    // The group may be empty by now.
                    let _ = kill_process_group(current.leader, signal);
                }
                Ok(())
            }
            Task::Kill { job } => {
                if self.job.as_ref().is_some_and(|current| current.number == job) {
                    self.killing = true;
                    self.look_after()?;
                }
                Ok(())
            }
        }
    }

    fn start(&mut self, start: StartOrder, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let job = start.job;
        if self.job.is_some() {
            return self.tell(&StageEvent::Failed { job, errno: Errno::BUSY.raw_os_error() });
        }
        if !self.is_in_place(&start) {
            return self.tell(&StageEvent::Doubtful { job });
        }
        let spawned = self.signals.unblocked(|| spawn(start, descriptors))?;
        match spawned {
            Ok(leader) => {
                self.job = Some(Job { number: job, leader, exited: false });
                self.tell(&StageEvent::Started { job, pid: leader.as_raw_nonzero().get().unsigned_abs() })?;
                // It may have ended while its signal was not blocked.
                self.look_after()
            }
            Err(error) => self.tell(&StageEvent::Failed { job, errno: error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()) }),
        }
    }

    /// Whether everything that the sandbox holds is where it was put: one system call for each, and one for changes that are not
    /// dealt with yet.
    fn is_in_place(&self, start: &StartOrder) -> bool {
        let holds = start.checks.iter().all(|check| match mount_at(&check.path) {
            Ok(found) => found == check.mount,
            // Where the sandbox's user does not get to, its programs do not either, unless they can open the way again.
            Err(Errno::ACCESS) => !check.is_strict || start.was_checked,
            Err(_) => start.was_checked,
        });
        holds && (start.was_checked || self.quiet.is_quiet())
    }

    /// Takes the dead, tells of the program's end, and kills what has to go.
    fn look_after(&mut self) -> io::Result<()> {
        if self.killing {
            kin::kill_all(|_| false);
        }
        let mut ended = None;
        let leader = self.job.as_ref().filter(|job| !job.exited).map(|job| job.leader);
        let left = kin::reap(|pid, status| {
            if Some(pid) == leader {
                ended = Some(exit(status));
            }
        });
        let Some(job) = &mut self.job else {
            self.killing &= left == Left::Some;
            return Ok(());
        };
        let (number, alone) = (job.number, left == Left::None);
        let news = match ended {
            Some(exit) => StageEvent::Exited { job: number, exit, alone },
            None if alone && job.exited => StageEvent::Alone { job: number },
            // Another process took the status.
            None if alone => StageEvent::Exited { job: number, exit: Exit::Lost, alone },
            None => return Ok(()),
        };
        job.exited = true;
        if alone {
            self.job = None;
            self.killing = false;
        }
        self.tell(&news)
    }

    fn tell(&self, news: &StageEvent) -> io::Result<()> {
        self.socket.send(&news.encode(), &[])
    }

    /// Kills everything; those that still listen are told.
    fn wind_down(&mut self) {
        let deadline = Instant::now() + LAST_WAIT;
        while Instant::now() < deadline {
            self.killing = true;
            let _ = self.look_after();
            if kin::children().is_ok_and(|children| children.is_empty()) {
                return;
            }
            let pass = Timespec::try_from(PASS).ok();
            let _ = poll(&mut [PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN)], pass.as_ref());
            self.signals.take();
        }
    }
}

fn exit(status: WaitStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Lost,
    }
}

fn spawn(start: StartOrder, descriptors: Vec<OwnedFd>) -> io::Result<Pid> {
    if let Some(port) = start.connect {
        return relay::spawn(port, descriptors);
    }
    let path = start.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let program = program::find(&start.program, path, &start.cwd)?;
    let mut command = Command::new(program);
    let arg0: &OsStr = start.arg0.as_ref().unwrap_or(&start.program);
    command.arg0(arg0).args(&start.args).env_clear().envs(start.env.iter().map(|(name, value)| (name, value))).current_dir(&start.cwd);
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().map(Stdio::from);
    if start.terminal {
        let terminal = descriptors.next().ok_or(Errno::BADF)?;
        command.stdout(terminal.try_clone()?).stderr(terminal.try_clone()?).stdin(terminal);
        sys::take_terminal(&mut command);
    } else {
        command.process_group(0);
        command.stdout(next().ok_or(Errno::BADF)?).stderr(next().ok_or(Errno::BADF)?);
        command.stdin(next().unwrap_or_else(Stdio::null));
    }
    let child = command.spawn()?;
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| Errno::SRCH.into())
}
