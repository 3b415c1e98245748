//! The one thread that writes the index: it takes notes of what changed, waits a little for more of them, and reads the
//! journals. Whatever happens to the file, it makes a new one.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use outpost_thread::ThreadId;
use outpost_wire::SharedError;
use tokio::sync::watch;

use super::database::{self, Database, DatabaseStamp, IndexError, ThreadRow};
use super::scan::{self, JournalFile, ScanError};
use super::{Abreast, IndexConfig, State};

/// A journal that grew by no more than this is read at once, with the list; more waits until the list is done.
const SMALL: u64 = 256 << 10;
/// Rows in one transaction while the list is made.
const BATCH: usize = 1000;
/// Bytes of journals in one transaction while words are read.
const LUMP: u64 = 4 << 20;
/// After a failure that a new file would not cure.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) enum Note {
    Touched(JournalFile),
    Removed(ThreadId),
    /// Write what is pending and say so.
    Flush(SyncSender<()>),
    /// A reader found the file to be unusable.
    Distrust,
    /// Look at every page, and say whether the file was good.
    Check(SyncSender<bool>),
}

pub(super) struct IndexWriter {
    pub config: IndexConfig,
    pub notes: Receiver<Note>,
    pub state: watch::Sender<State>,
    database: Option<Database>,
    touched: HashMap<ThreadId, PathBuf>,
    removed: HashSet<ThreadId>,
    since: Option<Instant>,
    /// How many changes were taken from the notes.
    taken: u64,
    abreast: Arc<Abreast>,
    /// Journals whose words are still to be read.
    backlog: VecDeque<JournalFile>,
}

impl IndexWriter {
    pub(super) fn new(config: IndexConfig, notes: Receiver<Note>, state: watch::Sender<State>, abreast: Arc<Abreast>) -> Self {
        let (touched, removed, backlog) = (HashMap::new(), HashSet::new(), VecDeque::new());
        Self { config, notes, state, database: None, touched, removed, since: None, taken: 0, abreast, backlog }
    }

    /// Ends when the last sender of notes is gone.
    pub(super) fn run(mut self) {
        self.recover(None);
        loop {
            let note = match self.patience() {
                Some(patience) => self.notes.recv_timeout(patience),
                None => self.notes.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match note {
                Ok(note) => self.take(note),
                Err(RecvTimeoutError::Timeout) => self.work(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.flush();
    }

    /// How long to wait for another note before something is done; None if there is nothing to do.
    fn patience(&self) -> Option<Duration> {
        match self.since {
            Some(since) => Some(self.config.idle.min(self.config.delay.saturating_sub(since.elapsed()))),
            None if !self.backlog.is_empty() => Some(Duration::ZERO),
            None => None,
        }
    }

    fn take(&mut self, note: Note) {
        match note {
            Note::Touched(journal) => {
                self.removed.remove(&journal.id);
                self.touched.insert(journal.id, journal.path);
                self.taken += 1;
                self.since.get_or_insert_with(Instant::now);
            }
            Note::Removed(id) => {
                self.touched.remove(&id);
                self.removed.insert(id);
                self.taken += 1;
                self.since.get_or_insert_with(Instant::now);
            }
            Note::Flush(done) => {
                self.flush();
                // The caller may be gone.
                let _ = done.send(());
            }
            Note::Distrust => self.recover(Some("a reader could not use it".into())),
            Note::Check(answer) => {
                let verdict = self.database.as_ref().map_or(Ok(()), Database::check);
                let is_good = verdict.is_ok();
                if let Err(error) = verdict {
                    self.recover(Some(SharedError::new(error)));
                }
                let _ = answer.send(is_good);
            }
        }
    }

    fn work(&mut self) {
        if self.since.is_some() {
            self.flush();
        } else {
            self.read_words();
        }
    }

    /// Opens the file and brings it up to date with the journals; throws it away first if it was found to be bad.
    fn recover(&mut self, reason: Option<SharedError>) {
        self.state.send_modify(|state| state.is_listed = false);
        let mut reason = reason;
        // Twice is enough: if a new file is bad as well, something else is wrong, and journals can be used without an index.
        let mut told = None;
        for _ in 0..3 {
            if let Some(reason) = reason.take() {
                tracing::warn!(%reason, "the index of threads is made anew");
                self.database = None;
                if let Err(error) = database::discard(&self.config.file()) {
                    tracing::warn!(%error, "the index of threads cannot be removed");
                }
            }
            match self.open_and_compare() {
                Ok(()) => break,
                Err(IndexError::Unusable(why)) => reason = Some(why),
                Err(error) => {
                    let shown = error.to_string();
                    let why = if let IndexError::Unreachable(why) = error { why } else { SharedError::new(error) };
                    // Once is enough, however often it is tried.
                    if told.as_ref() != Some(&why) {
                        tracing::warn!(error = shown, "threads cannot be listed");
                        told = Some(why.clone());
                    }
                    self.state.send_modify(|state| state.failure = Some(why));
                    std::thread::sleep(PAUSE);
                }
            }
        }
        self.state.send_modify(|state| state.is_listed = true);
    }

    pub(super) fn open_and_compare(&mut self) -> Result<(), IndexError> {
        self.config.make_folder()?;
        self.backlog.clear();
        let database = Database::open(&self.config.file())?;
        let journals = scan::journals(&self.config.journals)?;
        let known: HashMap<ThreadId, ThreadRow> = database.all()?.into_iter().map(|(_, row)| (row.summary.id, row)).collect();
        let present: HashSet<ThreadId> = journals.iter().map(|journal| journal.id).collect();
        let gone: Vec<ThreadId> = known.keys().copied().filter(|id| !present.contains(id)).collect();
        if !gone.is_empty() {
            database.transact(|| gone.iter().try_for_each(|id| database.remove(*id)))?;
        }
        let mut total = 0;
        for batch in journals.chunks(BATCH) {
            let changed: Vec<(&JournalFile, DatabaseStamp)> = batch
                .iter()
                .filter_map(|journal| Some((journal, scan::stamp(&journal.path).ok()?)))
                .filter(|(journal, stamp)| known.get(&journal.id).is_none_or(|row| row.stamp != *stamp || row.worded == 0))
                .collect();
            if changed.is_empty() {
                continue;
            }
            let later = database.transact(|| self.list(&database, &known, &changed))?;
            total += later.iter().map(|(_, bytes)| bytes).sum::<u64>();
            self.backlog.extend(later.into_iter().map(|(journal, _)| journal));
        }
        self.abreast.inode.store(database.inode(), Ordering::Release);
        self.database = Some(database);
        self.state.send_modify(|state| *state = State { is_listed: false, failure: None, done: 0, total });
        Ok(())
    }

    /// Rows for journals that are new or have changed. Returns those whose words are still to be read, and how many bytes that is.
    fn list(
        &self,
        database: &Database,
        known: &HashMap<ThreadId, ThreadRow>,
        changed: &[(&JournalFile, DatabaseStamp)],
    ) -> Result<Vec<(JournalFile, u64)>, IndexError> {
        let mut later = Vec::new();
        for (journal, stamp) in changed {
            let row = known.get(&journal.id);
            let left = stamp.size.saturating_sub(row.map_or(0, |row| row.worded));
            let read = match row {
                Some(row) if row.worded > 0 && left <= SMALL => scan::catch_up(database, journal, &self.config.blobs).map(|_| false),
                // Even if its text has not been read since the last quick scan.
                Some(row) if row.worded > 0 || row.stamp == *stamp => Ok(true),
                _ => scan::quick_look(journal, *stamp, database).and_then(|summary| {
                    let high_ordinal = summary.ordinal.max(row.map_or(0, |row| row.high_ordinal));
                    database.put(&ThreadRow { stamp: *stamp, worded: 0, chain: String::new(), high_ordinal, summary })?;
                    Ok(true)
                }),
            };
            match read {
                Ok(true) => later.push(((*journal).clone(), left)),
                Ok(false) => {}
                Err(ScanError::Index(error)) => return Err(error),
                Err(ScanError::Journal(error)) => tracing::warn!(thread = %journal.id, %error, "a thread is not listed"),
            }
        }
        Ok(later)
    }

    /// Writes what was noted.
    fn flush(&mut self) {
        self.write_notes();
        self.abreast.written.store(self.taken, Ordering::Release);
    }

    fn write_notes(&mut self) {
        self.since = None;
        if self.touched.is_empty() && self.removed.is_empty() {
            return self.stay_in_place();
        }
        let touched: Vec<JournalFile> = self.touched.drain().map(|(id, path)| JournalFile { id, path }).collect();
        let removed: Vec<ThreadId> = self.removed.drain().collect();
        // A fork inherits from its parent's row, which must be whole by then.
        let parents: Vec<JournalFile> = if self.backlog.is_empty() {
            Vec::new()
        } else {
            let bases: HashSet<ThreadId> = touched.iter().filter_map(|journal| scan::base(&journal.path)).collect();
            self.backlog.iter().filter(|journal| bases.contains(&journal.id)).cloned().collect()
        };
        self.stay_in_place();
        let Some(database) = &self.database else { return };
        let written: Result<Vec<JournalFile>, IndexError> = database.transact(|| {
            let mut unfinished = Vec::new();
            for journal in parents.iter().chain(&touched) {
                match scan::catch_up(database, journal, &self.config.blobs) {
                    Ok(progress) if progress.is_at_end => {}
                    Ok(_) => unfinished.push(journal.clone()),
                    Err(ScanError::Index(error)) => return Err(error),
                    // It may have been removed since.
                    Err(ScanError::Journal(error)) => tracing::debug!(thread = %journal.id, %error, "not indexed"),
                }
            }
            removed.iter().try_for_each(|id| database.remove(*id))?;
            Ok(unfinished)
        });
        match written {
            Ok(unfinished) => self.backlog.extend(unfinished),
            Err(error) => self.failed(error),
        }
    }

    /// Reads words for about one transaction's worth.
    fn read_words(&mut self) {
        self.stay_in_place();
        let Some(journal) = self.backlog.pop_front() else { return };
        let mut batch = vec![journal];
        // Many small journals share a transaction.
        while batch.len() < BATCH
            && let Some(journal) = self.backlog.pop_front()
        {
            batch.push(journal);
        }
        let Some(database) = &self.database else { return };
        let read: Result<(u64, Vec<JournalFile>), IndexError> = database.transact(|| {
            let (mut bytes, mut unfinished) = (0, Vec::new());
            for journal in batch {
                if bytes > LUMP {
                    unfinished.push(journal);
                    continue;
                }
                match scan::catch_up(database, &journal, &self.config.blobs) {
                    Ok(progress) => {
                        bytes += progress.bytes;
                        if !progress.is_at_end {
                            unfinished.push(journal);
                        }
                    }
                    Err(ScanError::Index(error)) => return Err(error),
                    Err(ScanError::Journal(error)) => tracing::debug!(thread = %journal.id, %error, "not indexed"),
                }
            }
            Ok((bytes, unfinished))
        });
        match read {
            Ok((bytes, unfinished)) => {
                for journal in unfinished.into_iter().rev() {
                    self.backlog.push_front(journal);
                }
                let is_done = self.backlog.is_empty();
                self.state.send_modify(|state| {
                    state.done = if is_done { state.total } else { (state.done + bytes).min(state.total.saturating_sub(1)) };
                });
            }
            Err(error) => self.failed(error),
        }
    }

    fn failed(&mut self, error: IndexError) {
        match error {
            IndexError::Unusable(why) => self.recover(Some(why)),
            error => {
                tracing::warn!(%error, "the index of threads is behind");
                std::thread::sleep(PAUSE);
                // Whatever was noted is found again by comparing.
                self.recover(None);
            }
        }
    }

    /// A file that was deleted or replaced would take writes that are never read.
    fn stay_in_place(&mut self) {
        if self.database.as_ref().is_none_or(|database| !database.is_in_place()) {
            self.database = None;
            self.recover(Some("it was removed or replaced".into()));
        }
    }
}
