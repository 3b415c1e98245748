//! A private copy of a gitdir without its objects, which sandboxed code sees in the place of the gitdir.
//!
//! The objects are those of the machine, read-only, at another name beside the copy's own; `objects/info/alternates` leads there.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use super::find::is_repository;

/// Where the machine's objects are seen inside a layer, and beside them, where git-lfs looks for what other repositories have, its files.
pub(super) const OBJECTS: &str = "outpost/objects";
pub(super) const LFS: &str = "outpost/lfs/objects";
/// What of a gitdir is copied. Everything else is not known to us, or too large (`lfs`, `annex`).
const WANTED: &[&str] = &[
    "HEAD",
    "config",
    "config.worktree",
    "description",
    "packed-refs",
    "refs",
    "index",
    "info",
    "logs",
    "shallow",
    "hooks",
    "ORIG_HEAD",
    "FETCH_HEAD",
    "MERGE_HEAD",
    "MERGE_MODE",
    "MERGE_MSG",
    "MERGE_RR",
    "AUTO_MERGE",
    "SQUASH_MSG",
    "CHERRY_PICK_HEAD",
    "REVERT_HEAD",
    "REBASE_HEAD",
    "COMMIT_EDITMSG",
    "BISECT_LOG",
    "BISECT_NAMES",
    "BISECT_START",
    "BISECT_TERMS",
    "BISECT_EXPECTED_REV",
    "BISECT_ANCESTORS_OK",
    "rebase-merge",
    "rebase-apply",
    "sequencer",
    "rr-cache",
    "branches",
    "remotes",
    "worktrees",
];
/// So many files one copy may have, and so many bytes.
const MAX_FILES: usize = 200_000;
const MAX_BYTES: u64 = 1 << 30;
/// So many submodules are copied along.
const MAX_UNITS: usize = 256;

/// Copies a gitdir for its owner.
pub(super) struct Copying {
    owner: (u32, u32),
    files: usize,
    bytes: u64,
}

impl Copying {
    pub(super) fn new(owner: (u32, u32)) -> Self {
        Self { owner, files: 0, bytes: 0 }
    }

    /// Returns the parts that are repositories by themselves: the gitdir, and those of its submodules.
    pub(super) fn run(&mut self, gitdir: &Path, layer: &Path) -> io::Result<Vec<String>> {
        self.directory(layer)?;
        let mut units = vec![String::new()];
        self.unit(gitdir, gitdir, layer)?;
        self.modules(gitdir, layer, "modules", &mut units)?;
        Ok(units)
    }

    fn unit(&mut self, seen_at: &Path, from: &Path, to: &Path) -> io::Result<()> {
        for name in WANTED {
            self.tree(&from.join(name), &to.join(name))?;
        }
        for name in ["objects", "objects/info", "objects/pack", "outpost", OBJECTS, "outpost/lfs", LFS] {
            self.directory(&to.join(name))?;
        }
        let mut alternates = vec![seen_at.join(OBJECTS)];
        alternates.extend(alternates_of(&from.join("objects")));
        let lines: Vec<u8> = alternates.iter().flat_map(|path| [path.as_os_str().as_encoded_bytes(), b"\n"].concat()).collect();
        let file = to.join("objects/info/alternates");
        fs::write(&file, lines)?;
        self.give(&file)
    }

    /// Submodules, at whatever depth their names have, and submodules of those.
    fn modules(&mut self, gitdir: &Path, layer: &Path, below: &str, units: &mut Vec<String>) -> io::Result<()> {
        let from = gitdir.join(below);
        let Ok(entries) = fs::read_dir(&from) else { return Ok(()) };
        self.directory(&layer.join(below))?;
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let unit = format!("{below}/{name}");
            if is_repository(&entry.path()) {
                if units.len() > MAX_UNITS {
                    return Err(io::Error::other("it has too many submodules"));
                }
                self.directory(&layer.join(&unit))?;
                self.unit(&gitdir.join(&unit), &entry.path(), &layer.join(&unit))?;
                units.push(unit.clone());
                self.modules(gitdir, layer, &format!("{unit}/modules"), units)?;
            } else {
                self.modules(gitdir, layer, &unit, units)?;
            }
        }
        Ok(())
    }

    fn tree(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let Ok(metadata) = from.symlink_metadata() else { return Ok(()) };
        self.files += 1;
        self.bytes += if metadata.is_file() { metadata.len() } else { 0 };
        if self.files > MAX_FILES || self.bytes > MAX_BYTES {
            return Err(io::Error::other("it is too large to be copied"));
        }
        if metadata.is_dir() {
            self.directory(to)?;
            for entry in fs::read_dir(from)?.flatten() {
                let is_lock = entry.path().extension().is_some_and(|extension| extension == "lock");
                if !is_lock {
                    self.tree(&entry.path(), &to.join(entry.file_name()))?;
                }
            }
        } else if metadata.is_symlink() {
            symlink(fs::read_link(from)?, to)?;
            self.give(to)?;
        } else if metadata.is_file() {
            match fs::copy(from, to) {
                Ok(_) => {}
                // Removed by a program that works there just now.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            }
            fs::set_permissions(to, Permissions::from_mode(metadata.permissions().mode() & 0o777 | 0o600))?;
            self.give(to)?;
        }
        Ok(())
    }

    fn directory(&self, path: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => self.give(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        if rustix::process::geteuid().is_root() { lchown(path, Some(self.owner.0), Some(self.owner.1)) } else { Ok(()) }
    }
}

/// Where else a repository has objects. A second level may only name absolute paths, so all of them are absolute.
fn alternates_of(objects: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![objects.to_owned()];
    while let Some(directory) = left.pop() {
        let text = fs::read_to_string(directory.join("info/alternates")).unwrap_or_default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Ok(path) = directory.join(line).canonicalize()
                && !found.contains(&path)
                && found.len() < 16
            {
                found.push(path.clone());
                left.push(path);
            }
        }
    }
    found
}

/// What the configuration of a repository says about its own format.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Format {
    pub is_sha256: bool,
    pub has_reftable: bool,
    pub is_partial: bool,
}

impl Format {
    pub(super) fn of(gitdir: &Path) -> Self {
        let mut format = Self::default();
        let mut section = String::new();
        for line in fs::read_to_string(gitdir.join("config")).unwrap_or_default().lines() {
            let line = without_comment(line).trim().to_ascii_lowercase();
            // A header may be followed by a variable on its line.
            let variable = match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                Some((header, rest)) => {
                    section = header.split_whitespace().next().unwrap_or_default().to_owned();
                    rest
                }
                None => &line,
            };
            // Without a value it is true.
            let (key, value) = variable.split_once('=').unwrap_or((variable, "true"));
            let value = value.trim().trim_matches('"');
            match (section.as_str(), key.trim()) {
                ("extensions", "objectformat") => format.is_sha256 = value == "sha256",
                ("extensions", "refstorage") => format.has_reftable = value != "files",
                // Since git 2.24 a partial clone marks the remote that has the rest, and no extension.
                ("extensions", "partialclone") | ("remote", "partialclonefilter") => format.is_partial = true,
                ("remote", "promisor") if !["false", "no", "off", "0"].contains(&value) => format.is_partial = true,
                _ => {}
            }
        }
        format
    }
}

/// A line of a configuration up to its comment, which may stand behind a value, but not inside of quotes.
fn without_comment(line: &str) -> &str {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let comment = line.find(|character| {
        let is_literal = std::mem::take(&mut is_escaped);
        match character {
            '\\' => is_escaped = !is_literal,
            '"' if !is_literal => is_quoted = !is_quoted,
            '#' | ';' => return !is_quoted,
            _ => {}
        }
        false
    });
    comment.map_or(line, |at| &line[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_everything_but_objects() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let (gitdir, layer) = (root.join("w/.git"), root.join("layer"));
        for name in ["objects/ab", "refs/heads", "modules/a/b/objects", "modules/a/b/refs", "lfs"] {
            fs::create_dir_all(gitdir.join(name)).unwrap();
        }
        for name in ["HEAD", "index", "index.lock", "objects/ab/cd", "refs/heads/main", "modules/a/b/HEAD", "lfs/x"] {
            fs::write(gitdir.join(name), "x").unwrap();
        }
        fs::write(gitdir.join("config"), "[core]\n\tbare = false\n[extensions]\n\tobjectFormat = sha256\n\trefStorage = reftable\n")
            .unwrap();
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let units = Copying::new(owner).run(&gitdir, &layer).unwrap();
        assert_eq!(units, ["", "modules/a/b"]);
        assert!(layer.join("index").exists() && layer.join("refs/heads/main").exists() && layer.join("modules/a/b/HEAD").exists());
        assert!(!layer.join("index.lock").exists() && !layer.join("objects/ab").exists() && !layer.join("lfs").exists());
        let alternates = fs::read_to_string(layer.join("modules/a/b/objects/info/alternates")).unwrap();
        assert_eq!(alternates, format!("{}\n", gitdir.join("modules/a/b").join(OBJECTS).display()));
        assert_eq!(Format::of(&gitdir), Format { is_sha256: true, has_reftable: true, is_partial: false });
    }

    #[test]
    fn a_partial_clone_is_known_by_its_remote() {
        let directory = tempfile::tempdir().unwrap();
        let is_partial = |config: &str| {
            fs::write(directory.path().join("config"), config).unwrap();
            Format::of(directory.path()).is_partial
        };
        assert!(is_partial(
            "[core]\n\tbare = false\n[remote \"origin\"]\n\turl = file:///x\n\tpromisor = true\n\tpartialclonefilter = blob:none\n"
        ));
        assert!(is_partial("[remote \"origin\"] promisor\n"));
        assert!(is_partial("[extensions]\n\tpartialClone = origin\n"));
        assert!(!is_partial("[remote \"origin\"]\n\turl = file:///x\n\tpromisor = false\n[promisor]\n\tpartialclone = x\n"));
        // Comments end a line wherever they stand, but not in quotes.
        assert!(!is_partial("[remote \"origin\"] # the one\n\tpromisor = false ; for now\n\t# partialclonefilter = blob:none\n"));
        assert!(is_partial("[remote \"a#\\\";b\"]\n\tpromisor = true # yes\n"));
    }
}
