//! The system's notifications about files: one inotify instance, which several watches share. It blocks.

use std::path::{Path, PathBuf};

use notify::{Config, ErrorKind, EventHandler, RecommendedWatcher, RecursiveMode, Watcher};
use outpost_wire::Fault;
use rustix::io::Errno;

use crate::fault;

pub(super) struct Notifier {
    watcher: RecommendedWatcher,
    /// What a client wants to hear about; a path may be wanted more than once.
    wanted: Vec<WatchDemand>,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct WatchDemand {
    /// Real, without links: two spellings of one directory would be one watch for the system.
    pub path: PathBuf,
    pub recursive: bool,
}

impl WatchDemand {
    fn covers(&self, other: &Self) -> bool {
        if self.recursive { other.path.starts_with(&self.path) } else { self.path == other.path && !other.recursive }
    }
}

/// Watches below this path were interrupted; what happened meanwhile is not known.
#[must_use]
pub(super) struct Gap(pub PathBuf);

impl Notifier {
    pub(super) fn new(handler: impl EventHandler) -> Result<Self, Fault> {
        // A link inside a tree may lead anywhere, even up.
        let config = Config::default().with_follow_symlinks(false);
        let watcher = RecommendedWatcher::new(handler, config).map_err(|error| refusal(error, Path::new("")))?;
        Ok(Self { watcher, wanted: Vec::new() })
    }

    /// Begins to tell about a path.
    pub(super) fn add(&mut self, wanted: WatchDemand) -> Result<(), (Fault, Option<Gap>)> {
        self.wanted.push(wanted.clone());
        self.watch(&wanted).map_err(|error| {
            let fault = refusal(error, &wanted.path);
            // A tree may have been taken in half.
            (fault, self.remove(&wanted))
        })
    }

    /// No longer tells about a path, unless another client wants it.
    pub(super) fn remove(&mut self, unwanted: &WatchDemand) -> Option<Gap> {
        let index = self.wanted.iter().position(|wanted| wanted == unwanted)?;
        self.wanted.swap_remove(index);
        if self.wanted.iter().any(|wanted| wanted.covers(unwanted)) {
            return None;
        }
        // It may be gone already, with what it watched.
        let _ = self.watcher.unwatch(&unwanted.path);
        // With a tree, the watches of everything in it are gone, so those that others want must be made again.
        let is_gone = |wanted: &&WatchDemand| unwanted.recursive && wanted.path.starts_with(&unwanted.path);
        let inside: Vec<_> = self.wanted.iter().filter(is_gone).cloned().collect();
        for wanted in &inside {
            let _ = self.watch(wanted);
        }
        (!inside.is_empty()).then(|| Gap(unwanted.path.clone()))
    }

    /// Also right for a path that is watched already: it may have been replaced since. A part of a wanted tree must stay
    /// recursive, or what is made in it would not be watched any more.
    fn watch(&mut self, wanted: &WatchDemand) -> notify::Result<()> {
        let whole = WatchDemand { recursive: true, ..wanted.clone() };
        let recursive = self.wanted.iter().any(|other| other.covers(&whole));
        self.watcher.watch(&wanted.path, if recursive { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive })
    }
}

fn refusal(error: notify::Error, path: &Path) -> Fault {
    match error.kind {
        ErrorKind::MaxFilesWatch => fault::watches_exhausted("fs.inotify.max_user_watches"),
        ErrorKind::Io(error) if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE)) => {
            fault::watches_exhausted("fs.inotify.max_user_instances")
        }
        ErrorKind::Io(error) => fault::file(error),
        ErrorKind::PathNotFound => fault::file(Errno::NOENT.into()),
        _ => Fault::internal(format!("`{}` cannot be watched", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_is_told_as_such() {
        let text = |error| refusal(error, Path::new("/x"));
        let full = text(notify::Error::new(ErrorKind::MaxFilesWatch));
        assert_eq!((full.code, full.message.contains("max_user_watches")), (outpost_wire::fault::INTERNAL, true));
        let instances = text(notify::Error::io(Errno::MFILE.into()));
        assert_eq!((instances.code, instances.message.contains("max_user_instances")), (outpost_wire::fault::INTERNAL, true));
        assert_eq!(text(notify::Error::new(ErrorKind::PathNotFound)).code, outpost_wire::fault::NOT_FOUND);
    }

    #[test]
    fn a_tree_covers_its_parts() {
        let wanted = |path: &str, recursive| WatchDemand { path: path.into(), recursive };
        assert!(wanted("/a", true).covers(&wanted("/a/b", true)) && wanted("/a", true).covers(&wanted("/a", false)));
        assert!(wanted("/a", false).covers(&wanted("/a", false)));
        assert!(!wanted("/a", false).covers(&wanted("/a", true)) && !wanted("/a", true).covers(&wanted("/ab", false)));
    }
}
