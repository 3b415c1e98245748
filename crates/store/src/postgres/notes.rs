//! Tells followers what was written, beside the writing: `NOTIFY` inside an append would make all appends of a database wait for each
//! other. What changed is collected and sent a few times a second, each thread once, however often it was written.

use std::collections::HashMap;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use outpost_thread::{Seq, ThreadId};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::{Shared, told};
use crate::local::lock;

/// The shortest time between two batches.
const PAUSE: Duration = Duration::from_millis(100);
const AGAIN: Duration = Duration::from_secs(1);

const SEND: &str = "select pg_notify('outpost_threads', note) from unnest($1::text[]) as note";

#[derive(Default)]
pub(super) struct Notes {
    changed: Mutex<HashMap<ThreadId, Seq>>,
    there: std::sync::Arc<Notify>,
}

impl Notes {
    /// Entries up to `last` are there; 0 if the thread was removed.
    pub(super) fn add(&self, thread: ThreadId, last: Seq) {
        lock(&self.changed).insert(thread, last);
        self.there.notify_one();
    }

    fn take(&self) -> Vec<String> {
        lock(&self.changed).drain().map(|(thread, last)| format!("{thread} {last}")).collect()
    }
}

/// Sends what was collected until the store is gone.
pub(super) async fn send(shared: Weak<Shared>) {
    loop {
        let Some(there) = shared.upgrade().map(|shared| shared.notes.there.clone()) else { return };
        // A store that is dropped meanwhile is noticed at the next look.
        let _ = tokio::time::timeout(Duration::from_secs(5), there.notified()).await;
        let Some(shared) = shared.upgrade() else { return };
        let notes = shared.notes.take();
        if notes.is_empty() {
            continue;
        }
        let sent = match shared.pool.get().await {
            Ok(client) => client.execute(SEND, &[&notes]).await.map(drop).map_err(|error| told(&error)),
            Err(error) => Err(error),
        };
        drop(shared);
        match sent {
            Ok(()) => sleep(PAUSE).await,
            // Followers read again after a gap, and a database that was away has broken their connections, too.
            Err(error) => {
                tracing::debug!(error, "changes could not be told");
                sleep(AGAIN).await;
            }
        }
    }
}
