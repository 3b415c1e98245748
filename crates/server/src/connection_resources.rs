//! What belongs to one client and ends with its connection: its watches, its searches and the commands that it runs itself.
//!
//! Each lives in a future of that connection, which is dropped with it. Here are only the names by which later requests find
//! them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::jobs::JobHandle;

#[derive(Default)]
pub(crate) struct ConnectionResources {
    pub watches: ClientNames<CancellationToken>,
    pub searches: ClientNames<Arc<Search>>,
    /// Questions aside, by the ids of their requests.
    pub samples: ClientNames<CancellationToken>,
    pub commands: ClientNames<Arc<JobHandle>>,
    pub processes: ClientNames<Arc<JobHandle>>,
}

/// A search for files that goes on as its query changes.
pub(crate) struct Search {
    pub query: watch::Sender<String>,
    pub ended: CancellationToken,
}

/// Things by the names that a client gave them.
pub(crate) struct ClientNames<T>(Arc<Mutex<Inside<T>>>);

struct Inside<T> {
    taken: HashMap<String, (u64, T)>,
    last: u64,
}

impl<T> Default for ClientNames<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Inside { taken: HashMap::new(), last: 0 })))
    }
}

fn lock<T>(inside: &Mutex<Inside<T>>) -> MutexGuard<'_, Inside<T>> {
    inside.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Clone> ClientNames<T> {
    /// Nothing if the name is taken. It is free again when what is returned is dropped.
    pub(crate) fn take(&self, name: &str, thing: T) -> Option<ReservedName<T>> {
        let mut inside = lock(&self.0);
        if inside.taken.contains_key(name) {
            return None;
        }
        inside.last += 1;
        let number = inside.last;
        inside.taken.insert(name.to_owned(), (number, thing));
        Some(ReservedName { names: self.0.clone(), name: name.to_owned(), number })
    }

    /// How many names are taken.
    pub(crate) fn count(&self) -> usize {
        lock(&self.0).taken.len()
    }

    pub(crate) fn get(&self, name: &str) -> Option<T> {
        lock(&self.0).taken.get(name).map(|(_, thing)| thing.clone())
    }

    /// Frees a name at once.
    pub(crate) fn remove(&self, name: &str) -> Option<T> {
        lock(&self.0).taken.remove(name).map(|(_, thing)| thing)
    }
}

/// A name that is taken.
pub(crate) struct ReservedName<T> {
    names: Arc<Mutex<Inside<T>>>,
    name: String,
    number: u64,
}

impl<T> Drop for ReservedName<T> {
    fn drop(&mut self) {
        let mut inside = lock(&self.names);
        // Another request may have taken the name by now.
        if inside.taken.get(&self.name).is_some_and(|(number, _)| *number == self.number) {
            inside.taken.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_one_at_a_time() {
        let names = ClientNames::default();
        let first = names.take("a", 1);
        assert!(first.is_some() && names.take("a", 2).is_none());
        assert_eq!(names.remove("a"), Some(1));
        let second = names.take("a", 2);
        drop(first);
        assert_eq!(names.get("a"), Some(2));
        drop(second);
        assert_eq!(names.get("a"), None);
    }
}
