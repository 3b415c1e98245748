//! What an answer about files depends on: the names on the way to them, and whatever is in the folders that were looked into.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::discovery;
use crate::watch::{MAX_LINKS, names_from_root, tells_changes};

/// An answer that depends on more than this is not followed.
const MAX_PLACES: usize = 1_024;

/// All paths are real, without links.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Footprint {
    /// Files and folders that must stay what they are.
    pub selves: BTreeSet<PathBuf>,
    /// Names in folders that may appear, or be replaced.
    pub names: BTreeMap<PathBuf, BTreeSet<OsString>>,
    /// Folders in which everything counts.
    pub folders: BTreeSet<PathBuf>,
    /// Something of it lies where changes are not told.
    pub is_blind: bool,
}

impl Footprint {
    /// Too much to be watched.
    pub(super) fn is_too_large(&self) -> bool {
        self.selves.len() + self.names.len() + self.folders.len() > MAX_PLACES
    }

    /// Whether a path is only on the way to something else.
    pub(super) fn leads_through(&self, path: &Path) -> bool {
        !self.names.contains_key(path)
            && !self.folders.contains(path)
            && self.selves.iter().chain(self.names.keys()).chain(&self.folders).any(|other| other != path && other.starts_with(path))
    }

    /// What is at a path, or that nothing is.
    pub(super) fn add(&mut self, path: &Path) {
        let mut at = PathBuf::from("/");
        let mut ahead = names_from_root(path);
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            match fs::symlink_metadata(&next) {
                Ok(metadata) if metadata.is_symlink() => {
                    links += 1;
                    self.names.entry(at.clone()).or_default().insert(name);
                    let Some(target) = fs::read_link(&next).ok().filter(|_| links <= MAX_LINKS) else { return };
                    if target.is_absolute() {
                        at = PathBuf::from("/");
                    }
                    ahead.extend(names_from_root(&target));
                }
                Ok(_) => {
                    self.selves.insert(next.clone());
                    at = next;
                }
                Err(_) => {
                    self.is_blind |= !tells_changes(&at);
                    self.names.entry(at).or_default().insert(name);
                    return;
                }
            }
        }
        self.is_blind |= !tells_changes(&at);
    }

    /// A capability root, with all that a look at it can see.
    pub(super) fn add_root(&mut self, root: &Path) {
        self.add(root);
        if !root.is_dir() {
            return;
        }
        discovery::manifests_above(root).for_each(|manifest| self.add(&manifest));
        for folder in discovery::folders_of(root) {
            if self.is_too_large() {
                return;
            }
            self.add_folder(&folder);
        }
    }

    /// A folder, and where the links in it lead.
    pub(super) fn add_folder(&mut self, folder: &Path) {
        self.add(folder);
        let Ok(real) = fs::canonicalize(folder) else { return };
        let links =
            fs::read_dir(&real).into_iter().flatten().flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
        for link in links {
            if self.is_too_large() {
                return;
            }
            self.add(&link.path());
        }
        self.folders.insert(real);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_missing_may_appear_and_what_is_there_may_change() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        fs::create_dir_all(root.join("real/sub")).unwrap();
        fs::write(root.join("real/file"), "").unwrap();
        symlink("real", root.join("link")).unwrap();
        let mut footprint = Footprint::default();
        footprint.add(&root.join("link/sub/none/deeper"));
        assert!(footprint.names[&root.join("real/sub")].contains(&OsString::from("none")));
        assert!(footprint.names[&root].contains(&OsString::from("link")), "a link may be replaced");
        assert!(footprint.selves.contains(&root.join("real/sub")) && !footprint.is_blind);
        assert!(footprint.leads_through(&root.join("real")) && !footprint.leads_through(&root.join("real/sub")));
        footprint.add(&root.join("link/file"));
        assert!(footprint.selves.contains(&root.join("real/file")));
        footprint.add(Path::new("/proc/none"));
        assert!(footprint.is_blind);
    }
}
