//! What the patterns of a policy deny.
//!
//! Everything that a pattern could mean is looked at, or nothing is run: sandboxed code could have dug deep,
//! made many, or locked a directory to be passed by.

use std::io;
use std::path::{Path, PathBuf};

use crate::plan::PlannedPath;
use crate::policy::Glob;

/// How deep, and for how many, is looked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub depth: usize,
    pub matches: usize,
}

pub(super) const BOUNDS: Bounds = Bounds { depth: 64, matches: 4096 };

/// What one pattern denies.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Match<'a> {
    pub path: PathBuf,
    glob: &'a Glob,
    /// A directory that cannot be looked into: all of it is denied, for its owner could open it again.
    is_closed: bool,
}

impl Match<'_> {
    /// Whether it stays denied wherever the directories on the way to it may be moved to inside the innermost place: it is
    /// found again there.
    pub(super) fn is_found_anywhere(&self, places: &[PlannedPath]) -> bool {
        let around = self.path.ancestors().skip(1).find_map(|ancestor| places.iter().find(|place| place.path == ancestor));
        let has_own_rule = places.iter().any(|place| place.path == self.path);
        self.glob.follows() && !self.is_closed && !has_own_rule && around.is_some_and(|place| place.path.starts_with(self.glob.base()))
    }
}

/// All of it, or why that cannot be said. Every directory is visited before its names are read.
pub(super) fn find<'a>(globs: &'a [Glob], bounds: Bounds, visit: &mut dyn FnMut(&Path)) -> Result<Vec<Match<'a>>, String> {
    let mut found = Vec::new();
    for glob in globs {
        find_below(glob, glob.base().to_owned(), bounds, visit, &mut found)?;
    }
    Ok(found)
}

/// The same for what one pattern denies at a path and below it.
pub(super) fn find_below<'a>(
    glob: &'a Glob,
    path: PathBuf,
    bounds: Bounds,
    visit: &mut dyn FnMut(&Path),
    found: &mut Vec<Match<'a>>,
) -> Result<(), String> {
    let mut left = vec![(path, 0)];
    while let Some((path, depth)) = left.pop() {
        if glob.fits(&path) {
            found.push(Match { path, glob, is_closed: false });
        } else if glob.leads_below(&path) {
            visit(&path);
            match entries(&path) {
                Ok(entries) => {
                    let of_interest = entries.into_iter().filter(|(path, is_directory)| *is_directory || glob.fits(path));
                    left.extend(of_interest.map(|(path, _)| (path, depth + 1)));
                }
                Err(error) if is_gone(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => found.push(Match { path, glob, is_closed: true }),
                Err(error) => return Err(format!("{} cannot be searched for what the pattern {glob} denies: {error}", path.display())),
            }
        }
        if found.len() > bounds.matches {
            return Err(format!(
                "the pattern {glob} denies more than the {} paths that can be held one by one; deny the directories that they lie in",
                bounds.matches
            ));
        }
        if depth > bounds.depth {
            return Err(format!(
                "what the pattern {glob} denies cannot be looked for more than {} directories deep; name a directory further inside, \
                 or deny one as a whole",
                bounds.depth
            ));
        }
    }
    Ok(())
}

/// What is in a directory, and which of it are directories. What every sandbox has of its own is passed by.
fn entries(path: &Path) -> io::Result<Vec<(PathBuf, bool)>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let path = entry.path();
        if path != Path::new("/proc") && path != Path::new("/dev") {
            entries.push((path, entry.file_type()?.is_dir()));
        }
    }
    Ok(entries)
}

/// Nothing is there to be searched: a file, or what went meanwhile.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::plan::{PathShape, Rights};
    use crate::policy::PathAccess;

    fn globs(root: &Path, pattern: &str) -> Vec<Glob> {
        vec![Glob::below(root, pattern).unwrap()]
    }

    fn find_all(globs: &[Glob]) -> Vec<Match<'_>> {
        find(globs, BOUNDS, &mut |_| {}).unwrap()
    }

    fn paths(globs: &[Glob], bounds: Bounds) -> Result<Vec<PathBuf>, String> {
        find(globs, bounds, &mut |_| {}).map(|found| found.into_iter().map(|found| found.path).collect())
    }

    #[test]
    fn everything_is_found_or_the_reason_told() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        for name in ["a/1.env", "a/2.env", "a/b/c/3.env", "other"] {
            fs::write(root.join(name), "").unwrap();
        }
        let place = PlannedPath {
            path: root.clone(),
            access: PathAccess::Write,
            rights: Rights::Owners,
            fixed: true,
            shape: PathShape::Tree,
            by_pattern: false,
            source: None,
        };
        let all = globs(&root, "**/*.env");
        assert_eq!(paths(&all, BOUNDS).unwrap().len(), 3);
        assert!(find_all(&all).iter().all(|found| found.is_found_anywhere(std::slice::from_ref(&place))));
        assert_eq!(paths(&all, Bounds { depth: 4, matches: 3 }).unwrap().len(), 3);
        assert!(paths(&all, Bounds { depth: 4, matches: 2 }).unwrap_err().contains("more than the 2 paths"));
        assert!(paths(&all, Bounds { depth: 3, matches: 3 }).unwrap_err().contains("3 directories deep"));
        // Where nothing can fit, there is nothing to look at.
        let near = globs(&root, "*/*.env");
        assert_eq!(paths(&near, Bounds { depth: 2, matches: 3 }).unwrap().len(), 2);
        assert!(find_all(&near).iter().all(|found| !found.is_found_anywhere(std::slice::from_ref(&place))));
        assert_eq!(paths(&globs(&root.join("none"), "**/*"), BOUNDS), Ok(Vec::new()));
    }

    #[test]
    fn what_is_closed_to_us_is_denied_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir(root.join("closed")).unwrap();
        fs::write(root.join("closed/1.env"), "").unwrap();
        fs::set_permissions(root.join("closed"), fs::Permissions::from_mode(0o0)).unwrap();
        let expected = if rustix::process::geteuid().is_root() { "closed/1.env" } else { "closed" };
        assert_eq!(paths(&globs(&root, "**/*.env"), BOUNDS), Ok(vec![root.join(expected)]));
        fs::set_permissions(root.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    }
}
