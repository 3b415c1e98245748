//! `outpost doctor`.

use std::process::ExitCode;

use anyhow::Context;

use super::{FAILED, complain};
use crate::ProcessContext;
use crate::args::DoctorArguments;
use crate::doctor::{Patient, examine};
use crate::home::Home;
use crate::out;

/// Fails if something is broken.
pub(crate) async fn run(arguments: &DoctorArguments, own: &ProcessContext) -> ExitCode {
    let report = examine(&Patient { home: Home::from_environment(), own }).await;
    let text = if arguments.json { report.json(&own.secrets) } else { Ok(report.text(&own.secrets)) };
    let written = text.context("the report cannot be written").and_then(|text| out::print(&format!("{}\n", text.trim_end())));
    match written {
        Err(error) => complain(&error, FAILED),
        Ok(()) if report.holds() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::from(FAILED),
    }
}
