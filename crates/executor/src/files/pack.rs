//! Many small files at once, with as few system calls for each as there can be. Without a sandbox only.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use outpost_wire::Fault;
use outpost_wire::exec::packs::PackPlacing;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, fstat, openat, stat, syncfs, unlinkat};
use rustix::io::Errno;

use super::atomic;
use crate::fault;

/// A file of a pack.
pub(crate) struct NewFile {
    pub path: PathBuf,
    pub size: usize,
    pub mode: u32,
}

/// Writes files with the bytes of a pack, which are one after the other. What was written before a failure stays.
pub(crate) fn write(files: &[NewFile], placing: PackPlacing, mut bytes: &[u8]) -> Result<(), Fault> {
    // Files of a tree come directory by directory: each directory is opened once.
    let mut last: Option<(&Path, OwnedFd)> = None;
    for file in files {
        let Some((data, rest)) = bytes.split_at_checked(file.size) else { return Err(fault::file(Errno::INVAL.into())) };
        bytes = rest;
        let written = write_one(file, placing, data, &mut last);
        written.map_err(|error| fault::of_path(&file.path, error))?;
    }
    Ok(())
}

fn write_one<'a>(file: &'a NewFile, placing: PackPlacing, data: &[u8], last: &mut Option<(&'a Path, OwnedFd)>) -> io::Result<()> {
    let (Some(parent), Some(name)) = (file.path.parent(), file.path.file_name()) else { return Err(Errno::ISDIR.into()) };
    if last.as_ref().is_none_or(|(path, _)| *path != parent) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        *last = Some((parent, openat(CWD, parent, flags, Mode::empty())?));
    }
    let Some((_, directory)) = last.as_ref() else { return Err(Errno::NOENT.into()) };
    let mode = Mode::from_raw_mode(file.mode & 0o7777);
    match placing {
        PackPlacing::Replace => atomic::put(directory.as_fd(), name, data, mode),
        PackPlacing::Part => {
            let flags =
                OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            // Its owner's alone until it has its permissions, which come last: bytes that are written take set-id bits away.
            let open = || openat(directory, name, flags, Mode::from_raw_mode(0o600));
            let opened = match open() {
                // From a call before this one, whose answer was lost: it has its permissions, and may only be read.
                Err(Errno::ACCESS) => unlinkat(directory, name, AtFlags::empty()).and_then(|()| open()).map_err(|_| Errno::ACCESS),
                other => other,
            };
            let mut new = File::from(opened?);
            let written = new.write_all(data).and_then(|()| Ok(fchmod(&new, mode)?));
            if written.is_err() {
                let _ = unlinkat(directory, name, AtFlags::empty());
            }
            written
        }
    }
}

/// Everything that was written to the file system of a path.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |path: &Path| openat(CWD, path, flags, Mode::empty());
    match open(path) {
        // It may not be read even by the user that copied it. The directory that it lies in is on the same file system, unless something is
        // mounted there.
        Err(Errno::ACCESS) => {
            let device = stat(path)?.st_dev;
            let above = path.parent().and_then(|above| open(above).ok());
            match above.filter(|above| fstat(above).is_ok_and(|stat| stat.st_dev == device)) {
                Some(above) => Ok(syncfs(above)?),
                None => {
                    rustix::fs::sync();
                    Ok(())
                }
            }
        }
        opened => Ok(syncfs(opened?)?),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

    use super::*;

    fn file(path: PathBuf, size: usize, mode: u32) -> NewFile {
        NewFile { path, size, mode }
    }

    /// Runs this without the rights of root that pass over permissions.
    fn as_user(run: impl FnOnce() + Send + 'static) {
        let run = move || {
            let sets = CapabilitySets { effective: CapabilitySet::empty(), ..capabilities(None).unwrap() };
            set_capabilities(None, sets).unwrap();
            run();
        };
        // Rights are a thread's own.
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn a_pack_is_written_file_by_file() {
        write_pack();
        as_user(write_pack);
    }

    fn write_pack() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        let at = |name: &str| root.path().join(name);
        for placing in [PackPlacing::Part, PackPlacing::Replace] {
            let files = [file(at("a"), 2, 0o600), file(at("d/b"), 0, 0o755), file(at("d/c"), 3, 0o440)];
            write(&files, placing, b"aaccc").unwrap();
            for (name, content, mode) in [("a", "aa", 0o600), ("d/b", "", 0o755), ("d/c", "ccc", 0o440)] {
                assert_eq!(fs::read_to_string(at(name)).unwrap(), content);
                assert_eq!(fs::metadata(at(name)).unwrap().permissions().mode() & 0o7777, mode);
            }
            // The same once more, as after a lost connection.
            write(&files, placing, b"aaccc").unwrap();
        }
        assert_eq!(fs::read_dir(at("d")).unwrap().count(), 2, "nothing is left beside them");
    }

    #[test]
    fn a_link_is_replaced_or_refused_and_never_followed() {
        let root = tempfile::tempdir().unwrap();
        let (outside, link) = (root.path().join("outside"), root.path().join("link"));
        fs::write(&outside, "old").unwrap();
        symlink(&outside, &link).unwrap();
        assert!(write(&[file(link.clone(), 3, 0o600)], PackPlacing::Part, b"new").is_err());
        write(&[file(link.clone(), 3, 0o600)], PackPlacing::Replace, b"new").unwrap();
        assert_eq!(fs::read_to_string(&outside).unwrap(), "old");
        assert!(!link.is_symlink());
        assert_eq!(fs::read_to_string(&link).unwrap(), "new");
    }

    #[test]
    fn what_may_not_be_read_is_synced() {
        as_user(|| {
            let root = tempfile::tempdir().unwrap();
            let (directory, path) = (root.path().join("d"), root.path().join("d/f"));
            fs::create_dir(&directory).unwrap();
            fs::write(&path, "x").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).unwrap();
            assert!(fs::read(&path).is_err(), "it can be read");
            sync(&path).unwrap();
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o300)).unwrap();
            sync(&path).unwrap();
            sync(&directory).unwrap();
            assert!(sync(&directory.join("missing")).is_err());
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
        });
    }

    #[test]
    fn a_failure_names_the_file() {
        let root = tempfile::tempdir().unwrap();
        let missing = root.path().join("missing/file");
        let fault = write(&[file(missing.clone(), 0, 0o600)], PackPlacing::Part, b"").unwrap_err();
        assert!(fault.message.contains(&missing.display().to_string()), "{fault}");
    }
}
