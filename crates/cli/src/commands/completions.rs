//! `outpost completions`: words for a shell.

use std::process::ExitCode;

use clap::CommandFactory;

use crate::args::Arguments;
use crate::commands;

pub(crate) fn run(shell: clap_complete::Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "outpost", &mut script);
    commands::printed(&String::from_utf8_lossy(&script))
}
