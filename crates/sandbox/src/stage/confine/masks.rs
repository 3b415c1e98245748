//! Mounts that hold something at its path: what they are, how they are put there, how it is seen that they are gone.
//!
//! A mount hangs on what is at a path, not on the path itself. A program outside of the sandbox that puts something else there
//! by `rename` takes the mount away, and one that moves a directory away takes the mount along. So each is known by its number,
//! and the path has to lead to that number.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, fstat, openat2, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
    move_mount, open_tree,
};

use crate::message::{Check, HoldMechanism, MessageReader, MessageWriter};
use crate::policy::PathAccess;
use crate::sys;

pub(super) const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub(super) const QUIET: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

/// What a mount is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing of it is to be seen.
    Hide,
    /// It may only be read.
    Hold,
    /// A directory on the way to something that is held, which has to keep its name.
    Way,
    /// A link on the way to something with this access, which has to lead where it leads.
    Link(PathAccess),
    /// A place of the view itself. It cannot be put back from here.
    Root,
    /// A directory of ours is seen there. What comes in its place may only be read, until the next sandbox.
    Layer,
}

impl Kind {
    pub(super) fn held(self) -> HoldMechanism {
        match self {
            Self::Hide => HoldMechanism::Denied,
            Self::Hold | Self::Layer => HoldMechanism::ReadOnly,
            Self::Way => HoldMechanism::Directory,
            Self::Link(_) => HoldMechanism::Link,
            Self::Root => HoldMechanism::Root,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mask {
    pub path: PathBuf,
    pub kind: Kind,
    /// The number of the mount that has to be found there; nothing has to be there without one.
    pub mount: Option<u64>,
    /// It lies in a place that sandboxed code may write: what is missing there could be made.
    pub in_writable: bool,
    /// A pattern denies it: it is denied by its name, and may come and go.
    pub by_pattern: bool,
}

impl Mask {
    pub(super) fn check(&self) -> Check {
        Check { path: self.path.clone(), mount: self.mount, is_strict: self.in_writable }
    }

    pub(super) fn encode(&self, out: &mut MessageWriter) {
        out.text(self.path.as_os_str());
        out.byte(match self.kind {
            Kind::Hide => 0,
            Kind::Hold => 1,
            Kind::Way => 2,
            Kind::Link(PathAccess::Deny) => 3,
            Kind::Link(_) => 4,
            Kind::Root => 5,
            Kind::Layer => 6,
        });
        out.number(self.mount.unwrap_or(0));
        out.byte(self.in_writable.into());
        out.byte(self.by_pattern.into());
    }

    pub(super) fn decode(input: &mut MessageReader<'_>) -> io::Result<Self> {
        let path = input.path()?;
        let kind = match input.byte()? {
            0 => Kind::Hide,
            1 => Kind::Hold,
            2 => Kind::Way,
            3 => Kind::Link(PathAccess::Deny),
            4 => Kind::Link(PathAccess::Read),
            5 => Kind::Root,
            _ => Kind::Layer,
        };
        let mount = Some(input.number()?).filter(|mount| *mount != 0);
        Ok(Self { path, kind, mount, in_writable: input.byte()? == 1, by_pattern: input.byte()? == 1 })
    }
}

/// A handle of what is at a path in which there is no link, except perhaps the last name.
pub(super) fn find(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS)
}

/// A copy of a mount, attached nowhere.
pub(super) fn clone(place: &OwnedFd, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(open_tree(place, "", flags)?)
}

pub(super) fn limit(mount: &OwnedFd, recursive: bool, attributes: u64) -> io::Result<()> {
    sys::mount_setattr(mount.as_fd(), recursive, &libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 })
}

/// A number that the system never gives to another mount (Linux 6.8); before that it uses those of mounts that are gone again.
const NUMBERS: StatxFlags = StatxFlags::MNT_ID.union(StatxFlags::from_bits_retain(0x4000));

/// The number of a mount, and whether something is the top of it. Without the latter a file that lost its mount could be taken for
/// one that has it: a mount that was put around it since may have been given the same number.
const fn number(mount: u64, is_top: bool) -> u64 {
    mount << 1 | is_top as u64
}

/// Puts a mount on what a handle is of; returns the number of the mount.
pub(super) fn mount_on(place: &OwnedFd, mount: &OwnedFd) -> io::Result<u64> {
    let number = number(statx(mount, "", AtFlags::EMPTY_PATH, NUMBERS)?.stx_mnt_id, true);
    move_mount(mount, "", place, "", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH)?;
    Ok(number)
}

/// The number of the mount that a path leads to; nothing if there is nothing.
pub(crate) fn mount_at(path: &Path) -> Result<Option<u64>, Errno> {
    match statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, NUMBERS) {
        Ok(stat) => Ok(Some(number(stat.stx_mnt_id, stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Covers what a handle is of, as its kind asks for. `nothing` is the device that may not be opened.
pub(super) fn cover(place: &OwnedFd, kind: Kind, nothing: &OwnedFd) -> io::Result<u64> {
    let found = FileType::from_raw_mode(fstat(place)?.st_mode);
    let mount = match kind {
        Kind::Hide if found.is_dir() => emptiness()?,
        Kind::Hide => {
            let nothing = clone(nothing, false)?;
            limit(&nothing, false, RDONLY | QUIET | libc::MOUNT_ATTR_NOEXEC)?;
            nothing
        }
        // On itself: it can then be neither moved nor removed nor replaced, and still leads where it leads.
        _ if found.is_symlink() => clone(place, false)?,
        Kind::Way => clone(place, true)?,
        Kind::Hold | Kind::Link(_) | Kind::Root | Kind::Layer => {
            let copy = clone(place, true)?;
            limit(&copy, true, RDONLY | QUIET)?;
            copy
        }
    };
    mount_on(place, &mount)
}

/// A directory that holds nothing and may not be entered.
fn emptiness() -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "mode", "0000")?;
    fsconfig_set_string(context.as_fd(), "size", "4k")?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_survives_the_way() {
        for kind in [Kind::Hide, Kind::Hold, Kind::Way, Kind::Link(PathAccess::Deny), Kind::Link(PathAccess::Read), Kind::Root, Kind::Layer]
        {
            for mount in [None, Some(7)] {
                let mask = Mask { path: "/w/\n".into(), kind, mount, in_writable: mount.is_some(), by_pattern: kind == Kind::Hide };
                let mut out = MessageWriter::default();
                mask.encode(&mut out);
                assert_eq!(Mask::decode(&mut MessageReader(&out.0)).unwrap(), mask);
            }
        }
    }
}
