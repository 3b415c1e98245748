//! How much of a sandbox a machine can hold: named levels, from the strongest to the one that needs no right at all.
//!
//! Each level says only what it holds; docs/decisions/0017-sandbox-levels.md says why each of them is honest.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::policy::{PathAccess, PathRules, RuleOrigin, is_protected_name};
use crate::sys;

/// Ordered: a stronger one comes later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Level {
    /// Landlock, seccomp and no rights; the machine's own file system, processes and `/tmp`.
    #[default]
    Landlock,
    /// A file system, a network and IPC of its own; the process table is the machine's.
    Mounts,
    /// Everything of its own.
    Full,
}

pub const LEVELS: [Level; 3] = [Level::Full, Level::Mounts, Level::Landlock];

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Self::Landlock => "landlock",
            Self::Mounts => "mounts",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = LEVELS.into_iter().find(|level| level.name() == text);
        found.ok_or_else(|| format!("a level of the sandbox is one of landlock, mounts and full, not `{text}`"))
    }
}

/// What this machine was found to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// Nothing: no sandbox at all.
    pub level: Option<Level>,
    /// Why not more.
    pub why: Option<String>,
    /// Whether the users of a mount can be mapped, as root.
    pub maps_users: bool,
}

impl Capacity {
    /// The one setting that would raise it, as far as that can be told from here.
    pub fn raised_by(&self) -> Option<String> {
        self.why.as_ref()?;
        let is_masked = self.level == Some(Level::Mounts);
        let there = |path: &str| Path::new(path).exists();
        // What its security module forbids, no seccomp profile allows.
        let profile = std::fs::read_to_string("/proc/self/attr/current").unwrap_or_default();
        let apparmor = if profile.contains("docker-default") { " --security-opt apparmor=unconfined" } else { "" };
        Some(if there("/run/.containerenv") && is_masked {
            "start the container with `podman run --security-opt unmask=ALL`".to_owned()
        } else if there("/.dockerenv") && is_masked {
            "start the container with `docker run --security-opt systempaths=unconfined`".to_owned()
        } else if there("/.dockerenv") {
            format!(
                "start the container with `docker run --security-opt seccomp=unconfined --security-opt systempaths=unconfined{apparmor}`"
            )
        } else if let Some(switch) = switch() {
            format!("as root: `{switch}`, and a line in /etc/sysctl.d to keep it")
        } else if self.level.is_none() && sys::landlock_version() == 0 {
            "a kernel with Landlock (5.13 or later, and `landlock` in its `lsm=`)".to_owned()
        } else {
            "let the executor make user namespaces and mount a process table of its own".to_owned()
        })
    }
}

/// The switches of the kernel that keep ordinary users from making namespaces: off, and on.
pub(crate) const SWITCHES: [(&str, &str, &str); 3] = [
    ("user.max_user_namespaces", "0", "15000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
];

/// The one that is off here, as what is done about it.
fn switch() -> Option<String> {
    off_switch().map(|(key, _, on)| format!("sysctl -w {key}={on}"))
}

/// The one that is off here.
pub(crate) fn off_switch() -> Option<(&'static str, &'static str, &'static str)> {
    let is = |key: &str, value: &str| {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        std::fs::read_to_string(path).is_ok_and(|text| text.trim() == value)
    };
    SWITCHES.into_iter().find(|(key, off, _)| is(key, off))
}

/// What a policy needs: the lowest level that holds it, and what of it needs that. Names that we protect do not count: where they
/// cannot be held, that is told.
pub(crate) fn needed(rules: &PathRules) -> (Level, Option<String>) {
    let name_is_protected = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(is_protected_name)
    };
    let inner = rules.iter().find(|rule| {
        let around = rule.path.parent().map_or(PathAccess::Deny, |parent| rules.on_machine(parent));
        let is_ours = matches!(rule.origin, RuleOrigin::Protected | RuleOrigin::Layer) || name_is_protected(&rule.path);
        let is_protected = rule.origin == RuleOrigin::Credentials || rule.access == PathAccess::Read && is_ours;
        around == PathAccess::Write && rule.access != PathAccess::Write && !is_protected
    });
    let pattern = || {
        let roots = || rules.iter().filter(|rule| rule.access == PathAccess::Write && rule.origin != RuleOrigin::Home);
        rules.globs().iter().find(|glob| roots().any(|root| glob.base().starts_with(&root.path) || root.path.starts_with(glob.base())))
    };
    match (inner, pattern) {
        (Some(rule), _) => (Level::Mounts, Some(rule.to_string())),
        (None, pattern) => match pattern() {
            Some(glob) => (Level::Mounts, Some(format!("paths like {glob} are denied"))),
            None => (Level::Landlock, None),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Glob, NetworkRule, PathRule};

    fn rule(path: &str, access: PathAccess, origin: RuleOrigin) -> PathRule {
        PathRule { path: path.into(), access, origin }
    }

    fn rules(more: Vec<PathRule>, globs: Vec<Glob>) -> PathRules {
        let own = [rule("/", PathAccess::Read, RuleOrigin::Request), rule("/w", PathAccess::Write, RuleOrigin::Request)];
        PathRules::new(own.into_iter().chain(more), globs, NetworkRule::Restricted)
    }

    #[test]
    fn a_policy_needs_mounts_for_what_landlock_cannot_take_away() {
        let level = |more, globs| needed(&rules(more, globs)).0;
        assert_eq!(level(vec![], vec![]), Level::Landlock);
        assert_eq!(level(vec![rule("/home/x", PathAccess::Deny, RuleOrigin::Own)], vec![]), Level::Landlock);
        assert_eq!(level(vec![rule("/w/.git", PathAccess::Read, RuleOrigin::Protected)], vec![]), Level::Landlock);
        assert_eq!(level(vec![rule("/w/.git", PathAccess::Read, RuleOrigin::Request)], vec![]), Level::Landlock);
        assert_eq!(level(vec![rule("/w/.git", PathAccess::Deny, RuleOrigin::Request)], vec![]), Level::Mounts);
        assert_eq!(level(vec![rule("/w/secret", PathAccess::Deny, RuleOrigin::Own)], vec![]), Level::Mounts);
        assert_eq!(level(vec![rule("/w/vendor", PathAccess::Read, RuleOrigin::Request)], vec![]), Level::Mounts);
        let glob = |text: &str| Glob::new(text).unwrap();
        assert_eq!(level(vec![], vec![glob("/w/**/*.env")]), Level::Mounts);
        assert_eq!(level(vec![], vec![glob("/**/*.env")]), Level::Mounts);
        assert_eq!(level(vec![], vec![glob("/srv/*.pem")]), Level::Landlock);
    }

    #[test]
    fn levels_have_names_and_an_order() {
        assert!(Level::Landlock < Level::Mounts && Level::Mounts < Level::Full);
        for level in LEVELS {
            assert_eq!(level.name().parse::<Level>().unwrap(), level);
        }
        assert!("none".parse::<Level>().unwrap_err().contains("landlock, mounts and full"));
    }
}
