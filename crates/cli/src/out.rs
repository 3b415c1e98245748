//! Standard output: what was asked for.

use std::error::Error;
use std::fmt;
use std::io::{self, Write};

use anyhow::Context;

/// Whoever read it has seen enough, as in `outpost thread list | head`. That is no failure, and nothing is said about it.
#[derive(Debug)]
pub struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads standard output any more")
    }
}

impl Error for ReaderGone {}

/// Prints all of it at once.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        printed => printed.context("standard output cannot be written"),
    }
}
