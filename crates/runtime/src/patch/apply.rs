//! From a file's text and the chunks of a change to its new text.

use thiserror::Error;

use super::{Chunk, PatchLine};

/// The text afterwards and how many lines came and went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub content: String,
    pub added: usize,
    pub removed: usize,
}

/// A place that could not be found.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApplyError {
    #[error("the line `{heading}` is not in the file after line {after}")]
    NoHeading { heading: String, after: usize },
    #[error("these lines are not in the file after line {after}:\n{lines}")]
    NoLines { lines: String, after: usize },
}

/// Applies chunks in order; each is looked for behind the one before it.
pub fn apply(text: &str, chunks: &[Chunk]) -> Result<Applied, ApplyError> {
    let ends_with_newline = text.is_empty() || text.ends_with('\n');
    let eol = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let lines: Vec<&str> = text.lines().collect();
    let mut out: Vec<&str> = Vec::with_capacity(lines.len());
    let (mut at, mut added, mut removed) = (0, 0, 0);
    for chunk in chunks {
        let place = find(&lines, at, chunk)?;
        out.extend(&lines[at..place]);
        at = place;
        for line in &chunk.lines {
            match line {
                // It stays exactly as the file has it, whatever the model made of its blanks.
                PatchLine::Kept(_) => {
                    out.push(lines[at]);
                    at += 1;
                }
                PatchLine::Removed(_) => {
                    removed += 1;
                    at += 1;
                }
                PatchLine::Added(text) => {
                    added += 1;
                    out.push(text);
                }
            }
        }
    }
    out.extend(&lines[at..]);
    let mut content = out.join(eol);
    if ends_with_newline && !out.is_empty() {
        content.push_str(eol);
    }
    Ok(Applied { content, added, removed })
}

/// Where a chunk belongs, at or behind `from`.
fn find(lines: &[&str], from: usize, chunk: &Chunk) -> Result<usize, ApplyError> {
    let mut from = from;
    if let Some(heading) = &chunk.heading {
        let place = search(lines, from, &[heading], false);
        from = place.ok_or_else(|| ApplyError::NoHeading { heading: heading.clone(), after: from })? + 1;
    }
    let wanted: Vec<&str> = chunk.lines.iter().filter_map(PatchLine::present).collect();
    if wanted.is_empty() {
        // Only new lines: behind the heading if there is one, else at the end.
        return Ok(if chunk.heading.is_some() && !chunk.at_end { from } else { lines.len() });
    }
    search(lines, from, &wanted, chunk.at_end).ok_or_else(|| ApplyError::NoLines { lines: wanted.join("\n"), after: from })
}

/// The first place where all of `wanted` stand, by the strictest comparison that finds one.
fn search(lines: &[&str], from: usize, wanted: &[&str], at_end: bool) -> Option<usize> {
    let last = lines.len().checked_sub(wanted.len())?;
    let comparisons: [fn(&str, &str) -> bool; 4] = [
        |a, b| a == b,
        |a, b| a.trim_end() == b.trim_end(),
        |a, b| a.trim() == b.trim(),
        |a, b| a.trim().chars().map(plain).eq(b.trim().chars().map(plain)),
    ];
    for same in comparisons {
        let fits = |place: usize| lines[place..].iter().zip(wanted).all(|(line, want)| same(line, want));
        if at_end && last >= from && fits(last) {
            return Some(last);
        }
        if let Some(place) = (from..=last).find(|place| fits(*place)) {
            return Some(place);
        }
    }
    None
}

/// Typographic characters as the keyboard has them.
fn plain(c: char) -> char {
    match c {
        '\u{2010}'..='\u{2015}' | '\u{2212}' => '-',
        '\u{2018}'..='\u{201b}' => '\'',
        '\u{201c}'..='\u{201f}' => '"',
        '\u{00a0}' | '\u{2002}'..='\u{200a}' | '\u{202f}' | '\u{205f}' | '\u{3000}' => ' ',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Lines begin with a blank, `-` or `+`, as in a patch.
    fn chunk(heading: Option<&str>, lines: &[&str]) -> Chunk {
        let line = |text: &&str| match text.split_at(1) {
            ("-", rest) => PatchLine::Removed(rest.to_owned()),
            ("+", rest) => PatchLine::Added(rest.to_owned()),
            (_, rest) => PatchLine::Kept(rest.to_owned()),
        };
        Chunk { heading: heading.map(str::to_owned), lines: lines.iter().map(line).collect(), at_end: false }
    }

    #[test]
    fn chunks_are_applied_in_order() {
        let text = "a\nb\nc\nd\n";
        let applied = apply(text, &[chunk(None, &[" a", "-b", "+B"]), chunk(None, &[" d", "+e"])]).unwrap();
        assert_eq!(applied, Applied { content: "a\nB\nc\nd\ne\n".into(), added: 2, removed: 1 });
    }

    #[test]
    fn a_heading_tells_equal_places_apart() {
        let text = "fn a() {\n    x();\n}\nfn b() {\n    x();\n}\n";
        let applied = apply(text, &[chunk(Some("fn b() {"), &["-    x();", "+    y();"])]).unwrap();
        assert_eq!(applied.content, "fn a() {\n    x();\n}\nfn b() {\n    y();\n}\n");
    }

    #[test]
    fn blanks_and_typography_are_forgiven_and_the_files_own_are_kept() {
        let text = "\tif a – b {  \n\t\told\n";
        let applied = apply(text, &[chunk(None, &[" if a - b {", "-old", "+new"])]).unwrap();
        assert_eq!(applied.content, "\tif a – b {  \nnew\n");
    }

    #[test]
    fn an_exact_place_beats_an_earlier_similar_one() {
        let applied = apply(" x\nx\n", &[chunk(None, &["-x", "+y"])]).unwrap();
        assert_eq!(applied.content, " x\ny\n");
    }

    #[test]
    fn the_end_of_the_file_is_tried_first_when_it_is_meant() {
        let mut last = chunk(None, &["-x", "+y"]);
        last.at_end = true;
        assert_eq!(apply("x\na\nx\n", &[last]).unwrap().content, "x\na\ny\n");
    }

    #[test]
    fn lines_without_old_ones_go_to_the_end_or_under_their_heading() {
        assert_eq!(apply("a\nb\n", &[chunk(None, &["+c"])]).unwrap().content, "a\nb\nc\n");
        assert_eq!(apply("a\nb\n", &[chunk(Some("a"), &["+c"])]).unwrap().content, "a\nc\nb\n");
        assert_eq!(apply("", &[chunk(None, &["+c"])]).unwrap().content, "c\n");
    }

    #[test]
    fn line_ends_stay_as_they_are() {
        assert_eq!(apply("a\r\nb\r\n", &[chunk(None, &["-b", "+c"])]).unwrap().content, "a\r\nc\r\n");
        assert_eq!(apply("a\nb", &[chunk(None, &["-a", "+c"])]).unwrap().content, "c\nb");
    }

    #[test]
    fn what_is_not_there_is_said() {
        let missing = apply("a\nb\n", &[chunk(None, &["-z", "+y"])]);
        assert_eq!(missing, Err(ApplyError::NoLines { lines: "z".into(), after: 0 }));
        let heading = apply("a\nb\n", &[chunk(Some("z"), &["-b", "+y"])]);
        assert_eq!(heading, Err(ApplyError::NoHeading { heading: "z".into(), after: 0 }));
        let order = apply("a\nb\n", &[chunk(None, &["-b", "+B"]), chunk(None, &["-a", "+A"])]);
        assert_eq!(order, Err(ApplyError::NoLines { lines: "a".into(), after: 2 }));
    }

    proptest! {
        /// A change of one run of unique lines gives exactly the text with that run replaced.
        #[test]
        fn one_chunk_replaces_one_run(count in 1usize..30, from in 0usize..30, length in 1usize..6, new in prop::collection::vec("[a-z]{1,4}", 0..5)) {
            let lines: Vec<String> = (0..count).map(|n| format!("line {n}")).collect();
            let from = from % count;
            let end = (from + length).min(count);
            let removed = lines[from..end].iter().cloned().map(PatchLine::Removed);
            let change = Chunk { lines: removed.chain(new.iter().cloned().map(PatchLine::Added)).collect(), ..Chunk::default() };
            let mut expected = lines.clone();
            expected.splice(from..end, new.clone());
            let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
            let applied = apply(&text, &[change]).unwrap();
            prop_assert_eq!(applied.content, expected.iter().map(|line| format!("{line}\n")).collect::<String>());
            prop_assert_eq!((applied.added, applied.removed), (new.len(), end - from));
        }
    }
}
