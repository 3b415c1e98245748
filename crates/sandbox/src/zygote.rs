//! The executor's end of the zygote: started when it is first needed, and again if somebody killed it.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::geteuid;

use crate::cell::wait_for_news;
use crate::cgroup::{Hierarchies, Kernel, Surroundings};
use crate::channel::{self, Channel};
use crate::message::{News, Order};
use crate::stage;

/// Where systemd keeps the program that puts others into units.
const SYSTEMD_RUN: [&str; 2] = ["/usr/bin/systemd-run", "/bin/systemd-run"];

#[derive(Debug)]
pub struct Zygote {
    /// A program that calls [`stage::run_if_asked`] first thing.
    program: PathBuf,
    /// Whether control groups are needed, so that systemd is asked for one.
    wants_groups: bool,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    control: Channel,
    process: Child,
    /// Why systemd gave us no unit, if it was asked.
    refusal: Option<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only takes the status of one that is gone; one that still runs goes with its socket.
        let _ = self.process.try_wait();
    }
}

impl Zygote {
    pub fn new(program: PathBuf, wants_groups: bool) -> Self {
        Self { program, wants_groups, running: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forks a cell; returns our end of its socket. `network` is what an earlier cell of the same session sent.
    pub fn cell(&self, description: &[u8], network: &[OwnedFd]) -> io::Result<Channel> {
        self.ask(&Order::Cell(description.to_vec()), network)
    }

    fn ask(&self, order: &Order, more: &[OwnedFd]) -> io::Result<Channel> {
        let order = order.encode();
        let mut running = self.lock();
        let (ours, theirs) = channel::pair()?;
        let descriptors: Vec<_> = std::iter::once(theirs.as_fd()).chain(more.iter().map(AsFd::as_fd)).collect();
        if let Some(zygote) = running.as_ref()
            && zygote.control.send(&order, &descriptors).is_ok()
        {
            return Ok(ours);
        }
        let zygote = running.insert(self.start()?);
        zygote.control.send(&order, &descriptors)?;
        Ok(ours)
    }

    /// Where cells can be put into control groups, found out by doing it.
    pub fn find_groups(&self) -> Hierarchies {
        if !self.wants_groups {
            return Hierarchies::none("no limit needs one");
        }
        // Something has to be asked for first, so that it runs.
        let surroundings = self.trial(&[], &mut || {}).and_then(|_| {
            let running = self.lock();
            let running = running.as_ref().ok_or("it ended")?;
            let refusal = running.refusal.clone();
            Ok((Surroundings::of(running.process.id()).map_err(|error| error.to_string())?, refusal))
        });
        match surroundings {
            Err(why) => Hierarchies::none(format!("nothing can be tried: {why}")),
            Ok((_, Some(refusal))) => Hierarchies::none(refusal),
            Ok((surroundings, None)) => Hierarchies::probe(Arc::new(Kernel), &surroundings, &|doors, look| self.trial(doors, look)),
        }
    }

    /// Lets somebody enter groups; `look` is called while it is inside. True if it was kept from forking.
    fn trial(&self, doors: &[PathBuf], look: &mut dyn FnMut()) -> Result<bool, String> {
        let asked = self.ask(&Order::Trial { doors: doors.to_vec() }, &[]).map_err(|error| error.to_string())?;
        match wait_for_news(asked.as_fd()) {
            Ok(Some(News::Tried { held })) => {
                look();
                Ok(held)
            }
            Ok(Some(News::Refused { reason, .. })) => Err(reason),
            Ok(_) => Err("the process that tried it ended".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn start(&self) -> io::Result<Running> {
        let needs_unit = self.wants_groups && Surroundings::of(std::process::id()).is_ok_and(|own| own.needs_unit(&Kernel));
        if !needs_unit {
            return self.start_here();
        }
        match self.start_in_unit() {
            Ok(running) => Ok(running),
            Err(why) => {
                let mut running = self.start_here()?;
                running.refusal = Some(format!("this is no unit with Delegate=yes, and systemd made none for us ({why})"));
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
        Ok(Running { control, process, refusal: None })
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
        let complaints = process.stderr.take();
        let running = Running { control, process, refusal: None };
        // It is there once it answers.
        let (ours, theirs) = channel::pair().map_err(|error| error.to_string())?;
        let sent = running.control.send(&Order::Trial { doors: Vec::new() }.encode(), &[theirs.as_fd()]);
        drop(theirs);
        match sent.and_then(|()| wait_for_news(ours.as_fd())) {
            Ok(Some(News::Tried { .. })) => Ok(running),
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
