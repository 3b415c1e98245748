//! What the verdict card says about repositories.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use outpost_sandbox::{Level, PromiseRow};

use super::{GitMode, GitSettings};

const PROMISE: &str = "of a repository only what is committed and staged leaves a sandbox";

/// The program, as a search path names it.
pub(super) fn program(path: Option<&OsStr>) -> Option<PathBuf> {
    let path = path.unwrap_or_else(|| OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let found = std::env::split_paths(path).map(|directory| directory.join("git")).find(|program| program.is_file());
    found.and_then(|program| program.canonicalize().ok())
}

impl GitSettings {
    /// What holds at this level, on a machine whose programs are found by this search path.
    pub fn row(&self, path: Option<&OsStr>, level: Option<Level>) -> PromiseRow {
        self.row_with(program(path).as_deref(), level)
    }

    fn row_with(&self, program: Option<&Path>, level: Option<Level>) -> PromiseRow {
        let row = |mechanism: &str, lacks: Option<&str>, restriction: Option<&str>| PromiseRow {
            promise: PROMISE,
            holds: lacks.is_none(),
            mechanism: mechanism.to_owned(),
            reason: lacks.or(restriction).map(str::to_owned),
        };
        match (self.mode, level) {
            (_, None) => row("none", Some("there is no sandbox"), None),
            (GitMode::Full, _) => row(
                "none",
                Some("git = \"full\": commands have the repositories themselves, and git outside runs what they put there"),
                None,
            ),
            (_, Some(Level::Landlock)) => row(
                "none",
                Some("without mounts `.git` in a writable root is unprotected, and git outside runs what commands put there"),
                None,
            ),
            (GitMode::ReadOnly, _) => row("read-only mounts", None, Some("git = \"read-only\": nothing can be committed")),
            (GitMode::Commit, _) if program.is_none() => {
                row("read-only mounts", None, Some("git is not installed on this machine, so nothing can be committed"))
            }
            (GitMode::Commit, _) if self.directory.is_none() => {
                row("read-only mounts", None, Some("there is no directory for layers, so nothing can be committed"))
            }
            (GitMode::Commit, _) => row("a private layer for each session, and an import", None, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_hold_says_why() {
        let settings = |mode| GitSettings { mode, directory: Some("/d".into()) };
        let git = Some(Path::new("/usr/bin/git"));
        let full = settings(GitMode::Commit).row_with(git, Some(Level::Full));
        assert!(full.holds && full.reason.is_none() && full.mechanism.contains("layer"), "{full:?}");
        for (mode, program, level, holds, says) in [
            (GitMode::Commit, None, Some(Level::Full), true, "not installed"),
            (GitMode::ReadOnly, git, Some(Level::Mounts), true, "read-only"),
            (GitMode::Full, git, Some(Level::Full), false, "themselves"),
            (GitMode::Commit, git, Some(Level::Landlock), false, "unprotected"),
            (GitMode::ReadOnly, git, Some(Level::Landlock), false, "unprotected"),
            (GitMode::Commit, git, None, false, "no sandbox"),
        ] {
            let row = settings(mode).row_with(program, level);
            assert!(row.holds == holds && row.reason.as_ref().is_some_and(|reason| reason.contains(says)), "{row:?}");
        }
        let homeless = GitSettings::default().row_with(git, Some(Level::Full));
        assert!(homeless.holds && homeless.reason.is_some(), "{homeless:?}");
    }
}
