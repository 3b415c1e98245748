//! What the nodes of a store share beside threads, by kind and key: in a database, or in memory for tests and programs that bring their own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outpost_wire::SharedError;
use thiserror::Error;
use tokio::sync::watch;

use crate::local::lock;
use crate::postgres::{PostgresStore, SharedRecord};
use crate::store::{Store, StoreFuture};

/// How long a follower that hears nothing waits before it looks all the same: notes can be lost with a connection that dies silently.
const LONGEST: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("what the nodes of this store share cannot be read or written: {0}")]
pub struct SharedRecordsError(#[source] SharedError);

/// Records that all nodes of a store see. Cheap to clone.
#[derive(Clone)]
pub struct SharedRecords(Kept);

#[derive(Clone)]
enum Kept {
    Memory(Arc<InMemory>),
    Postgres(PostgresStore),
}

struct InMemory {
    records: Mutex<BTreeMap<(String, String), String>>,
    changed: Arc<watch::Sender<u64>>,
}

/// Says when records of the kinds that nodes follow (`environments`, `token`, `bound`) may have changed.
pub struct RecordChanges {
    changed: watch::Receiver<u64>,
}

impl RecordChanges {
    pub(crate) fn of(changed: &watch::Sender<u64>) -> Self {
        Self { changed: changed.subscribe() }
    }

    /// Waits until something may have changed since the last time, at most ten seconds; false if only the time is over.
    pub fn wait(&mut self) -> StoreFuture<'_, bool> {
        Box::pin(async {
            match tokio::time::timeout(LONGEST, self.changed.changed()).await {
                Ok(Ok(())) => true,
                Err(_) => false,
                // The store is gone, and nothing is told any more.
                Ok(Err(_)) => {
                    tokio::time::sleep(LONGEST).await;
                    false
                }
            }
        })
    }
}

impl Store {
    /// What its nodes share; nothing for a store that belongs to one home, where files say it.
    pub fn records(&self) -> Option<SharedRecords> {
        match self {
            Self::Postgres(store) => Some(SharedRecords(Kept::Postgres(store.clone()))),
            Self::Local(_) | Self::Memory(_) => None,
        }
    }
}

type Outcome<'a, T> = StoreFuture<'a, Result<T, SharedRecordsError>>;

impl SharedRecords {
    /// Records that live as long as the program.
    pub fn memory() -> Self {
        Self(Kept::Memory(Arc::new(InMemory { records: Mutex::default(), changed: Arc::new(watch::Sender::new(0)) })))
    }

    /// All records of a kind, by their keys.
    pub fn all<'a>(&'a self, kind: &'a str) -> Outcome<'a, Vec<SharedRecord>> {
        Box::pin(async move {
            match &self.0 {
                Kept::Memory(memory) => {
                    let records = lock(&memory.records);
                    let own = records.iter().filter(|((of, _), _)| of == kind);
                    Ok(own.map(|((_, key), content)| SharedRecord { key: key.clone(), content: content.clone() }).collect())
                }
                Kept::Postgres(store) => store.shared(kind).await.map_err(SharedRecordsError),
            }
        })
    }

    pub fn get<'a>(&'a self, kind: &'a str, key: &'a str) -> Outcome<'a, Option<String>> {
        Box::pin(async move {
            match &self.0 {
                Kept::Memory(memory) => Ok(lock(&memory.records).get(&named(kind, key)).cloned()),
                Kept::Postgres(store) => store.shared_one(kind, key).await.map_err(SharedRecordsError),
            }
        })
    }

    /// Puts a record where there is none; false if there is one, which stays as it is.
    pub fn put_new<'a>(&'a self, kind: &'a str, key: &'a str, content: &'a str) -> Outcome<'a, bool> {
        Box::pin(async move {
            match &self.0 {
                Kept::Memory(memory) => Ok(memory.change(|records| match records.entry(named(kind, key)) {
                    std::collections::btree_map::Entry::Vacant(place) => {
                        place.insert(content.to_owned());
                        true
                    }
                    std::collections::btree_map::Entry::Occupied(_) => false,
                })),
                Kept::Postgres(store) => store.put_new_shared(kind, key, content).await.map_err(SharedRecordsError),
            }
        })
    }

    /// Puts a record in the place of exactly this one; false if it is another one by now, or gone.
    pub fn exchange<'a>(&'a self, kind: &'a str, key: &'a str, before: &'a str, after: &'a str) -> Outcome<'a, bool> {
        Box::pin(async move {
            match &self.0 {
                Kept::Memory(memory) => Ok(memory.change(|records| match records.get_mut(&named(kind, key)) {
                    Some(content) if content == before => {
                        after.clone_into(content);
                        true
                    }
                    _ => false,
                })),
                Kept::Postgres(store) => store.exchange_shared(kind, key, before, after).await.map_err(SharedRecordsError),
            }
        })
    }

    /// True if it was there.
    pub fn remove<'a>(&'a self, kind: &'a str, key: &'a str) -> Outcome<'a, bool> {
        Box::pin(async move {
            match &self.0 {
                Kept::Memory(memory) => Ok(memory.change(|records| records.remove(&named(kind, key)).is_some())),
                Kept::Postgres(store) => store.remove_shared(kind, key).await.map_err(SharedRecordsError),
            }
        })
    }

    /// Hears of every change that is made after this returns, or shortly after, where the connection for it is only being made.
    pub fn changes(&self) -> RecordChanges {
        match &self.0 {
            Kept::Memory(memory) => RecordChanges::of(&memory.changed),
            Kept::Postgres(store) => store.shared_changes(),
        }
    }
}

impl InMemory {
    /// True if something was changed.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<(String, String), String>) -> bool) -> bool {
        let is_changed = change(&mut lock(&self.records));
        if is_changed {
            self.changed.send_modify(|count| *count += 1);
        }
        is_changed
    }
}

fn named(kind: &str, key: &str) -> (String, String) {
    (kind.to_owned(), key.to_owned())
}
