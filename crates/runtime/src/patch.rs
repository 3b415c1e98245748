//! The patch format that models write: which files to add, delete, change or move, with context instead of line numbers.
//!
//! Everything here is a function of text. Reading and writing files, all of a patch or none of it, is the tool's business.

mod apply;
mod parse;

pub use apply::{Applied, ApplyError, apply};
pub use parse::{ParseError, parse, parse_command};

/// What a patch wants, file by file, in the order in which it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// The environment whose files are meant, if the patch says so.
    pub environment: Option<String>,
    pub changes: Vec<FileChange>,
}

/// What is wanted of one file. Paths are as written; whoever applies the patch decides what they are relative to.
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
}

/// A run of lines to find and what becomes of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunk {
    /// A line above the place, such as a function's head, that tells it from similar places.
    pub heading: Option<String>,
    pub lines: Vec<Line>,
    /// Whether the place is the end of the file.
    pub at_end: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Kept(String),
    Removed(String),
    Added(String),
}

impl Chunk {
    /// As a piece of a patch, for people.
    pub fn to_diff(&self) -> String {
        let mut text = match &self.heading {
            Some(heading) => format!("@@ {heading}\n"),
            None => "@@\n".to_owned(),
        };
        for line in &self.lines {
            let (mark, line) = match line {
                Line::Kept(line) => (' ', line),
                Line::Removed(line) => ('-', line),
                Line::Added(line) => ('+', line),
            };
            text.push(mark);
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}

impl Line {
    /// Its text if the file has it before the change.
    fn present(&self) -> Option<&str> {
        match self {
            Self::Kept(text) | Self::Removed(text) => Some(text),
            Self::Added(_) => None,
        }
    }
}
