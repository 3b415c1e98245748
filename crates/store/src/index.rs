//! The index of threads: lists, searches and where turns begin. It is derived from the journals and may be deleted or garbled
//! at any time; it is then made anew, in the background.
//!
//! One thread writes it ([`writer`]), from notes about what changed; readers have connections of their own. Journals are the
//! truth: nothing is ever told to the index that is not in one.

mod database;
mod query;
mod scan;

pub(crate) use scan::is_journal;
mod writer;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outpost_thread::{Ordinal, ThreadId};
use outpost_wire::SharedError;
use tokio::sync::watch;

pub use database::IndexError;

use crate::blob::Blobs;
use crate::list::{Coverage, ListPage, ListQuery};
use crate::summary::ThreadSummary;
use database::Database;
use scan::JournalFile;
use writer::{IndexWriter, Note};

/// How long a search waits for an index that is being filled: most are whole by then, and the caller does not seem to hang.
const SEARCH_PATIENCE: Duration = Duration::from_secs(3);

/// Where things are, and how long a note may wait for others.
#[derive(Debug, Clone)]
pub struct IndexConfig {
    /// Where the index is kept.
    pub directory: PathBuf,
    pub journals: PathBuf,
    pub blobs: Blobs,
    /// Notes are written when none came for so long …
    pub idle: Duration,
    /// … and at the latest after this.
    pub delay: Duration,
}

impl IndexConfig {
    /// Of a home, with the usual patience.
    pub fn of_home(home: &Path) -> Self {
        Self {
            directory: home.join("index"),
            journals: home.join("threads"),
            blobs: Blobs::new(home.join("blobs")),
            idle: Duration::from_millis(250),
            delay: Duration::from_secs(1),
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.join("threads.sqlite")
    }

    fn make_folder(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)
    }
}

/// How far the writer is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct State {
    /// Every thread has a row.
    is_listed: bool,
    failure: Option<SharedError>,
    /// Bytes of journals whose words were read, of those that had to be read since the start.
    done: u64,
    total: u64,
}

impl State {
    const fn coverage(&self) -> Coverage {
        if self.done >= self.total { Coverage::Complete } else { Coverage::Filling { done: self.done, total: self.total } }
    }
}

/// What readers must know of the writer to read without asking it.
#[derive(Debug, Default)]
struct Abreast {
    /// How many changes were noted, and how many of them are written.
    noted: AtomicU64,
    written: AtomicU64,
    /// The file that is being written.
    inode: AtomicU64,
}

impl Abreast {
    /// Whether the file at this path has everything that was noted.
    fn is_whole(&self, path: &Path) -> bool {
        let is_written = self.written.load(Ordering::Acquire) >= self.noted.load(Ordering::Acquire);
        is_written && std::fs::metadata(path).is_ok_and(|file| file.ino() == self.inode.load(Ordering::Acquire))
    }
}

/// A handle; the writer ends with the last one.
#[derive(Clone)]
pub struct Index {
    config: Arc<IndexConfig>,
    notes: Sender<Note>,
    state: watch::Receiver<State>,
    abreast: Arc<Abreast>,
    readers: Arc<Mutex<Vec<Database>>>,
}

impl Index {
    /// Starts the writer, which opens, checks or makes the file. Callers need not wait for it.
    pub fn start(config: IndexConfig) -> io::Result<Self> {
        let (notes, inbox) = mpsc::channel();
        let (state, watcher) = watch::channel(State::default());
        let abreast: Arc<Abreast> = Arc::default();
        let writer = IndexWriter::new(config.clone(), inbox, state, abreast.clone());
        std::thread::Builder::new().name("thread-index".into()).spawn(move || writer.run())?;
        Ok(Self { config: Arc::new(config), notes, state: watcher, abreast, readers: Arc::default() })
    }

    /// Entries were appended to this journal.
    pub fn touched(&self, id: ThreadId, path: &Path) {
        self.note(Note::Touched(JournalFile { id, path: path.to_owned() }));
    }

    /// This journal was repaired: what was known of it before, also how far it went, counts no more.
    pub fn anew(&self, id: ThreadId, path: &Path) {
        self.note(Note::Removed(id));
        let (done, wait) = mpsc::sync_channel(1);
        self.note(Note::Flush(done));
        // A writer that is gone has nothing to forget.
        let _ = wait.recv();
        self.touched(id, path);
    }

    pub fn removed(&self, id: ThreadId) {
        self.note(Note::Removed(id));
    }

    fn note(&self, note: Note) {
        if matches!(note, Note::Touched(_) | Note::Removed(_)) {
            self.abreast.noted.fetch_add(1, Ordering::AcqRel);
        }
        // The writer lives as long as this handle; if it panicked, lists fail and journals are untouched.
        let _ = self.notes.send(note);
    }

    /// A page of threads, with everything that was noted before. A search waits a while for words that are still to be read;
    /// the page says if that was not long enough.
    pub async fn list(&self, query: ListQuery) -> Result<ListPage, IndexError> {
        if query.search.is_some() {
            let _ = tokio::time::timeout(SEARCH_PATIENCE, self.complete()).await;
        }
        let (threads, query) = self.ask(move |database| database.list(&query).map(|threads| (threads, query.clone()))).await?;
        Ok(ListPage::cut(threads, &query, self.state.borrow().coverage()))
    }

    /// The first entry of each thread in which the words of a search stand.
    pub async fn mentions(&self, threads: Vec<ThreadId>, search: String) -> Result<Vec<(ThreadId, Ordinal)>, IndexError> {
        self.ask(move |database| {
            let place = |id: &ThreadId| database.mention(*id, &search).map(|ordinal| ordinal.map(|ordinal| (*id, ordinal))).transpose();
            threads.iter().filter_map(place).collect()
        })
        .await
    }

    pub async fn summary(&self, id: ThreadId) -> Result<Option<ThreadSummary>, IndexError> {
        self.ask(move |database| Ok(database.find(id)?.map(|(_, row)| row.summary))).await
    }

    /// The highest ordinal that was ever seen in a thread: a journal that ends before it has lost its end.
    pub async fn high_ordinal(&self, id: ThreadId) -> Result<Option<Ordinal>, IndexError> {
        self.ask(move |database| Ok(database.find(id)?.map(|(_, row)| row.high_ordinal))).await
    }

    /// Where turn `number` of a thread begins, counted from 1.
    pub async fn turn_start(&self, id: ThreadId, number: u64) -> Result<Option<Ordinal>, IndexError> {
        self.ask(move |database| database.turn_start(id, number)).await
    }

    /// Returns when search sees every word that was written before.
    pub async fn complete(&self) {
        let mut state = self.state.clone();
        // An end of the writer ends the waiting, too.
        let _ = state.wait_for(|state| state.is_listed && state.coverage() == Coverage::Complete).await;
    }

    /// Looks at every page of the file. A bad one is made anew.
    pub async fn check(&self) -> bool {
        let (answer, verdict) = mpsc::sync_channel(1);
        self.note(Note::Check(answer));
        tokio::task::spawn_blocking(move || verdict.recv().unwrap_or(false)).await.unwrap_or(false)
    }

    /// Asks with a connection of its own, when the list is whole and what was noted is written. If the file turns out to be
    /// unusable, it is made anew and asked again.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl Fn(&Database) -> Result<T, IndexError> + Clone + Send + 'static,
    ) -> Result<T, IndexError> {
        let mut attempts = 0;
        loop {
            let mut state = self.state.clone();
            let _ = state.wait_for(|state| state.is_listed).await;
            if let Some(failure) = self.state.borrow().failure.clone() {
                return Err(IndexError::Unreachable(failure));
            }
            let (this, question) = (self.clone(), question.clone());
            let asked = tokio::task::spawn_blocking(move || this.ask_now(question)).await;
            match asked.unwrap_or_else(|error| Err(IndexError::Unreachable(SharedError::new(error)))) {
                Err(IndexError::Unusable(why)) if attempts < 3 => {
                    tracing::debug!(%why, "the index is asked again");
                    attempts += 1;
                    self.distrust();
                }
                answer => return answer,
            }
        }
    }

    /// Returns when the writer has made the file anew.
    fn distrust(&self) {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.note(Note::Distrust);
        let (done, wait) = mpsc::sync_channel(1);
        self.note(Note::Flush(done));
        let _ = wait.recv();
    }

    fn ask_now<T>(&self, question: impl Fn(&Database) -> Result<T, IndexError>) -> Result<T, IndexError> {
        // While words are read, the writer takes a while to answer.
        if !self.abreast.is_whole(&self.config.file()) {
            let (done, wait) = mpsc::sync_channel(1);
            self.note(Note::Flush(done));
            let _ = wait.recv();
        }
        let idle = self.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let reader = match idle.filter(Database::is_in_place) {
            Some(reader) => reader,
            None => Database::open_read_only(&self.config.file())?,
        };
        let answer = question(&reader)?;
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
        Ok(answer)
    }
}
