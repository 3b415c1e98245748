//! The lines of a journal: how an entry is written, and how a line is read and checked.
//!
//! The first line is `{"format":"outpost-journal","version":1,"thread":"…","sum":"…"}`, then one entry a line:
//! `{"seq":n,"at":ms,"kind":"…","data":{…},"sum":"…"}`. Lines are written in exactly this spelling and read strictly, so that
//! every changed byte is noticed. A sum has two halves of eight hex digits: the first depends on the line's bytes before it
//! alone and says whether *this* line is whole; the second depends on the whole line and the sum before it and says whether
//! anything *between* the lines is missing or was moved.
//!
//! This room knows bytes, not files.

use std::fmt;
use std::str::FromStr;

use outpost_thread::{Entry, FORMAT, Fact, ForkBase, Ordinal, Raw, ThreadId, VERSION};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A line is never longer than this, its end included. What is larger becomes a blob.
pub const LINE_LIMIT: usize = 1 << 20;

const SUM: &[u8] = b",\"sum\":\"";
const END: &[u8] = b"\"}";
/// What follows the bytes that a sum covers, without the line's end.
const TRAILER: usize = SUM.len() + 16 + END.len();

/// A chained checksum.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Sum(u64);

impl Sum {
    /// The sum of a line whose bytes before the sum are `body`, after a line with sum `previous`.
    pub fn seal(previous: Self, body: &[u8]) -> Self {
        Self::chained(previous, xxh3_64(body))
    }

    /// The same, for a line whose own hash is known.
    fn chained(previous: Self, own: u64) -> Self {
        let chain = xxh3_64_with_seed(&own.to_le_bytes(), previous.0);
        Self((own & 0xffff_ffff_0000_0000) | (chain & 0xffff_ffff))
    }

    /// Whether both can be sums of one line, after whatever it stands.
    pub const fn is_of_same_line(self, other: Self) -> bool {
        self.0 >> 32 == other.0 >> 32
    }

    /// Whether it can be the sum of a line with this hash, wherever that stands.
    const fn is_of(self, own: u64) -> bool {
        self.0 >> 32 == own >> 32
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Sum {
    type Err = NotASum;

    fn from_str(text: &str) -> Result<Self, NotASum> {
        let is_ours = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if is_ours { u64::from_str_radix(text, 16).map(Self).map_err(|_| NotASum) } else { Err(NotASum) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sum is 16 hex digits")]
pub struct NotASum;

/// Writes the first line. A fork names the prefix that it shares here, too: without it everything would be lost.
pub(crate) fn header(thread: ThreadId, base: Option<&ForkBase>) -> (Vec<u8>, Sum) {
    let mut line = format!("{{\"format\":\"{FORMAT}\",\"version\":{VERSION},\"thread\":\"{thread}\"").into_bytes();
    if let Some(text) = base.and_then(|base| serde_json::to_string(base).ok()) {
        line.extend_from_slice(b",\"base\":");
        line.extend_from_slice(text.as_bytes());
    }
    let sum = Sum::seal(Sum::default(), &line);
    line.extend_from_slice(SUM);
    line.extend_from_slice(sum.to_string().as_bytes());
    line.extend_from_slice(END);
    line.push(b'\n');
    (line, sum)
}

/// What a line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineParts<'a> {
    pub ordinal: Ordinal,
    pub at: u64,
    /// Must be plain, see [`is_plain`].
    pub kind: &'a str,
    /// The fact's data, or a reference to the blob that holds them.
    pub data: &'a str,
}

/// Appends a line to `out`.
pub(crate) fn write(out: &mut Vec<u8>, previous: Sum, parts: LineParts<'_>) -> Sum {
    use std::io::Write;
    let start = out.len();
    // Writing into a vector cannot fail.
    let _ = write!(out, "{{\"seq\":{},\"at\":{},\"kind\":\"{}\",\"data\":{}", parts.ordinal, parts.at, parts.kind, parts.data);
    for byte in &mut out[start..] {
        if matches!(*byte, b'\n' | b'\r') {
            // Only between tokens: inside of JSON strings it would be escaped.
            *byte = b' ';
        }
    }
    let sum = Sum::seal(previous, &out[start..]);
    out.extend_from_slice(SUM);
    let _ = write!(out, "{sum}");
    out.extend_from_slice(END);
    out.push(b'\n');
    sum
}

/// The length that [`write`] would give a line with this kind and these data, at most.
pub(crate) fn length(kind: &str, data: &Raw) -> usize {
    // Ordinal and time have at most twenty digits each.
    kind.len() + data.get().len() + 80 + TRAILER
}

/// Whether a kind can stand in a line without escapes.
pub(crate) fn is_plain(kind: &str) -> bool {
    !kind.is_empty()
        && kind.len() <= 128
        && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'/'))
}

/// The first line, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub version: u32,
    pub thread: ThreadId,
    pub base: Option<ForkBase>,
    pub sum: Sum,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    #[error("the first line is damaged")]
    Damaged,
    #[error("this is not a journal of ours")]
    NotOurs,
    #[error("the journal is of version {0}; this program reads versions up to {VERSION}")]
    Version(u32),
}

/// Reads the first line, without its end.
pub fn read_header(line: &[u8]) -> Result<Header, HeaderError> {
    #[derive(serde::Deserialize)]
    struct LineOutline {
        format: String,
        version: u32,
        thread: ThreadId,
        #[serde(default)]
        base: Option<ForkBase>,
    }
    let shape: LineOutline =
        serde_json::from_slice(line).map_err(|_| if line.contains(&b'"') { HeaderError::Damaged } else { HeaderError::NotOurs })?;
    if shape.format != FORMAT {
        return Err(HeaderError::NotOurs);
    }
    let (body, sum) = split(line).ok_or(HeaderError::Damaged)?;
    if Sum::seal(Sum::default(), body) != sum {
        return Err(HeaderError::Damaged);
    }
    if shape.version > VERSION {
        return Err(HeaderError::Version(shape.version));
    }
    Ok(Header { version: shape.version, thread: shape.thread, base: shape.base, sum })
}

fn split(line: &[u8]) -> Option<(&[u8], Sum)> {
    let body = line.len().checked_sub(TRAILER)?;
    let (body, trailer) = line.split_at(body);
    let digits = trailer.strip_prefix(SUM)?.strip_suffix(END)?;
    Some((body, std::str::from_utf8(digits).ok()?.parse().ok()?))
}

/// A line that is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalLine<'a> {
    pub ordinal: Ordinal,
    pub at: u64,
    pub kind: &'a str,
    pub data: &'a str,
    pub sum: Sum,
    own: u64,
}

impl JournalLine<'_> {
    /// Whether it stands after a line with this sum.
    pub fn follows(&self, previous: Sum) -> bool {
        Sum::chained(previous, self.own) == self.sum
    }

    pub fn raw(&self) -> Result<Raw, serde_json::Error> {
        Raw::parse(self.data)
    }

    pub const fn parts(&self) -> LineParts<'_> {
        LineParts { ordinal: self.ordinal, at: self.at, kind: self.kind, data: self.data }
    }
}

/// What is known of a whole line without holding on to its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub ordinal: Ordinal,
    pub at: u64,
    pub sum: Sum,
    own: u64,
    kind: (usize, usize),
    data: (usize, usize),
}

impl Shape {
    /// Looks at a line, without its end. None if a single byte of it is not as it was written, wherever it stood.
    pub(crate) fn of(line: &[u8]) -> Option<Self> {
        let (body, sum) = split(line)?;
        let own = xxh3_64(body);
        if !sum.is_of(own) {
            return None;
        }
        let text = std::str::from_utf8(body).ok()?;
        let (ordinal, rest) = number(text.strip_prefix("{\"seq\":")?)?;
        let (at, rest) = number(rest.strip_prefix(",\"at\":")?)?;
        let rest = rest.strip_prefix(",\"kind\":\"")?;
        let (kind, rest) = rest.split_once('"')?;
        let data = rest.strip_prefix(",\"data\":")?;
        let data = (text.len() - data.len(), text.len());
        let kind_end = text.len() - rest.len() - 1;
        Some(Self { ordinal, at, sum, own, kind: (kind_end - kind.len(), kind_end), data })
    }

    /// Whether the line stands after one with this sum.
    pub(crate) fn follows(&self, previous: Sum) -> bool {
        Sum::chained(previous, self.own) == self.sum
    }

    /// The line itself. None if these are other bytes.
    pub(crate) fn line<'a>(&self, bytes: &'a [u8]) -> Option<JournalLine<'a>> {
        let text = |(from, to): (usize, usize)| std::str::from_utf8(bytes.get(from..to)?).ok();
        Some(JournalLine {
            ordinal: self.ordinal,
            at: self.at,
            kind: text(self.kind)?,
            data: text(self.data)?,
            sum: self.sum,
            own: self.own,
        })
    }
}

/// Reads a line, without its end.
pub fn read(line: &[u8]) -> Option<JournalLine<'_>> {
    Shape::of(line)?.line(line)
}

fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    // Databases have no larger ones, and no program of ours writes them.
    let number = text[..end].parse().ok().filter(|number| *number <= i64::MAX.cast_unsigned())?;
    Some((number, &text[end..]))
}

/// The data of a line whose real data are a blob.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct BlobData {
    pub blob: String,
    pub bytes: u64,
}

/// Data that only say where the real data are.
pub(crate) fn as_blob(data: &str) -> Option<BlobData> {
    // Facts of ours are much richer; this keeps the common case from being parsed twice.
    if data.starts_with("{\"blob\":\"") && data.len() < 128 { serde_json::from_str(data).ok() } else { None }
}

/// The entry of a line, given its data.
pub(crate) fn entry(version: u32, line: &JournalLine<'_>, data: Raw) -> Entry {
    Entry { ordinal: line.ordinal, at: line.at, fact: Fact::read(version, line.kind, data) }
}

/// The same from the text of its data, which is looked at only once. None if that is no JSON.
pub(crate) fn entry_of_text(version: u32, line: &JournalLine<'_>, data: &str) -> Option<Entry> {
    Fact::read_text(version, line.kind, data).ok().map(|fact| Entry { ordinal: line.ordinal, at: line.at, fact })
}

#[cfg(test)]
mod tests {
    use outpost_thread::ThreadCreated;
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn sample(ordinal: Ordinal) -> Entry {
        Entry { ordinal, at: 1_763_247_600_000, fact: ThreadCreated::new(ThreadId::new(Uuid::nil())).into() }
    }

    fn line(ordinal: Ordinal, previous: Sum) -> (Vec<u8>, Sum) {
        let mut out = Vec::new();
        let entry = sample(ordinal);
        let data = entry.fact.data().unwrap();
        let sum = write(&mut out, previous, LineParts { ordinal, at: entry.at, kind: entry.fact.kind(), data: data.get() });
        assert_eq!(out.pop(), Some(b'\n'));
        (out, sum)
    }

    #[test]
    fn a_line_reads_as_it_was_written() {
        let (mut first, start) = header(ThreadId::new(Uuid::nil()), None);
        assert_eq!(first.pop(), Some(b'\n'));
        assert_eq!(read_header(&first).unwrap(), Header { version: 1, thread: ThreadId::new(Uuid::nil()), base: None, sum: start });
        let (bytes, sum) = line(7, start);
        let shape = Shape::of(&bytes).unwrap();
        let read = shape.line(&bytes).unwrap();
        assert_eq!((read.ordinal, read.at, read.kind, read.sum), (7, 1_763_247_600_000, "threadCreated", sum));
        assert!(shape.follows(start));
        assert!(!shape.follows(sum));
        assert_eq!(entry_of_text(1, &read, read.data), Some(sample(7)));
        assert_eq!(entry(1, &read, read.raw().unwrap()), sample(7));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let start = Sum::seal(Sum::default(), b"before");
        let (bytes, _) = line(7, start);
        for bit in 0..bytes.len() * 8 {
            let mut spoiled = bytes.clone();
            spoiled[bit / 8] ^= 1 << (bit % 8);
            assert!(Shape::of(&spoiled).is_none_or(|line| !line.follows(start)), "bit {bit}");
        }
        let (mut bytes, _) = header(ThreadId::new(Uuid::nil()), None);
        bytes.pop();
        for bit in 0..bytes.len() * 8 {
            let mut spoiled = bytes.clone();
            spoiled[bit / 8] ^= 1 << (bit % 8);
            assert!(read_header(&spoiled).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_line_whose_neighbour_is_gone_is_still_whole() {
        let (_, one) = line(1, Sum::default());
        let (_, two) = line(2, one);
        let (bytes, _) = line(3, two);
        let third = Shape::of(&bytes).unwrap();
        assert!(third.follows(two) && !third.follows(one));
    }

    proptest! {
        #[test]
        fn garbage_never_reads_as_a_line(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&bytes).is_none());
            prop_assert!(read_header(&bytes).is_err());
        }
    }
}
