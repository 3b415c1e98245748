//! The files of a gitdir, read and replaced without following a single link: sandboxed code may have written it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chownat, fchown, fstat, mkdirat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::names;

/// A ref, or what points to one, is never longer.
const SMALL: u64 = 4096;
/// So large may the list of packed refs be.
const PACKED: u64 = 256 << 20;
/// So many refs are looked at.
const MAX_REFS: usize = 1_000_000;
const MAX_DEPTH: usize = 16;
/// How often a lock of another program is tried, and how far apart.
const TRIES: usize = 40;
const PAUSE: Duration = Duration::from_millis(25);

/// What a `HEAD` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Head {
    Branch(String),
    Detached(String),
}

impl Head {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim_end();
        match text.strip_prefix("ref:") {
            Some(name) => Some(Self::Branch(name.trim().to_owned())).filter(|head| head.is_valid()),
            None => names::is_oid(text).then(|| Self::Detached(text.to_owned())),
        }
    }

    fn is_valid(&self) -> bool {
        matches!(self, Self::Branch(name) if name.starts_with("refs/heads/") && names::is_ref(name)) || matches!(self, Self::Detached(_))
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Branch(name) => format!("ref: {name}\n"),
            Self::Detached(oid) => format!("{oid}\n"),
        }
    }
}

/// All refs by name, without those that only point to another one.
pub(super) type Refs = BTreeMap<String, String>;

/// A gitdir, or a part of one.
pub(super) struct Gitdir(OwnedFd);

fn beneath(directory: &OwnedFd, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(directory, path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode, resolve)
}

impl Gitdir {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS)?))
    }

    /// Whether something has this name, whatever it is.
    pub(super) fn has(&self, name: &str) -> bool {
        statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Whether git would take it for a repository.
    pub(super) fn is_repository(&self) -> bool {
        let is_directory =
            |name: &str| statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir());
        is_directory("objects") && is_directory("refs") && self.head().is_some()
    }

    /// What is in a directory below it; nothing where there is none.
    pub(super) fn children(&self, path: &str) -> io::Result<Vec<(String, FileType)>> {
        let directory = match beneath(&self.0, Path::new(path), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut found = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => FileType::from_raw_mode(statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode),
                kind => kind,
            };
            found.push((name.to_owned(), kind));
        }
        Ok(found)
    }

    /// A plain file below it, to be read.
    pub(super) fn open_file(&self, name: &Path) -> io::Result<Option<File>> {
        // A pipe that sandboxed code put there must not block the executor.
        let opened = match beneath(&self.0, name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(FileType::from_raw_mode(fstat(&opened)?.st_mode).is_file().then(|| File::from(opened)))
    }

    /// Makes directories below it for its owner, where there are none.
    pub(super) fn make_directories(&self, path: &str, owner: (u32, u32)) -> io::Result<()> {
        let mut made = String::new();
        for name in path.split('/') {
            let above = if made.is_empty() { Path::new(".") } else { Path::new(&made) };
            let above = beneath(&self.0, above, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
            match mkdirat(&above, name, Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH) {
                Ok(()) if rustix::process::geteuid().is_root() => {
                    chownat(&above, name, Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)), AtFlags::SYMLINK_NOFOLLOW)?;
                }
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            made = if made.is_empty() { name.to_owned() } else { format!("{made}/{name}") };
        }
        Ok(())
    }

    /// Makes a file below it for its owner.
    pub(super) fn create_file(&self, name: &str, owner: (u32, u32)) -> io::Result<File> {
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        let opened = beneath(&self.0, Path::new(name), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)?;
        if rustix::process::geteuid().is_root() {
            fchown(opened.as_fd(), Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)))?;
        }
        Ok(File::from(opened))
    }

    /// Gives a file below it another place below it.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let directory = |path: &str| {
            let above = Path::new(path).parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
            beneath(&self.0, above, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
        };
        let last = |path: &str| Path::new(path).file_name().map(ToOwned::to_owned).unwrap_or_default();
        Ok(renameat(directory(from)?, last(from), directory(to)?, last(to))?)
    }

    pub(super) fn remove_file(&self, name: &str) {
        let above = Path::new(name).parent().unwrap_or(Path::new("."));
        if let (Ok(above), Some(last)) =
            (beneath(&self.0, above, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()), Path::new(name).file_name())
        {
            let _ = unlinkat(above, last, AtFlags::empty());
        }
    }

    /// The newest stash. Its ref has a name of its own kind.
    pub(super) fn stash(&self) -> Option<String> {
        let loose = self.read(Path::new("refs/stash"), SMALL).ok().flatten();
        let oid = match loose {
            Some(bytes) => String::from_utf8(bytes).ok()?.trim_end().to_owned(),
            None => {
                let packed = self.read(Path::new("packed-refs"), PACKED).ok().flatten()?;
                let packed = String::from_utf8_lossy(&packed);
                packed.lines().find_map(|line| line.strip_suffix(" refs/stash"))?.to_owned()
            }
        };
        names::is_oid(&oid).then_some(oid)
    }

    /// A plain file that is not larger than this.
    pub(super) fn read(&self, name: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
        // A pipe that sandboxed code put there must not block the executor.
        let opened = match beneath(&self.0, name, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let stat = fstat(&opened)?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() || u64::try_from(stat.st_size).unwrap_or(u64::MAX) > most {
            return Err(io::Error::other(format!("{} is not a plain file of the usual size", name.display())));
        }
        let mut bytes = Vec::new();
        File::from(opened).take(most + 1).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    pub(super) fn head(&self) -> Option<Head> {
        let bytes = self.read(Path::new("HEAD"), SMALL).ok().flatten()?;
        Head::parse(std::str::from_utf8(&bytes).ok()?)
    }

    /// Every ref whose name git would make.
    pub(super) fn refs(&self) -> io::Result<Refs> {
        let mut refs = Refs::new();
        for line in self.read(Path::new("packed-refs"), PACKED)?.unwrap_or_default().split(|byte| *byte == b'\n') {
            let Ok(line) = std::str::from_utf8(line) else { continue };
            if let Some((oid, name)) = line.split_once(' ')
                && names::is_oid(oid)
                && names::is_ref(name)
            {
                refs.insert(name.to_owned(), oid.to_owned());
            }
        }
        self.loose("refs", 0, &mut refs)?;
        Ok(refs)
    }

    fn loose(&self, path: &str, depth: usize, refs: &mut Refs) -> io::Result<()> {
        for (name, kind) in self.children(path)? {
            if refs.len() > MAX_REFS || depth > MAX_DEPTH {
                return Err(io::Error::other("there are too many refs"));
            }
            let below = format!("{path}/{name}");
            match kind {
                FileType::Directory => self.loose(&below, depth + 1, refs)?,
                FileType::RegularFile if names::is_ref(&below) => {
                    let Ok(Some(bytes)) = self.read(Path::new(&below), SMALL) else { continue };
                    let Ok(text) = std::str::from_utf8(&bytes) else { continue };
                    if names::is_oid(text.trim_end()) {
                        refs.insert(below, text.trim_end().to_owned());
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The same as [`Self::replace`], waiting for a short while for another program that holds the lock.
    pub(super) async fn replace_when_free(
        &self,
        name: &str,
        bytes: &[u8],
        owner: (u32, u32),
        is_same: impl Fn() -> bool,
    ) -> io::Result<()> {
        for _ in 0..TRIES {
            match self.replace(name, bytes, owner, &is_same) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => tokio::time::sleep(PAUSE).await,
                done => return done,
            }
        }
        self.replace(name, bytes, owner, is_same)
    }

    /// Puts new bytes in the place of a file as git does: by a lock beside it. `is_same` is asked under the lock.
    pub(super) fn replace(&self, name: &str, bytes: &[u8], owner: (u32, u32), is_same: impl FnOnce() -> bool) -> io::Result<()> {
        let lock = PathBuf::from(format!("{name}.lock"));
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        let opened = beneath(&self.0, &lock, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode)?;
        let written = (|| {
            if rustix::process::geteuid().is_root() {
                fchown(opened.as_fd(), Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)))?;
            }
            let mut file = File::from(opened);
            file.write_all(bytes)?;
            file.sync_all()?;
            if !is_same() {
                return Err(io::Error::other("it was changed meanwhile"));
            }
            Ok(renameat(&self.0, &lock, &self.0, name)?)
        })();
        if written.is_err() {
            let _ = unlinkat(&self.0, &lock, AtFlags::empty());
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn refs_are_read_and_links_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("git/refs/heads/deep")).unwrap();
        fs::create_dir_all(root.join("git/objects")).unwrap();
        fs::create_dir_all(root.join("other")).unwrap();
        let (one, two) = ("1".repeat(40), "2".repeat(40));
        fs::write(root.join("git/packed-refs"), format!("# pack-refs\n{one} refs/heads/a\n{one} refs/heads/b\n^{two}\n{one} refs/../x\n"))
            .unwrap();
        fs::write(root.join("git/refs/heads/a"), format!("{two}\n")).unwrap();
        fs::write(root.join("git/refs/heads/deep/c"), format!("{two}\n")).unwrap();
        fs::write(root.join("git/refs/heads/x.lock"), format!("{two}\n")).unwrap();
        fs::write(root.join("other/d"), format!("{two}\n")).unwrap();
        symlink("../../../other", root.join("git/refs/heads/link")).unwrap();
        symlink("../../../other/d", root.join("git/refs/heads/file")).unwrap();
        fs::write(root.join("git/HEAD"), "ref: refs/heads/a\n").unwrap();
        let gitdir = Gitdir::open(&root.join("git")).unwrap();
        let refs = gitdir.refs().unwrap();
        let expected = [("refs/heads/a", &two), ("refs/heads/b", &one), ("refs/heads/deep/c", &two)];
        assert_eq!(refs, expected.map(|(name, oid)| (name.to_owned(), oid.clone())).into());
        assert_eq!(gitdir.head(), Some(Head::Branch("refs/heads/a".into())));
        assert!(gitdir.is_repository());
        for bad in ["ref: refs/../../../x\n", "ref: refs/tags/x\n", "", "x"] {
            fs::write(root.join("git/HEAD"), bad).unwrap();
            assert_eq!(gitdir.head(), None, "{bad}");
        }
        fs::remove_file(root.join("git/HEAD")).unwrap();
        symlink("../other/d", root.join("git/HEAD")).unwrap();
        assert!(gitdir.head().is_none() && gitdir.has("HEAD"));
    }

    #[test]
    fn a_file_is_replaced_under_its_lock() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let gitdir = Gitdir::open(&root).unwrap();
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        gitdir.replace("HEAD", b"one", owner, || true).unwrap();
        assert!(gitdir.replace("HEAD", b"two", owner, || false).is_err());
        assert_eq!(fs::read(root.join("HEAD")).unwrap(), b"one");
        fs::write(root.join("HEAD.lock"), "").unwrap();
        assert!(gitdir.replace("HEAD", b"two", owner, || true).is_err());
        assert!(root.join("HEAD.lock").exists());
    }
}
