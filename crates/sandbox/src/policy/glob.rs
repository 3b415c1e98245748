//! Patterns over absolute paths: `*` and `?` within a name, `[…]` one of several characters, `**` any number of names.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use thiserror::Error;

const MARKS: [char; 3] = ['*', '?', '['];

/// A pattern below a directory. The directory is taken as it is, whatever characters it holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Glob {
    base: PathBuf,
    pattern: String,
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
        Self::below(Path::new("/"), &text)
    }

    /// A pattern below an absolute directory. Names without marks at its beginning become part of the directory.
    pub fn below(base: &Path, text: &str) -> Result<Self, GlobError> {
        if text.split('/').any(|part| part == "." || part == "..") {
            return Err(GlobError::Dots(text.to_owned()));
        }
        if text.split('/').any(|part| !is_closed(part.as_bytes())) {
            return Err(GlobError::Bracket(text.to_owned()));
        }
        let mut parts = text.split('/').filter(|part| !part.is_empty()).peekable();
        let mut base = base.to_owned();
        while let Some(part) = parts.next_if(|part| !part.contains(MARKS)) {
            base.push(part);
        }
        Ok(Self { base, pattern: parts.collect::<Vec<_>>().join("/") })
    }

    /// The same below another directory: where the one that was named really is.
    #[must_use]
    pub fn moved_to(self, base: PathBuf) -> Self {
        Self { base, ..self }
    }

    /// The directory below which all matches lie.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// What has to fit below it.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }

    fn parts(&self) -> impl Iterator<Item = &str> {
        self.pattern.split('/').filter(|part| !part.is_empty())
    }

    /// Whether the path, or a directory that it lies in, fits.
    pub fn holds(&self, path: &Path) -> bool {
        path.ancestors().take_while(|ancestor| ancestor.starts_with(&self.base)).any(|ancestor| self.fits(ancestor))
    }

    /// Whether exactly this path fits.
    pub fn fits(&self, path: &Path) -> bool {
        self.compare(path).is_some_and(|ways| ways.fits)
    }

    /// Whether something below this path could fit.
    pub fn leads_below(&self, path: &Path) -> bool {
        self.compare(path).is_some_and(|ways| ways.leads_below)
    }

    /// Whether something that fits still does when a directory on the way to it is renamed, as long as it stays below the base:
    /// the pattern then speaks of its own name only.
    pub fn follows(&self) -> bool {
        let mut parts = self.parts();
        parts.next() == Some("**") && parts.next().is_some_and(|name| name != "**") && parts.next().is_none()
    }

    fn compare(&self, path: &Path) -> Option<Ways> {
        let below = path.strip_prefix(&self.base).ok()?;
        let names: Vec<&OsStr> =
            below.components().filter_map(|part| if let Component::Normal(name) = part { Some(name) } else { None }).collect();
        // For each number of names: whether the pattern so far fits exactly that many of them.
        let mut reached = vec![false; names.len() + 1];
        reached[0] = true;
        let mut leads_below = false;
        for part in self.parts() {
            leads_below |= reached[names.len()];
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
        Some(Ways { fits: reached[names.len()], leads_below })
    }
}

struct Ways {
    fits: bool,
    leads_below: bool,
}

/// An absolute pattern that means the same. Bytes of the directory that are no text become `?`, which denies a little more.
impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use std::fmt::Write as _;
        for part in self.base.components() {
            let Component::Normal(name) = part else { continue };
            f.write_char('/')?;
            for chunk in name.as_bytes().utf8_chunks() {
                for letter in chunk.valid().chars() {
                    if MARKS.contains(&letter) { write!(f, "[{letter}]")? } else { f.write_char(letter)? }
                }
                for _ in chunk.invalid() {
                    f.write_char('?')?;
                }
            }
        }
        write!(f, "/{}", self.pattern)
    }
}

/// Whether every `[` of one part has its `]`.
fn is_closed(mut pattern: &[u8]) -> bool {
    while let Some(first) = pattern.first() {
        let length = if *first == b'[' { class_length(pattern) } else { Some(1) };
        let Some(length) = length else { return false };
        pattern = &pattern[length..];
    }
    true
}

/// How long the class is that a pattern begins with. A `]` right behind the `[` stands for itself.
fn class_length(pattern: &[u8]) -> Option<usize> {
    Some(2 + pattern.iter().skip(2).position(|byte| *byte == b']')? + 1)
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
            let length = class_length(pattern)?;
            let inside = &pattern[1..length - 1];
            let (negated, inside) = match inside.first() {
                Some(b'!' | b'^') => (true, &inside[1..]),
                _ => (false, inside),
            };
            (in_class(inside, byte) != negated).then_some(length)
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
        for open in ["/a/[x", "/a/[]", "/a/[]x/b]", "/a/[x]["] {
            assert!(matches!(Glob::new(open), Err(GlobError::Bracket(_))), "{open}");
        }
    }

    #[test]
    fn a_directory_is_taken_as_it_is() {
        let glob = Glob::below(Path::new("/w/[id]*"), "**/*.env").unwrap();
        assert!(glob.fits(Path::new("/w/[id]*/a/b.env")) && glob.holds(Path::new("/w/[id]*/b.env/x")));
        assert!(!glob.fits(Path::new("/w/i/b.env")) && !glob.holds(Path::new("/w/x.env")));
        assert_eq!(glob.to_string(), "/w/[[]id][*]/**/*.env");
        let glob = Glob::below(Path::new("/w"), "a/b/*.env").unwrap();
        assert_eq!((glob.base(), glob.pattern()), (Path::new("/w/a/b"), "*.env"));
        assert!(glob.moved_to("/real".into()).fits(Path::new("/real/x.env")));
        // Names that are no text are still held by what is made of them.
        let raw = PathBuf::from(OsStr::from_bytes(b"/w/\xff[x"));
        let again = Glob::new(Glob::below(&raw, "*.env").unwrap().to_string()).unwrap();
        assert!(again.fits(&raw.join("a.env")));
    }

    #[test]
    fn a_search_knows_where_to_look() {
        let leads = |pattern: &str, path: &str| Glob::new(pattern).unwrap().leads_below(Path::new(path));
        assert!(leads("/w/*/x", "/w") && leads("/w/*/x", "/w/a") && !leads("/w/*/x", "/w/a/x") && !leads("/w/*/x", "/w/a/b"));
        assert!(leads("/w/**/x", "/w/a/b/c") && !leads("/w/a*/**/x", "/w/b") && !leads("/w/a", "/w/a"));
        let follows = |pattern: &str| Glob::new(pattern).unwrap().follows();
        assert!(follows("/w/**/*.env") && follows("/**/x"));
        assert!(!follows("/w/*/**/x") && !follows("/w/**/a/*.env") && !follows("/w/**") && !follows("/w/**/**") && !follows("/w/*.env"));
    }

    proptest! {
        #[test]
        fn a_pattern_without_marks_fits_only_itself(a in "(/[ab]{1,2}){0,3}", b in "(/[ab]{1,2}){0,3}") {
            let (a, b) = (format!("/{a}"), format!("/{b}"));
            prop_assert_eq!(Glob::new(a.clone()).unwrap().fits(Path::new(&b)), Path::new(&a) == Path::new(&b));
        }

        #[test]
        fn the_text_of_a_pattern_means_the_same(base in "(/[ab*?\\[\\]!-]{1,3}){0,3}", pattern in "([ab*?]{1,2}/){0,2}[ab*]{1,2}", path in "(/[ab*?\\[\\]!-]{1,3}){0,4}") {
            let (base, path) = (format!("/{base}"), format!("/{path}"));
            let glob = Glob::below(Path::new(&base), &pattern).unwrap();
            let again = Glob::new(glob.to_string()).unwrap();
            for path in [path.clone(), format!("{base}{path}"), format!("{base}/a/b")] {
                prop_assert_eq!(glob.fits(Path::new(&path)), again.fits(Path::new(&path)), "{} {}", glob, path);
                prop_assert_eq!(glob.holds(Path::new(&path)), again.holds(Path::new(&path)), "{} {}", glob, path);
            }
        }

        #[test]
        fn the_way_to_what_fits_is_looked_at(pattern in "([ab*?]{1,2}/){0,3}[ab*]{1,2}", path in "(/[ab]{1,2}){1,4}") {
            let (glob, path) = (Glob::new(format!("/{pattern}")).unwrap(), Path::new(&path));
            if glob.fits(path) {
                let way = path.ancestors().skip(1).filter(|directory| directory.starts_with(glob.base()));
                prop_assert!(way.into_iter().all(|directory| glob.fits(directory) || glob.leads_below(directory)));
            }
        }

        #[test]
        fn any_pattern_ends(pattern in "/[a*?\\[\\]/!-]{0,24}", path in "/[ab/]{0,24}") {
            if let Ok(glob) = Glob::new(pattern) {
                let _ = glob.holds(Path::new(&path));
            }
        }
    }
}
