//! What stays read-only inside a writable root, because somebody outside the sandbox will run or believe it later.

use std::path::{Path, PathBuf};

use super::{Access, Origin, Rule};

/// Repositories with their hooks and settings, and the settings of agents and tools that act on them.
pub const PROTECTED_NAMES: &[&str] = &[".git", ".githooks", ".husky", ".agents", ".codex", ".outpost", ".ssh"];

/// What shells and logins read when they start.
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
    ".envrc",
    ".gitconfig",
];

/// The rules that protect what is at the top of a writable root. `root` is a resolved path.
pub fn protected_below(root: &Path) -> Vec<Rule> {
    // A single file has nothing below it.
    if root.symlink_metadata().is_ok_and(|metadata| !metadata.is_dir()) {
        return Vec::new();
    }
    let mut paths: Vec<PathBuf> = PROTECTED_NAMES.iter().chain(STARTUP_FILES).map(|name| root.join(name)).collect();
    paths.extend(git_directory(root));
    if is_repository(root) {
        paths.extend(["hooks", "config"].map(|name| root.join(name)));
    }
    paths.into_iter().map(|path| Rule { path, access: Access::Read, origin: Origin::Protected }).collect()
}

/// A worktree's `.git` is a file that names the directory: that one is protected as well if it lies in the root.
fn git_directory(root: &Path) -> Option<PathBuf> {
    let text = std::fs::read_to_string(root.join(".git")).ok()?;
    let directory = root.join(text.strip_prefix("gitdir:")?.trim()).canonicalize().ok()?;
    directory.starts_with(root).then_some(directory)
}

/// Whether the root itself is a bare repository.
fn is_repository(root: &Path) -> bool {
    root.join("HEAD").is_file() && root.join("objects").is_dir() && root.join("refs").is_dir()
}
