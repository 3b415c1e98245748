//! The home of the executor's user as sandboxed code sees it: an overlay, put together once for a session and a workspace.
//!
//! From top to bottom: what sandboxed code wrote (kept by the executor), copies of settings without their secrets, whiteouts for keys and
//! tokens, the home itself. The whiteouts are below what is written and above the home, so that nothing that is removed or made inside uncovers what
//! they hide, and neither does what is made in the home later.
//!
//! Two mounts of one layer would not see each other's changes, so that all cells of a session share one: it is mounted in a namespace
//! that each of them is copied from.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, StatVfsMountFlags, StatxFlags, Uid, chownat, fstatvfs, mknodat, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::chdir;

use super::masks::{QUIET, RDONLY, clone, limit};
use super::view::{ViewSources, attach, pin, tmpfs};
use super::{ConfineRefused, During};
use crate::plan::{Confinement, HomeLayer, PathShape, PlannedPath, SandboxUser};
use crate::policy::PathAccess;
use crate::sys;

const LOWER: &str = "lower";
const VEIL: &str = "veil";
const COPIES: &str = "copies";
const STORE: &str = "store";
const MERGED: &str = "merged";
/// Relative names, so that nothing in them has to be escaped.
const LAYERS: &std::ffi::CStr = c"lowerdir=copies:veil:lower,upperdir=store/upper,workdir=store/work,index=off,userxattr";
/// Bytes for whiteouts and copies.
const SKELETON: u64 = 64 << 20;
/// So many directories of a home are shown as they are; further ones through the overlay, which may miss changes.
const MAX_LIVE: usize = 256;

/// What is mounted on the home.
pub(super) struct HomeMounts {
    pub home: PathBuf,
    pub top: OwnedFd,
    /// Inside of it: what may be written, and what is shown as it is.
    pub inner: Vec<(PathBuf, OwnedFd)>,
}

/// Goes over into the mounts that hold the layer of this cell, if it has one, or makes them. Returns a handle for the next cell.
pub(super) fn enter(confinement: &Confinement, sources: &ViewSources, shared: Option<OwnedFd>) -> Result<Option<OwnedFd>, ConfineRefused> {
    let Some(layer) = &confinement.home else { return Ok(None) };
    let mounts = match shared {
        Some(mounts) => {
            sys::join(mounts.as_fd(), libc::CLONE_NEWNS)
                .during("the layer over the home cannot be shared")
                .map_err(ConfineRefused::layer)?;
            mounts
        }
        None => {
            put_together(layer, confinement.identity, sources).map_err(ConfineRefused::layer)?;
            File::open("/proc/self/ns/mnt").during("the layer over the home")?.into()
        }
    };
    sys::unshare(libc::CLONE_NEWNS).during("the layer over the home")?;
    Ok(Some(mounts))
}

fn put_together(layer: &HomeLayer, identity: SandboxUser, sources: &ViewSources) -> Result<(), ConfineRefused> {
    let during = "the layer over the home cannot be mounted";
    // What is mounted here is not for the machine; what the machine mounts later is for the cells that come later.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).during(during)?;
    let home = pin(&layer.home)?;
    let is_noexec = fstatvfs(&home).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::NOEXEC));
    let lower = sources.own(identity, &home, &layer.home, RDONLY)?;
    let store = layer.store.as_ref().map(|path| sources.own(identity, &pin(path)?, path, 0)).transpose()?;
    let room = if store.is_some() { SKELETON } else { layer.room };
    tmpfs(&layer.frame, &format!("mode=0700,size={room}"))?;
    chdir(&layer.frame).during(during)?;
    for name in [LOWER, VEIL, COPIES, STORE, MERGED] {
        fs::create_dir(name).during(during)?;
    }
    attach(&lower, Path::new(LOWER))?;
    let skeleton = Skeleton { owner: if let SandboxUser::Mapped { id } = identity { Some(id) } else { None } };
    match store {
        Some(store) => drop(attach(&store, Path::new(STORE))?),
        None => {
            for name in ["store/upper", "store/work"] {
                fs::create_dir(name).and_then(|()| skeleton.give(Path::new(name))).during(during)?;
            }
        }
    }
    skeleton.fill(layer).during(during)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("overlay", MERGED, "overlay", flags, LAYERS).map_err(io::Error::from).during(during)?;
    if is_noexec {
        limit(&pin(Path::new(MERGED))?, false, libc::MOUNT_ATTR_NOEXEC).during(during)?;
    }
    chdir("/").map_err(io::Error::from).during(during)
}

/// Fills the layers between the home and what is written. The working directory is the frame.
struct Skeleton {
    /// Whom the sandbox's user has to find as the owner, if that is not the user that makes them.
    owner: Option<u32>,
}

impl Skeleton {
    fn fill(&self, layer: &HomeLayer) -> io::Result<()> {
        let mut hidden: Vec<&PathBuf> = layer.hidden.iter().collect();
        hidden.sort();
        // What is inside of something that is hidden is hidden.
        hidden.dedup_by(|later, first| later.starts_with(&**first));
        for path in hidden {
            self.hide(path)?;
        }
        for path in &layer.directories {
            let is_hidden = layer.hidden.iter().any(|hidden| path.starts_with(hidden));
            if is_hidden || Path::new(LOWER).join(path).symlink_metadata().is_err() {
                self.directory(COPIES, path)?;
            }
        }
        for copy in &layer.copies {
            self.directory(COPIES, copy.path.parent().unwrap_or(Path::new("")))?;
            let path = Path::new(COPIES).join(&copy.path);
            fs::write(&path, &copy.text)?;
            let mode = Path::new(LOWER).join(&copy.path).metadata().map_or(0o600, |metadata| metadata.permissions().mode());
            fs::set_permissions(&path, Permissions::from_mode(mode & 0o777))?;
            self.give(&path)?;
        }
        Ok(())
    }

    fn give(&self, path: &Path) -> io::Result<()> {
        let Some(id) = self.owner else { return Ok(()) };
        Ok(chownat(CWD, path, Some(Uid::from_raw(id)), Some(Gid::from_raw(id)), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// A directory and those above it, as the home has them.
    fn directory(&self, layer: &str, path: &Path) -> io::Result<()> {
        let (mut made, mut like) = (PathBuf::from(layer), PathBuf::from(LOWER));
        for name in path {
            made.push(name);
            like.push(name);
            match fs::create_dir(&made) {
                Ok(()) => {
                    let known = like.symlink_metadata().ok().filter(fs::Metadata::is_dir);
                    let mode = known.map_or(0o755, |metadata| metadata.permissions().mode() & 0o777 | 0o700);
                    fs::set_permissions(&made, Permissions::from_mode(mode))?;
                    self.give(&made)?;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Hides a path; if a directory on the way to it is not there, that one, so that it cannot come later.
    fn hide(&self, path: &Path) -> io::Result<()> {
        let is_directory = |path: &Path| Path::new(LOWER).join(path).symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
        let mut way: Vec<&Path> = path.ancestors().filter(|ancestor| !ancestor.as_os_str().is_empty()).collect();
        way.reverse();
        let Some(first) = way.into_iter().find(|ancestor| *ancestor == path || !is_directory(ancestor)) else { return Ok(()) };
        self.directory(VEIL, first.parent().unwrap_or(Path::new("")))?;
        match mknodat(CWD, Path::new(VEIL).join(first), FileType::CharacterDevice, Mode::empty(), 0) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Copies of everything that is mounted on the home and in it. Takes the layer itself out of sight.
pub(super) fn clones(confinement: &Confinement) -> Result<Option<HomeMounts>, ConfineRefused> {
    let Some(layer) = &confinement.home else { return Ok(None) };
    let (merged, lower) = (layer.frame.join(MERGED), layer.frame.join(LOWER));
    for place in confinement.places.iter().filter(|place| place.access != PathAccess::Deny && place.shape == PathShape::Tree) {
        if let Ok(path) = place.path.strip_prefix(&layer.home) {
            make_point(&merged, &lower, path);
        }
    }
    let top = clone(&pin(&merged)?, false).during("the layer over the home")?;
    limit(&top, false, RDONLY | QUIET).during("the layer over the home")?;
    let mut inner = Vec::new();
    let own = mount_number(&lower);
    let is_elsewhere = |path: &Path| path.is_dir() && mount_number(path) != own;
    for place in confinement.places.iter().filter(|place| place.shape == PathShape::Home) {
        let Ok(path) = place.path.strip_prefix(&layer.home) else { continue };
        // What is another file system there is not in the overlay, and is shown as it is.
        if is_elsewhere(&lower.join(path)) {
            inner.extend(live(&lower, path));
        } else if let Some(directory) = pin(&merged.join(path)).ok().filter(is_directory) {
            let copy = clone(&directory, false).during(place.path.display())?;
            limit(&copy, false, QUIET).during(place.path.display())?;
            inner.push((path.to_owned(), copy));
        }
    }
    let special = layer.directories.iter().chain(&layer.hidden).chain(layer.copies.iter().map(|copy| &copy.path));
    let tops: Vec<_> = special.filter_map(|path| path.iter().next()).collect();
    let is_denied =
        |path: &Path| confinement.places.iter().any(|place: &PlannedPath| place.path == path && place.access == PathAccess::Deny);
    let entries = fs::read_dir(&lower).during(layer.home.display())?.flatten();
    let as_they_are = entries.filter(|entry| {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        is_directory && !tops.contains(&entry.file_name().as_os_str()) && !is_denied(&layer.home.join(entry.file_name()))
    });
    for entry in as_they_are.take(MAX_LIVE) {
        inner.extend(live(&lower, Path::new(&entry.file_name())));
    }
    // Outer ones first, or they would cover the inner ones.
    inner.sort_by(|(a, _), (b, _)| a.cmp(b));
    unmount(&layer.frame, UnmountFlags::DETACH).map_err(io::Error::from).during("the layer over the home")?;
    Ok(Some(HomeMounts { home: layer.home.clone(), top, inner }))
}

/// A directory of the home as it is. One that cannot be shown is seen through the overlay.
fn live(lower: &Path, path: &Path) -> Option<(PathBuf, OwnedFd)> {
    let copy = clone(&pin(&lower.join(path)).ok()?, true).ok()?;
    limit(&copy, true, RDONLY | QUIET).ok()?;
    Some((path.to_owned(), copy))
}

fn is_directory(place: &OwnedFd) -> bool {
    rustix::fs::fstat(place).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
}

fn mount_number(path: &Path) -> Option<u64> {
    statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID).ok().map(|stat| stat.stx_mnt_id)
}

/// Something to mount on where a policy shows what is hidden otherwise. Where it cannot be made, the mount says so.
fn make_point(merged: &Path, lower: &Path, path: &Path) {
    let (point, like) = (merged.join(path), lower.join(path));
    if path.as_os_str().is_empty() || point.symlink_metadata().is_ok() {
        return;
    }
    match like.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => drop(fs::create_dir_all(&point)),
        Ok(_) => {
            let _ = point.parent().map_or(Ok(()), fs::create_dir_all);
            let _ = File::create(&point);
        }
        Err(_) => {}
    }
}
