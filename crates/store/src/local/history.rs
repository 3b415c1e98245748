//! Reading a thread over all its files, forwards in pieces and backwards by pages.

use std::sync::Arc;

use outpost_thread::{Entry, Ordinal, ThreadId};

use super::segment::{JournalSegment, SegmentLineage, entry};
use super::{LocalHome, blocking, lock};
use crate::budget::Budget;
use crate::damage::{Damage, DamageKind};
use crate::journal;
use crate::reader::{self, Backward, Forward, ReadOutcome, ReaderPosition};
use crate::store::{Batch, Page, PageRequest, ReadError};

/// How much of a file is read at a time.
const PIECE: u64 = 4 << 20;

/// A history that is read forwards.
pub struct LocalHistory(Option<Cursor>);

struct Cursor {
    home: Arc<LocalHome>,
    lineage: SegmentLineage,
    index: usize,
    place: ReaderPosition,
    after: Ordinal,
    /// Entries of a thread that is not on disk yet.
    held: Vec<Entry>,
}

impl LocalHistory {
    pub(super) fn new(home: Arc<LocalHome>, thread: ThreadId, after: Ordinal) -> Result<Self, ReadError> {
        if let Some(mut held) = home.held(thread) {
            held.retain(|entry| entry.ordinal > after);
            let place = ReaderPosition { offset: 0, last: 0, sum: None };
            return Ok(Self(Some(Cursor { home, lineage: SegmentLineage::none(), index: 0, place, after, held })));
        }
        let lineage = SegmentLineage::open(&home, thread)?;
        let index = lineage.index_of(after + 1);
        let place = lineage.segments()[index].locate(after + 1)?;
        Ok(Self(Some(Cursor { home, lineage, index, place, after, held: Vec::new() })))
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Batch>, ReadError> {
        let Some(mut cursor) = self.0.take() else { return Ok(None) };
        let (cursor, batch) = blocking(move || {
            let batch = cursor.read();
            (cursor, batch)
        })
        .await;
        let batch = batch?;
        if batch.is_some() {
            self.0 = Some(cursor);
        }
        Ok(batch)
    }
}

impl Cursor {
    fn read(&mut self) -> Result<Option<Batch>, ReadError> {
        if !self.held.is_empty() {
            return Ok(Some(Batch { entries: std::mem::take(&mut self.held), damage: Vec::new() }));
        }
        while let Some(segment) = self.lineage.segments().get(self.index) {
            let mut batch = Batch::default();
            let is_done = read_piece(&self.home, segment, &mut self.place, self.after, &mut batch)?;
            if is_done {
                self.index += 1;
                if let Some(next) = self.lineage.segments().get(self.index) {
                    self.place = next.start.place();
                }
            }
            if !batch.entries.is_empty() || !batch.damage.is_empty() {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }
}

/// Reads a piece of a segment from `place` on. Says whether that was the last.
fn read_piece(
    home: &LocalHome,
    segment: &JournalSegment,
    place: &mut ReaderPosition,
    after: Ordinal,
    batch: &mut Batch,
) -> Result<bool, ReadError> {
    let begin = place.offset;
    let until = segment.until.unwrap_or(Ordinal::MAX);
    let mut forward = Forward::new(&segment.file, *place, u64::MAX);
    loop {
        match forward.find_next()? {
            ReadOutcome::End => {
                // What a fork shares must be there to its end.
                let last = forward.place().last.max(after);
                if let Some(until) = segment.until.filter(|until| last < *until) {
                    let offset = forward.place().offset;
                    batch.damage.push(Damage { from: last + 1, to: until, offset, bytes: 0, what: DamageKind::Missing });
                }
                return Ok(true);
            }
            ReadOutcome::Damage(damage) if damage.from > until => return Ok(true),
            ReadOutcome::Damage(mut damage) => {
                damage.to = damage.to.min(until);
                batch.damage.push(damage);
            }
            ReadOutcome::Line { line, .. } if line.ordinal > until => return Ok(true),
            ReadOutcome::Line { line, offset } => {
                if line.ordinal > after {
                    match entry(&home.blobs, segment.start.version, &line) {
                        Ok(entry) => batch.entries.push(entry),
                        Err(what) => batch.damage.push(Damage { from: line.ordinal, to: line.ordinal, offset, bytes: 0, what }),
                    }
                }
                if offset - begin >= PIECE {
                    *place = forward.place();
                    return Ok(false);
                }
            }
        }
    }
}

impl LocalHome {
    /// The entries of a thread that is not on disk yet.
    pub(super) fn held(&self, thread: ThreadId) -> Option<Vec<Entry>> {
        let writer = lock(&self.writers).get(&thread).cloned()?;
        lock(&writer).held().map(<[Entry]>::to_vec)
    }

    /// Single entries by their ordinals.
    pub(super) fn pick(&self, thread: ThreadId, wanted: &[Ordinal]) -> Result<Vec<Entry>, ReadError> {
        if let Some(mut held) = self.held(thread) {
            held.retain(|entry| wanted.contains(&entry.ordinal));
            return Ok(held);
        }
        let lineage = SegmentLineage::open(self, thread)?;
        let mut found = Vec::with_capacity(wanted.len());
        for ordinal in wanted {
            let segment = &lineage.segments()[lineage.index_of(*ordinal)];
            let mut forward = Forward::new(&segment.file, segment.locate(*ordinal)?, u64::MAX);
            loop {
                match forward.find_next()? {
                    ReadOutcome::Damage(damage) if damage.from <= *ordinal => {}
                    ReadOutcome::Line { line, .. } if line.ordinal == *ordinal => {
                        found.extend(entry(&self.blobs, segment.start.version, &line));
                        break;
                    }
                    _ => break,
                }
            }
        }
        Ok(found)
    }

    /// The entries before `request.before`, as many turns as are asked for.
    pub(super) fn page(&self, thread: ThreadId, request: PageRequest) -> Result<Page, ReadError> {
        if let Some(mut entries) = self.held(thread) {
            entries.retain(|entry| request.before.is_none_or(|before| entry.ordinal < before));
            return Ok(Page { entries, ..Page::default() });
        }
        let lineage = SegmentLineage::open(self, thread)?;
        let mut budget = Budget::new(request);
        let mut pages = Vec::new();
        let mut before = request.before;
        let mut index = before.map_or(lineage.segments().len() - 1, |before| lineage.index_of(before.saturating_sub(1)));
        let next = loop {
            let segment = &lineage.segments()[index];
            let bound = [before, segment.until.map(|until| until + 1)].into_iter().flatten().min();
            let (page, is_full) = self.page_of(segment, bound, &mut budget)?;
            // Nothing of it fitted if it has no first entry.
            before = page.before.or(bound);
            pages.push(page);
            if is_full {
                break before.filter(|before| *before > 1);
            }
            if index == 0 {
                break None;
            }
            index -= 1;
            before = None;
        };
        let mut all = Page { before: next, ..Page::default() };
        for page in pages.into_iter().rev() {
            all.entries.extend(page.entries);
            all.damage.extend(page.damage);
        }
        Ok(all)
    }

    fn page_of(&self, segment: &JournalSegment, bound: Option<Ordinal>, budget: &mut Budget) -> Result<(Page, bool), ReadError> {
        let end = match bound {
            Some(ordinal) => segment.locate(ordinal)?.offset,
            None => reader::tail(&segment.file, &segment.start)?.end,
        };
        let mut back = Backward::new(&segment.file, segment.start.end, end);
        let mut begin = end;
        let mut is_full = false;
        // Lines at the beginning of the page that cannot be read, so that they tell no ordinal.
        let mut spoiled = 0;
        while let Some((bytes, offset)) = back.raw_line()? {
            let line = journal::read(bytes);
            if budget.is_spent(line.map_or("", |line| line.kind), bytes.len()) {
                is_full = true;
                break;
            }
            spoiled = if line.is_some() { 0 } else { spoiled + 1 };
            begin = offset;
        }
        // Read again in order: this is how lines are checked against each other, and damage gets its name.
        let place = if begin == segment.start.end { segment.start.place() } else { ReaderPosition { offset: begin, last: 0, sum: None } };
        let mut page = Page::default();
        let mut forward = Forward::new(&segment.file, place, end);
        loop {
            match forward.find_next()? {
                ReadOutcome::End => break,
                ReadOutcome::Damage(mut damage) => {
                    if place.last == 0 && page.before.is_none() && begin != segment.start.end {
                        damage.from = (damage.to + 1).saturating_sub(spoiled).max(segment.start.first);
                    }
                    page.damage.push(damage);
                }
                ReadOutcome::Line { line, offset } => {
                    page.before = page.before.or(Some(line.ordinal));
                    match entry(&self.blobs, segment.start.version, &line) {
                        Ok(entry) => page.entries.push(entry),
                        Err(what) => page.damage.push(Damage { from: line.ordinal, to: line.ordinal, offset, bytes: 0, what }),
                    }
                }
            }
        }
        // What is missing between this page and the next one would be noticed by neither.
        let last = forward.place().last;
        if let Some(bound) = bound.filter(|bound| last > 0 && last + 1 < *bound)
            && end < reader::tail(&segment.file, &segment.start)?.end
        {
            page.damage.push(Damage { from: last + 1, to: bound - 1, offset: end, bytes: 0, what: DamageKind::Missing });
        }
        Ok((page, is_full))
    }
}
