//! Where the region is on the screen, before and after the window gets another size.
//!
//! Of a window that becomes narrower, terminals make one of two things: they cut rows that are too long, or they break them anew, so
//! that a row becomes several. Which one it was is seen from where the cursor is afterwards. The region's last row, below the
//! cursor, is as wide as the window: if any row of the region was broken, that one was, and the cursor is no longer where it was.

use unicode_segmentation::UnicodeSegmentation;

use super::LiveRegion;
use crate::ink::{InkLine, width};

/// The row of the screen that the region begins in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RegionTop {
    Unknown,
    /// The terminal was asked. The region has moved by so many rows since, but not below the lowest one.
    Asked {
        moved: usize,
        lowest: usize,
    },
    Known(usize),
}

impl RegionTop {
    pub(super) const fn asked() -> Self {
        Self::Asked { moved: 0, lowest: usize::MAX }
    }

    pub(super) fn answered(self, row: usize) -> Self {
        match self {
            Self::Asked { moved, lowest } => Self::Known((row + moved).min(lowest)),
            other => other,
        }
    }

    /// No answer counts any more.
    pub(super) const fn settled(self) -> Self {
        match self {
            Self::Asked { .. } => Self::Unknown,
            other => other,
        }
    }

    /// So many rows were written above the region, which cannot begin below this row.
    pub(super) fn moved(self, written: usize, at_most: usize) -> Self {
        match self {
            Self::Unknown => Self::Unknown,
            Self::Asked { moved, lowest } => {
                Self::Asked { moved: moved.saturating_add(written), lowest: lowest.saturating_add(written).min(at_most) }
            }
            Self::Known(top) => Self::Known((top + written).min(at_most)),
        }
    }
}

/// The window has had other sizes since the region was drawn. Sizes are columns and rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resized {
    /// What it was drawn for.
    drawn_for: (usize, usize),
    /// The smallest ones meanwhile.
    pub(super) least: (usize, usize),
}

impl Resized {
    pub(super) const fn from(columns: usize, rows: usize) -> Self {
        Self { drawn_for: (columns, rows), least: (columns, rows) }
    }
}

/// A region in a window of another size, and where the terminal says that the cursor is now.
pub(super) struct ResizedRegion<'a> {
    pub(super) region: &'a LiveRegion,
    /// Where it was.
    pub(super) top: RegionTop,
    pub(super) resized: Resized,
    /// The window's columns and rows now.
    pub(super) size: (usize, usize),
    /// The cursor's row and column now.
    pub(super) cursor: (usize, usize),
    /// What the terminal did before.
    pub(super) known: Option<Narrowing>,
}

/// What a terminal does with rows that are too long for a narrower window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Narrowing {
    Cut,
    Rewrap,
}

/// The rows of a region that was broken anew: above the cursor, and below it.
struct BrokenRows {
    above: usize,
    below: usize,
}

impl ResizedRegion<'_> {
    /// How many rows of the region are above the cursor now, and what the terminal did with long rows, if that is certain.
    ///
    /// In doubt as many as were drawn: too few leave remains of the region, too many would wipe what is not ours.
    pub(super) fn rows_above(&self) -> (usize, Option<Narrowing>) {
        let drawn = self.region.cursor.0;
        let Some(broken) = self.broken_anew() else { return (drawn, None) };
        let has_long_rows = broken.above + 1 + broken.below > self.region.rows.len();
        match (self.is_where_broken(&broken), self.is_where_cut()) {
            (true, false) => (broken.above, has_long_rows.then_some(Narrowing::Rewrap)),
            (true, true) if self.known == Some(Narrowing::Rewrap) => (broken.above, self.known),
            (false, true) => (drawn, has_long_rows.then_some(Narrowing::Cut)),
            _ => (drawn, None),
        }
    }

    /// Nothing if the cursor would be in another column.
    fn broken_anew(&self) -> Option<BrokenRows> {
        let (row, column) = self.region.cursor;
        let columns = self.size.0;
        let own = self.region.rows.get(row)?;
        let before: usize = self.region.rows[..row].iter().map(|row| height(row, columns)).sum();
        let after: usize = self.region.rows[row + 1..].iter().map(|row| height(row, columns)).sum();
        // Behind the end of a row the cursor may have lost a column on the way.
        let is_behind_text = column > 0 && column >= own.width();
        let places = std::iter::once(column).chain(is_behind_text.then(|| column - 1));
        let down = places.map(|place| broken_place(own, place, columns)).find_map(|(down, at)| {
            // Right behind a full row, terminals leave the cursor at its end or go to the next one.
            let is_behind_row = at == 0 && down > 0 && self.cursor.1 + 1 == columns;
            if is_behind_row { Some(down - 1) } else { (at == self.cursor.1).then_some(down) }
        })?;
        let below = after + height(own, columns).saturating_sub(down + 1);
        Some(BrokenRows { above: before + down, below })
    }

    /// Whether the cursor is in a row where a terminal that broke the rows anew may have it.
    fn is_where_broken(&self, broken: &BrokenRows) -> bool {
        let RegionTop::Known(top) = self.top else { return true };
        let is_at_bottom = self.cursor.0 + broken.below + 1 == self.size.1;
        // Empty rows below the region may count as much as any others: then it stays as far from the bottom as it was.
        let more = broken.below.saturating_sub(self.region.rows.len() - 1 - self.region.cursor.0);
        let risen = (top + self.region.cursor.0 + self.size.1).saturating_sub(self.resized.drawn_for.1 + more);
        is_at_bottom || self.cursor.0 == risen || self.cursor.0 >= top + broken.above
    }

    /// Whether the cursor is where a terminal that cuts rows has it.
    fn is_where_cut(&self) -> bool {
        let is_column_kept = self.cursor.1 == self.region.cursor.1.min(self.resized.least.0 - 1);
        let RegionTop::Known(top) = self.top else { return is_column_kept };
        let was = top + self.region.cursor.0;
        let least = self.resized.least.1;
        // A window with fewer rows loses those at its bottom or at its top; one with more gets some at its bottom, or from the
        // scrollback.
        let kept = was.min(least - 1);
        let is_row_kept =
            (kept..=kept + self.size.1 - least).contains(&self.cursor.0) || self.cursor.0 + self.resized.drawn_for.1 == was + self.size.1;
        is_column_kept && is_row_kept
    }
}

/// How many rows a terminal of so many columns makes of a line.
pub(super) fn height(line: &InkLine, columns: usize) -> usize {
    broken_place(line, usize::MAX, columns).0 + 1
}

/// The row and the column that a column of a line gets in a terminal of so many columns; of its end if that comes first.
fn broken_place(line: &InkLine, column: usize, columns: usize) -> (usize, usize) {
    let (mut row, mut at, mut passed) = (0, 0, 0);
    for piece in line.0.iter().flat_map(|span| span.text.graphemes(true)) {
        let wide = width(piece);
        if passed + wide > column {
            break;
        }
        if at + wide > columns {
            (row, at) = (row + 1, 0);
        }
        (at, passed) = (at + wide, passed + wide);
    }
    if column == usize::MAX {
        return (row, at);
    }
    // What is behind the text is counted on.
    at += column - passed;
    (row + at / columns, at % columns)
}
