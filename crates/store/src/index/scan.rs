//! From journals to rows: which journals there are, what a quick look at one tells, and everything that is in it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use outpost_thread::{Fact, Ordinal, Raw, ThreadId};

use super::database::{Database, DatabaseStamp, IndexError, ThreadRow};
use crate::blob::Blobs;
use crate::journal::{self, JournalLine};
use crate::reader::{self, Backward, Forward, JournalError, ReadOutcome, ReaderPosition};
use crate::summary::ThreadSummary;
use crate::words;

/// Journals up to this length are read whole in a quick look; of longer ones both ends.
const QUICK: u64 = 64 << 10;

/// So much of a journal is read in one transaction; several times the longest line.
const PIECE: u64 = 8 << 20;

/// What one piece of work did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScanProgress {
    pub bytes: u64,
    pub is_at_end: bool,
}

/// A journal on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JournalFile {
    pub id: ThreadId,
    pub path: PathBuf,
}

/// All journals below a folder. Folders are named by dates and ids grow with time, so parents come before their forks.
pub(super) fn journals(folder: &Path) -> io::Result<Vec<JournalFile>> {
    let mut found = Vec::new();
    walk(folder, &mut found)?;
    found.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

fn walk(folder: &Path, found: &mut Vec<JournalFile>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), found)?;
        } else if let Some(id) = entry.file_name().to_str().and_then(|name| name.strip_suffix(".jsonl")).and_then(|id| id.parse().ok())
            && is_journal(&entry.path())
        {
            found.push(JournalFile { id, path: entry.path() });
        }
    }
    Ok(())
}

/// Whether something that is named like a journal can be one. Opening a pipe would wait for ever, and a device never ends.
pub(crate) fn is_journal(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file())
}

/// The thread whose past a journal shares.
pub(super) fn base(path: &Path) -> Option<ThreadId> {
    let start = reader::start(&File::open(path).ok()?).ok()?;
    start.base.map(|base| base.thread)
}

pub(super) fn stamp(path: &Path) -> io::Result<DatabaseStamp> {
    let meta = fs::metadata(path)?;
    Ok(DatabaseStamp { size: meta.len(), modified: meta.mtime().wrapping_mul(1_000_000_000).wrapping_add(meta.mtime_nsec()) })
}

/// What a fork inherits.
pub(super) trait Ancestors {
    /// What is shown of a thread, and how many of its turns ended up to an entry.
    fn at(&self, thread: ThreadId, ordinal: Ordinal) -> Result<Option<ThreadSummary>, IndexError>;
}

/// Reads as little as tells what a list shows.
pub(super) fn quick_look(journal: &JournalFile, stamp: DatabaseStamp, ancestors: &impl Ancestors) -> Result<ThreadSummary, ScanError> {
    let file = File::open(&journal.path)?;
    let start = reader::start(&file)?;
    let version = start.version;
    let mut summary = ThreadSummary::new(journal.id);
    let place = ReaderPosition { offset: start.end, last: 0, sum: None };
    let mut forward = Forward::new(&file, place, stamp.size.min(QUICK));
    loop {
        match forward.find_next()? {
            ReadOutcome::Line { line, .. } => fold(&mut summary, version, &line, ancestors)?,
            ReadOutcome::Damage(damage) => summary.damaged |= !damage.what.is_tail(),
            ReadOutcome::End => break,
        }
    }
    if stamp.size > QUICK {
        let mut back = Backward::new(&file, QUICK, stamp.size);
        // The last whole line tells when the thread was last written; the names and settings between follow with the words.
        while let Some((bytes, offset)) = back.raw_line()? {
            if let Some(line) = journal::read(bytes) {
                summary.pass(line.ordinal, line.at, "");
                break;
            }
            if stamp.size - offset > QUICK {
                break;
            }
        }
    }
    Ok(summary)
}

fn fold(summary: &mut ThreadSummary, version: u32, line: &JournalLine<'_>, ancestors: &impl Ancestors) -> Result<(), ScanError> {
    if !summary.needs(line.kind) {
        summary.pass(line.ordinal, line.at, line.kind);
        return Ok(());
    }
    let Ok(raw) = line.raw() else { return Ok(()) };
    let entry = journal::entry(version, line, raw);
    if let Fact::ThreadForked(fork) = &entry.fact
        && summary.ordinal == 0
        && let Some(parent) = ancestors.at(fork.base.thread, fork.base.ordinal)?
    {
        summary.inherit(&parent);
    }
    summary.apply(&entry);
    Ok(())
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ScanError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl From<io::Error> for ScanError {
    fn from(error: io::Error) -> Self {
        Self::Journal(error.into())
    }
}

/// Reads the next piece of a journal from where the index stands, and writes everything that is new: the row, turns and
/// words. Must run inside of a transaction.
pub(super) fn catch_up(database: &Database, journal: &JournalFile, blobs: &Blobs) -> Result<ScanProgress, ScanError> {
    let known = database.find(journal.id)?;
    let stamp = stamp(&journal.path)?;
    let file = File::open(&journal.path)?;
    let start = reader::start(&file)?;
    let stored = known.as_ref().map_or_else(|| ThreadSummary::new(journal.id), |(_, row)| row.summary.clone());
    let (mut row, key) = match known {
        Some((key, row)) if has_only_grown(&row, &file, stamp)? => (row, key),
        other => {
            // A row that is only a quick look has neither. Looking for words has those that wait in memory written out.
            let has_words = other.as_ref().is_some_and(|(_, row)| row.worded > 0);
            let high_ordinal = other.as_ref().map_or(0, |(_, row)| row.high_ordinal);
            let row = ThreadRow { stamp, worded: 0, chain: String::new(), high_ordinal, summary: ThreadSummary::new(journal.id) };
            let key = match other {
                Some((key, _)) => key,
                None => database.put(&row)?,
            };
            if has_words {
                database.forget(key)?;
            }
            (row, key)
        }
    };
    let from = row.worded.max(start.end);
    let limit = stamp.size.min(from.saturating_add(PIECE));
    let mut writer = Words { database, key, turns: database.count_turns(key)? };
    let place = ReaderPosition { offset: from, last: row.summary.ordinal, sum: None };
    let mut forward = Forward::new(&file, place, limit);
    let mut worded = from;
    loop {
        match forward.find_next()? {
            ReadOutcome::Line { line, .. } => {
                fold(&mut row.summary, start.version, &line, database)?;
                row.summary.damaged |= !writer.line(start.version, &line, blobs)?;
                row.chain = line.sum.to_string();
                worded = forward.place().offset;
            }
            // A piece that ends within a line looks torn; the rest of the line comes with the next piece.
            ReadOutcome::Damage(damage) if damage.what.is_tail() => {}
            ReadOutcome::Damage(damage) => {
                row.summary.damaged = true;
                worded = worded.max(damage.offset + damage.bytes);
            }
            ReadOutcome::End => break,
        }
    }
    row.worded = worded;
    row.high_ordinal = row.high_ordinal.max(row.summary.ordinal);
    // A row that is not finished has a time that is never right. Torn bytes at the end are not read again until the journal grows.
    row.stamp = if limit == stamp.size { stamp } else { DatabaseStamp { modified: 0, ..stamp } };
    database.update(key, &stored, &row)?;
    Ok(ScanProgress { bytes: worded.saturating_sub(from), is_at_end: limit == stamp.size })
}

/// Whether the journal is the one that the row knows, with nothing but new lines at its end.
fn has_only_grown(row: &ThreadRow, file: &File, stamp: DatabaseStamp) -> io::Result<bool> {
    let is_continued = row.worded > 0 && row.worded <= stamp.size && (row.stamp.size < stamp.size || row.stamp.modified == 0);
    let Ok(sum) = row.chain.parse() else { return Ok(false) };
    if !is_continued {
        return Ok(row.stamp == stamp && row.worded > 0);
    }
    let place = ReaderPosition { offset: row.worded, last: row.summary.ordinal, sum: Some(sum) };
    let mut forward = Forward::new(file, place, stamp.size);
    Ok(match forward.find_next()? {
        ReadOutcome::Line { .. } | ReadOutcome::End => true,
        ReadOutcome::Damage(damage) => damage.what.is_tail(),
    })
}

struct Words<'a> {
    database: &'a Database,
    key: i64,
    turns: u64,
}

impl Words<'_> {
    /// Whether its content is there.
    fn line(&mut self, version: u32, line: &JournalLine<'_>, blobs: &Blobs) -> Result<bool, ScanError> {
        match line.kind {
            "turnStarted" => {
                self.turns += 1;
                self.database.put_turn(self.key, self.turns, line.ordinal)?;
            }
            "inputReceived" | "modelAnswered" | "callFinished" => {
                let raw = match journal::as_blob(line.data) {
                    Some(blob) => blob
                        .blob
                        .parse()
                        .ok()
                        .and_then(|digest| blobs.get(digest).ok())
                        .and_then(|text| String::from_utf8(text).ok().and_then(|text| Raw::parse(text).ok())),
                    None => line.raw().ok(),
                };
                let Some(raw) = raw else { return Ok(false) };
                let text = words::searchable(&journal::entry(version, line, raw));
                if !text.trim().is_empty() {
                    self.database.put_words(self.key, line.ordinal, &text)?;
                }
            }
            _ => {}
        }
        Ok(true)
    }
}
