//! Whether a gitdir has changed since it was last compared, seen by looking at a few files only.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A change so soon before something was looked at may have been missed: clocks of file systems are coarse.
const TICK: Duration = Duration::from_millis(50);
/// So many directories of refs are looked at; with more, everything is compared each time.
const MAX_DIRECTORIES: usize = 2048;

/// By what a file is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GitStamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: Duration,
}

impl GitStamp {
    pub(super) fn of(path: &Path) -> Option<Self> {
        let metadata = path.symlink_metadata().ok()?;
        let seconds = u64::try_from(metadata.ctime()).ok()?;
        let changed = Duration::new(seconds, u32::try_from(metadata.ctime_nsec()).ok()?);
        Some(Self { device: metadata.dev(), inode: metadata.ino(), size: metadata.size(), changed })
    }

    /// Which file it is, whatever is in it.
    pub(super) fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Whether it had changed before that time for sure.
    pub(super) fn is_older_than(&self, time: SystemTime) -> bool {
        self.changed + TICK < time.duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}

/// What a gitdir was like.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    seen: Vec<(PathBuf, Option<GitStamp>)>,
    is_settled: bool,
}

impl Stamps {
    /// Of these parts of a gitdir. `with_directory` also notices files that come and go at the top of each.
    pub(super) fn take(gitdir: &Path, units: &[String], with_directory: bool) -> Self {
        Self::taken_at(SystemTime::now(), gitdir, units, with_directory)
    }

    /// The same for something that was copied at that time: what changed since, or just before, counts as changed.
    pub(super) fn taken_at(time: SystemTime, gitdir: &Path, units: &[String], with_directory: bool) -> Self {
        let now = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut seen = Vec::new();
        let mut see = |path: PathBuf| {
            let stamp = GitStamp::of(&path);
            seen.push((path, stamp));
        };
        let mut is_complete = true;
        for unit in units {
            let top = if unit.is_empty() { gitdir.to_owned() } else { gitdir.join(unit) };
            ["HEAD", "packed-refs", "index", "worktrees"].into_iter().for_each(|name| see(top.join(name)));
            for tree in worktrees(&top) {
                ["HEAD", "index"].into_iter().for_each(|name| see(top.join("worktrees").join(&tree).join(name)));
            }
            let mut left = vec![top.join("refs")];
            let mut count = 0;
            while let Some(directory) = left.pop() {
                count += 1;
                is_complete &= count <= MAX_DIRECTORIES;
                if !is_complete {
                    break;
                }
                for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                    if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                        left.push(entry.path());
                    }
                }
                see(directory);
            }
            if with_directory {
                see(top);
            }
        }
        let is_settled = is_complete && seen.iter().all(|(_, stamp)| stamp.is_none_or(|stamp| stamp.changed + TICK < now));
        Self { seen, is_settled }
    }

    /// Whether nothing has changed since, for sure.
    pub(super) fn are_current(&self) -> bool {
        self.is_settled && self.seen.iter().all(|(path, stamp)| GitStamp::of(path) == *stamp)
    }
}

/// The names of the working trees that a part of a gitdir has besides its first one.
pub(super) fn worktrees(top: &Path) -> Vec<String> {
    let entries = fs::read_dir(top.join("worktrees")).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .take(256)
        .collect();
    names.sort();
    names
}
