//! Files that others have taken the place of, until they are closed.
//!
//! Closing the last handle of a file without a name gives its room back, and waits for that until the disk has what was written to it
//! last. A client that writes the same file again and again would wait for the disk each time.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;

/// A larger one is closed at once: the next file may need its room.
const SMALL: u64 = 64 << 10;
/// So many wait at most; then writing gets no faster than the disk.
const MOST: usize = 16;

/// Cheap to clone; all clones are one queue.
#[derive(Clone, Default)]
pub(crate) struct ReplacedFiles(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    files: VecDeque<File>,
    /// A thread closes one after the other.
    is_tended: bool,
}

impl ReplacedFiles {
    /// Closes a file of this size elsewhere, or here where it cannot wait.
    pub(crate) fn close(&self, file: File, size: u64) {
        let Ok(runtime) = Handle::try_current() else { return };
        if size > SMALL {
            return;
        }
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.files.len() >= MOST {
            drop(waiting);
            return drop(file);
        }
        waiting.files.push_back(file);
        if !std::mem::replace(&mut waiting.is_tended, true) {
            let queue = self.clone();
            runtime.spawn_blocking(move || {
                while let Some(file) = queue.next() {
                    drop(file)
                }
            });
        }
    }

    fn next(&self) -> Option<File> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let file = waiting.files.pop_front();
        waiting.is_tended = file.is_some();
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_so_many_small_files_wait() {
        let directory = tempfile::tempdir().unwrap();
        let open = || File::create(directory.path().join("f")).unwrap();
        let files = ReplacedFiles::default();
        // As if the thread that closes them were waiting for the disk.
        files.0.lock().unwrap().is_tended = true;
        files.close(open(), SMALL + 1);
        assert_eq!(files.0.lock().unwrap().files.len(), 0, "a large one waits");
        for _ in 0..MOST + 3 {
            files.close(open(), SMALL);
        }
        assert_eq!(files.0.lock().unwrap().files.len(), MOST);
        files.next();
        assert_eq!(files.0.lock().unwrap().files.len(), MOST - 1);
        // Now there is none, so that the next file brings one along, which closes all.
        files.0.lock().unwrap().is_tended = false;
        files.close(open(), 1);
        while files.0.lock().unwrap().is_tended {
            tokio::task::yield_now().await;
        }
        assert!(files.0.lock().unwrap().files.is_empty());
    }
}
