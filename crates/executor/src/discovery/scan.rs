//! The walk through a root: breadth first, so that what lies near the root is found even where there is too much below.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use outpost_wire::PathUri;

/// How far below the root folders are still entered.
const MAX_DEPTH: usize = 6;
const MAX_DIRECTORIES: usize = 2_000;
/// So many entries of folders are looked at in all.
const MAX_ENTRIES: usize = 20_000;
/// Where skills usually lie: looked into before everything else, so that a crowd beside it hides nothing.
const USUAL: &str = "skills";
/// So many folders that cannot be listed are named.
const MAX_NAMED: usize = 20;

pub(super) struct Scan {
    /// Files of the wanted name, ordered by path.
    pub found: Vec<PathBuf>,
    pub warnings: Vec<String>,
    /// The folders that were looked into.
    pub folders: Vec<PathBuf>,
}

impl Scan {
    /// All files of a name. Links to folders are followed, each real folder is entered once; links to files do not count.
    pub(super) fn of(root: &Path, name: &str) -> io::Result<Self> {
        let mut scan = Self { found: Vec::new(), warnings: Vec::new(), folders: Vec::new() };
        let mut entered = HashSet::new();
        let mut waiting = VecDeque::from([(root.to_owned(), 0), (root.join(USUAL), 1)]);
        let mut closed = 0;
        let (mut directories, mut entries) = (0, 0);
        while let Some((directory, depth)) = waiting.pop_front() {
            let is_new =
                fs::metadata(&directory).is_ok_and(|metadata| metadata.is_dir() && entered.insert((metadata.dev(), metadata.ino())));
            if !is_new {
                continue;
            }
            if directories == MAX_DIRECTORIES {
                scan.warn(root, &format!("has more than {MAX_DIRECTORIES} folders"));
                break;
            }
            directories += 1;
            scan.folders.push(directory.clone());
            let wanted = directory.join(name);
            if fs::symlink_metadata(&wanted).is_ok_and(|metadata| metadata.is_file()) {
                scan.found.push(wanted);
            }
            if depth == MAX_DEPTH {
                continue;
            }
            match children(&directory, MAX_ENTRIES - entries) {
                Ok(Children { folders, seen, is_cut }) => {
                    entries += seen;
                    waiting.extend(folders.into_iter().map(|folder| (directory.join(folder), depth + 1)));
                    if is_cut {
                        scan.warn(root, &format!("has more than {MAX_ENTRIES} entries"));
                        // What was found so far is still looked into, but no further folder is listed.
                        entries = MAX_ENTRIES;
                    }
                }
                Err(error) if depth == 0 => return Err(error),
                Err(error) => {
                    closed += 1;
                    if closed <= MAX_NAMED
                        && let Ok(uri) = PathUri::from_native(&directory)
                    {
                        scan.warnings.push(format!("folder {uri} cannot be listed: {error}"));
                    }
                }
            }
        }
        if closed > MAX_NAMED {
            scan.warnings.push(format!("{} more folders cannot be listed", closed - MAX_NAMED));
        }
        scan.found.sort_by_cached_key(|path| PathUri::from_native(path).map(|uri| uri.to_string()).unwrap_or_default());
        Ok(scan)
    }

    fn warn(&mut self, root: &Path, what: &str) {
        if let Ok(uri) = PathUri::from_native(root) {
            let warning = format!("capability root {uri} {what}; what lies beyond was not looked at");
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
    }
}

struct Children {
    /// Ordered by name.
    folders: Vec<OsString>,
    seen: usize,
    is_cut: bool,
}

fn children(directory: &Path, room: usize) -> io::Result<Children> {
    let mut children = Children { folders: Vec::new(), seen: 0, is_cut: false };
    for entry in fs::read_dir(directory)? {
        if children.seen == room {
            children.is_cut = true;
            break;
        }
        children.seen += 1;
        let Ok(entry) = entry else { continue };
        let is_folder = match entry.file_type() {
            Ok(kind) if kind.is_symlink() => fs::metadata(entry.path()).is_ok_and(|target| target.is_dir()),
            Ok(kind) => kind.is_dir(),
            Err(_) => false,
        };
        if is_folder {
            children.folders.push(entry.file_name());
        }
    }
    children.folders.sort();
    Ok(children)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_cut_and_told_but_what_lies_near_is_found() {
        let directory = tempfile::tempdir().unwrap();
        for index in 0..MAX_ENTRIES + 10 {
            fs::File::create(directory.path().join(format!("f{index}"))).unwrap();
        }
        fs::write(directory.path().join("SKILL.md"), "").unwrap();
        let scan = Scan::of(directory.path(), "SKILL.md").unwrap();
        assert_eq!(scan.found.len(), 1);
        assert!(scan.warnings[0].contains("more than 20000 entries"), "{:?}", scan.warnings);
    }

    #[test]
    fn the_usual_place_is_found_in_a_crowd() {
        let directory = tempfile::tempdir().unwrap();
        for folder in 0..22 {
            let folder = directory.path().join(format!("a{folder}"));
            fs::create_dir(&folder).unwrap();
            (0..1000).for_each(|index| drop(fs::File::create(folder.join(format!("f{index}"))).unwrap()));
        }
        let skill = directory.path().join("skills/deploy");
        fs::create_dir_all(&skill).unwrap();
        fs::write(skill.join("SKILL.md"), "").unwrap();
        let scan = Scan::of(directory.path(), "SKILL.md").unwrap();
        assert_eq!(scan.found, [skill.join("SKILL.md")]);
        assert_eq!(scan.warnings.len(), 1, "{:?}", scan.warnings);
        // A file of that name is none.
        fs::remove_dir_all(directory.path().join("skills")).unwrap();
        fs::write(directory.path().join("skills"), "").unwrap();
        assert_eq!(Scan::of(directory.path(), "SKILL.md").unwrap().found.len(), 0);
    }
}
