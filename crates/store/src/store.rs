//! The one face of all stores, and the words that they share.

use std::collections::HashMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use outpost_thread::{Checkpoint, Cut, Entry, Ordinal, ThreadForked, ThreadId};
use outpost_wire::SharedError;

use crate::adoption::AdoptionKey;
use crate::damage::Damage;
use crate::lease::{ClaimError, ClaimMode, Lease, LeaseHolder};
use crate::list::{ListPage, ListQuery};
use crate::local::LocalStore;
use crate::memory::MemoryStore;
use crate::orphan::{OrphanFate, OrphanedThread, PassedOrphans};
use crate::postgres::PostgresStore;
use crate::summary::ThreadSummary;
use crate::verify::{Repair, VerifyReport};

/// Milliseconds since 1970. Passed in, so that tests can tell the time.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Changes texts before they are stored, so that known secrets never reach a disk. The entry that is stored is the one
/// that must be folded: see [`Appended::entries`].
pub trait Redactor: Send + Sync {
    /// The text without secrets, or None if there is nothing to change.
    fn redact(&self, text: &str) -> Option<String>;
}

/// How much is synced, and when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// Before each batch of effects that must not happen twice, and before a turn is told as completed.
    #[default]
    Effect,
    /// Before a turn is told as completed.
    Turn,
    /// Never waited for.
    Stored,
}

/// For what an append must be durable before it returns. Whether it waits is decided by [`Durability`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Written to the file: a killed program cannot take it, a power cut can.
    Stored,
    /// An effect follows that must not happen twice.
    BeforeEffect,
    /// A turn will be told as completed.
    BeforeCompleted,
    /// Durable whatever the configuration says.
    Durable,
}

impl Durability {
    pub(crate) const fn waits_for(self, need: Need) -> bool {
        match need {
            Need::Stored => false,
            Need::BeforeEffect => matches!(self, Self::Effect),
            Need::BeforeCompleted => matches!(self, Self::Effect | Self::Turn),
            Need::Durable => true,
        }
    }
}

/// Entries were stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Appended {
    /// As they were stored: a redactor may have changed them. These are the ones to fold and to publish.
    pub entries: Vec<Entry>,
    pub last: Ordinal,
    /// The last entry that a power cut cannot take.
    pub durable: Ordinal,
}

#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("entry {found} was to be written, but {expected} comes next")]
    Conflict { expected: Ordinal, found: Ordinal },
    #[error("the lease of thread {thread} is lost: {holder} took it over")]
    LeaseLost { thread: ThreadId, holder: String },
    #[error("no space is left in {}: free some and go on; what was written is safe, and nothing more is until then", place.display())]
    NoSpace { place: PathBuf },
    #[error("an entry of kind `{kind}` cannot be written: {why}")]
    Unwritable {
        kind: String,
        #[source]
        why: SharedError,
    },
    #[error("what was written before could not be made durable; the store only reads: {0}")]
    NotDurable(#[source] SharedError),
    #[error("cannot write: {0}")]
    Io(#[from] std::io::Error),
    #[error("the database: {0}")]
    Database(#[source] SharedError),
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("there is no thread {0}")]
    NotFound(ThreadId),
    #[error("thread {thread} continues thread {base}, of which entry {ordinal} cannot be found")]
    Lineage { thread: ThreadId, base: ThreadId, ordinal: Ordinal },
    #[error("the journal of thread {thread} cannot be read: {why}")]
    Journal {
        thread: ThreadId,
        #[source]
        why: crate::reader::JournalError,
    },
    #[error("cannot read: {0}")]
    Io(#[from] std::io::Error),
    #[error("the database: {0}")]
    Database(#[source] SharedError),
    #[error(transparent)]
    Index(#[from] crate::index::IndexError),
}

/// What is known of a thread without reading it.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadHead {
    pub thread: ThreadId,
    /// The first entry of its own: `threadCreated`, or `threadForked`.
    pub first: Option<Entry>,
    pub last: Ordinal,
    /// The checksum of the last line, for a [`Checkpoint`]. Empty where a store has none.
    pub sum: String,
    pub durable: Ordinal,
    /// Bytes of its own journal.
    pub bytes: u64,
    /// A torn tail, or spoiled lines at the end.
    pub damage: Vec<Damage>,
}

/// What a list shows of a thread, and who writes it.
#[derive(Debug, Clone, Default)]
pub struct ThreadStanding {
    /// None of one that had no input yet.
    pub summary: Option<ThreadSummary>,
    /// None if it has none, or if its last holder is gone.
    pub holder: Option<LeaseHolder>,
}

/// Which part of a history to read backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// Entries before this one; None is the end.
    pub before: Option<Ordinal>,
    /// At most this many turns.
    pub turns: usize,
    /// Stops within a turn when this much was read.
    pub bytes: usize,
}

impl Default for PageRequest {
    fn default() -> Self {
        Self { before: None, turns: 25, bytes: 8 << 20 }
    }
}

/// Entries in their order, and what could not be read between them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    pub entries: Vec<Entry>,
    pub damage: Vec<Damage>,
    /// Ask for this `before` to read what comes before; None at the beginning.
    pub before: Option<Ordinal>,
}

/// A fork: its first entry, and where it leaves its parent.
#[derive(Debug, Clone, PartialEq)]
pub struct ForkRequest {
    /// `forked.base` is filled in by the store.
    pub forked: ThreadForked,
    pub cut: Cut,
    pub at: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ForkStoreError {
    #[error("thread {0} exists already")]
    Exists(ThreadId),
    #[error("thread {thread} has no entry {ordinal} to fork at")]
    OutOfRange { thread: ThreadId, ordinal: Ordinal },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// What a store does. It is compiled here, once: the bodies of async functions are otherwise compiled again in every crate that awaits them.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where threads are kept. A closed set: callers need not know which one it is.
#[derive(Clone)]
pub enum Store {
    Local(LocalStore),
    Memory(MemoryStore),
    Postgres(PostgresStore),
}

macro_rules! either {
    ($self:ident, $store:ident => $call:expr) => {
        match $self {
            Self::Local($store) => $call,
            Self::Memory($store) => $call,
            Self::Postgres($store) => $call,
        }
    };
}

impl Store {
    /// Makes a thread, with a lease for writing it. Nothing is on disk before the first input.
    pub fn create(&self, thread: ThreadId) -> StoreFuture<'_, Result<Lease, ClaimError>> {
        Box::pin(async move { either!(self, store => store.create(thread).await) })
    }

    /// Takes the lease of a thread that exists.
    pub fn claim(&self, thread: ThreadId, mode: ClaimMode) -> StoreFuture<'_, Result<Lease, ClaimError>> {
        Box::pin(async move { either!(self, store => store.claim(thread, mode).await) })
    }

    /// Who is writing a thread now, if that is known; none if its last holder is gone.
    pub fn holder(&self, thread: ThreadId) -> StoreFuture<'_, Result<Option<LeaseHolder>, ClaimError>> {
        Box::pin(async move { either!(self, store => store.holder(thread).await) })
    }

    /// Gives a lease back. A thread that never had input leaves nothing behind.
    pub fn release(&self, lease: Lease) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            either!(self, store => store.release(lease).await);
        })
    }

    /// Leaves nothing for the next start to do. Nothing can be written any more.
    pub fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            match self {
                Self::Local(store) => store.close().await,
                Self::Memory(_) => {}
                Self::Postgres(store) => store.leave().await,
            }
        })
    }

    /// Leaves a thread, in the middle of its work, to the node that takes it up when this store is closed. Where no other node can, it is
    /// given back.
    pub fn hand_over(&self, lease: Lease) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            match self {
                Self::Local(_) | Self::Memory(_) => self.release(lease).await,
                Self::Postgres(store) => store.hand_over(&lease),
            }
        })
    }

    /// Leaves a thread that cannot go on here now. If it has work to do, the first node that can takes it up, this one among them; where none
    /// looks for such threads, and if there is nothing to do, it is given back.
    pub fn give_up(&self, lease: Lease) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            match self {
                Self::Local(_) | Self::Memory(_) => self.release(lease).await,
                Self::Postgres(store) => store.give_up(lease).await,
            }
        })
    }

    /// That a thread was taken up says nothing against it: it only waits.
    pub fn forget_claims<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            if let Self::Postgres(store) = self {
                store.forget_claims(lease).await;
            }
        })
    }

    /// Whether the store can be used now, and why not.
    pub async fn ping(&self) -> Result<(), SharedError> {
        match self {
            Self::Local(_) | Self::Memory(_) => Ok(()),
            Self::Postgres(store) => store.ping().await,
        }
    }

    /// Whether another node would take up the threads of this one.
    pub fn has_heirs(&self) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            match self {
                Self::Local(_) | Self::Memory(_) => false,
                Self::Postgres(store) => store.has_heirs().await,
            }
        })
    }

    /// The key by which programs of this store claim each other's running commands. None where no other program can come.
    pub async fn adoption_key(&self) -> Result<Option<AdoptionKey>, SharedError> {
        match self {
            Self::Local(store) => store.adoption_key().await.map(Some),
            Self::Memory(_) => Ok(None),
            Self::Postgres(store) => store.adoption_key().await.map(Some),
        }
    }

    /// Threads with work to do whose node died, and what becomes of each here: at most so many that are taken up, and those that are not
    /// and were not passed over before.
    pub fn orphans<'a>(
        &'a self,
        most: usize,
        passed: &'a mut PassedOrphans,
    ) -> StoreFuture<'a, Result<Vec<(OrphanedThread, OrphanFate)>, ClaimError>> {
        Box::pin(async move {
            let Self::Postgres(store) = self else { return Ok(Vec::new()) };
            store.orphans(most, passed).await
        })
    }

    /// Writes entries, whose ordinals must follow the last one. If it fails none of them is stored; if the program is killed
    /// meanwhile, the first few may be.
    pub fn append<'a>(&'a self, lease: &'a Lease, entries: Vec<Entry>, need: Need) -> StoreFuture<'a, Result<Appended, AppendError>> {
        Box::pin(async move { either!(self, store => store.append(lease, entries, need).await) })
    }

    /// What is known of a thread without reading it.
    pub fn head(&self, thread: ThreadId) -> StoreFuture<'_, Result<ThreadHead, ReadError>> {
        Box::pin(async move { either!(self, store => store.head(thread).await) })
    }

    /// A part of the history, read backwards from its end or from any entry; the entries themselves are in their order.
    pub fn page(&self, thread: ThreadId, request: PageRequest) -> StoreFuture<'_, Result<Page, ReadError>> {
        Box::pin(async move { either!(self, store => store.page(thread, request).await) })
    }

    /// The history after entry `after`, forks' shared past included, in bounded pieces.
    pub fn history(&self, thread: ThreadId, after: Ordinal) -> StoreFuture<'_, Result<HistoryReader, ReadError>> {
        Box::pin(async move {
            Ok(match self {
                Self::Local(store) => HistoryReader::Local(store.history(thread, after).await?),
                Self::Memory(store) => HistoryReader::Memory(store.history(thread, after)?),
                Self::Postgres(store) => HistoryReader::Postgres(store.history(thread, after).await?),
            })
        })
    }

    /// Single entries by their ordinals; those that cannot be read are left out.
    pub fn entries(&self, thread: ThreadId, wanted: Vec<Ordinal>) -> StoreFuture<'_, Result<Vec<Entry>, ReadError>> {
        Box::pin(async move { either!(self, store => store.entries(thread, wanted).await) })
    }

    /// Makes a thread that shares the past of another, and takes its lease.
    pub fn fork(&self, request: ForkRequest) -> StoreFuture<'_, Result<Lease, ForkStoreError>> {
        Box::pin(async move { either!(self, store => store.fork(request).await) })
    }

    /// Removes a thread. Its forks get their own copy of what they shared first.
    pub fn delete(&self, thread: ThreadId, mode: ClaimMode) -> StoreFuture<'_, Result<(), DeleteError>> {
        Box::pin(async move { either!(self, store => store.delete(thread, mode).await) })
    }

    /// All threads, in no particular order.
    pub fn threads(&self) -> StoreFuture<'_, Result<Vec<ThreadId>, ReadError>> {
        Box::pin(async move { either!(self, store => store.threads().await) })
    }

    /// A page of threads: the same question has the same answer in every store.
    pub fn list(&self, query: ListQuery) -> StoreFuture<'_, Result<ListPage, ReadError>> {
        Box::pin(async move { either!(self, store => store.list(query).await) })
    }

    /// The first entry of each thread in which the words of a search stand. One whose name alone has them is left out.
    pub fn mentions<'a>(
        &'a self,
        threads: &'a [ThreadId],
        search: &'a str,
    ) -> StoreFuture<'a, Result<HashMap<ThreadId, Entry>, ReadError>> {
        Box::pin(async move { either!(self, store => store.mentions(threads, search).await) })
    }

    /// What a list shows of a thread; none of one that had no input yet.
    pub fn summary(&self, thread: ThreadId) -> StoreFuture<'_, Result<Option<ThreadSummary>, ReadError>> {
        Box::pin(async move { either!(self, store => store.summary(thread).await) })
    }

    /// What is told of many threads beside each other; those that are not there are left out.
    pub fn standings<'a>(&'a self, threads: &'a [ThreadId]) -> StoreFuture<'a, Result<HashMap<ThreadId, ThreadStanding>, ReadError>> {
        Box::pin(async move {
            if let Self::Postgres(store) = self {
                return store.standings(threads).await;
            }
            let mut standings = HashMap::new();
            for thread in threads {
                let (summary, holder) = (self.summary(*thread).await.ok().flatten(), self.holder(*thread).await.ok().flatten());
                standings.insert(*thread, ThreadStanding { summary, holder });
            }
            Ok(standings)
        })
    }

    /// Looks at every byte of a thread. `known` is the highest ordinal that another reader, such as the index, has seen.
    pub fn verify(&self, thread: ThreadId, known: Option<Ordinal>) -> StoreFuture<'_, Result<VerifyReport, ReadError>> {
        Box::pin(async move { either!(self, store => store.verify(thread, known).await) })
    }

    /// The highest ordinal that an index has ever seen of a thread.
    pub fn indexed_last(&self, thread: ThreadId) -> StoreFuture<'_, Option<Ordinal>> {
        Box::pin(async move {
            match self {
                Self::Local(store) => store.indexed_last(thread).await,
                Self::Memory(_) | Self::Postgres(_) => None,
            }
        })
    }

    /// The highest ordinal that a checkpoint knows of.
    pub fn known_last(&self, thread: ThreadId) -> StoreFuture<'_, Option<Ordinal>> {
        Box::pin(async move {
            match self {
                Self::Local(store) => store.known_last(thread).await,
                Self::Memory(_) | Self::Postgres(_) => None,
            }
        })
    }

    /// Puts right what can be put right, and says what cannot.
    pub fn repair(&self, thread: ThreadId, mode: ClaimMode) -> StoreFuture<'_, Result<Repair, DeleteError>> {
        Box::pin(async move { either!(self, store => store.repair(thread, mode).await) })
    }

    /// Keeps a checkpoint aside. Losing it costs time, nothing else.
    pub fn put_checkpoint<'a>(&'a self, checkpoint: &'a Checkpoint) -> StoreFuture<'a, Result<(), ReadError>> {
        Box::pin(async move { either!(self, store => store.put_checkpoint(checkpoint).await) })
    }

    /// The checkpoint of a thread, if there is one that its journal bears out.
    pub fn checkpoint(&self, thread: ThreadId) -> StoreFuture<'_, Option<Checkpoint>> {
        Box::pin(async move { either!(self, store => store.checkpoint(thread).await) })
    }

    /// Keeps content by its digest, durably, and tells the digest.
    pub fn put_blob(&self, content: Vec<u8>) -> StoreFuture<'_, Result<crate::blob::Digest, AppendError>> {
        Box::pin(async move { either!(self, store => store.put_blob(content).await) })
    }

    /// Keeps a copy of a picture as a file that people can open, where the store is a folder of this machine; where it is.
    pub fn save_image(
        &self,
        thread: ThreadId,
        extension: &'static str,
        content: Vec<u8>,
    ) -> StoreFuture<'_, std::io::Result<Option<std::path::PathBuf>>> {
        Box::pin(async move {
            match self {
                Self::Local(store) => store.save_image(thread, extension, content).await.map(Some),
                Self::Memory(_) | Self::Postgres(_) => Ok(None),
            }
        })
    }

    pub fn blob(&self, digest: crate::blob::Digest) -> StoreFuture<'_, Result<Vec<u8>, crate::blob::BlobError>> {
        Box::pin(async move { either!(self, store => store.blob(digest).await) })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum DeleteError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("its fork {child} could not be given its own copy: {why}")]
    Child {
        child: ThreadId,
        #[source]
        why: SharedError,
    },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// A history that is being read.
pub enum HistoryReader {
    Local(crate::local::LocalHistory),
    Memory(crate::memory::MemoryHistory),
    Postgres(crate::postgres::PostgresHistory),
}

/// A piece of a history.
#[derive(Debug, Default, PartialEq)]
pub struct Batch {
    pub entries: Vec<Entry>,
    pub damage: Vec<Damage>,
}

impl Batch {
    /// Its entries, with a `damageNoted` in the place of those that cannot be read.
    pub fn with_gaps(self) -> Vec<Entry> {
        crate::damage::with_gaps(self.entries, &self.damage)
    }
}

impl Page {
    /// Its entries, with a `damageNoted` in the place of those that cannot be read.
    pub fn with_gaps(self) -> Vec<Entry> {
        crate::damage::with_gaps(self.entries, &self.damage)
    }
}

impl HistoryReader {
    /// The next piece; None at the end.
    pub async fn next(&mut self) -> Result<Option<Batch>, ReadError> {
        match self {
            Self::Local(history) => history.next().await,
            Self::Memory(history) => Ok(history.next()),
            Self::Postgres(history) => history.next().await,
        }
    }

    /// All that is left of it. Only where it is known to be small.
    pub async fn rest(mut self) -> Result<Batch, ReadError> {
        let mut all = Batch::default();
        while let Some(batch) = self.next().await? {
            all.entries.extend(batch.entries);
            all.damage.extend(batch.damage);
        }
        Ok(all)
    }
}
