//! Copies of what is being written in place, so that the next start can finish what a kill interrupted.
//!
//! A copy is complete before the file is touched, and goes when the file is. One whose lock is free belongs to
//! an executor that is gone.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use super::atomic::{self, InPlaceFile};

/// Copies that are complete end in this.
const COMPLETE: &str = "redo";

/// Where copies are kept.
#[derive(Debug, Clone)]
pub(crate) struct Redo(PathBuf);

/// A copy that is held until the file is written.
pub(crate) struct Copy {
    path: PathBuf,
    _lock: File,
}

impl Redo {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// Keeps a copy of what is about to be written.
    pub(crate) fn keep(&self, identity: &InPlaceFile, data: &[u8], sync: bool) -> io::Result<Copy> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.0)?;
        let aside = self.0.join(Uuid::new_v4().simple().to_string());
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&aside)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let head = serde_json::to_vec(identity)?;
        let written =
            file.write_all(&(head.len() as u64).to_le_bytes()).and_then(|()| file.write_all(&head)).and_then(|()| file.write_all(data));
        let written = written.and_then(|()| if sync { file.sync_all() } else { Ok(()) });
        let path = aside.with_extension(COMPLETE);
        match written.and_then(|()| fs::rename(&aside, &path)) {
            Ok(()) => Ok(Copy { path, _lock: file }),
            Err(error) => {
                let _ = fs::remove_file(&aside);
                Err(error)
            }
        }
    }

    /// Finishes what executors that are gone left half done.
    pub(crate) fn finish(&self) {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let Ok(mut file) = File::open(&path) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            if path.extension().is_some_and(|extension| extension == COMPLETE)
                && let Err(error) = finish(&mut file)
            {
                tracing::warn!(copy = %path.display(), %error, "a file that was being written when the executor was killed could not be finished");
            }
            let _ = fs::remove_file(&path);
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn finish(file: &mut File) -> io::Result<()> {
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let mut rest = Vec::new();
    file.read_to_end(&mut rest)?;
    let length =
        usize::try_from(u64::from_le_bytes(length)).ok().filter(|length| *length <= rest.len()).ok_or(io::ErrorKind::InvalidData)?;
    let (head, data) = rest.split_at(length);
    atomic::rewrite(&serde_json::from_slice(head)?, data, false)
}

/// The directory of copies, if there is one, and what is needed to write with it.
pub(crate) fn rewrite(redo: Option<&Redo>, identity: &InPlaceFile, data: &[u8], sync: bool) -> io::Result<()> {
    let _copy = keep(redo, identity, data, sync)?;
    atomic::rewrite(identity, data, sync)
}

/// Keeps a copy where copies are kept.
pub(crate) fn keep(redo: Option<&Redo>, identity: &InPlaceFile, data: &[u8], sync: bool) -> io::Result<Option<Copy>> {
    redo.map(|redo| redo.keep(identity, data, sync)).transpose()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use super::*;

    fn copies(directory: &Path) -> usize {
        fs::read_dir(directory).map_or(0, Iterator::count)
    }

    fn identity(path: &Path) -> InPlaceFile {
        let metadata = fs::metadata(path).unwrap();
        InPlaceFile { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() }
    }

    #[test]
    fn the_next_start_finishes_what_was_begun() {
        let directory = tempfile::tempdir().unwrap();
        let (redo, file) = (Redo::new(directory.path().join("redo")), directory.path().join("file"));
        fs::write(&file, "old").unwrap();
        let copy = redo.keep(&identity(&file), b"new and longer", false).unwrap();
        // The copy of a living process is left alone.
        redo.finish();
        assert_eq!(fs::read(&file).unwrap(), b"old");
        // As after a kill: the lock is gone, the copy is there, the file is half written.
        flock(&copy._lock, FlockOperation::Unlock).unwrap();
        fs::write(&file, "new and").unwrap();
        std::mem::forget(copy);
        redo.finish();
        assert_eq!((fs::read(&file).unwrap(), copies(&directory.path().join("redo"))), (b"new and longer".to_vec(), 0));
    }

    #[test]
    fn another_file_and_a_half_copy_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (redo, file) = (Redo::new(directory.path().join("redo")), directory.path().join("file"));
        fs::write(&file, "old").unwrap();
        let copy = redo.keep(&identity(&file), b"new", false).unwrap();
        fs::rename(&file, directory.path().join("moved")).unwrap();
        fs::write(&file, "another program's").unwrap();
        flock(&copy._lock, FlockOperation::Unlock).unwrap();
        std::mem::forget(copy);
        fs::write(directory.path().join("redo/half"), "\u{8}").unwrap();
        fs::write(directory.path().join("redo/garbled.redo"), [0xff; 40]).unwrap();
        redo.finish();
        assert_eq!((fs::read(&file).unwrap(), copies(&directory.path().join("redo"))), (b"another program's".to_vec(), 0));
    }
}
