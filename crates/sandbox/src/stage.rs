//! The stage between a new process and the program that was asked for: this very program, started under a hidden name.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{ioctl_tiocsctty, setsid};

use crate::launch::Launch;

const TERMINAL: &str = "__terminal";
/// What shells say of a program that cannot be run.
const CANNOT_RUN: u8 = 126;

/// The arguments under which the stage runs `program`.
pub(crate) fn arguments(program: &Path, launch: &Launch) -> Vec<OsString> {
    let arg0 = launch.arg0.clone().unwrap_or_else(|| launch.program.clone());
    let mut arguments = vec![OsString::from(TERMINAL), program.into(), arg0];
    arguments.extend(launch.args.iter().cloned());
    arguments
}

/// Must be the first thing that a program does which offers itself as a stage. Returns only if it was not asked, or
/// could not do it.
pub fn run_if_asked(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()? != TERMINAL {
        return None;
    }
    let program = arguments.next()?;
    let arg0 = arguments.next()?;
    let error = take_terminal_and_become(&program, &arg0, arguments);
    complain(&program, &error);
    Some(ExitCode::from(CANNOT_RUN))
}

fn take_terminal_and_become(program: &OsStr, arg0: &OsStr, arguments: impl Iterator<Item = OsString>) -> io::Error {
    if let Err(error) = setsid().and_then(|_| ioctl_tiocsctty(rustix::stdio::stdin())) {
        return error.into();
    }
    Command::new(program).arg0(arg0).args(arguments).exec()
}

/// Standard error is the terminal of whoever asked for the program.
#[expect(clippy::print_stderr, reason = "the stage has no other way to speak")]
fn complain(program: &OsStr, error: &io::Error) {
    eprintln!("{}: {error}", program.display());
}
