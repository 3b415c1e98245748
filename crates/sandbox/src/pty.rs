//! Pseudo-terminals.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::launch::TerminalSize;

/// A new terminal: its master, and the path by which the other side is opened.
pub(crate) fn open(size: TerminalSize) -> io::Result<(OwnedFd, PathBuf)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).map_err(explained)?;
    grantpt(&master).map_err(explained)?;
    unlockpt(&master).map_err(explained)?;
    let slave = ptsname(&master, Vec::new()).map_err(explained)?;
    resize(&master, size)?;
    Ok((master, PathBuf::from(OsString::from_vec(slave.into_bytes()))))
}

/// Containers and minimal systems may have no terminals; the kernel's own words for that say nothing of it.
pub(crate) fn explained(error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::NOTTY | Errno::NXIO | Errno::NODEV | Errno::IO | Errno::INVAL) => {
            io::Error::new(error.kind(), format!("no terminal can be made ({error}): mount devpts on /dev/pts, or run without a terminal"))
        }
        _ => error,
    }
}

pub(crate) fn resize(master: impl AsFd, size: TerminalSize) -> io::Result<()> {
    tcsetwinsize(master, Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_terminals_is_told_as_such() {
        assert!(explained(Errno::NOTTY).to_string().contains("/dev/pts"));
        assert_eq!(explained(Errno::MFILE).raw_os_error(), Some(Errno::MFILE.raw_os_error()), "callers look at this number");
    }
}
