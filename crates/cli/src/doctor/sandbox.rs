//! What this host can hold, and by what: tried out with a sandbox of the default policy.

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
    let mut verdict = probe_at(&scratch, settings);
    if let Ok(mode) = configured_git(&patient.own.settings) {
        let git = GitSettings { mode, directory: Some(scratch) };
        verdict.rows.push(git.row(patient.own.variables.get("PATH"), verdict.level));
    }
    let raise = verdict.raised_by.clone();
    let (broken, holding): (Vec<PromiseRow>, Vec<PromiseRow>) = verdict.rows.into_iter().partition(|row| !row.holds);
    holding.into_iter().map(held).chain(lost(broken, raise.as_deref())).collect()
}

fn held(row: PromiseRow) -> Finding {
    match row.reason {
        None => Finding::good(row.promise, row.mechanism),
        Some(reason) => {
            Finding::weak(row.promise, format!("{}; {reason}", row.mechanism), "it holds with this restriction; see docs/sandbox.md")
        }
    }
}

/// One obstacle usually stands in the way of several promises: it is told once, with all of them.
fn lost(rows: Vec<PromiseRow>, raise: Option<&str>) -> Vec<Finding> {
    let mut groups: Vec<(String, bool, Vec<PromiseRow>)> = Vec::new();
    for row in rows {
        let (reason, lacks) = (row.reason.clone().unwrap_or_default(), row.lacks_control_group());
        match groups.iter_mut().find(|(known, kind, _)| *known == reason && *kind == lacks) {
            Some((_, _, group)) => group.push(row),
            None => groups.push((reason, lacks, vec![row])),
        }
    }
    let finding = |(reason, lacks, rows): (String, bool, Vec<PromiseRow>)| {
        let promises: Vec<&str> = rows.iter().map(|row| row.promise).collect();
        let mut mechanisms: Vec<&str> = rows.iter().map(|row| row.mechanism.as_str()).collect();
        mechanisms.dedup();
        let detail = format!("{}; {reason}", mechanisms.join(", "));
        let levels = "docs/sandbox.md says what each level holds";
        let advice = match (lacks, raise) {
            (true, _) => "a control group would: Delegate=yes in the unit, or a container with a writable /sys/fs/cgroup".to_owned(),
            (false, Some(by)) => format!("{by}; {levels}"),
            (false, None) => levels.to_owned(),
        };
        Finding::broken(promises.join("; "), detail, advice)
    };
    groups.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_obstacle_is_told_once_with_everything_that_it_takes_away() {
        let row = |promise, mechanism: &str, reason: &str| PromiseRow {
            promise,
            holds: false,
            mechanism: mechanism.into(),
            reason: Some(reason.into()),
        };
        let rows = vec![row("a", "none", "no namespaces"), row("b", "none", "no namespaces"), row("c", "none", "no Landlock")];
        let found: Vec<(String, String)> =
            lost(rows, Some("allow them")).into_iter().map(|finding| (finding.what, finding.detail)).collect();
        let wanted = [("a; b", "none; no namespaces"), ("c", "none; no Landlock")];
        assert_eq!(found, wanted.map(|(what, detail)| (what.to_owned(), detail.to_owned())));
    }
}
