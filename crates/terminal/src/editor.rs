//! A line editor for messages of several lines: a value that takes keys and shows itself.

use outpost_wire::shown::{Form, Untrusted};
use unicode_segmentation::UnicodeSegmentation;

use crate::history::PromptHistory;
use crate::ink::{Ink, InkLine, width};
use crate::keys::TerminalKey;

/// A paste that is longer stands in the line as one piece, so that a log of a megabyte does not fill the screen.
const LONG_PASTE: usize = 1000;
const LONG_PASTE_LINES: usize = 8;

/// What the cursor moves over in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Atom {
    /// One character as people count them.
    Text(String),
    Break,
    Paste(String),
}

impl Atom {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Paste(text) => text,
            Self::Break => "\n",
        }
    }

    fn shown(&self) -> (Ink, String) {
        match self {
            Self::Break => (Ink::Plain, String::new()),
            Self::Text(text) if text == "\t" => (Ink::Plain, "    ".to_owned()),
            Self::Text(text) => (Ink::Plain, Untrusted::from(text).show(Form::Line)),
            Self::Paste(text) => (Ink::Note, format!("[pasted: {} lines, {} characters]", text.lines().count(), text.chars().count())),
        }
    }

    fn is_word(&self) -> bool {
        match self {
            Self::Text(text) => text.chars().all(|c| c.is_alphanumeric() || c == '_'),
            Self::Break => false,
            Self::Paste(_) => true,
        }
    }

    fn is_blank(&self) -> bool {
        match self {
            Self::Text(text) => text.trim().is_empty(),
            Self::Break => true,
            Self::Paste(_) => false,
        }
    }
}

#[derive(Debug, Default)]
pub struct LineEditor {
    atoms: Vec<Atom>,
    cursor: usize,
    /// What was cut last.
    cut: Vec<Atom>,
    pub history: PromptHistory,
    /// The entry of the history that is shown, and what was typed before.
    recalled: Option<(usize, Vec<Atom>)>,
    search: Option<HistorySearch>,
}

#[derive(Debug, Default)]
struct HistorySearch {
    query: String,
    found: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditorOutcome {
    /// Something changed, be it only the cursor.
    Changed,
    Submitted(String),
    /// The key means nothing here.
    Ignored,
}

/// The editor as it is drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditorView {
    pub rows: Vec<InkLine>,
    pub cursor: (usize, usize),
}

/// A row of the laid out text: its atoms, and where each begins.
struct Row {
    start: usize,
    /// The columns of the atoms, and of what follows the last one.
    columns: Vec<usize>,
}

impl LineEditor {
    pub fn new(history: PromptHistory) -> Self {
        Self { history, ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.atoms.is_empty()
    }

    pub fn is_searching(&self) -> bool {
        self.search.is_some()
    }

    pub fn text(&self) -> String {
        self.atoms.iter().map(Atom::text).collect()
    }

    pub fn set(&mut self, text: &str) {
        self.atoms = atoms(text);
        self.cursor = self.atoms.len();
        self.recalled = None;
        self.search = None;
    }

    /// Empties it, and tells what was in it.
    pub fn take(&mut self) -> String {
        let text = self.text();
        self.set("");
        text
    }

    /// What stands before the cursor, back to the last blank.
    pub fn word_before_cursor(&self) -> String {
        let start = self.word_start();
        self.atoms[start..self.cursor].iter().map(Atom::text).collect()
    }

    fn word_start(&self) -> usize {
        self.atoms[..self.cursor].iter().rposition(Atom::is_blank).map_or(0, |at| at + 1)
    }

    pub fn replace_word_before_cursor(&mut self, with: &str) {
        let start = self.word_start();
        let new = atoms(with);
        let end = start + new.len();
        self.atoms.splice(start..self.cursor, new);
        self.cursor = end;
    }

    /// `columns` is how wide the text is laid out, for moving up and down.
    pub fn key(&mut self, key: &TerminalKey, columns: usize) -> EditorOutcome {
        if self.search.is_some()
            && let Some(outcome) = self.search_key(key)
        {
            return outcome;
        }
        match key {
            TerminalKey::Char(c) => self.type_char(*c),
            TerminalKey::Paste(text) => self.paste(text),
            TerminalKey::NewLine => self.insert(vec![Atom::Break]),
            TerminalKey::Enter => return self.enter(),
            TerminalKey::Backspace | TerminalKey::Ctrl('h') if self.cursor > 0 => {
                self.cursor -= 1;
                self.atoms.remove(self.cursor);
            }
            TerminalKey::Delete | TerminalKey::Ctrl('d') if self.cursor < self.atoms.len() => drop(self.atoms.remove(self.cursor)),
            TerminalKey::Left | TerminalKey::Ctrl('b') => self.cursor = self.cursor.saturating_sub(1),
            TerminalKey::Right | TerminalKey::Ctrl('f') => self.cursor = (self.cursor + 1).min(self.atoms.len()),
            TerminalKey::WordLeft | TerminalKey::Alt('b') => self.cursor = self.word_left(),
            TerminalKey::WordRight | TerminalKey::Alt('f') => self.cursor = self.word_right(),
            TerminalKey::Home | TerminalKey::Ctrl('a') => self.cursor = self.line_start(),
            TerminalKey::End | TerminalKey::Ctrl('e') => self.cursor = self.line_end(),
            TerminalKey::Ctrl('k') => self.cut_range(self.cursor, self.line_end()),
            TerminalKey::Ctrl('u') => self.cut_range(self.line_start(), self.cursor),
            TerminalKey::Ctrl('w') => self.cut_range(self.blank_left(), self.cursor),
            TerminalKey::Alt('d') => self.cut_range(self.cursor, self.word_right()),
            TerminalKey::Ctrl('y') => self.insert(self.cut.clone()),
            TerminalKey::Up | TerminalKey::Ctrl('p') => self.up(columns),
            TerminalKey::Down | TerminalKey::Ctrl('n') => self.down(columns),
            TerminalKey::Ctrl('r') => self.search = Some(HistorySearch::default()),
            _ => return EditorOutcome::Ignored,
        }
        EditorOutcome::Changed
    }

    fn enter(&mut self) -> EditorOutcome {
        // As in a shell: a line that ends with a backslash goes on.
        if self.cursor == self.atoms.len() && self.atoms.last().is_some_and(|last| *last == Atom::Text("\\".into())) {
            self.atoms.pop();
            self.atoms.push(Atom::Break);
            return EditorOutcome::Changed;
        }
        let text = self.take();
        self.history.push(text.clone());
        EditorOutcome::Submitted(text)
    }

    fn type_char(&mut self, c: char) {
        // A mark that belongs to the character before it becomes a part of it.
        if let Some(Atom::Text(last)) = self.cursor.checked_sub(1).and_then(|at| self.atoms.get_mut(at)) {
            let joined = format!("{last}{c}");
            if !last.is_ascii() | !c.is_ascii() && joined.graphemes(true).count() == 1 {
                *last = joined;
                return;
            }
        }
        self.insert(vec![Atom::Text(c.to_string())]);
    }

    fn paste(&mut self, text: &str) {
        let is_long = text.len() > LONG_PASTE || text.lines().count() > LONG_PASTE_LINES;
        self.insert(if is_long { vec![Atom::Paste(text.to_owned())] } else { atoms(text) });
    }

    fn insert(&mut self, new: Vec<Atom>) {
        let end = self.cursor + new.len();
        self.atoms.splice(self.cursor..self.cursor, new);
        self.cursor = end;
    }

    fn cut_range(&mut self, start: usize, end: usize) {
        let cut: Vec<Atom> = self.atoms.drain(start..end).collect();
        if !cut.is_empty() {
            self.cut = cut;
        }
        self.cursor = start;
    }

    fn line_start(&self) -> usize {
        self.atoms[..self.cursor].iter().rposition(|atom| *atom == Atom::Break).map_or(0, |at| at + 1)
    }

    fn line_end(&self) -> usize {
        self.atoms[self.cursor..].iter().position(|atom| *atom == Atom::Break).map_or(self.atoms.len(), |at| self.cursor + at)
    }

    fn word_left(&self) -> usize {
        let end = self.atoms[..self.cursor].iter().rposition(Atom::is_word).map_or(0, |at| at + 1);
        self.atoms[..end].iter().rposition(|atom| !atom.is_word()).map_or(0, |at| at + 1)
    }

    fn word_right(&self) -> usize {
        let from =
            |start: usize, is_end: fn(&Atom) -> bool| self.atoms[start..].iter().position(is_end).map_or(self.atoms.len(), |at| start + at);
        from(from(self.cursor, Atom::is_word), |atom| !atom.is_word())
    }

    fn blank_left(&self) -> usize {
        let end = self.atoms[..self.cursor].iter().rposition(|atom| !atom.is_blank()).map_or(0, |at| at + 1);
        self.atoms[..end].iter().rposition(Atom::is_blank).map_or(0, |at| at + 1)
    }

    fn up(&mut self, columns: usize) {
        let rows = self.layout(columns);
        let (row, column) = self.place(&rows);
        match row.checked_sub(1) {
            Some(above) => self.cursor = rows[above].nearest(column),
            None => self.recall_older(),
        }
    }

    fn down(&mut self, columns: usize) {
        let rows = self.layout(columns);
        let (row, column) = self.place(&rows);
        match rows.get(row + 1) {
            Some(below) => self.cursor = below.nearest(column),
            None => self.recall_newer(),
        }
    }

    fn recall_older(&mut self) {
        let older = self.recalled.as_ref().map_or(self.history.len(), |(at, _)| *at).checked_sub(1);
        let Some((at, entry)) = older.and_then(|at| Some((at, self.history.get(at)?.to_owned()))) else { return };
        let draft = self.recalled.take().map_or_else(|| std::mem::take(&mut self.atoms), |(_, draft)| draft);
        self.set(&entry);
        self.recalled = Some((at, draft));
    }

    fn recall_newer(&mut self) {
        let Some((at, draft)) = self.recalled.take() else { return };
        match self.history.get(at + 1).map(str::to_owned) {
            Some(entry) => {
                self.set(&entry);
                self.recalled = Some((at + 1, draft));
            }
            None => {
                self.cursor = draft.len();
                self.atoms = draft;
            }
        }
    }

    /// Nothing means that the search is over and the key is for the editor.
    fn search_key(&mut self, key: &TerminalKey) -> Option<EditorOutcome> {
        let search = self.search.as_mut()?;
        match key {
            TerminalKey::Char(c) => {
                search.query.push(*c);
                search.found = self.history.find_before(search.found.map_or(self.history.len(), |at| at + 1), &search.query);
            }
            TerminalKey::Backspace => {
                search.query.pop();
                search.found = self.history.find_before(self.history.len(), &search.query).filter(|_| !search.query.is_empty());
            }
            TerminalKey::Ctrl('r') => {
                let before = search.found.unwrap_or(self.history.len());
                search.found = self.history.find_before(before, &search.query).or(search.found);
            }
            TerminalKey::Ctrl('g' | 'c') => self.search = None,
            TerminalKey::Escape => self.accept_found(),
            _ => {
                self.accept_found();
                return None;
            }
        }
        Some(EditorOutcome::Changed)
    }

    fn accept_found(&mut self) {
        let found = self.search.take().and_then(|search| self.history.get(search.found?).map(str::to_owned));
        if let Some(found) = found {
            self.set(&found);
        }
    }

    fn layout(&self, columns: usize) -> Vec<Row> {
        let columns = columns.max(4);
        let mut rows = vec![Row { start: 0, columns: vec![0] }];
        let mut used = 0;
        for (at, atom) in self.atoms.iter().enumerate() {
            let wide = width(&atom.shown().1);
            if used + wide > columns && used > 0 {
                rows.push(Row { start: at, columns: vec![0] });
                used = 0;
            }
            used += wide;
            if let Some(row) = rows.last_mut() {
                row.columns.push(used);
            }
            if *atom == Atom::Break {
                rows.push(Row { start: at + 1, columns: vec![0] });
                used = 0;
            }
        }
        rows
    }

    /// Row and column of the cursor.
    fn place(&self, rows: &[Row]) -> (usize, usize) {
        let row = rows.iter().rposition(|row| row.start <= self.cursor).unwrap_or(0);
        let column = rows.get(row).and_then(|row| row.columns.get(self.cursor - row.start)).copied().unwrap_or(0);
        (row, column)
    }

    /// At most so many rows around the cursor, the first of them behind a mark.
    pub fn view(&self, mark: &InkLine, columns: usize, most: usize) -> EditorView {
        if let Some(search) = &self.search {
            let found = search.found.and_then(|at| self.history.get(at)).unwrap_or_default().lines().next().unwrap_or_default();
            let head = InkLine::of(Ink::Note, "search: ").with(Ink::Plain, Untrusted::from(&search.query).show(Form::Line));
            let cursor = head.width();
            let row = head.with(Ink::Quiet, format!("  {}", Untrusted::from(found).show(Form::Line)));
            return EditorView { rows: vec![row.cut(columns)], cursor: (0, cursor.min(columns)) };
        }
        let indent = mark.width();
        let laid = self.layout(columns.saturating_sub(indent));
        let (row, column) = self.place(&laid);
        let most = most.max(1);
        let first = (row + 1).saturating_sub(most);
        let rows = laid.iter().enumerate().skip(first).take(most).map(|(number, row)| {
            let end = laid.get(number + 1).map_or(self.atoms.len(), |next| next.start);
            let mut line = if number == 0 { mark.clone() } else { InkLine::plain(" ".repeat(indent)) };
            for atom in &self.atoms[row.start..end] {
                let (ink, text) = atom.shown();
                line.push(ink, text);
            }
            line
        });
        EditorView { rows: rows.collect(), cursor: (row - first, indent + column) }
    }
}

impl Row {
    /// The atom at a column, or the last one before it. What follows the end of a line belongs to the next row.
    fn nearest(&self, column: usize) -> usize {
        let last = self.columns.len().saturating_sub(1);
        let index = self.columns.iter().rposition(|own| *own <= column).unwrap_or(0);
        // After the last atom of a row that goes on is the first of the next one.
        self.start + index.min(last)
    }
}

fn atoms(text: &str) -> Vec<Atom> {
    text.graphemes(true).map(|piece| if matches!(piece, "\n" | "\r\n" | "\r") { Atom::Break } else { Atom::Text(piece.into()) }).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::TerminalKey::*;
    use super::*;
    use crate::keys::KeyDecoder;

    fn typed(editor: &mut LineEditor, keys: &str) -> Vec<String> {
        let mut decoder = KeyDecoder::default();
        let mut sent = Vec::new();
        for key in decoder.feed(keys.as_bytes()).into_iter().chain(decoder.settle()) {
            if let EditorOutcome::Submitted(text) = editor.key(&key, 18) {
                sent.push(text);
            }
        }
        sent
    }

    fn drawn(editor: &LineEditor) -> (Vec<String>, (usize, usize)) {
        let view = editor.view(&InkLine::plain("> "), 20, 5);
        (view.rows.iter().map(InkLine::text).collect(), view.cursor)
    }

    #[test]
    fn keys_edit_the_line() {
        let mut editor = LineEditor::default();
        for (keys, text, cursor) in [
            ("hello wrld", "hello wrld", 12),
            ("\x1b[D\x1b[D\x1b[Do", "hello world", 10),
            ("\x01\x1b[3~H", "Hello world", 3),
            ("\x05!", "Hello world!", 14),
            ("\x17", "Hello ", 8),
            ("\x19", "Hello world!", 14),
            ("\x1bb\x0b", "Hello ", 8),
            ("\x15", "", 2),
            ("日本", "日本", 6),
            ("\x7f", "日", 4),
            ("e\u{301}", "日e\u{301}", 5),
            ("\x7f", "日", 4),
        ] {
            assert!(typed(&mut editor, keys).is_empty());
            assert_eq!((editor.text(), drawn(&editor).1), (text.to_owned(), (0, cursor)), "{keys:?}");
        }
    }

    #[test]
    fn several_lines_wrap_and_the_cursor_moves_through_them() {
        let mut editor = LineEditor::default();
        typed(&mut editor, "one\x1b\rtwo two two two two two\\\rend");
        assert_eq!(editor.text(), "one\ntwo two two two two two\nend");
        let (rows, cursor) = drawn(&editor);
        assert_eq!(
            (rows, cursor),
            (vec!["> one".into(), "  two two two two t".to_owned() + "w", "  o two".into(), "  end".into()], (3, 5))
        );
        typed(&mut editor, "\x1b[A\x1b[A");
        assert_eq!(drawn(&editor).1, (1, 5));
        assert_eq!(typed(&mut editor, "\r"), ["one\ntwo two two two two two\nend"]);
        assert!(editor.is_empty());
    }

    #[test]
    fn history_comes_back_and_can_be_searched() {
        let mut editor = LineEditor::new(PromptHistory::new(["cargo build", "git status", "cargo test"].map(str::to_owned)));
        typed(&mut editor, "draft\x1b[A\x1b[A");
        assert_eq!(editor.text(), "git status");
        typed(&mut editor, "\x1b[B\x1b[B");
        assert_eq!(editor.text(), "draft");
        typed(&mut editor, "\x12cargo");
        assert!(editor.is_searching() && drawn(&editor).0[0].contains("search: cargo  cargo"), "{:?}", drawn(&editor));
        assert_eq!(typed(&mut editor, "\x12\r"), ["cargo build"]);
        typed(&mut editor, "\x12status\x1b");
        assert_eq!(editor.text(), "git status");
        assert_eq!(editor.history.get(3), Some("cargo build"), "what is sent again is the newest");
    }

    #[test]
    fn a_long_paste_is_one_piece() {
        let mut editor = LineEditor::default();
        let long = "x".repeat(1 << 20);
        editor.key(&Paste("short\nline".into()), 20);
        editor.key(&Paste(long.clone()), 20);
        assert!(drawn(&editor).0.concat().contains("[pasted: 1 lines, 1048576 characters]"));
        editor.key(&Backspace, 20);
        assert_eq!(editor.text(), "short\nline");
        editor.key(&Paste(long.clone()), 20);
        assert_eq!(editor.key(&Enter, 20), EditorOutcome::Submitted(format!("short\nline{long}")));
    }

    #[test]
    fn a_word_can_be_completed() {
        let mut editor = LineEditor::default();
        typed(&mut editor, "see @sr and\x1bb\x1b[D");
        assert_eq!(editor.word_before_cursor(), "@sr");
        editor.replace_word_before_cursor("@src/main.rs");
        assert_eq!((editor.text(), drawn(&editor).1), ("see @src/main.rs and".to_owned(), (0, 18)));
    }

    proptest! {
        #[test]
        fn no_keys_break_it(keys in prop::collection::vec(prop::sample::select(vec![
            "a", "é", "日", " ", "\r", "\x1b\r", "\\", "\x7f", "\x1b[3~", "\x1b[A", "\x1b[B", "\x1b[C", "\x1b[D", "\x01", "\x05", "\x0b", "\x15",
            "\x17", "\x19", "\x12", "\x07", "\x1bb", "\x1bf", "\x1bd", "\u{301}", "\x1b[200~p\nq\x1b[201~",
        ]), 0..60), columns in 1_usize..30) {
            let mut editor = LineEditor::default();
            let mut decoder = KeyDecoder::default();
            for key in keys.iter().flat_map(|keys| decoder.feed(keys.as_bytes())).collect::<Vec<_>>() {
                editor.key(&key, columns);
                let view = editor.view(&InkLine::plain("> "), columns + 2, 4);
                prop_assert!(view.cursor.0 < view.rows.len() && view.rows.len() <= 4);
                prop_assert!(editor.cursor <= editor.atoms.len());
            }
        }
    }
}
