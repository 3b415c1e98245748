//! Patterns over absolute paths: `*` and `?` within a name, `[…]` one of several characters, `**` any number of names.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use thiserror::Error;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Glob {
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GlobError {
    #[error("the pattern `{0}` is not absolute")]
    Relative(String),
    #[error("the pattern `{0}` holds `.` or `..`")]
    Dots(String),
    #[error("the pattern `{0}` has an unclosed `[`")]
    Bracket(String),
}

impl Glob {
    /// An absolute pattern.
    pub fn new(text: impl Into<String>) -> Result<Self, GlobError> {
        let text = text.into();
        if !text.starts_with('/') {
            return Err(GlobError::Relative(text));
        }
        if text.split('/').any(|part| part == "." || part == "..") {
            return Err(GlobError::Dots(text));
        }
        if text.split('/').any(|part| part.matches('[').count() > part.matches(']').count()) {
            return Err(GlobError::Bracket(text));
        }
        Ok(Self { text })
    }

    /// The directory below which all matches lie.
    pub fn base(&self) -> PathBuf {
        let mut base = PathBuf::from("/");
        for part in self.parts().take_while(|part| !part.contains(['*', '?', '['])) {
            base.push(part);
        }
        base
    }

    fn parts(&self) -> impl Iterator<Item = &str> {
        self.text.split('/').filter(|part| !part.is_empty())
    }

    /// Whether the path, or a directory that it lies in, fits.
    pub fn holds(&self, path: &Path) -> bool {
        path.ancestors().any(|ancestor| self.fits(ancestor))
    }

    /// Whether exactly this path fits.
    pub fn fits(&self, path: &Path) -> bool {
        let pattern: Vec<&str> = self.parts().collect();
        let names: Vec<&OsStr> =
            path.components().filter_map(|part| if let Component::Normal(name) = part { Some(name) } else { None }).collect();
        // For each number of names: whether the pattern so far fits exactly that many of them.
        let mut reached = vec![false; names.len() + 1];
        reached[0] = true;
        for part in pattern {
            let mut next = vec![false; names.len() + 1];
            for at in 0..=names.len() {
                if !reached[at] {
                    continue;
                }
                if part == "**" {
                    next[at..].fill(true);
                } else if at < names.len() && fits_name(part.as_bytes(), names[at].as_bytes()) {
                    next[at + 1] = true;
                }
            }
            reached = next;
        }
        reached[names.len()]
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether one name fits one part. A star is tried short first and grown, so the time is bounded by the product of both.
fn fits_name(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, n));
            p += 1;
            continue;
        }
        if let Some(length) = one(&pattern[p..], name[n]) {
            p += length;
            n += 1;
            continue;
        }
        let Some((at, from)) = star else { return false };
        star = Some((at, from + 1));
        p = at + 1;
        n = from + 1;
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Whether the pattern's first element takes this byte; how long that element is.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern.first()? {
        b'?' => Some(1),
        b'[' => {
            let end = 1 + pattern[1..].iter().skip(1).position(|byte| *byte == b']')? + 1;
            let inside = &pattern[1..end];
            let (negated, inside) = match inside.first() {
                Some(b'!' | b'^') => (true, &inside[1..]),
                _ => (false, inside),
            };
            (in_class(inside, byte) != negated).then_some(end + 1)
        }
        literal => (*literal == byte).then_some(1),
    }
}

fn in_class(class: &[u8], byte: u8) -> bool {
    let mut at = 0;
    while at < class.len() {
        if at + 2 < class.len() && class[at + 1] == b'-' {
            if (class[at]..=class[at + 2]).contains(&byte) {
                return true;
            }
            at += 3;
        } else if class[at] == byte {
            return true;
        } else {
            at += 1;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns() {
        let fits = |pattern: &str, path: &str| Glob::new(pattern).unwrap().fits(Path::new(path));
        assert!(fits("/w/**/*.env", "/w/a.env") && fits("/w/**/*.env", "/w/x/y/.env") && !fits("/w/**/*.env", "/w/x/env"));
        assert!(fits("/**", "/") && fits("/**", "/a/b") && fits("/a/?", "/a/b") && !fits("/a/?", "/a/bc"));
        assert!(fits("/a/[b-d]x", "/a/cx") && !fits("/a/[!b-d]x", "/a/cx") && fits("/a/[]]", "/a/]"));
        assert!(fits("/a*b*c", "/axxbyyc") && !fits("/a*b*c", "/axxbyy"));
        assert!(Glob::new("/w/*.key").unwrap().holds(Path::new("/w/x.key/below")));
        assert_eq!(Glob::new("/w/a/**/*.env").unwrap().base(), Path::new("/w/a"));
        assert!(matches!(Glob::new("a/*"), Err(GlobError::Relative(_))));
        assert!(matches!(Glob::new("/a/../*"), Err(GlobError::Dots(_))));
        assert!(matches!(Glob::new("/a/[x"), Err(GlobError::Bracket(_))));
    }

    proptest! {
        #[test]
        fn a_pattern_without_marks_fits_only_itself(a in "(/[ab]{1,2}){0,3}", b in "(/[ab]{1,2}){0,3}") {
            let (a, b) = (format!("/{a}"), format!("/{b}"));
            prop_assert_eq!(Glob::new(a.clone()).unwrap().fits(Path::new(&b)), Path::new(&a) == Path::new(&b));
        }

        #[test]
        fn any_pattern_ends(pattern in "/[a*?\\[\\]/!-]{0,24}", path in "/[ab/]{0,24}") {
            if let Ok(glob) = Glob::new(pattern) {
                let _ = glob.holds(Path::new(&path));
            }
        }
    }
}
