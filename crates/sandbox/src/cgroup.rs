//! Control groups: one for each session, in whichever hierarchies of this machine we may make one.
//!
//! What is told of them was tried: a process has entered, and was held. The groups of a session look like this:
//!
//! ```text
//! PARENT                      ours to divide (see `parents`)
//! ├── outpost-main            second version only: our own processes, if they were in PARENT
//! └── outpost-PID-NUMBER      the limits of one session
//!     └── processes           second version only: its processes, so that an Outpost inside can divide the group above
//! ```

mod parents;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(crate) use parents::CgroupHost;
pub(crate) use tree::{CgroupTree, Kernel};

use crate::limits::{Limits, MEMORY, Mechanism, PROCESSES};

const PREFIX: &str = "outpost-";
const MAIN: &str = "outpost-main";
const LEAF: &str = "processes";
const PIDS: &str = "pids";
const MEMORY_CONTROLLER: &str = "memory";
/// What a process that tries a group uses of memory, and what of it has to be counted there at least.
pub(crate) const TRIAL_MEMORY: usize = 4 << 20;
const COUNTED: u64 = 2 << 20;

/// Lets a process enter groups by these files, calls back while it is inside, and tells whether it was kept from forking.
pub(crate) type Trial<'a> = &'a dyn Fn(&[PathBuf], &mut dyn FnMut()) -> Result<bool, String>;

/// How places for groups are found out about.
#[derive(Clone, Copy)]
pub struct Probing<'a> {
    pub trial: Trial<'a>,
    /// Whether a place was tried before, by the name that [`Hierarchies::tried`] gave it.
    pub known: &'a dyn Fn(&str) -> bool,
}

/// Where groups can be made, per thing that is limited, and why not elsewhere.
#[derive(Debug, Clone)]
pub struct Hierarchies {
    tree: Arc<dyn CgroupTree>,
    processes: Option<Place>,
    memory: Option<Place>,
    why: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    parent: PathBuf,
    mechanism: Mechanism,
}

impl Place {
    fn name(&self, controller: &str) -> String {
        format!("{controller} {} {}", self.mechanism.name(), self.parent.display())
    }
}

impl Hierarchies {
    /// None can be made, for this reason.
    pub fn none(why: impl Into<String>) -> Self {
        Self { tree: Arc::new(Kernel), processes: None, memory: None, why: vec![why.into()] }
    }

    /// Finds out by trying. Removes what executors left that are gone.
    pub fn probe(tree: Arc<dyn CgroupTree>, surroundings: &CgroupHost, probing: &Probing<'_>) -> Self {
        let mut found = Self { tree, processes: None, memory: None, why: Vec::new() };
        found.processes = found.find(surroundings, PIDS, probing);
        found.memory = found.find(surroundings, MEMORY_CONTROLLER, probing);
        found
    }

    /// The places that were found, by a name for each: a process was held there.
    pub fn tried(&self) -> Vec<String> {
        let of = |controller, place: &Option<Place>| place.as_ref().map(|place| place.name(controller));
        [of(PIDS, &self.processes), of(MEMORY_CONTROLLER, &self.memory)].into_iter().flatten().collect()
    }

    fn find(&mut self, surroundings: &CgroupHost, controller: &str, probing: &Probing<'_>) -> Option<Place> {
        let second = surroundings.second_version(self.tree.as_ref(), controller);
        let second = second.map(|parent| Place { parent, mechanism: Mechanism::CgroupV2 });
        let first = surroundings.first_version(self.tree.as_ref(), controller).into_iter();
        let candidates = std::iter::once(second).chain(first.map(|parent| Ok(Place { parent, mechanism: Mechanism::CgroupV1 })));
        for candidate in candidates.collect::<Vec<_>>() {
            let tried = candidate.and_then(|place| self.try_out(place, controller, probing));
            match tried {
                Ok(place) => return Some(place),
                Err(why) if self.why.contains(&why) => {}
                Err(why) => self.why.push(why),
            }
        }
        None
    }

    pub fn processes(&self) -> Option<Mechanism> {
        self.processes.as_ref().map(|place| place.mechanism)
    }

    pub fn memory(&self) -> Option<Mechanism> {
        self.memory.as_ref().map(|place| place.mechanism)
    }

    /// Why there is nothing better.
    pub fn why(&self) -> String {
        self.why.join("; ")
    }

    /// Whether a process can enter a group there and is held by it.
    fn try_out(&self, place: Place, controller: &str, probing: &Probing<'_>) -> Result<Place, String> {
        remove_leftovers(self.tree.as_ref(), &place.parent);
        if (probing.known)(&place.name(controller)) {
            return Ok(place);
        }
        let is_memory = controller == MEMORY_CONTROLLER;
        let limits = Limits {
            processes: (!is_memory).then_some(1),
            memory: is_memory.then_some(64 << 20),
            open_files: None,
            file_size: None,
            free_space: None,
            cpu_seconds: None,
            home_layer: None,
            required: false,
        };
        let only = |wanted: bool| wanted.then(|| place.clone());
        let alone = Self { tree: self.tree.clone(), processes: only(!is_memory), memory: only(is_memory), why: Vec::new() };
        let failed = |error: io::Error| format!("no group can be made in {}: {error}", place.parent.display());
        let group = Group::make(&alone, &limits, "trial").map_err(failed)?;
        let mut counted = 0;
        let held = (probing.trial)(&group.doors(), &mut || counted = group.memory_used());
        group.remove_now();
        let name = place.parent.display();
        match held {
            Err(why) => Err(format!("a group in {name} cannot be entered: {why}")),
            Ok(false) if !is_memory => Err(format!("a group in {name} does not hold a number of processes")),
            Ok(_) if is_memory && counted < COUNTED => Err(format!("a group in {name} does not count memory")),
            Ok(_) => Ok(place),
        }
    }
}

fn remove_leftovers(tree: &dyn CgroupTree, parent: &Path) {
    for group in tree.below(parent) {
        let name = group.file_name().and_then(|name| name.to_str());
        let pid = name.and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Refused as long as a process is in it.
            let _ = remove_all(tree, &group);
        }
    }
}

/// Removes a group and those that an Outpost inside left in it.
fn remove_all(tree: &dyn CgroupTree, group: &Path) -> io::Result<()> {
    for inner in tree.below(group) {
        remove_all(tree, &inner)?;
    }
    match tree.remove(group) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The groups of one session.
#[derive(Debug)]
pub(crate) struct Group {
    tree: Arc<dyn CgroupTree>,
    processes: Option<Part>,
    memory: Option<Part>,
}

#[derive(Debug)]
struct Part {
    tree: Arc<dyn CgroupTree>,
    directory: PathBuf,
    mechanism: Mechanism,
    /// How often its limit had been reached when it was last looked at.
    reached: Mutex<u64>,
}

impl Group {
    pub(crate) fn make(hierarchies: &Hierarchies, limits: &Limits, name: impl std::fmt::Display) -> io::Result<Self> {
        let tree = &hierarchies.tree;
        let part = |place: &Option<Place>, limit: Option<u64>| {
            let (Some(place), Some(_)) = (place, limit) else { return None };
            let directory = place.parent.join(format!("{PREFIX}{}-{name}", std::process::id()));
            Some(Part { tree: tree.clone(), directory, mechanism: place.mechanism, reached: Mutex::new(0) })
        };
        let (processes, memory) = (part(&hierarchies.processes, limits.processes), part(&hierarchies.memory, limits.memory));
        let group = Self { tree: tree.clone(), processes, memory };
        group.fill(limits).inspect_err(|_| group.remove_now())?;
        Ok(group)
    }

    fn fill(&self, limits: &Limits) -> io::Result<()> {
        for part in self.parts() {
            make_if_missing(self.tree.as_ref(), &part.directory)?;
            if part.mechanism == Mechanism::CgroupV2 {
                make_if_missing(self.tree.as_ref(), &part.directory.join(LEAF))?;
            }
        }
        if let (Some(part), Some(limit)) = (&self.processes, limits.processes) {
            part.write("pids.max", &limit.to_string())?;
        }
        if let (Some(part), Some(limit)) = (&self.memory, limits.memory) {
            part.limit_memory(limit)?;
        }
        Ok(())
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        self.processes.iter().chain(&self.memory)
    }

    /// Files to write oneself into.
    pub(crate) fn doors(&self) -> Vec<PathBuf> {
        let mut doors: Vec<_> = self.parts().map(Part::door).collect();
        doors.dedup();
        doors
    }

    /// What was reached since this was last asked.
    pub(crate) fn reached(&self) -> Option<&'static str> {
        let memory = self.memory.as_ref().is_some_and(|part| part.news(part.memory_kills()));
        let processes = self.processes.as_ref().is_some_and(|part| part.news(part.refused_forks()));
        if memory { Some(MEMORY) } else { processes.then_some(PROCESSES) }
    }

    /// Bytes that its processes use now.
    fn memory_used(&self) -> u64 {
        let read = |part: &Part| {
            let file = if part.mechanism == Mechanism::CgroupV1 { "memory.usage_in_bytes" } else { "memory.current" };
            self.tree.read(&part.directory.join(file)).ok()?.trim().parse().ok()
        };
        self.memory.as_ref().and_then(read).unwrap_or(0)
    }

    fn try_remove(&self) -> bool {
        self.parts().all(|part| remove_all(self.tree.as_ref(), &part.directory).is_ok())
    }

    /// Removes it once no process is in it any more.
    pub(crate) async fn remove(self) {
        for _ in 0..50 {
            if self.try_remove() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The same for one whose last process is just ending.
    fn remove_now(&self) {
        for _ in 0..200 {
            if self.try_remove() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn make_if_missing(tree: &dyn CgroupTree, group: &Path) -> io::Result<()> {
    match tree.make(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

impl Part {
    fn door(&self) -> PathBuf {
        let place = if self.mechanism == Mechanism::CgroupV2 { self.directory.join(LEAF) } else { self.directory.clone() };
        place.join("cgroup.procs")
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        self.tree.write(&self.directory.join(file), text)
    }

    fn limit_memory(&self, limit: u64) -> io::Result<()> {
        if self.mechanism == Mechanism::CgroupV1 {
            self.write("memory.limit_in_bytes", &limit.to_string())?;
            // Where swapping is counted, memory must not simply go there.
            let _ = self.write("memory.memsw.limit_in_bytes", &limit.to_string());
            return Ok(());
        }
        self.write("memory.max", &limit.to_string())?;
        let _ = self.write("memory.swap.max", "0");
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
        let text = self.tree.read(&self.directory.join(file)).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
