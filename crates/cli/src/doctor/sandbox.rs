//! What this host can hold, and by what: tried out with a sandbox of the default policy.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;

use outpost_executor::GitSettings;
use outpost_sandbox::{LauncherSettings, PromiseRow, probe_at};

use super::{Finding, Patient, not_looked_at};
use crate::confinement::{configured_git, configured_minimum};

pub(super) fn findings(patient: &Patient<'_>) -> Vec<Finding> {
    let Some(home) = &patient.home else {
        return vec![Finding::broken("sandbox", "nothing can be tried without a home", "set OUTPOST_HOME or HOME")];
    };
    let scratch = match home.seat(&patient.own.variables) {
        Ok(seat) => seat.run.join("cells"),
        Err(error) => return vec![Finding::broken("sandbox", error.to_string(), "nothing can be tried without it")],
    };
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&scratch) {
        let detail = format!("{}: {error}", scratch.display());
        return vec![Finding::broken("sandbox", detail, "make the home writable, or set OUTPOST_HOME to another place")];
    }
    let minimum = match configured_minimum(&patient.own.settings) {
        Ok((minimum, _)) => minimum,
        Err(_) => return not_looked_at("sandbox", "config.toml"),
    };
    let user_home = patient.own.variables.get("HOME").map(Into::into);
    let settings = LauncherSettings { minimum, home: user_home, layers: Some(home.layers()), ..LauncherSettings::default() };
    let (mut told, mut verdict) = (BTreeSet::new(), probe_at(&scratch, settings));
    if let Ok(mode) = configured_git(&patient.own.settings) {
        let git = GitSettings { mode, directory: Some(scratch) };
        verdict.rows.push(git.row(patient.own.variables.get("PATH"), verdict.level));
    }
    let raise = verdict.raised_by.clone();
    verdict.rows.into_iter().map(|row| finding(row, raise.as_deref(), &mut told)).collect()
}

/// One obstacle usually stands in the way of everything; it is told in full once.
fn finding(row: PromiseRow, raise: Option<&str>, told: &mut BTreeSet<String>) -> Finding {
    let PromiseRow { promise, holds, mechanism, reason } = row;
    match (holds, reason) {
        (true, None) => Finding::good(promise, mechanism),
        (true, Some(reason)) => {
            Finding::weak(promise, format!("{mechanism}; {reason}"), "it holds with this restriction; see docs/sandbox.md")
        }
        (false, reason) => {
            let reason = reason.unwrap_or_default();
            if !told.insert(reason.clone()) {
                return Finding::broken(promise, format!("{mechanism}; see above"), "the same as above");
            }
            if reason.contains("control group") {
                let advice = "a control group would: Delegate=yes in the unit, or a container with a writable /sys/fs/cgroup";
                return Finding::broken(promise, format!("{mechanism}; {reason}"), advice);
            }
            let refused = "docs/sandbox.md says what each level holds";
            Finding::broken(
                promise,
                format!("{mechanism}; {reason}"),
                raise.map_or_else(|| refused.to_owned(), |by| format!("{by}; {refused}")),
            )
        }
    }
}
