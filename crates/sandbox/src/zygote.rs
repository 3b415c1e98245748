//! The executor's end of the zygote: started when it is first needed, and again if it was killed.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Resource, Rlimit, geteuid, getrlimit, prlimit};

use crate::cell::wait_for_news;
use crate::cgroup::{CgroupHost, Hierarchies, Kernel, Probing};
use crate::channel::{self, Channel};
use crate::message::{StageEvent, StageOrder};
use crate::stage;
use crate::tried::Tried;

/// The running program, whatever became of its file.
const OWN: &str = "/proc/self/exe";
const ADVICE: &str = "call outpost_sandbox::stage::run_if_asked first thing in its main";
/// Seconds in which a stage must have said that it is one.
const PATIENCE: i64 = 20;
/// Where systemd keeps the program that puts others into units.
const SYSTEMD_RUN: [&str; 2] = ["/usr/bin/systemd-run", "/bin/systemd-run"];

#[derive(Debug)]
pub(crate) struct Zygote {
    /// A program that calls [`stage::run_if_asked`] first thing.
    program: PathBuf,
    /// For it and everything that comes of it.
    open_files: Option<u64>,
    /// Whether control groups are needed, so that systemd is asked for one.
    wants_groups: bool,
    running: Mutex<Option<Running>>,
    /// How many cells came of it that are still there.
    uses: Arc<AtomicUsize>,
}

/// As long as this is there, the zygote does not rest.
#[derive(Debug)]
pub(crate) struct ZygoteInUse(Arc<AtomicUsize>);

impl ZygoteInUse {
    fn new(uses: &Arc<AtomicUsize>) -> Self {
        uses.fetch_add(1, Ordering::AcqRel);
        Self(uses.clone())
    }
}

impl Drop for ZygoteInUse {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Our ends of the sockets of a cell.
#[derive(Debug)]
pub(crate) struct CellEnds {
    pub control: Channel,
    /// Asks its guard, who answers.
    pub requests: Channel,
    pub zygote: ZygoteInUse,
}

#[derive(Debug)]
struct Running {
    control: Channel,
    process: Child,
    unit: Unit,
}

/// Where it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Unit {
    /// Where we run ourselves.
    Same,
    /// In one that systemd made for us.
    Own,
    /// Where we run ourselves, because systemd made none: why.
    Refused(String),
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only takes the status of one that is gone; one that still runs goes with its socket.
        let _ = self.process.try_wait();
    }
}

impl Zygote {
    pub(crate) fn new(program: PathBuf, wants_groups: bool, open_files: Option<u64>) -> Self {
        Self { program, open_files, wants_groups, running: Mutex::default(), uses: Arc::default() }
    }

    /// It does nothing before it gets its first order, so this holds for everything that comes of it.
    fn limit(&self, process: &Child) -> io::Result<()> {
        let (Some(open_files), Some(pid)) = (self.open_files, Pid::from_raw(process.id().cast_signed())) else { return Ok(()) };
        let maximum = getrlimit(Resource::Nofile).maximum;
        // The limit of this process may have been lowered since.
        let current = maximum.map_or(open_files, |most| open_files.min(most));
        prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(current), maximum })?;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forks a cell; returns our ends of its sockets, and of the one for what its guard tells. `shared` is what earlier cells of
    /// the same session sent.
    pub(crate) fn cell(&self, description: &[u8], shared: &[BorrowedFd<'_>]) -> io::Result<(CellEnds, Channel)> {
        let zygote = ZygoteInUse::new(&self.uses);
        let ((requests, asked), (reports, told)) = (channel::pair()?, channel::pair()?);
        // A report that does not fit is left out: the guard of the sandbox must not wait.
        rustix::io::ioctl_fionbio(&told, true)?;
        let more: Vec<_> = [asked.as_fd(), told.as_fd()].into_iter().chain(shared.iter().copied()).collect();
        let control = self.ask(&StageOrder::Cell(description.to_vec()), &more)?;
        Ok((CellEnds { control, requests, zygote }, reports))
    }

    fn ask(&self, order: &StageOrder, more: &[BorrowedFd<'_>]) -> io::Result<Channel> {
        let order = order.encode();
        let mut running = self.lock();
        let (ours, theirs) = channel::pair()?;
        let descriptors: Vec<_> = std::iter::once(theirs.as_fd()).chain(more.iter().copied()).collect();
        if let Some(zygote) = running.as_ref()
            && zygote.control.send(&order, &descriptors).is_ok()
        {
            return Ok(ours);
        }
        let zygote = running.insert(self.start()?);
        zygote.control.send(&order, &descriptors)?;
        Ok(ours)
    }

    /// Ends it until it is needed again; the group of a unit of its own would go with it, so that it stays there. False if cells of it
    /// are left.
    pub(crate) fn rest(&self) -> bool {
        let mut running = self.lock();
        let in_use = self.uses.load(Ordering::Acquire) > 0;
        if let Some(mut zygote) = running.take_if(|zygote| zygote.unit == Unit::Same && !in_use) {
            let _ = shutdown(&zygote.control, Shutdown::Both);
            tokio::task::spawn_blocking(move || zygote.process.wait());
        }
        !in_use
    }

    /// Where cells can be put into control groups, found out by doing it.
    pub(crate) fn find_groups(&self, tried: &Tried) -> Hierarchies {
        if !self.wants_groups {
            return Hierarchies::none("no limit needs one");
        }
        // Our own group is one of them, and may change below.
        tried.remember();
        match self.surroundings() {
            Err(why) => Hierarchies::none(format!("nothing can be tried: {why}")),
            Ok((_, Unit::Refused(why))) => Hierarchies::none(why),
            Ok((surroundings, unit)) => {
                let surroundings = CgroupHost { is_granted: unit == Unit::Own, ..surroundings };
                let known = |group: &str| tried.has_group(group);
                let probing = Probing { trial: &|doors, look| self.trial(doors, look), known: &known };
                let found = Hierarchies::probe(Arc::new(Kernel), &surroundings, &probing);
                tried.keep_groups(found.tried());
                found
            }
        }
    }

    /// What is around it, once it runs.
    fn surroundings(&self) -> io::Result<(CgroupHost, Unit)> {
        let mut running = self.lock();
        let is_there = running.as_mut().is_some_and(|zygote| matches!(zygote.process.try_wait(), Ok(None)));
        if !is_there {
            *running = Some(self.start()?);
        }
        let zygote = running.as_ref().ok_or(io::ErrorKind::NotFound)?;
        Ok((CgroupHost::of(zygote.process.id())?, zygote.unit.clone()))
    }

    /// Lets a process enter groups; `look` is called while it is inside. True if it was kept from forking.
    fn trial(&self, doors: &[PathBuf], look: &mut dyn FnMut()) -> Result<bool, String> {
        let _in_use = ZygoteInUse::new(&self.uses);
        let asked = self.ask(&StageOrder::Trial { doors: doors.to_vec() }, &[]).map_err(|error| error.to_string())?;
        match wait_for_news(asked.as_fd()) {
            Ok(Some(StageEvent::Tried { held })) => {
                look();
                Ok(held)
            }
            Ok(Some(StageEvent::Refused { reason, .. })) => Err(reason),
            Ok(_) => Err("the process that tried it ended".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn start(&self) -> io::Result<Running> {
        // Its `main` would do everything once more, and so on.
        if self.program == Path::new(OWN) && !stage::is_offered() {
            return Err(io::Error::other(format!("this program is not a stage for its own sandboxes: {ADVICE}")));
        }
        let needs_unit = self.wants_groups && CgroupHost::of(std::process::id()).is_ok_and(|own| own.needs_unit(&Kernel));
        if !needs_unit {
            return self.start_here();
        }
        match self.start_in_unit() {
            Ok(running) => Ok(running),
            Err(why) => {
                let mut running = self.start_here()?;
                running.unit = Unit::Refused(format!("this is not a unit with Delegate=yes, and systemd made none for us ({why})"));
                Ok(running)
            }
        }
    }

    fn start_here(&self) -> io::Result<Running> {
        let (control, theirs) = channel::pair()?;
        let process = Command::new(&self.program)
            .arg(stage::ZYGOTE)
            .env_clear()
            .current_dir("/")
            .stdin(theirs.into_descriptor())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        self.limit(&process)?;
        let mut running = Running { control, process, unit: Unit::Same };
        if !running.has_proved() {
            // Whatever it is, it was not meant to run.
            let _ = running.process.kill();
            let _ = running.process.wait();
            return Err(io::Error::other(format!("{} is not a stage: {ADVICE}", self.program.display())));
        }
        Ok(running)
    }

    /// In a scope of its own that systemd leaves to us: groups that systemd does not know of may only be made in one.
    fn start_in_unit(&self) -> Result<Running, String> {
        let tool = SYSTEMD_RUN.into_iter().find(|path| Path::new(path).exists()).ok_or("there is no systemd-run")?;
        let program = match std::fs::read_link(&self.program) {
            // By that name it would be another program there.
            Ok(target) if self.program.starts_with("/proc/self") => target,
            _ => self.program.clone(),
        };
        if !program.exists() {
            return Err(format!("{} was replaced", program.display()));
        }
        let (control, theirs) = channel::pair().map_err(|error| error.to_string())?;
        let mut command = Command::new(tool);
        command.env_clear().current_dir("/").stdin(theirs.into_descriptor()).stdout(Stdio::null()).stderr(Stdio::piped());
        if !geteuid().is_root() {
            let runtime = format!("/run/user/{}", geteuid().as_raw());
            if !Path::new(&runtime).is_dir() {
                return Err(format!("there is no {runtime}: no systemd runs for this user"));
            }
            command.arg("--user").env("XDG_RUNTIME_DIR", runtime);
        }
        command.args(["--scope", "--quiet", "--collect", "--property=Delegate=yes", "--description=Commands of Outpost", "--"]);
        let mut process = command.arg(program).arg(stage::ZYGOTE).spawn().map_err(|error| format!("{tool}: {error}"))?;
        self.limit(&process).map_err(|error| error.to_string())?;
        let complaints = process.stderr.take();
        let running = Running { control, process, unit: Unit::Own };
        // It is there once it answers.
        let (ours, theirs) = channel::pair().map_err(|error| error.to_string())?;
        let sent = running.control.send(&StageOrder::Trial { doors: Vec::new() }.encode(), &[theirs.as_fd()]);
        drop(theirs);
        match sent.and_then(|()| wait_for_news(ours.as_fd())) {
            Ok(Some(StageEvent::Tried { .. })) if running.has_proved() => Ok(running),
            Ok(_) => {
                let mut said = String::new();
                let _ = complaints.map(|mut complaints| complaints.read_to_string(&mut said));
                Err(format!("{tool}: {}", said.trim()))
            }
            Err(error) => {
                let mut running = running;
                let _ = running.process.kill();
                Err(format!("{tool}: {error}"))
            }
        }
    }
}

impl Running {
    /// Waits until it says that it is a stage.
    fn has_proved(&self) -> bool {
        let mut said = [PollFd::new(&self.control, PollFlags::IN)];
        let patience = Timespec { tv_sec: PATIENCE, tv_nsec: 0 };
        let is_there = loop {
            match poll(&mut said, Some(&patience)) {
                Err(Errno::INTR) => {}
                other => break other.is_ok_and(|count| count > 0),
            }
        };
        is_there && matches!(self.control.receive(), Ok(Some(message)) if message.bytes == stage::HELLO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_started_that_is_no_stage() {
        // The program of this test has a `main` of its own.
        let refused = |program: &str| Zygote::new(program.into(), false, None).start().err().unwrap().to_string();
        let own = refused(OWN);
        assert!(own.contains("stage::run_if_asked") && own.contains("main"), "{own}");
        let children = std::fs::read_to_string(format!("/proc/self/task/{}/children", rustix::thread::gettid().as_raw_nonzero())).unwrap();
        assert_eq!(children, "");
        let other = refused("/bin/true");
        assert!(other.contains("/bin/true is not a stage") && other.contains("stage::run_if_asked"), "{other}");
    }
}
