//! What a sandboxed piece of work may do: concrete rules over absolute paths, and the network.
//!
//! Rules are made once, from what a request asks for, and are then only looked at: by the cell that starts processes and
//! by those that answer file calls. This room must not know where they came from (a wire, a file of the operator).
//!
//! The longest path that holds a given path decides; a path that no rule holds is denied. A pattern that denies wins
//! over every rule.

mod glob;
mod home;
mod layer;
mod protect;
mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use glob::{Glob, GlobError};
pub use home::HomeView;
pub use layer::Substitute;
pub use protect::{KEY_DIRECTORY, PROTECTED_IF_PRESENT, PROTECTED_NAMES, STARTUP_FILES, is_protected_name, protected_paths};
use thiserror::Error;
pub use trace::{Trace, trace};

/// How a process or a file call is held.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Not at all: everything that the executor's own user may do.
    #[default]
    Open,
    /// By these rules, or not run.
    Confined(Arc<PathRules>),
}

impl Policy {
    pub fn rules(&self) -> Option<&Arc<PathRules>> {
        match self {
            Self::Open => None,
            Self::Confined(rules) => Some(rules),
        }
    }
}

/// What may be done with a path. Ordered: more comes later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathAccess {
    Deny,
    Read,
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetworkRule {
    Restricted,
    Enabled,
}

/// Why a rule is there; told in refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleOrigin {
    /// The request asked for it.
    Request,
    /// Things inside a writable root that run later, outside: `.git`, hooks, start-up files.
    Protected,
    /// Our own files.
    Own,
    /// The operator's ceiling.
    Ceiling,
    /// A directory of the home that is written into a layer of the workspace.
    Home,
    /// A store of keys or tokens.
    Credentials,
    /// A directory of ours that is seen instead of the machine's.
    Layer,
}

impl fmt::Display for RuleOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "the policy",
            Self::Protected => "protected inside a writable root",
            Self::Own => "the executor's own files",
            Self::Ceiling => "the operator's ceiling",
            Self::Home => "the workspace's layer over the home",
            Self::Credentials => "a store of credentials, which sandbox_home.show can name",
            Self::Layer => "a private layer of the sandbox",
        })
    }
}

/// One rule: this path and everything below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathRule {
    /// Absolute, without `.` and `..`, links resolved as far as it exists.
    pub path: PathBuf,
    pub access: PathAccess,
    pub origin: RuleOrigin,
}

impl fmt::Display for PathRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.access {
            PathAccess::Deny => "denied",
            PathAccess::Read => "read-only",
            PathAccess::Write => "writable",
        };
        write!(f, "{} is {what} ({})", self.path.display(), self.origin)
    }
}

/// What decides about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionReason<'a> {
    Rule(&'a PathRule),
    Glob(&'a Glob),
    /// No rule holds the path.
    Nothing,
}

impl fmt::Display for DecisionReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => rule.fmt(f),
            Self::Glob(glob) => write!(f, "paths like {glob} are denied (the policy)"),
            Self::Nothing => f.write_str("no rule of the policy allows it"),
        }
    }
}

/// The answer to "what may be done with this path".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathDecision<'a> {
    pub access: PathAccess,
    pub reason: DecisionReason<'a>,
}

/// Something was refused: what, and by which rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{verb} {path} is refused: {rule}", verb = if *.wanted == PathAccess::Write { "writing" } else { "reading" }, path = .path.display())]
pub struct PathRefusal {
    pub path: PathBuf,
    pub wanted: PathAccess,
    pub rule: String,
}

/// A request asked for more than the operator allows.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Exceeds {
    #[error("the policy asks for {wanted} access to {path}, but the operator's ceiling does not allow it: {rule}", wanted = word(*.wanted), path = .path.display())]
    Path { path: PathBuf, wanted: PathAccess, rule: String },
    #[error("the policy asks for the network, but the operator's ceiling says network = \"restricted\"")]
    Network,
    #[error("the policy asks for the device {}, but the operator's ceiling does not name it in `devices`", .0.display())]
    Device(PathBuf),
    #[error("running without a sandbox is more than the operator's ceiling allows; ask for a `sandbox` within it: {rule}")]
    Unconfined { rule: String },
}

fn word(access: PathAccess) -> &'static str {
    match access {
        PathAccess::Deny => "no",
        PathAccess::Read => "read",
        PathAccess::Write => "write",
    }
}

/// Checked rules. Equal rules are one policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathRules {
    /// By path; one rule a path.
    rules: BTreeMap<PathBuf, PathRule>,
    globs: Vec<Glob>,
    pub network: NetworkRule,
    /// What the work is about. Where it may only be read, that must not depend on who owns it.
    workspaces: Vec<PathBuf>,
    /// Links on the way to something that is denied or read-only, and which of the two: they have to lead where they led when
    /// the rules were made.
    links: BTreeMap<PathBuf, PathAccess>,
    /// How the home of the executor's user is seen.
    home: Option<HomeView>,
    /// What is seen in the place of the machine's.
    substitutes: Vec<Substitute>,
    /// Devices that are shown besides the harmless ones.
    devices: BTreeSet<PathBuf>,
}

impl PathRules {
    /// Shows these devices as well.
    #[must_use]
    pub fn with_devices(mut self, devices: impl IntoIterator<Item = PathBuf>) -> Self {
        self.devices.extend(devices);
        self
    }

    pub fn devices(&self) -> impl Iterator<Item = &PathBuf> {
        self.devices.iter()
    }

    /// Of two rules for one path the later one counts.
    pub fn new(rules: impl IntoIterator<Item = PathRule>, globs: Vec<Glob>, network: NetworkRule) -> Self {
        let rules = rules.into_iter().map(|rule| (rule.path.clone(), rule)).collect();
        Self {
            rules,
            globs,
            network,
            workspaces: Vec::new(),
            links: BTreeMap::new(),
            home: None,
            substitutes: Vec::new(),
            devices: BTreeSet::new(),
        }
    }

    /// Everything may be read, nothing written.
    pub fn read_only() -> Self {
        Self::new([rule("/", PathAccess::Read)], Vec::new(), NetworkRule::Restricted)
    }

    /// Everything may be read; these roots may be written, except for what is protected in them.
    pub fn workspace_write(roots: impl IntoIterator<Item = PathBuf>) -> Self {
        let roots: Vec<PathBuf> = roots.into_iter().collect();
        let given = roots.iter().map(|root| rule(root, PathAccess::Write));
        let rules = Self::new([rule("/", PathAccess::Read)].into_iter().chain(given), Vec::new(), NetworkRule::Restricted);
        roots.iter().flat_map(|root| protected_paths(root, &[])).fold(rules, |rules, path| match trace(&path) {
            Ok(led) => rules.led_by(led.links, PathAccess::Read).protecting(led.real),
            Err(_) => rules.protecting(path),
        })
    }

    /// Keeps something that may be written read-only. Gives nothing where less is allowed, and leaves what was asked for below it.
    #[must_use]
    pub fn protecting(self, path: PathBuf) -> Self {
        self.limited(PathRule { path, access: PathAccess::Read, origin: RuleOrigin::Protected })
    }

    /// The same for any rule: it only counts where more is allowed.
    #[must_use]
    pub fn limited(mut self, rule: PathRule) -> Self {
        if holder(&self.rules, &rule.path).is_some_and(|around| around.access > rule.access) {
            self.rules.insert(rule.path.clone(), rule);
        }
        self
    }

    /// Says which links lead to something with this access.
    #[must_use]
    pub fn led_by(mut self, links: impl IntoIterator<Item = PathBuf>, access: PathAccess) -> Self {
        for link in links {
            let known = self.links.entry(link).or_insert(access);
            *known = access.min(*known);
        }
        self
    }

    /// Links that must keep leading where they lead, with the access that what is behind them has.
    pub fn links(&self) -> impl Iterator<Item = (&Path, PathAccess)> {
        self.links.iter().map(|(path, access)| (path.as_path(), *access))
    }

    /// Says what the work is about: resolved paths.
    #[must_use]
    pub fn about(mut self, workspaces: Vec<PathBuf>) -> Self {
        self.workspaces = workspaces;
        self
    }

    /// Says that the work is about this as well.
    #[must_use]
    pub fn also_about(mut self, workspace: PathBuf) -> Self {
        if !self.workspaces.contains(&workspace) {
            self.workspaces.push(workspace);
        }
        self
    }

    pub fn workspaces(&self) -> &[PathBuf] {
        &self.workspaces
    }

    pub fn access(&self, path: &Path) -> PathDecision<'_> {
        if let Some(glob) = self.globs.iter().find(|glob| glob.holds(path)) {
            return PathDecision { access: PathAccess::Deny, reason: DecisionReason::Glob(glob) };
        }
        match holder(&self.rules, path) {
            Some(rule) => PathDecision { access: rule.access, reason: DecisionReason::Rule(rule) },
            None => PathDecision { access: PathAccess::Deny, reason: DecisionReason::Nothing },
        }
    }

    /// The path must be absolute, without `.` and `..`, and its links must be resolved.
    pub fn may_read(&self, path: &Path) -> Result<(), PathRefusal> {
        self.may(path, PathAccess::Read)
    }

    pub fn may_write(&self, path: &Path) -> Result<(), PathRefusal> {
        self.may(path, PathAccess::Write)
    }

    fn may(&self, path: &Path, wanted: PathAccess) -> Result<(), PathRefusal> {
        let decision = self.access(path);
        if decision.access >= wanted {
            return Ok(());
        }
        Err(PathRefusal { path: path.to_owned(), wanted, rule: decision.reason.to_string() })
    }

    pub fn iter(&self) -> impl Iterator<Item = &PathRule> {
        self.rules.values()
    }

    pub fn globs(&self) -> &[Glob] {
        &self.globs
    }

    /// Places that may be read and that are not inside another one that may: what to open as directories.
    pub fn readable_roots(&self) -> impl Iterator<Item = &PathRule> {
        self.roots(PathAccess::Read)
    }

    /// Places that may be written and that are not inside another one that may.
    pub fn writable_roots(&self) -> impl Iterator<Item = &PathRule> {
        self.roots(PathAccess::Write)
    }

    fn roots(&self, access: PathAccess) -> impl Iterator<Item = &PathRule> {
        self.rules.values().filter(move |rule| rule.access >= access && self.above(&rule.path) < access)
    }

    /// What the parent of a path is allowed, globs aside.
    fn above(&self, path: &Path) -> PathAccess {
        path.parent().and_then(|parent| holder(&self.rules, parent)).map_or(PathAccess::Deny, |rule| rule.access)
    }

    /// Rules strictly below a path, which take away from it or give to it.
    pub fn below<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a PathRule> {
        self.rules.values().filter(move |rule| rule.path != path && rule.path.starts_with(path))
    }

    /// Adds a rule that only ever takes away.
    #[must_use]
    pub fn held_to(mut self, stricter: PathRule) -> Self {
        let inside: Vec<_> =
            self.below(&stricter.path).filter(|rule| rule.access > stricter.access).map(|rule| rule.path.clone()).collect();
        for path in inside {
            self.rules.remove(&path);
        }
        if self.access(&stricter.path).access > stricter.access {
            self.rules.insert(stricter.path.clone(), stricter);
        }
        self
    }

    /// Adds a place of our own that may be read although it lies in one that may not.
    #[must_use]
    pub fn showing(mut self, path: PathBuf) -> Self {
        self.rules.insert(path.clone(), PathRule { path, access: PathAccess::Read, origin: RuleOrigin::Own });
        self
    }

    /// What both allow. Refused if something that these rules grant outright is more than the ceiling grants there; what the
    /// ceiling takes away further below is taken away, and what it gives back below that is given back.
    pub fn within(&self, ceiling: &Self) -> Result<Self, Exceeds> {
        if self.network > ceiling.network {
            return Err(Exceeds::Network);
        }
        if let Some(device) = self.devices.difference(&ceiling.devices).next() {
            return Err(Exceeds::Device(device.clone()));
        }
        let mut rules = self.rules.clone();
        for rule in self.rules.values() {
            let allowed = ceiling.access(&rule.path);
            if rule.access <= allowed.access {
                continue;
            }
            // What is written into a layer changes nothing that the ceiling speaks of.
            if rule.origin == RuleOrigin::Home && allowed.access == PathAccess::Read {
                continue;
            }
            // What we protect was not asked for by a client.
            if !matches!(rule.origin, RuleOrigin::Protected | RuleOrigin::Home) {
                return Err(Exceeds::Path { path: rule.path.clone(), wanted: rule.access, rule: allowed.reason.to_string() });
            }
            rules.insert(rule.path.clone(), PathRule { path: rule.path.clone(), access: allowed.access, origin: RuleOrigin::Ceiling });
        }
        // Outer paths come first: what holds a path by then is what an inner rule has to differ from.
        for limit in ceiling.rules.values() {
            let Some(granted) = holder(&self.rules, &limit.path) else { continue };
            let path = limit.path.clone();
            if granted.access > limit.access {
                rules.insert(path.clone(), PathRule { path, access: limit.access, origin: RuleOrigin::Ceiling });
            } else if holder(&rules, &limit.path).is_none_or(|above| above.access != granted.access) {
                rules.insert(path.clone(), PathRule { path, ..granted.clone() });
            }
        }
        let mut globs = self.globs.clone();
        globs.extend(ceiling.globs.iter().filter(|glob| !self.globs.contains(glob)).cloned());
        let held = Self {
            rules,
            globs,
            network: self.network,
            workspaces: self.workspaces.clone(),
            links: self.links.clone(),
            home: self.home.clone(),
            substitutes: self.substitutes.clone(),
            devices: self.devices.clone(),
        };
        Ok(ceiling.links.iter().fold(held, |held, (link, access)| held.led_by([link.clone()], *access)))
    }
}

impl Policy {
    /// The same for any policy: no policy allows more than the operator does.
    pub fn within(&self, ceiling: &Self) -> Result<Self, Exceeds> {
        match (self, ceiling) {
            (policy, Self::Open) => Ok(policy.clone()),
            (Self::Open, Self::Confined(ceiling)) => {
                let root = ceiling.access(Path::new("/")).reason;
                Err(Exceeds::Unconfined { rule: root.to_string() })
            }
            (Self::Confined(rules), Self::Confined(ceiling)) => Ok(Self::Confined(Arc::new(rules.within(ceiling)?))),
        }
    }
}

fn rule(path: impl Into<PathBuf>, access: PathAccess) -> PathRule {
    PathRule { path: path.into(), access, origin: RuleOrigin::Request }
}

/// The rule with the longest path that holds this one.
fn holder<'a>(rules: &'a BTreeMap<PathBuf, PathRule>, path: &Path) -> Option<&'a PathRule> {
    path.ancestors().find_map(|ancestor| rules.get(ancestor))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn workspace() -> PathRules {
        PathRules::workspace_write([PathBuf::from("/w")])
    }

    #[test]
    fn the_longest_path_decides_and_nothing_is_allowed_by_default() {
        let rules = PathRules::new(
            [
                rule("/a", PathAccess::Read),
                rule("/a/b", PathAccess::Write),
                rule("/a/b/c", PathAccess::Deny),
                rule("/a/b/c/d", PathAccess::Read),
            ],
            Vec::new(),
            NetworkRule::Restricted,
        );
        let access = |path: &str| rules.access(Path::new(path)).access;
        assert_eq!([access("/"), access("/a"), access("/a/x")], [PathAccess::Deny, PathAccess::Read, PathAccess::Read]);
        assert_eq!([access("/a/b/x"), access("/a/b/c"), access("/a/b/c/x")], [PathAccess::Write, PathAccess::Deny, PathAccess::Deny]);
        assert_eq!([access("/a/b/c/d/x"), access("/ab"), access("/a/bc")], [PathAccess::Read, PathAccess::Deny, PathAccess::Read]);
    }

    #[test]
    fn what_runs_later_outside_stays_read_only_in_a_workspace() {
        let rules = workspace();
        assert!(rules.may_write(Path::new("/w/src/.git")).is_ok());
        for name in [".git/hooks/x", ".agents/skills", ".git", ".codex/config.toml"] {
            let refused = rules.may_write(&Path::new("/w").join(name)).unwrap_err();
            assert!(refused.to_string().contains("protected inside a writable root"), "{refused}");
            assert!(rules.may_read(&Path::new("/w").join(name)).is_ok());
        }
        assert_eq!(rules.may_write(Path::new("/x")).unwrap_err().to_string(), "writing /x is refused: / is read-only (the policy)");
    }

    #[test]
    fn what_is_protected_behind_a_link_is_protected_where_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("dotfiles")).unwrap();
        std::fs::write(root.join("dotfiles/rc"), "").unwrap();
        std::os::unix::fs::symlink("dotfiles/rc", root.join(".envrc")).unwrap();
        let rules = PathRules::workspace_write([root.clone()]);
        assert!(rules.may_write(&root.join("dotfiles/rc")).is_err() && rules.may_write(&root.join("dotfiles/x")).is_ok());
        assert_eq!(rules.links().collect::<Vec<_>>(), [(root.join(".envrc").as_path(), PathAccess::Read)]);
    }

    #[test]
    fn a_limit_gives_nothing() {
        let rules = PathRules::new([rule("/a", PathAccess::Write), rule("/a/b", PathAccess::Deny)], Vec::new(), NetworkRule::Restricted);
        let held = rules.protecting("/a/b/c".into()).protecting("/x".into()).protecting("/a/d".into());
        let access = |path: &str| held.access(Path::new(path)).access;
        assert_eq!(
            [access("/a/b/c"), access("/x"), access("/a/d/e"), access("/a/e")],
            [PathAccess::Deny, PathAccess::Deny, PathAccess::Read, PathAccess::Write]
        );
    }

    #[test]
    fn roots_are_the_outermost_places() {
        let rules = PathRules::new(
            [
                rule("/a", PathAccess::Read),
                rule("/a/b", PathAccess::Write),
                rule("/a/b/c", PathAccess::Read),
                rule("/a/b/c/d", PathAccess::Write),
            ],
            Vec::new(),
            NetworkRule::Restricted,
        );
        let paths = |roots: Vec<&PathRule>| roots.iter().map(|rule| rule.path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(paths(rules.readable_roots().collect()), ["/a"]);
        assert_eq!(paths(rules.writable_roots().collect()), ["/a/b", "/a/b/c/d"]);
        assert_eq!(rules.below(Path::new("/a/b")).count(), 2);
    }

    #[test]
    fn a_ceiling_is_not_exceeded() {
        let ceiling = PathRules::new(
            [rule("/", PathAccess::Read), rule("/w", PathAccess::Write), rule("/w/secret", PathAccess::Deny)],
            vec![Glob::new("/w/**/*.pem").unwrap()],
            NetworkRule::Restricted,
        );
        let held = workspace().within(&ceiling).unwrap();
        assert_eq!(held.access(Path::new("/w/secret/x")).access, PathAccess::Deny);
        assert_eq!(held.access(Path::new("/w/a/key.pem")).access, PathAccess::Deny);
        assert_eq!(held.access(Path::new("/w/a")).access, PathAccess::Write);
        let refused = PathRules::workspace_write([PathBuf::from("/other")]).within(&ceiling).unwrap_err();
        assert!(refused.to_string().contains("write access to /other"), "{refused}");
        let online = PathRules { network: NetworkRule::Enabled, ..workspace() };
        assert_eq!(online.within(&ceiling), Err(Exceeds::Network));
        let held = Policy::Confined(Arc::new(ceiling));
        assert!(matches!(Policy::Open.within(&held), Err(Exceeds::Unconfined { .. })));
        assert_eq!(Policy::Open.within(&Policy::Open), Ok(Policy::Open));
    }

    #[test]
    fn a_ceiling_may_deny_what_is_protected() {
        for denied in ["/w/.codex", "/w/.git/objects", "/w/.git"] {
            let limits = [rule("/", PathAccess::Read), rule("/w", PathAccess::Write), rule(denied, PathAccess::Deny)];
            let held = workspace().within(&PathRules::new(limits, Vec::new(), NetworkRule::Restricted)).unwrap();
            assert_eq!(held.access(&Path::new(denied).join("x")).access, PathAccess::Deny);
            assert_eq!(held.access(Path::new("/w/x")).access, PathAccess::Write);
        }
        let pattern = vec![Glob::new("/**/.ssh").unwrap()];
        let ceiling = PathRules::new([rule("/", PathAccess::Read), rule("/w", PathAccess::Write)], pattern, NetworkRule::Restricted);
        assert_eq!(workspace().within(&ceiling).unwrap().access(Path::new("/w/.ssh/key")).access, PathAccess::Deny);
        // What a request says of such a path itself is what it asks for.
        let asked = PathRules::new([rule("/w", PathAccess::Write), rule("/w/.ssh", PathAccess::Read)], Vec::new(), NetworkRule::Restricted);
        assert!(matches!(asked.within(&ceiling), Err(Exceeds::Path { .. })));
    }

    #[test]
    fn what_a_ceiling_gives_back_below_what_it_takes_away_is_kept() {
        let ceiling = PathRules::new(
            [rule("/", PathAccess::Read), rule("/home", PathAccess::Deny), rule("/home/me", PathAccess::Read)],
            Vec::new(),
            NetworkRule::Restricted,
        );
        let held = PathRules::read_only().within(&ceiling).unwrap();
        let access = |path: &str| held.access(Path::new(path)).access;
        assert_eq!([access("/etc"), access("/home/you"), access("/home/me/x")], [PathAccess::Read, PathAccess::Deny, PathAccess::Read]);
    }

    fn paths() -> impl Strategy<Value = PathBuf> {
        proptest::collection::vec("[ab]", 0..5).prop_map(|parts| Path::new("/").join(parts.join("/")))
    }

    fn any_access() -> impl Strategy<Value = PathAccess> {
        prop_oneof![Just(PathAccess::Deny), Just(PathAccess::Read), Just(PathAccess::Write)]
    }

    fn any_rules() -> impl Strategy<Value = PathRules> {
        proptest::collection::vec((paths(), any_access()), 0..8)
            .prop_map(|list| PathRules::new(list.into_iter().map(|(path, access)| rule(path, access)), Vec::new(), NetworkRule::Restricted))
    }

    /// Some of them ours, as everything that stays read-only inside a writable root.
    fn with_protected() -> impl Strategy<Value = PathRules> {
        (any_rules(), proptest::collection::vec(paths(), 0..4)).prop_map(|(mut rules, protected)| {
            for path in protected {
                rules.rules.entry(path.clone()).or_insert(PathRule { path, access: PathAccess::Read, origin: RuleOrigin::Protected });
            }
            rules
        })
    }

    proptest! {
        #[test]
        fn an_intersection_is_the_smaller_of_both_everywhere(a in with_protected(), b in any_rules(), path in paths()) {
            if let Ok(both) = a.within(&b) {
                let smaller = a.access(&path).access.min(b.access(&path).access);
                prop_assert_eq!(both.access(&path).access, smaller);
            }
        }

        #[test]
        fn a_rule_that_takes_away_gives_nothing(rules in any_rules(), at in paths(), access in any_access(), path in paths()) {
            let held = rules.clone().held_to(PathRule { path: at.clone(), access, origin: RuleOrigin::Own });
            prop_assert!(held.access(&path).access <= rules.access(&path).access);
            if path.starts_with(&at) {
                prop_assert!(held.access(&path).access <= access);
            } else {
                prop_assert_eq!(held.access(&path).access, rules.access(&path).access);
            }
        }

        #[test]
        fn every_allowed_path_is_below_a_root(rules in any_rules(), path in paths()) {
            let access = rules.access(&path).access;
            prop_assert_eq!(access >= PathAccess::Read, access >= PathAccess::Read && rules.readable_roots().any(|root| path.starts_with(&root.path)));
            if access == PathAccess::Write {
                prop_assert!(rules.writable_roots().any(|root| path.starts_with(&root.path)));
            }
        }
    }
}
