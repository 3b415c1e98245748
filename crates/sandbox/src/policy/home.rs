//! What a policy says about the home of the executor's user, which holds tools and caches as well as keys.

use std::path::{Path, PathBuf};

use super::{PathAccess, PathRule, PathRules, RuleOrigin};

/// The home as sandboxed code sees it. All paths but the first two are relative to the home and pass no link.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HomeView {
    /// Resolved.
    pub home: PathBuf,
    /// Whose layer is used: what one workspace leaves there, no other sees.
    pub workspace: PathBuf,
    /// What may be written, into the layer.
    pub directories: Vec<PathBuf>,
    /// Keys and tokens: nothing of these is shown.
    pub hidden: Vec<PathBuf>,
    /// Settings that may hold secrets: a copy without them is shown.
    pub mixed: Vec<PathBuf>,
}

impl HomeView {
    /// Everything that is not shown as it is.
    pub fn secrets(&self) -> impl Iterator<Item = PathBuf> {
        self.hidden.iter().chain(&self.mixed).map(|path| self.home.join(path))
    }
}

impl PathRules {
    /// Shows the home in this way. Where the rules let something be written, the directories of the view can be written as well.
    #[must_use]
    pub fn with_home(mut self, view: HomeView) -> Self {
        if self.rules.values().any(|rule| rule.access == PathAccess::Write) {
            for directory in &view.directories {
                let path = view.home.join(directory);
                if self.access(&path).access == PathAccess::Read && !self.rules.contains_key(&path) {
                    self.rules.insert(path.clone(), PathRule { path, access: PathAccess::Write, origin: RuleOrigin::Home });
                }
            }
        }
        self.home = Some(view);
        self
    }

    pub fn home(&self) -> Option<&HomeView> {
        self.home.as_ref()
    }

    /// What may be done with a path of the machine itself: what is written into a layer does not change it.
    pub fn on_machine(&self, path: &Path) -> PathAccess {
        match self.access(path) {
            decision if matches!(decision.reason, super::DecisionReason::Rule(rule) if rule.origin == RuleOrigin::Home) => PathAccess::Read,
            decision => decision.access,
        }
    }

    /// Whether a request speaks of exactly this path, or of something below it, as of something to be seen.
    pub fn names(&self, path: &Path) -> bool {
        self.rules.values().any(|rule| rule.origin == RuleOrigin::Request && rule.access > PathAccess::Deny && rule.path.starts_with(path))
    }
}

#[cfg(test)]
mod tests {
    use super::super::NetworkRule;
    use super::*;

    fn view() -> HomeView {
        HomeView {
            home: "/home/u".into(),
            workspace: "/w".into(),
            directories: vec![".cache".into(), "go".into()],
            hidden: vec![".aws".into()],
            mixed: vec![".npmrc".into()],
        }
    }

    #[test]
    fn a_layer_is_written_where_the_policy_writes_at_all() {
        let rules = PathRules::workspace_write(["/w".into(), "/home/u/go/src/x".into()]).with_home(view());
        let at = |path: &str| (rules.access(Path::new(path)).access, rules.on_machine(Path::new(path)));
        assert_eq!(at("/home/u/.cache/pip"), (PathAccess::Write, PathAccess::Read));
        assert_eq!(at("/home/u/go/src/x/y"), (PathAccess::Write, PathAccess::Write));
        assert_eq!(at("/home/u/notes"), (PathAccess::Read, PathAccess::Read));
        let rules = PathRules::read_only().with_home(view());
        assert_eq!(rules.access(Path::new("/home/u/.cache")).access, PathAccess::Read);
        assert!(rules.home().is_some());
    }

    #[test]
    fn a_ceiling_does_not_take_the_layer_away_unless_it_denies_the_place() {
        let rule = |path: &str, access| PathRule { path: path.into(), access, origin: RuleOrigin::Ceiling };
        let limits = [rule("/", PathAccess::Read), rule("/w", PathAccess::Write), rule("/home/u/go", PathAccess::Deny)];
        let ceiling = PathRules::new(limits, Vec::new(), NetworkRule::Restricted);
        let held = PathRules::workspace_write(["/w".into()]).with_home(view()).within(&ceiling).unwrap();
        assert_eq!(held.access(Path::new("/home/u/.cache/x")).access, PathAccess::Write);
        assert_eq!(held.access(Path::new("/home/u/go/x")).access, PathAccess::Deny);
        assert!(held.home().is_some());
    }

    #[test]
    fn what_a_request_names_is_known() {
        let named = PathRule { path: "/home/u/.aws/config".into(), access: PathAccess::Read, origin: RuleOrigin::Request };
        let rules = PathRules::new([named], Vec::new(), NetworkRule::Restricted);
        assert!(rules.names(Path::new("/home/u/.aws")) && !rules.names(Path::new("/home/u/.ssh")));
    }
}
