//! Standard output: what was asked for. Standard error: what people are told besides.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Whoever read it has seen enough, as in `outpost thread list | head`. That is no failure, and nothing is said about it.
#[derive(Debug)]
pub struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads standard output any more")
    }
}

impl Error for ReaderGone {}

/// Tells people something. Nobody may be listening any more, and that is no reason to stop: what was asked for is elsewhere.
pub fn say(text: &str) {
    aside(&format!("outpost: {text}\n"));
}

/// The same, word for word.
pub fn aside(text: &str) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(text.as_bytes());
}

/// Prints all of it at once.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output cannot be written");
    printed.map_err(seen_enough)
}

/// What it means that something could not be written to standard output.
pub fn seen_enough(error: anyhow::Error) -> anyhow::Error {
    let is_gone = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    if error.chain().any(|cause| cause.downcast_ref().is_some_and(is_gone)) { ReaderGone.into() } else { error }
}

/// Whether nobody reads standard output any more, for those who may have nothing to write for a long time.
pub fn is_unread() -> bool {
    let out = io::stdout();
    let mut watched = [PollFd::new(&out, PollFlags::empty())];
    // A pipe without a reader is in error; nothing else is asked about.
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|count| count > 0) && watched[0].revents().contains(PollFlags::ERR)
}
