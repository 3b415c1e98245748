//! Lines with inks: what is drawn, before it is known how.

use outpost_wire::shown::guard;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// How wide a tab is drawn.
const TAB: &str = "    ";

/// What a piece of text is, which decides how it looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ink {
    #[default]
    Plain,
    Quiet,
    Strong,
    Emphasis,
    Note,
    Bad,
    Good,
    Heading,
    Code,
    Link,
    Keyword,
    Literal,
    Comment,
    Added,
    Removed,
    Hunk,
    /// What is chosen in a menu.
    Chosen,
}

impl Ink {
    /// Parameters of the terminal's `m` sequence, from its own sixteen colours: they fit light and dark backgrounds.
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Quiet | Self::Comment => "2",
            Self::Strong => "1",
            Self::Emphasis => "3",
            Self::Note => "33",
            Self::Bad | Self::Removed => "31",
            Self::Good | Self::Added => "32",
            Self::Heading => "1;36",
            Self::Code | Self::Literal => "36",
            Self::Link => "4",
            Self::Keyword => "35",
            Self::Hunk => "34",
            Self::Chosen => "7",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InkSpan {
    pub ink: Ink,
    pub text: String,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InkLine(pub Vec<InkSpan>);

impl InkLine {
    pub fn of(ink: Ink, text: impl Into<String>) -> Self {
        Self(vec![InkSpan { ink, text: text.into() }])
    }

    pub fn plain(text: impl Into<String>) -> Self {
        Self::of(Ink::Plain, text)
    }

    pub fn push(&mut self, ink: Ink, text: impl Into<String>) {
        let text = text.into();
        match self.0.last_mut().filter(|last| last.ink == ink) {
            Some(last) => last.text.push_str(&text),
            None if text.is_empty() => {}
            None => self.0.push(InkSpan { ink, text }),
        }
    }

    #[must_use]
    pub fn with(mut self, ink: Ink, text: impl Into<String>) -> Self {
        self.push(ink, text);
        self
    }

    pub fn text(&self) -> String {
        self.0.iter().map(|span| span.text.as_str()).collect()
    }

    pub fn width(&self) -> usize {
        self.0.iter().map(|span| width(&span.text)).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|span| span.text.is_empty())
    }

    /// As a terminal draws it. Whatever was not made visible before is marked here; only our own inks are sequences.
    pub fn drawn(&self) -> String {
        let mut drawn = String::new();
        for InkSpan { ink, text } in &self.0 {
            let text = guard(text).replace(['\n', '\r'], " ").replace('\t', TAB);
            match ink.code() {
                "" => drawn.push_str(&text),
                code => drawn.push_str(&format!("\x1b[{code}m{text}\x1b[0m")),
            }
        }
        drawn
    }

    /// As much of it as fits.
    #[must_use]
    pub fn cut(&self, columns: usize) -> Self {
        let (mut line, mut used) = (Self::default(), 0);
        for InkSpan { ink, text } in &self.0 {
            for piece in text.graphemes(true) {
                used += width(piece);
                if used > columns {
                    return line;
                }
                line.push(*ink, piece);
            }
        }
        line
    }

    /// Rows of at most so many columns, broken at blanks where there are some; all but the first begin with this.
    pub fn wrapped(&self, columns: usize, indent: &Self) -> Vec<Self> {
        let columns = columns.max(8);
        let pieces: Vec<(Ink, &str)> =
            self.0.iter().flat_map(|span| span.text.split_word_bounds().map(move |piece| (span.ink, piece))).collect();
        let (mut rows, mut row, mut used) = (Vec::new(), Self::default(), 0);
        for (ink, piece) in pieces {
            let wide = width(piece);
            if used + wide > columns && used > indent.width() {
                rows.push(std::mem::replace(&mut row, indent.clone()));
                used = indent.width();
                if piece.trim().is_empty() {
                    continue;
                }
            }
            if used + wide <= columns {
                row.push(ink, piece);
                used += wide;
                continue;
            }
            // Longer than a row: broken anywhere.
            for part in piece.graphemes(true) {
                if used + width(part) > columns {
                    rows.push(std::mem::replace(&mut row, indent.clone()));
                    used = indent.width();
                }
                row.push(ink, part);
                used += width(part);
            }
        }
        rows.push(row);
        rows
    }
}

/// How many columns a text takes.
pub fn width(text: &str) -> usize {
    let tabs = text.matches('\t').count();
    text.width() + tabs * (TAB.len() - '\t'.to_string().width())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!((width("日本"), width("e\u{301}"), width("a\tb")), (4, 1, 6));
        let line = InkLine::plain("日本語のテキスト");
        let rows = line.wrapped(8, &InkLine::default());
        assert_eq!(rows.iter().map(InkLine::width).collect::<Vec<_>>(), [8, 8]);
        assert_eq!(line.cut(5).text(), "日本");
    }

    #[test]
    fn rows_break_at_blanks_and_keep_their_inks() {
        let line = InkLine::of(Ink::Strong, "one two").with(Ink::Plain, " three four");
        let rows = line.wrapped(9, &InkLine::plain("  "));
        assert_eq!(rows.iter().map(InkLine::text).collect::<Vec<_>>(), ["one two ", "  three ", "  four"].map(str::to_owned).to_vec());
        assert_eq!(rows[0].0[0].ink, Ink::Strong);
    }

    #[test]
    fn nothing_that_a_terminal_obeys_gets_through() {
        let drawn = InkLine::of(Ink::Code, "a\x1b[2Jb\u{202e}\nc").drawn();
        assert_eq!(drawn, "\x1b[36ma<U+001B>[2Jb<U+202E> c\x1b[0m");
    }
}
