//! What is known about paths: the entries that were used last, so that a session with thousands of workspaces does not grow for ever.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// So many entries are kept besides those that are in use.
const KEPT: usize = 64;

/// Values by path. An insertion forgets the values that were unused for longest.
#[derive(Debug)]
pub(super) struct Recent<T> {
    clock: u64,
    entries: HashMap<PathBuf, (u64, T)>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { clock: 0, entries: HashMap::new() }
    }
}

impl<T> Recent<T> {
    pub(super) fn get(&mut self, path: &Path) -> Option<&mut T> {
        self.clock += 1;
        let (used, value) = self.entries.get_mut(path)?;
        *used = self.clock;
        Some(value)
    }

    pub(super) fn remove(&mut self, path: &Path) {
        self.entries.remove(path);
    }

    /// Values that are in use stay, however long ago they were asked for.
    pub(super) fn insert(&mut self, path: PathBuf, value: T, is_in_use: impl Fn(&T) -> bool) {
        self.clock += 1;
        self.entries.insert(path, (self.clock, value));
        if self.entries.len() <= KEPT {
            return;
        }
        let unused = self.entries.iter().filter(|(_, (used, value))| *used != self.clock && !is_in_use(value));
        if let Some(oldest) = unused.min_by_key(|(_, (used, _))| *used).map(|(path, _)| path.clone()) {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn the_values_used_last_and_those_in_use_stay() {
        let mut recent = Recent::default();
        let path = |number: usize| PathBuf::from(number.to_string());
        let is_in_use = |value: &Arc<usize>| Arc::strong_count(value) > 1;
        let held = Arc::new(1);
        recent.insert(path(0), Arc::new(0), is_in_use);
        recent.insert(path(1), held.clone(), is_in_use);
        for number in 2..1000 {
            recent.insert(path(number), Arc::new(number), is_in_use);
            assert!(recent.get(&path(0)).is_some());
        }
        assert_eq!(recent.entries.len(), KEPT);
        assert_eq!(recent.get(&path(1)), Some(&mut held.clone()));
        assert!(recent.get(&path(2)).is_none() && recent.get(&path(999)).is_some());
        drop(held);
        (1000..1100).for_each(|number| recent.insert(path(number), Arc::new(number), is_in_use));
        assert!(recent.get(&path(1)).is_none());
    }
}
