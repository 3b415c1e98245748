//! Locks on files that may be on a network, where locks fail or are not seen by others.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A directory of this machine with a file for each lock that cannot be had on the file itself.
#[derive(Debug, Clone, Default)]
pub struct Locks(Option<PathBuf>);

/// A lock that ends when this and the file are dropped.
#[derive(Debug, Default)]
pub struct FileLock {
    beside: Option<File>,
}

impl FileLock {
    /// Whether it is not on the file itself, and so outlives it.
    pub fn is_beside(&self) -> bool {
        self.beside.is_some()
    }
}

impl Locks {
    pub fn new(directory: Option<PathBuf>) -> Self {
        Self(directory)
    }

    /// Locks a file that is known by `name`. Nothing if another process has it.
    pub fn try_lock(&self, file: &File, name: &str) -> io::Result<Option<FileLock>> {
        match (flock(file, FlockOperation::NonBlockingLockExclusive), &self.0) {
            (Ok(()), _) => Ok(Some(FileLock::default())),
            (Err(Errno::WOULDBLOCK), _) => Ok(None),
            (Err(error), None) => Err(error.into()),
            (Err(error), Some(directory)) => {
                tracing::debug!(name, error = %io::Error::from(error), "locked beside the file");
                let beside = open(directory, name)?;
                match flock(&beside, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => Ok(Some(FileLock { beside: Some(beside) })),
                    Err(Errno::WOULDBLOCK) => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
        }
    }

    /// Waits for the lock of a file that is there for nothing else.
    pub fn lock(&self, file: File, name: &str) -> io::Result<File> {
        match (flock(&file, FlockOperation::LockExclusive), &self.0) {
            (Ok(()), _) => Ok(file),
            (Err(error), None) => Err(error.into()),
            (Err(_), Some(directory)) => {
                let beside = open(directory, name)?;
                flock(&beside, FlockOperation::LockExclusive)?;
                Ok(beside)
            }
        }
    }
}

fn open(directory: &std::path::Path, name: &str) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    File::options().write(true).create(true).truncate(false).mode(0o600).open(directory.join(format!("{name}.lock")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that cannot be locked: one that is open only as a path.
    fn unlockable(directory: &std::path::Path) -> File {
        std::fs::write(directory.join("file"), "").unwrap();
        let fd = rustix::fs::open(directory.join("file"), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        File::from(fd)
    }

    #[test]
    fn a_file_that_cannot_be_locked_is_locked_beside() {
        let base = tempfile::tempdir().unwrap();
        let file = unlockable(base.path());
        assert!(Locks::default().try_lock(&file, "x").is_err());
        let locks = Locks::new(Some(base.path().join("locks")));
        let held = locks.try_lock(&file, "x").unwrap().expect("it is free");
        assert!(locks.try_lock(&file, "x").unwrap().is_none(), "it is locked");
        assert!(locks.try_lock(&file, "y").unwrap().is_some());
        drop(held);
        assert!(locks.try_lock(&file, "x").unwrap().is_some());
    }
}
