//! Pseudo-terminals.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::launch::TerminalSize;

pub struct Pair {
    pub master: OwnedFd,
    pub slave: OwnedFd,
}

pub fn open(size: TerminalSize) -> io::Result<Pair> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
    let no_control = i32::try_from(OFlags::NOCTTY.bits()).unwrap_or_default();
    let slave = OpenOptions::new().read(true).write(true).custom_flags(no_control).open(path)?.into();
    resize(&master, size)?;
    Ok(Pair { master, slave })
}

pub fn resize(master: impl AsFd, size: TerminalSize) -> io::Result<()> {
    tcsetwinsize(master, Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 })?;
    Ok(())
}
