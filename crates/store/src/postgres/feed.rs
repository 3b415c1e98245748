//! What others write, as it happens. Notes may be lost with a connection; a gap is reported, and followers read again.

use std::future::poll_fn;
use std::time::Duration;

use outpost_thread::{Seq, ThreadId};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;
use tokio_postgres::AsyncMessage;

use super::address::Address;
use super::{PostgresError, PostgresStore, chain};

/// A follower that is slower than this many notes sees a gap.
const NOTES: usize = 1024;
/// After so long without a note the connection is tried.
const QUIET: Duration = Duration::from_secs(15);
const PATIENCE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadChange {
    /// Entries up to `last` are there; 0 if the thread was removed.
    Thread { thread: ThreadId, last: Seq },
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
        let first = Listener::connect(&address).await.map_err(PostgresError::Connect)?;
        let task = tokio::spawn(async move {
            let mut listener = Some(first);
            let mut pause = PATIENCE.0;
            loop {
                if let Some(mut listener) = listener.take() {
                    pause = PATIENCE.0;
                    while let Some(change) = listener.next().await {
                        // There may be no listener at this moment.
                        let _ = sender.send(change);
                    }
                    let _ = sender.send(ThreadChange::Gap);
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PATIENCE.1);
                match Listener::connect(&address).await {
                    Ok(again) => {
                        let _ = sender.send(ThreadChange::Gap);
                        listener = Some(again);
                    }
                    Err(error) => tracing::debug!(error, "the feed is not connected"),
                }
            }
        });
        Ok(ChangeFeed { changes, task })
    }
}

struct Listener {
    /// Dropping it ends the connection.
    client: tokio_postgres::Client,
    messages: tokio::sync::mpsc::UnboundedReceiver<ThreadChange>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listener {
    async fn connect(address: &Address) -> Result<Self, String> {
        let (client, mut connection) = address.config.connect(address.encryption.clone()).await.map_err(|error| chain(&error))?;
        let (sender, messages) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
                if let AsyncMessage::Notification(note) = message
                    && let Some(change) = change(note.payload())
                    && sender.send(change).is_err()
                {
                    return;
                }
            }
        });
        let listener = Self { client, messages, task };
        listener.client.batch_execute("listen outpost_threads").await.map_err(|error| chain(&error))?;
        Ok(listener)
    }

    async fn next(&mut self) -> Option<ThreadChange> {
        loop {
            match tokio::time::timeout(QUIET, self.messages.recv()).await {
                Ok(change) => return change,
                // A connection that died without a word would be listened to for ever.
                Err(_) => tokio::time::timeout(QUIET, self.client.batch_execute("")).await.ok()?.ok()?,
            }
        }
    }
}

fn change(payload: &str) -> Option<ThreadChange> {
    let (thread, last) = payload.split_once(' ')?;
    Some(ThreadChange::Thread { thread: thread.parse().ok()?, last: last.parse().ok()? })
}
