//! Edits `environments.toml` and keeps what the user wrote: order, comments and blanks.
//!
//! Entries are added and taken out as text. What comes out is read again and must mean exactly what was wanted, else the
//! file is left alone.

use std::path::Path;

use outpost_wire::EnvironmentId;
use thiserror::Error;

use super::{EnvironmentsFileError, parse};
use crate::provider::{ConfigurationSnapshot, ConfiguredEnvironment};

/// An environment to be written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEntry {
    pub id: EnvironmentId,
    /// Keys and values, in the order in which they are to stand there.
    pub members: Vec<(&'static str, EditedMember)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditedMember {
    Text(String),
    Texts(Vec<String>),
    Number(u64),
}

#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum EditError {
    #[error(transparent)]
    Config(#[from] EnvironmentsFileError),
    #[error("there is an environment `{0}` already; remove it first")]
    Exists(EnvironmentId),
    #[error("there is no environment `{0}` in the file")]
    Missing(EnvironmentId),
    #[error("{0}")]
    Wrong(String),
    #[error("`{0}` is the default; name another one there first")]
    IsDefault(EnvironmentId),
    #[error("the file is written in a way that cannot be changed safely; use an editor")]
    Unclear,
}

/// The text with one more entry, at its end.
pub fn add(text: &str, path: &Path, entry: &NewEntry) -> Result<String, EditError> {
    let before = parse(text, path)?;
    if before.ids().contains(&entry.id) {
        return Err(EditError::Exists(entry.id.clone()));
    }
    let mut after = text.trim_end().to_owned();
    if !after.is_empty() {
        after.push_str("\n\n");
    }
    after.push_str(&format!("[[environments]]\nid = {}\n", quoted(entry.id.as_str())));
    for (key, member) in &entry.members {
        let value = match member {
            EditedMember::Text(text) => quoted(text),
            EditedMember::Number(number) => number.to_string(),
            EditedMember::Texts(texts) => format!("[{}]", texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", ")),
        };
        after.push_str(&format!("{key} = {value}\n"));
    }
    let read = parse(&after, path).map_err(|_| EditError::Unclear)?;
    match read.entries.split_last() {
        Some((ConfiguredEnvironment { id, definition: Err(what) }, _)) if *id == entry.id => Err(EditError::Wrong(what.clone())),
        Some((added, others)) if added.id == entry.id && is_same(&before, &read, others) => Ok(after),
        _ => Err(EditError::Unclear),
    }
}

/// The text without an entry.
pub fn remove(text: &str, path: &Path, id: &EnvironmentId) -> Result<String, EditError> {
    let before = parse(text, path)?;
    if !before.entries.iter().any(|entry| entry.id == *id) {
        return Err(EditError::Missing(id.clone()));
    }
    if matches!(&before.default, crate::provider::DefaultChoice::Id(default) if default == id) {
        return Err(EditError::IsDefault(id.clone()));
    }
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut after = String::with_capacity(text.len());
    let mut index = 0;
    while index < lines.len() {
        let end = if is_header(lines[index]) { block_end(&lines, index) } else { index + 1 };
        let block = lines[index..end].concat();
        let is_wanted = is_header(lines[index]) && parse(&block, path).is_ok_and(|read| read.entries.iter().any(|entry| entry.id == *id));
        if !is_wanted {
            after.push_str(&block);
        }
        index = end;
    }
    let read = parse(&after, path).map_err(|_| EditError::Unclear)?;
    let others: Vec<ConfiguredEnvironment> = before.entries.iter().filter(|entry| entry.id != *id).cloned().collect();
    let expected = ConfigurationSnapshot { entries: others, ..before };
    if is_same(&expected, &read, &read.entries) { Ok(after) } else { Err(EditError::Unclear) }
}

/// Whether everything but the entries is the same, and the entries are those. What is wrong with one may now be wrong in
/// another line.
fn is_same(before: &ConfigurationSnapshot, after: &ConfigurationSnapshot, entries: &[ConfiguredEnvironment]) -> bool {
    let same = |(old, new): (&ConfiguredEnvironment, &ConfiguredEnvironment)| match (&old.definition, &new.definition) {
        (Ok(one), Ok(other)) => old.id == new.id && one == other,
        (Err(_), Err(_)) => old.id == new.id,
        _ => false,
    };
    before.include_local == after.include_local
        && before.default == after.default
        && before.start == after.start
        && before.nameless.len() == after.nameless.len()
        && before.entries.len() == entries.len()
        && before.entries.iter().zip(entries).all(same)
}

pub(super) fn is_header(line: &str) -> bool {
    let bare: String = line.split('#').next().unwrap_or_default().split_whitespace().collect();
    bare == "[[environments]]"
}

/// Where an entry ends: before the next header, and before the comments and blanks that stand above that one.
pub(super) fn block_end(lines: &[&str], start: usize) -> usize {
    let is_next = |line: &&str| line.trim_start().starts_with('[') && !line.trim_start().starts_with("[environments.");
    let next = lines[start + 1..].iter().position(is_next).map_or(lines.len(), |offset| start + 1 + offset);
    let is_loose = |line: &str| line.trim().is_empty() || line.trim_start().starts_with('#');
    let loose = lines[start + 1..next].iter().rev().take_while(|line| is_loose(line)).count();
    next - loose
}

/// A text as TOML writes it.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# mine\ndefault = \"a\" # the usual\n\n# the first\n[[environments]]\nid = 'a'\nprogram = \"x\"\n[environments.env]\nA = \"1\"\n\n\
                        # the second\n[[ environments ]] # odd\nid = \"b\"\nssh = \"me@b\"\n# the end\n";

    fn path() -> &'static Path {
        Path::new("/home/me/.outpost/environments.toml")
    }
    fn id(text: &str) -> EnvironmentId {
        text.parse().unwrap()
    }
    fn entry(name: &str, members: Vec<(&'static str, EditedMember)>) -> NewEntry {
        NewEntry { id: id(name), members }
    }

    #[test]
    fn an_entry_is_added_at_the_end() {
        let members =
            vec![("ssh", EditedMember::Text("me@box".into())), ("args", EditedMember::Texts(vec!["-p".into(), "a \"b\"\\\u{1}".into()]))];
        let added = add(FILE, path(), &entry("box", members)).unwrap();
        assert_eq!(
            added,
            format!("{FILE}\n[[environments]]\nid = \"box\"\nssh = \"me@box\"\nargs = [\"-p\", \"a \\\"b\\\"\\\\\\u0001\"]\n")
        );
        assert_eq!(remove(&added, path(), &id("box")).unwrap().trim_end(), FILE.trim_end());
        let first = add("", path(), &entry("box", vec![("url", EditedMember::Text("ws://127.0.0.1:1".into()))])).unwrap();
        assert_eq!(first, "[[environments]]\nid = \"box\"\nurl = \"ws://127.0.0.1:1\"\n");
    }

    #[test]
    fn an_entry_goes_and_everything_else_stays() {
        let without = remove(FILE, path(), &id("b")).unwrap();
        assert_eq!(without, FILE.replace("[[ environments ]] # odd\nid = \"b\"\nssh = \"me@b\"\n", ""));
        assert_eq!(remove(FILE, path(), &id("a")), Err(EditError::IsDefault(id("a"))));
        assert_eq!(remove(FILE, path(), &id("c")), Err(EditError::Missing(id("c"))));
        let free = FILE.replace("default = \"a\" # the usual\n", "");
        let without = remove(&free, path(), &id("a")).unwrap();
        assert_eq!(without, "# mine\n\n# the first\n\n# the second\n[[ environments ]] # odd\nid = \"b\"\nssh = \"me@b\"\n# the end\n");
        // A wrong entry, and all of those that share one name.
        let wrong = "[[environments]]\nid='x'\n[[environments]]\nid='y'\nurl='ws://127.0.0.1:1'\n[[environments]]\nid='x'\nssh='b'\n";
        assert_eq!(remove(wrong, path(), &id("x")).unwrap(), "[[environments]]\nid='y'\nurl='ws://127.0.0.1:1'\n");
    }

    #[test]
    fn what_cannot_be_right_is_refused() {
        let url = |url: &str| vec![("url", EditedMember::Text(url.into()))];
        assert_eq!(add(FILE, path(), &entry("a", url("ws://127.0.0.1:1"))), Err(EditError::Exists(id("a"))));
        assert!(matches!(add(FILE, path(), &entry("c", url("http://x"))), Err(EditError::Wrong(what)) if what.contains("`http://x`")));
        assert!(matches!(add("x = 1", path(), &entry("c", url("ws://127.0.0.1:1"))), Err(EditError::Config(_))));
        let inline = "environments = [{id='a', url='ws://127.0.0.1:1'}]\n";
        assert_eq!(add(inline, path(), &entry("c", url("ws://127.0.0.1:1"))), Err(EditError::Unclear));
        assert_eq!(remove(inline, path(), &id("a")), Err(EditError::Unclear));
        let sly = "[[environments]]\nid='a'\nprogram='''\n[[environments]]\n'''\n";
        assert_eq!(remove(sly, path(), &id("a")), Err(EditError::Unclear));
    }
}
