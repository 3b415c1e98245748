//! What others write, as it happens. Notes may be lost with a connection; a gap is reported, and followers read again.

use outpost_thread::{Ordinal, ThreadId};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

use super::listen::{Heard, Listener, listen};
use super::{PostgresError, PostgresStore};

/// A follower that is slower than this many notes sees a gap.
const NOTES: usize = 1024;
const CHANNEL: &str = "outpost_threads";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadChange {
    /// Entries up to `last` are there; 0 if the thread was removed.
    Thread { thread: ThreadId, last: Ordinal },
    /// Something may have been missed: look at everything that matters again.
    Gap,
}

/// A stream of changes; ends with its last follower.
pub struct ChangeFeed {
    changes: broadcast::Receiver<ThreadChange>,
    task: JoinHandle<()>,
}

impl Drop for ChangeFeed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ChangeFeed {
    /// The next change. Waits for ever if there is none.
    pub async fn next(&mut self) -> ThreadChange {
        match self.changes.recv().await {
            Ok(change) => change,
            Err(broadcast::error::RecvError::Lagged(_)) => ThreadChange::Gap,
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl PostgresStore {
    /// Everything that is written after this returns is told.
    pub async fn feed(&self) -> Result<ChangeFeed, PostgresError> {
        let address = self.0.address.clone();
        let (sender, changes) = broadcast::channel(NOTES);
        let first = Listener::connect(&address, CHANNEL).await.map_err(PostgresError::Connect)?;
        let task = tokio::spawn(listen(address, CHANNEL, Some(first), move |heard| {
            let change = match heard {
                Heard::Note(payload) => change(&payload),
                Heard::Gap => Some(ThreadChange::Gap),
            };
            // There may be no follower at this moment.
            let _ = change.map(|change| sender.send(change));
        }));
        Ok(ChangeFeed { changes, task })
    }
}

fn change(payload: &str) -> Option<ThreadChange> {
    let (thread, last) = payload.split_once(' ')?;
    Some(ThreadChange::Thread { thread: thread.parse().ok()?, last: last.parse().ok()? })
}
