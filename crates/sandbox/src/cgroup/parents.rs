//! Where groups may be made: which groups of this machine are ours to divide.
//!
//! A group of the second version can only be divided among children while no process is in it, so ours are moved into a child
//! first. With systemd, only what it left to our unit is ours; without, our own group if no other process is in it, or the top.

use std::path::{Path, PathBuf};

use super::tree::CgroupTree;
use super::{LEAF, MAIN, PREFIX};

/// How often processes are moved that were forked meanwhile.
const PASSES: usize = 8;

/// What is known of the machine.
#[derive(Debug, Clone, Default)]
pub struct CgroupHost {
    /// The mounts, as `/proc/PID/mountinfo` shows them.
    pub mounts: String,
    /// The groups that cells are born into, as `/proc/PID/cgroup` shows them.
    pub own: String,
    pub has_systemd: bool,
    /// Whether systemd made this group for us to divide; not every manager leaves a mark of that.
    pub is_granted: bool,
    /// The processes that we may move.
    pub ours: Vec<u32>,
}

impl CgroupHost {
    /// Those of a process that is ours, beside this one.
    pub fn of(pid: u32) -> std::io::Result<Self> {
        Ok(Self {
            mounts: std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))?,
            own: std::fs::read_to_string(format!("/proc/{pid}/cgroup"))?,
            has_systemd: Path::new("/run/systemd/system").is_dir(),
            is_granted: false,
            ours: vec![std::process::id(), pid],
        })
    }

    /// Whether systemd would have to give us a group before we could make any.
    pub fn needs_unit(&self, tree: &dyn CgroupTree) -> bool {
        let own = unit_group(self);
        self.has_systemd && own.is_some_and(|group| !is_of_session(&group) && !tree.is_delegated(&group))
    }

    pub fn second_version(&self, tree: &dyn CgroupTree, controller: &str) -> Result<PathBuf, String> {
        let group = self.own_second().ok_or("there is no control group of the second version")?;
        if !has(tree, &top(self), "cgroup.controllers", controller) {
            return Err(format!("cgroup v2 has no controller `{controller}` here"));
        }
        let parent = match group.parent() {
            // Where a session of ours puts its processes: its own group is above.
            Some(above) if is_of_session(&group) => above.to_owned(),
            _ if !self.has_systemd || self.is_left_to_us(tree, &group) => group,
            _ => return Err(format!("systemd did not leave {} to us (Delegate=yes is missing)", group.display())),
        };
        self.divide(tree, &parent, controller)?;
        Ok(parent)
    }

    pub fn first_version(&self, tree: &dyn CgroupTree, controller: &str) -> Vec<PathBuf> {
        let point = mount_points(&self.mounts, "cgroup", controller).next();
        let own = self.own.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|one| one == controller).then_some(path)
        });
        let (Some((root, point)), Some(own)) = (point, own) else { return Vec::new() };
        let group = below(&point, &root, own);
        if self.has_systemd {
            // The mark is only in the hierarchy by which systemd itself knows its units.
            let is_ours = unit_group(self).is_some_and(|unit| self.is_left_to_us(tree, &unit));
            return group.into_iter().filter(|_| is_ours).collect();
        }
        group.into_iter().chain([point]).collect()
    }

    fn is_left_to_us(&self, tree: &dyn CgroupTree, group: &Path) -> bool {
        self.is_granted || tree.is_delegated(group)
    }

    /// Our group in the hierarchy of the second version.
    fn own_second(&self) -> Option<PathBuf> {
        let own = self.own.lines().find_map(|line| line.strip_prefix("0::"))?;
        mount_points(&self.mounts, "cgroup2", "").find_map(|(root, point)| below(&point, &root, own))
    }

    /// Makes sure that what is limited below a group can be limited by child. Changes nothing if it cannot.
    fn divide(&self, tree: &dyn CgroupTree, group: &Path, controller: &str) -> Result<(), String> {
        let failed = |what: &str, error: std::io::Error| format!("{}: {what}: {error}", group.display());
        // The group at the very top has no type; processes may be in it.
        let kind = tree.read(&group.join("cgroup.type")).ok();
        if let Some(kind) = kind.as_deref().map(str::trim).filter(|kind| *kind != "domain") {
            return Err(format!("{} is a group of threads ({kind}), which cannot be divided", group.display()));
        }
        if has(tree, group, "cgroup.subtree_control", controller) {
            return Ok(());
        }
        if !has(tree, group, "cgroup.controllers", controller) {
            return Err(format!("the controller `{controller}` was not left to {}", group.display()));
        }
        let switch = group.join("cgroup.subtree_control");
        if !tree.may_write(&switch) {
            return Err(format!("{} may not be written", switch.display()));
        }
        let inside = processes(tree, group).map_err(|error| failed("cgroup.procs", error))?;
        if kind.is_some() && !inside.is_empty() {
            let is_ours = self.is_left_to_us(tree, group) || inside.iter().all(|pid| self.ours.contains(pid));
            if !is_ours {
                return Err(format!("{} holds processes that are not ours, so it cannot be divided", group.display()));
            }
            self.move_into_leaf(tree, group)?;
        }
        tree.write(&switch, &format!("+{controller}")).map_err(|error| failed("cgroup.subtree_control", error))
    }

    fn move_into_leaf(&self, tree: &dyn CgroupTree, group: &Path) -> Result<(), String> {
        let leaf = group.join(MAIN);
        match tree.make(&leaf) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(format!("{}: {error}", leaf.display())),
            _ => {}
        }
        for _ in 0..PASSES {
            let left = processes(tree, group).map_err(|error| format!("{}: {error}", group.display()))?;
            if left.is_empty() {
                return Ok(());
            }
            for pid in left {
                match tree.write(&leaf.join("cgroup.procs"), &pid.to_string()) {
                    // It ended meanwhile.
                    Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
                        return Err(format!("process {pid} cannot be moved to {}: {error}", leaf.display()));
                    }
                    _ => {}
                }
            }
        }
        Err(format!("processes keep appearing in {}", group.display()))
    }
}

fn processes(tree: &dyn CgroupTree, group: &Path) -> std::io::Result<Vec<u32>> {
    Ok(tree.read(&group.join("cgroup.procs"))?.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

fn has(tree: &dyn CgroupTree, group: &Path, file: &str, controller: &str) -> bool {
    tree.read(&group.join(file)).is_ok_and(|text| text.split_whitespace().any(|word| word == controller))
}

/// Whether a group is the one in which a session, or an executor, of ours keeps its processes.
fn is_of_session(group: &Path) -> bool {
    let above = group.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    group.ends_with(MAIN) || group.ends_with(LEAF) && above.is_some_and(|name| name.starts_with(PREFIX))
}

/// The group of our unit where systemd keeps its own marks.
fn unit_group(surroundings: &CgroupHost) -> Option<PathBuf> {
    if let Some(group) = surroundings.own_second() {
        return Some(group);
    }
    let (root, point) = mount_points(&surroundings.mounts, "cgroup", "name=systemd").next()?;
    let own = surroundings.own.lines().find_map(|line| line.split_once(":name=systemd:").map(|(_, path)| path))?;
    below(&point, &root, own)
}

fn top(surroundings: &CgroupHost) -> PathBuf {
    mount_points(&surroundings.mounts, "cgroup2", "").next().map(|(_, point)| point).unwrap_or_default()
}

/// Where a group is seen, if the part of the tree that is mounted holds it.
fn below(point: &Path, root: &Path, group: &str) -> Option<PathBuf> {
    let inside = Path::new(group).strip_prefix(root).ok()?;
    let leads_out = inside.components().any(|part| part == std::path::Component::ParentDir);
    (!leads_out).then(|| if inside.as_os_str().is_empty() { point.to_owned() } else { point.join(inside) })
}

/// What of a tree is mounted, and where, for mounts of a kind that carry an option.
fn mount_points<'a>(mounts: &'a str, kind: &'a str, option: &'a str) -> impl Iterator<Item = (PathBuf, PathBuf)> + 'a {
    mounts.lines().filter_map(move |line| {
        let (place, system) = line.split_once(" - ")?;
        let mut place = place.split_whitespace().skip(3);
        let mut system = system.split_whitespace();
        let (root, point, found, options) = (place.next()?, place.next()?, system.next()?, system.nth(1)?);
        let fits = found == kind && (option.is_empty() || options.split(',').any(|one| one == option));
        fits.then(|| (PathBuf::from(root), PathBuf::from(point)))
    })
}
