//! What has changed below one watched path since it was last told. Knows neither the system nor the wire's timing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use outpost_wire::PathUri;

/// More paths than this are not told one by one.
const MAX_PATHS: usize = 256;

pub(super) struct ChangeLog {
    /// As the client spells it.
    shown: PathBuf,
    /// Where that leads, without links: this is what the system reports.
    real: PathBuf,
    recursive: bool,
    pending: Pending,
}

enum Pending {
    /// Relative to the watched path.
    Paths(BTreeSet<PathBuf>),
    TooMany,
}

/// What is told at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Changes {
    Paths(Vec<PathUri>),
    TooMany,
}

impl ChangeLog {
    pub(super) fn new(shown: PathBuf, real: PathBuf, recursive: bool) -> Self {
        Self { shown, real, recursive, pending: Pending::Paths(BTreeSet::new()) }
    }

    pub(super) fn real(&self) -> &Path {
        &self.real
    }

    pub(super) fn is_recursive(&self) -> bool {
        self.recursive
    }

    /// Takes down a change if it is one below the watched path. Says whether it is.
    pub(super) fn note(&mut self, changed: &Path) -> bool {
        let Ok(below) = changed.strip_prefix(&self.real) else { return false };
        if !self.recursive && below.components().nth(1).is_some() {
            return false;
        }
        if let Pending::Paths(paths) = &mut self.pending {
            paths.insert(below.to_owned());
            if paths.len() > MAX_PATHS {
                self.lose();
            }
        }
        true
    }

    /// Anything may have changed.
    pub(super) fn lose(&mut self) {
        self.pending = Pending::TooMany;
    }

    /// What there is to tell, if anything.
    pub(super) fn take(&mut self) -> Option<Changes> {
        match std::mem::replace(&mut self.pending, Pending::Paths(BTreeSet::new())) {
            Pending::TooMany => Some(Changes::TooMany),
            Pending::Paths(paths) if paths.is_empty() => None,
            Pending::Paths(paths) => Some(Changes::Paths(paths.iter().filter_map(|below| self.uri(below)).collect())),
        }
    }

    fn uri(&self, below: &Path) -> Option<PathUri> {
        // Joining nothing would add a slash.
        let path = if below.as_os_str().is_empty() { self.shown.clone() } else { self.shown.join(below) };
        PathUri::from_native(&path).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(changes: Option<Changes>) -> Vec<String> {
        match changes {
            Some(Changes::Paths(paths)) => paths.iter().map(ToString::to_string).collect(),
            other => panic!("no paths: {other:?}"),
        }
    }

    fn log(recursive: bool) -> ChangeLog {
        ChangeLog::new("/link".into(), "/real".into(), recursive)
    }

    #[test]
    fn each_path_is_told_once_and_as_the_client_spells_it() {
        let mut log = log(true);
        for path in ["/real/a/b", "/real/a/b", "/real", "/real/a"] {
            assert!(log.note(Path::new(path)));
        }
        assert!(!log.note(Path::new("/realistic")) && !log.note(Path::new("/")));
        assert_eq!(paths(log.take()), ["file:///link", "file:///link/a", "file:///link/a/b"]);
        assert_eq!(log.take(), None);
    }

    #[test]
    fn only_children_count_without_recursion() {
        let mut log = log(false);
        assert!(log.note(Path::new("/real/a")) && !log.note(Path::new("/real/a/b")));
        assert_eq!(paths(log.take()), ["file:///link/a"]);
    }

    #[test]
    fn too_many_paths_are_not_told_one_by_one() {
        let mut log = log(false);
        let fill = |log: &mut ChangeLog, count: usize| (0..count).for_each(|n| assert!(log.note(&PathBuf::from(format!("/real/{n}")))));
        fill(&mut log, MAX_PATHS);
        assert_eq!(paths(log.take()).len(), MAX_PATHS);
        fill(&mut log, MAX_PATHS + 1);
        assert!(log.note(Path::new("/real/more")));
        assert_eq!(log.take(), Some(Changes::TooMany));
        assert_eq!(log.take(), None);
    }
}
