//! The output of one process: one log, any number of cursors.
//!
//! The newest bytes stay in memory, older ones go to a spool on disk, the oldest are dropped and counted. A reader that
//! lags sees a gap with its exact size, never a jump in numbers.

use std::collections::VecDeque;
use std::path::Path;

use bytes::Bytes;
use outpost_wire::exec::environment::Limit;
use outpost_wire::exec::process::Stream;

use crate::spool::Spool;

/// How much output of one process is kept, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct OutputLimits {
    pub memory: usize,
    pub spool: u64,
}

impl Default for OutputLimits {
    fn default() -> Self {
        Self { memory: 256 << 10, spool: 64 << 20 }
    }
}

/// What may be known of an exit besides its code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ExitNote {
    /// A sandbox probably refused something.
    pub denied: bool,
    /// A limit was reached.
    pub limit: Option<Limit>,
    /// What else there is to say.
    pub notices: Vec<String>,
}

/// What a reader finds after its cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OutputEvent {
    Output { seq: u64, stream: Stream, bytes: Bytes },
    Gap { seq: u64, bytes: u64 },
    Exited { seq: u64, code: i32, note: ExitNote },
    Closed { seq: u64 },
}

impl OutputEvent {
    pub(crate) fn seq(&self) -> u64 {
        match self {
            Self::Output { seq, .. } | Self::Gap { seq, .. } | Self::Exited { seq, .. } | Self::Closed { seq } => *seq,
        }
    }
}

/// Output that arrives while no reader has seen the last chunk yet joins it, up to this size.
const CHUNK: usize = 64 << 10;
/// How many chunks are kept on disk, and in memory, however small they are.
pub(crate) const MAX_CHUNKS: usize = 65_536;
const MAX_RECENT: usize = 4_096;
/// How many lengths of dropped chunks are remembered; gaps that begin earlier are counted from here.
const REMEMBERED: usize = 65_536;

pub(crate) struct OutputLog {
    limits: OutputLimits,
    /// The newest chunks. The last one is still open if its number is above `seen`.
    recent: VecDeque<Chunk>,
    recent_bytes: usize,
    spooled: Spooled,
    dropped: Dropped,
    next_seq: u64,
    /// Bytes ever appended.
    total: u64,
    /// The highest number that any reader was told.
    seen: u64,
    exited: Option<(u64, i32)>,
    note: ExitNote,
    closed: Option<u64>,
}

struct Chunk {
    seq: u64,
    stream: Stream,
    bytes: Piece,
}

/// Bytes that may still grow, or that readers share.
enum Piece {
    Open(Vec<u8>),
    Sealed(Bytes),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Open(bytes) => bytes.len(),
            Self::Sealed(bytes) => bytes.len(),
        }
    }

    fn seal(&mut self) -> Bytes {
        if let Self::Open(bytes) = self {
            *self = Self::Sealed(std::mem::take(bytes).into());
        }
        match self {
            Self::Sealed(bytes) => bytes.clone(),
            Self::Open(_) => Bytes::new(),
        }
    }
}

impl OutputLog {
    pub(crate) fn new(limits: OutputLimits, spool_directory: Option<&Path>) -> Self {
        let spool = spool_directory.map(|directory| Spool::new(directory, limits.spool));
        Self {
            limits,
            recent: VecDeque::new(),
            recent_bytes: 0,
            spooled: Spooled { spool, chunks: VecDeque::new(), first_seq: 1, start: 0, end: 0 },
            dropped: Dropped { lengths: VecDeque::new(), first_seq: 1, before: 0 },
            next_seq: 1,
            total: 0,
            seen: 0,
            exited: None,
            note: ExitNote::default(),
            closed: None,
        }
    }

    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Bytes ever appended.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn exit_code(&self) -> Option<i32> {
        self.exited.map(|(_, code)| code)
    }

    /// Whether nothing was appended since the exit.
    pub(crate) fn exit_was_last(&self) -> bool {
        self.exited.is_some_and(|(seq, _)| seq + 1 == self.next_seq)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// How many bytes can be kept at all.
    pub(crate) fn capacity(&self) -> u64 {
        let spool = self.spooled.spool.as_ref().map_or(0, Spool::capacity);
        spool.saturating_add(self.limits.memory as u64)
    }

    pub(crate) fn append(&mut self, stream: Stream, bytes: Vec<u8>) {
        if bytes.is_empty() || self.closed.is_some() {
            return;
        }
        self.total += bytes.len() as u64;
        self.recent_bytes += bytes.len();
        let seen = self.seen;
        match self.recent.back_mut() {
            Some(Chunk { seq, stream: last, bytes: Piece::Open(open) })
                if *seq > seen && *seq + 1 == self.next_seq && *last == stream && open.len() + bytes.len() <= CHUNK =>
            {
                open.extend_from_slice(&bytes);
            }
            _ => {
                let seq = self.take_seq();
                self.recent.push_back(Chunk { seq, stream, bytes: Piece::Open(bytes) });
            }
        }
        while (self.recent_bytes > self.limits.memory || self.recent.len() > MAX_RECENT) && self.recent.len() > 1 {
            self.retire_oldest();
        }
    }

    /// What else is known of the exit; said before it.
    pub(crate) fn note_exit(&mut self, note: ExitNote) {
        self.note = note;
    }

    pub(crate) fn exit_note(&self) -> &ExitNote {
        &self.note
    }

    pub(crate) fn exit(&mut self, code: i32) {
        if self.exited.is_none() {
            let seq = self.take_seq();
            self.exited = Some((seq, code));
        }
    }

    pub(crate) fn close(&mut self) {
        if self.closed.is_none() {
            let seq = self.take_seq();
            self.closed = Some(seq);
        }
    }

    fn take_seq(&mut self) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }

    /// Moves the oldest chunk from memory to the spool, and from there what no longer fits to oblivion.
    fn retire_oldest(&mut self) {
        let Some(mut chunk) = self.recent.pop_front() else { return };
        let bytes = chunk.bytes.seal();
        self.recent_bytes -= bytes.len();
        for (length, seq) in self.spooled.push(chunk.seq, chunk.stream, &bytes) {
            self.dropped.push(seq, length);
        }
    }

    /// Bytes of output that are kept in memory, and on disk.
    pub(crate) fn held(&self) -> (usize, u64) {
        (self.recent_bytes, self.spooled.end - self.spooled.start)
    }

    /// Moves everything to disk, as far as there is room. For a process that has ended: few ask for its output again.
    pub(crate) fn move_to_disk(&mut self) {
        while !self.recent.is_empty() {
            self.retire_oldest();
        }
        self.recent = VecDeque::new();
    }

    /// Gives all output up. Readers see a gap of its size.
    pub(crate) fn give_up(&mut self) {
        while let Some((length, seq)) = self.spooled.pop() {
            self.dropped.push(seq, length);
        }
        self.spooled.spool = None;
        self.move_to_disk();
    }

    /// The first number that is still here as output.
    fn first_kept(&self) -> u64 {
        match (self.spooled.chunks.is_empty(), self.recent.front()) {
            (false, _) => self.spooled.first_seq,
            (true, Some(chunk)) => chunk.seq,
            (true, None) => self.next_seq,
        }
    }

    /// The next event after `seq`. Numbers beyond the end have none.
    pub(crate) fn after(&mut self, seq: u64) -> Option<OutputEvent> {
        let wanted = seq.checked_add(1)?;
        if wanted >= self.next_seq {
            return None;
        }
        let event = self.event_at(wanted);
        self.seen = self.seen.max(event.seq());
        Some(event)
    }

    fn event_at(&mut self, wanted: u64) -> OutputEvent {
        if let Some((seq, code)) = self.exited
            && seq == wanted
        {
            return OutputEvent::Exited { seq, code, note: self.note.clone() };
        }
        if self.closed == Some(wanted) {
            return OutputEvent::Closed { seq: wanted };
        }
        if let Ok(index) = self.recent.binary_search_by_key(&wanted, |chunk| chunk.seq) {
            let chunk = &mut self.recent[index];
            return OutputEvent::Output { seq: wanted, stream: chunk.stream, bytes: chunk.bytes.seal() };
        }
        if let Some((stream, bytes)) = self.spooled.read(wanted) {
            return OutputEvent::Output { seq: wanted, stream, bytes };
        }
        self.gap_from(wanted)
    }

    /// Everything from `wanted` to the next thing that is still here, the exit included.
    fn gap_from(&mut self, wanted: u64) -> OutputEvent {
        let mut last = self.first_kept().saturating_sub(1).max(wanted);
        if let Some((exit, _)) = self.exited
            && exit > wanted
        {
            last = last.min(exit - 1);
        }
        if let Some(closed) = self.closed
            && closed > wanted
        {
            last = last.min(closed - 1);
        }
        OutputEvent::Gap { seq: last, bytes: self.dropped.between(wanted, last) }
    }

    /// How many bytes of output come after `seq`, kept or not.
    pub(crate) fn bytes_after(&mut self, seq: u64) -> u64 {
        let Some(wanted) = seq.checked_add(1).filter(|wanted| *wanted < self.next_seq) else { return 0 };
        let recent: usize = self.recent.iter().filter(|chunk| chunk.seq >= wanted).map(|chunk| chunk.bytes.len()).sum();
        recent as u64 + self.spooled.bytes_from(wanted) + self.dropped.between(wanted, self.first_kept().saturating_sub(1))
    }
}

/// The chunks on disk: their numbers are consecutive except where the exit stands between two of them.
struct Spooled {
    spool: Option<Spool>,
    chunks: VecDeque<SpooledChunk>,
    first_seq: u64,
    /// Positions in the spool of the first byte and behind the last one.
    start: u64,
    end: u64,
}

/// Where a chunk is; a hole stands for the exit.
#[derive(Clone, Copy)]
enum SpooledChunk {
    Output { stream: Stream, length: u32, position: u64 },
    Hole,
}

impl SpooledChunk {
    fn length(self) -> u32 {
        match self {
            Self::Output { length, .. } => length,
            Self::Hole => 0,
        }
    }
}

impl Spooled {
    /// Adds a chunk and returns the lengths and numbers of those that had to go for it.
    fn push(&mut self, seq: u64, stream: Stream, bytes: &[u8]) -> Vec<(u32, u64)> {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut gone = Vec::new();
        let capacity = self.spool.as_ref().map_or(0, Spool::capacity);
        let is_full = |spooled: &Self| spooled.end - spooled.start + u64::from(length) > capacity || spooled.chunks.len() >= MAX_CHUNKS;
        while !self.chunks.is_empty() && is_full(self) {
            gone.extend(self.pop());
        }
        let kept = u64::from(length) <= capacity && self.spool.as_mut().is_some_and(|spool| spool.write(self.end, bytes));
        if !kept {
            // Without a spool there is no keeping what came before either: what is kept has no holes.
            while !self.chunks.is_empty() {
                gone.extend(self.pop());
            }
            gone.push((length, seq));
            return gone;
        }
        if self.chunks.is_empty() {
            self.first_seq = seq;
        }
        while self.first_seq + (self.chunks.len() as u64) < seq {
            self.chunks.push_back(SpooledChunk::Hole);
        }
        self.chunks.push_back(SpooledChunk::Output { stream, length, position: self.end });
        self.end += u64::from(length);
        gone
    }

    fn pop(&mut self) -> Option<(u32, u64)> {
        let chunk = self.chunks.pop_front()?;
        let seq = self.first_seq;
        self.first_seq += 1;
        self.start += u64::from(chunk.length());
        Some((chunk.length(), seq))
    }

    fn read(&self, seq: u64) -> Option<(Stream, Bytes)> {
        let index = usize::try_from(seq.checked_sub(self.first_seq)?).ok()?;
        let SpooledChunk::Output { stream, length, position } = *self.chunks.get(index)? else { return None };
        let bytes = self.spool.as_ref()?.read(position, length as usize)?;
        Some((stream, bytes))
    }

    fn bytes_from(&self, seq: u64) -> u64 {
        let skipped = usize::try_from(seq.saturating_sub(self.first_seq)).unwrap_or(usize::MAX);
        let next = self.chunks.iter().skip(skipped).find_map(|chunk| match chunk {
            SpooledChunk::Output { position, .. } => Some(*position),
            SpooledChunk::Hole => None,
        });
        next.map_or(0, |position| self.end - position)
    }
}

/// The lengths of chunks that are gone.
struct Dropped {
    lengths: VecDeque<u32>,
    first_seq: u64,
    /// Bytes of everything before `first_seq`.
    before: u64,
}

impl Dropped {
    fn push(&mut self, seq: u64, length: u32) {
        while self.first_seq + (self.lengths.len() as u64) < seq {
            self.lengths.push_back(0);
        }
        self.lengths.push_back(length);
        while self.lengths.len() > REMEMBERED {
            self.before += u64::from(self.lengths.pop_front().unwrap_or_default());
            self.first_seq += 1;
        }
    }

    /// The bytes of the numbers `first..=last` that are gone.
    fn between(&self, first: u64, last: u64) -> u64 {
        let forgotten = if first <= 1 { self.before } else { 0 };
        let skip = usize::try_from(first.saturating_sub(self.first_seq)).unwrap_or(usize::MAX);
        let end = usize::try_from((last + 1).saturating_sub(self.first_seq)).unwrap_or(usize::MAX);
        let take = end.saturating_sub(skip);
        forgotten + self.lengths.iter().skip(skip).take(take).map(|length| u64::from(*length)).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(log: &mut OutputLog, mut seq: u64) -> Vec<OutputEvent> {
        std::iter::from_fn(|| {
            let event = log.after(seq)?;
            seq = event.seq();
            Some(event)
        })
        .collect()
    }

    fn output(seq: u64, stream: Stream, text: &str) -> OutputEvent {
        OutputEvent::Output { seq, stream, bytes: Bytes::copy_from_slice(text.as_bytes()) }
    }

    const SMALL: OutputLimits = OutputLimits { memory: 10, spool: 20 };

    #[test]
    fn what_is_moved_to_disk_is_the_same_and_what_is_given_up_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = OutputLog::new(OutputLimits::default(), Some(directory.path()));
        log.append(Stream::Stdout, b"one".to_vec());
        log.after(0);
        log.append(Stream::Stderr, b"two!".to_vec());
        log.exit(3);
        log.append(Stream::Stdout, b"later".to_vec());
        log.close();
        let before = all(&mut log, 0);
        assert_eq!(log.held(), (12, 0));
        log.move_to_disk();
        assert_eq!(log.held(), (0, 12));
        assert_eq!(all(&mut log, 0), before);
        log.give_up();
        assert_eq!(log.held(), (0, 0));
        let expected = [
            OutputEvent::Gap { seq: 2, bytes: 7 },
            OutputEvent::Exited { seq: 3, code: 3, note: ExitNote::default() },
            OutputEvent::Gap { seq: 4, bytes: 5 },
            OutputEvent::Closed { seq: 5 },
        ];
        assert_eq!(all(&mut log, 0), expected);
    }

    #[test]
    fn output_exit_and_close_share_one_numbering() {
        let mut log = OutputLog::new(OutputLimits::default(), None);
        log.append(Stream::Stdout, b"one".to_vec());
        log.append(Stream::Stderr, b"two".to_vec());
        log.exit(3);
        log.append(Stream::Stdout, b"late".to_vec());
        log.close();
        let expected = [
            output(1, Stream::Stdout, "one"),
            output(2, Stream::Stderr, "two"),
            OutputEvent::Exited { seq: 3, code: 3, note: ExitNote::default() },
            output(4, Stream::Stdout, "late"),
            OutputEvent::Closed { seq: 5 },
        ];
        assert_eq!(all(&mut log, 0), expected);
        assert_eq!(all(&mut log, 3), expected[3..]);
        assert_eq!(log.next_seq(), 6);
        assert_eq!(log.after(u64::MAX), None);
    }

    #[test]
    fn chunks_grow_until_somebody_has_seen_them() {
        let mut log = OutputLog::new(OutputLimits::default(), None);
        log.append(Stream::Stdout, b"a".to_vec());
        log.append(Stream::Stdout, b"b".to_vec());
        assert_eq!(all(&mut log, 0), [output(1, Stream::Stdout, "ab")]);
        log.append(Stream::Stdout, b"c".to_vec());
        assert_eq!(all(&mut log, 0), [output(1, Stream::Stdout, "ab"), output(2, Stream::Stdout, "c")]);
        log.append(Stream::Stdout, vec![b'x'; CHUNK]);
        assert_eq!(log.next_seq(), 4);
    }

    #[test]
    fn old_output_comes_back_from_the_spool() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = OutputLog::new(SMALL, Some(directory.path()));
        for (n, text) in ["aaaaaaaa", "bbbbbbbb", "cccccccc"].iter().enumerate() {
            log.append(Stream::Stdout, text.as_bytes().to_vec());
            log.after(n as u64);
        }
        assert_eq!(
            all(&mut log, 0),
            [output(1, Stream::Stdout, "aaaaaaaa"), output(2, Stream::Stdout, "bbbbbbbb"), output(3, Stream::Stdout, "cccccccc")]
        );
        assert_eq!(log.bytes_after(1), 16);
    }

    #[test]
    fn what_is_gone_is_counted_and_does_not_hide_the_exit() {
        let mut log = OutputLog::new(SMALL, None);
        for n in 0..3 {
            log.append(Stream::Stdout, b"12345678".to_vec());
            log.after(n);
        }
        log.exit(0);
        for n in 4..8 {
            log.append(Stream::Stdout, b"12345678".to_vec());
            log.after(n);
        }
        log.close();
        assert_eq!(
            all(&mut log, 0),
            [
                OutputEvent::Gap { seq: 3, bytes: 24 },
                OutputEvent::Exited { seq: 4, code: 0, note: ExitNote::default() },
                OutputEvent::Gap { seq: 7, bytes: 24 },
                output(8, Stream::Stdout, "12345678"),
                OutputEvent::Closed { seq: 9 }
            ]
        );
        assert_eq!(all(&mut log, 1)[0], OutputEvent::Gap { seq: 3, bytes: 16 });
        assert_eq!(log.bytes_after(0), 56);
        assert_eq!(log.bytes_after(5), 24);
    }

    proptest! {
        /// Whatever is appended and read in between: from any cursor, bytes kept plus bytes counted as gone is
        /// everything, and what is kept is the right bytes.
        #[test]
        fn every_byte_is_kept_or_counted(
            steps in prop::collection::vec((1usize..30, any::<bool>(), any::<bool>()), 1..60),
            spool in 0u64..80,
            exit_at in 0usize..60,
        ) {
            let directory = tempfile::tempdir().unwrap();
            let mut log = OutputLog::new(OutputLimits { memory: 16, spool }, Some(directory.path()));
            let mut everything: Vec<u8> = Vec::new();
            let mut cursors = vec![(0u64, 0u64)];
            for (index, (length, look, err)) in steps.into_iter().enumerate() {
                let bytes: Vec<u8> = (0..length).map(|n| (everything.len() + n) as u8).collect();
                everything.extend(&bytes);
                log.append(if err { Stream::Stderr } else { Stream::Stdout }, bytes);
                if index == exit_at {
                    log.exit(0);
                }
                if look {
                    for event in all(&mut log, cursors.last().unwrap().0) {
                        let (_, offset) = *cursors.last().unwrap();
                        let bytes = match &event { OutputEvent::Output { bytes, .. } => bytes.len() as u64, OutputEvent::Gap { bytes, .. } => *bytes, _ => 0 };
                        cursors.push((event.seq(), offset + bytes));
                    }
                }
            }
            log.close();
            for (seq, start) in cursors {
                prop_assert_eq!(log.bytes_after(seq), everything.len() as u64 - start);
                let mut offset = start as usize;
                let mut expected = seq + 1;
                for event in all(&mut log, seq) {
                    let last = event.seq();
                    match event {
                        OutputEvent::Output { seq, bytes, .. } => {
                            prop_assert_eq!(seq, expected);
                            prop_assert_eq!(&bytes[..], &everything[offset..offset + bytes.len()]);
                            offset += bytes.len();
                        }
                        OutputEvent::Gap { bytes, .. } => offset += bytes as usize,
                        OutputEvent::Exited { seq, .. } | OutputEvent::Closed { seq } => prop_assert_eq!(seq, expected),
                    }
                    expected = last + 1;
                }
                prop_assert_eq!(offset, everything.len());
                prop_assert_eq!(expected, log.next_seq());
            }
        }
    }
}
