//! One file per verb.

pub mod doctor;
pub mod executor;
pub mod keeper;
pub mod run;

use std::process::ExitCode;

/// The work failed.
pub const FAILED: u8 = 1;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// A failure of ours where the exit code is otherwise the command's.
pub const OURS: u8 = 125;

/// Says what went wrong, with all its causes on one line.
#[expect(clippy::print_stderr, reason = "this is where the program speaks to people")]
pub fn complain(error: &anyhow::Error, code: u8) -> ExitCode {
    eprintln!("outpost: {error:#}");
    ExitCode::from(code)
}
