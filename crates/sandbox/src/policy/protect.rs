//! What stays read-only inside a writable root, because a program outside the sandbox will run or believe it later.

use std::fs;
use std::path::{Path, PathBuf};

/// Repositories, and the settings of agents that act on them: also before they exist.
pub const PROTECTED_NAMES: &[&str] = &[".git", ".agents", ".codex"];

/// What is protected where it exists. Made anew, none of it is read by a program that was not set up to do so: git runs hooks where
/// `core.hooksPath` says, and direnv asks before it reads a new file.
pub const PROTECTED_IF_PRESENT: &[&str] = &[".githooks", ".husky", ".envrc", ".outpost"];

/// What shells, logins and git read when they start: in a home, and nowhere else.
pub const STARTUP_FILES: &[&str] = &[
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".gitconfig",
];

/// Keys and settings of ssh, which it reads in a home.
pub const KEY_DIRECTORY: &str = ".ssh";

/// Every name that is protected somewhere.
pub fn is_protected_name(name: &str) -> bool {
    [PROTECTED_NAMES, PROTECTED_IF_PRESENT, STARTUP_FILES].iter().any(|names| names.contains(&name)) || name == KEY_DIRECTORY
}

/// So many submodules and worktrees of one repository are protected.
const MAX_CHECKOUTS: usize = 256;

/// What is protected in a writable root, as it is spelled: some of it may be a link, or not exist. `root` and `homes` are
/// resolved paths.
pub fn protected_paths(root: &Path, homes: &[PathBuf]) -> Vec<PathBuf> {
    // A single file has nothing below it.
    if root.symlink_metadata().is_ok_and(|metadata| !metadata.is_dir()) {
        return Vec::new();
    }
    let git = root.join(".git");
    let mut paths: Vec<PathBuf> = PROTECTED_NAMES.iter().map(|name| root.join(name)).collect();
    let is_needed = |name: &&&str| root.join(name).symlink_metadata().is_ok() || names_hooks(&git, name);
    paths.extend(PROTECTED_IF_PRESENT.iter().filter(is_needed).map(|name| root.join(name)));
    for home in homes.iter().filter(|home| home.starts_with(root)) {
        paths.extend(STARTUP_FILES.iter().chain([&KEY_DIRECTORY]).map(|name| home.join(name)));
    }
    paths.extend(directories_of(&git));
    for checkout in checkouts(root, &git).into_iter().take(MAX_CHECKOUTS) {
        // Only what is there: something in its place would keep it from being made.
        if checkout.symlink_metadata().is_ok() {
            paths.extend(directories_of(&checkout));
            paths.push(checkout);
        }
    }
    if is_repository(root) {
        paths.extend(["hooks", "config"].map(|name| root.join(name)));
    }
    paths
}

/// Whether the settings of a repository speak of a directory of this name: git may be told to look for hooks there.
fn names_hooks(git: &Path, name: &str) -> bool {
    let settings = git.join("config");
    let is_small = fs::metadata(&settings).is_ok_and(|metadata| metadata.is_file() && metadata.len() < 1 << 20);
    is_small && fs::read(settings).is_ok_and(|text| text.windows(name.len()).any(|part| part == name.as_bytes()))
}

/// Where a `.git` that is a file says that the repository is, and what that shares with others: the hooks and settings of a
/// worktree are those of the repository that it was made from.
fn directories_of(git: &Path) -> Vec<PathBuf> {
    let Some(directory) = named_by(git, "gitdir:") else { return Vec::new() };
    let shared = named_by(&directory.join("commondir"), "");
    [Some(directory), shared].into_iter().flatten().collect()
}

/// The path that a small file of git names behind a word.
fn named_by(file: &Path, word: &str) -> Option<PathBuf> {
    let is_small = fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.len() < 8192);
    let text = is_small.then(|| fs::read_to_string(file).ok())??;
    file.parent()?.join(text.strip_prefix(word)?.trim()).canonicalize().ok()
}

/// The `.git` of every submodule and of every other worktree of a repository.
fn checkouts(root: &Path, git: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let is_small = fs::metadata(root.join(".gitmodules")).is_ok_and(|metadata| metadata.is_file() && metadata.len() < 1 << 20);
    let modules = if is_small { fs::read_to_string(root.join(".gitmodules")).unwrap_or_default() } else { String::new() };
    for line in modules.lines() {
        let Some((key, value)) = line.split_once('=') else { continue };
        let path = Path::new(value.trim());
        let stays = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if key.trim() == "path" && stays && !path.as_os_str().is_empty() {
            found.push(root.join(path).join(".git"));
        }
    }
    for entry in fs::read_dir(git.join("worktrees")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(entry.path().join("gitdir")).unwrap_or_default();
        let path = Path::new(text.trim_end());
        if path.is_absolute() {
            found.push(path.to_owned());
        }
    }
    found
}

/// Whether the root itself is a bare repository.
fn is_repository(root: &Path) -> bool {
    root.join("HEAD").is_file() && root.join("objects").is_dir() && root.join("refs").is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkouts_of_a_repository_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let (main, tree) = (root.join("main"), root.join("tree"));
        for path in [main.join(".git/worktrees/tree"), main.join("sub"), tree.clone()] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(main.join(".gitmodules"), "[submodule \"s\"]\n\tpath = sub\n\turl = x\n[submodule \"t\"]\n\tpath = ../out\n").unwrap();
        fs::write(main.join("sub/.git"), "gitdir: ../.git/modules/sub\n").unwrap();
        fs::write(main.join(".git/worktrees/tree/gitdir"), format!("{}\n", tree.join(".git").display())).unwrap();
        fs::write(main.join(".git/worktrees/tree/commondir"), "../..\n").unwrap();
        fs::write(tree.join(".git"), format!("gitdir: {}\n", main.join(".git/worktrees/tree").display())).unwrap();
        let paths = protected_paths(&main, &[]);
        assert!(paths.contains(&main.join("sub/.git")) && paths.contains(&tree.join(".git")), "{paths:?}");
        let paths = protected_paths(&tree, &[]);
        assert!(paths.contains(&main.join(".git")) && paths.contains(&main.join(".git/worktrees/tree")), "{paths:?}");
        assert!(protected_paths(&tree.join(".git"), &[]).is_empty());
    }
    #[test]
    fn only_what_a_tool_reads_is_protected_before_it_exists() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let (work, home) = (root.join("work"), root.join("home"));
        fs::create_dir_all(work.join(".git")).unwrap();
        fs::create_dir(&home).unwrap();
        let homes = [home.clone()];
        let names = |root: &Path| -> Vec<String> {
            let below = |path: PathBuf| path.strip_prefix(root).unwrap().display().to_string();
            protected_paths(root, &homes).into_iter().map(below).collect()
        };
        assert_eq!(names(&work), PROTECTED_NAMES);
        fs::write(work.join(".git/config"), "[core]\n\thooksPath = .husky/_\n").unwrap();
        fs::write(work.join(".envrc"), "").unwrap();
        assert_eq!(names(&work), [".git", ".agents", ".codex", ".husky", ".envrc"]);
        assert!(names(&home).contains(&".bashrc".into()) && names(&home).contains(&".ssh".into()));
        // A home inside of a root is one as well.
        assert!(names(&root).contains(&"home/.profile".into()) && !names(&root).contains(&".profile".into()));
    }
}
