//! Control groups: one for each session, in whichever hierarchies of this machine we may make one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use crate::limits::{Limits, MEMORY, Mechanism, PROCESSES};

const PREFIX: &str = "outpost-";

/// Where groups can be made, per thing that is limited.
#[derive(Debug, Clone, Default)]
pub struct Hierarchies {
    processes: Option<Place>,
    memory: Option<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    parent: PathBuf,
    mechanism: Mechanism,
}

impl Hierarchies {
    /// Finds out by trying. Removes what executors left that are gone.
    pub fn probe() -> Self {
        let (Ok(mounts), Ok(own)) = (fs::read_to_string("/proc/mounts"), fs::read_to_string("/proc/self/cgroup")) else {
            return Self::default();
        };
        let find = |controller: &str| {
            let candidates = second_version(&mounts, &own, controller).into_iter().chain(first_version(&mounts, &own, controller));
            candidates.into_iter().find(|place| works(place, controller))
        };
        Self { processes: find("pids"), memory: find("memory") }
    }

    pub fn processes(&self) -> Option<Mechanism> {
        self.processes.as_ref().map(|place| place.mechanism)
    }

    pub fn memory(&self) -> Option<Mechanism> {
        self.memory.as_ref().map(|place| place.mechanism)
    }
}

/// Mount points of a kind that carry an option.
fn mount_points<'a>(mounts: &'a str, kind: &'a str, option: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
    mounts.lines().filter_map(move |line| {
        let mut parts = line.split_whitespace().skip(1);
        let (point, found, options) = (parts.next()?, parts.next()?, parts.next()?);
        (found == kind && (option.is_empty() || options.split(',').any(|one| one == option))).then(|| PathBuf::from(point))
    })
}

/// Below our own group, or at the top if we may.
fn parents(mount: &Path, own: &str) -> [PathBuf; 2] {
    [mount.join(own.trim_start_matches('/')), mount.to_owned()]
}

fn second_version(mounts: &str, own: &str, controller: &str) -> Vec<Place> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let has = |parent: &Path, file: &str| {
        fs::read_to_string(parent.join(file)).is_ok_and(|text| text.split_whitespace().any(|word| word == controller))
    };
    let usable = |parent: &PathBuf| {
        has(parent, "cgroup.subtree_control")
            || (has(parent, "cgroup.controllers") && fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}")).is_ok())
    };
    let points = mount_points(mounts, "cgroup2", "");
    points.flat_map(|point| parents(&point, path)).filter(usable).map(|parent| Place { parent, mechanism: Mechanism::CgroupV2 }).collect()
}

fn first_version(mounts: &str, own: &str, controller: &str) -> Vec<Place> {
    let own = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|one| one == controller).then_some(path)
    });
    let points = mount_points(mounts, "cgroup", controller);
    points.flat_map(|point| parents(&point, own.unwrap_or("/"))).map(|parent| Place { parent, mechanism: Mechanism::CgroupV1 }).collect()
}

/// Whether a group can be made there, limited, and removed.
fn works(place: &Place, controller: &str) -> bool {
    remove_leftovers(&place.parent);
    let group = place.parent.join(format!("{PREFIX}{}-probe", std::process::id()));
    if fs::create_dir(&group).is_err() {
        return false;
    }
    let (file, value) = match (controller, place.mechanism) {
        ("pids", _) => ("pids.max", "10000"),
        (_, Mechanism::CgroupV1) => ("memory.limit_in_bytes", "1073741824"),
        _ => ("memory.max", "1073741824"),
    };
    let limited = fs::write(group.join(file), value).is_ok() && fs::metadata(group.join("cgroup.procs")).is_ok();
    fs::remove_dir(&group).is_ok() && limited
}

fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Refused as long as somebody is in it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The groups of one session.
#[derive(Debug, Default)]
pub struct Group {
    processes: Option<Part>,
    memory: Option<Part>,
}

#[derive(Debug)]
struct Part {
    directory: PathBuf,
    mechanism: Mechanism,
    /// How often its limit had been reached when it was last looked at.
    reached: Mutex<u64>,
}

impl Group {
    pub fn make(hierarchies: &Hierarchies, limits: &Limits, number: u64) -> io::Result<Self> {
        let part = |place: &Option<Place>, limit: Option<u64>| -> io::Result<Option<Part>> {
            let (Some(place), Some(_)) = (place, limit) else { return Ok(None) };
            let directory = place.parent.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match fs::create_dir(&directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
            Ok(Some(Part { directory, mechanism: place.mechanism, reached: Mutex::new(0) }))
        };
        let group = Self { processes: part(&hierarchies.processes, limits.processes)?, memory: part(&hierarchies.memory, limits.memory)? };
        if let (Some(part), Some(limit)) = (&group.processes, limits.processes) {
            fs::write(part.directory.join("pids.max"), limit.to_string())?;
        }
        if let (Some(part), Some(limit)) = (&group.memory, limits.memory) {
            part.limit_memory(limit)?;
        }
        Ok(group)
    }

    /// Files to write oneself into.
    pub fn doors(&self) -> Vec<PathBuf> {
        let mut doors: Vec<_> = self.processes.iter().chain(&self.memory).map(|part| part.directory.join("cgroup.procs")).collect();
        doors.dedup();
        doors
    }

    /// What was reached since this was last asked.
    pub fn reached(&self) -> Option<&'static str> {
        let memory = self.memory.as_ref().is_some_and(|part| part.news(part.memory_kills()));
        let processes = self.processes.as_ref().is_some_and(|part| part.news(part.refused_forks()));
        if memory { Some(MEMORY) } else { processes.then_some(PROCESSES) }
    }

    /// Removes it once nobody is in it any more.
    pub async fn remove(self) {
        let directories: Vec<_> = self.processes.iter().chain(&self.memory).map(|part| part.directory.clone()).collect();
        for _ in 0..50 {
            if directories.iter().all(|directory| fs::remove_dir(directory).is_ok() || !directory.exists()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl Part {
    fn limit_memory(&self, limit: u64) -> io::Result<()> {
        let write = |file: &str, text: &str| fs::write(self.directory.join(file), text);
        if self.mechanism == Mechanism::CgroupV1 {
            write("memory.limit_in_bytes", &limit.to_string())?;
            // Where swapping is counted, memory must not simply go there.
            let _ = write("memory.memsw.limit_in_bytes", &limit.to_string());
            return Ok(());
        }
        write("memory.max", &limit.to_string())?;
        let _ = write("memory.swap.max", "0");
        Ok(())
    }

    fn news(&self, count: u64) -> bool {
        let mut known = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = count > *known;
        *known = count;
        is_news
    }

    fn memory_kills(&self) -> u64 {
        let file = if self.mechanism == Mechanism::CgroupV1 { "memory.oom_control" } else { "memory.events" };
        self.counter(file, "oom_kill")
    }

    fn refused_forks(&self) -> u64 {
        self.counter("pids.events", "max")
    }

    fn counter(&self, file: &str, name: &str) -> u64 {
        let text = fs::read_to_string(self.directory.join(file)).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or(0)
    }
}
