//! Which repositories there are in or above a writable root, and where their gitdirs are.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

/// So many directories of a root are looked into for repositories, those near its top first.
const MAX_DIRECTORIES: usize = 2000;
/// So many repositories of a root get a layer.
const MAX_REPOSITORIES: usize = 64;

/// What belongs to a writable root.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// One that is shared by several working trees is named once, with everything below it. One at the top of the root is named also
    /// before it exists.
    pub gitdirs: Vec<PathBuf>,
    /// Files that say where a gitdir is.
    pub pointers: Vec<PathBuf>,
}

pub(super) fn repositories(root: &Path) -> Found {
    let mut found = BTreeSet::new();
    let mut pointers = Vec::new();
    let above = root.ancestors().skip(1).find_map(|directory| gitdir_of(&directory.join(".git")).filter(|gitdir| is_repository(gitdir)));
    let top = root.join(".git");
    match (gitdir_of(&top), &above) {
        (Some(gitdir), _) => drop(found.insert(gitdir)),
        // Where a repository could be made, unless there is one around it.
        (None, None) if top.symlink_metadata().is_err() => drop(found.insert(top)),
        _ => {}
    }
    found.extend(above);
    nested(root, &mut found, &mut pointers);
    let all: Vec<PathBuf> = found.into_iter().filter(|gitdir| !root.starts_with(gitdir)).collect();
    let is_inner = |gitdir: &PathBuf| all.iter().any(|other| other != gitdir && gitdir.starts_with(other));
    let gitdirs = all.iter().filter(|gitdir| !is_inner(gitdir)).take(MAX_REPOSITORIES).cloned().collect();
    Found { gitdirs, pointers }
}

/// The directory that holds everything of the repository behind a `.git`, whatever that is.
fn gitdir_of(git: &Path) -> Option<PathBuf> {
    let real = git.canonicalize().ok()?;
    if real.is_dir() {
        return Some(real);
    }
    let directory = named_by(&real, "gitdir:")?;
    Some(named_by(&directory.join("commondir"), "").unwrap_or(directory))
}

/// The path that a small file of git names behind a word.
fn named_by(file: &Path, word: &str) -> Option<PathBuf> {
    let is_small = fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.len() < 8192);
    let text = is_small.then(|| fs::read_to_string(file).ok())??;
    file.parent()?.join(text.strip_prefix(word)?.trim()).canonicalize().ok()
}

pub(super) fn is_repository(gitdir: &Path) -> bool {
    gitdir.join("HEAD").symlink_metadata().is_ok() && gitdir.join("objects").is_dir() && gitdir.join("refs").is_dir()
}

/// Repositories below the top of a root.
fn nested(root: &Path, found: &mut BTreeSet<PathBuf>, pointers: &mut Vec<PathBuf>) {
    walk(root, MAX_DIRECTORIES, &mut |directory| {
        let git = directory.join(".git");
        let Some(metadata) = git.symlink_metadata().ok().filter(|_| directory != root) else { return };
        let Some(gitdir) = gitdir_of(&git).filter(|gitdir| is_repository(gitdir)) else { return };
        found.insert(gitdir);
        if metadata.is_file() && pointers.len() < MAX_REPOSITORIES {
            pointers.push(git);
        }
    });
}

/// Visits directories of a tree, those near its top first, and no gitdir.
pub(super) fn walk(root: &Path, most: usize, visit: &mut dyn FnMut(&Path)) {
    let mut left = VecDeque::from([root.to_owned()]);
    let mut count = 0;
    while let Some(directory) = left.pop_front() {
        count += 1;
        if count > most {
            return;
        }
        visit(&directory);
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.file_name() != ".git" && left.len() < most {
                left.push_back(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(path: &Path) {
        for name in ["objects", "refs"] {
            fs::create_dir_all(path.join(name)).unwrap();
        }
        fs::write(path.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    }

    fn gitdirs(root: &Path) -> Vec<PathBuf> {
        repositories(root).gitdirs
    }

    #[test]
    fn gitdirs_in_and_above_a_root_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let work = root.join("work");
        fs::create_dir_all(work.join("a/b")).unwrap();
        assert_eq!(gitdirs(&work), [work.join(".git")]);
        repository(&work.join("a/b/.git"));
        assert_eq!(gitdirs(&work), [work.join(".git"), work.join("a/b/.git")]);
        repository(&root.join(".git"));
        // Nothing is made below a repository.
        assert_eq!(gitdirs(&work), [root.join(".git"), work.join("a/b/.git")]);
        // A working tree of a repository elsewhere, and a submodule of it.
        let main = root.join("main/.git");
        repository(&main);
        for name in ["worktrees/t", "modules/s"] {
            repository(&main.join(name));
        }
        fs::write(main.join("worktrees/t/commondir"), "../..\n").unwrap();
        fs::write(work.join(".git"), format!("gitdir: {}\n", main.join("worktrees/t").display())).unwrap();
        fs::create_dir(work.join("s")).unwrap();
        fs::write(work.join("s/.git"), format!("gitdir: {}\n", main.join("modules/s").display())).unwrap();
        assert_eq!(gitdirs(&work), [root.join(".git"), main, work.join("a/b/.git")]);
        assert_eq!(repositories(&work).pointers, [work.join("s/.git")]);
    }
}
