//! What sandboxed code may put into a working tree that git outside would run: it cannot be prevented there, so it is told.
//!
//! Nested repositories, bare repositories, attributes that name drivers, and files that the user's own configuration of git leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::find::is_repository;
use super::stamp::GitStamp;

/// So many directories are looked at.
const MAX_DIRECTORIES: usize = 20_000;
/// With so few directories the look is over before it is noticed.
const FEW: usize = 300;
/// No attributes are larger.
const SMALL: u64 = 1 << 20;

/// Settings whose values are run, or read as more settings.
const RUN: &[&str] = &[
    "core.hookspath",
    "core.fsmonitor",
    "core.editor",
    "core.pager",
    "core.sshcommand",
    "core.askpass",
    "core.attributesfile",
    "sequence.editor",
    "gpg.program",
    "credential.helper",
    "include.path",
    "diff.external",
];
const RUN_IN: &[(&str, &[&str])] = &[
    ("filter.", &[".clean", ".smudge", ".process"]),
    ("diff.", &[".command", ".textconv"]),
    ("merge.", &[".driver"]),
    ("hook.", &[".command"]),
    ("includeif.", &[".path"]),
    ("alias.", &[""]),
    ("gpg.", &[".program"]),
    ("credential.", &[".helper"]),
];

/// One working tree.
#[derive(Default)]
pub(super) struct Tree {
    directories: BTreeMap<PathBuf, Option<GitStamp>>,
    attributes: BTreeMap<PathBuf, Option<GitStamp>>,
    /// Files that settings lead to, with the setting.
    named: BTreeMap<PathBuf, (String, Option<GitStamp>)>,
    /// Names of drivers that the user has: `filter=lfs`.
    drivers: BTreeSet<String>,
    found: BTreeSet<PathBuf>,
    is_full: bool,
}

impl Tree {
    /// Looks at a tree for the first time: what is there is the user's. `settings` is what `git config --list -z` says to the user.
    pub(super) fn new(root: &Path, settings: &[u8]) -> Self {
        let mut tree = Self::default();
        tree.learn(root, settings);
        tree.look(root.to_owned(), root, &mut Vec::new());
        tree
    }

    /// Whether looking again takes no time that counts.
    pub(super) fn is_small(&self) -> bool {
        self.directories.len() <= FEW
    }

    fn learn(&mut self, root: &Path, settings: &[u8]) {
        for record in settings.split(|byte| *byte == 0).filter_map(|record| std::str::from_utf8(record).ok()) {
            let Some((key, value)) = record.split_once('\n') else { continue };
            let is_run = RUN.contains(&key)
                || RUN_IN.iter().any(|(start, ends)| key.starts_with(start) && ends.iter().any(|end| key.ends_with(end)));
            if !is_run {
                continue;
            }
            if let Some((section, rest)) = key.split_once('.')
                && let Some((driver, _)) = rest.rsplit_once('.')
                && ["filter", "diff", "merge"].contains(&section)
            {
                self.drivers.insert(format!("{section}={driver}"));
            }
            for word in value.trim_start_matches('!').split_whitespace().filter(|word| word.contains('/') || key == "core.hookspath") {
                let word = word.trim_matches(['"', '\'', ';']);
                let path = root.join(word);
                let stays = !Path::new(word).components().any(|part| matches!(part, std::path::Component::ParentDir));
                if !(stays && path.starts_with(root)) || path == root {
                    continue;
                }
                let says = format!("{key} = {value}");
                // A directory of hooks: each of them, and those that come.
                for entry in fs::read_dir(&path).into_iter().flatten().flatten().take(256) {
                    self.named.insert(entry.path(), (says.clone(), GitStamp::of(&entry.path())));
                }
                let stamp = GitStamp::of(&path);
                self.named.insert(path, (says, stamp));
            }
        }
    }

    /// Looks at a directory and everything below it.
    fn look(&mut self, directory: PathBuf, root: &Path, notices: &mut Vec<String>) {
        let mut left = vec![directory];
        while let Some(directory) = left.pop() {
            if self.directories.len() >= MAX_DIRECTORIES {
                self.is_full = true;
                return;
            }
            self.directories.insert(directory.clone(), GitStamp::of(&directory));
            let shown = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string().escape_debug().to_string();
            if directory != root && is_repository(&directory) && self.found.insert(directory.clone()) {
                notices.push(format!(
                    "git: `{}` in the working tree is a bare repository now; git that is run there runs what its configuration names (`git config --global safe.bareRepository explicit` keeps it from that)",
                    shown(&directory)
                ));
                // What is in it is not a working tree.
                continue;
            }
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                let (path, name) = (entry.path(), entry.file_name());
                if name == ".git" {
                    if directory != root && self.found.insert(path.clone()) {
                        notices.push(format!(
                            "git: `{}` appeared in the working tree; git that is run there, or that knows it as a submodule, runs what its configuration and hooks name: look at them first",
                            shown(&path)
                        ));
                    }
                } else if name == ".gitattributes" {
                    self.attributes_at(path, root, notices);
                } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !self.directories.contains_key(&path) {
                    left.push(path);
                }
            }
        }
    }

    fn attributes_at(&mut self, path: PathBuf, root: &Path, notices: &mut Vec<String>) {
        let stamp = GitStamp::of(&path);
        if self.attributes.get(&path) == Some(&stamp) {
            return;
        }
        let is_small = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() < SMALL);
        let text = if is_small { fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        let used: BTreeSet<&str> = text.split_whitespace().filter(|word| self.drivers.contains(*word)).collect();
        if !used.is_empty() {
            let used = used.into_iter().collect::<Vec<_>>().join(", ");
            let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string().escape_debug().to_string();
            notices.push(format!("git: `{shown}` was changed and names {used}: git outside runs that program of your configuration on files of the working tree"));
        }
        self.attributes.insert(path, stamp);
    }

    /// Looks for what has changed since. Returns what there is to say.
    pub(super) fn look_again(&mut self, root: &Path) -> Vec<String> {
        let mut notices = Vec::new();
        let changed: Vec<PathBuf> =
            self.directories.iter().filter(|(path, stamp)| GitStamp::of(path) != **stamp).map(|(path, _)| path.clone()).collect();
        for directory in changed {
            if directory.is_dir() {
                self.look(directory, root, &mut notices);
            } else {
                self.directories.remove(&directory);
                self.found.retain(|found| !found.starts_with(&directory));
            }
        }
        for path in self.attributes.keys().cloned().collect::<Vec<_>>() {
            self.attributes_at(path, root, &mut notices);
        }
        for (path, (says, stamp)) in &mut self.named {
            let now = GitStamp::of(path);
            if now != *stamp {
                *stamp = now;
                let shown = path.strip_prefix(root).unwrap_or(path).display().to_string().escape_debug().to_string();
                notices.push(format!("git: `{shown}` was changed, and your configuration of git runs it or reads it ({says}): look at it before you run git here"));
            }
        }
        if self.is_full {
            self.is_full = false;
            notices.push(format!("git: the working tree has more than {MAX_DIRECTORIES} directories; the others are not looked into for repositories that a command makes"));
        }
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_would_run_is_told_when_it_appears() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir_all(root.join("hooks")).unwrap();
        fs::write(root.join("hooks/pre-commit"), "").unwrap();
        let settings = b"filter.lfs.clean\ngit-lfs clean\0core.hookspath\nhooks\0filter.x.clean\n./tools/x --all\0user.name\na/b\0";
        let mut tree = Tree::new(&root, settings);
        assert!(tree.look_again(&root).is_empty());
        for bare in ["a/bare", "a/b/.git"] {
            for name in ["objects", "refs"] {
                fs::create_dir_all(root.join(bare).join(name)).unwrap();
            }
            fs::write(root.join(bare).join("HEAD"), "").unwrap();
        }
        fs::write(root.join("a/.gitattributes"), "* filter=none\n").unwrap();
        let told = tree.look_again(&root);
        assert!(
            told.len() == 2 && told.iter().any(|told| told.contains("`a/bare`")) && told.iter().any(|told| told.contains("`a/b/.git`")),
            "{told:?}"
        );
        fs::write(root.join("a/.gitattributes"), "*.png filter=lfs text\n").unwrap();
        fs::write(root.join("hooks/pre-commit"), "evil").unwrap();
        fs::create_dir(root.join("tools")).unwrap();
        fs::write(root.join("tools/x"), "evil").unwrap();
        let told = tree.look_again(&root);
        assert!(
            told.len() >= 3 && ["filter=lfs", "hooks/pre-commit", "tools/x"].iter().all(|name| told.iter().any(|told| told.contains(name))),
            "{told:?}"
        );
        assert!(tree.look_again(&root).is_empty());
    }
}
