//! The rows in which something is drawn on a terminal: our own words, and texts of others that cannot be taken for them.
//!
//! A row that begins with the frame's bar is ours. Texts of others never show that bar. Those that are asked about are broken into
//! rows here, and not by the terminal, so that each of them begins with a sign of whose it is.

use outpost_wire::shown::{FRAME, Form, Untrusted};

/// How wide the names of facts are.
const NAME: usize = 15;

/// Something to draw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FrameRow {
    /// Our own words, with shown parts in them.
    Own(String),
    /// What we know of something, under its name.
    Fact(&'static str, String),
    /// A shown text of others, one line of it.
    Theirs(String),
}

/// A text of others as a part of a line.
pub(crate) fn line(text: &str) -> String {
    Untrusted::from(text).show(Form::Line)
}

/// A path, a name or a command of others as a part of a line.
pub(crate) fn word(text: &str) -> String {
    Untrusted::from(text).show(Form::Word)
}

/// A text of others, line by line. After the last end of a line of what is only said there is no further line.
pub(crate) fn lines(text: &str, form: Form) -> Vec<String> {
    let shown = Untrusted::from(text).show(form);
    let whole = if form == Form::Text { shown.strip_suffix('\n').unwrap_or(&shown) } else { &shown };
    whole.split('\n').map(|line| line.trim_end_matches('\r').to_owned()).collect()
}

/// As much of a shown text as this, with the number of characters that are left out.
pub(crate) fn cut(shown: &str, most: usize) -> String {
    match shown.char_indices().nth(most) {
        Some((at, _)) => format!("{} … {} more characters", &shown[..at], shown[at..].chars().count()),
        None => shown.to_owned(),
    }
}

/// A row as it is drawn on a terminal of so many columns.
pub(crate) fn draw(row: &FrameRow, columns: usize) -> Vec<String> {
    let (first, next, text) = match row {
        FrameRow::Own(text) => return vec![format!("{FRAME} {text}")],
        FrameRow::Fact(name, text) => (format!("{FRAME} {name:<NAME$}"), " ".repeat(NAME + 2), text),
        FrameRow::Theirs(text) => ("│ ".to_owned(), "│ ".to_owned(), text),
    };
    let room = columns.saturating_sub(next.chars().count() + 1).max(16);
    let begin = |number: usize| if number == 0 { &first } else { &next };
    wrap(text, room).into_iter().enumerate().map(|(number, piece)| format!("{}{piece}", begin(number))).collect()
}

/// A row as it is written without a terminal.
pub(crate) fn plain(row: &FrameRow) -> String {
    match row {
        FrameRow::Own(text) | FrameRow::Theirs(text) => text.clone(),
        FrameRow::Fact(name, text) => format!("{name:<NAME$}{text}"),
    }
}

/// Pieces that are no wider than this, broken anywhere: a text that is broken at its spaces cannot be read back.
fn wrap(text: &str, width: usize) -> Vec<&str> {
    let (mut pieces, mut begin, mut used) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        if used + wide(c) > width {
            pieces.push(&text[begin..at]);
            (begin, used) = (at, 0);
        }
        used += wide(c);
    }
    pieces.push(&text[begin..]);
    pieces
}

/// As much of a shown text as fits into so many columns, on one line.
pub(crate) fn fitting(text: &str, width: usize) -> String {
    let line = text.lines().next().unwrap_or_default().replace('\t', " ");
    wrap(&line, width).first().map(|first| (*first).to_owned()).unwrap_or_default()
}

/// The most columns that a character may take. Rather too many: a row that is too short does no harm.
const fn wide(c: char) -> usize {
    match c {
        '\t' => 8,
        ' '..='~' => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_of_others_looks_like_ours() {
        let evil = format!("ls{}{FRAME} [prod] $ ls\n{FRAME} Allow? [y]es", " ".repeat(200));
        let rows: Vec<FrameRow> = lines(&evil, Form::Script).into_iter().map(FrameRow::Theirs).collect();
        let drawn: Vec<String> = rows.iter().flat_map(|row| draw(row, 80)).collect();
        assert!(drawn.iter().all(|row| row.starts_with("│ ") && !row.contains(FRAME)), "{drawn:?}");
        assert!(drawn.iter().all(|row| row.chars().count() <= 79));
        let fact = FrameRow::Fact("agent's reason", line(&format!("{}{FRAME} sandbox", "x ".repeat(100))));
        let drawn = draw(&fact, 80);
        assert!(drawn[0].starts_with(&format!("{FRAME} agent's reason x")) && drawn.len() > 2, "{drawn:?}");
        assert!(drawn.iter().skip(1).all(|row| row.starts_with(&" ".repeat(NAME + 2)) && !row.contains(FRAME)), "{drawn:?}");
    }

    #[test]
    fn what_is_left_out_is_counted() {
        assert_eq!(cut("abcdef", 4), "abcd … 2 more characters");
        assert_eq!(cut("abcd", 4), "abcd");
        assert_eq!(
            (lines("a\nb\n", Form::Text), lines("a\n", Form::Script)),
            (vec!["a".into(), "b".into()], vec!["a".into(), String::new()])
        );
        assert_eq!(lines("a\r\nb\rc", Form::Text), ["a", "b<U+000D>c"]);
    }
}
