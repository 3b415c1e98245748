//! Permissions and links of this machine, for copies that keep them. Every function blocks.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use outpost_wire::exec::attributes::{Attributes, FileKind, NamedAttributes};
use outpost_wire::{Escaped, Fault};

use crate::fault;

/// Names of one directory that fit an answer.
const MAX_ENTRIES: usize = 200_000;
/// Bits that lend the owner's rights are for this machine to give, not for a client that copies a file here.
const KEPT: u32 = 0o777;

pub(crate) fn get(path: &Path) -> Result<Attributes, Fault> {
    let metadata = fs::symlink_metadata(path).map_err(fault::file)?;
    of(path, &metadata).map_err(fault::file)
}

pub(crate) fn list(path: &Path) -> Result<Vec<NamedAttributes>, Fault> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(fault::file)? {
        let entry = entry.map_err(fault::file)?;
        if entries.len() == MAX_ENTRIES {
            return Err(Fault::internal(format!("directory has more than {MAX_ENTRIES} entries")));
        }
        let attributes = match entry.metadata().and_then(|metadata| of(&entry.path(), &metadata)) {
            // Gone since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(fault::file)?,
        };
        entries.push(NamedAttributes { name: Escaped(entry.file_name().into_vec()), attributes });
    }
    Ok(entries)
}

fn of(path: &Path, metadata: &fs::Metadata) -> io::Result<Attributes> {
    let kind = match metadata.file_type() {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Directory,
        kind if kind.is_symlink() => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let link_target = match kind {
        FileKind::Symlink => Some(Escaped(fs::read_link(path)?.into_os_string().into_vec())),
        _ => None,
    };
    Ok(Attributes {
        kind,
        size: metadata.len(),
        mode: metadata.mode() & KEPT,
        modified_at_ms: metadata.mtime().saturating_mul(1000).saturating_add(metadata.mtime_nsec() / 1_000_000),
        inode: metadata.ino(),
        link_target,
    })
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> Result<(), Fault> {
    if mode & !KEPT != 0 {
        return Err(Fault::invalid_params(format!("a mode has no bits beyond {KEPT:o}")));
    }
    if fs::symlink_metadata(path).map_err(fault::file)?.is_symlink() {
        return Err(Fault::invalid_request("a link has no mode of its own"));
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(fault::file)
}

pub(crate) fn create_link(path: &Path, target: &Escaped) -> Result<(), Fault> {
    symlink(OsStr::from_bytes(&target.0), path).map_err(fault::file)
}
