//! From text to a [`Patch`].

use thiserror::Error;

use super::lenient::{heading, prepared};
use super::{Chunk, FileChange, Patch, PatchLine};

pub(super) const BEGIN: &str = "*** Begin Patch";
pub(super) const END: &str = "*** End Patch";
pub(super) const ENVIRONMENT: &str = "*** Environment ID:";
pub(super) const ADD: &str = "*** Add File:";
pub(super) const DELETE: &str = "*** Delete File:";
pub(super) const UPDATE: &str = "*** Update File:";
pub(super) const MOVE: &str = "*** Move to:";
pub(super) const END_OF_FILE: &str = "*** End of File";

/// What is wrong with a patch, and in which of its lines (counted from 1).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseError {
    #[error("a patch begins with the line `{BEGIN}`; this one begins with `{found}`")]
    NoBegin { found: String },
    #[error("a patch ends with the line `{END}`, which is missing")]
    NoEnd,
    #[error("line {line}: there is text after `{END}`")]
    TextAfterEnd { line: usize },
    #[error("line {line}: `{header}` needs a value")]
    EmptyValue { line: usize, header: &'static str },
    #[error("line {line}: the environment is named a second time")]
    EnvironmentTwice { line: usize },
    #[error("line {line}: expected `{ADD}`, `{DELETE}`, `{UPDATE}` or `{END}`, found `{found}`")]
    NoHeader { line: usize, found: String },
    #[error("line {line}: each line of a new file begins with `+`, found `{found}`")]
    NotAdded { line: usize, found: String },
    #[error("line {line}: the change of {path} neither moves it nor changes a line")]
    NothingChanged { line: usize, path: String },
    #[error("line {line}: a line of a change begins with a blank, `-` or `+`, found `{found}`")]
    NotAChange { line: usize, found: String },
    #[error("line {line}: a chunk without lines")]
    EmptyChunk { line: usize },
    #[error("line {line}: {path} appears twice in this patch; put all changes of a file under one header")]
    PathTwice { line: usize, path: String },
    #[error("the patch changes nothing")]
    Empty,
}

/// Reads a patch. What models write around it, or leave out of it, is forgiven where it can mean only one thing (`lenient.rs`).
pub fn parse(text: &str) -> Result<Patch, ParseError> {
    let text = prepared(text);
    Parser::new(unwrap_here_document(&text)).patch()
}

/// Reads the patch in a shell command of the form `apply_patch <<'EOF' … EOF`, with or without a `cd DIR &&` in front.
/// Returns the directory that the command changes to; nothing if the command is something else.
pub fn parse_command(command: &str) -> Option<(Option<&str>, Result<Patch, ParseError>)> {
    let mut rest = command.trim();
    let mut directory = None;
    if let Some(after) = rest.strip_prefix("cd ") {
        let (target, remaining) = after.split_once("&&")?;
        directory = Some(plain_word(target.trim())?);
        rest = remaining.trim_start();
    }
    let body = rest.strip_prefix("apply_patch").or_else(|| rest.strip_prefix("applypatch"))?;
    let body = body.trim_start();
    if !body.starts_with("<<") || here_document(body)?.1 {
        return None;
    }
    Some((directory, parse(body)))
}

/// A word of a shell command without anything that a shell would expand; its quotes are taken off.
fn plain_word(word: &str) -> Option<&str> {
    for quote in ['\'', '"'] {
        if let Some(inner) = word.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return (!inner.contains([quote, '$', '`', '\\'])).then_some(inner);
        }
    }
    let is_plain = !word.is_empty() && !word.contains(|c: char| c.is_whitespace() || "'\"$`\\*?[]{}();&|<>~#!".contains(c));
    is_plain.then_some(word)
}

/// The text of a here-document that is all there is, and whether something follows it.
fn here_document(text: &str) -> Option<(&str, bool)> {
    let (word, body) = text.strip_prefix("<<")?.split_once('\n')?;
    let word = plain_word(word.trim())?;
    let mut offset = 0;
    for line in body.split_inclusive('\n') {
        if line.trim_end() == word {
            let follows = !body[offset + line.len()..].trim().is_empty();
            return Some((&body[..offset], follows));
        }
        offset += line.len();
    }
    None
}

fn unwrap_here_document(text: &str) -> &str {
    match here_document(text.trim_start()) {
        Some((body, false)) => body,
        _ => text,
    }
}

struct Parser<'t> {
    lines: std::iter::Peekable<std::iter::Enumerate<std::str::Lines<'t>>>,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str) -> Self {
        Self { lines: text.lines().enumerate().peekable() }
    }

    fn skip_blank(&mut self) {
        while self.lines.next_if(|(_, line)| line.trim().is_empty()).is_some() {}
    }

    /// The next line and its number.
    fn next(&mut self) -> Result<(usize, &'t str), ParseError> {
        self.lines.next().map(|(index, line)| (index + 1, line)).ok_or(ParseError::NoEnd)
    }

    fn peek(&mut self) -> Result<&'t str, ParseError> {
        self.lines.peek().map(|(_, line)| *line).ok_or(ParseError::NoEnd)
    }

    fn patch(mut self) -> Result<Patch, ParseError> {
        self.skip_blank();
        let begin = self.lines.next().map_or("", |(_, line)| line);
        if begin.trim() != BEGIN {
            return Err(ParseError::NoBegin { found: begin.trim().to_owned() });
        }
        let mut patch = Patch { environment: None, changes: Vec::new() };
        loop {
            self.skip_blank();
            let (line, text) = self.next()?;
            if text.trim() == END {
                break;
            }
            // Behind a whole file it says nothing that is not known already; models write it all the same.
            if text.trim() == END_OF_FILE && !patch.changes.is_empty() {
                continue;
            }
            if let Some(id) = value(text, ENVIRONMENT, line)? {
                if patch.environment.is_some() {
                    return Err(ParseError::EnvironmentTwice { line });
                }
                patch.environment = Some(id);
                continue;
            }
            let change = self.change(line, text)?;
            if patch.changes.iter().any(|earlier| earlier.path() == change.path()) {
                return Err(ParseError::PathTwice { line, path: change.path().to_owned() });
            }
            patch.changes.push(change);
        }
        self.skip_blank();
        match self.lines.next() {
            Some((index, _)) => Err(ParseError::TextAfterEnd { line: index + 1 }),
            None if patch.changes.is_empty() => Err(ParseError::Empty),
            None => Ok(patch),
        }
    }

    fn change(&mut self, line: usize, header: &str) -> Result<FileChange, ParseError> {
        if let Some(path) = value(header, ADD, line)? {
            return Ok(FileChange::Add { path, content: self.added()? });
        }
        if let Some(path) = value(header, DELETE, line)? {
            return Ok(FileChange::Delete { path });
        }
        let Some(path) = value(header, UPDATE, line)? else {
            return Err(ParseError::NoHeader { line, found: header.to_owned() });
        };
        let mut move_to = None;
        if self.peek()?.trim_start().starts_with(MOVE) {
            let (line, text) = self.next()?;
            move_to = value(text, MOVE, line)?;
        }
        let mut chunks = Vec::new();
        while !is_header(self.peek()?) {
            if self.peek()?.trim().is_empty() && self.is_last_blank() {
                self.skip_blank();
                continue;
            }
            chunks.push(self.chunk()?);
        }
        if chunks.is_empty() && move_to.is_none() {
            return Err(ParseError::NothingChanged { line, path });
        }
        Ok(FileChange::Update { path, move_to, chunks })
    }

    /// Whether only blank lines stand between here and the next header: they are air, not context.
    fn is_last_blank(&self) -> bool {
        self.lines.clone().map(|(_, line)| line).find(|line| !line.trim().is_empty()).is_none_or(is_header)
    }

    fn added(&mut self) -> Result<String, ParseError> {
        let mut lines = Vec::new();
        while !is_header(self.peek()?) && self.peek()?.trim() != END_OF_FILE {
            lines.push(self.next()?);
        }
        // Where no line has the mark, it was left out of all of them: then all are as they stand.
        if !lines.iter().any(|(_, text)| text.starts_with('+')) {
            let text: Vec<&str> = lines.iter().map(|(_, text)| *text).collect();
            let text = text.join("\n");
            let text = text.trim_end_matches([' ', '\n']);
            return Ok(if text.is_empty() { String::new() } else { format!("{text}\n") });
        }
        let mut content = String::new();
        for (line, text) in lines {
            match text.strip_prefix('+') {
                Some(rest) => {
                    content.push_str(rest);
                    content.push('\n');
                }
                None if text.trim().is_empty() => {}
                None => return Err(ParseError::NotAdded { line, found: text.to_owned() }),
            }
        }
        Ok(content)
    }

    fn chunk(&mut self) -> Result<Chunk, ParseError> {
        let mut chunk = Chunk::default();
        let mut at = 0;
        if let Some(text) = self.peek()?.trim_end().strip_prefix("@@") {
            chunk.heading = Some(heading(text.strip_prefix(' ').unwrap_or(text))).filter(|text| !text.is_empty()).map(str::to_owned);
            at = self.next()?.0;
        }
        loop {
            let text = self.peek()?;
            if text.trim() == END_OF_FILE {
                self.next()?;
                chunk.at_end = true;
                break;
            }
            if is_header(text) || text.starts_with("@@") || (text.trim().is_empty() && self.is_last_blank()) {
                break;
            }
            let (line, text) = self.next()?;
            at = line;
            chunk.lines.push(match text.split_at_checked(1) {
                Some((" ", rest)) => PatchLine::Kept(rest.to_owned()),
                Some(("-", rest)) => PatchLine::Removed(rest.to_owned()),
                Some(("+", rest)) => PatchLine::Added(rest.to_owned()),
                // Models drop the blank in front of an empty context line.
                _ if text.is_empty() => PatchLine::Kept(String::new()),
                _ => return Err(ParseError::NotAChange { line, found: text.to_owned() }),
            });
        }
        if chunk.lines.is_empty() {
            return Err(ParseError::EmptyChunk { line: at });
        }
        Ok(chunk)
    }
}

fn is_header(line: &str) -> bool {
    let line = line.trim();
    line == END || [ADD, DELETE, UPDATE, ENVIRONMENT].iter().any(|header| line.starts_with(header))
}

/// What follows a header, if the line is that header.
fn value(line: &str, header: &'static str, number: usize) -> Result<Option<String>, ParseError> {
    match line.trim().strip_prefix(header).map(str::trim) {
        None => Ok(None),
        Some("") => Err(ParseError::EmptyValue { line: number, header }),
        Some(value) => Ok(Some(value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::PatchLine::{Added, Kept, Removed};
    use super::*;

    fn one(text: &str) -> FileChange {
        parse(&format!("{BEGIN}\n{text}\n{END}\n")).unwrap().changes.remove(0)
    }

    #[test]
    fn a_patch_of_all_kinds() {
        let patch = parse(
            "*** Begin Patch\n*** Environment ID: worker\n*** Add File: a.txt\n+one\n+\n+three\n*** Delete File: b.txt\n\
             *** Update File: c.txt\n*** Move to: d.txt\n@@ fn main() {\n     let x = 1;\n-    old();\n+    new();\n*** End of File\n*** End Patch",
        )
        .unwrap();
        assert_eq!(patch.environment.as_deref(), Some("worker"));
        assert_eq!(patch.changes[0], FileChange::Add { path: "a.txt".into(), content: "one\n\nthree\n".into() });
        assert_eq!(patch.changes[1], FileChange::Delete { path: "b.txt".into() });
        let lines = vec![Kept("    let x = 1;".into()), Removed("    old();".into()), Added("    new();".into())];
        let chunk = Chunk { heading: Some("fn main() {".into()), lines, at_end: true };
        assert_eq!(patch.changes[2], FileChange::Update { path: "c.txt".into(), move_to: Some("d.txt".into()), chunks: vec![chunk] });
    }

    #[test]
    fn a_chunk_needs_no_marker_and_an_empty_line_is_context() {
        let FileChange::Update { chunks, .. } = one("*** Update File: a\n one\n\n-two\n+zwei\n\n@@\n-x") else { panic!() };
        let kept = |text: &str| Kept(text.into());
        assert_eq!(chunks[0].lines, [kept("one"), kept(""), Removed("two".into()), Added("zwei".into()), kept("")]);
        assert_eq!(chunks[1].lines, [Removed("x".into())]);
    }

    #[test]
    fn blank_lines_before_a_header_are_not_context() {
        let FileChange::Update { chunks, .. } = one("*** Update File: a\n-x\n+y\n\n") else { panic!() };
        assert_eq!(chunks[0].lines, [Removed("x".into()), Added("y".into())]);
    }

    #[test]
    fn a_here_document_is_taken_off() {
        for word in ["EOF", "'EOF'", "\"PATCH\""] {
            let end = word.trim_matches(['\'', '"']);
            let text = format!("<<{word}\n{BEGIN}\n*** Delete File: a\n{END}\n{end}\n");
            assert_eq!(parse(&text).unwrap().changes.len(), 1, "{word}");
        }
    }

    #[test]
    fn a_command_that_is_a_patch_is_told_from_one_that_is_not() {
        let patch = format!("<<'EOF'\n{BEGIN}\n*** Delete File: a\n{END}\nEOF");
        let plain = format!("apply_patch {patch}\n");
        let (directory, parsed) = parse_command(&plain).unwrap();
        assert_eq!((directory, parsed.unwrap().changes.len()), (None, 1));
        let in_directory = format!("cd 'my dir' && apply_patch {patch}");
        assert_eq!(parse_command(&in_directory).unwrap().0, Some("my dir"));
        for other in ["ls", "apply_patch --help", "cd $HOME && apply_patch <<EOF\nx\nEOF", &format!("apply_patch {patch}\nrm -rf x")] {
            assert!(parse_command(other).is_none(), "{other}");
        }
        assert!(parse_command("apply_patch <<EOF\nnonsense\nEOF").unwrap().1.is_err());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let cases: [(&str, ParseError); 9] = [
            ("nothing", ParseError::NoBegin { found: "nothing".into() }),
            ("<<EOF\n*** Begin Patch\n*** Delete File: a\nEOF", ParseError::NoEnd),
            ("*** Begin Patch\n*** End Patch", ParseError::Empty),
            ("*** Begin Patch\n*** Delete File: a\n*** End Patch\nmore", ParseError::TextAfterEnd { line: 4 }),
            ("*** Begin Patch\n*** Add File:\n+x\n*** End Patch", ParseError::EmptyValue { line: 2, header: ADD }),
            ("*** Begin Patch\n*** Add File: a\n+y\nx\n*** End Patch", ParseError::NotAdded { line: 4, found: "x".into() }),
            ("*** Begin Patch\n*** Update File: a\n*** End Patch", ParseError::NothingChanged { line: 2, path: "a".into() }),
            ("*** Begin Patch\n*** Update File: a\n@@\n*** End Patch", ParseError::EmptyChunk { line: 3 }),
            ("*** Begin Patch\n*** Update File: a\n*x\n*** End Patch", ParseError::NotAChange { line: 3, found: "*x".into() }),
        ];
        for (text, error) in cases {
            assert_eq!(parse(text), Err(error), "{text}");
        }
        let twice = "*** Begin Patch\n*** Delete File: a\n*** Add File: a\n+x\n*** End Patch";
        assert_eq!(parse(twice), Err(ParseError::PathTwice { line: 3, path: "a".into() }));
        let environments = "*** Begin Patch\n*** Environment ID: x\n*** Environment ID: y\n*** Delete File: a\n*** End Patch";
        assert_eq!(parse(environments), Err(ParseError::EnvironmentTwice { line: 3 }));
    }

    #[test]
    fn the_end_of_a_whole_file_may_be_told() {
        let patch = "*** Begin Patch\n*** Add File: a\n+one\n*** End of File\n*** Delete File: b\n*** End of File\n*** End Patch";
        let plain = patch.replace("*** End of File\n", "");
        assert_eq!(parse(patch), parse(&plain));
        assert_eq!(parse(patch).unwrap().changes.len(), 2);
        // Within a new file it is not a line of the file, and what follows must be one again.
        let within = "*** Begin Patch\n*** Add File: a\n+one\n*** End of File\n+two\n*** End Patch";
        assert!(matches!(parse(within), Err(ParseError::NoHeader { line: 5, .. })));
    }

    proptest! {
        #[test]
        fn rubbish_never_panics(text in "(\\*\\*\\* (Begin Patch|End Patch|Add File: a|Update File: b|Move to: c|End of File)|[-+ @]{1,2}[a-z]{0,2}|é|)(\n(\\*\\*\\* (Begin Patch|End Patch|Add File: a|Update File: b|Move to: c|End of File)|[-+ @]{1,2}[a-z]{0,2}|é|)){0,12}") {
            let _ = parse(&text);
            let _ = parse_command(&text);
        }
    }
}
