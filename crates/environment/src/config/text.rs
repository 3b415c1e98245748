//! The text of a file, and where in it something stands.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::DeValue;

use super::EnvironmentsFileError;

pub(super) type Value<'a> = Spanned<DeValue<'a>>;

pub(super) struct Text<'a> {
    pub text: &'a str,
    pub path: &'a Path,
}

impl Text<'_> {
    /// The line of a place in the text, counted from one.
    pub(super) fn line(&self, at: usize) -> usize {
        self.text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1
    }

    /// What is wrong, with the place.
    pub(super) fn at(&self, line: usize, what: &str) -> String {
        format!("{}:{line}: {what}", self.path.display())
    }

    pub(super) fn fatal(&self, span: Range<usize>, what: &str) -> EnvironmentsFileError {
        EnvironmentsFileError::Wrong { path: self.path.to_owned(), line: self.line(span.start), what: what.to_owned() }
    }
}
