//! Hears when the file changes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use thiserror::Error;
use tokio::sync::mpsc;

/// Editors write in several steps; the file is read when they are through.
const SETTLE: Duration = Duration::from_millis(100);

/// Hears when one file changes, comes or goes.
pub struct FileWatch {
    path: PathBuf,
    changes: mpsc::Receiver<()>,
    /// The text when it was last looked at, so that a touch is no change.
    seen: Option<Vec<u8>>,
    _watcher: RecommendedWatcher,
}

#[derive(Debug, Error)]
#[error("{} cannot be watched: {reason}", path.display())]
pub struct WatchError {
    pub path: PathBuf,
    pub reason: String,
}

impl FileWatch {
    /// Watches the directory, because editors replace files. It must exist.
    pub fn new(path: &Path) -> Result<Self, WatchError> {
        let refused = |reason: String| WatchError { path: path.to_owned(), reason };
        let directory = path.parent().ok_or_else(|| refused("it is no file".into()))?;
        let name = path.file_name().map(ToOwned::to_owned);
        let (sender, changes) = mpsc::channel(1);
        let handler = move |event: notify::Result<notify::Event>| {
            // When events were lost, anything may have happened.
            let concerns = event.as_ref().map_or(true, |event| {
                event.need_rescan() || (!event.kind.is_access() && event.paths.iter().any(|path| path.file_name() == name.as_deref()))
            });
            if concerns {
                // One that waits already is enough.
                let _ = sender.try_send(());
            }
        };
        let mut watcher = RecommendedWatcher::new(handler, notify::Config::default()).map_err(|error| refused(error.to_string()))?;
        watcher.watch(directory, RecursiveMode::NonRecursive).map_err(|error| refused(error.to_string()))?;
        let seen = std::fs::read(path).ok();
        Ok(Self { path: path.to_owned(), changes, seen, _watcher: watcher })
    }

    /// Waits until the content is another one. False if nothing can be heard any more.
    pub async fn changed(&mut self) -> bool {
        while self.changes.recv().await.is_some() {
            tokio::time::sleep(SETTLE).await;
            let now = tokio::fs::read(&self.path).await.ok();
            if now != self.seen {
                self.seen = now;
                return true;
            }
        }
        false
    }
}
