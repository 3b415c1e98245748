//! Threads that live as long as the program: for ephemeral ones, and for tests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use outpost_thread::{Checkpoint, Entry, Fact, ForkBase, Ordinal, ThreadId};
use outpost_wire::SharedError;

use crate::blob::{BlobError, Digest};
use crate::damage::{Damage, DamageKind};
use crate::lease::{ClaimError, ClaimMode, Lease, LeaseHolder};
use crate::list::{self, ListPage, ListQuery};
use crate::local::lock;
use crate::store::{
    AppendError, Appended, Batch, Clock, DeleteError, ForkRequest, ForkStoreError, Need, Page, PageRequest, ReadError, Redactor, ThreadHead,
};
use crate::summary::ThreadSummary;
use crate::verify::{Repair, VerifyReport};

#[derive(Clone)]
pub struct MemoryStore(Arc<Shared>);

struct Shared {
    clock: Clock,
    redactor: Option<Arc<dyn Redactor>>,
    threads: Mutex<HashMap<ThreadId, Kept>>,
    blobs: Mutex<HashMap<Digest, Vec<u8>>>,
}

#[derive(Default)]
struct Kept {
    /// A fork shares the entries of its parent; cloning them is cheap enough here.
    entries: Vec<Entry>,
    own_from: usize,
    epoch: u64,
    held_since: Option<u64>,
    checkpoint: Option<Checkpoint>,
}

/// A history that is read forwards.
pub struct MemoryHistory(Vec<Entry>);

impl MemoryHistory {
    pub(crate) fn next(&mut self) -> Option<Batch> {
        const PIECE: usize = 1000;
        if self.0.is_empty() {
            return None;
        }
        let rest = self.0.split_off(self.0.len().min(PIECE));
        Some(Batch { entries: std::mem::replace(&mut self.0, rest), damage: Vec::new() })
    }
}

/// This program: no other can hold what is in its memory.
fn here(since: u64, renewed: u64) -> LeaseHolder {
    LeaseHolder { instance: "memory".into(), host: "here".into(), pid: std::process::id(), since, renewed, node: None, address: None }
}

impl MemoryStore {
    pub fn new(clock: Clock, redactor: Option<Arc<dyn Redactor>>) -> Self {
        Self(Arc::new(Shared { clock, redactor, threads: Mutex::default(), blobs: Mutex::default() }))
    }

    fn read<T>(&self, thread: ThreadId, read: impl FnOnce(&Kept) -> T) -> Result<T, ReadError> {
        lock(&self.0.threads).get(&thread).map(read).ok_or(ReadError::NotFound(thread))
    }

    pub async fn create(&self, thread: ThreadId) -> Result<Lease, ClaimError> {
        let mut threads = lock(&self.0.threads);
        if threads.contains_key(&thread) {
            return Err(ClaimError::Exists(thread));
        }
        threads.insert(thread, Kept { epoch: 1, held_since: Some((self.0.clock)()), ..Kept::default() });
        Ok(Lease { thread, epoch: 1 })
    }

    pub async fn claim(&self, thread: ThreadId, mode: ClaimMode) -> Result<Lease, ClaimError> {
        let now = (self.0.clock)();
        let mut threads = lock(&self.0.threads);
        let kept = threads.get_mut(&thread).ok_or(ClaimError::NotFound(thread))?;
        if let (Some(since), ClaimMode::IfFree) = (kept.held_since, mode) {
            let holder = here(since, now);
            return Err(ClaimError::Held { thread, holder: Box::new(holder), age_ms: now.saturating_sub(since) });
        }
        kept.epoch += 1;
        kept.held_since = Some(now);
        Ok(Lease { thread, epoch: kept.epoch })
    }

    pub async fn holder(&self, thread: ThreadId) -> Result<Option<LeaseHolder>, ClaimError> {
        let now = (self.0.clock)();
        let threads = lock(&self.0.threads);
        let kept = threads.get(&thread).ok_or(ClaimError::NotFound(thread))?;
        Ok(kept.held_since.map(|since| here(since, now)))
    }

    pub async fn release(&self, lease: Lease) {
        let mut threads = lock(&self.0.threads);
        if let Some(kept) = threads.get_mut(&lease.thread).filter(|kept| kept.epoch == lease.epoch) {
            kept.held_since = None;
            if !kept.entries.iter().any(crate::local::materializes) {
                threads.remove(&lease.thread);
            }
        }
    }

    pub async fn append(&self, lease: &Lease, entries: Vec<Entry>, _need: Need) -> Result<Appended, AppendError> {
        let lost = || AppendError::LeaseLost { thread: lease.thread, holder: "another holder".into() };
        let stored = entries.iter().map(|entry| self.clean(entry)).collect::<Result<Vec<_>, _>>()?;
        let mut threads = lock(&self.0.threads);
        let kept = threads.get_mut(&lease.thread).filter(|kept| kept.epoch == lease.epoch && kept.held_since.is_some()).ok_or_else(lost)?;
        let mut expected = kept.last() + 1;
        for entry in &entries {
            if entry.ordinal != expected {
                return Err(AppendError::Conflict { expected, found: entry.ordinal });
            }
            expected = entry.end() + 1;
        }
        kept.entries.extend(stored.iter().cloned());
        Ok(Appended { entries: stored, last: kept.last(), durable: 0 })
    }

    fn clean(&self, entry: &Entry) -> Result<Entry, AppendError> {
        let Some(redactor) = self.0.redactor.as_deref() else { return Ok(entry.clone()) };
        let kind = entry.fact.kind();
        let data = entry.fact.data().map_err(|error| AppendError::Unwritable { kind: kind.to_owned(), why: SharedError::new(error) })?;
        let clean = crate::redact::redact(redactor, &data);
        Ok(clean.map_or_else(|| entry.clone(), |data| Entry { fact: Fact::read(outpost_thread::VERSION, kind, data), ..*entry }))
    }

    pub async fn head(&self, thread: ThreadId) -> Result<ThreadHead, ReadError> {
        self.read(thread, |kept| ThreadHead {
            thread,
            first: kept.entries.get(kept.own_from).cloned(),
            last: kept.last(),
            sum: String::new(),
            durable: 0,
            bytes: 0,
            damage: Vec::new(),
        })
    }

    pub async fn page(&self, thread: ThreadId, request: PageRequest) -> Result<Page, ReadError> {
        self.read(thread, |kept| {
            let mut turns = 0;
            let before = kept.entries.iter().filter(|entry| request.before.is_none_or(|before| entry.ordinal < before));
            let mut entries: Vec<Entry> = Vec::new();
            let mut is_full = false;
            for entry in before.rev() {
                if matches!(entry.fact, Fact::TurnFinished(_)) && turns >= request.turns {
                    is_full = true;
                    break;
                }
                turns += usize::from(matches!(entry.fact, Fact::TurnStarted(_)));
                entries.push(entry.clone());
            }
            entries.reverse();
            let before = entries.first().map(|entry| entry.ordinal).filter(|_| is_full);
            Page { entries, damage: Vec::new(), before }
        })
    }

    pub(crate) fn history(&self, thread: ThreadId, after: Ordinal) -> Result<MemoryHistory, ReadError> {
        self.read(thread, |kept| MemoryHistory(kept.entries.iter().filter(|entry| entry.ordinal > after).cloned().collect()))
    }

    pub async fn entries(&self, thread: ThreadId, wanted: Vec<Ordinal>) -> Result<Vec<Entry>, ReadError> {
        self.read(thread, |kept| {
            wanted.iter().filter_map(|ordinal| kept.entries.iter().find(|entry| entry.ordinal == *ordinal)).cloned().collect()
        })
    }

    pub async fn fork(&self, request: ForkRequest) -> Result<Lease, ForkStoreError> {
        let (parent, ordinal) = (request.forked.parent, request.cut.ordinal);
        let shared = self.read(parent, |source| source.entries.iter().filter(|entry| entry.ordinal <= ordinal).cloned().collect())?;
        self.fork_of(shared, request).await
    }

    /// A fork of a thread of another store, with the entries that it shares with it.
    pub async fn fork_of(&self, shared: Vec<Entry>, request: ForkRequest) -> Result<Lease, ForkStoreError> {
        let ForkRequest { mut forked, cut, at } = request;
        let (thread, parent, ordinal) = (forked.thread, forked.parent, cut.ordinal);
        let mut threads = lock(&self.0.threads);
        if threads.contains_key(&thread) {
            return Err(ForkStoreError::Exists(thread));
        }
        let mut entries = shared;
        if entries.last().is_none_or(|entry| entry.ordinal != ordinal) {
            return Err(ForkStoreError::OutOfRange { thread: parent, ordinal });
        }
        let own_from = entries.len();
        forked.base = ForkBase { thread: parent, ordinal, sum: String::new() };
        let facts = std::iter::once(Fact::from(forked)).chain(cut.close.map(Fact::from));
        entries.extend(facts.zip(ordinal + 1..).map(|(fact, ordinal)| Entry { ordinal, at, fact }));
        threads.insert(thread, Kept { entries, own_from, epoch: 1, held_since: Some((self.0.clock)()), checkpoint: None });
        Ok(Lease { thread, epoch: 1 })
    }

    pub async fn delete(&self, thread: ThreadId, mode: ClaimMode) -> Result<(), DeleteError> {
        self.claim(thread, mode).await?;
        lock(&self.0.threads).remove(&thread);
        Ok(())
    }

    pub async fn threads(&self) -> Result<Vec<ThreadId>, ReadError> {
        let threads = lock(&self.0.threads);
        Ok(threads.iter().filter(|(_, kept)| kept.entries.iter().any(crate::local::materializes)).map(|(thread, _)| *thread).collect())
    }

    pub async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        let threads = lock(&self.0.threads);
        let rows = threads.values().filter(|kept| kept.entries.iter().any(crate::local::materializes)).map(|kept| {
            let is_found = query.search.as_ref().is_none_or(|search| kept.entries.iter().any(|entry| list::matches(search, entry)));
            (kept.summary(), is_found)
        });
        Ok(list::select(rows.collect(), &query))
    }

    pub async fn mentions(&self, wanted: &[ThreadId], search: &str) -> Result<HashMap<ThreadId, Entry>, ReadError> {
        let threads = lock(&self.0.threads);
        let first = |thread| threads.get(thread)?.entries.iter().find(|entry| list::matches(search, entry)).cloned();
        Ok(wanted.iter().filter_map(|thread| Some((*thread, first(thread)?))).collect())
    }

    pub async fn summary(&self, thread: ThreadId) -> Result<Option<ThreadSummary>, ReadError> {
        let threads = lock(&self.0.threads);
        Ok(threads.get(&thread).filter(|kept| kept.entries.iter().any(crate::local::materializes)).map(Kept::summary))
    }

    pub async fn verify(&self, thread: ThreadId, known: Option<Ordinal>) -> Result<VerifyReport, ReadError> {
        self.read(thread, |kept| {
            let last = kept.last();
            let cut = known.filter(|known| *known > last);
            let damage = cut.map(|to| (thread, Damage { from: last + 1, to, offset: 0, bytes: 0, what: DamageKind::CutOff }));
            VerifyReport { thread, entries: kept.entries.len() as u64, last, bytes: 0, damage: damage.into_iter().collect(), given_up: 0 }
        })
    }

    pub async fn repair(&self, thread: ThreadId, mode: ClaimMode) -> Result<Repair, DeleteError> {
        // Memory has nothing to repair; the lease is asked for all the same.
        let lease = self.claim(thread, mode).await?;
        self.release(lease).await;
        Ok(Repair { damage: Vec::new(), kept: None })
    }

    pub async fn put_checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), ReadError> {
        let thread = checkpoint.thread.id;
        lock(&self.0.threads).get_mut(&thread).ok_or(ReadError::NotFound(thread))?.checkpoint = Some(checkpoint.clone());
        Ok(())
    }

    pub async fn checkpoint(&self, thread: ThreadId) -> Option<Checkpoint> {
        lock(&self.0.threads).get(&thread)?.checkpoint.clone()
    }

    pub async fn put_blob(&self, content: Vec<u8>) -> Result<Digest, AppendError> {
        let digest = Digest::of(&content);
        lock(&self.0.blobs).insert(digest, content);
        Ok(digest)
    }

    pub async fn blob(&self, digest: Digest) -> Result<Vec<u8>, BlobError> {
        lock(&self.0.blobs).get(&digest).cloned().ok_or(BlobError::NotFound(digest))
    }
}

impl Kept {
    fn summary(&self) -> ThreadSummary {
        // The first entry that tells an id is followed by those of forks, which tell their own.
        let id = self.entries.iter().find_map(|entry| if let Fact::ThreadCreated(fact) = &entry.fact { Some(fact.thread) } else { None });
        let mut summary = ThreadSummary::new(id.unwrap_or(ThreadId::new(uuid::Uuid::nil())));
        for entry in &self.entries {
            summary.apply(entry);
        }
        summary
    }

    fn last(&self) -> Ordinal {
        self.entries.last().map_or(0, Entry::end)
    }
}
