//! The patch format that models write: which files to add, delete, change or move, with context instead of line numbers.
//!
//! Everything here is a function of text. Reading and writing files, all of a patch or none of it, is the tool's business.

mod apply;
mod diff;
mod lenient;
mod parse;

pub use apply::{Applied, ApplyError, apply};
pub use diff::{Diff, Disagreement};
pub use lenient::accepted_form;
pub use parse::{ParseError, parse, parse_command};

/// What a patch wants, file by file, in the order in which it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// The environment whose files are meant, if the patch says so.
    pub environment: Option<String>,
    pub changes: Vec<FileChange>,
}

/// What is wanted of one file. Paths are as written; the code that applies the patch decides what they are relative to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileChange {
    Add { path: String, content: String },
    Delete { path: String },
    Update { path: String, move_to: Option<String>, chunks: Vec<Chunk> },
}

impl FileChange {
    pub fn path(&self) -> &str {
        match self {
            Self::Add { path, .. } | Self::Delete { path } | Self::Update { path, .. } => path,
        }
    }

    /// All files that it touches: a file that is moved is at its new place, too.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let target = if let Self::Update { move_to, .. } = self { move_to.as_deref() } else { None };
        std::iter::once(self.path()).chain(target)
    }
}

/// A run of lines to find and what becomes of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunk {
    /// A line above the place, such as a function's head, that tells it from similar places.
    pub heading: Option<String>,
    pub lines: Vec<PatchLine>,
    /// Whether the place is the end of the file.
    pub at_end: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatchLine {
    Kept(String),
    Removed(String),
    Added(String),
}

/// The hunks of a change before the file was read: they are numbered as if nothing stood before and between them.
pub fn draft(chunks: &[Chunk]) -> String {
    let (mut old, mut new, mut text) = (1, 1, String::new());
    for chunk in chunks {
        let had = chunk.lines.iter().filter(|line| line.present().is_some()).count();
        let has = chunk.lines.iter().filter(|line| !matches!(line, PatchLine::Removed(_))).count();
        let begin = |line: usize, count: usize| if count == 0 { line - 1 } else { line };
        text.push_str(&format!("@@ -{},{had} +{},{has} @@", begin(old, had), begin(new, has)));
        if let Some(heading) = &chunk.heading {
            text.push(' ');
            text.push_str(heading);
        }
        text.push('\n');
        for line in &chunk.lines {
            let (mark, line) = match line {
                PatchLine::Kept(line) => (' ', line),
                PatchLine::Removed(line) => ('-', line),
                PatchLine::Added(line) => ('+', line),
            };
            text.push(mark);
            text.push_str(line);
            text.push('\n');
        }
        (old, new) = (old + had, new + has);
    }
    text
}

impl PatchLine {
    /// Its text if the file has it before the change.
    fn present(&self) -> Option<&str> {
        match self {
            Self::Kept(text) | Self::Removed(text) => Some(text),
            Self::Added(_) => None,
        }
    }
}
