//! The executor's end of the zygote: started when it is first needed, and again if somebody killed it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::channel::{self, Channel};
use crate::message::Order;
use crate::stage;

/// The running program, whatever became of its file.
const OWN: &str = "/proc/self/exe";
const ADVICE: &str = "call outpost_sandbox::stage::run_if_asked first thing in its main";
/// Seconds in which a stage must have said that it is one.
const PATIENCE: i64 = 20;

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
        // Its `main` would do everything once more, and so on.
        if self.program == Path::new(OWN) && !stage::is_offered() {
            return Err(io::Error::other(format!("this program is no stage for its own sandboxes: {ADVICE}")));
        }
        let (control, theirs) = channel::pair()?;
        let process = Command::new(&self.program)
            .arg(stage::ZYGOTE)
            .env_clear()
            .current_dir("/")
            .stdin(theirs.into_descriptor())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut running = Running { control, process };
        if !running.has_proved() {
            // Whatever it is, it was not meant to run.
            let _ = running.process.kill();
            let _ = running.process.wait();
            return Err(io::Error::other(format!("{} is no stage: {ADVICE}", self.program.display())));
        }
        Ok(running)
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
        let own = Zygote::new(OWN.into()).cell(b"").err().unwrap().to_string();
        assert!(own.contains("stage::run_if_asked") && own.contains("main"), "{own}");
        let children = std::fs::read_to_string(format!("/proc/self/task/{}/children", rustix::thread::gettid().as_raw_nonzero())).unwrap();
        assert_eq!(children, "");
        let other = Zygote::new("/bin/true".into()).cell(b"").err().unwrap().to_string();
        assert!(other.contains("/bin/true is no stage") && other.contains("stage::run_if_asked"), "{other}");
    }
}
