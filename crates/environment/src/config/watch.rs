//! Hears when the file changes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use outpost_wire::SharedError;
use thiserror::Error;
use tokio::sync::mpsc;

/// Editors write in several steps; the file is read when they are through.
const SETTLE: Duration = Duration::from_millis(100);

/// Hears when one of some files changes, comes or goes.
pub struct ConfigWatch {
    paths: Vec<PathBuf>,
    changes: mpsc::Receiver<()>,
    /// The texts when they were last looked at, so that a touch is no change.
    seen: Vec<Option<Vec<u8>>>,
    _watcher: RecommendedWatcher,
}

#[derive(Debug, Error)]
#[error("{} cannot be watched: {reason}", path.display())]
pub struct WatchError {
    pub path: PathBuf,
    #[source]
    pub reason: SharedError,
}

impl ConfigWatch {
    /// Watches the directory, because editors replace files. It must exist.
    pub fn new(path: &Path) -> Result<Self, WatchError> {
        Self::of_all(vec![path.to_owned()])
    }

    /// The same for several files. A file in a directory that does not exist is left out, unless that is true of all.
    pub fn of_all(paths: Vec<PathBuf>) -> Result<Self, WatchError> {
        let first = paths.first().cloned().unwrap_or_default();
        let refused = |reason: SharedError| WatchError { path: first.clone(), reason };
        let wanted = paths.clone();
        let (sender, changes) = mpsc::channel(1);
        let handler = move |event: notify::Result<notify::Event>| {
            // Directories are told by the names under which they are watched, files of all of them by their own.
            let is_meant = |path: &PathBuf| wanted.iter().any(|wanted| wanted.file_name() == path.file_name());
            // When events were lost, anything may have happened.
            let concerns =
                event.as_ref().map_or(true, |event| event.need_rescan() || (!event.kind.is_access() && event.paths.iter().any(is_meant)));
            if concerns {
                // One that waits already is enough.
                let _ = sender.try_send(());
            }
        };
        let mut watcher = RecommendedWatcher::new(handler, notify::Config::default()).map_err(|error| refused(SharedError::new(error)))?;
        let mut watched: Vec<&Path> = Vec::new();
        let mut problem = SharedError::from("it is not a file");
        for directory in paths.iter().filter_map(|path| path.parent()) {
            if watched.contains(&directory) {
                continue;
            }
            match watcher.watch(directory, RecursiveMode::NonRecursive) {
                Ok(()) => watched.push(directory),
                Err(error) => problem = SharedError::new(error),
            }
        }
        if watched.is_empty() {
            return Err(refused(problem));
        }
        let seen = paths.iter().map(|path| std::fs::read(path).ok()).collect();
        Ok(Self { paths, changes, seen, _watcher: watcher })
    }

    /// Waits until the content is another one. False if nothing can be heard any more.
    pub async fn changed(&mut self) -> bool {
        while self.changes.recv().await.is_some() {
            tokio::time::sleep(SETTLE).await;
            let mut now = Vec::with_capacity(self.paths.len());
            for path in &self.paths {
                now.push(tokio::fs::read(path).await.ok());
            }
            if now != self.seen {
                self.seen = now;
                return true;
            }
        }
        false
    }
}
