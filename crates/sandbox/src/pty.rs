//! Pseudo-terminals.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::launch::TerminalSize;

/// A new terminal: its master, and the path by which the other side is opened.
pub fn open(size: TerminalSize) -> io::Result<(OwnedFd, PathBuf)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = ptsname(&master, Vec::new())?;
    resize(&master, size)?;
    Ok((master, PathBuf::from(OsString::from_vec(slave.into_bytes()))))
}

pub fn resize(master: impl AsFd, size: TerminalSize) -> io::Result<()> {
    tcsetwinsize(master, Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 })?;
    Ok(())
}
