//! The stage between a new process and the program that was asked for: this very program, started under a hidden name.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{ioctl_tiocsctty, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdout};

use crate::launch::Launch;

const TERMINAL: &str = "__terminal";
/// What shells say of a program that cannot be run.
const CANNOT_RUN: u8 = 126;

/// The arguments under which the stage runs `program` on the terminal at `slave`. Its standard output is the report: it
/// ends without a word once the program runs, or holds the number of the error that kept it from running.
pub(crate) fn arguments(slave: &Path, program: &Path, launch: &Launch) -> Vec<OsString> {
    let arg0 = launch.arg0.clone().unwrap_or_else(|| launch.program.clone());
    let mut arguments = vec![OsString::from(TERMINAL), slave.into(), program.into(), arg0];
    arguments.extend(launch.args.iter().cloned());
    arguments
}

/// Waits for the report of a stage.
pub(crate) fn wait_for_report(mut report: PipeReader) -> io::Result<()> {
    let mut number = [0; 4];
    match report.read_exact(&mut number) {
        Ok(()) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number))),
        Err(_) => Ok(()),
    }
}

/// Must be the first thing that a program does which offers itself as a stage. Returns only if it was not asked, or
/// could not do it.
pub fn run_if_asked(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter().skip(1);
    if arguments.next()? != TERMINAL {
        return None;
    }
    let slave = arguments.next()?;
    let (program, arg0) = (arguments.next()?, arguments.next()?);
    // Closed by the program's start, which is how the other side learns of it.
    let Ok(report) = fcntl_dupfd_cloexec(stdout(), 3) else { return Some(ExitCode::from(CANNOT_RUN)) };
    let error = match take_terminal(Path::new(&slave)) {
        Ok(()) => Command::new(program).arg0(arg0).args(arguments).exec(),
        Err(error) => error,
    };
    let _ = rustix::io::write(&report, &error.raw_os_error().unwrap_or_default().to_ne_bytes());
    Some(ExitCode::from(CANNOT_RUN))
}

fn take_terminal(slave: &Path) -> io::Result<()> {
    setsid()?;
    let terminal = File::options().read(true).write(true).open(slave)?;
    ioctl_tiocsctty(&terminal)?;
    dup2_stdin(&terminal)?;
    dup2_stdout(&terminal)?;
    dup2_stderr(&terminal)?;
    Ok(())
}
