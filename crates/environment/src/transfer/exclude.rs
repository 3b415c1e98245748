//! Names that a copy leaves out.

use thiserror::Error;

/// A pattern: `*` stands for any part of a name, `**` also for slashes, `?` for one character. Without a slash it is about names at any depth, with one
/// about paths from the top of the copied directory on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExcludePattern(Vec<u8>);

#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum PatternError {
    #[error("a pattern is empty")]
    Empty,
    #[error("the pattern `{0}` leads out of the directory that is copied")]
    Outside(String),
}

impl ExcludePattern {
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let pattern = text.strip_prefix("./").unwrap_or(text).trim_end_matches('/');
        if pattern.split('/').any(|part| part == "..") {
            return Err(PatternError::Outside(text.to_owned()));
        }
        match pattern {
            "" => Err(PatternError::Empty),
            pattern => Ok(Self(pattern.as_bytes().to_vec())),
        }
    }

    /// Whether something is meant whose names from the top on are these.
    pub(super) fn excludes<'a>(&self, names: impl DoubleEndedIterator<Item = &'a [u8]> + Clone) -> bool {
        let (pattern, is_path) = match self.0.strip_prefix(b"/") {
            Some(pattern) => (pattern, true),
            None => (&self.0[..], self.0.contains(&b'/')),
        };
        if is_path {
            let path = names.collect::<Vec<_>>().join(&b'/');
            return matches(pattern, &path);
        }
        names.clone().next_back().is_some_and(|name| matches(pattern, name))
    }
}

fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', b'*', rest @ ..] => {
            // A pattern that begins with `**/` is also about what lies at the top.
            let rest = rest.strip_prefix(b"/").unwrap_or(rest);
            (0..=text.len()).any(|at| matches(rest, &text[at..]))
        }
        [b'*', rest @ ..] => {
            let most = text.iter().position(|byte| *byte == b'/').unwrap_or(text.len());
            (0..=most).any(|at| matches(rest, &text[at..]))
        }
        [b'?', rest @ ..] => text.split_first().is_some_and(|(byte, text)| *byte != b'/' && matches(rest, text)),
        [byte, rest @ ..] => text.split_first().is_some_and(|(first, text)| first == byte && matches(rest, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_about_names_or_about_paths() {
        let excludes = |pattern: &str, path: &str| {
            let names: Vec<&[u8]> = path.split('/').map(str::as_bytes).collect();
            ExcludePattern::parse(pattern).unwrap().excludes(names.iter().copied())
        };
        for (pattern, path) in [
            ("*.o", "a/b/c.o"),
            ("target", "x/target"),
            ("target/", "target"),
            ("/target", "target"),
            ("a/*/c", "a/b/c"),
            ("**/c", "a/b/c"),
            ("**/c", "c"),
            ("./a/b", "a/b"),
            ("f?", "f1"),
        ] {
            assert!(excludes(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [("*.o", "c.op"), ("/target", "x/target"), ("a/*/c", "a/b/b/c"), ("f?", "f"), ("a/b", "x/a/b"), ("*", "")] {
            assert!(!excludes(pattern, path) || pattern == "*", "{pattern} {path}");
        }
        assert_eq!(ExcludePattern::parse("/"), Err(PatternError::Empty));
        assert!(matches!(ExcludePattern::parse("../x"), Err(PatternError::Outside(_))));
    }
}
