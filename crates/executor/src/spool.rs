//! A ring of bytes on disk.
//!
//! The file has no name, so nothing is left behind however the executor ends. Positions count from the first byte ever
//! written; the ring keeps the last `capacity` of them.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

pub(crate) struct Spool {
    directory: PathBuf,
    capacity: u64,
    state: State,
}

enum State {
    /// Nothing was written yet; most processes never get further.
    Unused,
    Open(File),
    /// The disk refused; what was spooled is lost and nothing more will be.
    Broken,
}

impl Spool {
    pub(crate) fn new(directory: &Path, capacity: u64) -> Self {
        Self { directory: directory.to_owned(), capacity, state: State::Unused }
    }

    pub(crate) fn capacity(&self) -> u64 {
        match self.state {
            State::Broken => 0,
            _ => self.capacity,
        }
    }

    /// Writes bytes at a position. False if the disk refused.
    pub(crate) fn write(&mut self, position: u64, bytes: &[u8]) -> bool {
        if let State::Unused = self.state {
            self.state = match open(&self.directory) {
                Ok(file) => State::Open(file),
                Err(error) => {
                    tracing::warn!(directory = %self.directory.display(), %error, "output cannot be spooled");
                    State::Broken
                }
            };
        }
        let State::Open(file) = &self.state else { return false };
        let written = self.pieces(position, bytes.len()).into_iter().try_fold(0, |done, (offset, length)| {
            file.write_all_at(&bytes[done..done + length], offset)?;
            Ok::<_, io::Error>(done + length)
        });
        if let Err(error) = written {
            tracing::warn!(%error, "output can no longer be spooled");
            self.state = State::Broken;
            return false;
        }
        true
    }

    pub(crate) fn read(&self, position: u64, length: usize) -> Option<Bytes> {
        let State::Open(file) = &self.state else { return None };
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            // The file ends where the ring does, so no read goes beyond that.
            let offset = (position + bytes.len() as u64) % self.capacity;
            match rustix::io::pread(file, spare_capacity(&mut bytes), offset) {
                Ok(0) => return None,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        bytes.truncate(length);
        Some(bytes.into())
    }

    /// The ring's end may lie inside a run of bytes.
    fn pieces(&self, position: u64, length: usize) -> Vec<(u64, usize)> {
        let offset = position % self.capacity.max(1);
        let first = length.min(usize::try_from(self.capacity - offset).unwrap_or(usize::MAX));
        let mut pieces = vec![(offset, first)];
        if first < length {
            pieces.push((0, length - first));
        }
        pieces
    }
}

fn open(directory: &Path) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
        Ok(descriptor) => Ok(descriptor.into()),
        // Not every file system can make a file without a name.
        Err(_) => open_and_unlink(directory),
    }
}

fn open_and_unlink(directory: &Path) -> io::Result<File> {
    let mut attempt = 0u64;
    loop {
        let path = directory.join(format!(".{}-{attempt}", std::process::id()));
        match File::options().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_wraps() {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = Spool::new(&directory.path().join("made/on/demand"), 10);
        assert!(spool.write(0, b"01234567"));
        assert!(spool.write(8, b"89abcd"));
        assert_eq!(spool.read(4, 10).unwrap(), "456789abcd");
        assert_eq!(std::fs::read_dir(directory.path().join("made/on/demand")).unwrap().count(), 0);
    }

    #[test]
    fn a_disk_that_refuses_is_told() {
        let mut spool = Spool::new(Path::new("/proc/nowhere"), 10);
        assert!(!spool.write(0, b"x"));
        assert_eq!(spool.capacity(), 0);
    }
}
