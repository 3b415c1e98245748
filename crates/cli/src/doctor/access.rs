//! Who could get in: tokens, sockets, and the memory of our processes.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::process::{DumpableBehavior, dumpable_behavior};

use super::{Finding, Patient};
use crate::home::{EXECUTOR, Home};
use crate::out::with_causes;
use crate::tokens;

pub(super) fn findings(patient: &Patient<'_>) -> Vec<Finding> {
    let mut findings = vec![memory()];
    if let Some(home) = &patient.home {
        findings.push(token(home));
        findings.extend(home.seat(&patient.own.variables).iter().flat_map(|seat| sockets(&seat.run)));
    }
    findings
}

fn memory() -> Finding {
    match dumpable_behavior() {
        Ok(DumpableBehavior::NotDumpable) => Finding::good("memory", "closed to other processes of this user, and never dumped"),
        _ => Finding::broken("memory", "other processes of this user can look into ours", "check what restricts prctl(2) here"),
    }
}

fn token(home: &Home) -> Finding {
    let path = home.token(EXECUTOR);
    let what = "token of the executor";
    match tokens::read(&path) {
        Ok(Some(_)) => Finding::good(what, format!("{}, for its owner only", path.display())),
        Ok(None) => Finding::good(what, format!("{} is made on the first start", path.display())),
        Err(error) => Finding::broken(what, with_causes(&error), format!("rm {}", path.display())),
    }
}

fn sockets(directory: &Path) -> Vec<Finding> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    let finding = sockets.filter_map(|entry| {
        let (path, mode) = (entry.path(), entry.metadata().ok()?.mode() & 0o777);
        let what = format!("socket {}", entry.file_name().display());
        Some(if mode == 0o600 {
            Finding::good(what, "mode 600")
        } else {
            Finding::weak(
                what,
                format!("mode {mode:03o}; other users are still turned away by their id"),
                format!("chmod 600 {}", path.display()),
            )
        })
    });
    finding.collect()
}
