//! The writer of one thread: knows where the next line goes, and puts it there.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outpost_thread::{Entry, Fact, Ordinal, Raw, ThreadId};
use outpost_wire::SharedError;
use tokio::sync::oneshot;

use super::{LocalHome, make_folder, materializes};
use crate::commit::{Extent, JournalPiece, PieceSource};
use crate::journal::{self, BlobData, LINE_LIMIT, LineParts, Sum};
use crate::lease::{LeaseFile, LeaseHolder, Locked, Record};
use crate::reader::{self, JournalError};
use crate::store::{AppendError, Appended, ThreadHead};

pub(super) const FIRST_EPOCH: u64 = 1;
/// A lease is marked as alive when this much of the lease time has passed: a quarter.
const RENEWALS: u64 = 4;

/// An answer that comes when something is durable.
pub(super) type Commit = oneshot::Receiver<Result<(), SharedError>>;

pub(crate) struct JournalWriter {
    thread: ThreadId,
    epoch: u64,
    last: Ordinal,
    durable: Ordinal,
    state: State,
}

enum State {
    /// Nothing is on disk: it has had no input yet.
    Unborn {
        held: Vec<Entry>,
    },
    Open(Journal),
}

struct Journal {
    file: Arc<File>,
    lease: Option<Arc<LeaseFile>>,
    path: PathBuf,
    end: u64,
    sum: Sum,
    /// The bytes at its end that are neither durable nor on their way.
    pending: Vec<u8>,
    /// There were more of them than a commit log should hold.
    is_too_much: bool,
    /// Which file it is; another number in the lease says that it was replaced.
    edition: u64,
    /// Folders that do not durably name it yet.
    folders: Vec<PathBuf>,
    /// All its bytes were written here.
    is_new: bool,
    renewed: u64,
}

impl JournalWriter {
    pub(super) fn unmaterialized(thread: ThreadId) -> Self {
        Self { thread, epoch: FIRST_EPOCH, last: 0, durable: 0, state: State::Unborn { held: Vec::new() } }
    }

    /// Goes on with a journal. What was torn off while it was written is cut away.
    pub(super) fn open(thread: ThreadId, path: &Path, epoch: u64, edition: u64) -> Result<Self, JournalError> {
        let file = File::options().read(true).write(true).open(path)?;
        let start = reader::start(&file)?;
        let tail = reader::tail(&file, &start)?;
        if tail.lacks_end {
            tracing::warn!(%thread, "the end of the last line of a journal was missing; it is written again");
            file.write_all_at(b"\n", tail.end - 1)?;
        }
        if tail.torn > 0 {
            tracing::warn!(%thread, bytes = tail.torn, "the end of a journal was torn off; the part of a line is cut away");
        }
        file.set_len(tail.end)?;
        let journal = Journal {
            file: Arc::new(file),
            lease: None,
            path: path.to_owned(),
            end: tail.end,
            sum: tail.sum,
            pending: Vec::new(),
            is_too_much: false,
            edition,
            folders: Vec::new(),
            is_new: false,
            renewed: 0,
        };
        // What another program has written may not be durable: the first commit syncs the file itself.
        Ok(Self { thread, epoch, last: tail.last, durable: 0, state: State::Open(journal) })
    }

    pub(super) fn with_lease(mut self, lease: LeaseFile) -> Self {
        if let State::Open(journal) = &mut self.state {
            journal.lease = Some(Arc::new(lease));
        }
        self
    }

    /// The journal, if there is one yet.
    pub(super) fn path(&self) -> Option<&Path> {
        match &self.state {
            State::Unborn { .. } => None,
            State::Open(journal) => Some(&journal.path),
        }
    }

    /// These folders do not durably name the journal yet.
    pub(super) fn with_unsynced(&mut self, folders: Vec<PathBuf>) {
        if let State::Open(journal) = &mut self.state {
            journal.folders = folders;
        }
    }

    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) const fn durable(&self) -> Ordinal {
        self.durable
    }

    pub(super) fn committed(&mut self, last: Ordinal) {
        self.durable = self.durable.max(last);
    }

    /// What is known of a thread that is not on disk yet.
    pub(super) fn unmaterialized_head(&self, thread: ThreadId) -> Option<ThreadHead> {
        let State::Unborn { held } = &self.state else { return None };
        let first = held.first().cloned();
        Some(ThreadHead { thread, first, last: self.last, sum: String::new(), durable: 0, bytes: 0, damage: Vec::new() })
    }

    /// The entries of a thread that is not on disk yet.
    pub(super) fn held(&self) -> Option<&[Entry]> {
        match &self.state {
            State::Unborn { held } => Some(held),
            State::Open(_) => None,
        }
    }

    pub(super) fn give_back(&mut self) -> io::Result<()> {
        let State::Open(Journal { lease: Some(lease), .. }) = &self.state else { return Ok(()) };
        let locked = lease.lock()?;
        match locked.read()? {
            Some(record) if record.epoch == self.epoch => locked.write(&Record { holder: None, ..record }),
            _ => Ok(()),
        }
    }

    /// Writes the entries; all or none.
    pub(super) fn append(&mut self, home: &LocalHome, entries: Vec<Entry>, waits: bool) -> Result<(Appended, Option<Commit>), AppendError> {
        let mut expected = self.last + 1;
        for entry in &entries {
            if entry.ordinal != expected {
                return Err(AppendError::Conflict { expected, found: entry.ordinal });
            }
            expected = entry.end() + 1;
            if !journal::is_plain(entry.fact.kind()) {
                return Err(AppendError::Unwritable { kind: entry.fact.kind().to_owned(), why: "its name is not plain".into() });
            }
        }
        if let State::Unborn { held } = &mut self.state {
            if !entries.iter().any(materializes) {
                held.extend(entries.iter().cloned());
                self.last += entries.len() as Ordinal;
                return Ok((Appended { entries, last: self.last, durable: 0 }, None));
            }
            let mut all = std::mem::take(held);
            let before = all.len();
            all.extend(entries);
            return match self.be_born(home, &all) {
                Ok(stored) => self.finish(home, stored.into_iter().skip(before).collect(), waits),
                Err(error) => {
                    all.truncate(before);
                    self.state = State::Unborn { held: all };
                    Err(error)
                }
            };
        }
        let stored = self.write(home, &entries)?;
        self.finish(home, stored, waits)
    }

    fn finish(&mut self, home: &LocalHome, entries: Vec<Entry>, waits: bool) -> Result<(Appended, Option<Commit>), AppendError> {
        let commit = if waits { Some(self.commit(home)?) } else { None };
        Ok((Appended { entries, last: self.last, durable: self.durable }, commit))
    }

    /// Makes the file, with everything that was held back. It gets its name when it has its first lines, so that a journal
    /// without any is never seen.
    fn be_born(&mut self, home: &LocalHome, entries: &[Entry]) -> Result<Vec<Entry>, AppendError> {
        let path = home.place(self.thread, entries.first().map_or(0, |entry| entry.at));
        let aside = path.with_extension(format!("{}.new", home.config.instance));
        let (mut bytes, sum) = journal::header(self.thread, None);
        let (lines, sum, stored) = encode(home, sum, entries)?;
        bytes.extend(lines);
        let folders = folders_to_sync(&path, &home.config.home);
        let made = || -> io::Result<(File, LeaseFile)> {
            make_folder(path.parent().unwrap_or(&path))?;
            home.log()?;
            if path.exists() {
                return Err(made_meanwhile());
            }
            let lease = LeaseFile::open(&LocalHome::lease_path(&path))?;
            // Whatever stands there was left by a start that ended before it made the journal.
            lease.lock()?.write(&Record { epoch: self.epoch, holder: Some(home.me()), edition: 0 })?;
            let file = File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
            file.write_all_at(&bytes, 0)?;
            rename_to_new(&aside, &path)?;
            Ok((file, lease))
        };
        let (file, lease) = made().map_err(|error| {
            let _ = fs::remove_file(&aside);
            home.failed(error)
        })?;
        home.placed(self.thread, &path);
        self.last = entries.last().map_or(0, Entry::end);
        self.state = State::Open(Journal {
            file: Arc::new(file),
            lease: Some(Arc::new(lease)),
            path,
            end: bytes.len() as u64,
            sum,
            is_too_much: bytes.len() > home.config.commit.largest,
            pending: bytes,
            edition: 0,
            folders,
            is_new: true,
            renewed: home.now(),
        });
        Ok(stored)
    }

    fn write(&mut self, home: &LocalHome, entries: &[Entry]) -> Result<Vec<Entry>, AppendError> {
        let State::Open(journal) = &mut self.state else { return Ok(Vec::new()) };
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let (mut bytes, mut sum, stored) = encode(home, journal.sum, entries)?;
        {
            // The lease cannot change hands between this check and the write.
            let lease = journal.lease.clone();
            let locked = lease.as_deref().map(LeaseFile::lock).transpose()?;
            if let Some(locked) = &locked {
                let record = locked.read()?;
                let Some(record) = record.filter(|record| record.epoch == self.epoch) else {
                    return Err(AppendError::LeaseLost { thread: self.thread, holder: name_of(locked.read()?) });
                };
                if record.edition != journal.edition {
                    // It was given its own copy of what it shared. The last line is the same, its sum is not.
                    let Self { thread, epoch, .. } = *self;
                    let fresh = Self::open(thread, &journal.path, epoch, record.edition)
                        .map_err(|error| AppendError::Io(io::Error::other(error)))?;
                    journal.go_on_in(fresh);
                    (bytes, sum, _) = encode(home, journal.sum, entries)?;
                }
                journal.renew(locked, record, home)?;
            }
            if let Err(error) = journal.file.write_all_at(&bytes, journal.end) {
                // A part of it may be there; it was not acknowledged, so it must not stay.
                let _ = journal.file.set_len(journal.end);
                return Err(home.failed(error));
            }
        }
        journal.end += bytes.len() as u64;
        journal.sum = sum;
        journal.pending.extend_from_slice(&bytes);
        if journal.pending.len() > home.config.commit.largest {
            // Too much for the log; the file itself will be synced.
            journal.pending = Vec::new();
            journal.is_too_much = true;
        }
        self.last = entries.last().map_or(self.last, Entry::end);
        Ok(stored)
    }

    /// Makes everything so far durable.
    fn commit(&mut self, home: &LocalHome) -> Result<Commit, AppendError> {
        let (thread, epoch, last) = (self.thread, self.epoch, self.last);
        let is_first = self.durable == 0;
        let State::Open(journal) = &mut self.state else {
            return Err(AppendError::NotDurable("the thread is not on disk yet".into()));
        };
        let mut extent = Extent::Bytes;
        if journal.is_too_much || (is_first && !journal.is_new) {
            // Bytes that the log has not seen: too many, or written by another program.
            extent = Extent::Journal;
            journal.pending.clear();
        }
        journal.is_new = false;
        journal.is_too_much = false;
        let bytes = std::mem::take(&mut journal.pending);
        let offset = journal.end - bytes.len() as u64;
        let log = home.log().map_err(|error| home.failed(error))?;
        let piece = JournalPiece { thread, epoch, edition: journal.edition, offset, last, path: home.relative(&journal.path), bytes };
        let source = PieceSource { journal: journal.file.clone(), extent, folders: std::mem::take(&mut journal.folders) };
        Ok(log.commit(piece, source))
    }
}

fn made_meanwhile() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "another program made this thread meanwhile")
}

/// Another program may have made the same thread meanwhile: its journal is not written over.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(rustix::io::Errno::EXIST) => Err(made_meanwhile()),
        // Some file systems cannot do it in one step.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) if !to.exists() => fs::rename(from, to),
        done => Ok(done?),
    }
}

fn name_of(record: Option<Record>) -> String {
    record.and_then(|record| record.holder).map_or_else(|| "another holder".to_owned(), |holder| holder.to_string())
}

impl Journal {
    /// The file was replaced by another with the same entries.
    fn go_on_in(&mut self, fresh: JournalWriter) {
        if let State::Open(fresh) = fresh.state {
            (self.file, self.end, self.sum, self.edition) = (fresh.file, fresh.end, fresh.sum, fresh.edition);
            // Who replaced it has synced it.
            self.pending = Vec::new();
            self.is_too_much = false;
        }
    }

    /// Shows now and then that the holder is alive.
    fn renew(&mut self, locked: &Locked<'_>, record: Record, home: &LocalHome) -> io::Result<()> {
        let now = home.now();
        if now.saturating_sub(self.renewed) <= home.config.lease_ms / RENEWALS {
            return Ok(());
        }
        self.renewed = now;
        let holder = record.holder.map(|holder| LeaseHolder { renewed: now, ..holder });
        locked.write(&Record { holder, ..record })
    }
}

/// The folders that must be synced before a new file is durably named: its own, and those above it that are still to be made,
/// with the one that will name them.
pub(super) fn folders_to_sync(path: &Path, home: &Path) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for folder in path.ancestors().skip(1) {
        folders.push(folder.to_owned());
        if folder.exists() || folder == home {
            break;
        }
    }
    folders
}

/// The lines of entries, after secrets were taken out and large content was put aside, and the entries as they now are.
pub(super) fn encode(home: &LocalHome, mut sum: Sum, entries: &[Entry]) -> Result<(Vec<u8>, Sum, Vec<Entry>), AppendError> {
    let mut bytes = Vec::new();
    let mut stored = Vec::with_capacity(entries.len());
    for entry in entries {
        let unwritable = |why: SharedError| AppendError::Unwritable { kind: entry.fact.kind().to_owned(), why };
        let mut data = entry.fact.data().map_err(|error| unwritable(SharedError::new(error)))?;
        let mut entry = entry.clone();
        if let Some(clean) = home.config.redactor.as_deref().and_then(|redactor| crate::redact::redact(redactor, &data)) {
            entry.fact = Fact::read(outpost_thread::VERSION, entry.fact.kind(), clean.clone());
            data = clean;
        }
        let line = if journal::length(entry.fact.kind(), &data) > LINE_LIMIT {
            let digest = home.blobs.put(data.get().as_bytes()).map_err(|error| home.failed(error))?;
            Raw::of(&BlobData { blob: digest.to_string(), bytes: data.get().len() as u64 })
                .map_err(|error| unwritable(SharedError::new(error)))?
        } else {
            data
        };
        let parts = LineParts { ordinal: entry.ordinal, at: entry.at, kind: entry.fact.kind(), data: line.get() };
        sum = journal::write(&mut bytes, sum, parts);
        stored.push(entry);
    }
    Ok((bytes, sum, stored))
}
