//! The executor's end of the zygote: started when it is first needed, and again if somebody killed it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
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

    /// Forks a cell; returns our end of its socket. `network` is what an earlier cell of the same session sent.
    pub fn cell(&self, description: &[u8], network: &[OwnedFd]) -> io::Result<Channel> {
        let order = Order::Cell(description.to_vec()).encode();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let (ours, theirs) = channel::pair()?;
        let descriptors: Vec<_> = std::iter::once(theirs.as_fd()).chain(network.iter().map(AsFd::as_fd)).collect();
        if let Some(zygote) = running.as_ref()
            && zygote.control.send(&order, &descriptors).is_ok()
        {
            return Ok(ours);
        }
        let zygote = running.insert(self.start()?);
        zygote.control.send(&order, &descriptors)?;
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
