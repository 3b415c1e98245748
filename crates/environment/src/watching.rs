//! Watches over files in an environment. The executor forgets them with its connection; here they last as long as the caller that
//! wanted them.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outpost_wire::exec::watch::{ChangedParams, Unwatch, UnwatchParams, Watch, WatchParams};
use outpost_wire::{Fault, PathUri};
use tokio::sync::Notify;

use crate::environment::{Environment, EnvironmentError};
use crate::state::{Connected, ConnectionState};

/// How many paths are kept for a reader; beyond, it only learns that there were more.
const REMEMBERED: usize = 4096;

/// What changed since it was last asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileChanges {
    pub paths: BTreeSet<PathUri>,
    /// More changed than is told; anything below the watched path may be different.
    pub overflow: bool,
}

impl FileChanges {
    fn is_empty(&self) -> bool {
        self.paths.is_empty() && !self.overflow
    }
}

/// All watches of one handle.
#[derive(Default)]
pub(crate) struct HandleWatches {
    logs: Mutex<HashMap<String, Arc<Log>>>,
    last: AtomicU64,
}

#[derive(Default)]
struct Log {
    changes: Mutex<FileChanges>,
    filled: Notify,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, FileChanges> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, changed: ChangedParams) {
        let mut changes = self.lock();
        changes.overflow |= changed.overflow;
        for path in changed.paths {
            if changes.paths.len() >= REMEMBERED {
                changes.overflow = true;
                break;
            }
            changes.paths.insert(path);
        }
        drop(changes);
        self.filled.notify_one();
    }

    fn take(&self) -> Option<FileChanges> {
        let changes = std::mem::take(&mut *self.lock());
        (!changes.is_empty()).then_some(changes)
    }
}

impl HandleWatches {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Log>>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what the executor tells.
    pub(crate) fn push(&self, changed: ChangedParams) {
        let log = self.lock().get(&changed.watch_id).cloned();
        if let Some(log) = log {
            log.add(changed);
        }
    }

    fn add(&self, log: &Arc<Log>) -> String {
        let id = format!("watch-{}", self.last.fetch_add(1, Ordering::Relaxed));
        self.lock().insert(id.clone(), log.clone());
        id
    }
}

/// A watch; it ends when this is dropped.
pub struct FileWatch {
    environment: Environment,
    path: PathUri,
    recursive: bool,
    log: Arc<Log>,
    /// How the executor calls it, and on which connection.
    armed: Option<(String, Arc<Connected>)>,
}

impl Environment {
    /// Watches a file, or what lies in a directory, or everything below it. It must be there.
    pub async fn watch_files(&self, path: PathUri, recursive: bool) -> Result<FileWatch, EnvironmentError> {
        let connected = self.shared().ready().await?;
        if !connected.info.capabilities.fs_watch {
            let fault = Fault::invalid_request(format!("the executor of {} cannot watch files", self.name()));
            return Err(EnvironmentError::Fault(fault));
        }
        let mut watch = FileWatch { environment: self.clone(), path, recursive, log: Arc::default(), armed: None };
        watch.arm(connected).await?;
        Ok(watch)
    }
}

impl FileWatch {
    /// Waits for changes. After a lost connection it is told that there may have been any. Nothing when the watch cannot go on.
    pub async fn next(&mut self) -> Option<FileChanges> {
        let mut states = self.environment.watch();
        loop {
            let state = states.borrow_and_update().clone();
            match state {
                ConnectionState::Ready(connected) if !self.is_armed_on(&connected) => match self.arm(connected).await {
                    Ok(()) => {
                        let known = self.log.take().unwrap_or_default();
                        return Some(FileChanges { overflow: true, ..known });
                    }
                    Err(EnvironmentError::Unknown { .. }) => {}
                    Err(error) => {
                        tracing::debug!(environment = self.environment.name(), path = %self.path, %error, "a watch ends");
                        return None;
                    }
                },
                ConnectionState::Failed(failure) if failure.is_final() => return None,
                _ => {}
            }
            if let Some(changes) = self.log.take() {
                return Some(changes);
            }
            tokio::select! {
                () = self.log.filled.notified() => {}
                changed = states.changed() => changed.ok()?,
            }
        }
    }

    fn is_armed_on(&self, connected: &Arc<Connected>) -> bool {
        self.armed.as_ref().is_some_and(|(_, known)| Arc::ptr_eq(known, connected))
    }

    /// Under a new name each time: who gave up waiting for the answer does not know whether the old one is taken.
    async fn arm(&mut self, connected: Arc<Connected>) -> Result<(), EnvironmentError> {
        let watches = self.environment.shared().watches.clone();
        if let Some((old, _)) = self.armed.take() {
            watches.lock().remove(&old);
        }
        let id = watches.add(&self.log);
        let params = WatchParams { watch_id: id.clone(), path: self.path.clone(), recursive: self.recursive, sandbox: None };
        match self.environment.shared().call_on::<Watch>(&connected, &params).await {
            Ok(_) => {
                self.armed = Some((id, connected));
                Ok(())
            }
            Err(error) => {
                watches.lock().remove(&id);
                Err(error)
            }
        }
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        let Some((watch_id, connected)) = self.armed.take() else { return };
        self.environment.shared().watches.lock().remove(&watch_id);
        // The answer is not awaited; a connection that is gone has forgotten it anyway.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = connected.peer.0.call::<Unwatch>(&UnwatchParams { watch_id }).await;
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_once_and_never_without_bound() {
        let watches = HandleWatches::default();
        let log = Arc::new(Log::default());
        let id = watches.add(&log);
        let path = |number: usize| PathUri::parse(&format!("file:///{number}")).unwrap();
        let push = |paths: Vec<PathUri>| watches.push(ChangedParams { watch_id: id.clone(), paths, overflow: false });
        push(vec![path(1), path(2)]);
        push(vec![path(2)]);
        let changes = log.take().unwrap();
        assert!(changes.paths.len() == 2 && !changes.overflow);
        assert_eq!(log.take(), None);
        push((0..REMEMBERED + 1).map(path).collect());
        let changes = log.take().unwrap();
        assert!(changes.paths.len() == REMEMBERED && changes.overflow);
    }
}
