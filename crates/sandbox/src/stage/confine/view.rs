//! What a sandbox sees of the file system: a mount namespace built to the policy.
//!
//! If everything may be read, the machine's own tree is made read-only in place; otherwise an empty one takes its place and
//! holds only what is allowed. Writable places are mounted on top of that, what is protected in them on top of those; the
//! directories in between are mounted on themselves, because what is a mount point cannot be renamed. Every path is opened
//! without following a single link: the owner of a writable place could have put one there meanwhile.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::{chdir, pivot_root};

use super::home::{self, HomeMounts};
use super::masks::{self, Kind, Mask, QUIET, RDONLY, clone, limit};
use super::{ConfineRefused, During, idmap, names};
use crate::level::Level;
use crate::plan::{Confinement, PathShape, PlannedPath, Rights, SandboxUser};
use crate::policy::PathAccess;

/// Devices that any user may use.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Where the sandbox has something of its own, because others keep sockets there that lead out: to agents, terminals, buses.
const TEMPORARY: &str = "/tmp";
const RUN: &str = "/run";

/// What has to be made before there are namespaces: for every owner of a writable place, the map to the sandbox's user.
pub(super) struct ViewSources {
    maps: Vec<((u32, u32), File)>,
}

impl ViewSources {
    pub(super) fn open(confinement: &Confinement) -> Result<Self, ConfineRefused> {
        let mut maps: Vec<((u32, u32), File)> = Vec::new();
        let SandboxUser::Mapped { id } = confinement.identity else { return Ok(Self { maps }) };
        let own = confinement.places.iter().filter(|place| place.rights != Rights::Others && place.path != Path::new(TEMPORARY));
        let own = own.map(|place| (place.origin(), place.rights == Rights::OwnersIfPossible || place.source.is_some()));
        let layer = confinement.home.iter().flat_map(|layer| layer.store.iter().chain([&layer.home])).map(|path| (path.as_path(), true));
        for (path, is_optional) in own.chain(layer) {
            let pinned = match pin(path) {
                Err(_) if is_optional => continue,
                pinned => pinned?,
            };
            let owner = owner(pinned.as_fd()).during(path.display())?;
            if !maps.iter().any(|(known, _)| *known == owner) {
                let map = idmap::namespace(owner, id).during("a map of users cannot be made (name a --sandbox-user)");
                maps.push((owner, map.map_err(ConfineRefused::users)?));
            }
        }
        Ok(Self { maps })
    }

    /// A copy in which the sandbox's user has the rights of the owner.
    pub(super) fn own(&self, identity: SandboxUser, pinned: &OwnedFd, path: &Path, attributes: u64) -> Result<OwnedFd, ConfineRefused> {
        let SandboxUser::Mapped { .. } = identity else {
            let copy = clone(pinned, true).during(path.display())?;
            limit(&copy, true, QUIET | attributes).during(path.display())?;
            return Ok(copy);
        };
        let owner = owner(pinned.as_fd()).during(path.display())?;
        let map = self.maps.iter().find(|(known, _)| *known == owner).map(|(_, map)| map);
        let map = map.ok_or_else(|| format!("{} changed its owner meanwhile", path.display()))?;
        let copy = clone(pinned, false).during(path.display())?;
        limit(&copy, false, QUIET | attributes).during(path.display())?;
        idmap::apply(copy.as_fd(), map)
            .during(format!(
                "{} lies on a file system whose users cannot be mapped, and as root there is no other way; \
             name a --sandbox-user and give it the directory, or run the executor as an ordinary user",
                path.display()
            ))
            .map_err(ConfineRefused::users)?;
        Ok(copy)
    }
}

fn owner(place: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    let stat = rustix::fs::fstat(place)?;
    Ok((stat.st_uid, stat.st_gid))
}

/// A handle of a path in which there is no link at all.
pub(super) fn pin(path: &Path) -> Result<OwnedFd, ConfineRefused> {
    let opened = openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS);
    opened.map_err(|error| match error {
        Errno::LOOP => format!("{} is, or lies behind, a symbolic link, which cannot be held", path.display()).into(),
        error => format!("{}: {}", path.display(), io::Error::from(error)).into(),
    })
}

/// The same for a path whose last name may be one.
fn find(path: &Path) -> Result<OwnedFd, ConfineRefused> {
    masks::find(path)
        .map_err(|error| match error {
            Errno::LOOP => format!("{} lies behind a symbolic link that was made meanwhile", path.display()),
            error => format!("{}: {}", path.display(), io::Error::from(error)),
        })
        .map_err(ConfineRefused::from)
}

/// Where a path is while the tree is built.
fn at(prefix: &str, path: &Path) -> PathBuf {
    match prefix {
        "" => path.to_owned(),
        prefix => Path::new(prefix).join(path.strip_prefix("/").unwrap_or(path)),
    }
}

struct View<'a> {
    confinement: &'a Confinement,
    sources: ViewSources,
    /// Where the new tree is while it is built; empty if it is built in place.
    prefix: &'static str,
    /// What was made by us and becomes read-only when everything is in place.
    scaffolds: Vec<PathBuf>,
    /// Directories inside writable places that were mounted on themselves.
    fixed: HashSet<PathBuf>,
    /// Everything that has to stay where it was put.
    masks: Vec<Mask>,
    /// The device that covers what is hidden.
    nothing: Option<OwnedFd>,
}

/// Returns what has to stay where it was put.
pub(super) fn build(confinement: &Confinement, sources: ViewSources) -> Result<Vec<Mask>, ConfineRefused> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).during("the mounts cannot be made private")?;
    let access = access_at(&confinement.places, Path::new("/"));
    let prefix = if access >= PathAccess::Read { "" } else { TEMPORARY };
    let mut view = View { confinement, sources, prefix, scaffolds: Vec::new(), fixed: HashSet::new(), masks: Vec::new(), nothing: None };
    // From the tree as it is, before anything covers it.
    let places = view.clones()?;
    let home = home::clones(confinement)?;
    let devices = view.device_clones()?;
    let machine = match confinement.level {
        Level::Full => None,
        _ => {
            let table = clone(&pin(Path::new("/proc"))?, true).during("/proc")?;
            limit(&table, true, RDONLY | QUIET).during("/proc")?;
            Some(table)
        }
    };
    let temporary = match &confinement.temporary {
        // A named user may not reach our files; then it goes with the cell.
        Some(path) => match pin(path) {
            Ok(pinned) => Some(clone(&pinned, false).during(path.display())?),
            Err(_) if matches!(confinement.identity, SandboxUser::Named { .. } | SandboxUser::Owner { uid: 1.., .. }) => None,
            Err(refused) => return Err(refused),
        },
        None => None,
    };
    match access {
        PathAccess::Deny => {
            let links = view.links()?;
            view.scaffold(Path::new("/"))?;
            for (name, target) in links {
                std::os::unix::fs::symlink(target, Path::new(view.prefix).join(name)).during("links of the new tree")?;
            }
        }
        PathAccess::Read => limit(&pin(Path::new("/"))?, true, RDONLY | QUIET).during("the tree cannot be made read-only")?,
        PathAccess::Write => limit(&pin(Path::new("/"))?, true, QUIET).during("the tree cannot be held")?,
    }
    view.proc(machine)?;
    // The machine's own are of no use by now: devices were taken out of the whole tree.
    view.devices(devices)?;
    let mut tables = Vec::new();
    if access != PathAccess::Write {
        let own = confinement.home.as_ref().map(|layer| layer.home.as_path());
        tables = names::tables(confinement.identity, own, &view.point(Path::new(TEMPORARY), true)?)?;
        view.private_places(temporary)?;
        view.clear_obstacles()?;
    }
    view.nothing = Some(pin(&view.at(Path::new("/dev/null")))?);
    view.home(home)?;
    view.places(places)?;
    view.names(tables)?;
    view.finish()?;
    Ok(view.masks)
}

/// What the innermost place that holds the path allows.
pub(super) fn access_at(places: &[PlannedPath], path: &Path) -> PathAccess {
    places.iter().rev().find(|place| path.starts_with(&place.path)).map_or(PathAccess::Deny, |place| place.access)
}

/// Returns the number of the mount.
pub(super) fn attach(mount: &OwnedFd, target: &Path) -> Result<u64, ConfineRefused> {
    let point = pin(target)?;
    masks::mount_on(&point, mount).during(format!("{} cannot be mounted", target.display()))
}

pub(super) fn tmpfs(target: &Path, options: &str) -> Result<(), ConfineRefused> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let options = std::ffi::CString::new(options).during("tmpfs")?;
    mount("tmpfs", target, "tmpfs", flags, options.as_c_str())
        .map_err(io::Error::from)
        .during(format!("a private {} cannot be made", target.display()))
}

impl View<'_> {
    fn at(&self, path: &Path) -> PathBuf {
        at(self.prefix, path)
    }

    /// Whether the tree at this path is one that we put there, so that nothing of the machine shows through.
    fn is_covered(&self, path: &Path) -> bool {
        let in_home = self.confinement.home.as_ref().is_some_and(|layer| path.starts_with(&layer.home));
        in_home || !self.prefix.is_empty() || self.scaffolds.iter().any(|scaffold| path.starts_with(scaffold) && path != scaffold)
    }

    /// Copies of everything that has to be put into place by itself.
    fn clones(&mut self) -> Result<Vec<(PlannedPath, OwnedFd)>, ConfineRefused> {
        let mut clones = Vec::new();
        let own = |pinned: &OwnedFd, path: &Path, attributes| self.sources.own(self.confinement.identity, pinned, path, attributes);
        for place in &self.confinement.places {
            if place.access == PathAccess::Deny || place.shape != PathShape::Tree || is_made_here(&place.path) || self.is_home(&place.path)
            {
                continue;
            }
            let pinned = match pin(place.origin()) {
                Ok(pinned) => pinned,
                // A user who may not reach our files sees what is there, and may only read it.
                Err(_) if place.source.is_some() => continue,
                // Protected before it exists: that is looked at when its surroundings are in place.
                Err(_) if place.access == PathAccess::Read && !place.path.exists() => continue,
                Err(refused) => return Err(refused),
            };
            let copy = match place.access {
                PathAccess::Write => own(&pinned, place.origin(), 0)?,
                _ if place.rights == Rights::Owners => own(&pinned, place.origin(), RDONLY)?,
                _ if place.rights == Rights::OwnersIfPossible => match own(&pinned, &place.path, RDONLY) {
                    Ok(copy) => copy,
                    // Then it stays what it is to any user.
                    Err(_) => continue,
                },
                _ => {
                    let copy = clone(&pinned, true).during(place.path.display())?;
                    limit(&copy, true, RDONLY | QUIET).during(place.path.display())?;
                    copy
                }
            };
            clones.push((place.clone(), copy));
        }
        Ok(clones)
    }

    fn device_clones(&self) -> Result<Vec<(PathBuf, OwnedFd)>, ConfineRefused> {
        let harmless = DEVICES.iter().map(|name| Path::new("/dev").join(name));
        // What is asked for may be gone by now, as a card that was pulled out.
        let all = harmless.chain(self.confinement.devices.iter().cloned()).filter(|path| path.exists());
        all.map(|path| {
            let copy = clone(&pin(&path)?, false).during(path.display())?;
            let name = path.strip_prefix("/dev").during(path.display())?;
            Ok((name.to_owned(), copy))
        })
        .collect()
    }

    /// Links at the top of the machine's tree that lead to something that may be read: `/bin` often is one.
    fn links(&self) -> Result<Vec<(PathBuf, PathBuf)>, ConfineRefused> {
        let mut links = Vec::new();
        for entry in fs::read_dir("/").during("/")?.flatten() {
            let (Ok(target), Ok(place)) = (fs::read_link(entry.path()), entry.path().canonicalize()) else { continue };
            if access_at(&self.confinement.places, &place) >= PathAccess::Read {
                links.push((PathBuf::from(entry.file_name()), target));
            }
        }
        Ok(links)
    }

    /// A directory that only holds what is put into it.
    fn scaffold(&mut self, path: &Path) -> Result<(), ConfineRefused> {
        tmpfs(&self.at(path), "mode=0755,size=16m")?;
        self.scaffolds.push(path.to_owned());
        Ok(())
    }

    /// Something to mount on, where it is ours to make.
    fn point(&self, path: &Path, is_directory: bool) -> Result<PathBuf, ConfineRefused> {
        let target = self.at(path);
        if target.symlink_metadata().is_ok() {
            return Ok(target);
        }
        let made = if is_directory {
            fs::create_dir_all(&target)
        } else {
            target.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| File::create(&target).map(drop))
        };
        made.during(format!("there is no place for {}", path.display()))?;
        Ok(target)
    }

    /// The process table of the sandbox, and no other; or that of the machine, which it can look at and not change.
    fn proc(&self, machine: Option<OwnedFd>) -> Result<(), ConfineRefused> {
        let target = self.point(Path::new("/proc"), true)?;
        if let Some(machine) = machine {
            return attach(&machine, &target).map(drop);
        }
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        // The settings of the kernel ask for no right, only for who it is.
        if self.confinement.identity.is_root_by_name() {
            flags |= MountFlags::RDONLY;
        }
        mount("proc", &target, "proc", flags, None).map_err(io::Error::from).during("a process table of its own cannot be shown")
    }

    fn devices(&self, clones: Vec<(PathBuf, OwnedFd)>) -> Result<(), ConfineRefused> {
        let dev = self.point(Path::new("/dev"), true)?;
        tmpfs(&dev, "mode=0755,size=1m")?;
        for (name, device) in clones {
            let point = dev.join(name);
            point.parent().map_or(Ok(()), fs::create_dir_all).during(point.display())?;
            File::create(&point).during(point.display())?;
            attach(&device, &point)?;
        }
        for (name, target) in DEVICE_LINKS {
            std::os::unix::fs::symlink(target, dev.join(name)).during(name)?;
        }
        for (name, kind, options) in [("shm", c"tmpfs", c"mode=1777"), ("pts", c"devpts", c"newinstance,ptmxmode=0666,mode=0620")] {
            let point = dev.join(name);
            fs::create_dir(&point).during(point.display())?;
            let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
            mount(kind, &point, kind, flags, options).map_err(io::Error::from).during(point.display())?;
        }
        limit(&pin(&dev)?, false, RDONLY).during(dev.display())
    }

    /// The sandbox's user is in the user table, where that may be read.
    fn names(&self, tables: Vec<(PathBuf, OwnedFd)>) -> Result<(), ConfineRefused> {
        for (path, table) in tables {
            if access_at(&self.confinement.places, &path) == PathAccess::Read && self.at(&path).exists() {
                attach(&table, &self.at(&path))?;
            }
        }
        Ok(())
    }

    /// `/tmp` and `/run` are not those of the machine.
    fn private_places(&mut self, temporary: Option<OwnedFd>) -> Result<(), ConfineRefused> {
        let is_writable = access_at(&self.confinement.places, Path::new(TEMPORARY)) == PathAccess::Write;
        let target = self.point(Path::new(TEMPORARY), true)?;
        match temporary {
            Some(directory) if is_writable => {
                limit(&directory, false, QUIET).during(TEMPORARY)?;
                attach(&directory, &target)?;
            }
            _ if is_writable => tmpfs(&target, "mode=1777")?,
            _ => self.scaffold(Path::new(TEMPORARY))?,
        }
        let run = self.at(Path::new(RUN));
        if run.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            self.scaffold(Path::new(RUN))?;
        }
        Ok(())
    }

    /// A directory on the way that the sandbox's user may not pass is covered by one that it may, holding only the way.
    fn clear_obstacles(&mut self) -> Result<(), ConfineRefused> {
        if matches!(self.confinement.identity, SandboxUser::Own | SandboxUser::Owner { uid: 0, .. }) || !self.prefix.is_empty() {
            return Ok(());
        }
        for place in self.confinement.places.iter().filter(|place| place.rights == Rights::Owners) {
            let mut way: Vec<_> = place.path.ancestors().skip(1).collect();
            way.reverse();
            for directory in way {
                if self.is_covered(directory) || access_at(&self.confinement.places, directory) == PathAccess::Write {
                    break;
                }
                let Ok(metadata) = directory.metadata() else { break };
                if metadata.mode() & 0o001 == 0 && directory != Path::new("/") {
                    self.scaffold(directory)?;
                    break;
                }
            }
        }
        Ok(())
    }

    fn places(&mut self, mut clones: Vec<(PlannedPath, OwnedFd)>) -> Result<(), ConfineRefused> {
        let confinement = self.confinement;
        let own = |place: &&PlannedPath| !is_made_here(&place.path) && place.shape != PathShape::Home && !self.is_home(&place.path);
        let places: Vec<&PlannedPath> = confinement.places.iter().filter(own).collect();
        for place in places {
            let around = place.path.parent().map_or(PathAccess::Deny, |parent| access_at(&confinement.places, parent));
            let copy = clones.iter().position(|(known, _)| known == place).map(|index| clones.swap_remove(index).1);
            let in_temporary = is_in_temporary(&confinement.places, &place.path);
            let in_home = is_in_home(&confinement.places, &place.path);
            let in_writable = around == PathAccess::Write && !in_temporary && !in_home;
            if place.fixed && !in_home {
                self.fix_way(&place.path)?;
            }
            let mask = |kind: Kind| Mask { path: place.path.clone(), kind, mount: None, in_writable, by_pattern: place.by_pattern };
            match (place.access, around, copy) {
                (access, _, _) if place.shape == PathShape::Link && in_writable => {
                    self.masks.push(mask(Kind::Link(access)));
                    self.cover_last()?;
                }
                // Sandboxed code cannot change it.
                _ if place.shape == PathShape::Link => {}
                (_, _, Some(copy)) if place.source.is_some() => {
                    self.masks.push(mask(Kind::Layer));
                    self.put_last(&copy)?;
                }
                _ if place.source.is_some() && (!in_writable || is_in_layer(&confinement.places, &place.path)) => {}
                _ if place.source.is_some() => {
                    self.masks.push(mask(Kind::Hold));
                    self.cover_last()?;
                }
                (PathAccess::Write, _, Some(copy)) => {
                    self.masks.push(mask(Kind::Root));
                    self.put_last(&copy)?;
                }
                (PathAccess::Read, PathAccess::Read | PathAccess::Deny, Some(copy)) if place.rights != Rights::Others => {
                    self.masks.push(mask(Kind::Root));
                    self.put_last(&copy)?;
                }
                (PathAccess::Read, PathAccess::Write, _) if !in_temporary && !in_home => {
                    self.masks.push(mask(Kind::Hold));
                    self.cover_last()?;
                }
                // Inside what is the sandbox's own, or was hidden: only what is there has to be shown.
                (PathAccess::Read, _, Some(copy)) if around != PathAccess::Read || self.is_covered(&place.path) => {
                    self.masks.push(mask(Kind::Root));
                    self.put_last(&copy)?;
                }
                (PathAccess::Deny, PathAccess::Read | PathAccess::Write, _) if self.is_on_the_way(&place.path) => {
                    self.scaffold(&place.path)?;
                    let mount = masks::mount_at(&self.at(&place.path)).map_err(io::Error::from).during(place.path.display())?;
                    self.masks.push(Mask { mount, ..mask(Kind::Root) });
                }
                (PathAccess::Deny, PathAccess::Read | PathAccess::Write, _) => {
                    let can_appear = around == PathAccess::Write && !place.path.starts_with(TEMPORARY) && !in_home;
                    let is_there = self.at(&place.path).symlink_metadata().is_ok();
                    if is_there {
                        self.masks.push(mask(Kind::Hide));
                        self.cover_last()?;
                    } else if can_appear && !place.by_pattern {
                        return Err(format!("{} cannot be denied before it exists", place.path.display()).into());
                    } else if !in_temporary && !place.by_pattern {
                        // Where nothing can be made, nothing has to be hidden yet.
                        self.masks.push(mask(Kind::Hide));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Covers what the last mask is for.
    fn cover_last(&mut self) -> Result<(), ConfineRefused> {
        let prefix = self.prefix;
        let (Some(mask), Some(nothing)) = (self.masks.last_mut(), &self.nothing) else { return Ok(()) };
        let target = at(prefix, &mask.path);
        let why = match mask.kind {
            Kind::Hide => "it cannot be denied",
            Kind::Link(_) => "a link on the way to what is denied or read-only cannot be kept as it is",
            _ => "it cannot be kept read-only",
        };
        let place = find(&target).map_err(|refused| format!("{why}: {refused}"))?;
        mask.mount = Some(masks::cover(&place, mask.kind, nothing).during(format!("{why}: {}", mask.path.display()))?);
        Ok(())
    }

    /// Puts a copy where the last mask is for.
    fn put_last(&mut self, copy: &OwnedFd) -> Result<(), ConfineRefused> {
        let Some(path) = self.masks.last().map(|mask| mask.path.clone()) else { return Ok(()) };
        let is_directory = rustix::fs::fstat(copy).is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir());
        let target = self.point(&path, is_directory)?;
        let mount = attach(copy, &target)?;
        if let Some(mask) = self.masks.last_mut() {
            mask.mount = Some(mount);
        }
        Ok(())
    }

    /// Whether a directory that is to be hidden holds something that is to be shown.
    fn is_on_the_way(&self, path: &Path) -> bool {
        let shown = |place: &PlannedPath| place.access != PathAccess::Deny && place.path != path && place.path.starts_with(path);
        self.at(path).is_dir() && self.confinement.places.iter().any(shown)
    }

    /// Code that could rename a directory on the way to something that is held would find it there without what holds it the next
    /// time, with a decoy in its place.
    fn fix_way(&mut self, path: &Path) -> Result<(), ConfineRefused> {
        let places = &self.confinement.places;
        let Some(around) = path.parent().and_then(|parent| places.iter().rev().find(|place| parent.starts_with(&place.path))) else {
            return Ok(());
        };
        let is_private = around.path == Path::new(TEMPORARY) && access_at(places, Path::new("/")) != PathAccess::Write;
        if around.access != PathAccess::Write || is_private {
            return Ok(());
        }
        let mut way: Vec<_> = path.ancestors().skip(1).take_while(|directory| *directory != around.path).collect();
        way.reverse();
        for directory in way {
            let target = self.at(directory);
            // What to do about something that is not there yet is decided for itself.
            if target.symlink_metadata().is_err() {
                break;
            }
            if self.fixed.insert(directory.to_owned()) {
                let copy = clone(&pin(&target)?, true).during(directory.display())?;
                let mount = Some(attach(&copy, &target)?);
                self.masks.push(Mask { path: directory.to_owned(), kind: Kind::Way, mount, in_writable: true, by_pattern: false });
            }
        }
        Ok(())
    }

    /// Whether the layer takes the place of what is at a path.
    fn is_home(&self, path: &Path) -> bool {
        self.confinement.home.as_ref().is_some_and(|layer| layer.home == path)
    }

    /// Puts the layer over the home, and what it leaves as it is on top of that.
    fn home(&mut self, home: Option<HomeMounts>) -> Result<(), ConfineRefused> {
        let Some(home) = home else { return Ok(()) };
        let target = self.point(&home.home, true)?;
        let mount = Some(attach(&home.top, &target)?);
        self.masks.push(Mask { path: home.home.clone(), kind: Kind::Root, mount, in_writable: false, by_pattern: false });
        for (path, mount) in &home.inner {
            attach(mount, &target.join(path))?;
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), ConfineRefused> {
        for scaffold in &self.scaffolds {
            let target = self.at(scaffold);
            let _ = fs::set_permissions(&target, Permissions::from_mode(0o755));
            limit(&pin(&target)?, false, RDONLY).during(scaffold.display())?;
        }
        if !self.prefix.is_empty() {
            chdir(self.prefix).map_err(io::Error::from).during("the new tree")?;
            pivot_root(".", ".").map_err(io::Error::from).during("the new tree cannot take the place of the old one")?;
            unmount(".", UnmountFlags::DETACH).map_err(io::Error::from).during("the old tree cannot be put away")?;
        }
        chdir("/").map_err(io::Error::from).during("the new tree")
    }
}

/// What every sandbox has of its own, whatever the policy says about the machine's.
pub(super) fn is_made_here(path: &Path) -> bool {
    [Path::new("/"), Path::new(TEMPORARY)].contains(&path) || path.starts_with("/dev") || path.starts_with("/proc")
}

/// Whether the innermost place around a path is written into the layer over the home.
pub(super) fn is_in_home(places: &[PlannedPath], path: &Path) -> bool {
    let Some(parent) = path.parent() else { return false };
    places.iter().rev().find(|place| parent.starts_with(&place.path)).is_some_and(|place| place.shape == PathShape::Home)
}

/// Whether a path lies below a place where a directory of ours is seen.
pub(super) fn is_in_layer(places: &[PlannedPath], path: &Path) -> bool {
    places.iter().any(|place| place.source.is_some() && path != place.path && path.starts_with(&place.path))
}

/// Whether the innermost place around a path is the sandbox's own `/tmp`.
pub(super) fn is_in_temporary(places: &[PlannedPath], path: &Path) -> bool {
    let Some(parent) = path.parent() else { return false };
    let around = places.iter().rev().find(|place| parent.starts_with(&place.path));
    around.is_none_or(|place| place.path == Path::new(TEMPORARY) || Path::new(TEMPORARY).starts_with(&place.path))
}
