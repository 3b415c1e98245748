//! Threads of the peer become threads here: `import` reads its rollouts (both history modes, compressed ones too) and writes
//! them into a store.
//!
//! `shelf.rs` finds files, `file.rs` and `line.rs` read them, `lineage.rs` puts a fork after its ancestors; `convert.rs`,
//! `scribe.rs` and `meta.rs` say it in our words. A thread keeps its id, so that importing it twice is the same thread: what was
//! added to the rollout since is added here, unless the thread has gone its own way.

mod claude;
mod convert;
mod details;
mod file;
mod line;
mod lineage;
mod meta;
mod scribe;
mod shelf;
mod time;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use outpost_thread::{Entry, Fact, Seq, ThreadId};

use crate::export::{ExportFileError, read_export};
use crate::lease::{ClaimError, ClaimMode};
use crate::open::{keep_checkpoint, open};
use crate::store::{AppendError, Need, ReadError, Store};
pub use claude::ClaudeError;
use convert::{Beside, Converter};
pub use file::BadLine;
use lineage::Lineage;
pub use lineage::LineageError;
use scribe::Dated;
use shelf::Shelf;

/// Entries in one append.
const BATCH: usize = 512;
/// A thread with more entries than this is kept ready to be opened.
const LONG: usize = 1000;

/// A rollout that can be imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollout {
    pub path: PathBuf,
    pub archived: bool,
    name: Option<String>,
    by: Writer,
}

/// Which program wrote a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    Codex,
    ClaudeCode,
}

/// What there is to import at a path.
pub struct Rollouts {
    shelf: Shelf,
    pub found: Vec<Rollout>,
}

/// What became of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    pub thread: ThreadId,
    pub turns: u64,
    pub outcome: Outcome,
    /// Kinds of lines that are carried without being understood, and how many of each.
    pub carried: BTreeMap<String, u64>,
    pub unreadable: Vec<BadLine>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Created,
    /// It was here already, and the rollout has grown since.
    Continued {
        added: u64,
    },
    Unchanged,
    /// It was here already and has gone its own way; nothing was changed.
    Diverged,
}

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Lineage(#[from] LineageError),
    #[error(transparent)]
    Claude(#[from] ClaudeError),
    #[error(transparent)]
    Export(#[from] ExportFileError),
    #[error("{path}: its thread is called `{id}`, which is no UUID")]
    Id { path: PathBuf, id: String },
    #[error("{path}: nothing in it can be read")]
    Empty { path: PathBuf },
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl Rollouts {
    /// Looks at a file, or at everything below a folder.
    pub fn find(path: &Path) -> io::Result<Self> {
        let shelf = Shelf::open(path)?;
        let rollout = |(id, found): (&String, &shelf::Found)| Rollout {
            path: found.path.clone(),
            archived: found.archived,
            name: shelf.name(id).map(str::to_owned),
            by: Writer::Codex,
        };
        let session = |path: &PathBuf| Rollout { path: path.clone(), archived: false, name: None, by: Writer::ClaudeCode };
        let found = shelf.threads.iter().map(rollout).chain(shelf.sessions.iter().map(session)).collect();
        Ok(Self { shelf, found })
    }

    /// Writes one of them into a store: the thread that it is named after first, then those of agents that stand in it as well.
    pub async fn import(&self, rollout: &Rollout, store: &Store) -> Result<Vec<Imported>, ImportError> {
        match rollout.by {
            Writer::Codex => self.import_rollout(rollout, store).await.map(|imported| vec![imported]),
            Writer::ClaudeCode => import_session(&rollout.path, store).await,
        }
    }

    async fn import_rollout(&self, rollout: &Rollout, store: &Store) -> Result<Imported, ImportError> {
        let lineage = Lineage::trace(&rollout.path, &self.shelf)?;
        let id = &lineage.head.thread;
        let thread: ThreadId = id.parse().map_err(|_| ImportError::Id { path: rollout.path.clone(), id: id.clone() })?;
        let name = rollout.name.as_deref().or_else(|| self.shelf.name(id));
        let mut converter = Converter::new(thread);
        let mut unreadable = Vec::new();
        lineage.read(|line| converter.line(line), |bad| unreadable.push(bad))?;
        let converted = converter.finish(Beside { name, archived: rollout.archived });
        if converted.facts.is_empty() {
            return Err(ImportError::Empty { path: rollout.path.clone() });
        }
        let outcome = write(store, thread, &converted.facts).await?;
        Ok(Imported { thread, turns: converted.turns, outcome, carried: converted.carried, unreadable })
    }
}

/// Reading a large session takes a while, so it is done where waiting is allowed.
async fn import_session(path: &Path, store: &Store) -> Result<Vec<Imported>, ImportError> {
    let own = path.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let mut unreadable = Vec::new();
        claude::read(&own, |bad| unreadable.push(bad)).map(|threads| (threads, unreadable))
    });
    let (threads, mut unreadable) = match read.await {
        Ok(read) => read?,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    let mut imported = Vec::new();
    for (thread, converted) in threads {
        // A head alone is no conversation.
        if converted.turns == 0 {
            continue;
        }
        let outcome = write(store, thread, &converted.facts).await?;
        let unreadable = std::mem::take(&mut unreadable);
        imported.push(Imported { thread, turns: converted.turns, outcome, carried: converted.carried, unreadable });
    }
    if imported.is_empty() {
        return Err(ImportError::Empty { path: path.to_owned() });
    }
    Ok(imported)
}

/// Writes a thread that was exported into a store, under its own id.
pub async fn import_export(path: &Path, store: &Store) -> Result<Imported, ImportError> {
    let (thread, entries) = read_export(path)?;
    let turns = entries.iter().filter(|entry| matches!(entry.fact, Fact::TurnStarted(_))).count() as u64;
    let facts: Vec<Dated> = entries.into_iter().map(|entry| Dated { at: entry.at, fact: entry.fact }).collect();
    if facts.is_empty() {
        return Err(ImportError::Empty { path: path.to_owned() });
    }
    let outcome = write(store, thread, &facts).await?;
    Ok(Imported { thread, turns, outcome, carried: BTreeMap::new(), unreadable: Vec::new() })
}

async fn write(store: &Store, thread: ThreadId, facts: &[Dated]) -> Result<Outcome, ImportError> {
    let lease = match store.create(thread).await {
        Ok(lease) => lease,
        Err(ClaimError::Exists(_)) => return continue_thread(store, thread, facts).await,
        Err(error) => return Err(error.into()),
    };
    let written = append(store, &lease, 0, facts).await;
    store.release(lease).await;
    written.map(|()| Outcome::Created)
}

/// Adds what the rollout has more than the thread here. Names and marks are no difference: they may be changed here, too.
async fn continue_thread(store: &Store, thread: ThreadId, facts: &[Dated]) -> Result<Outcome, ImportError> {
    let mut told = facts.iter().enumerate().filter(|(_, dated)| !is_mark(&dated.fact));
    let mut history = store.history(thread, 0).await?;
    let mut last = 0;
    while let Some(batch) = history.next().await? {
        for entry in batch.entries {
            last = entry.end();
            if is_mark(&entry.fact) {
                continue;
            }
            match told.next() {
                Some((_, dated)) if dated.at == entry.at && dated.fact == entry.fact => {}
                // Also if a turn was under way when it was imported: its end here cannot be taken back.
                _ => return Ok(Outcome::Diverged),
            }
        }
    }
    let Some((first, _)) = told.next() else { return Ok(Outcome::Unchanged) };
    let new = &facts[first..];
    let lease = store.claim(thread, ClaimMode::IfFree).await?;
    let written = append(store, &lease, last, new).await;
    store.release(lease).await;
    written.map(|()| Outcome::Continued { added: new.len() as u64 })
}

const fn is_mark(fact: &Fact) -> bool {
    matches!(fact, Fact::MetadataChanged(_))
}

async fn append(store: &Store, lease: &crate::lease::Lease, last: Seq, facts: &[Dated]) -> Result<(), ImportError> {
    let mut next = last + 1;
    let mut batches = facts.chunks(BATCH).peekable();
    while let Some(batch) = batches.next() {
        let mut entries: Vec<Entry> = Vec::with_capacity(batch.len());
        for dated in batch {
            let entry = Entry { seq: next, at: dated.at, fact: dated.fact.clone() };
            // A repaired thread has one entry for all that are gone; the others keep their ordinals.
            next = entry.end() + 1;
            entries.push(entry);
        }
        // The user may delete the original once a thread is reported as imported.
        let need = if batches.peek().is_none() { Need::Durable } else { Need::Stored };
        store.append(lease, entries, need).await?;
    }
    if facts.len() > LONG {
        let opened = open(store, lease.thread).await?;
        if opened.damage.is_empty() && opened.unfit.is_empty() {
            keep_checkpoint(store, &opened.thread).await?;
        }
    }
    Ok(())
}
