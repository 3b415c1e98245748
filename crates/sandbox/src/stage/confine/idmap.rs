//! Mapping the owner of a directory to the user of a sandbox, for one mount only: what is made inside belongs to the owner
//! outside, and the sandbox never has the owner's rights anywhere else.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

use crate::sys::{self, Fork};

/// Every id there is, so that any file can be handled; the last one means no user.
const IDS: u64 = u32::MAX as u64;

/// A map in which two ids have changed places: the full range, or a file of a third owner could not even be renamed.
pub(super) fn swapped(a: u32, b: u32) -> String {
    let (low, high) = (u64::from(a.min(b)), u64::from(a.max(b)));
    if low == high {
        return format!("0 0 {IDS}\n");
    }
    let mut lines = String::new();
    let mut line = |inside: u64, outside: u64, count: u64| {
        if count > 0 {
            lines.push_str(&format!("{inside} {outside} {count}\n"));
        }
    };
    line(0, 0, low);
    line(low, high, 1);
    line(low + 1, low + 1, high - low - 1);
    line(high, low, 1);
    line(high + 1, high + 1, IDS - high - 1);
    lines
}

/// A user namespace that only exists to carry the map.
pub(super) fn namespace(owner: (u32, u32), id: u32) -> io::Result<File> {
    let (mut ready, mut tell) = io::pipe()?;
    match sys::fork()? {
        Fork::Child => {
            drop(ready);
            let made = sys::unshare(libc::CLONE_NEWUSER).is_ok();
            let _ = io::Write::write_all(&mut tell, &[u8::from(made)]);
            drop(tell);
            // Killed by the process that asked.
            loop {
                std::thread::park();
            }
        }
        Fork::Parent(child) => {
            drop(tell);
            let mut made = [0];
            let _ = ready.read_exact(&mut made);
            let base = format!("/proc/{}", child.as_raw_nonzero());
            let map = || {
                if made != [1] {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
                std::fs::write(format!("{base}/uid_map"), swapped(owner.0, id))?;
                std::fs::write(format!("{base}/gid_map"), swapped(owner.1, id))?;
                File::open(format!("{base}/ns/user"))
            };
            let namespace = map();
            let _ = kill_process(child, Signal::KILL);
            let _ = waitpid(Some(child), WaitOptions::empty());
            namespace
        }
    }
}

/// Applies the map to a mount that is not attached yet.
pub(super) fn apply(mount: BorrowedFd<'_>, namespace: &File) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP,
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(namespace.as_fd().as_raw_fd()).unwrap_or_default(),
    };
    sys::mount_setattr(mount, false, &attributes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_whole_and_swaps() {
        assert_eq!(swapped(0, 9), format!("0 9 1\n1 1 8\n9 0 1\n10 10 {}\n", IDS - 10));
        assert_eq!(swapped(9, 1), format!("0 0 1\n1 9 1\n2 2 7\n9 1 1\n10 10 {}\n", IDS - 10));
        assert_eq!(swapped(3, 3), format!("0 0 {IDS}\n"));
        assert_eq!(swapped(0, 1), format!("0 1 1\n1 0 1\n2 2 {}\n", IDS - 2));
    }
}
