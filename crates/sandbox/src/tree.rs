//! Removing trees that sandboxed code, or the kernel for an overlay, has written.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Removes a tree, also directories that their owner may not enter: sandboxed code can make such, and the kernel makes one for
/// each overlay. Root needs no rights there, but other users do.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let gone = |removed: io::Result<()>| match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    };
    if gone(fs::remove_dir_all(path)).is_ok() {
        return Ok(());
    }
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        gone(fs::set_permissions(&path, Permissions::from_mode(0o700)))?;
        left.extend(directories(&path)?);
    }
    gone(fs::remove_dir_all(path))
}

/// The directories in a directory, without links to such.
pub(crate) fn directories(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    Ok(entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect())
}
