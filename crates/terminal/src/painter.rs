//! Draws a region at the bottom of what a terminal shows, and lines above it that stay.
//!
//! The terminal keeps its own scrollback: lines that stay are written once and never touched again. Only the region is drawn anew,
//! and it is never higher than the screen, so that all of it can be taken back.

mod place;

use crate::ink::InkLine;
use crate::painter::place::{Narrowing, RegionTop, Resized, ResizedRegion, height};

/// What stands at the bottom.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LiveRegion {
    pub rows: Vec<InkLine>,
    /// Row and column of the cursor.
    pub cursor: (usize, usize),
}

/// Where the region is on the screen must be known when the window gets another size: some terminals break rows anew then, others
/// cut them. The terminal is asked for its cursor's position; the caller hands the answers to [`Self::cursor_at`].
#[derive(Debug)]
pub struct RegionPainter {
    columns: usize,
    rows: usize,
    drawn: LiveRegion,
    top: RegionTop,
    /// Questions that the terminal has not answered yet.
    asked: usize,
    /// It has answered one.
    does_answer: bool,
    resized: Option<Resized>,
    /// What is known of the terminal's ways.
    narrowing: Option<Narrowing>,
}

/// The terminal shows nothing in between, where it knows these.
const BEGIN: &str = "\x1b[?2026h\x1b[?25l";
const END: &str = "\x1b[?25h\x1b[?2026l";
/// Where is the cursor?
const ASK: &str = "\x1b[6n";

impl RegionPainter {
    pub fn new(columns: usize, rows: usize) -> Self {
        Self {
            columns: columns.max(2),
            rows: rows.max(2),
            drawn: LiveRegion::default(),
            top: RegionTop::Unknown,
            asked: 0,
            does_answer: false,
            resized: None,
            narrowing: None,
        }
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Asks the terminal where the region begins. Nothing is drawn at that time.
    pub fn ask(&mut self) -> String {
        self.top = RegionTop::asked();
        self.asked += 1;
        ASK.to_owned()
    }

    /// Whether an answer of the terminal is still under way.
    pub fn is_asked(&self) -> bool {
        self.asked > 0
    }

    /// Whether the region must not be drawn before the terminal has answered, or [`Self::give_up`].
    pub fn is_waiting(&self) -> bool {
        self.resized.is_some()
    }

    /// The terminal has another size. What to write to learn where the region is now.
    pub fn resize(&mut self, columns: usize, rows: usize) -> String {
        let size = (columns.max(2), rows.max(2));
        if size == (self.columns, self.rows) {
            return String::new();
        }
        let resized = self.resized.get_or_insert(Resized::from(self.columns, self.rows));
        resized.least = (resized.least.0.min(size.0), resized.least.1.min(size.1));
        (self.columns, self.rows) = size;
        // An answer that is under way is one of before.
        self.top = self.top.settled();
        if self.does_answer {
            self.asked += 1;
            return ASK.to_owned();
        }
        self.give_up();
        String::new()
    }

    /// The terminal says where its cursor is: row and column, counted from 0.
    pub fn cursor_at(&mut self, row: usize, column: usize) {
        self.does_answer = true;
        self.asked = self.asked.saturating_sub(1);
        // Only the last answer is about what the screen shows now.
        if self.asked > 0 {
            return;
        }
        let Some(resized) = self.resized.take() else {
            self.top = self.top.answered(row);
            return;
        };
        let (size, known) = ((self.columns, self.rows), self.narrowing);
        let seen = ResizedRegion { region: &self.drawn, top: self.top, resized, size, cursor: (row, column), known };
        let (above, narrowing) = seen.rows_above();
        let above = above.min(row);
        self.narrowing = narrowing.or(known);
        self.top = RegionTop::Known(row - above);
        self.drawn = LiveRegion { rows: Vec::new(), cursor: (above, 0) };
    }

    /// The terminal does not say where its cursor is. What was drawn above it is taken to have as many rows as before: on terminals
    /// that break rows anew remains may stay, but nothing that is not ours is wiped.
    pub fn give_up(&mut self) {
        if self.resized.take().is_some() {
            // What was asked is answered late, or never: its answer is not that to the next question.
            self.top = RegionTop::Unknown;
            let above = self.drawn.cursor.0.min(self.rows - 1);
            self.drawn = LiveRegion { rows: Vec::new(), cursor: (above, 0) };
        }
    }

    /// What to write so that these lines stay above and this region stands below them.
    pub fn paint(&mut self, lasting: &[InkLine], region: LiveRegion) -> String {
        self.give_up();
        let region = self.fitted(region);
        if lasting.is_empty() && region == self.drawn {
            return String::new();
        }
        let mut out = BEGIN.to_owned();
        out.push_str(&self.wiped());
        for line in lasting {
            out.push_str(&line.drawn());
            out.push_str("\r\n");
        }
        let last = region.rows.len().saturating_sub(1);
        for (number, row) in region.rows.iter().enumerate() {
            out.push_str(&row.drawn());
            if number < last {
                out.push_str("\r\n");
            }
        }
        let up = last - region.cursor.0;
        out.push('\r');
        if up > 0 {
            out.push_str(&format!("\x1b[{up}A"));
        }
        if region.cursor.1 > 0 {
            out.push_str(&format!("\x1b[{}C", region.cursor.1));
        }
        out.push_str(END);
        let written = lasting.iter().map(|line| height(line, self.columns)).sum();
        self.top = self.top.moved(written, self.rows - 1 - last.min(self.rows - 1));
        self.drawn = region;
        out
    }

    /// Takes the region away: what follows is written where it stood.
    pub fn clear(&mut self) -> String {
        let out = self.wiped();
        self.drawn = LiveRegion::default();
        out
    }

    /// The whole screen is wiped; the next paint begins at its top.
    pub fn clear_screen(&mut self) -> String {
        self.drawn = LiveRegion::default();
        self.top = RegionTop::Known(0);
        self.resized = None;
        "\x1b[H\x1b[2J".to_owned()
    }

    fn wiped(&self) -> String {
        let up = self.drawn.cursor.0;
        let up = if up > 0 { format!("\x1b[{up}A") } else { String::new() };
        format!("\r{up}\x1b[J")
    }

    /// No row that the terminal would break, and no more rows than it has: those at the bottom are kept.
    fn fitted(&self, region: LiveRegion) -> LiveRegion {
        let surplus = region.rows.len().saturating_sub(self.rows - 1);
        let rows: Vec<InkLine> = region.rows.iter().skip(surplus).map(|row| row.cut(self.columns - 1)).collect();
        let last = rows.len().saturating_sub(1);
        let cursor = (region.cursor.0.saturating_sub(surplus).min(last), region.cursor.1.min(self.columns - 1));
        LiveRegion { rows, cursor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(rows: &[&str], cursor: (usize, usize)) -> LiveRegion {
        LiveRegion { rows: rows.iter().map(|row| InkLine::plain(*row)).collect(), cursor }
    }

    #[test]
    fn the_same_again_writes_nothing() {
        let mut painter = RegionPainter::new(20, 5);
        assert!(!painter.paint(&[], region(&["> a", "status"], (0, 3))).is_empty());
        assert_eq!(painter.paint(&[], region(&["> a", "status"], (0, 3))), "");
    }

    #[test]
    fn lines_that_stay_come_before_the_region_which_is_wiped_first() {
        let mut painter = RegionPainter::new(20, 5);
        painter.paint(&[], region(&["live", "> a", "status"], (1, 3)));
        let out = painter.paint(&[InkLine::plain("stays")], region(&["> a", "status"], (0, 3)));
        assert_eq!(out, format!("{BEGIN}\r\x1b[1A\x1b[Jstays\r\n> a\r\nstatus\r\x1b[1A\x1b[3C{END}"));
    }

    /// An answer that comes after its question was given up is not that to the next one.
    #[test]
    fn a_late_answer_is_not_taken_for_the_next_one() {
        let mut painter = RegionPainter::new(20, 9);
        painter.ask();
        painter.cursor_at(0, 0);
        painter.paint(&[], region(&["> a", "status"], (0, 3)));
        assert_eq!(painter.resize(18, 9), ASK);
        painter.give_up();
        assert_eq!(painter.resize(16, 9), ASK);
        painter.cursor_at(3, 3);
        assert!(painter.is_waiting(), "the first answer is about the size before");
        painter.cursor_at(4, 3);
        assert!(!painter.is_waiting() && !painter.is_asked());
    }

    #[test]
    fn a_region_is_never_larger_than_the_screen() {
        let mut painter = RegionPainter::new(10, 4);
        let out = painter.paint(&[], region(&["1", "2", "3", "4", "> a very long row", "status"], (4, 40)));
        assert!(out.contains("4\r\n> a very \r\nstatus") && !out.contains('3'), "{out:?}");
        painter.resize(5, 2);
        assert!(painter.paint(&[], region(&["> a", "s"], (0, 1))).contains("\r\x1b[1A\x1b[J"));
    }
}
