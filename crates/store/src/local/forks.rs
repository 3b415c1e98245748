//! Forks by reference, and what must happen before a thread that others share can go.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use outpost_thread::{Entry, Fact, ForkBase, ThreadId};
use outpost_wire::SharedError;

use super::segment::SegmentLineage;
use super::writer::{encode, folders_to_sync};
use super::{LocalHome, lock, make_folder};
use crate::journal;
use crate::lease::{ClaimMode, Lease, LeaseFile, Record};
use crate::store::{AppendError, DeleteError, ForkRequest, ForkStoreError, ReadError};

/// Forks that get copies of their own together: each has two files open for so long.
const COPIED_TOGETHER: usize = 64;

/// A fork that is to have everything in its own journal.
struct ForkCopy {
    child: ThreadId,
    path: PathBuf,
    aside: PathBuf,
    lease: LeaseFile,
}

impl ForkCopy {
    fn begin(home: &LocalHome, child: ThreadId) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let path = home.find(child).ok_or(ReadError::NotFound(child))?;
        let lease = LeaseFile::open(&LocalHome::lease_path(&path))?;
        let aside = path.with_extension(format!("{}.new", home.config.instance));
        Ok(Self { child, path, aside, lease })
    }
}

impl LocalHome {
    pub(super) fn fork(&self, request: ForkRequest) -> Result<Lease, ForkStoreError> {
        let ForkRequest { mut forked, cut, at } = request;
        let (thread, parent) = (forked.thread, forked.parent);
        if self.find_exactly(thread).is_some() || lock(&self.writers).contains_key(&thread) {
            return Err(ForkStoreError::Exists(thread));
        }
        let lineage = SegmentLineage::open(self, parent)?;
        // What lies in an ancestor is taken from there, so that chains of forks do not grow with every fork.
        let segment = &lineage.segments()[lineage.index_of(cut.ordinal)];
        let sum = if cut.ordinal > 0 { segment.sum_of(cut.ordinal).map_err(ReadError::from)? } else { None };
        let Some(sum) = sum else {
            return Err(ForkStoreError::OutOfRange { thread: parent, ordinal: cut.ordinal });
        };
        let base = ForkBase { thread: segment.thread, ordinal: cut.ordinal, sum: sum.to_string() };
        forked.base = base.clone();
        let mut facts: Vec<Fact> = vec![forked.into()];
        facts.extend(cut.close.map(Fact::from));
        let entries: Vec<Entry> = facts.into_iter().zip(cut.ordinal + 1..).map(|(fact, ordinal)| Entry { ordinal, at, fact }).collect();
        let path = self.place(thread, at);
        let folders = folders_to_sync(&path, &self.config.home);
        {
            // While this is held, what is about to be shared is not removed.
            let source = self.find(base.thread).ok_or(ReadError::NotFound(base.thread))?;
            let lease = LeaseFile::open(&Self::lease_path(&source)).map_err(ReadError::from)?;
            let _locked = lease.lock().map_err(ReadError::from)?;
            if !source.exists() {
                let _ = fs::remove_file(Self::lease_path(&source));
                return Err(ReadError::NotFound(base.thread).into());
            }
            self.publish(thread, &path, &base, &entries).map_err(ForkStoreError::Append)?;
        }
        self.placed(thread, &path);
        self.noted(thread, &path);
        let lease = self.claim(thread, ClaimMode::IfFree).map_err(|error| AppendError::Io(std::io::Error::other(error)))?;
        if let Some(writer) = lock(&self.writers).get(&thread) {
            lock(writer).with_unsynced(folders);
        }
        Ok(lease)
    }

    /// Writes a journal with these entries, so that it is there whole or not at all. It becomes durable with the first append
    /// that must be.
    fn publish(&self, thread: ThreadId, path: &Path, base: &ForkBase, entries: &[Entry]) -> Result<(), AppendError> {
        let (mut bytes, sum) = journal::header(thread, Some(base));
        let (lines, _, _) = encode(self, sum, entries)?;
        bytes.extend(lines);
        let aside = path.with_extension(format!("{}.new", self.config.instance));
        let written = || -> std::io::Result<()> {
            make_folder(path.parent().unwrap_or(path))?;
            let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
            file.write_all_at(&bytes, 0)?;
            fs::rename(&aside, path)
        };
        written().map_err(|error| {
            let _ = fs::remove_file(&aside);
            self.failed(error)
        })
    }

    pub(super) fn delete(&self, thread: ThreadId, mode: ClaimMode) -> Result<(), DeleteError> {
        // A thread that never had input has nothing to remove.
        if let Some(writer) = lock(&self.writers).get(&thread).cloned()
            && lock(&writer).held().is_some()
        {
            lock(&self.writers).remove(&thread);
            return Ok(());
        }
        let lease = self.claim(thread, mode)?;
        let result = self.remove(thread);
        match &result {
            Ok(()) => drop(lock(&self.writers).remove(&thread)),
            Err(_) => self.release(&lease),
        }
        result
    }

    fn remove(&self, thread: ThreadId) -> Result<(), DeleteError> {
        let path = self.find(thread).ok_or(ReadError::NotFound(thread))?;
        // No other fork can begin to share it meanwhile.
        let lease = LeaseFile::open(&Self::lease_path(&path)).map_err(ReadError::from)?;
        let _locked = lease.lock().map_err(ReadError::from)?;
        for children in self.children(thread)?.chunks(COPIED_TOGETHER) {
            match children {
                [child] => {
                    self.give_own_copy(*child).map_err(|error| DeleteError::Child { child: *child, why: SharedError::new(error) })?
                }
                several => self.give_own_copies(several)?,
            }
        }
        let removed = || -> std::io::Result<()> {
            fs::remove_file(&path)?;
            let _ = fs::remove_file(Self::lease_path(&path));
            let _ = fs::remove_file(self.checkpoint_path(thread));
            self.remove_images(thread);
            File::open(path.parent().unwrap_or(&path))?.sync_all()
        };
        removed().map_err(|error| self.failed(error))?;
        if let Some(log) = self.log.get() {
            log.forget(thread);
        }
        lock(&self.places).known.remove(&thread);
        if let Some(index) = self.index.get() {
            index.removed(thread);
        }
        Ok(())
    }

    /// The threads whose shared past lies in the journal of `thread`.
    fn children(&self, thread: ThreadId) -> Result<Vec<ThreadId>, ReadError> {
        let mut children = Vec::new();
        for (child, path) in self.journals()? {
            if child != thread && base_of(&path).is_some_and(|base| base.thread == thread) {
                children.push(child);
            }
        }
        Ok(children)
    }

    /// The same as [`Self::give_own_copy`] for several, with two syncs for all of them.
    fn give_own_copies(&self, children: &[ThreadId]) -> Result<(), DeleteError> {
        let mut copies = Vec::new();
        for child in children {
            let failed =
                |error: Box<dyn std::error::Error + Send + Sync>| DeleteError::Child { child: *child, why: SharedError::new(error) };
            copies.push(ForkCopy::begin(self, *child).map_err(failed)?);
        }
        // Of each pair, the lease and its file are here until all are in their places: a writer waits for so long.
        let locked =
            copies.iter().map(|copy| copy.lease.lock()).collect::<std::io::Result<Vec<_>>>().map_err(|error| self.failed(error))?;
        let published = || -> Result<(), (ThreadId, Box<dyn std::error::Error + Send + Sync>)> {
            for copy in &copies {
                let of = |error: Box<dyn std::error::Error + Send + Sync>| (copy.child, error);
                let lineage = SegmentLineage::open(self, copy.child).map_err(|error| of(error.into()))?;
                self.write_aside(copy.child, &copy.aside, lineage.segments(), None).map_err(|error| of(error.into()))?;
            }
            let all = || -> std::io::Result<()> {
                self.sync_file_system()?;
                for (copy, locked) in copies.iter().zip(&locked) {
                    let record = locked.read()?.unwrap_or_default();
                    fs::rename(&copy.aside, &copy.path)?;
                    self.noted(copy.child, &copy.path);
                    locked.write(&Record { edition: record.edition + 1, ..record })?;
                }
                self.sync_file_system()
            };
            all().map_err(|error| (children[0], error.into()))
        };
        let published = published();
        drop(locked);
        if published.is_err() {
            copies.iter().for_each(|copy| drop(fs::remove_file(&copy.aside)));
        }
        published.map_err(|(child, error)| DeleteError::Child { child, why: SharedError::new(error) })
    }

    /// Everything that was written to the file system of the home.
    fn sync_file_system(&self) -> std::io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(&self.config.home)?)?)
    }

    /// Replaces a fork's journal by one that has everything in it.
    fn give_own_copy(&self, child: ThreadId) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let path = self.find(child).ok_or(ReadError::NotFound(child))?;
        let lease = LeaseFile::open(&Self::lease_path(&path))?;
        // A writer of the child waits for a moment and continues in the new file.
        let locked = lease.lock()?;
        let record = locked.read()?.unwrap_or_default();
        let lineage = SegmentLineage::open(self, child)?;
        self.rewrite(child, &path, lineage.segments(), None)?;
        locked.write_durably(&Record { edition: record.edition + 1, ..record })?;
        Ok(())
    }
}

/// The prefix that a journal continues.
fn base_of(path: &Path) -> Option<ForkBase> {
    crate::reader::start(&File::open(path).ok()?).ok()?.base
}
