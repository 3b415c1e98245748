//! Markdown as a terminal shows it, also while it still streams.
//!
//! What a model writes is made visible first and read as Markdown then, so that nothing in it is obeyed. Addresses of links are
//! always shown: a link says one thing and leads somewhere else otherwise.

use outpost_wire::shown::{Form, Showing};
use pulldown_cmark::{Alignment, CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use crate::highlight::Highlighter;
use crate::ink::{Ink, InkLine, width};

/// A block that is longer is shown in pieces: it would be read anew with every word otherwise.
const LONGEST_BLOCK: usize = 16 << 10;

/// A whole text.
pub fn rendered(text: &str, columns: usize) -> Vec<InkLine> {
    let mut stream = MarkdownStream::default();
    stream.push(text);
    stream.finish(columns)
}

/// A text that comes in pieces. Blocks that are over are given out once; the last one may still change.
#[derive(Debug)]
pub struct MarkdownStream {
    showing: Showing,
    /// What was made visible and is not given out yet.
    rest: String,
    /// The fence of a code block whose beginning was given out.
    fence: Option<String>,
    /// Something was given out: a blank line comes between blocks.
    has_begun: bool,
}

impl Default for MarkdownStream {
    fn default() -> Self {
        Self { showing: Showing::new(Form::Text), rest: String::new(), fence: None, has_begun: false }
    }
}

impl MarkdownStream {
    pub fn push(&mut self, delta: &str) {
        self.showing.text(delta, &mut self.rest);
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty() && !self.has_begun
    }

    /// The blocks that are over.
    pub fn finished_blocks(&mut self, columns: usize) -> Vec<InkLine> {
        let source = self.source();
        let prefix = source.len() - self.rest.len();
        // A line that is not whole may still turn out to belong to the block above it.
        let starts = block_starts(&source[..source.rfind('\n').map_or(0, |at| at + 1)]);
        let mut cut = starts.last().copied().unwrap_or(0).saturating_sub(prefix);
        let mut fence = None;
        if self.rest.len() - cut > LONGEST_BLOCK {
            let last = &source[starts.last().copied().unwrap_or(0)..];
            fence = last.lines().next().filter(|line| line.starts_with("```") || line.starts_with("~~~")).map(|line| format!("{line}\n"));
            cut = self.rest.rfind('\n').map_or(self.rest.len(), |at| at + 1);
        }
        if cut == 0 {
            return Vec::new();
        }
        let done: String = self.rest.drain(..cut).collect();
        let lines = self.render(&format!("{}{done}", self.fence.as_deref().unwrap_or_default()), columns);
        self.fence = fence;
        self.has_begun |= !lines.is_empty();
        lines
    }

    /// What has been begun, as it is now.
    pub fn begun(&self, columns: usize) -> Vec<InkLine> {
        self.render(&self.source(), columns)
    }

    /// The end of the text.
    pub fn finish(&mut self, columns: usize) -> Vec<InkLine> {
        self.showing.end(&mut self.rest);
        let lines = self.begun(columns);
        *self = Self::default();
        lines
    }

    fn source(&self) -> String {
        format!("{}{}", self.fence.as_deref().unwrap_or_default(), self.rest)
    }

    fn render(&self, source: &str, columns: usize) -> Vec<InkLine> {
        let mut lines = Renderer::new(columns).render(source);
        if self.has_begun && self.fence.is_none() && !lines.is_empty() {
            lines.insert(0, InkLine::default());
        }
        lines
    }
}

/// Where blocks begin that stand on their own.
fn block_starts(source: &str) -> Vec<usize> {
    let (mut depth, mut starts) = (0_usize, Vec::new());
    for (event, range) in Parser::new_ext(source, options()).into_offset_iter() {
        match event {
            Event::Start(_) => {
                if depth == 0 {
                    starts.push(range.start);
                }
                depth += 1;
            }
            Event::End(_) => depth = depth.saturating_sub(1),
            Event::Rule | Event::Html(_) if depth == 0 => starts.push(range.start),
            _ => {}
        }
    }
    starts
}

fn options() -> Options {
    Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS
}

struct Renderer {
    columns: usize,
    lines: Vec<InkLine>,
    line: InkLine,
    inks: Vec<Ink>,
    /// The numbers of lists, and what their rows begin with.
    lists: Vec<Option<u64>>,
    indents: Vec<String>,
    /// What the next row begins with instead of its indent.
    mark: Option<String>,
    code: Option<Highlighter>,
    link: Option<(String, usize)>,
    table: Option<Table>,
}

#[derive(Default)]
struct Table {
    alignments: Vec<Alignment>,
    rows: Vec<Vec<InkLine>>,
}

impl Renderer {
    fn new(columns: usize) -> Self {
        Self {
            columns: columns.max(20),
            lines: Vec::new(),
            line: InkLine::default(),
            inks: Vec::new(),
            lists: Vec::new(),
            indents: Vec::new(),
            mark: None,
            code: None,
            link: None,
            table: None,
        }
    }

    fn render(mut self, source: &str) -> Vec<InkLine> {
        for event in Parser::new_ext(source, options()) {
            self.event(event);
        }
        self.end_line();
        while self.lines.last().is_some_and(InkLine::is_empty) {
            self.lines.pop();
        }
        self.lines
    }

    fn ink(&self) -> Ink {
        self.inks.last().copied().unwrap_or_default()
    }

    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) if self.code.is_some() => self.code_text(&text),
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => self.text(&text),
            Event::Code(code) => self.line.push(Ink::Code, code.into_string()),
            Event::SoftBreak => self.line.push(self.ink(), " "),
            Event::HardBreak => self.end_line(),
            Event::Rule => {
                self.gap();
                self.lines.push(InkLine::of(Ink::Quiet, "─".repeat(self.columns.min(40))));
            }
            Event::TaskListMarker(done) => self.line.push(if done { Ink::Good } else { Ink::Plain }, if done { "[x] " } else { "[ ] " }),
            other => self.text(&format!("{other:?}")),
        }
    }

    fn text(&mut self, text: &str) {
        let ink = self.ink();
        for (number, part) in text.split('\n').enumerate() {
            if number > 0 {
                self.end_line();
            }
            self.line.push(ink, part);
        }
    }

    fn code_text(&mut self, text: &str) {
        let Some(mut code) = self.code.take() else { return };
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            let mut row = InkLine::of(Ink::Quiet, format!("{}  ", self.indent()));
            for span in code.line(line).0 {
                row.push(span.ink, span.text);
            }
            self.lines.push(row);
        }
        self.code = Some(code);
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Paragraph => self.gap(),
            Tag::Heading { level, .. } => {
                self.gap();
                self.inks.push(Ink::Heading);
                if level > HeadingLevel::H2 {
                    self.line.push(Ink::Heading, "# ");
                }
            }
            Tag::BlockQuote(_) => {
                self.gap();
                self.indents.push("│ ".into());
                self.inks.push(Ink::Quiet);
            }
            Tag::CodeBlock(kind) => {
                self.gap();
                let language = if let CodeBlockKind::Fenced(info) = &kind { info.split([' ', ',']).next().unwrap_or_default() } else { "" };
                self.code = Some(Highlighter::new(language));
            }
            Tag::List(first) => {
                if self.lists.is_empty() {
                    self.gap();
                }
                self.end_line();
                self.lists.push(first);
            }
            Tag::Item => {
                self.end_line();
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "• ".to_owned(),
                };
                self.mark = Some(format!("{}{mark}", self.indent()));
                self.indents.push(" ".repeat(width(&mark)));
            }
            Tag::Emphasis => self.inks.push(Ink::Emphasis),
            Tag::Strong => self.inks.push(Ink::Strong),
            Tag::Strikethrough => self.inks.push(Ink::Quiet),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.link = Some((dest_url.into_string(), self.line.text().len()));
                self.inks.push(Ink::Link);
            }
            Tag::Table(alignments) => {
                self.gap();
                self.table = Some(Table { alignments, rows: Vec::new() });
            }
            Tag::TableHead | Tag::TableRow => {
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph => self.end_line(),
            TagEnd::Heading(_) => {
                self.end_line();
                self.inks.pop();
            }
            TagEnd::BlockQuote(_) => {
                self.end_line();
                self.indents.pop();
                self.inks.pop();
            }
            TagEnd::CodeBlock => self.code = None,
            TagEnd::List(_) => {
                self.end_line();
                self.lists.pop();
            }
            TagEnd::Item => {
                self.end_line();
                self.mark = None;
                self.indents.pop();
            }
            TagEnd::Emphasis | TagEnd::Strong | TagEnd::Strikethrough => drop(self.inks.pop()),
            TagEnd::Link | TagEnd::Image => {
                self.inks.pop();
                if let Some((url, from)) = self.link.take()
                    && self.line.text().get(from..).is_none_or(|text| text != url)
                {
                    self.line.push(Ink::Quiet, format!(" ({url})"));
                }
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.line);
                if let Some(row) = self.table.as_mut().and_then(|table| table.rows.last_mut()) {
                    row.push(cell);
                }
            }
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    let lines = table.lines(self.columns.saturating_sub(width(&self.indent())));
                    let indent = self.indent();
                    self.lines.extend(lines.into_iter().map(|line| joined(&indent, line)));
                }
            }
            _ => {}
        }
    }

    fn indent(&self) -> String {
        self.indents.concat()
    }

    /// A blank row before a block, except within lists.
    fn gap(&mut self) {
        self.end_line();
        let is_wanted = self.lists.is_empty() && self.lines.last().is_some_and(|line| !line.is_empty());
        if is_wanted {
            self.lines.push(InkLine::default());
        }
    }

    fn end_line(&mut self) {
        if self.line.is_empty() || self.table.is_some() {
            return;
        }
        let line = std::mem::take(&mut self.line);
        let indent = self.indent();
        let first = self.mark.take().unwrap_or_else(|| indent.clone());
        let whole = joined(&first, line);
        self.lines.extend(whole.wrapped(self.columns, &InkLine::of(Ink::Quiet, indent)));
    }
}

fn joined(indent: &str, line: InkLine) -> InkLine {
    let mut whole = InkLine::default();
    whole.push(Ink::Quiet, indent);
    line.0.into_iter().for_each(|span| whole.push(span.ink, span.text));
    whole
}

impl Table {
    /// In columns where they fit, else one cell a row under the names of the columns.
    fn lines(&self, columns: usize) -> Vec<InkLine> {
        let count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> =
            (0..count).map(|column| self.rows.iter().filter_map(|row| row.get(column)).map(InkLine::width).max().unwrap_or(0)).collect();
        if widths.iter().sum::<usize>() + 3 * count.saturating_sub(1) <= columns {
            return self.in_columns(&widths);
        }
        let Some((head, rows)) = self.rows.split_first() else { return Vec::new() };
        let mut lines = Vec::new();
        for row in rows {
            for (column, cell) in row.iter().enumerate() {
                let name = head.get(column).map(InkLine::text).unwrap_or_default();
                let mut line = InkLine::of(Ink::Strong, format!("{name}: "));
                cell.0.iter().for_each(|span| line.push(span.ink, span.text.clone()));
                lines.extend(line.wrapped(columns, &InkLine::plain("  ")));
            }
            lines.push(InkLine::of(Ink::Quiet, "─".repeat(columns.min(20))));
        }
        lines.pop();
        lines
    }

    fn in_columns(&self, widths: &[usize]) -> Vec<InkLine> {
        let mut lines = Vec::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = InkLine::default();
            for (column, wide) in widths.iter().enumerate() {
                if column > 0 {
                    line.push(Ink::Quiet, " │ ");
                }
                let empty = InkLine::default();
                let cell = row.get(column).unwrap_or(&empty);
                let room = wide - cell.width();
                let before = match self.alignments.get(column) {
                    Some(Alignment::Right) => room,
                    Some(Alignment::Center) => room / 2,
                    _ => 0,
                };
                line.push(Ink::Plain, " ".repeat(before));
                let ink = |own: Ink| if number == 0 { Ink::Strong } else { own };
                cell.0.iter().for_each(|span| line.push(ink(span.ink), span.text.clone()));
                line.push(Ink::Plain, " ".repeat(room - before));
            }
            lines.push(line);
            if number == 0 {
                lines.push(InkLine::of(Ink::Quiet, widths.iter().map(|wide| "─".repeat(*wide)).collect::<Vec<_>>().join("─┼─")));
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(lines: &[InkLine]) -> Vec<String> {
        lines.iter().map(|line| line.text().trim_end().to_owned()).collect()
    }

    const PAGE: &str = "# Title\n\nSome **bold** and `code` in a line that is longer than it is wide.\n\n- one\n- two\n  1. deep\n\n```rust\nlet x = \"y\";\n```\n\n\
                        | a | long |\n|---|-----:|\n| 1 | 2 |\n\n> said\n\n[text](https://example.org/x) end\n";

    #[test]
    fn every_kind_of_block_is_drawn() {
        let lines = rendered(PAGE, 40);
        assert_eq!(
            texts(&lines),
            [
                "Title",
                "",
                "Some bold and code in a line that is",
                "longer than it is wide.",
                "",
                "• one",
                "• two",
                "  1. deep",
                "",
                "  let x = \"y\";",
                "",
                "a │ long",
                "──┼─────",
                "1 │    2",
                "",
                "│ said",
                "",
                "text (https://example.org/x) end",
            ]
        );
        assert_eq!(lines[0].0[0].ink, Ink::Heading);
        assert!(lines[9].0.iter().any(|span| span.ink == Ink::Keyword && span.text == "let"), "{:?}", lines[9]);
    }

    #[test]
    fn a_table_that_does_not_fit_is_a_list() {
        let table = format!("| name | what |\n|---|---|\n| x | {} |\n", "word ".repeat(20));
        let lines = texts(&rendered(&table, 30));
        assert!(lines[0] == "name: x" && lines[1].starts_with("what: word"), "{lines:?}");
    }

    #[test]
    fn what_streams_ends_as_what_came_at_once() {
        for piece in [1, 2, 5, 17] {
            let (mut stream, mut lines) = (MarkdownStream::default(), Vec::new());
            let chars: Vec<char> = PAGE.chars().collect();
            for piece in chars.chunks(piece) {
                stream.push(&piece.iter().collect::<String>());
                lines.extend(stream.finished_blocks(40));
                stream.begun(40);
            }
            lines.extend(stream.finish(40));
            assert_eq!(texts(&lines), texts(&rendered(PAGE, 40)), "{piece}");
        }
    }

    #[test]
    fn an_endless_code_block_is_given_out_in_pieces() {
        let mut stream = MarkdownStream::default();
        stream.push("```rust\n");
        let mut given = 0;
        for number in 0..4000 {
            stream.push(&format!("let number_{number} = 0;\n"));
            let lines = stream.finished_blocks(80);
            assert!(lines.iter().all(|line| line.is_empty() || line.text().starts_with("  let number_")), "{lines:?}");
            given += lines.len();
            assert!(stream.rest.len() <= LONGEST_BLOCK + 100);
        }
        let last = stream.finish(80);
        assert_eq!(given + last.len(), 4000);
        assert!(last.iter().all(|line| line.0.iter().any(|span| span.ink == Ink::Keyword)), "the colours stay");
    }

    #[test]
    fn nothing_that_a_terminal_obeys_gets_through() {
        let lines = rendered("a \x1b[2J `\x07` [x\u{202e}](http://\x1b]0;t) <b>\x00</b>\n\n```\n\x1b[H\n```\n", 80);
        let drawn: String = lines.iter().map(InkLine::drawn).collect();
        for sequence in ["\x1b[36m", "\x1b[0m", "\x1b[4m", "\x1b[2m"] {
            assert!(!drawn.replace(sequence, "").is_empty());
        }
        let own = ["\x1b[36m", "\x1b[0m", "\x1b[4m", "\x1b[2m"].iter().fold(drawn.clone(), |text, own| text.replace(own, ""));
        assert!(!own.chars().any(|c| c.is_control() || c == '\u{202e}'), "{own:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn no_text_breaks_it(text in "[ -~\n\t`*_#>|é日\\[\\]()!-]{0,200}", columns in 1_usize..60) {
            let mut stream = MarkdownStream::default();
            for piece in text.split_inclusive(' ') {
                stream.push(piece);
                stream.finished_blocks(columns);
                stream.begun(columns);
            }
            stream.finish(columns);
        }
    }
}
