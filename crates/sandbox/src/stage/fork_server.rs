//! A process that forks others on request and cleans up after them: the zygote (forks cells) or a cell (forks reapers).

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid};

use super::confine::{GuardSockets, Quiet, Settled};
use super::kin::{self, Left};
use super::{Worker, confine, reaper};
use crate::cgroup::{CgroupTree, Kernel, TRIAL_MEMORY};
use crate::channel::{Channel, ChannelMessage};
use crate::message::{CellFailure, StageEvent, StageOrder};
use crate::plan::{CellPlan, Rlimit};
use crate::shares::Shares;
use crate::sys::{self, Fork, SignalReader};

/// How long the processes that we forked may take to clean up once we are to go.
const LAST_WAIT: Duration = Duration::from_secs(2);
/// How often is looked for what has to be killed while there is something.
const PASS: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Zygote,
    Cell,
}

struct Hub {
    role: Role,
    control: Channel,
    signals: SignalReader,
    /// Whom we forked. Every other child is what one of them left behind.
    known: HashMap<Pid, u64>,
    worker: Worker,
    /// Whether what a cell holds may have changed.
    quiet: Quiet,
}

/// Serves until the other end of the socket is gone, and then until no child is left.
pub(super) fn run(control: Channel, role: Role, worker: Worker, quiet: Quiet) -> io::Result<()> {
    set_child_subreaper(Some(getpid()))?;
    let mut hub = Hub { role, control, signals: SignalReader::listen()?, known: HashMap::new(), worker, quiet };
    while hub.wait(None)? == Next::More {}
    hub.wind_down()
}

/// Makes this process the cell that it is meant to be.
fn settle(description: &[u8], shared: Vec<OwnedFd>, ends: Option<GuardSockets>) -> Result<Settled, (CellFailure, String)> {
    let policy = |reason: String| (CellFailure::Policy, reason);
    let plan = CellPlan::decode(description).map_err(|error| policy(error.to_string()))?;
    enter(&plan.cgroups).map_err(|reason| (CellFailure::Groups, reason))?;
    // Processes are counted per user: a sandbox has its own user, or its own count, only once it is confined.
    let (late, early): (Vec<_>, Vec<_>) = plan.rlimits.iter().partition(|limit| limit.resource == sys::rlimit::NPROC);
    set_limits(&early).map_err(policy)?;
    let shared = Shares::new(plan.shares, shared);
    let settled = match (&plan.confinement, ends) {
        (Some(confinement), Some(ends)) => {
            confine::confine(confinement, shared, ends).map_err(|refused| (refused.cause(), refused.into()))?
        }
        (Some(_), None) => return Err(policy("a message between our own processes is garbled".into())),
        (None, _) => Settled { shares: Shares::default(), quiet: Quiet::Always },
    };
    set_limits(&late).map_err(policy)?;
    Ok(settled)
}

/// Moves this process into control groups.
fn enter(doors: &[PathBuf]) -> Result<(), String> {
    for door in doors {
        Kernel.write(door, "0").map_err(|error| format!("{}: {error}", door.display()))?;
    }
    Ok(())
}

/// Finds out whether control groups hold the processes in them. Ends with its socket.
fn try_groups(socket: &Channel, doors: &[PathBuf]) -> io::Result<()> {
    if let Err(reason) = enter(doors) {
        return socket.send(&StageEvent::Refused { cause: CellFailure::Groups, reason }.encode(), &[]);
    }
    // Counted where it was first touched.
    let used = std::hint::black_box(vec![1_u8; TRIAL_MEMORY]);
    let held = match sys::fork() {
        Ok(Fork::Child) => sys::exit(0),
        Ok(Fork::Parent(child)) => {
            let _ = waitpid(Some(child), WaitOptions::empty());
            false
        }
        Err(_) => true,
    };
    socket.send(&StageEvent::Tried { held }.encode(), &[])?;
    let end = socket.receive();
    drop(used);
    end.map(drop)
}

/// The executor that waits for a process to be forked is told why none was; a limit may have been reached.
fn fork_failed(socket: &Channel, error: &io::Error) {
    let errno = error.raw_os_error().unwrap_or(libc::EAGAIN);
    let _ = socket.send(&StageEvent::Failed { job: 0, errno }.encode(), &[]);
}

fn not_forked(error: &io::Error) -> Vec<u8> {
    StageEvent::Refused { cause: CellFailure::Policy, reason: format!("it cannot be forked: {error}") }.encode()
}

fn set_limits(limits: &[&Rlimit]) -> Result<(), String> {
    for limit in limits {
        sys::set_rlimit(limit.resource, limit.value).map_err(|error| format!("limit {}: {error}", limit.resource))?;
    }
    Ok(())
}

#[derive(PartialEq, Eq)]
enum Next {
    More,
    End,
}

impl Hub {
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<Next> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = [PollFd::new(&self.control, PollFlags::IN), PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN)];
        if poll(&mut events, timeout.as_ref()).is_err() {
            return Ok(Next::More);
        }
        let (asked, signalled) = (!events[0].revents().is_empty(), !events[1].revents().is_empty());
        if signalled {
            if self.signals.take() {
                return Ok(Next::End);
            }
            self.clean_up();
        }
        if asked {
            return match self.control.receive() {
                Ok(Some(message)) => self.obey(message),
                Ok(None) | Err(_) => Ok(Next::End),
            };
        }
        Ok(Next::More)
    }

    /// Takes the dead and kills what they left behind.
    fn clean_up(&mut self) -> Left {
        let known = &mut self.known;
        let left = kin::reap(|pid, _| {
            known.remove(&pid);
        });
        kin::kill_all(|pid| known.contains_key(&pid));
        left
    }

    fn obey(&mut self, message: ChannelMessage) -> io::Result<Next> {
        let order = StageOrder::decode(&message.bytes)?;
        let mut descriptors = message.descriptors.into_iter();
        let socket = descriptors.next().map(Channel::from_descriptor);
        match (order, socket) {
            (StageOrder::Fell { number }, _) => {
                for (pid, _) in self.known.iter().filter(|(_, known)| **known == number) {
                    let _ = kill_process(*pid, Signal::KILL);
                }
            }
            (StageOrder::Reaper { number }, Some(socket)) => match sys::fork() {
                Ok(Fork::Parent(pid)) => {
                    self.known.insert(pid, number);
                }
                Ok(Fork::Child) => self.become_reaper(&socket),
                Err(error) => fork_failed(&socket, &error),
            },
            (StageOrder::Worker { number }, Some(socket)) => match sys::fork() {
                Ok(Fork::Parent(pid)) => {
                    self.known.insert(pid, number);
                }
                Ok(Fork::Child) => self.become_worker(socket),
                Err(error) => fork_failed(&socket, &error),
            },
            (StageOrder::Cell(description), Some(socket)) if self.role == Role::Zygote => match sys::fork() {
                Ok(Fork::Parent(pid)) => {
                    self.known.insert(pid, 0);
                }
                Ok(Fork::Child) => {
                    let ends = descriptors.next().zip(descriptors.next()).map(|(requests, reports)| GuardSockets {
                        requests: Channel::from_descriptor(requests),
                        reports: Channel::from_descriptor(reports),
                    });
                    self.become_cell(socket, &description, descriptors.collect(), ends)
                }
                Err(error) => drop(socket.send(&not_forked(&error), &[])),
            },
            (StageOrder::Trial { doors }, Some(socket)) if self.role == Role::Zygote => match sys::fork() {
                Ok(Fork::Parent(pid)) => {
                    self.known.insert(pid, 0);
                }
                Ok(Fork::Child) => {
                    self.let_go();
                    let done = sys::hear_of_parents_end().and_then(|()| try_groups(&socket, &doors));
                    sys::exit(done.is_err().into())
                }
                Err(error) => drop(socket.send(&not_forked(&error), &[])),
            },
            (StageOrder::Reaper { .. } | StageOrder::Worker { .. } | StageOrder::Cell(_) | StageOrder::Trial { .. }, _) => {}
        }
        Ok(Next::More)
    }

    fn become_reaper(&mut self, socket: &Channel) -> ! {
        self.let_go();
        let _ = rustix::thread::set_name(c"outpost-reaper");
        let done = sys::hear_of_parents_end().and_then(|()| reaper::run(socket, &self.quiet));
        sys::exit(done.is_err().into())
    }

    /// Ends with its socket, and with us.
    fn become_worker(&mut self, socket: Channel) -> ! {
        self.let_go();
        let _ = rustix::thread::set_name(c"outpost-worker");
        let pid = getpid().as_raw_nonzero().get().unsigned_abs();
        if sys::hear_of_parents_end().and_then(|()| socket.send(&StageEvent::Started { job: 0, pid }.encode(), &[])).is_ok() {
            (self.worker)(socket, &self.quiet);
        }
        sys::exit(0)
    }

    fn become_cell(&mut self, socket: Channel, description: &[u8], shared: Vec<OwnedFd>, ends: Option<GuardSockets>) -> ! {
        self.let_go();
        let _ = rustix::thread::set_name(c"outpost-cell");
        // Told by this name, because inside it may get another one.
        let pid = getpid().as_raw_nonzero().get().unsigned_abs();
        let settled = sys::hear_of_parents_end()
            .map_err(|error| (CellFailure::Policy, error.to_string()))
            .and_then(|()| settle(description, shared, ends));
        let done = match settled {
            Ok(Settled { shares, quiet }) => {
                let sent = socket.send(&StageEvent::Ready { pid, shares: shares.kinds() }.encode(), &shares.descriptors());
                drop(shares);
                sent.and_then(|()| run(socket, Role::Cell, self.worker, quiet))
            }
            Err((cause, reason)) => socket.send(&StageEvent::Refused { cause, reason }.encode(), &[]),
        };
        sys::exit(done.is_err().into())
    }

    /// In a forked child: nothing of the parent may be held, or its end would not be noticed.
    fn let_go(&mut self) {
        if let Ok((nothing, _)) = crate::channel::pair() {
            self.control = nothing;
        }
        self.known.clear();
    }

    /// Those that we forked see the same end as we do and clean up themselves; what they do not manage is done here.
    fn wind_down(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + LAST_WAIT;
        loop {
            if self.clean_up() == Left::None {
                return Ok(());
            }
            if Instant::now() >= deadline {
                self.known.clear();
                if Instant::now() >= deadline + LAST_WAIT {
                    return Ok(());
                }
            }
            let pass = Timespec::try_from(PASS).ok();
            let _ = poll(&mut [PollFd::from_borrowed_fd(self.signals.descriptor().as_fd(), PollFlags::IN)], pass.as_ref());
            self.signals.take();
        }
    }
}
