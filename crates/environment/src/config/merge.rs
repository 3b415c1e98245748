//! Brings one text of definitions into another, entry by entry, and says what that changes.
//!
//! As with every edit, what comes out is read again and must mean exactly what was wanted.

use std::path::Path;

use outpost_wire::EnvironmentId;
use toml::{Table, Value};

use super::edit::{EditError, block_end, is_header};
use super::parse;
use crate::provider::ConfigurationSnapshot;

/// What becomes of that which both texts define, and differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeMode {
    /// It stays as it is.
    Keep,
    Replace,
}

/// One text after another one was brought in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedDefinitions {
    pub text: String,
    /// Environments, and keys of the top level, that were not there.
    pub added: Vec<String>,
    /// Those that are there, and defined differently.
    pub differing: Vec<String>,
    /// Those that are there already as they are.
    pub same: Vec<String>,
}

impl MergedDefinitions {
    /// Whether the two texts say the same about everything that the second one speaks of.
    pub fn is_nothing(&self) -> bool {
        self.added.is_empty() && self.differing.is_empty()
    }
}

/// The keys beside the entries.
const SETTINGS: [&str; 3] = ["default", "start", "include_local"];

/// Brings `from` into `into`: all of it, or only these environments. Relative paths in both begin where the file is.
pub fn merge(into: &str, from: &str, path: &Path, only: &[EnvironmentId], mode: MergeMode) -> Result<MergedDefinitions, EditError> {
    let (before, wanted) = (parse(into, path)?, parse(from, path)?);
    if let Some(nameless) = wanted.nameless.first() {
        return Err(EditError::Wrong(nameless.reason.clone()));
    }
    if let Some(missing) = only.iter().find(|id| !wanted.entries.iter().any(|entry| entry.id == **id)) {
        return Err(EditError::Missing(missing.clone()));
    }
    let mut merged = MergedDefinitions { text: into.to_owned(), added: vec![], differing: vec![], same: vec![] };
    for entry in wanted.entries.iter().filter(|entry| only.is_empty() || only.contains(&entry.id)) {
        let definition = entry.definition.as_ref().map_err(|what| EditError::Wrong(what.clone()))?;
        let block = block(from, path, &entry.id).ok_or(EditError::Unclear)?;
        match before.entries.iter().find(|known| known.id == entry.id) {
            None => {
                merged.text = appended(&merged.text, &block);
                merged.added.push(entry.id.to_string());
            }
            Some(known) if known.definition.as_ref() == Ok(definition) => merged.same.push(entry.id.to_string()),
            Some(_) => {
                if mode == MergeMode::Replace {
                    merged.text = replaced(&merged.text, path, &entry.id, &block);
                }
                merged.differing.push(entry.id.to_string());
            }
        }
    }
    if only.is_empty() {
        settings(into, from, mode, &mut merged)?;
    }
    check(&before, &wanted, &merged, path, mode)?;
    Ok(merged)
}

/// Default, start and whether this machine is one of the environments.
fn settings(into: &str, from: &str, mode: MergeMode, merged: &mut MergedDefinitions) -> Result<(), EditError> {
    let table = |text: &str| text.parse::<Table>().map_err(|_| EditError::Unclear);
    let (known, wanted) = (table(into)?, table(from)?);
    for key in SETTINGS {
        let Some(value) = wanted.get(key) else { continue };
        match known.get(key) {
            Some(other) if other == value => continue,
            Some(_) => {
                merged.differing.push(key.to_owned());
                if mode == MergeMode::Keep {
                    continue;
                }
                merged.text = without_key(&merged.text, key);
            }
            None => merged.added.push(key.to_owned()),
        }
        merged.text = format!("{key} = {}\n{}", written(value), merged.text);
    }
    Ok(())
}

fn written(value: &Value) -> String {
    value.to_string()
}

/// Whether the result says of everything what the one or the other text says.
fn check(
    before: &ConfigurationSnapshot,
    wanted: &ConfigurationSnapshot,
    merged: &MergedDefinitions,
    path: &Path,
    mode: MergeMode,
) -> Result<(), EditError> {
    let after = parse(&merged.text, path)?;
    let is_taken = |key: &str| {
        merged.added.iter().any(|added| added == key) || (mode == MergeMode::Replace && merged.differing.iter().any(|other| other == key))
    };
    let source = |key: &str| if is_taken(key) { wanted } else { before };
    let mut ids: Vec<&EnvironmentId> = before.entries.iter().map(|entry| &entry.id).collect();
    ids.extend(wanted.entries.iter().map(|entry| &entry.id).filter(|id| merged.added.iter().any(|added| added == id.as_str())));
    let is_right = |id: &EnvironmentId| {
        let of =
            |snapshot: &ConfigurationSnapshot| snapshot.entries.iter().find(|entry| entry.id == *id).map(|entry| entry.definition.clone());
        match (of(source(id.as_str())), of(&after)) {
            (Some(Ok(one)), Some(Ok(other))) => one == other,
            // What is wrong with one may now be wrong in another line.
            (Some(Err(_)), Some(Err(_))) => true,
            _ => false,
        }
    };
    let is_same = source("default").default == after.default
        && source("start").start == after.start
        && source("include_local").include_local == after.include_local
        && before.nameless.len() == after.nameless.len()
        && ids.len() == after.entries.len()
        && ids.into_iter().all(is_right);
    if is_same { Ok(()) } else { Err(EditError::Unclear) }
}

/// The lines of an entry.
fn block(text: &str, path: &Path, id: &EnvironmentId) -> Option<String> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let starts = (0..lines.len()).filter(|index| is_header(lines[*index]));
    let mut blocks = starts.map(|start| lines[start..block_end(&lines, start)].concat());
    blocks.find(|block| parse(block, path).is_ok_and(|read| read.entries.iter().any(|entry| entry.id == *id)))
}

fn appended(text: &str, block: &str) -> String {
    let before = text.trim_end();
    let gap = if before.is_empty() { "" } else { "\n\n" };
    format!("{before}{gap}{}\n", block.trim_end())
}

fn replaced(text: &str, path: &Path, id: &EnvironmentId, block: &str) -> String {
    match self::block(text, path, id) {
        Some(old) => text.replacen(&old, &format!("{}\n", block.trim_end()), 1),
        None => text.to_owned(),
    }
}

/// The text without the line of a key of the top level.
fn without_key(text: &str, key: &str) -> String {
    let top = text.split_inclusive('\n').take_while(|line| !line.trim_start().starts_with('[')).count();
    let is_it = |line: &str| line.trim_start().strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
    let lines = text.split_inclusive('\n').enumerate();
    lines.filter(|(index, line)| *index >= top || !is_it(line)).map(|(_, line)| line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: &str = "# ours\ndefault = \"a\"\n\n[[environments]]\nid = \"a\"\nssh = \"me@a\"\n\n# b, too\n[[environments]]\nid = \"b\"\nssh = \"me@b\"\n";
    const FILE: &str = "start = \"all\"\n# theirs\n[[environments]]\nid = \"b\"\nssh = \"you@b\" # elsewhere\nlabels = [\"x\"]\n\n\
                        [[environments]]\nid = \"a\"\nssh = \"me@a\"\n\n[[environments]]\nid = \"c\"\nprogram = \"x\"\n[environments.env]\nA = \"1\"\n";

    fn path() -> &'static Path {
        Path::new("/home/me/.outpost/environments.toml")
    }

    fn id(text: &str) -> EnvironmentId {
        text.parse().unwrap()
    }

    #[test]
    fn what_differs_stays_unless_it_is_to_be_replaced() {
        let kept = merge(STORE, FILE, path(), &[], MergeMode::Keep).unwrap();
        assert_eq!((kept.added.join(" "), kept.differing.join(" "), kept.same.join(" ")), ("c start".into(), "b".into(), "a".into()));
        assert!(kept.text.contains("me@b") && !kept.text.contains("you@b") && kept.text.contains("# ours"), "{}", kept.text);
        let replaced = merge(STORE, FILE, path(), &[], MergeMode::Replace).unwrap();
        assert!(
            replaced.text.contains("you@b") && !replaced.text.contains("me@b") && replaced.text.contains("# b, too"),
            "{}",
            replaced.text
        );
        let read = parse(&replaced.text, path()).unwrap();
        assert_eq!(read.entries.iter().map(|entry| entry.id.to_string()).collect::<Vec<_>>(), ["a", "b", "c"], "in the order of the store");
        assert!(!kept.is_nothing() && merge(&replaced.text, FILE, path(), &[], MergeMode::Keep).unwrap().is_nothing());
        assert_eq!(merge("", FILE, path(), &[], MergeMode::Keep).unwrap().added.join(" "), "b a c start");
    }

    #[test]
    fn one_can_be_named() {
        let only = merge(STORE, FILE, path(), &[id("b")], MergeMode::Replace).unwrap();
        assert_eq!((only.added.len(), only.differing.join(" ")), (0, "b".into()));
        assert!(only.text.contains("you@b") && !only.text.contains("start") && !only.text.contains("program"), "{}", only.text);
        assert_eq!(merge(STORE, FILE, path(), &[id("z")], MergeMode::Keep), Err(EditError::Missing(id("z"))));
    }

    #[test]
    fn the_default_is_one_of_the_things_that_can_differ() {
        let other = "default = \"c\"\n[[environments]]\nid = \"c\"\nssh = \"c\"\n";
        let kept = merge(STORE, other, path(), &[], MergeMode::Keep).unwrap();
        assert_eq!((kept.added.join(" "), kept.differing.join(" ")), ("c".into(), "default".into()));
        assert!(kept.text.contains("default = \"a\""));
        let replaced = merge(STORE, other, path(), &[], MergeMode::Replace).unwrap();
        assert!(replaced.text.contains("default = \"c\"") && !replaced.text.contains("default = \"a\""), "{}", replaced.text);
    }

    #[test]
    fn what_is_wrong_or_unclear_is_left_alone() {
        for wrong in ["[[environments]]\nid = \"x\"\n", "[[environments]]\nssh = \"x\"\n", "x = 1\n", "default = \"no\"\n"] {
            assert!(merge(STORE, wrong, path(), &[], MergeMode::Replace).is_err(), "{wrong}");
        }
        let inline = "environments = [{ id = \"x\", ssh = \"x\" }]\n";
        assert_eq!(merge(STORE, inline, path(), &[], MergeMode::Keep), Err(EditError::Unclear));
    }
}
