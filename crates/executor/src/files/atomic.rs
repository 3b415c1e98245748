//! Writing a file so that a reader, also after a crash, finds the old bytes or the new ones.
//!
//! The new bytes go into a file without a name, which then takes the place of the old one. A file that would lose
//! something by that (other names, an owner, a mount on it) is rewritten in place instead; the caller is told and keeps
//! a copy of the new bytes until that is done, see [`super::redo`].

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use outpost_wire::Fault;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, StatxAttributes, StatxFlags, Uid, XattrFlags, fallocate, fchmod, fchown, fgetxattr,
    flistxattr, fsetxattr, linkat, openat, renameat, statx, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::{LinkPolicy, WriteOptions, not_a_file, refuse_links};
use crate::fault;

/// So many links are followed one after another.
const MAX_LINKS: usize = 40;
/// Set-id and sticky bits: what not every user may give a new file.
const SPECIAL: u32 = 0o7000;
/// Names of side files; they are there for microseconds.
const SIDE: &str = ".outpost-";

/// How a write went.
pub(crate) enum WriteOutcome {
    /// With the file that was there before and its size. It has no name any more, and closing it may take long.
    Done(Option<(File, u64)>),
    /// It has to be rewritten in place; nothing was touched yet.
    InPlace(InPlaceFile),
}

/// A file that has to be rewritten in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InPlaceFile {
    #[serde(with = "super::native_path")]
    pub path: PathBuf,
    pub device: u64,
    pub inode: u64,
}

/// Replaces a file, or makes it.
pub(crate) fn write(path: &Path, data: &[u8], options: &WriteOptions) -> Result<WriteOutcome, Fault> {
    write_if(path, data, options, &|_, _| Ok(()))
}

/// The same, if this name in this directory may be written.
pub(crate) fn write_if(
    path: &Path,
    data: &[u8],
    options: &WriteOptions,
    may_write: &dyn Fn(BorrowedFd<'_>, &OsStr) -> io::Result<()>,
) -> Result<WriteOutcome, Fault> {
    refuse_links(path, options.follow).map_err(fault::file)?;
    let target = Target::find(path, options.follow).map_err(fault::file)?;
    may_write(target.directory.as_fd(), &target.name).map_err(fault::file)?;
    let Some((old, metadata)) = target.open_old(path)? else {
        return target.create(data, options).map(|()| WriteOutcome::Done(None)).map_err(fault::file);
    };
    match target.replace((&old, &metadata), data, options) {
        Ok(true) => Ok(WriteOutcome::Done(Some((old, metadata.len())))),
        Ok(false) => Ok(WriteOutcome::InPlace(InPlaceFile { path: target.path(), device: metadata.dev(), inode: metadata.ino() })),
        Err(error) => Err(fault::file(error)),
    }
}

/// Rewrites a file in place. Room is made first, so that a full disk is found before anything is touched; if it fails
/// all the same, the old bytes are put back.
pub(crate) fn rewrite(identity: &InPlaceFile, data: &[u8], sync: bool) -> io::Result<()> {
    let file = File::from(
        openat(CWD, &identity.path, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
            // Some may be written and not read; they cannot be put back.
            .or_else(|_| {
                openat(CWD, &identity.path, OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
            })?,
    );
    let metadata = file.metadata()?;
    if !metadata.is_file() || (metadata.dev(), metadata.ino()) != (identity.device, identity.inode) {
        return Err(io::Error::other("the file was replaced by another one meanwhile"));
    }
    let length = data.len() as u64;
    // Not every file system can promise room; those that can say so now.
    if fallocate(&file, FallocateFlags::KEEP_SIZE, 0, length.max(1)) == Err(Errno::NOSPC) {
        return Err(Errno::NOSPC.into());
    }
    let mut old = vec![0; usize::try_from(metadata.len()).unwrap_or_default()];
    let is_known = file.read_exact_at(&mut old, 0).is_ok();
    let written = file.write_all_at(data, 0).and_then(|()| file.set_len(length));
    if written.is_err() && is_known {
        let _ = file.write_all_at(&old, 0).and_then(|()| file.set_len(old.len() as u64));
    }
    written?;
    if sync { file.sync_all() } else { Ok(()) }
}

/// Puts a new file in the place of whatever has a name, unless that is a directory. A link is replaced and not followed.
pub(crate) fn put(directory: BorrowedFd<'_>, name: &OsStr, data: &[u8], mode: Mode) -> io::Result<()> {
    let side = Side::new(directory, Mode::from_raw_mode(0o600))?;
    (&side.file).write_all(data)?;
    fchmod(&side.file, mode)?;
    side.put_as(name)
}

/// A place in a directory that is held open, so that it stays the same one.
struct Target {
    directory: OwnedFd,
    /// By what it was found, for later.
    parent: PathBuf,
    name: OsString,
}

impl Target {
    /// Where writing to a path ends up: links at its end are followed, also those that lead to nothing yet.
    fn find(path: &Path, follow: LinkPolicy) -> io::Result<Self> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::ISDIR.into()) };
            if follow == LinkPolicy::Links
                && let Ok(link) = std::fs::read_link(&path)
            {
                path = parent.join(link);
                continue;
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = openat(CWD, parent, flags, Mode::empty())?;
            return Ok(Self { directory, parent: parent.to_owned(), name: name.to_owned() });
        }
        Err(Errno::LOOP.into())
    }

    fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// The file that is there, if there is one. Opened for writing, so that a user who may not write it is refused.
    fn open_old(&self, asked: &Path) -> Result<Option<(File, Metadata)>, Fault> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.directory, &self.name, flags, Mode::empty()) {
            Ok(file) => {
                let file = File::from(file);
                let metadata = file.metadata().map_err(fault::file)?;
                if metadata.is_file() { Ok(Some((file, metadata))) } else { Err(not_a_file(asked)) }
            }
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NXIO | Errno::ISDIR) => Err(not_a_file(asked)),
            Err(error) => Err(fault::file(error.into())),
        }
    }

    fn create(&self, data: &[u8], options: &WriteOptions) -> io::Result<()> {
        // What is to have other permissions than usual is its owner's alone until it has them.
        let side = Side::new(self.directory.as_fd(), Mode::from_raw_mode(if options.mode.is_some() { 0o600 } else { 0o666 }))?;
        if let Some(mode) = options.mode {
            fchmod(&side.file, Mode::from_raw_mode(mode & 0o7777))?;
        }
        side.fill(data, options.sync)?;
        side.put(self, options.sync)
    }

    /// False if this file has to be rewritten in place.
    fn replace(&self, (old, metadata): (&File, &Metadata), data: &[u8], options: &WriteOptions) -> io::Result<bool> {
        let is_plain = metadata.nlink() == 1 && metadata.mode() & SPECIAL == 0 && !self.is_mount();
        if !is_plain || metadata.uid() != geteuid().as_raw() && !geteuid().is_root() {
            return Ok(false);
        }
        let mode = Mode::from_raw_mode(metadata.mode() & 0o777);
        let side = match Side::new(self.directory.as_fd(), mode) {
            Ok(side) => side,
            // The file may be written and its directory not.
            Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => return Ok(false),
            Err(error) => return Err(error),
        };
        if !side.resemble(old, metadata)? {
            return Ok(false);
        }
        side.fill(data, options.sync)?;
        side.put(self, options.sync)?;
        Ok(true)
    }

    /// Whether something is mounted on the very file.
    fn is_mount(&self) -> bool {
        let looked = statx(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
        looked.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }
}

/// The new file before it has its name.
struct Side<'a> {
    directory: rustix::fd::BorrowedFd<'a>,
    file: File,
    /// Its name, where files cannot be without one.
    name: Option<OsString>,
}

impl<'a> Side<'a> {
    fn new(directory: rustix::fd::BorrowedFd<'a>, mode: Mode) -> io::Result<Self> {
        match openat(directory, ".", OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, mode) {
            Ok(file) => return Ok(Self { directory, file: file.into(), name: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        let name = side_name();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, &name, flags, mode)?;
        Ok(Self { directory, file: file.into(), name: Some(name) })
    }

    /// Gives it the owner, the mode and the attributes of the old file. False if that is not possible.
    fn resemble(&self, old: &File, metadata: &Metadata) -> io::Result<bool> {
        let own = self.file.metadata()?;
        if (own.uid(), own.gid()) != (metadata.uid(), metadata.gid()) {
            let (uid, gid) = (Uid::from_raw(metadata.uid()), Gid::from_raw(metadata.gid()));
            if fchown(&self.file, (own.uid() != metadata.uid()).then_some(uid), Some(gid)).is_err() {
                return Ok(false);
            }
        }
        // Made with this mode, of which the mask of this process may have taken something away; a new owner takes no more than that.
        if own.mode() & 0o7777 != metadata.mode() & 0o777 {
            fchmod(&self.file, Mode::from_raw_mode(metadata.mode() & 0o777))?;
        }
        copy_attributes(old, &self.file)
    }

    fn fill(&self, data: &[u8], sync: bool) -> io::Result<()> {
        (&self.file).write_all(data)?;
        if sync { self.file.sync_all() } else { Ok(()) }
    }

    fn put(self, target: &Target, sync: bool) -> io::Result<()> {
        let directory = self.directory;
        self.put_as(&target.name)?;
        if sync {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            File::from(openat(directory, ".", flags, Mode::empty())?).sync_all()?;
        }
        Ok(())
    }

    fn put_as(mut self, target: &OsStr) -> io::Result<()> {
        let name = match self.name.take() {
            Some(name) => name,
            None => {
                let name = side_name();
                self.link(&name)?;
                name
            }
        };
        // Whatever happens from here on, the side file has a name that must go.
        self.name = Some(name.clone());
        renameat(self.directory, &name, self.directory, target)?;
        self.name = None;
        Ok(())
    }

    fn link(&self, name: &OsStr) -> io::Result<()> {
        let number = std::os::fd::AsRawFd::as_raw_fd(&self.file);
        Ok(linkat(CWD, format!("/proc/self/fd/{number}"), self.directory, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = unlinkat(self.directory, name, AtFlags::empty());
        }
    }
}

fn side_name() -> OsString {
    format!("{SIDE}{}", uuid::Uuid::new_v4().simple()).into()
}

/// Labels of security modules are given by the system, not copied.
fn copy_attributes(old: &File, new: &File) -> io::Result<bool> {
    let mut names = vec![0_u8; 4096];
    let names = match flistxattr(old, names.as_mut_slice()) {
        Ok(length) => &names[..length],
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(true),
        // More than any user has.
        Err(_) => return Ok(false),
    };
    let mut value = vec![0_u8; 64 << 10];
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        if name.starts_with(b"security.") || name.starts_with(b"trusted.") {
            continue;
        }
        let Ok(length) = fgetxattr(old, name, value.as_mut_slice()) else { return Ok(false) };
        if fsetxattr(new, name, &value[..length], XattrFlags::empty()).is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const PLAIN: WriteOptions = WriteOptions { follow: LinkPolicy::Links, sync: false, mode: None };

    fn is_done(path: &Path, data: &[u8]) -> bool {
        matches!(write(path, data, &PLAIN).unwrap(), WriteOutcome::Done(_))
    }

    #[test]
    fn a_replaced_file_keeps_its_mode_and_attributes_and_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        assert!(is_done(&path, b"one"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let has_attributes = fsetxattr(File::open(&path).unwrap(), "user.kept", b"yes", XattrFlags::empty()).is_ok();
        let before = fs::metadata(&path).unwrap().ino();
        assert!(is_done(&path, b"two, and longer"));
        assert_eq!(fs::read(&path).unwrap(), b"two, and longer");
        let after = fs::metadata(&path).unwrap();
        assert_eq!(after.mode() & 0o7777, 0o640);
        assert_ne!(after.ino(), before, "it was not replaced");
        let mut value = [0; 8];
        let kept = fgetxattr(File::open(&path).unwrap(), "user.kept", &mut value[..]);
        assert_eq!(kept.is_ok_and(|length| &value[..length] == b"yes"), has_attributes);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_would_lose_something_is_rewritten_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("f"), directory.path().join("other"));
        fs::write(&path, "longer than new").unwrap();
        fs::hard_link(&path, &other).unwrap();
        let WriteOutcome::InPlace(identity) = write(&path, b"new", &PLAIN).unwrap() else { panic!("it was replaced") };
        assert_eq!(fs::read(&other).unwrap(), b"longer than new", "it was touched too early");
        rewrite(&identity, b"new", true).unwrap();
        assert_eq!((fs::read(&path).unwrap(), fs::read(&other).unwrap()), (b"new".to_vec(), b"new".to_vec()));
        let set_id = directory.path().join("set-id");
        fs::write(&set_id, "x").unwrap();
        fs::set_permissions(&set_id, fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(matches!(write(&set_id, b"new", &PLAIN).unwrap(), WriteOutcome::InPlace(_)));
    }

    #[test]
    fn links_lead_to_what_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let (link, target) = (directory.path().join("link"), directory.path().join("sub/target"));
        fs::create_dir(directory.path().join("sub")).unwrap();
        symlink("sub/target", &link).unwrap();
        assert!(is_done(&link, b"made through the link"));
        assert!(is_done(&link, b"replaced through the link"));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"replaced through the link");
        symlink("circle", directory.path().join("circle")).unwrap();
        assert!(write(&directory.path().join("circle"), b"", &PLAIN).is_err());
        assert!(write(&link, b"", &WriteOptions { follow: LinkPolicy::Nothing, sync: false, mode: None }).is_err());
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path(), Path::new("/dev/null"), Path::new("/")] {
            assert!(write(path, b"x", &PLAIN).is_err(), "{}", path.display());
        }
        assert!(write(&directory.path().join("missing/f"), b"x", &PLAIN).is_err());
    }
}
