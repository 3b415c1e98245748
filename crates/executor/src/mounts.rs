//! Which paths lie on a file system that may keep a caller waiting for ever.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outpost_sandbox::MountTable;
use tokio::time::Instant;

/// How long the table of mounts is taken for current.
const CURRENT: Duration = Duration::from_secs(2);
/// File systems behind which there is a network or another process.
const SLOW: [&str; 12] = ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "autofs", "fuseblk"];

/// The mounts that are better not waited for.
#[derive(Default)]
pub(crate) struct SlowMounts(Mutex<Option<(Instant, Vec<PathBuf>)>>);

impl SlowMounts {
    /// Judged by the path as it is spelled: looking closer could be what hangs.
    pub(crate) fn hold(&self, path: &Path) -> bool {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mounts = match &mut *table {
            Some((read_at, mounts)) if read_at.elapsed() < CURRENT => mounts,
            stale => &mut stale.insert((Instant::now(), slow(&MountTable::read()))).1,
        };
        mounts.iter().any(|mount| path.starts_with(mount))
    }
}

fn slow(table: &MountTable) -> Vec<PathBuf> {
    let is_slow = |kind: &str| SLOW.contains(&kind) || kind.starts_with("fuse.");
    table.iter().filter(|mount| is_slow(&mount.kind)).map(|mount| mount.point.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_file_systems_are_found_by_their_type() {
        let table = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            40 22 0:40 / /mnt/the\\040share rw - nfs4 host:/x rw\n\
            41 22 0:41 / /home/u/remote rw shared:2 master:3 - fuse.sshfs u@h: rw\n\
            42 22 0:42 / /tmp rw - tmpfs tmpfs rw\n";
        assert_eq!(slow(&MountTable::parse(table)), [Path::new("/mnt/the share"), Path::new("/home/u/remote")]);
        assert!(slow(&MountTable::parse(b"nonsense\n")).is_empty());
    }

    #[test]
    fn the_root_of_this_machine_is_not_slow() {
        assert!(!SlowMounts::default().hold(Path::new("/bin/sh")));
    }
}
