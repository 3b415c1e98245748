//! Paths on the wire: `file:` URIs.
//!
//! A path belongs to the machine it names, which may be of another kind than this one, and its bytes need not be UTF-8.
//! So a path stays a normalised URI until code on that machine asks for its native form.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// What must be escaped inside a path; everything beyond ASCII is escaped as well.
const ESCAPED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'`')
    .add(b'{')
    .add(b'}')
    .add(b'\\')
    .add(b'^')
    .add(b'|');

/// A normalised `file:` URI.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathUri {
    /// Empty for this machine; a share's host otherwise.
    host: String,
    /// Absolute, percent-encoded, without `.` and `..` segments and without a trailing slash (except the root).
    path: String,
}

/// Why a text is not a path, or a path not one of this machine.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum PathError {
    #[error("invalid URI: relative URL without a base")]
    NotAUri,
    #[error("unsupported path URI scheme `{0}`")]
    Scheme(String),
    #[error("query parameters are not allowed in path URIs")]
    Query,
    #[error("fragments are not allowed in path URIs")]
    Fragment,
    #[error("'{uri}' is invalid on '{os}'", os = std::env::consts::OS)]
    NotNative { uri: String },
    #[error("path {0:?} is not absolute")]
    Relative(PathBuf),
}

impl PathUri {
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let (scheme, rest) = split_scheme(text).ok_or(PathError::NotAUri)?;
        if !scheme.eq_ignore_ascii_case("file") {
            return Err(PathError::Scheme(scheme.to_ascii_lowercase()));
        }
        let (rest, fragment) = cut(rest, '#');
        let (rest, query) = cut(rest, '?');
        if query {
            return Err(PathError::Query);
        }
        if fragment {
            return Err(PathError::Fragment);
        }
        let (host, path) = match rest.strip_prefix("//") {
            Some(authority) => match authority.find('/') {
                Some(at) => authority.split_at(at),
                None => (authority, "/"),
            },
            None => ("", rest),
        };
        let host = if host.eq_ignore_ascii_case("localhost") { String::new() } else { host.to_ascii_lowercase() };
        let uri = Self { host, path: normalise(path) };
        if percent_decode_str(&uri.path).any(|byte| byte == 0) {
            return Err(PathError::NotNative { uri: text.to_owned() });
        }
        Ok(uri)
    }

    /// The URI of an absolute path of this machine.
    pub fn from_native(path: &Path) -> Result<Self, PathError> {
        if !path.is_absolute() {
            return Err(PathError::Relative(path.to_owned()));
        }
        let encoded = percent_encode(path.as_os_str().as_bytes(), ESCAPED).to_string();
        Ok(Self { host: String::new(), path: normalise(&encoded) })
    }

    /// An absolute path as a user would type it on the machine it belongs to, POSIX or Windows, whichever this one is.
    pub fn from_syntax(text: &str) -> Result<Self, PathError> {
        let relative = || PathError::Relative(PathBuf::from(text));
        if text.contains('\0') {
            return Err(PathError::NotNative { uri: text.to_owned() });
        }
        if text.starts_with('/') {
            return Self::from_native(Path::new(text));
        }
        let encode = |path: &str| normalise(&percent_encode(path.replace('\\', "/").as_bytes(), ESCAPED).to_string());
        if let Some(share) = text.strip_prefix(r"\\") {
            let (host, path) = share.split_once('\\').ok_or_else(relative)?;
            let is_host = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
            return if is_host { Ok(Self { host: host.to_ascii_lowercase(), path: encode(path) }) } else { Err(relative()) };
        }
        match text.as_bytes() {
            [letter, b':', b'/' | b'\\', ..] if letter.is_ascii_alphabetic() => Ok(Self { host: String::new(), path: encode(text) }),
            _ => Err(relative()),
        }
    }

    /// The root of a machine that has only one.
    pub fn root() -> Self {
        Self { host: String::new(), path: "/".into() }
    }

    /// A URI, or an absolute path of either kind.
    pub fn parse_either(text: &str) -> Result<Self, PathError> {
        match split_scheme(text) {
            // One letter is a drive.
            Some((scheme, _)) if scheme.len() > 1 => Self::parse(text),
            _ => Self::from_syntax(text),
        }
    }

    /// Somewhere below, or beside: `text` is relative, spelled as on the machine that this path belongs to.
    pub fn join(&self, text: &str) -> Self {
        let is_windows = !self.host.is_empty() || has_drive_letter(&self.path);
        let text = if is_windows { text.replace('\\', "/") } else { text.to_owned() };
        let encoded = percent_encode(text.as_bytes(), ESCAPED);
        Self { host: self.host.clone(), path: normalise(&format!("{}/{encoded}", self.path)) }
    }

    /// The path as a user would type it on the machine it belongs to. Bytes that are not UTF-8 are shown as such.
    pub fn to_syntax(&self) -> String {
        let path = percent_decode_str(&self.path).decode_utf8_lossy();
        if !self.host.is_empty() {
            return format!(r"\\{}{}", self.host, path.replace('/', r"\"));
        }
        if has_drive_letter(&self.path) {
            let drive = path.trim_start_matches('/').replace('/', r"\");
            return if drive.len() == 2 { drive + r"\" } else { drive };
        }
        path.into_owned()
    }

    /// The path on this machine. A share or a drive letter has none here.
    pub fn to_native(&self) -> Result<PathBuf, PathError> {
        if !self.host.is_empty() || has_drive_letter(&self.path) {
            return Err(PathError::NotNative { uri: self.to_string() });
        }
        let bytes: Vec<u8> = percent_decode_str(&self.path).collect();
        Ok(PathBuf::from(OsStr::from_bytes(&bytes)))
    }

    /// What lies in this directory under a name.
    pub fn child(&self, name: &Escaped) -> Self {
        let name = percent_encode(&name.0, ESCAPED);
        let slash = if self.path.ends_with('/') { "" } else { "/" };
        Self { host: self.host.clone(), path: format!("{}{slash}{name}", self.path) }
    }

    /// The directory that it lies in and its name there; nothing for the root.
    pub fn split(&self) -> Option<(Self, Escaped)> {
        let (parent, name) = self.path.rsplit_once('/').filter(|(_, name)| !name.is_empty())?;
        let parent = if parent.is_empty() { "/" } else { parent };
        Some((Self { host: self.host.clone(), path: parent.to_owned() }, Escaped(percent_decode_str(name).collect())))
    }

    /// Whether this is `other` or lies somewhere below it.
    pub fn is_within(&self, other: &Self) -> bool {
        let below = |rest: &str| rest.is_empty() || rest.starts_with('/') || other.path == "/";
        self.host == other.host && self.path.strip_prefix(&other.path).is_some_and(below)
    }
}

/// Bytes that are no whole path, such as a file's name or what a link says; percent-encoded on the wire.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Escaped(pub Vec<u8>);

impl fmt::Debug for Escaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", percent_encode(&self.0, ESCAPED))
    }
}

impl Serialize for Escaped {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&percent_encode(&self.0, ESCAPED))
    }
}

impl<'de> Deserialize<'de> for Escaped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(Self(percent_decode_str(&text).collect()))
    }
}

/// Splits off everything from `mark` on; says whether there was one.
fn cut(text: &str, mark: char) -> (&str, bool) {
    match text.find(mark) {
        Some(at) => (&text[..at], true),
        None => (text, false),
    }
}

fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let mut chars = scheme.chars();
    let valid = chars.next()?.is_ascii_alphabetic() && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    valid.then_some((scheme, rest))
}

fn normalise(path: &str) -> String {
    let mut segments: Vec<String> = Vec::new();
    for segment in path.split('/') {
        match segment.to_ascii_lowercase().replace("%2e", ".").as_str() {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            _ => {
                // Escape what should have been escaped, but leave existing escapes alone.
                let bytes: Vec<u8> = percent_decode_str(segment).collect();
                segments.push(percent_encode(&bytes, ESCAPED).to_string());
            }
        }
    }
    let mut out = String::with_capacity(path.len() + 1);
    for segment in &segments {
        out.push('/');
        out.push_str(segment);
    }
    if out.is_empty() {
        out.push('/');
    }
    out
}

fn has_drive_letter(path: &str) -> bool {
    let bytes = path.as_bytes();
    bytes.len() >= 3 && bytes[0] == b'/' && bytes[1].is_ascii_alphabetic() && bytes[2] == b':' && matches!(bytes.get(3), None | Some(b'/'))
}

impl fmt::Display for PathUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file://{}{}", self.host, self.path)
    }
}

impl fmt::Debug for PathUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for PathUri {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PathUri {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = PathUri;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<PathUri, E> {
                PathUri::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(text: &str) -> PathBuf {
        PathUri::parse(text).unwrap().to_native().unwrap()
    }

    #[test]
    fn accepted_spellings_normalise() {
        for text in [
            "file:/p/q",
            "FILE:///p/q",
            "file://localhost/p/q",
            "file:///p/./q/",
            "file:///p/x/../q",
            "file:///p/x/%2e%2E/q",
            "file:////p//q",
        ] {
            assert_eq!(PathUri::parse(text).unwrap().to_string(), "file:///p/q", "{text}");
        }
        assert_eq!(native("file:///"), Path::new("/"));
        assert_eq!(native("file:///../.."), Path::new("/"));
        assert_eq!(native("file:///a%20b%25.txt"), Path::new("/a b%.txt"));
        assert_eq!(native("file:///a b"), Path::new("/a b"));
    }

    #[test]
    fn bytes_that_are_not_utf8_survive() {
        let path = Path::new(OsStr::from_bytes(b"/tmp/\xff\xfe name"));
        let uri = PathUri::from_native(path).unwrap();
        assert_eq!(uri.to_string(), "file:///tmp/%FF%FE%20name");
        assert_eq!(uri.to_native().unwrap(), path);
        assert_eq!(PathUri::parse(&uri.to_string()).unwrap(), uri);
    }

    #[test]
    fn refusals_say_why() {
        let why = |text: &str| PathUri::parse(text).unwrap_err().to_string();
        assert_eq!(why("/tmp"), "invalid URI: relative URL without a base");
        assert_eq!(why("C:"), "unsupported path URI scheme `c`");
        assert_eq!(why("http://h/x"), "unsupported path URI scheme `http`");
        assert_eq!(why("file:///x?q"), "query parameters are not allowed in path URIs");
        assert_eq!(why("file:///x#f"), "fragments are not allowed in path URIs");
        assert_eq!(why("file:///tmp/%00x"), "'file:///tmp/%00x' is invalid on 'linux'");
    }

    #[test]
    fn paths_of_other_machines_parse_but_have_no_native_form() {
        for text in ["file://host/share", "file:///C:/x", "file:///c:"] {
            let uri = PathUri::parse(text).unwrap();
            assert_eq!(uri.to_native().unwrap_err().to_string(), format!("'{text}' is invalid on 'linux'"));
        }
        assert_eq!(native("file:///C:x"), Path::new("/C:x"));
    }

    #[test]
    fn paths_are_taken_apart_and_put_together() {
        let root = PathUri::parse("file:///").unwrap();
        let name = Escaped(b"a \xff%".to_vec());
        let child = root.child(&name);
        assert_eq!(child.to_string(), "file:///a%20%FF%25");
        assert_eq!(child.split(), Some((root.clone(), name.clone())));
        assert_eq!(child.child(&name).split(), Some((child.clone(), name.clone())));
        assert_eq!(root.split(), None);
        assert_eq!(serde_json::to_string(&name).unwrap(), r#""a%20%FF%25""#);
        assert_eq!(serde_json::from_str::<Escaped>(r#""a%20%FF%25""#).unwrap(), name);
        let path = |text| PathUri::parse(text).unwrap();
        assert!(path("file:///a/b").is_within(&path("file:///a")) && path("file:///a").is_within(&root));
        assert!(path("file:///a").is_within(&path("file:///a")) && !path("file:///ab").is_within(&path("file:///a")));
    }

    #[test]
    fn paths_are_read_and_shown_as_their_machine_spells_them() {
        for (text, uri) in [
            ("/a b/../c%", "file:///c%25"),
            (r"C:\Users\me", "file:///C:/Users/me"),
            ("c:/x", "file:///c:/x"),
            (r"D:\", "file:///D:"),
            (r"\\Srv\share\x", "file://srv/share/x"),
        ] {
            assert_eq!(PathUri::from_syntax(text).unwrap().to_string(), uri, "{text}");
            assert_eq!(PathUri::parse_either(text).unwrap(), PathUri::parse_either(uri).unwrap());
        }
        for (uri, text) in
            [("file:///c%25/d", "/c%/d"), ("file:///C:/a%20b", r"C:\a b"), ("file:///C:", r"C:\"), ("file://srv/share/x", r"\\srv\share\x")]
        {
            assert_eq!(PathUri::parse(uri).unwrap().to_syntax(), text);
        }
        for text in ["", "x/y", "C:x", "C:", r"\x", "file:///x", r"\\", r"\\srv", "~/x"] {
            assert!(PathUri::from_syntax(text).is_err(), "{text}");
        }
        assert!(PathUri::from_syntax("/a\0b").is_err());
    }

    #[test]
    fn native_paths_must_be_absolute() {
        assert!(matches!(PathUri::from_native(Path::new("x")), Err(PathError::Relative(_))));
    }
}
