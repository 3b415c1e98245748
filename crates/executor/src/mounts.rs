//! Which paths lie on a file system that may keep a caller waiting for ever.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long the table of mounts is taken for current.
const CURRENT: Duration = Duration::from_secs(2);
/// File systems behind which there is a network or another process.
const SLOW: [&str; 12] = ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "autofs", "fuseblk"];

/// The mounts that are better not waited for.
#[derive(Default)]
pub struct SlowMounts(Mutex<Option<(Instant, Vec<PathBuf>)>>);

impl SlowMounts {
    /// Judged by the path as it is spelled: looking closer could be what hangs.
    pub fn hold(&self, path: &Path) -> bool {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mounts = match &mut *table {
            Some((read_at, mounts)) if read_at.elapsed() < CURRENT => mounts,
            stale => {
                let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
                &mut stale.insert((Instant::now(), parse(&text))).1
            }
        };
        mounts.iter().any(|mount| path.starts_with(mount))
    }
}

fn parse(mountinfo: &[u8]) -> Vec<PathBuf> {
    mountinfo.split(|byte| *byte == b'\n').filter_map(slow_mount_point).collect()
}

/// The mount point of a line if its file system is slow. The fields before the type are variable in number and end in `-`.
fn slow_mount_point(line: &[u8]) -> Option<PathBuf> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let separator = fields.iter().position(|field| *field == b"-")?;
    let kind = std::str::from_utf8(fields.get(separator + 1)?).ok()?;
    let is_slow = SLOW.contains(&kind) || kind.starts_with("fuse.");
    if !is_slow {
        return None;
    }
    fields.get(4).map(|field| PathBuf::from(unescape(field)))
}

/// Spaces and the like are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
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
        assert_eq!(parse(table), [Path::new("/mnt/the share"), Path::new("/home/u/remote")]);
        assert!(parse(b"nonsense\n").is_empty());
    }

    #[test]
    fn the_root_of_this_machine_is_not_slow() {
        assert!(!SlowMounts::default().hold(Path::new("/bin/sh")));
    }
}
