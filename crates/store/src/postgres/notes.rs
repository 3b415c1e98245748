//! Tells followers what was written, beside the writing: `NOTIFY` inside an append would make all appends of a database wait for each
//! other. What changed is collected and sent a few times a second, each thread once, however often it was written.

use std::collections::HashMap;
use std::sync::{Mutex, Weak};
use std::time::Duration;

use outpost_thread::{Ordinal, ThreadId};
use outpost_wire::SharedError;
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
    changed: Mutex<HashMap<ThreadId, Ordinal>>,
    there: std::sync::Arc<Notify>,
}

impl Notes {
    /// Entries up to `last` are there; 0 if the thread was removed.
    pub(super) fn add(&self, thread: ThreadId, last: Ordinal) {
        lock(&self.changed).insert(thread, last);
        self.there.notify_one();
    }

    fn take(&self) -> HashMap<ThreadId, Ordinal> {
        std::mem::take(&mut *lock(&self.changed))
    }

    /// What could not be sent is sent later, unless there is something newer about a thread.
    fn put_back(&self, unsent: HashMap<ThreadId, Ordinal>) {
        let mut changed = lock(&self.changed);
        for (thread, last) in unsent {
            changed.entry(thread).or_insert(last);
        }
        self.there.notify_one();
    }
}

/// Sends what was collected; whether there was anything.
pub(super) async fn flush(shared: &Shared) -> Result<bool, SharedError> {
    let notes = shared.notes.take();
    if notes.is_empty() {
        return Ok(false);
    }
    let texts: Vec<String> = notes.iter().map(|(thread, last)| format!("{thread} {last}")).collect();
    let sent = match shared.pool.get().await {
        Ok(client) => client.execute(SEND, &[&texts]).await.map_err(told),
        Err(error) => Err(error),
    };
    sent.map(|_| true).inspect_err(|_| shared.notes.put_back(notes))
}

/// Sends what was collected until the store is gone.
pub(super) async fn send(shared: Weak<Shared>) {
    loop {
        let Some(there) = shared.upgrade().map(|shared| shared.notes.there.clone()) else { return };
        // A store that is dropped meanwhile is noticed at the next look.
        let _ = tokio::time::timeout(Duration::from_secs(5), there.notified()).await;
        let Some(shared) = shared.upgrade() else { return };
        let sent = flush(&shared).await;
        drop(shared);
        match sent {
            Ok(false) => {}
            Ok(true) => sleep(PAUSE).await,
            Err(error) => {
                tracing::debug!(%error, "changes could not be told");
                sleep(AGAIN).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> ThreadId {
        format!("00000000-0000-7000-8000-00000000000{n}").parse().unwrap()
    }

    #[test]
    fn what_could_not_be_sent_stays_unless_something_newer_is_there() {
        let (notes, one, two) = (Notes::default(), id(1), id(2));
        notes.add(one, 1);
        notes.add(two, 1);
        let unsent = notes.take();
        notes.add(one, 2);
        notes.put_back(unsent);
        assert_eq!(notes.take(), HashMap::from([(one, 2), (two, 1)]));
    }
}
