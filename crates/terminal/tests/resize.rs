//! A window that gets another size, on terminals that cut rows and on those that break them anew: what stays is never touched, and
//! the region is there once.
#![allow(clippy::unwrap_used, clippy::panic)]

use outpost_terminal::ink::InkLine;
use outpost_terminal::painter::{LiveRegion, RegionPainter};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Narrowing {
    Cut,
    Rewrap,
}

/// A row of a terminal, and whether the next one is a part of the same line.
#[derive(Debug, Clone, Default)]
struct Row {
    text: String,
    is_wrapped: bool,
}

/// As much of a terminal as the painter uses; letters are one column wide.
struct Terminal {
    narrowing: Narrowing,
    columns: usize,
    height: usize,
    /// With the scrollback. The last ones are on the screen.
    rows: Vec<Row>,
    /// Counted from the first row of all.
    cursor: (usize, usize),
    answers: Vec<(usize, usize)>,
}

impl Terminal {
    fn new(narrowing: Narrowing, columns: usize, height: usize, used: usize) -> Self {
        let rows = vec![Row::default(); height];
        let mut terminal = Self { narrowing, columns, height, rows, cursor: (0, 0), answers: Vec::new() };
        (0..used).for_each(|line| terminal.write(&format!("S{line:03} {}\r\n", "s".repeat(line * 7 % 90))));
        terminal
    }

    fn top(&self) -> usize {
        self.rows.len() - self.height
    }

    fn write(&mut self, text: &str) {
        let mut left = text.chars();
        while let Some(letter) = left.next() {
            match letter {
                '\r' => self.cursor.1 = 0,
                '\n' => self.down(),
                '\x1b' => {
                    assert_eq!(left.next(), Some('['));
                    let sequence: String = left.by_ref().take_while_inclusive();
                    self.obey(&sequence);
                }
                letter => self.letter(letter),
            }
        }
    }

    fn letter(&mut self, letter: char) {
        if self.cursor.1 == self.columns {
            self.rows[self.cursor.0].is_wrapped = true;
            self.down();
            self.cursor.1 = 0;
        }
        let (row, column) = self.cursor;
        let text = &mut self.rows[row].text;
        while text.len() <= column {
            text.push(' ');
        }
        text.replace_range(column..=column, &letter.to_string());
        self.cursor.1 += 1;
    }

    fn down(&mut self) {
        self.cursor.0 += 1;
        if self.cursor.0 == self.rows.len() {
            self.rows.push(Row::default());
        }
    }

    fn obey(&mut self, sequence: &str) {
        let (last, number) = (sequence.chars().last().unwrap(), sequence[..sequence.len() - 1].parse().unwrap_or(1));
        match (last, sequence) {
            ('A', _) => self.cursor.0 = self.cursor.0.saturating_sub(number).max(self.top()),
            ('C', _) => self.cursor.1 = (self.cursor.1 + number).min(self.columns - 1),
            ('J', _) => {
                let (row, column) = self.cursor;
                self.rows[row].text.truncate(column);
                self.rows[row..].iter_mut().for_each(|row| row.is_wrapped = false);
                self.rows[row + 1..].iter_mut().for_each(|row| row.text.clear());
            }
            ('n', "6n") => self.answers.push((self.cursor.0 - self.top(), self.cursor.1.min(self.columns - 1))),
            ('h' | 'l' | 'm', _) => {}
            other => panic!("{other:?} is not known"),
        }
    }

    fn resize(&mut self, columns: usize, height: usize) {
        match self.narrowing {
            Narrowing::Cut => {
                for row in &mut self.rows {
                    row.text.truncate(columns);
                    row.is_wrapped = false;
                }
                self.cursor.1 = self.cursor.1.min(columns - 1);
                // Rows below the cursor are lost first; a higher window takes rows out of the scrollback.
                let cut = (self.rows.len() - 1 - self.cursor.0).min(self.height.saturating_sub(height));
                self.rows.truncate(self.rows.len() - cut);
                let rows = self.rows.len().max(height);
                self.rows.resize(rows, Row::default());
            }
            Narrowing::Rewrap => self.rewrap(columns, height),
        }
        (self.columns, self.height) = (columns, height);
    }

    fn rewrap(&mut self, columns: usize, height: usize) {
        let mut rows = Vec::new();
        let (mut line, mut cursor_in_line, mut cursor) = (String::new(), None, (0, 0));
        let end = self.rows.iter().rposition(|row| !row.text.is_empty()).unwrap_or(0).max(self.cursor.0);
        for (number, row) in self.rows[..=end].iter().enumerate() {
            if number == self.cursor.0 {
                cursor_in_line = Some(line.len() + self.cursor.1);
            }
            line.push_str(&row.text);
            if row.is_wrapped {
                continue;
            }
            if let Some(at) = cursor_in_line.take() {
                let is_behind = at >= line.len() && at > 0 && at % columns == 0;
                cursor = if is_behind { (rows.len() + at / columns - 1, columns - 1) } else { (rows.len() + at / columns, at % columns) };
            }
            let letters: Vec<char> = std::mem::take(&mut line).chars().collect();
            let count = letters.chunks(columns).count().max(1);
            let mut parts = letters.chunks(columns);
            rows.extend(
                (0..count).map(|part| Row { text: parts.next().unwrap_or_default().iter().collect(), is_wrapped: part + 1 < count }),
            );
        }
        let all = rows.len().max(height).max(cursor.0 + 1);
        rows.resize(all, Row::default());
        (self.rows, self.cursor) = (rows, cursor);
    }

    /// The marks of lines with this letter, in their order. Rows that are parts of one line are read as one.
    fn tagged(&self, tag: char) -> Vec<String> {
        let text: String = self.rows.iter().flat_map(|row| [row.text.as_str(), if row.is_wrapped { "" } else { "\n" }]).collect();
        let marks = text.match_indices(tag).filter_map(|(at, _)| text.get(at..at + 4));
        marks.filter(|mark| mark[1..].chars().all(|letter| letter.is_ascii_digit())).map(str::to_owned).collect()
    }
}

trait TakeSequence {
    fn take_while_inclusive(&mut self) -> String;
}

impl<I: Iterator<Item = char>> TakeSequence for I {
    /// Up to the letter that ends a sequence.
    fn take_while_inclusive(&mut self) -> String {
        let mut sequence = String::new();
        for letter in self {
            sequence.push(letter);
            if letter.is_ascii_alphabetic() {
                break;
            }
        }
        sequence
    }
}

/// A terminal with a painter, and what is to be on it.
struct Stage {
    terminal: Terminal,
    painter: RegionPainter,
    does_answer: bool,
    lasting: usize,
    shown: usize,
    used: usize,
}

impl Stage {
    fn new(narrowing: Narrowing, (columns, height): (usize, usize), used: usize, does_answer: bool) -> Self {
        let mut stage = Self {
            terminal: Terminal::new(narrowing, columns, height, used),
            painter: RegionPainter::new(columns, height),
            does_answer,
            lasting: 0,
            shown: 0,
            used,
        };
        let question = stage.painter.ask();
        stage.terminal.write(&question);
        stage
    }

    /// What the terminal was asked is answered, or never.
    fn answer(&mut self) {
        for (row, column) in self.terminal.answers.drain(..).collect::<Vec<_>>() {
            if self.does_answer {
                self.painter.cursor_at(row, column);
            }
        }
        if self.painter.is_waiting() {
            assert!(!self.does_answer, "the last answer counts");
            self.painter.give_up();
        }
    }

    /// Rows above the one that is typed in, and as wide as they may be the last one.
    fn paint(&mut self, lasting: &[usize], above: &[usize], typed: usize) {
        let columns = self.painter.columns();
        let lines: Vec<InkLine> = lasting
            .iter()
            .enumerate()
            .map(|(number, long)| InkLine::plain(format!("L{:03} {}", self.lasting + number, "l".repeat(*long))))
            .collect();
        self.lasting += lines.len();
        let mut rows: Vec<InkLine> =
            above.iter().enumerate().map(|(number, long)| InkLine::plain(format!("R{number:03} {}", "r".repeat(*long)))).collect();
        let typed = typed.min(columns - 6);
        let cursor = (rows.len(), typed + 5);
        rows.push(InkLine::plain(format!("R{:03} {}", rows.len(), "t".repeat(typed))));
        rows.push(InkLine::plain(format!("R{:03} {}", rows.len(), "e".repeat(columns - 6))));
        self.shown = rows.len();
        let text = self.painter.paint(&lines, LiveRegion { rows, cursor });
        self.terminal.write(&text);
    }

    fn resize(&mut self, columns: usize, rows: usize) {
        self.terminal.resize(columns, rows);
        let question = self.painter.resize(columns, rows);
        self.terminal.write(&question);
    }

    /// Everything that stays is there, in its order.
    fn check_lasting(&self) {
        let numbered = |tag: char, count: usize| (0..count).map(|number| format!("{tag}{number:03}")).collect::<Vec<_>>();
        assert_eq!(self.terminal.tagged('S'), numbered('S', self.used), "of the shell: {:#?}", self.terminal.rows);
        assert_eq!(self.terminal.tagged('L'), numbered('L', self.lasting), "{:#?}", self.terminal.rows);
    }

    /// The region is there once, below everything else.
    fn check_region(&self) {
        let wanted: Vec<String> = (0..self.shown).map(|number| format!("R{number:03}")).collect();
        assert_eq!(self.terminal.tagged('R'), wanted, "{:#?}", self.terminal.rows);
        let last = self.terminal.rows.iter().rposition(|row| !row.text.is_empty()).unwrap();
        assert!(self.terminal.rows[last].text.starts_with('R'), "{:#?}", self.terminal.rows);
    }
}

#[derive(Debug, Clone)]
enum Deed {
    Paint { lasting: Vec<usize>, above: Vec<usize>, typed: usize },
    Resize { columns: usize, rows: usize, and_again: Option<usize> },
}

fn deeds(rows: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Deed>> {
    let paint = (prop::collection::vec(0..150_usize, 0..4), prop::collection::vec(0..75_usize, 0..3), 0..90_usize);
    let paint = paint.prop_map(|(lasting, above, typed)| Deed::Paint { lasting, above, typed });
    let resize = (45..90_usize, rows, prop::option::of(45..90_usize));
    let resize = resize.prop_map(|(columns, rows, and_again)| Deed::Resize { columns, rows, and_again });
    prop::collection::vec(prop_oneof![paint, resize], 1..12)
}

fn play(stage: &mut Stage, deeds: &[Deed], check: impl Fn(&Stage)) {
    stage.paint(&[], &[], 0);
    stage.answer();
    for deed in deeds {
        match deed {
            Deed::Paint { lasting, above, typed } => stage.paint(lasting, above, *typed),
            Deed::Resize { columns, rows, and_again } => {
                stage.resize(*columns, *rows);
                // The next size comes before the answer to the first question.
                if let Some(columns) = and_again {
                    stage.resize(*columns, *rows);
                }
                stage.answer();
                stage.paint(&[10], &[30], 5);
            }
        }
        check(stage);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the terminal does, and whether it answers or not, nothing that stays is wiped.
    #[test]
    fn what_stays_is_never_touched(
        deeds in deeds(14..40),
        does_rewrap in any::<bool>(),
        does_answer in any::<bool>(),
        used in 0..30_usize,
    ) {
        let narrowing = if does_rewrap { Narrowing::Rewrap } else { Narrowing::Cut };
        let mut stage = Stage::new(narrowing, (80, 24), used, does_answer);
        play(&mut stage, &deeds, Stage::check_lasting);
    }

    /// A terminal that says where its cursor is has the region once, however it deals with long rows. What it does with them is
    /// seen at the first window that gets narrower, if the region is at the bottom then.
    #[test]
    fn the_region_is_there_once(deeds in deeds(24..25), does_rewrap in any::<bool>(), used in 24..30_usize) {
        let narrowing = if does_rewrap { Narrowing::Rewrap } else { Narrowing::Cut };
        let mut stage = Stage::new(narrowing, (90, 24), used, true);
        play(&mut stage, &[Deed::Resize { columns: 60, rows: 24, and_again: None }], Stage::check_region);
        play(&mut stage, &deeds, |stage| {
            stage.check_lasting();
            stage.check_region();
        });
    }
}

#[test]
fn a_terminal_that_does_not_answer_keeps_what_stays() {
    for narrowing in [Narrowing::Cut, Narrowing::Rewrap] {
        let mut stage = Stage::new(narrowing, (80, 24), 5, false);
        stage.paint(&[20], &[70, 70], 10);
        stage.answer();
        stage.resize(50, 24);
        stage.answer();
        stage.paint(&[20], &[40], 10);
        stage.check_lasting();
        // Where rows are broken anew, remains of the region are left, and that is all.
        if narrowing == Narrowing::Cut {
            stage.check_region();
        }
    }
}
