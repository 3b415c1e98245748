//! File calls of this machine. Every function blocks, and does what the process that it runs in may do: the executor's
//! own for calls without a sandbox, a worker inside the session's sandbox for others, see [`gate`].

pub(crate) mod atomic;
pub(crate) mod gate;
pub(crate) mod pack;
pub(crate) mod redo;
pub(crate) mod replaced;
pub(crate) mod worker;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use outpost_wire::Fault;
use outpost_wire::exec::files::{DirectoryEntry, FileMetadata};
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use self::atomic::WriteOutcome;
use self::redo::Redo;
use crate::fault;

/// The largest file that is read in one piece: as base64 it must still fit a message, with a little around it.
const MAX_READ: u64 = (outpost_rpc::link::MAX_MESSAGE as u64 - 4096) / 4 * 3;
const MAX_ENTRIES: usize = 50_000;

/// What to do about symbolic links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LinkPolicy {
    Links,
    /// Refuse a link in any component.
    Nothing,
}

pub(crate) struct WriteOptions {
    pub follow: LinkPolicy,
    /// Make it survive a power cut.
    pub sync: bool,
    /// The permissions of a file that is not there yet.
    pub mode: Option<u32>,
}

pub(crate) struct RemoveOptions {
    pub recursive: bool,
    pub force: bool,
    pub follow: LinkPolicy,
}

/// A file that is about to be read as a whole.
pub(crate) struct OpenFile {
    file: File,
    pub size: u64,
}

/// Opens a regular file for reading. Anything else is refused without waiting: a pipe without a writer would hang.
pub(crate) fn open_regular(path: &Path, follow: LinkPolicy) -> Result<(File, u64), Fault> {
    refuse_links(path, follow).map_err(fault::file)?;
    open_without_waiting(path, follow, OpenOptions::new().read(true))
}

/// Opens a regular file for writing, empty; it is created if it is not there.
pub(crate) fn open_replaced(path: &Path, follow: LinkPolicy) -> Result<File, Fault> {
    open_replaced_if(path, follow, &|_| Ok(()))
}

/// The same, if what was opened may be written.
pub(crate) fn open_replaced_if(path: &Path, follow: LinkPolicy, may_write: &dyn Fn(&File) -> io::Result<()>) -> Result<File, Fault> {
    let (file, _) = open_for_writing(path, follow)?;
    may_write(&file).and_then(|()| file.set_len(0)).map_err(fault::file)?;
    Ok(file)
}

/// Opens a client's own file to go on writing it; made for its owner only.
pub(crate) fn open_part(path: &Path) -> Result<File, Fault> {
    let mut options = OpenOptions::new();
    Ok(open_without_waiting(path, LinkPolicy::Nothing, options.write(true).create(true).truncate(false).mode(0o600))?.0)
}

/// Not truncated at once: what turns out to be no file must not be touched.
fn open_for_writing(path: &Path, follow: LinkPolicy) -> Result<(File, u64), Fault> {
    refuse_links(path, follow).map_err(fault::file)?;
    open_without_waiting(path, follow, OpenOptions::new().write(true).create(true).truncate(false))
}

fn open_without_waiting(path: &Path, follow: LinkPolicy, options: &mut OpenOptions) -> Result<(File, u64), Fault> {
    let file = match options.custom_flags(open_flags(follow) | flag(OFlags::NONBLOCK)).open(path) {
        // A socket, a pipe without a reader, or a directory.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NXIO | Errno::ISDIR)) => return Err(not_a_file(path)),
        other => other.map_err(fault::file)?,
    };
    let metadata = file.metadata().map_err(fault::file)?;
    if !metadata.is_file() {
        return Err(not_a_file(path));
    }
    Ok((file, metadata.len()))
}

impl OpenFile {
    /// A file that is to be read as a whole.
    pub(crate) fn new(file: File, size: u64) -> Result<Self, Fault> {
        if size > MAX_READ {
            return Err(too_large(size));
        }
        Ok(Self { file, size })
    }

    /// With as few system calls as possible: it is known how large the file is, and where its reading begins.
    pub(crate) fn read(self) -> Result<Vec<u8>, Fault> {
        const ROOM: usize = 64 << 10;
        let mut data = Vec::with_capacity(usize::try_from(self.size).unwrap_or_default() + 1);
        loop {
            if data.len() == data.capacity() {
                data.reserve(ROOM);
            }
            match rustix::io::read(&self.file, rustix::buffer::spare_capacity(&mut data)) {
                Ok(0) => return Ok(data),
                // It grows while it is read.
                Ok(_) if data.len() as u64 > MAX_READ => return Err(too_large(data.len() as u64)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(fault::file(error.into())),
            }
        }
    }
}

fn too_large(size: u64) -> Fault {
    Fault::invalid_request(format!("a file of {size} bytes cannot be read in one message; {MAX_READ} is the most, use fs/open"))
}

fn not_a_file(path: &Path) -> Fault {
    Fault::invalid_request(format!("path `{}` is not a file", path.display()))
}

fn open_flags(follow: LinkPolicy) -> i32 {
    match follow {
        LinkPolicy::Links => 0,
        LinkPolicy::Nothing => flag(OFlags::NOFOLLOW),
    }
}

fn flag(flags: OFlags) -> i32 {
    i32::try_from(flags.bits()).unwrap_or_default()
}

/// Refuses a path of which any component is a link, as the system would with `O_NOFOLLOW` everywhere.
fn refuse_links(path: &Path, follow: LinkPolicy) -> io::Result<()> {
    if follow == LinkPolicy::Links {
        return Ok(());
    }
    match first_link(path)? {
        Some(_) => Err(Errno::LOOP.into()),
        None => Ok(()),
    }
}

fn first_link(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut walked = PathBuf::new();
    for component in path.components() {
        walked.push(component);
        match fs::symlink_metadata(&walked) {
            Ok(metadata) if metadata.is_symlink() => return Ok(Some(walked)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Replaces a file as a whole, or makes it: no reader ever finds half of it. Returns what was there before, to be closed, and its size.
pub(crate) fn write(path: &Path, data: &[u8], options: &WriteOptions, redo: Option<&Redo>) -> Result<Option<(File, u64)>, Fault> {
    match atomic::write(path, data, options)? {
        WriteOutcome::Done(old) => Ok(old),
        WriteOutcome::InPlace(identity) => redo::rewrite(redo, &identity, data, options.sync).map(|()| None).map_err(fault::file),
    }
}

/// Paths as URIs, in which every byte of a name survives.
pub(crate) mod native_path {
    use std::path::{Path, PathBuf};

    use outpost_wire::PathUri;
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        PathUri::from_native(path).map_err(S::Error::custom)?.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        PathUri::deserialize(deserializer)?.to_native().map_err(D::Error::custom)
    }
}

pub(crate) fn create_directory(path: &Path, recursive: bool, follow: LinkPolicy) -> Result<(), Fault> {
    refuse_links(path, follow).map_err(fault::file)?;
    fs::DirBuilder::new().recursive(recursive).mode(0o777).create(path).map_err(fault::file)
}

/// Type and size of what a link leads to, but whether it is one from the link itself.
pub(crate) fn metadata(path: &Path, follow: LinkPolicy) -> Result<FileMetadata, Fault> {
    if follow == LinkPolicy::Nothing && first_link(path).map_err(fault::file)?.is_some() {
        return Err(Fault::invalid_request("path contains a symbolic link"));
    }
    let link = fs::symlink_metadata(path).map_err(fault::file)?;
    let is_symlink = link.is_symlink();
    let metadata = if is_symlink { fs::metadata(path).map_err(fault::file)? } else { link };
    Ok(FileMetadata {
        is_directory: metadata.is_dir(),
        is_file: metadata.is_file(),
        is_symlink,
        size: metadata.len(),
        created_at_ms: metadata.created().ok().map(milliseconds).or_else(|| created(path)).unwrap_or_default(),
        modified_at_ms: metadata.modified().map_or(0, milliseconds),
    })
}

/// When a file was made. The standard library asks for it with some C libraries only, and not with that of our static programs.
fn created(path: &Path) -> Option<i64> {
    let found = rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), StatxFlags::BTIME).ok()?;
    let is_known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    let milliseconds = || found.stx_btime.tv_sec.checked_mul(1_000)?.checked_add(i64::from(found.stx_btime.tv_nsec / 1_000_000));
    is_known.then(milliseconds).flatten()
}

fn milliseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_millis()).map_or(i64::MIN, |before| -before),
    }
}

pub(crate) fn canonicalize(path: &Path) -> Result<PathBuf, Fault> {
    fs::canonicalize(path).map_err(fault::file)
}

/// In no particular order; what a link leads to decides its type, and a link that leads nowhere is left out.
pub(crate) fn read_directory(path: &Path) -> Result<Vec<DirectoryEntry>, Fault> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(fault::file)? {
        let entry = entry.map_err(fault::file)?;
        if entries.len() == MAX_ENTRIES {
            return Err(Fault::internal(format!("directory has more than {MAX_ENTRIES} entries")));
        }
        let mut kind = entry.file_type().map_err(fault::file)?;
        if kind.is_symlink() {
            match fs::metadata(entry.path()) {
                Ok(target) => kind = target.file_type(),
                Err(_) => continue,
            }
        }
        let file_name = entry.file_name().to_string_lossy().into_owned();
        entries.push(DirectoryEntry { file_name, is_directory: kind.is_dir(), is_file: kind.is_file() });
    }
    Ok(entries)
}

/// Never follows a link at the end of the path.
pub(crate) fn remove(path: &Path, options: &RemoveOptions) -> Result<(), Fault> {
    if options.follow == LinkPolicy::Nothing {
        if options.recursive {
            return Err(Fault::internal("recursive no-follow removal is unsupported"));
        }
        if let Some(parent) = path.parent() {
            refuse_links(parent, options.follow).map_err(fault::file)?;
        }
    }
    let removed = fs::symlink_metadata(path).and_then(|metadata| match (metadata.is_dir(), options.recursive) {
        (true, true) => fs::remove_dir_all(path),
        (true, false) => fs::remove_dir(path),
        (false, _) => fs::remove_file(path),
    });
    match removed {
        Err(error) if options.force && error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(fault::file),
    }
}

/// Links are copied as links, special files are left out of trees and refused alone.
pub(crate) fn copy(source: &Path, destination: &Path, recursive: bool) -> Result<(), Fault> {
    let kind = fs::symlink_metadata(source).map_err(fault::file)?.file_type();
    if kind.is_symlink() {
        return copy_link(source, destination).map_err(fault::file);
    }
    if kind.is_file() {
        return copy_file(source, destination).map_err(fault::file);
    }
    if !kind.is_dir() {
        return Err(Fault::invalid_request("fs/copy only supports regular files, directories, and symlinks"));
    }
    if !recursive {
        return Err(Fault::invalid_request("fs/copy requires recursive: true when sourcePath is a directory"));
    }
    if resolve(destination).map_err(fault::file)?.starts_with(fs::canonicalize(source).map_err(fault::file)?) {
        return Err(Fault::invalid_request("fs/copy cannot copy a directory to itself or one of its descendants"));
    }
    copy_tree(source, destination).map_err(fault::file)
}

/// Where a path leads of which the last components may not exist yet.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut missing: Vec<&OsStr> = Vec::new();
    let mut existing = path;
    loop {
        match fs::canonicalize(existing) {
            Ok(resolved) => return Ok(missing.iter().rev().fold(resolved, |path, name| path.join(name))),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(error) => match (existing.components().next_back(), existing.parent()) {
                (Some(Component::Normal(name)), Some(parent)) => {
                    missing.push(name);
                    existing = parent;
                }
                _ => return Err(error),
            },
        }
    }
}

fn copy_tree(source: &Path, destination: &Path) -> io::Result<()> {
    fs::create_dir_all(destination)?;
    for entry in fs::read_dir(source)? {
        let entry = entry?;
        let (kind, from, to) = (entry.file_type()?, entry.path(), destination.join(entry.file_name()));
        if kind.is_dir() {
            copy_tree(&from, &to)?;
        } else if kind.is_symlink() {
            copy_link(&from, &to)?;
        } else if kind.is_file() {
            copy_file(&from, &to)?;
        }
    }
    Ok(())
}

fn copy_file(source: &Path, destination: &Path) -> io::Result<()> {
    let (from, to) = (fs::metadata(source)?, fs::metadata(destination));
    if to.is_ok_and(|to| (from.dev(), from.ino()) == (to.dev(), to.ino())) {
        // The system would truncate it first and then find nothing to copy.
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "fs/copy cannot copy a file to itself"));
    }
    fs::copy(source, destination).map(|_| ())
}

fn copy_link(source: &Path, destination: &Path) -> io::Result<()> {
    symlink(fs::read_link(source)?, destination)
}

pub(crate) fn rename(source: &Path, destination: &Path) -> Result<(), Fault> {
    fs::rename(source, destination).map_err(fault::file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_a_file_was_made_is_known_with_every_c_library() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Some file systems do not keep it.
        if let Ok(told) = fs::metadata(file.path()).unwrap().created() {
            assert_eq!(created(file.path()), Some(milliseconds(told)));
        }
        assert_eq!(created(Path::new("/nonexistent")), None);
    }
}
