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
mod rollouts;
mod scribe;
mod target;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::path::{Path, PathBuf};

use outpost_thread::{Fact, ThreadId};
use tokio::sync::mpsc;

use crate::export::{ExportFileError, read_export};
use crate::lease::ClaimError;
use crate::store::{AppendError, ReadError, Store};
pub use claude::ClaudeError;
use convert::{Beside, Converter};
pub use file::BadLine;
pub use lineage::LineageError;
use lineage::RolloutLineage;
use rollouts::RolloutCatalog;
use scribe::Dated;
use target::Target;

/// Pieces of a file that were read and not written yet.
const AHEAD: usize = 2;

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
    shelf: RolloutCatalog,
    pub found: Vec<Rollout>,
}

/// What became of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    pub thread: ThreadId,
    pub turns: u64,
    pub outcome: ImportOutcome,
    /// Kinds of lines that are carried without being understood, and how many of each.
    pub carried: BTreeMap<String, u64>,
    pub unreadable: Vec<BadLine>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportOutcome {
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
    #[error("{path}: its thread is called `{id}`, which is not a UUID")]
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
        let shelf = RolloutCatalog::open(path)?;
        let rollout = |(id, found): (&String, &rollouts::FoundRollout)| Rollout {
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
        let lineage = RolloutLineage::trace(&rollout.path, &self.shelf)?;
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
        let outcome = write(store, thread, converted.facts).await?;
        Ok(Imported { thread, turns: converted.turns, outcome, carried: converted.carried, unreadable })
    }
}

/// Reads a session where waiting is allowed, and writes it meanwhile.
async fn import_session(path: &Path, store: &Store) -> Result<Vec<Imported>, ImportError> {
    let (pieces, mut read) = mpsc::channel(AHEAD);
    let own = path.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        let mut unreadable = Vec::new();
        claude::read(&own, |piece| pieces.blocking_send(piece).is_ok(), |bad| unreadable.push(bad)).map(|threads| (threads, unreadable))
    });
    let mut targets = BTreeMap::new();
    let mut written = Ok(());
    while let (Ok(()), Some(claude::Piece { thread, facts })) = (&written, read.recv().await) {
        written = take(&mut targets, store, thread, facts).await;
    }
    // Reading stops if nothing can be written any more.
    drop(read);
    let ended = match reading.await {
        Ok(ended) => ended,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    let ended = written.and_then(|()| Ok(ended?));
    let (threads, mut unreadable) = match ended {
        Ok(ended) => ended,
        Err(error) => {
            for target in targets.into_values() {
                target.give_up().await;
            }
            return Err(error);
        }
    };
    let mut imported = Vec::new();
    for claude::Whole { thread, turns, carried } in threads {
        let Some(target) = targets.remove(&thread) else { continue };
        let outcome = target.finish().await?;
        imported.push(Imported { thread, turns, outcome, carried, unreadable: std::mem::take(&mut unreadable) });
    }
    if imported.is_empty() {
        return Err(ImportError::Empty { path: path.to_owned() });
    }
    Ok(imported)
}

async fn take<'a>(
    targets: &mut BTreeMap<ThreadId, Target<'a>>,
    store: &'a Store,
    thread: ThreadId,
    facts: Vec<Dated>,
) -> Result<(), ImportError> {
    let target = match targets.entry(thread) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert(Target::begin(store, thread).await?),
    };
    target.take(facts).await
}

/// Writes a thread that was exported into a store, under its own id.
pub async fn import_export(path: &Path, store: &Store) -> Result<Imported, ImportError> {
    let (thread, entries) = read_export(path)?;
    let turns = entries.iter().filter(|entry| matches!(entry.fact, Fact::TurnStarted(_))).count() as u64;
    let facts: Vec<Dated> = entries.into_iter().map(|entry| Dated { at: entry.at, fact: entry.fact }).collect();
    if facts.is_empty() {
        return Err(ImportError::Empty { path: path.to_owned() });
    }
    let outcome = write(store, thread, facts).await?;
    Ok(Imported { thread, turns, outcome, carried: BTreeMap::new(), unreadable: Vec::new() })
}

async fn write(store: &Store, thread: ThreadId, facts: Vec<Dated>) -> Result<ImportOutcome, ImportError> {
    let mut target = Target::begin(store, thread).await?;
    if let Err(error) = target.take(facts).await {
        target.give_up().await;
        return Err(error);
    }
    target.finish().await
}
