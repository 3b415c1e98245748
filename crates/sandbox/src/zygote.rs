//! The executor's end of the zygote: started when it is first needed, and again if somebody killed it.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use crate::channel::{self, Channel};
use crate::message::Order;
use crate::stage;

#[derive(Debug)]
pub struct Zygote {
    /// A program that calls [`stage::run_if_asked`] first thing.
    program: PathBuf,
    running: Mutex<Option<Running>>,
}

/// Our ends of the sockets of a cell.
#[derive(Debug)]
pub struct CellEnds {
    pub control: Channel,
    /// Asks its guard, who answers.
    pub requests: Channel,
    /// What its guard tells.
    pub reports: Channel,
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
    pub fn new(program: PathBuf) -> Self {
        Self { program, running: Mutex::default() }
    }

    /// Forks a cell.
    pub fn cell(&self, description: &[u8]) -> io::Result<CellEnds> {
        let order = Order::Cell(description.to_vec()).encode();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let ((control, a), (requests, b), (reports, c)) = (channel::pair()?, channel::pair()?, channel::pair()?);
        // A report that does not fit is left out: whoever keeps the sandbox must not wait.
        rustix::io::ioctl_fionbio(&c, true)?;
        let theirs = [a.as_fd(), b.as_fd(), c.as_fd()];
        let ours = CellEnds { control, requests, reports };
        if let Some(zygote) = running.as_ref()
            && zygote.control.send(&order, &theirs).is_ok()
        {
            return Ok(ours);
        }
        let zygote = running.insert(self.start()?);
        zygote.control.send(&order, &theirs)?;
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
        Ok(Running { control, process })
    }
}
