//! What this host can hold, and by what: tried out with a sandbox of the default policy.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;

use outpost_sandbox::{Row, probe};

use super::{Finding, Patient};

pub fn findings(patient: &Patient<'_>) -> Vec<Finding> {
    let Some(home) = &patient.home else {
        return vec![Finding::broken("sandbox", "nothing can be tried without a home", "set OUTPOST_HOME or HOME")];
    };
    let scratch = home.run().join("cells");
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&scratch) {
        let detail = format!("{}: {error}", scratch.display());
        return vec![Finding::broken("sandbox", detail, "make the home writable, or set OUTPOST_HOME to another place")];
    }
    probe(&scratch).rows.into_iter().map(finding).collect()
}

fn finding(row: Row) -> Finding {
    let detail = match &row.reason {
        Some(reason) => format!("{}; {reason}", row.mechanism),
        None => row.mechanism,
    };
    match (row.holds, row.reason) {
        (true, None) => Finding::good(row.promise, detail),
        (true, Some(_)) => Finding::weak(row.promise, detail, "it holds with this restriction; see docs/sandbox.md"),
        (false, _) => Finding::broken(row.promise, detail, "policies that need it are refused here; see docs/sandbox.md"),
    }
}
