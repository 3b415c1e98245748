//! What a session may use: numbers, and the mechanism of this machine that holds each of them.
//!
//! Control groups hold a session as a whole; where none can be made, limits per process and per user have to do, and memory is
//! watched: no limit of a process counts what it uses and not what it reserves. Which one it is is told, because it is not the same
//! promise.

use std::path::Path;

use crate::cgroup::Hierarchies;
use crate::plan::Rlimit;
use crate::sys::rlimit;

/// Nothing means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Open files of one process.
    pub open_files: Option<u64>,
    /// Bytes of one file.
    pub file_size: Option<u64>,
    /// Bytes that must stay free where a session writes.
    pub free_space: Option<u64>,
    /// Seconds of processor time of one process.
    pub cpu_seconds: Option<u64>,
    /// Bytes of a workspace's layer over the home.
    pub home_layer: Option<u64>,
    /// Whether nothing is started where no control group holds processes and memory.
    pub required: bool,
}

impl Default for Limits {
    fn default() -> Self {
        // What a machine can carry on which a few sessions work at the same time.
        Self::of_machine(2048, (1, 2))
    }
}

impl Limits {
    /// With so many processes at most, and this part of the memory. Of both the executor keeps some for itself.
    pub fn of_machine(processes: u64, (part, of): (u64, u64)) -> Self {
        const SMALLEST: u64 = 256 << 20;
        let memory = own_memory().map_or(4 << 30, |bytes| {
            let room = bytes.saturating_sub((bytes / 16).max(128 << 20));
            (bytes / of * part).min(room).max(SMALLEST)
        });
        let most = most_processes().map_or(processes, |most| processes.min((most / of * part).max(64)));
        Self {
            processes: Some(most),
            memory: Some(memory),
            open_files: Some(65_536),
            file_size: Some(32 << 30),
            free_space: Some(256 << 20),
            cpu_seconds: None,
            home_layer: Some(8 << 30),
            required: false,
        }
    }
}

/// What this process itself may use: the machine has so much, and a control group may leave less.
fn own_memory() -> Option<u64> {
    [machine_memory(), group_limit("memory.max"), group_limit("memory/memory.limit_in_bytes")].into_iter().flatten().min()
}

/// Processes of all users on this machine, or in this container.
fn most_processes() -> Option<u64> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/pid_max").ok().and_then(|text| text.trim().parse().ok());
    [kernel, group_limit("pids.max"), group_limit("pids/pids.max")].into_iter().flatten().min()
}

/// A limit of the control group at the top of what is seen from here, which in a container is the container's.
fn group_limit(name: &str) -> Option<u64> {
    std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(name)).ok()?.trim().parse().ok()
}

fn machine_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// What holds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    CgroupV2,
    CgroupV1,
    Rlimit,
    Watchdog,
}

impl Mechanism {
    pub fn name(self) -> &'static str {
        match self {
            Self::CgroupV2 => "cgroup v2",
            Self::CgroupV1 => "cgroup v1",
            Self::Rlimit => "rlimit",
            Self::Watchdog => "watchdog",
        }
    }
}

/// One limit as it really is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EffectiveLimit {
    pub what: &'static str,
    pub value: u64,
    pub mechanism: Mechanism,
}

impl std::fmt::Display for EffectiveLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the limit of {} {} ({})", self.value, self.what, self.mechanism.name())
    }
}

pub(crate) const PROCESSES: &str = "processes";
pub(crate) const MEMORY: &str = "bytes of memory";
pub(crate) const OPEN_FILES: &str = "open files";
pub(crate) const FILE_SIZE: &str = "bytes of a file";
pub(crate) const FREE_SPACE: &str = "bytes of free space";
pub(crate) const HOME_LAYER: &str = "bytes of the layer over the home";
pub(crate) const CPU: &str = "seconds of processor time";

impl Limits {
    /// Why nothing may be started, if these have to be held by control groups and are not.
    pub fn shortfall(&self, hierarchies: &Hierarchies) -> Option<String> {
        let is_held =
            (self.processes.is_none() || hierarchies.processes().is_some()) && (self.memory.is_none() || hierarchies.memory().is_some());
        (self.required && !is_held).then(|| {
            format!(
                "limits.required is set, and no control group holds the limits here ({}); run the executor in a unit with Delegate=yes, \
                 give its container a writable /sys/fs/cgroup, or take limits.required out of config.toml",
                hierarchies.why()
            )
        })
    }

    /// What every limit is held by on this machine.
    pub fn held(&self, hierarchies: &Hierarchies) -> Vec<EffectiveLimit> {
        let of = |what, value: Option<u64>, mechanism| value.map(|value| EffectiveLimit { what, value, mechanism });
        [
            of(
                PROCESSES,
                self.processes.filter(|_| hierarchies.processes().is_some() || is_held_to_processes()),
                hierarchies.processes().unwrap_or(Mechanism::Rlimit),
            ),
            of(MEMORY, self.memory, hierarchies.memory().unwrap_or(Mechanism::Watchdog)),
            of(OPEN_FILES, self.open_files, Mechanism::Rlimit),
            of(FILE_SIZE, self.file_size, Mechanism::Rlimit),
            of(FREE_SPACE, self.free_space, Mechanism::Watchdog),
            of(HOME_LAYER, self.home_layer, Mechanism::Watchdog),
            of(CPU, self.cpu_seconds, Mechanism::Rlimit),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// What is set for every process of a session.
    pub(crate) fn rlimits(&self, hierarchies: &Hierarchies, count: Count) -> Vec<Rlimit> {
        let of = |resource: u32, value: Option<u64>| value.map(|value| Rlimit { resource, value });
        let processes = self.processes.filter(|_| hierarchies.processes().is_none()).map(|more| match count {
            Count::Apart => more,
            Count::Shared => more + processes_of_user(),
            Count::Open => 2 * more + processes_of_user(),
        });
        [
            of(rlimit::NPROC, processes),
            of(rlimit::NOFILE, self.open_files),
            of(rlimit::FSIZE, self.file_size),
            of(rlimit::CPU, self.cpu_seconds),
            // What a crash would leave could hold anything, and lies where no user looks.
            of(rlimit::CORE, Some(0)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// With whom the kernel counts the processes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// By itself: a sandbox with namespaces has a user of its own.
    Apart,
    /// A sandbox without namespaces: with all of its user, of whom there are some already.
    Shared,
    /// No sandbox: the same, and one that takes all it may must not take from these.
    Open,
}

/// Whether the kernel holds this user to a number of processes. It does not hold the machine's root; root of a user namespace, as in a
/// rootless container, is an ordinary user outside, and is held.
fn is_held_to_processes() -> bool {
    let map = || std::fs::read_to_string("/proc/self/uid_map");
    !rustix::process::geteuid().is_root() || map().is_ok_and(|map| !is_root_outside(&map))
}

/// Whether root in a map of users is root outside as well.
fn is_root_outside(map: &str) -> bool {
    let mut ranges = map.lines().map(|line| line.split_whitespace().map(str::parse::<u32>));
    ranges.any(|mut range| matches!((range.next(), range.next()), (Some(Ok(0)), Some(Ok(0)))))
}

fn processes_of_user() -> u64 {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    let is_own = |path: &Path| path.metadata().is_ok_and(|metadata| metadata.uid() == own);
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    pids.filter(|entry| is_own(&entry.path()))
        .map(|entry| std::fs::read_dir(entry.path().join("task")).map_or(1, |tasks| tasks.count() as u64))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_rootless_container_is_not_root_outside() {
        assert!(is_root_outside("         0          0 4294967295\n"));
        assert!(!is_root_outside("         0       1001          1\n         1     100000      65536\n"));
        // Without a user 0 there is none outside either.
        assert!(!is_root_outside("      1000       1000          1\n"));
    }
}
