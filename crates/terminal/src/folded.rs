//! The output of a command as people see it: its first lines as they come, its last lines at its end, and how much is in between.
//!
//! Memory is bounded whatever a command prints: of a line only its beginning is kept, and only the last lines wait.

use std::collections::VecDeque;

use outpost_wire::shown::{Form, Showing};

use crate::beginning::ShownBeginning;

/// So many of the first and of the last lines are shown.
pub const HEAD: usize = 8;
pub const TAIL: usize = 8;
/// So many bytes of a line are shown.
const LONGEST: usize = 2000;

#[derive(Default)]
pub struct FoldedOutput {
    line: BegunLine,
    /// Lines that are over; the one that was begun is not counted.
    lines: u64,
    shown: ShownBeginning,
    /// The last lines, and how long each was.
    tail: VecDeque<(String, u64)>,
    /// Bytes of the lines that were shown as they came.
    head_bytes: u64,
}

/// What is left to show when a command has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct FoldedEnd {
    /// Lines and bytes between what was shown and what is shown now.
    pub left_out: Option<(u64, u64)>,
    pub tail: Vec<String>,
}

/// A line that is not over: what is kept of it.
#[derive(Default)]
struct BegunLine {
    bytes: Vec<u8>,
    /// All of its bytes.
    length: u64,
    /// Not kept.
    cut: u64,
    /// A carriage return came before what is kept, as progress bars write it.
    was_overwritten: bool,
    returned: bool,
}

impl FoldedOutput {
    /// Takes more output; returns the lines to show now.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.shown.push(bytes);
        let mut shown = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.push(piece);
            if piece.ends_with(b"\n") {
                shown.extend(self.end_line());
            }
        }
        shown
    }

    fn end_line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        self.lines += 1;
        if self.lines <= HEAD as u64 {
            self.head_bytes += line.length;
            return Some(line.shown());
        }
        self.tail.push_back((line.shown(), line.length));
        if self.tail.len() > TAIL {
            self.tail.pop_front();
        }
        None
    }

    /// The command has ended.
    pub fn end(mut self) -> FoldedEnd {
        let mut tail: Vec<String> = Vec::new();
        if !self.line.is_empty() {
            tail.extend(self.end_line());
        }
        let lines = self.lines.saturating_sub((HEAD + self.tail.len()) as u64);
        let bytes = self.bytes() - self.head_bytes - self.tail.iter().map(|(_, length)| length).sum::<u64>();
        let left_out = (lines > 0).then_some((lines, bytes));
        tail.extend(self.tail.into_iter().map(|(line, _)| line));
        FoldedEnd { left_out, tail }
    }

    /// The line that was printed last, be it whole or not.
    pub fn last(&self) -> Option<String> {
        if self.line.is_empty() { self.tail.back().map(|(line, _)| line.clone()) } else { Some(self.line.shown()) }
    }

    /// The last lines after the first ones, and the one that was begun.
    pub fn waiting(&self) -> Vec<String> {
        let begun = (!self.line.is_empty()).then(|| self.line.shown());
        self.tail.iter().map(|(line, _)| line.clone()).chain(begun).collect()
    }

    pub fn lines(&self) -> u64 {
        self.lines + u64::from(!self.line.is_empty())
    }

    pub fn bytes(&self) -> u64 {
        self.shown.bytes()
    }

    /// What did not come of the whole output, if all that came is its beginning.
    pub fn missed<'a>(&self, whole: &'a str) -> Option<&'a str> {
        self.shown.rest_of(whole)
    }
}

impl BegunLine {
    fn is_empty(&self) -> bool {
        self.length == 0
    }

    fn push(&mut self, piece: &[u8]) {
        self.length += piece.len() as u64;
        let piece = piece.strip_suffix(b"\n").unwrap_or(piece);
        for (number, part) in piece.split(|byte| *byte == b'\r').enumerate() {
            self.returned |= number > 0;
            if part.is_empty() {
                continue;
            }
            // A terminal would write over the line; what it ends as is what is shown, with a mark that there was more.
            if std::mem::take(&mut self.returned) {
                self.bytes.clear();
                self.cut = 0;
                self.was_overwritten = true;
            }
            let kept = part.len().min(LONGEST.saturating_sub(self.bytes.len()));
            self.bytes.extend_from_slice(&part[..kept]);
            self.cut += (part.len() - kept) as u64;
        }
    }

    fn shown(&self) -> String {
        let mut shown = if self.was_overwritten { "<U+000D>".to_owned() } else { String::new() };
        let mut showing = Showing::new(Form::Text);
        showing.bytes(&self.bytes, &mut shown);
        // A character that was cut in two is a part of what is cut off.
        if self.cut == 0 {
            showing.end(&mut shown);
        } else {
            shown.push_str(&format!(" … {} more bytes", self.cut));
        }
        shown
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn fold(text: &[u8], piece: usize) -> (Vec<String>, FoldedEnd) {
        let mut output = FoldedOutput::default();
        let head = text.chunks(piece).flat_map(|bytes| output.push(bytes)).collect();
        (head, output.end())
    }

    #[test]
    fn short_output_is_shown_whole_and_as_it_comes() {
        for piece in [1, 3, 1000] {
            let (head, end) = fold(b"one\ntwo\r\nthr\xffee", piece);
            assert_eq!(head, ["one", "two"]);
            assert_eq!(end, FoldedEnd { left_out: None, tail: vec!["thr<0xFF>ee".into()] });
        }
    }

    #[test]
    fn head_tail_and_true_counts() {
        let text: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        let (head, end) = fold(text.as_bytes(), 7);
        assert_eq!((head.first().unwrap().as_str(), head.len()), ("line 0", HEAD));
        assert_eq!((end.tail.last().unwrap().as_str(), end.tail.len()), ("line 999", TAIL));
        let between: usize = (HEAD..1000 - TAIL).map(|n| format!("line {n}\n").len()).sum();
        assert_eq!(end.left_out, Some((1000 - (HEAD + TAIL) as u64, between as u64)));
        // No line too many is said to be left out.
        let exact: String = (0..HEAD + TAIL).map(|n| format!("{n}\n")).collect();
        assert_eq!(fold(exact.as_bytes(), 5).1.left_out, None);
    }

    #[test]
    fn a_line_of_ten_megabytes_takes_two_kilobytes() {
        let mut output = FoldedOutput::default();
        for _ in 0..640 {
            assert!(output.push(&[b'x'; 16 << 10]).is_empty());
        }
        assert!(output.line.bytes.len() <= LONGEST && output.lines() == 1 && output.bytes() == 640 << 14);
        let end = output.end();
        assert!(end.tail[0].ends_with(&format!("x … {} more bytes", (640 << 14) - LONGEST)), "{}", end.tail[0].len());
    }

    #[test]
    fn a_progress_bar_ends_as_a_terminal_would_show_it() {
        let (head, _) = fold(b"\r 10%\r 20%\r100% done\nnext\x1b[2J\n", 4);
        assert_eq!(head, ["<U+000D>100% done", "next<U+001B>[2J"]);
    }
}
