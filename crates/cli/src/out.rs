//! Standard output: what was asked for. Standard error: what people are told besides.
//!
//! A terminal gets nothing that it would obey: texts go through `outpost_wire::shown` on their way to one. Elsewhere they stay
//! as they are.

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};

use anyhow::Context;
use outpost_wire::shown::{FRAME, Form, Showing, Untrusted, guard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The reader has seen enough, as in `outpost thread list | head`. That is no failure, and nothing is said about it.
#[derive(Debug)]
pub(crate) struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reader of standard output is gone")
    }
}

impl Error for ReaderGone {}

/// Writes a message for the user. The reader may be gone, and that is no reason to stop: what was asked for is elsewhere.
pub(crate) fn say(text: &str) {
    let is_terminal = io::stderr().is_terminal();
    // Only the first line begins with our name.
    let text = if is_terminal { Untrusted::from(text).show(Form::Text).replace('\n', "\n  ") } else { text.to_owned() };
    aside(&format!("outpost: {text}\n"));
}

/// The same, word for word: our own words, and what was shown before.
pub(crate) fn aside(text: &str) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(text.as_bytes());
}

/// A text of others as a part of a line on standard error.
pub(crate) fn on_error_line(text: &str) -> String {
    if io::stderr().is_terminal() { Untrusted::from(text).show(Form::Line) } else { text.to_owned() }
}

/// A text of others as a part of a line on standard output.
pub(crate) fn on_line(text: &str) -> String {
    if io::stdout().is_terminal() { Untrusted::from(text).show(Form::Line) } else { text.to_owned() }
}

/// A path, a name or a command of others as a part of a line on standard output.
pub(crate) fn on_line_exactly(text: &str) -> String {
    if io::stdout().is_terminal() { Untrusted::from(text).show(Form::Word) } else { text.to_owned() }
}

/// A text of others on lines of its own on standard output.
pub(crate) fn on_lines(text: &str) -> String {
    if io::stdout().is_terminal() { Untrusted::from(text).show(Form::Text) } else { text.to_owned() }
}

/// The lines of a command of others on standard output. On a terminal all but the first are indented.
pub(crate) fn on_lines_exactly(text: &str) -> String {
    if !io::stdout().is_terminal() {
        return text.to_owned();
    }
    Untrusted::from(text).show(Form::Script).replace('\n', "\n  │ ")
}

/// What begins a line of our own among lines of others on standard output.
pub(crate) fn own_mark() -> String {
    if io::stdout().is_terminal() { format!("{FRAME} ") } else { String::new() }
}

/// The same on standard error.
pub(crate) fn error_mark() -> String {
    if io::stderr().is_terminal() { format!("{FRAME} ") } else { String::new() }
}

/// Prints all of it at once.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    write_all(&on_lines(text))
}

/// The same with a text that was put together from our own words and from parts that were shown.
pub(crate) fn print_shown(text: &str) -> anyhow::Result<()> {
    if io::stdout().is_terminal() { write_all(&guard(text)) } else { write_all(text) }
}

/// The same with a text that has colours of our own, and whose other parts were shown.
pub(crate) fn print_coloured(text: &str) -> anyhow::Result<()> {
    write_all(text)
}

fn write_all(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output cannot be written");
    printed.map_err(seen_enough)
}

/// A stream of bytes of others on its way to people or to a program.
pub(crate) struct UntrustedOutput<W> {
    to: W,
    /// How it goes on, if it goes to a terminal.
    showing: Option<Showing>,
}

impl<W: Write> UntrustedOutput<W> {
    pub(crate) fn new(to: W, is_terminal: bool) -> Self {
        Self { to, showing: is_terminal.then(|| Showing::new(Form::Text)) }
    }

    /// Writes what was held back because more could have come.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        if let Some(showing) = &mut self.showing {
            let mut shown = String::new();
            showing.end(&mut shown);
            self.to.write_all(shown.as_bytes())?;
        }
        self.to.flush()
    }
}

impl<W: Write> Write for UntrustedOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.showing {
            None => self.to.write(bytes),
            Some(showing) => {
                let mut shown = String::with_capacity(bytes.len());
                showing.bytes(bytes, &mut shown);
                self.to.write_all(shown.as_bytes())?;
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// An error with all its causes on one line, each once: some say in their own words what their cause says.
pub(crate) fn with_causes(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |told, cause| match cause.to_string() {
        cause if told.is_empty() => cause,
        cause if told.contains(&cause) => told,
        cause => format!("{told}: {cause}"),
    })
}

/// What it means that something could not be written to standard output.
pub(crate) fn seen_enough(error: anyhow::Error) -> anyhow::Error {
    let is_gone = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    if error.chain().any(|cause| cause.downcast_ref().is_some_and(is_gone)) { ReaderGone.into() } else { error }
}

/// Whether the reader of standard output is gone, for those who may have nothing to write for a long time.
pub(crate) fn is_unread() -> bool {
    let out = io::stdout();
    let mut watched = [PollFd::new(&out, PollFlags::empty())];
    // A pipe without a reader is in error; nothing else is asked about.
    poll(&mut watched, Some(&Timespec::default())).is_ok_and(|count| count > 0) && watched[0].revents().contains(PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cause_is_told_twice() {
        let cause = io::Error::other("the disk is on fire");
        let error = anyhow::Error::new(cause).context("cannot write: the disk is on fire").context("nothing was done");
        assert_eq!(with_causes(&error), "nothing was done: cannot write: the disk is on fire");
    }
}
