//! What became of a text, line by line: made from two texts, written and read as hunks of a unified diff, and put together when one
//! change follows another.
//!
//! A difference does not know the whole text. Lines that are far from any change are only counted, and two differences in a row can
//! be put together because each knows the lines around its own changes.

use std::collections::VecDeque;
use std::fmt::{self, Display, Formatter};

use diffy::{Line, Patch};

/// So many lines around a change are shown.
const AROUND: usize = 3;
/// Texts that are larger together are not compared: it would take long, and the result would be unreadable.
const LARGEST: usize = 512 << 10;

/// The difference between two texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diff {
    ops: VecDeque<Op>,
}

/// A line ends with its line feed; the last one of a text may have none.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Op {
    /// So many lines stay, and nothing else is known of them.
    Skip(usize),
    Keep(String),
    Remove(String),
    Add(String),
}

/// The second change was not made to what the first one left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the text was changed by another program in between")]
pub struct Disagreement;

impl Diff {
    /// From two texts. Nothing if they are too large to be compared.
    pub fn between(before: &str, after: &str) -> Option<Self> {
        (before.len() + after.len() <= LARGEST).then(|| Self::of(&diffy::create_patch(before, after)))
    }

    /// From hunks, as [`Display`] writes them. Nothing if the text is no such thing.
    pub fn parse(hunks: &str) -> Option<Self> {
        Patch::from_str(hunks).ok().map(|patch| Self::of(&patch))
    }

    fn of(patch: &Patch<'_, str>) -> Self {
        let mut diff = Self::default();
        let mut at = 0;
        for hunk in patch.hunks() {
            let range = hunk.old_range();
            // An empty range names the line before it.
            let begin = if range.is_empty() { range.start() } else { range.start().saturating_sub(1) };
            diff.push(Op::Skip(begin.saturating_sub(at)));
            at = begin + range.len();
            for line in hunk.lines() {
                diff.push(match line {
                    Line::Context(text) => Op::Keep((*text).to_owned()),
                    Line::Delete(text) => Op::Remove((*text).to_owned()),
                    Line::Insert(text) => Op::Add((*text).to_owned()),
                });
            }
        }
        diff
    }

    fn push(&mut self, op: Op) {
        match (self.ops.back_mut(), op) {
            (_, Op::Skip(0)) => {}
            (Some(Op::Skip(mine)), Op::Skip(more)) => *mine += more,
            (_, op) => self.ops.push_back(op),
        }
    }

    /// Nothing is different.
    pub fn is_empty(&self) -> bool {
        !self.ops.iter().any(Op::is_change)
    }

    /// The lines that are gone.
    pub fn removed(&self) -> String {
        self.ops.iter().filter_map(|op| if let Op::Remove(line) = op { Some(line.as_str()) } else { None }).collect()
    }

    /// This change and then another one, as one.
    pub fn then(mut self, mut next: Self) -> Result<Self, Disagreement> {
        let mut out = Self::default();
        loop {
            let op = match (self.ops.pop_front(), next.ops.pop_front()) {
                (None, None) => break,
                (Some(Op::Remove(line)), second) => {
                    next.ops.give_back(second);
                    Op::Remove(line)
                }
                (first, Some(Op::Add(line))) => {
                    self.ops.give_back(first);
                    Op::Add(line)
                }
                // Beyond what one of them speaks of, nothing is different to it.
                (Some(op), None) | (None, Some(op)) => op,
                (Some(Op::Skip(mine)), Some(Op::Skip(theirs))) => {
                    let both = mine.min(theirs);
                    self.ops.give_back(Op::rest(mine - both));
                    next.ops.give_back(Op::rest(theirs - both));
                    Op::Skip(both)
                }
                (Some(Op::Skip(mine)), Some(op)) => {
                    self.ops.give_back(Op::rest(mine - 1));
                    op
                }
                (Some(op), Some(Op::Skip(theirs))) => {
                    next.ops.give_back(Op::rest(theirs - 1));
                    op
                }
                (Some(Op::Keep(mine) | Op::Add(mine)), Some(Op::Keep(theirs) | Op::Remove(theirs))) if mine != theirs => {
                    return Err(Disagreement);
                }
                (Some(Op::Add(_)), Some(Op::Remove(_))) => continue,
                (Some(Op::Keep(_)), Some(Op::Remove(line))) => Op::Remove(line),
                (Some(op), Some(_)) => op,
            };
            out.push(op);
        }
        Ok(out.tidied())
    }

    /// In each run of changes first what goes and then what comes; lines that go and come again stay.
    fn tidied(self) -> Self {
        let mut out = Self::default();
        let (mut gone, mut come) = (VecDeque::new(), VecDeque::new());
        for op in self.ops.into_iter().map(Some).chain([None]) {
            match op {
                Some(Op::Remove(line)) => gone.push_back(line),
                Some(Op::Add(line)) => come.push_back(line),
                other => {
                    let mut after = Vec::new();
                    while let (Some(old), Some(new)) = (gone.front(), come.front())
                        && old == new
                    {
                        come.pop_front();
                        gone.pop_front().into_iter().for_each(|line| out.push(Op::Keep(line)));
                    }
                    while let (Some(old), Some(new)) = (gone.back(), come.back())
                        && old == new
                    {
                        come.pop_back();
                        after.extend(gone.pop_back());
                    }
                    gone.drain(..).for_each(|line| out.push(Op::Remove(line)));
                    come.drain(..).for_each(|line| out.push(Op::Add(line)));
                    after.into_iter().rev().for_each(|line| out.push(Op::Keep(line)));
                    other.into_iter().for_each(|op| out.push(op));
                }
            }
        }
        out
    }
}

/// Putting back what was only looked at.
trait GiveBack {
    fn give_back(&mut self, op: Option<Op>);
}

impl GiveBack for VecDeque<Op> {
    fn give_back(&mut self, op: Option<Op>) {
        if let Some(op) = op {
            self.push_front(op);
        }
    }
}

impl Op {
    fn is_change(&self) -> bool {
        matches!(self, Self::Remove(_) | Self::Add(_))
    }

    fn rest(count: usize) -> Option<Self> {
        (count > 0).then_some(Self::Skip(count))
    }
}

/// Lines that stand together in a hunk.
#[derive(Default)]
struct Hunk {
    old: (usize, usize),
    new: (usize, usize),
    text: String,
    /// Unchanged lines since the last change.
    quiet: usize,
}

impl Hunk {
    fn push(&mut self, mark: char, line: &str) {
        self.old.1 += usize::from(mark != '+');
        self.new.1 += usize::from(mark != '-');
        self.quiet = if mark == ' ' { self.quiet + 1 } else { 0 };
        self.text.push(mark);
        self.text.push_str(line);
        if !line.ends_with('\n') {
            self.text.push_str("\n\\ No newline at end of file\n");
        }
    }

    fn write(&self, to: &mut Formatter<'_>) -> fmt::Result {
        // An empty range names the line before it.
        let begin = |(begin, length): (usize, usize)| if length == 0 { begin } else { begin + 1 };
        write!(to, "@@ -{},{} +{},{} @@\n{}", begin(self.old), self.old.1, begin(self.new), self.new.1, self.text)
    }
}

/// The hunks of a unified diff, without the names of files.
impl Display for Diff {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let (mut old, mut new) = (0, 0);
        let mut open: Option<Hunk> = None;
        // Lines before the next change, as far as they are known.
        let mut before: VecDeque<&str> = VecDeque::new();
        for (index, op) in self.ops.iter().enumerate() {
            match op {
                Op::Skip(count) => {
                    before.clear();
                    if let Some(hunk) = open.take() {
                        hunk.write(to)?;
                    }
                    old += count;
                    new += count;
                }
                Op::Keep(line) => {
                    let is_near =
                        self.ops.iter().skip(index + 1).take(AROUND * 2).take_while(|op| !matches!(op, Op::Skip(_))).any(Op::is_change);
                    match &mut open {
                        Some(hunk) if hunk.quiet < AROUND || (is_near && hunk.quiet < AROUND * 2) => hunk.push(' ', line),
                        _ => {
                            if let Some(hunk) = open.take() {
                                hunk.write(to)?;
                            }
                            before.push_back(line);
                            if before.len() > AROUND {
                                before.pop_front();
                            }
                        }
                    }
                    old += 1;
                    new += 1;
                }
                Op::Remove(line) | Op::Add(line) => {
                    let hunk = open.get_or_insert_with(|| {
                        let known = before.len();
                        let mut hunk = Hunk { old: (old - known, 0), new: (new - known, 0), ..Hunk::default() };
                        before.drain(..).for_each(|line| hunk.push(' ', line));
                        hunk
                    });
                    let mark = if matches!(op, Op::Add(_)) { '+' } else { '-' };
                    hunk.push(mark, line);
                    old += usize::from(mark == '-');
                    new += usize::from(mark == '+');
                }
            }
        }
        open.map_or(Ok(()), |hunk| hunk.write(to))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn numbered(count: usize) -> String {
        (1..=count).map(|n| format!("line {n}\n")).collect()
    }

    #[test]
    fn hunks_say_where_they_stand() {
        let before = numbered(30);
        let after = before.replace("line 4\n", "four\n").replace("line 20\n", "").replace("line 30\n", "line 30\nmore\n");
        let text = Diff::between(&before, &after).unwrap().to_string();
        let expected = "@@ -1,7 +1,7 @@\n line 1\n line 2\n line 3\n-line 4\n+four\n line 5\n line 6\n line 7\n\
            @@ -17,7 +17,6 @@\n line 17\n line 18\n line 19\n-line 20\n line 21\n line 22\n line 23\n\
            @@ -28,3 +27,4 @@\n line 28\n line 29\n line 30\n+more\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn files_come_go_and_lack_a_last_line_feed() {
        assert_eq!(Diff::between("", "a\nb\n").unwrap().to_string(), "@@ -0,0 +1,2 @@\n+a\n+b\n");
        let gone = Diff::between("a\nb", "").unwrap();
        assert_eq!(gone.to_string(), "@@ -1,2 +0,0 @@\n-a\n-b\n\\ No newline at end of file\n");
        assert_eq!(gone.removed(), "a\nb");
        assert!(Diff::between("a\n", "a\n").unwrap().is_empty());
        assert_eq!(Diff::between(&"x".repeat(LARGEST), "y"), None);
    }

    #[test]
    fn what_is_taken_back_is_no_change() {
        let (one, two) = ("a\nb\nc\n", "a\nB\nc\nd\n");
        let there = Diff::between(one, two).unwrap();
        let back = Diff::between(two, one).unwrap();
        assert!(there.then(back).unwrap().is_empty());
    }

    #[test]
    fn a_change_by_another_program_is_noticed() {
        let first = Diff::between("a\nb\n", "a\nc\n").unwrap();
        let other = Diff::between("a\nx\n", "a\ny\n").unwrap();
        assert_eq!(first.then(other), Err(Disagreement));
    }

    proptest! {
        /// Two changes in a row are one that leads from the first text to the last, by the judgement of another program's reader.
        #[test]
        fn changes_in_a_row_are_one(
            start in prop::collection::vec("[a-c]", 0..40),
            first in prop::collection::vec((0usize..40, "[a-c]?"), 0..6),
            second in prop::collection::vec((0usize..40, "[a-c]?"), 0..6),
        ) {
            let text = |lines: &[String]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
            let edit = |mut lines: Vec<String>, edits: &[(usize, String)]| {
                for (at, new) in edits {
                    let at = at % (lines.len() + 1);
                    if new.is_empty() && at < lines.len() {
                        lines.remove(at);
                    } else {
                        lines.insert(at, new.clone());
                    }
                }
                lines
            };
            let middle = edit(start.clone(), &first);
            let end = edit(middle.clone(), &second);
            let (start, middle, end) = (text(&start), text(&middle), text(&end));
            let one = Diff::parse(&Diff::between(&start, &middle).unwrap().to_string()).unwrap();
            let two = Diff::parse(&Diff::between(&middle, &end).unwrap().to_string()).unwrap();
            let both = one.then(two).unwrap().to_string();
            let patch = format!("--- a\n+++ b\n{both}");
            let applied = diffy::apply(&start, &Patch::from_str(&patch).unwrap()).unwrap();
            prop_assert_eq!(applied, end);
        }
    }
}
