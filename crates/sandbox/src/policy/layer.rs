//! Directories of ours that sandboxed code sees in the place of the machine's: what is written there reaches no other program.

use std::path::{Path, PathBuf};

use super::{PathAccess, PathRule, PathRules, RuleOrigin};

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Substitute {
    /// Where it is seen.
    pub path: PathBuf,
    /// The directory that is seen there. It belongs to the user that sandboxed code works for.
    pub source: PathBuf,
    /// What sandboxed code may do with it.
    pub access: PathAccess,
}

impl PathRules {
    /// Shows a directory in the place of another one. What was only protected below it is not there any more.
    #[must_use]
    pub fn substituting(mut self, substitute: Substitute) -> Self {
        let Substitute { path, access, .. } = &substitute;
        self.rules.retain(|known, rule| rule.origin != RuleOrigin::Protected || known == path || !known.starts_with(path));
        self.rules.insert(path.clone(), PathRule { path: path.clone(), access: *access, origin: RuleOrigin::Layer });
        self.substitutes.push(substitute);
        self
    }

    /// Takes protection away from a path and from everything below it.
    #[must_use]
    pub fn unprotecting(mut self, path: &Path) -> Self {
        self.rules.retain(|known, rule| rule.origin != RuleOrigin::Protected || !known.starts_with(path));
        self
    }

    pub fn substitutes(&self) -> &[Substitute] {
        &self.substitutes
    }

    /// The directory that is seen at exactly this path.
    pub(crate) fn source_of(&self, path: &Path) -> Option<&Path> {
        self.substitutes.iter().find(|substitute| substitute.path == path).map(|substitute| substitute.source.as_path())
    }

    /// Whether a path lies below something that is shown in the place of the machine's.
    pub(crate) fn is_in_layer(&self, path: &Path) -> bool {
        self.substitutes.iter().any(|substitute| path != substitute.path && path.starts_with(&substitute.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::NetworkRule;

    #[test]
    fn a_layer_takes_the_place_of_what_is_protected() {
        let rules = PathRules::workspace_write(["/w".into()]).protecting("/w/.git/modules/x".into());
        assert!(rules.may_write(Path::new("/w/.git/modules/x/config")).is_err());
        let substitute = Substitute { path: "/w/.git".into(), source: "/own/layer".into(), access: PathAccess::Write };
        let rules = rules.substituting(substitute);
        assert!(rules.may_write(Path::new("/w/.git/modules/x/config")).is_ok() && rules.may_write(Path::new("/w/.codex/x")).is_err());
        assert_eq!(rules.source_of(Path::new("/w/.git")), Some(Path::new("/own/layer")));
        assert!(rules.is_in_layer(Path::new("/w/.git/x")) && !rules.is_in_layer(Path::new("/w/.git")));
        assert_ne!(rules, PathRules::new([], Vec::new(), NetworkRule::Restricted));
    }
}
