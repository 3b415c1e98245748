//! What a program passes on to all that it starts, and cannot say in a message: programs that differ in it have different keepers. So what
//! a user took away from a program, or limited, is not given back to its commands by a keeper that another one started.

use std::fs;
use std::os::unix::fs::MetadataExt;

use sha2::{Digest, Sha256};

const NAMESPACES: [&str; 6] = ["mnt", "net", "pid", "user", "uts", "ipc"];
/// Lines of `/proc/self/status`.
const RIGHTS: [&str; 11] =
    ["Uid", "Gid", "Groups", "Umask", "CapInh", "CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Cpus_allowed"];
/// A caller says how many files its commands may have open, because programs raise that limit for themselves.
const SAID: &str = "Max open files";

/// A name for them.
pub(super) fn surroundings() -> String {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let namespaces = NAMESPACES.map(|kind| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default());
    let root = fs::metadata("/").map(|root| format!("{}:{}", root.dev(), root.ino())).unwrap_or_default();
    let (status, limits, groups) = (read("status"), read("limits"), read("cgroup"));
    let rights = status.lines().filter(|line| line.split_once(':').is_some_and(|(name, _)| RIGHTS.contains(&name)));
    let limits = limits.lines().filter(|line| !line.starts_with(SAID));
    let mut digest = Sha256::new();
    digest.update(format!("{namespaces:?} {root}"));
    rights.chain(limits).for_each(|line| digest.update(format!("\n{line}")));
    groups.lines().map(control_group).for_each(|group| digest.update(format!("\n{group}")));
    digest.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// A control group with its limits. Each login and each window of a desktop has one of its own that limits nothing; they count as one.
fn control_group(line: &str) -> &str {
    let is_login = |unit: &str| unit.ends_with(".scope") && ["session-", "vte-spawn-", "app-"].iter().any(|kind| unit.starts_with(kind));
    match line.rsplit_once('/') {
        Some((above, unit)) if is_login(unit) => above,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_share_a_keeper_and_limited_scopes_do_not() {
        assert_eq!(control_group("0::/user.slice/user-1000.slice/session-3.scope"), "0::/user.slice/user-1000.slice");
        assert_eq!(control_group("0::/user.slice/app.slice/vte-spawn-1f2e.scope"), "0::/user.slice/app.slice");
        for own in ["0::/system.slice/outpost.service", "0::/user.slice/run-u7.scope", "0::/", "4:memory:/jobs/7"] {
            assert_eq!(control_group(own), own);
        }
    }
}
