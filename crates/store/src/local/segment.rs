//! The files that make up one thread: its own journal, and of its ancestors as much as it shares.

use std::fs::File;
use std::sync::Arc;

use outpost_thread::{Entry, Fact, ForkBase, Ordinal, Raw, ThreadId};

use super::LocalHome;
use crate::blob::Blobs;
use crate::damage::{Damage, DamageKind};
use crate::journal::{self, JournalLine, Sum};
use crate::reader::{self, Forward, JournalStart, ReadOutcome, ReaderPosition};
use crate::store::{ReadError, ThreadHead};

/// A journal, and which of its entries belong to the thread.
#[derive(Clone)]
pub(crate) struct JournalSegment {
    pub thread: ThreadId,
    pub file: Arc<File>,
    pub start: JournalStart,
    /// The last entry that is shared; none for the thread's own journal.
    pub until: Option<Ordinal>,
}

/// All segments, oldest first. The last one is the thread's own.
#[derive(Clone)]
pub(crate) struct SegmentLineage(Vec<JournalSegment>);

impl JournalSegment {
    fn open(home: &LocalHome, thread: ThreadId, until: Option<Ordinal>) -> Result<Self, ReadError> {
        let path = home.find(thread).ok_or(ReadError::NotFound(thread))?;
        let failed = |why| ReadError::Journal { thread, why };
        let file = File::open(path).map_err(|error| failed(error.into()))?;
        let start = reader::start(&file).map_err(failed)?;
        Ok(Self { thread, file: Arc::new(file), start, until })
    }

    /// The first entry, if it can be read.
    fn first(&self, home: &LocalHome) -> std::io::Result<Option<Entry>> {
        match Forward::new(&self.file, self.start.place(), u64::MAX).find_next()? {
            ReadOutcome::Line { line, .. } => Ok(entry(&home.blobs, self.start.version, &line).ok()),
            _ => Ok(None),
        }
    }

    /// The prefix that it continues.
    fn base(&self, home: &LocalHome) -> std::io::Result<Option<ForkBase>> {
        if self.start.sum.is_some() || self.start.first == 1 {
            return Ok(self.start.base.clone());
        }
        // The first line is damaged; the first entry says the same.
        Ok(self.first(home)?.and_then(|entry| if let Fact::ThreadForked(fork) = entry.fact { Some(fork.base) } else { None }))
    }

    pub(super) fn length(&self) -> std::io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// The checksum of the line of entry `ordinal`, if that is there.
    pub(super) fn sum_of(&self, ordinal: Ordinal) -> std::io::Result<Option<Sum>> {
        let place = self.locate(ordinal + 1)?;
        Ok(place.sum.filter(|_| place.last == ordinal))
    }

    /// The place before entry `ordinal`. The one behind the last entry is found without a look at the others.
    pub(super) fn locate(&self, ordinal: Ordinal) -> std::io::Result<ReaderPosition> {
        if self.until.is_none() {
            let tail = reader::tail(&self.file, &self.start)?;
            if tail.last + 1 == ordinal && tail.last >= self.start.first && tail.torn + tail.spoiled == 0 && !tail.lacks_end {
                return Ok(ReaderPosition { offset: tail.end, last: tail.last, sum: Some(tail.sum) });
            }
        }
        reader::locate(&self.file, &self.start, self.length()?, ordinal)
    }
}

impl SegmentLineage {
    pub(super) fn open(home: &LocalHome, thread: ThreadId) -> Result<Self, ReadError> {
        let mut segments = Vec::new();
        let mut wanted = (thread, None);
        loop {
            let segment = JournalSegment::open(home, wanted.0, wanted.1).map_err(|error| match (error, wanted.1) {
                (ReadError::NotFound(base), Some(ordinal)) => ReadError::Lineage { thread, base, ordinal },
                (error, _) => error,
            })?;
            let (base, first) = (segment.base(home)?, segment.start.first);
            segments.push(segment);
            let Some(base) = base else { break };
            // Ordinals only become smaller on the way up, so that there is an end even if files refer to each other in a cycle.
            if base.ordinal + 1 != first || segments.iter().any(|segment| segment.thread == base.thread) {
                return Err(ReadError::Lineage { thread, base: base.thread, ordinal: base.ordinal });
            }
            wanted = (base.thread, Some(base.ordinal));
        }
        segments.reverse();
        Ok(Self(segments))
    }

    /// Of a thread that has no files yet.
    pub(super) const fn none() -> Self {
        Self(Vec::new())
    }

    pub(super) fn segments(&self) -> &[JournalSegment] {
        &self.0
    }

    /// The segment that has entry `ordinal`, or would have it.
    pub(super) fn index_of(&self, ordinal: Ordinal) -> usize {
        self.0.iter().position(|segment| segment.until.is_none_or(|until| ordinal <= until)).unwrap_or(self.0.len() - 1)
    }

    pub(super) fn head(&self, home: &LocalHome) -> Result<ThreadHead, ReadError> {
        let Some(own) = self.0.last() else { return Err(ReadError::NotFound(ThreadId::new(uuid::Uuid::nil()))) };
        let tail = reader::tail(&own.file, &own.start)?;
        let mut damage = Vec::new();
        if tail.torn > 0 {
            let what = DamageKind::Torn;
            damage.push(Damage { from: tail.last + 1, to: tail.last, offset: tail.end, bytes: tail.torn, what });
        }
        if tail.spoiled > 0 {
            let from = tail.last + 1 - tail.spoiled;
            damage.push(Damage { from, to: tail.last, offset: tail.end, bytes: 0, what: DamageKind::Altered });
        }
        if let Some(known) = home.known_last(own.thread).filter(|known| *known > tail.last) {
            damage.push(Damage { from: tail.last + 1, to: known, offset: tail.end, bytes: 0, what: DamageKind::CutOff });
        }
        let first = own.first(home)?;
        let bytes = own.length()?;
        Ok(ThreadHead { thread: own.thread, first, last: tail.last, sum: tail.sum.to_string(), durable: 0, bytes, damage })
    }

    /// Whether entry `ordinal` is there and has this checksum.
    pub(super) fn bears_out(&self, ordinal: Ordinal, sum: &str) -> bool {
        let found = self.0[self.index_of(ordinal)].sum_of(ordinal);
        found.is_ok_and(|found| found.is_some_and(|found| found.to_string() == sum))
    }
}

/// The entry of a line, with its content fetched if that is a blob.
pub(crate) fn entry(blobs: &Blobs, version: u32, line: &JournalLine<'_>) -> Result<Entry, DamageKind> {
    let Some(blob) = journal::as_blob(line.data) else {
        return journal::entry_of_text(version, line, line.data).ok_or(DamageKind::Altered);
    };
    let digest = blob.blob.parse().map_err(|_| DamageKind::Blob)?;
    let content = blobs.get(digest).map_err(|_| DamageKind::Blob)?;
    let data = String::from_utf8(content).ok().and_then(|text| Raw::parse(text).ok()).ok_or(DamageKind::Blob)?;
    Ok(journal::entry(version, line, data))
}
