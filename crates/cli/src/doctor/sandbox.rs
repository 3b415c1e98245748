//! What this host can hold, and by what: tried out with a sandbox of the default policy.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;

use outpost_sandbox::{Row, probe};
use rustix::process::geteuid;

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
    let rows = probe(&scratch).rows;
    // One obstacle usually stands in the way of everything; it is told in full once.
    let obstacle = rows.iter().find(|row| !row.holds).map(|row| row.promise);
    rows.into_iter().map(|row| finding(row, obstacle)).collect()
}

fn finding(row: Row, obstacle: Option<&str>) -> Finding {
    let detail = match &row.reason {
        Some(_) if !row.holds && obstacle != Some(row.promise) => format!("{}; see above", row.mechanism),
        Some(reason) => format!("{}; {reason}", row.mechanism),
        None => row.mechanism,
    };
    match (row.holds, row.reason) {
        (true, None) => Finding::good(row.promise, detail),
        (true, Some(_)) => Finding::weak(row.promise, detail, "it holds with this restriction; see docs/sandbox.md"),
        (false, reason) => Finding::broken(row.promise, detail, advice(&reason.unwrap_or_default())),
    }
}

/// What the one who owns the machine can do, by what the kernel says of itself.
fn advice(reason: &str) -> String {
    let refused = "until then commands are refused unless they run with --sandbox danger-full-access";
    if geteuid().is_root() {
        return format!("as root it needs CAP_SYS_ADMIN and idmapped mounts, or a --sandbox-user (docs/sandbox.md); {refused}");
    }
    let is = |key: &str, value: &str| {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        fs::read_to_string(path).is_ok_and(|text| text.trim() == value)
    };
    let switches = [
        ("user.max_user_namespaces", "0", "15000"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ];
    match switches.into_iter().find(|(key, off, _)| is(key, off)) {
        Some((key, _, on)) => format!("as root: `sysctl -w {key}={on}`, and a line in /etc/sysctl.d to keep it; {refused}"),
        None if reason.contains("namespace") => {
            format!("let this user make user namespaces; in a container, loosen its seccomp profile; {refused}")
        }
        None => format!("see docs/sandbox.md; {refused}"),
    }
}
