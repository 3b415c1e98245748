//! What this host can hold, and by what: tried out with a sandbox of the default policy.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;

use outpost_sandbox::{Row, probe};
use rustix::process::geteuid;

use super::{Finding, Patient};

pub fn findings(patient: &Patient<'_>) -> Vec<Finding> {
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
    let mut told = BTreeSet::new();
    probe(&scratch).rows.into_iter().map(|row| finding(row, &mut told)).collect()
}

/// One obstacle usually stands in the way of everything; it is told in full once.
fn finding(row: Row, told: &mut BTreeSet<String>) -> Finding {
    let Row { promise, holds, mechanism, reason } = row;
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
            Finding::broken(promise, format!("{mechanism}; {reason}"), advice(&reason))
        }
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
