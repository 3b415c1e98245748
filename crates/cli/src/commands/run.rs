//! `outpost run`.

use std::process::ExitCode;

use crate::args::RunArguments;

pub async fn run(_arguments: RunArguments) -> ExitCode {
    ExitCode::SUCCESS
}
