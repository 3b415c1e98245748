//! A bounded listing of a whole tree, breadth first, each directory in the order of its names' bytes. It blocks.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use outpost_wire::exec::walk::{WalkEntry, WalkError, WalkKind, WalkOptions, WalkResponse};
use outpost_wire::{Fault, PathUri};

use crate::fault;

const MAX_DEPTH: usize = 64;
const MAX_DIRECTORIES: usize = 10_000;
const MAX_ENTRIES: usize = 50_000;
/// The answer may take about this many bytes; each item counts a little more than its texts.
const MAX_RESPONSE: usize = 4 << 20;
const ITEM_OVERHEAD: usize = 64;

/// Everything below `root`, as far as the limits reach. A root that is no directory has nothing below it.
pub(crate) fn walk(root: &Path, options: &WalkOptions) -> Result<WalkResponse, Fault> {
    if options.max_directories == 0 || options.max_entries == 0 {
        return Err(fault::walk_without_room());
    }
    if options.max_depth > MAX_DEPTH || options.max_directories > MAX_DIRECTORIES || options.max_entries > MAX_ENTRIES {
        return Err(fault::walk_too_large(MAX_DEPTH, MAX_DIRECTORIES, MAX_ENTRIES));
    }
    let metadata = if options.follow_directory_symlinks { fs::metadata(root) } else { fs::symlink_metadata(root) };
    let answer = WalkResponse { entries: Vec::new(), errors: Vec::new(), truncated: false };
    let after = options.after.as_ref().map(|after| Cursor::parse(root, after)).transpose()?;
    let mut tree = Tree { options, after, answer, size: 0 };
    if metadata.map_err(fault::file)?.is_dir() {
        // Running into a limit is an answer, not a failure.
        let _ = tree.walk(root.to_owned());
    }
    Ok(tree.answer)
}

/// A limit was reached; the answer says so.
struct Full;

/// The last entry of the page before. Entries come by their depth, and at one depth in the order of their paths, so it is known of each
/// directory whether what is in it was listed. To find the directories that are still to come, all before are looked at again.
struct Cursor {
    depth: usize,
    parent: PathBuf,
    name: OsString,
}

impl Cursor {
    fn parse(root: &Path, after: &PathUri) -> Result<Self, Fault> {
        let path = after.to_native().map_err(fault::path)?;
        let depth = path.strip_prefix(root).map(|below| below.components().count()).unwrap_or_default();
        match (depth, path.parent(), path.file_name()) {
            (1.., Some(parent), Some(name)) => Ok(Self { depth: depth - 1, parent: parent.to_owned(), name: name.to_owned() }),
            _ => Err(fault::walk_elsewhere(&path)),
        }
    }
}

/// How much of a directory earlier pages have listed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listed {
    Wholly,
    InPart,
    NotYet,
}

struct Tree<'a> {
    options: &'a WalkOptions,
    after: Option<Cursor>,
    answer: WalkResponse,
    /// About how many bytes the answer takes.
    size: usize,
}

/// Ordered by name, since names are all that differs within a directory.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Child {
    name: OsString,
    is_directory: bool,
    /// An earlier page has it.
    is_listed: bool,
}

impl Tree<'_> {
    fn walk(&mut self, root: PathBuf) -> Result<(), Full> {
        let mut waiting = VecDeque::from([(root, 0)]);
        let mut entered = HashSet::new();
        let mut count = 0;
        while let Some((directory, depth)) = waiting.pop_front() {
            let listed = self.listed(&directory, depth);
            // Links may lead to a directory that was already entered, or to one above.
            if self.options.follow_directory_symlinks {
                match fs::metadata(&directory) {
                    Ok(metadata) if !entered.insert((metadata.dev(), metadata.ino())) => continue,
                    Ok(_) => {}
                    Err(error) => {
                        if listed == Listed::NotYet {
                            self.fail(&directory, &error)?;
                        }
                        continue;
                    }
                }
            }
            // On a later page only those count that add something to it: each page has to bring something.
            let mut is_counted = self.after.is_none();
            if is_counted {
                if count == self.options.max_directories {
                    return self.full();
                }
                count += 1;
            }
            for child in self.children(&directory, listed)? {
                let path = directory.join(&child.name);
                let is_entered = child.is_directory && depth < self.options.max_depth && !self.prunes(&child);
                if !child.is_listed {
                    if !is_counted && count == self.options.max_directories {
                        return self.full();
                    }
                    count += usize::from(!is_counted);
                    is_counted = true;
                    self.list(&path, if child.is_directory { WalkKind::Directory } else { WalkKind::File })?;
                }
                if is_entered {
                    waiting.push_back((path, depth + 1));
                }
            }
        }
        Ok(())
    }

    fn listed(&self, directory: &Path, depth: usize) -> Listed {
        let Some(after) = &self.after else { return Listed::NotYet };
        match (depth, directory).cmp(&(after.depth, &after.parent)) {
            Ordering::Less => Listed::Wholly,
            Ordering::Equal => Listed::InPart,
            Ordering::Greater => Listed::NotYet,
        }
    }

    fn is_listed(&self, listed: Listed, name: &OsStr) -> bool {
        match listed {
            Listed::Wholly => true,
            Listed::InPart => self.after.as_ref().is_some_and(|after| name <= after.name),
            Listed::NotYet => false,
        }
    }

    fn prunes(&self, child: &Child) -> bool {
        self.options.prune_hidden_directories && child.name.as_bytes().starts_with(b".")
    }

    /// What is listed of a directory, in order. No more than there is room for is kept, however large the directory.
    fn children(&mut self, directory: &Path, listed: Listed) -> Result<Vec<Child>, Full> {
        let room = self.options.max_entries - self.answer.entries.len();
        let (mut children, mut earlier) = (BinaryHeap::new(), Vec::new());
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(_) if listed != Listed::NotYet => return Ok(Vec::new()),
            Err(error) => {
                self.fail(directory, &error)?;
                return Ok(Vec::new());
            }
        };
        for entry in entries {
            let child = match entry {
                Ok(entry) => {
                    let is_listed = self.is_listed(listed, &entry.file_name());
                    let child = self.child(&entry, is_listed)?;
                    if is_listed {
                        // What is below it may be still to come.
                        earlier.extend(child.filter(|child| child.is_directory));
                        continue;
                    }
                    child
                }
                Err(_) if listed != Listed::NotYet => None,
                Err(error) => {
                    self.fail(directory, &error)?;
                    None
                }
            };
            children.extend(child);
            // One more than fits, so that it shows that there was more.
            if children.len() > room + 1 {
                children.pop();
            }
        }
        earlier.sort_unstable();
        earlier.append(&mut children.into_sorted_vec());
        Ok(earlier)
    }

    /// Links to files and special files are not listed, links to directories only if they are followed.
    fn child(&mut self, entry: &DirEntry, is_listed: bool) -> Result<Option<Child>, Full> {
        let kind = match entry.file_type() {
            Ok(kind) if !kind.is_symlink() => kind,
            Ok(_) if !self.options.follow_directory_symlinks => return Ok(None),
            Ok(_) => match fs::metadata(entry.path()) {
                Ok(target) if target.is_dir() => target.file_type(),
                // A link that leads nowhere, or in a circle, is no failure.
                Ok(_) | Err(_) => return Ok(None),
            },
            Err(_) if is_listed => return Ok(None),
            Err(error) => return self.fail(&entry.path(), &error).map(|()| None),
        };
        let is_shown = kind.is_dir() || kind.is_file();
        Ok(is_shown.then(|| Child { name: entry.file_name(), is_directory: kind.is_dir(), is_listed }))
    }

    fn list(&mut self, path: &Path, kind: WalkKind) -> Result<(), Full> {
        if self.answer.entries.len() == self.options.max_entries {
            return self.full();
        }
        // Every path here begins with an absolute root.
        let Ok(path) = PathUri::from_native(path) else { return Ok(()) };
        self.grow(path.to_string().len())?;
        self.answer.entries.push(WalkEntry { path, kind });
        Ok(())
    }

    fn fail(&mut self, path: &Path, error: &io::Error) -> Result<(), Full> {
        let Ok(path) = PathUri::from_native(path) else { return Ok(()) };
        let message = error.to_string();
        self.grow(path.to_string().len() + message.len())?;
        self.answer.errors.push(WalkError { path, message });
        Ok(())
    }

    fn grow(&mut self, texts: usize) -> Result<(), Full> {
        self.size += texts + ITEM_OVERHEAD;
        if self.size > MAX_RESPONSE { self.full() } else { Ok(()) }
    }

    fn full(&mut self) -> Result<(), Full> {
        self.answer.truncated = true;
        Err(Full)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ALL: WalkOptions = WalkOptions {
        max_depth: 10,
        max_directories: 100,
        max_entries: 100,
        follow_directory_symlinks: false,
        prune_hidden_directories: false,
        after: None,
    };

    fn tree(paths: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for path in paths {
            match path.strip_suffix('/') {
                Some(directory) => fs::create_dir_all(root.path().join(directory)).unwrap(),
                None => fs::write(root.path().join(path), "").unwrap(),
            }
        }
        root
    }

    /// The entries relative to the root, directories with a slash.
    fn names(root: &Path, options: &WalkOptions) -> (Vec<String>, bool) {
        let answer = walk(root, options).unwrap();
        let name = |entry: &WalkEntry| {
            let path = entry.path.to_native().unwrap();
            let slash = if entry.kind == WalkKind::Directory { "/" } else { "" };
            format!("{}{slash}", path.strip_prefix(root).unwrap().display())
        };
        assert!(answer.errors.is_empty());
        (answer.entries.iter().map(name).collect(), answer.truncated)
    }

    #[test]
    fn directories_come_level_by_level_and_sorted() {
        let root = tree(&["b/", "a/deep/", "a/f", "a/deep/g", "Z", "a-b"]);
        assert_eq!(names(root.path(), &ALL), (["Z", "a/", "a-b", "b/", "a/deep/", "a/f", "a/deep/g"].map(String::from).into(), false));
        let shallow = WalkOptions { max_depth: 1, ..ALL };
        assert_eq!(names(root.path(), &shallow).0, ["Z", "a/", "a-b", "b/", "a/deep/", "a/f"]);
    }

    #[test]
    fn limits_cut_the_answer_short() {
        let root = tree(&["a/", "a/x", "b", "c"]);
        let entries = |max_entries| names(root.path(), &WalkOptions { max_entries, ..ALL });
        assert_eq!(entries(2), (vec!["a/".into(), "b".into()], true));
        assert!(entries(3).1);
        assert_eq!(entries(4), (["a/", "b", "c", "a/x"].map(String::from).into(), false));
        let directories = |max_directories| names(root.path(), &WalkOptions { max_directories, ..ALL });
        assert_eq!(directories(1), (["a/", "b", "c"].map(String::from).into(), true));
        assert!(!directories(2).1);
    }

    /// All pages of so many entries, one after the other.
    fn pages(root: &Path, options: &WalkOptions) -> Vec<String> {
        let (mut all, mut options) = (Vec::new(), options.clone());
        loop {
            let (names, truncated) = names(root, &options);
            assert!(!truncated || !names.is_empty(), "a page brings something");
            all.extend(names);
            if !truncated {
                return all;
            }
            let last = root.join(all.last().unwrap().trim_end_matches('/'));
            options.after = Some(PathUri::from_native(&last).unwrap());
        }
    }

    #[test]
    fn pages_together_are_the_whole() {
        let root = tree(&["b/c/", "a/deep/er/", "a/f", "a/deep/g", "a/deep/er/h", "Z", "a-b", "b/c/d", "b/x", "e/", ".hidden/y/"]);
        symlink("a", root.path().join("link")).unwrap();
        for options in [ALL, WalkOptions { max_depth: 1, ..ALL }, WalkOptions { follow_directory_symlinks: true, ..ALL }] {
            let whole = names(root.path(), &options).0;
            for max_entries in 1..=whole.len() {
                assert_eq!(pages(root.path(), &WalkOptions { max_entries, ..options.clone() }), whole, "by {max_entries}");
            }
            for max_directories in 1..4 {
                assert_eq!(pages(root.path(), &WalkOptions { max_directories, ..options.clone() }), whole, "by {max_directories}");
            }
        }
        let elsewhere = WalkOptions { after: Some(PathUri::parse("file:///elsewhere/x").unwrap()), ..ALL };
        assert!(walk(root.path(), &elsewhere).is_err());
    }

    #[test]
    fn what_was_removed_between_two_pages_holds_nothing_up() {
        let root = tree(&["a", "b", "c"]);
        let after = Some(PathUri::from_native(&root.path().join("b")).unwrap());
        fs::remove_file(root.path().join("b")).unwrap();
        assert_eq!(names(root.path(), &WalkOptions { after, ..ALL }), (vec!["c".into()], false));
    }

    #[test]
    fn a_real_directory_is_entered_once() {
        let root = tree(&["a/", "a/x"]);
        symlink("a", root.path().join("link")).unwrap();
        symlink("..", root.path().join("a/up")).unwrap();
        symlink("nowhere", root.path().join("broken")).unwrap();
        symlink("circle", root.path().join("circle")).unwrap();
        symlink("a/x", root.path().join("file")).unwrap();
        assert_eq!(names(root.path(), &ALL).0, ["a/", "a/x"]);
        let following = WalkOptions { follow_directory_symlinks: true, ..ALL };
        assert_eq!(names(root.path(), &following).0, ["a/", "link/", "a/up/", "a/x"]);
    }

    #[test]
    fn a_pruned_directory_does_not_hide_a_visible_link_to_it() {
        let root = tree(&[".hidden/", ".hidden/x"]);
        symlink(".hidden", root.path().join("seen")).unwrap();
        let options = WalkOptions { prune_hidden_directories: true, follow_directory_symlinks: true, ..ALL };
        assert_eq!(names(root.path(), &options).0, [".hidden/", "seen/", "seen/x"]);
    }
}
