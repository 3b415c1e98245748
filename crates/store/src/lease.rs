//! One writer per thread, also across processes.
//!
//! A lease is a small file beside the journal that says who writes it, and an *epoch*: a number that grows with every change
//! of hands (a fencing token). A writer holds the file's lock for the moment of a write and compares the number: after a take-over the
//! old holder's next write fails, however late it comes. Whether a holder still lives is told by the lock that it holds on
//! its own commit log (`commit.rs`); a holder on another machine is believed for as long as its lease time.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use outpost_thread::ThreadId;
use outpost_wire::SharedError;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The right to write a thread. Not cloned: there is one.
#[derive(Debug, PartialEq, Eq)]
pub struct Lease {
    pub thread: ThreadId,
    /// A store refuses a write with any but the newest.
    pub epoch: u64,
}

/// What to do about another holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimMode {
    /// Only if it is free or its holder is gone.
    IfFree,
    /// Even from a live holder: the user decided it.
    TakeOver,
    /// Only if it is free and has work to do: its node died. Counted, so that a thread that ends its nodes is noticed.
    Orphaned,
}

/// Who holds a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseHolder {
    /// One start of a program.
    pub instance: String,
    pub host: String,
    pub pid: u32,
    /// Milliseconds since 1970.
    pub since: u64,
    pub renewed: u64,
    /// What the server is called, among those that share a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Where that server is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

impl fmt::Display for LeaseHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.node, &self.address) {
            (node, Some(address)) => write!(f, "node {} at {address}", node.as_deref().unwrap_or(&self.host)),
            _ => write!(f, "process {} on {}", self.pid, self.host),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("there is no thread {0}")]
    NotFound(ThreadId),
    #[error("thread {0} exists already")]
    Exists(ThreadId),
    #[error("thread {thread} is being written by {holder}, for {} s; take it over, or ask there", age_ms / 1000)]
    Held { thread: ThreadId, holder: Box<LeaseHolder>, age_ms: u64 },
    #[error("the journal of thread {thread} cannot be opened: {why}")]
    Journal {
        thread: ThreadId,
        #[source]
        why: crate::reader::JournalError,
    },
    #[error("cannot claim: {0}")]
    Io(#[from] io::Error),
    #[error("the database: {0}")]
    Database(#[source] SharedError),
}

/// What stands in the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Record {
    /// Files say `fence`.
    #[serde(rename = "fence")]
    pub epoch: u64,
    /// None once it was given back.
    pub holder: Option<LeaseHolder>,
    /// Counts how often the journal was replaced by another file. What commit logs hold of an older one is void.
    pub edition: u64,
}

/// Always this long, so that it can be rewritten on a full disk.
const LENGTH: usize = 512;

/// The file of a lease.
#[derive(Debug)]
pub(crate) struct LeaseFile(File);

/// The file's lock, held for a moment.
pub(crate) struct Locked<'a>(&'a File);

impl LeaseFile {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path).map(Self)
    }

    pub(crate) fn lock(&self) -> io::Result<Locked<'_>> {
        flock(&self.0, FlockOperation::LockExclusive)?;
        Ok(Locked(&self.0))
    }
}

impl Locked<'_> {
    /// What stands there; None if that is not readable.
    pub(crate) fn read(&self) -> io::Result<Option<Record>> {
        let mut bytes = [0; LENGTH];
        let mut length = 0;
        while length < LENGTH {
            match self.0.read_at(&mut bytes[length..], length as u64)? {
                0 => break,
                count => length += count,
            }
        }
        let text = bytes[..length].trim_ascii();
        if text.is_empty() {
            return Ok(Some(Record::default()));
        }
        Ok(serde_json::from_slice(text).ok())
    }

    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(record)?;
        if bytes.len() >= LENGTH {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name of the host is too long for a lease"));
        }
        bytes.resize(LENGTH - 1, b' ');
        bytes.push(b'\n');
        self.0.write_all_at(&bytes, 0)
    }

    /// Durable, too: for what must hold after a power cut.
    pub(crate) fn write_durably(&self, record: &Record) -> io::Result<()> {
        self.write(record)?;
        self.0.sync_data()
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// What a shared store knows of a thread's lease at the moment of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseRow {
    pub holder: RowHolder,
    /// Whether the lease of the holder's program is alive; nothing if that program has none, as those of version 0.1.0.
    pub program: Option<bool>,
    /// Whether the time of the lease itself is over, which counts where the program has none.
    pub has_expired: bool,
    pub work: bool,
}

/// Whose a lease is, from the view of the program that claims it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowHolder {
    Free,
    /// This program's, and in use.
    Own,
    /// This program's, but it could not be given back.
    OwnUnreturned,
    Other,
}

impl LeaseRow {
    /// Whether a claim succeeds. A database decides by one statement that says the same, so that two claims cannot both succeed; a test
    /// compares the two, and the model of a cluster uses this one.
    pub fn grants(&self, mode: ClaimMode) -> bool {
        let is_over = self.program.map_or(self.has_expired, |is_alive| !is_alive);
        let is_free = match self.holder {
            RowHolder::Free | RowHolder::OwnUnreturned => true,
            RowHolder::Own | RowHolder::Other => is_over,
        };
        (mode != ClaimMode::Orphaned || self.work) && (mode == ClaimMode::TakeOver || is_free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_says_fence() {
        let record = Record { epoch: 3, holder: None, edition: 1 };
        let text = r#"{"fence":3,"holder":null,"edition":1}"#;
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
        assert_eq!(serde_json::from_str::<Record>(text).unwrap(), record);
    }
}
