//! The executor's end of the zygote: started when it is first needed, and again if somebody killed it.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::channel::{self, Channel};
use crate::message::Order;
use crate::stage;

#[derive(Debug)]
pub struct Zygote {
    /// A program that calls [`stage::run_if_asked`] first thing.
    program: PathBuf,
    /// For it and everything that comes of it.
    open_files: Option<u64>,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    control: Channel,
    process: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Only takes the status of one that is gone; one that still runs goes with its socket.
        let _ = self.process.try_wait();
    }
}

impl Zygote {
    pub fn new(program: PathBuf, open_files: Option<u64>) -> Self {
        Self { program, open_files, running: Mutex::default() }
    }

    /// Forks a cell; returns our end of its socket.
    pub fn cell(&self, description: &[u8]) -> io::Result<Channel> {
        let order = Order::Cell(description.to_vec()).encode();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let (ours, theirs) = channel::pair()?;
        if let Some(zygote) = running.as_ref()
            && zygote.control.send(&order, &[std::os::fd::AsFd::as_fd(&theirs)]).is_ok()
        {
            return Ok(ours);
        }
        let zygote = running.insert(self.start()?);
        zygote.control.send(&order, &[std::os::fd::AsFd::as_fd(&theirs)])?;
        Ok(ours)
    }

    fn start(&self) -> io::Result<Running> {
        let (control, theirs) = channel::pair()?;
        let process = Command::new(&self.program)
            .arg(stage::ZYGOTE)
            .env_clear()
            .current_dir("/")
            .stdin(theirs.into_descriptor())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        if let (Some(open_files), Some(pid)) = (self.open_files, Pid::from_raw(process.id().cast_signed())) {
            let maximum = getrlimit(Resource::Nofile).maximum;
            // It does nothing before it gets its first order.
            prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(open_files), maximum })?;
        }
        Ok(Running { control, process })
    }
}
