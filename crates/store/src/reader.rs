//! Reading a journal: forwards from any place, backwards from any place, and its end.
//!
//! A reader holds a bounded piece of the file, whatever the file's size. It checks every line that it gives out and names
//! what it cannot give out. It finds an ordinal by bisecting the file, because lines stand in order; no index is needed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use memchr::{memchr, memmem, memrchr};
use outpost_thread::{ForkBase, Ordinal};

use crate::damage::{Damage, DamageKind};
use crate::journal::{self, HeaderError, JournalLine, LINE_LIMIT, Shape, Sum};

/// How much is read at a time: a little at first, because often a little is enough.
const SMALLEST: usize = 8 << 10;
const CHUNK: usize = 256 << 10;
/// So much of a file without a first line is looked at for a whole one.
const FOREIGN: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Header(#[from] HeaderError),
}

/// The first line of a file and where it ends. If it is damaged, the lines after it are still read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalStart {
    pub version: u32,
    pub base: Option<ForkBase>,
    /// None if the first line is damaged.
    pub sum: Option<Sum>,
    pub end: u64,
    /// The first ordinal of the file: 1, or more in a fork.
    pub first: Ordinal,
}

impl JournalStart {
    /// The place of the first entry.
    pub const fn place(&self) -> ReaderPosition {
        ReaderPosition { offset: self.end, last: self.first - 1, sum: self.sum }
    }
}

/// Reads the first line, and finds out with which ordinal the entries begin.
pub fn start(file: &File) -> Result<JournalStart, JournalError> {
    let mut buffer = vec![0; 1024];
    let read = read_at(file, &mut buffer, 0)?;
    let line = memchr(b'\n', &buffer[..read]).map(|end| &buffer[..end]);
    let damaged = JournalStart { version: outpost_thread::VERSION, base: None, sum: None, end: 0, first: 1 };
    let (mut start, why) = match line.map(journal::read_header) {
        Some(Ok(header)) => {
            let end = line.map_or(0, <[u8]>::len) as u64 + 1;
            (JournalStart { version: header.version, base: header.base, sum: Some(header.sum), end, first: 1 }, None)
        }
        Some(Err(error @ HeaderError::Version(_))) => return Err(error.into()),
        Some(Err(error)) => (damaged, Some(error)),
        None if read == 0 => return Err(HeaderError::NotOurs.into()),
        None => (damaged, Some(HeaderError::Damaged)),
    };
    match why {
        None => start.first = start.base.as_ref().map_or(1, |base| base.ordinal + 1),
        // If no other line is whole either, this may be anything.
        Some(why) => start.first = first(file)?.ok_or(why)?,
    }
    Ok(start)
}

/// The first ordinal of a file whose first line is damaged: told by the first whole line and the number of lines before it
/// that are not.
fn first(file: &File) -> io::Result<Option<Ordinal>> {
    // A file that has no whole line for so long is not one of ours, however long it goes on.
    let mut forward = Forward::new(file, ReaderPosition { offset: 0, last: 0, sum: None }, FOREIGN);
    let mut spoiled = 0;
    while let Some((begin, end, offset)) = forward.raw_line()? {
        let bytes = &forward.buffer[begin..end];
        match journal::read(bytes) {
            Some(line) => return Ok(Some(line.ordinal.saturating_sub(spoiled).max(1))),
            // The damaged first line itself is no entry, unless its end is what is damaged.
            None => spoiled += Ordinal::from(offset > 0 || memmem::find(bytes, b"{\"seq\":").is_some()),
        }
    }
    Ok(None)
}

/// Fills as much of `buffer` as the file has.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Where a reader stands: what came before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReaderPosition {
    pub offset: u64,
    /// The ordinal before this place.
    pub last: Ordinal,
    /// The sum before this place. None if it is not known, so that nothing can be said about what lies between.
    pub sum: Option<Sum>,
}

/// What a reader found next.
#[derive(Debug)]
pub enum ReadOutcome<'a> {
    Line { line: JournalLine<'a>, offset: u64 },
    Damage(Damage),
    End,
}

/// A whole line that is still to be given out: where it is in the buffer and in the file.
#[derive(Debug, Clone, Copy)]
struct Held {
    line: Shape,
    start: usize,
    end: usize,
    offset: u64,
}

#[derive(Debug, Clone, Copy)]
struct Bad {
    offset: u64,
    lines: u64,
}

impl Bad {
    const fn what(self) -> DamageKind {
        if self.offset == 0 { DamageKind::Header } else { DamageKind::Altered }
    }
}

/// Reads forwards.
pub struct Forward<'a> {
    file: &'a File,
    place: ReaderPosition,
    limit: u64,
    buffer: Vec<u8>,
    /// The part of the buffer that is not given out yet, and where it stands in the file.
    start: usize,
    at: u64,
    /// Bytes that are no whole line, until the next whole line tells which ordinals they were.
    bad: Option<Bad>,
    is_at_end: bool,
    chunk: usize,
    /// Set if a line was found behind damage; given out next.
    held: Option<Held>,
}

impl<'a> Forward<'a> {
    /// From `place` to the end of the file or `limit`, whichever comes first.
    pub fn new(file: &'a File, place: ReaderPosition, limit: u64) -> Self {
        Self {
            file,
            place,
            limit,
            buffer: Vec::new(),
            start: 0,
            at: place.offset,
            bad: None,
            is_at_end: false,
            chunk: SMALLEST,
            held: None,
        }
    }

    /// Where the next call goes on.
    pub const fn place(&self) -> ReaderPosition {
        self.place
    }

    /// The next line or the next damage, in the order of the file.
    pub fn find_next(&mut self) -> io::Result<ReadOutcome<'_>> {
        if let Some(held) = self.held.take() {
            return Ok(self.give(held));
        }
        loop {
            let Some((start, end, offset)) = self.raw_line()? else {
                return Ok(self.finish());
            };
            let Some(line) = Shape::of(&self.buffer[start..end]) else {
                self.bad.get_or_insert(Bad { offset, lines: 0 }).lines += 1;
                continue;
            };
            let expected = self.place.last + 1;
            let (ordinal, follows) = (line.ordinal, self.place.sum.is_none_or(|sum| line.follows(sum)));
            let damage = if let Some(bad) = self.bad.take() {
                Some(Damage {
                    from: expected,
                    to: ordinal.saturating_sub(1),
                    offset: bad.offset,
                    bytes: offset - bad.offset,
                    what: bad.what(),
                })
            } else if ordinal > expected && self.place.sum.is_some() {
                Some(Damage { from: expected, to: ordinal - 1, offset, bytes: 0, what: DamageKind::Missing })
            } else if ordinal < expected {
                let bytes = (end + 1 - start) as u64;
                // A line that was given out already, or belongs elsewhere: it is told and left out.
                self.place.sum = None;
                self.place.offset = offset + bytes;
                return Ok(ReadOutcome::Damage(Damage { from: expected, to: expected - 1, offset, bytes, what: DamageKind::Misplaced }));
            } else if !follows {
                Some(Damage { from: expected, to: expected - 1, offset, bytes: (end - start) as u64, what: DamageKind::Unchained })
            } else {
                None
            };
            let held = Held { line, start, end, offset };
            if let Some(damage) = damage {
                self.held = Some(held);
                return Ok(ReadOutcome::Damage(damage));
            }
            return Ok(self.give(held));
        }
    }

    fn give(&mut self, held: Held) -> ReadOutcome<'_> {
        let Held { line, start, end, offset } = held;
        // It was looked at before; this is the same bytes.
        let Some(line) = line.line(&self.buffer[start..end]) else { return ReadOutcome::End };
        let through = noted_through(&line).unwrap_or(line.ordinal);
        self.place = ReaderPosition { offset: offset + (end - start) as u64 + 1, last: through, sum: Some(line.sum) };
        ReadOutcome::Line { line, offset }
    }

    /// What is left when no line end follows.
    fn finish(&mut self) -> ReadOutcome<'_> {
        let rest = &self.buffer[self.start..];
        let (offset, length) = (self.at, rest.len() as u64);
        let next = self.place.last + 1;
        let none = |what| Damage { from: next, to: next - 1, offset, bytes: length, what };
        if let Some(bad) = self.bad.take() {
            // Whole lines were spoiled at the end. What is torn behind them is told next.
            self.place.last += bad.lines - u64::from(bad.offset == 0 && bad.lines > 0);
            self.place.sum = None;
            let to = self.place.last;
            return ReadOutcome::Damage(Damage { from: next, to, offset: bad.offset, bytes: offset - bad.offset, what: bad.what() });
        }
        if length == 0 {
            return ReadOutcome::End;
        }
        let is_zero = rest.iter().all(|byte| *byte == 0);
        let whole = whole_without_end(rest).filter(|line| line.ordinal == next).map(|line| (line, line_length(rest)));
        let start = self.start;
        self.start = self.buffer.len();
        self.at += length;
        self.place.offset = self.at;
        // Only its end is missing.
        self.held = whole.map(|(line, length)| Held { line, start, end: start + length, offset });
        ReadOutcome::Damage(none(if is_zero { DamageKind::Zeroes } else { DamageKind::Torn }))
    }

    /// The next bytes up to a line end: where they are in the buffer and in the file.
    fn raw_line(&mut self) -> io::Result<Option<(usize, usize, u64)>> {
        let mut searched = self.start;
        loop {
            if let Some(length) = memchr(b'\n', &self.buffer[searched..]) {
                let (start, end, offset) = (self.start, searched + length, self.at);
                self.start = end + 1;
                self.at += (end + 1 - start) as u64;
                return Ok(Some((start, end, offset)));
            }
            if self.is_at_end {
                return Ok(None);
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            if self.buffer.len() > LINE_LIMIT {
                // No line of ours is this long: whatever it is, it is not kept in memory.
                let dropped = self.buffer.len();
                self.bad.get_or_insert(Bad { offset: self.at, lines: 0 });
                self.at += dropped as u64;
                self.buffer.clear();
            }
            searched = self.buffer.len();
            let from = self.at + searched as u64;
            let wanted = usize::try_from(self.limit.saturating_sub(from)).map_or(self.chunk, |left| left.min(self.chunk));
            self.buffer.resize(searched + wanted, 0);
            let read = read_at(self.file, &mut self.buffer[searched..], from)?;
            self.buffer.truncate(searched + read);
            self.is_at_end = read < self.chunk;
            self.chunk = (self.chunk * 2).min(CHUNK);
        }
    }
}

/// A line whose end is missing, or is another byte now.
fn whole_without_end(rest: &[u8]) -> Option<Shape> {
    Shape::of(&rest[..line_length(rest)])
}

fn line_length(rest: &[u8]) -> usize {
    if rest.ends_with(b"}") { rest.len() } else { rest.len().saturating_sub(1) }
}

/// In a repaired journal one line stands for all that are gone.
fn noted_through(line: &JournalLine<'_>) -> Option<Ordinal> {
    #[derive(serde::Deserialize)]
    struct Through {
        through: Option<Ordinal>,
    }
    if line.kind != "damageNoted" {
        return None;
    }
    serde_json::from_str::<Through>(line.data).ok()?.through
}

/// The end of a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// Where the next line goes, after the last line end that is not part of a torn or zeroed tail.
    pub end: u64,
    /// The ordinal before the next one.
    pub last: Ordinal,
    /// The sum before the next line.
    pub sum: Sum,
    /// Bytes behind `end` that were never acknowledged.
    pub torn: u64,
    /// Spoiled lines before `end` that would have been the last entries.
    pub spoiled: u64,
    /// The last line is whole, but its end is missing: it must be written at `end` − 1.
    pub lacks_end: bool,
}

/// Finds the end without reading what lies before it.
pub fn tail(file: &File, start: &JournalStart) -> io::Result<Tail> {
    let length = file.metadata()?.len();
    let mut back = Backward::new(file, start.end, length);
    let torn = back.skip_torn()?;
    let mut tail = Tail { end: length - torn, last: 0, sum: Sum::default(), torn, spoiled: 0, lacks_end: false };
    let mut rest = vec![0; usize::try_from(torn).map_or(0, |torn| torn.min(LINE_LIMIT))];
    read_at(file, &mut rest, tail.end)?;
    loop {
        let Some((bytes, offset)) = back.raw_line()? else {
            (tail.last, tail.sum) = (start.first - 1 + tail.spoiled, start.sum.unwrap_or_default());
            break;
        };
        if let Some(line) = journal::read(bytes) {
            (tail.last, tail.sum) = (noted_through(&line).unwrap_or(line.ordinal) + tail.spoiled, line.sum);
            break;
        }
        tail.spoiled += u64::from(offset > 0);
    }
    if let Some(line) = whole_without_end(&rest).filter(|line| line.ordinal == tail.last + 1) {
        let end = tail.end + line_length(&rest) as u64 + 1;
        tail = Tail { end, last: line.ordinal, sum: line.sum, torn: 0, spoiled: 0, lacks_end: true };
    }
    Ok(tail)
}

/// Reads backwards, line by line.
pub struct Backward<'a> {
    file: &'a File,
    floor: u64,
    buffer: Vec<u8>,
    /// Where the buffer stands in the file.
    at: u64,
    /// The part of the buffer that is not given out yet ends here.
    end: usize,
    chunk: usize,
}

impl<'a> Backward<'a> {
    /// From `from` down to `floor`. `from` is where a line ends, or the end of the file.
    pub fn new(file: &'a File, floor: u64, from: u64) -> Self {
        Self { file, floor, buffer: Vec::new(), at: from.max(floor), end: 0, chunk: SMALLEST }
    }

    fn grow(&mut self) -> io::Result<bool> {
        let more = usize::try_from(self.at - self.floor).map_or(self.chunk, |left| left.min(self.chunk));
        self.chunk = (self.chunk * 2).min(CHUNK);
        if more == 0 {
            return Ok(false);
        }
        self.buffer.truncate(self.end);
        let mut bytes = vec![0; more];
        let from = self.at - more as u64;
        let read = read_at(self.file, &mut bytes, from)?;
        bytes.truncate(read);
        bytes.extend_from_slice(&self.buffer);
        self.end = bytes.len();
        self.buffer = bytes;
        self.at = from;
        Ok(true)
    }

    /// Leaves out what follows the last line end, and says how much that was.
    fn skip_torn(&mut self) -> io::Result<u64> {
        let mut skipped = 0;
        loop {
            if let Some(last) = memrchr(b'\n', &self.buffer[..self.end]) {
                skipped += (self.end - last - 1) as u64;
                self.end = last + 1;
                return Ok(skipped);
            }
            skipped += self.end as u64;
            self.end = 0;
            if !self.grow()? {
                return Ok(skipped);
            }
        }
    }

    /// The line before, without its end, and where it stands.
    pub fn raw_line(&mut self) -> io::Result<Option<(&[u8], u64)>> {
        let mut searched = 0;
        loop {
            let unsearched = self.end.saturating_sub(1 + searched);
            if let Some(before) = memrchr(b'\n', &self.buffer[..unsearched]) {
                let (start, end) = (before + 1, self.end - 1);
                self.end = start;
                return Ok(Some((&self.buffer[start..end], self.at + start as u64)));
            }
            searched = self.end.saturating_sub(1);
            if !self.grow()? {
                if self.end == 0 {
                    return Ok(None);
                }
                let end = self.end - 1;
                self.end = 0;
                return Ok(Some((&self.buffer[..end], self.at)));
            }
        }
    }
}

/// The place before entry `ordinal`: by bisecting, since lines stand in order. `end` is the end of the last line.
pub fn locate(file: &File, start: &JournalStart, end: u64, ordinal: Ordinal) -> io::Result<ReaderPosition> {
    let beginning = start.place();
    if ordinal <= start.first {
        return Ok(beginning);
    }
    // Invariant: every line that starts before `low` has a smaller ordinal; `high` starts a line with one that is not smaller.
    let (mut low, mut high) = (start.end, end);
    while high - low > CHUNK as u64 / 4 {
        let middle = low + (high - low) / 2;
        match line_behind(file, middle, high)? {
            Some((at, number)) if number < ordinal => low = at,
            Some((at, _)) if at < high => high = at,
            _ => high = middle,
        }
    }
    let place = if low == start.end { beginning } else { ReaderPosition { offset: low, last: 0, sum: None } };
    let mut forward = Forward::new(file, place, end);
    loop {
        let before = forward.place();
        match forward.find_next()? {
            ReadOutcome::Line { line, .. } if line.ordinal >= ordinal => return Ok(before),
            ReadOutcome::Line { .. } | ReadOutcome::Damage(_) => {}
            ReadOutcome::End => return Ok(forward.place()),
        }
    }
}

/// The first whole line that starts behind `offset`.
fn line_behind(file: &File, offset: u64, limit: u64) -> io::Result<Option<(u64, Ordinal)>> {
    let Some(start) = line_start_behind(file, offset, limit)? else { return Ok(None) };
    let mut forward = Forward::new(file, ReaderPosition { offset: start, last: 0, sum: None }, limit);
    loop {
        match forward.find_next()? {
            ReadOutcome::Line { line, offset } => return Ok(Some((offset, line.ordinal))),
            ReadOutcome::Damage(_) => {}
            ReadOutcome::End => return Ok(None),
        }
    }
}

fn line_start_behind(file: &File, offset: u64, limit: u64) -> io::Result<Option<u64>> {
    let mut at = offset;
    let mut buffer = vec![0; 16 << 10];
    while at < limit {
        let read = read_at(file, &mut buffer, at)?;
        if read == 0 {
            break;
        }
        if let Some(end) = memchr(b'\n', &buffer[..read]) {
            return Ok(Some(at + end as u64 + 1).filter(|start| *start < limit));
        }
        at += read as u64;
    }
    Ok(None)
}
