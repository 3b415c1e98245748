//! What this host can hold, and by what.

use outpost_sandbox::{Row, probe};

use super::Finding;

pub fn findings() -> Vec<Finding> {
    let rows = probe().rows;
    if rows.is_empty() {
        return vec![Finding::broken("sandbox", "this build holds nothing", "use a build with a sandbox")];
    }
    rows.into_iter().map(finding).collect()
}

fn finding(row: Row) -> Finding {
    let detail = match &row.reason {
        Some(reason) => format!("{}; {reason}", row.mechanism),
        None => row.mechanism.clone(),
    };
    match (row.holds, row.reason) {
        (true, _) => Finding::good(row.promise, detail),
        (false, _) => Finding::broken(row.promise, detail, "policies that need it are refused here; see docs/sandbox.md"),
    }
}
