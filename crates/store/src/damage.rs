//! What is not as it was written, said exactly.

use std::fmt;

use outpost_thread::{DamageNoted, DamagedRange, Entry, Ordinal};

/// A place in a journal that is not as it was written. Ordinals `from` to `to` cannot be read; if `from` is greater than
/// `to`, no entry is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    pub from: Ordinal,
    pub to: Ordinal,
    /// Where in the file.
    pub offset: u64,
    pub bytes: u64,
    pub what: DamageKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DamageKind {
    /// Bytes that no longer are what was written.
    Altered,
    /// Entries that are not there.
    Missing,
    /// An entry that stands in the wrong place, or twice.
    Misplaced,
    /// A line is whole, but its sum does not fit to the line before it: one of them was replaced.
    Unchained,
    /// The last line was being written when its writer ended. It was never acknowledged.
    Torn,
    /// The file ends with zeroes: the disk lost what was not synced.
    Zeroes,
    /// The file ends with a whole line, but more entries are known to have been written.
    CutOff,
    /// The first line cannot be read.
    Header,
    /// The entry is whole, but the blob that holds its content is missing or altered.
    Blob,
}

impl DamageKind {
    /// What every crash may leave behind, as opposed to what should never happen.
    pub const fn is_tail(self) -> bool {
        matches!(self, Self::Torn | Self::Zeroes)
    }
}

impl fmt::Display for DamageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Altered => "altered",
            Self::Missing => "missing",
            Self::Misplaced => "in the wrong place",
            Self::Unchained => "not the line that stood here",
            Self::Torn => "torn off while it was written",
            Self::Zeroes => "zeroes at the end",
            Self::CutOff => "cut off at the end",
            Self::Header => "first line unreadable",
            Self::Blob => "content missing",
        })
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            from if from > self.to => write!(f, "{}: {} bytes at byte {}", self.what, self.bytes, self.offset),
            from if from == self.to => write!(f, "entry {from} {}, at byte {}", self.what, self.offset),
            from => write!(f, "entries {from} to {} {}, at byte {}", self.to, self.what, self.offset),
        }
    }
}

impl Damage {
    /// Whether there are entries that cannot be read because of it.
    pub const fn loses_entries(&self) -> bool {
        self.from <= self.to
    }

    pub fn range(&self) -> DamagedRange {
        DamagedRange { from: self.from, to: self.to, what: self.what.to_string() }
    }
}

/// Entries in their order, with a `damageNoted` in the place of those that cannot be read.
pub(crate) fn with_gaps(entries: Vec<Entry>, damage: &[Damage]) -> Vec<Entry> {
    let mut gaps: Vec<&Damage> = damage.iter().filter(|damage| damage.loses_entries() && damage.what != DamageKind::CutOff).collect();
    if gaps.is_empty() {
        return entries;
    }
    gaps.sort_by_key(|damage| damage.from);
    let mut gaps = gaps.into_iter().peekable();
    let mut all = Vec::with_capacity(entries.len() + 1);
    // When they were written is not known; not before what stands before them.
    let mut at = entries.first().map_or(0, |entry| entry.at);
    let note = |damage: &Damage, at| Entry { ordinal: damage.from, at, fact: DamageNoted::in_place_of(damage.range()).into() };
    for entry in entries {
        while let Some(damage) = gaps.next_if(|damage| damage.from < entry.ordinal) {
            all.push(note(damage, at));
        }
        at = entry.at;
        all.push(entry);
    }
    all.extend(gaps.map(|damage| note(damage, at)));
    all
}
