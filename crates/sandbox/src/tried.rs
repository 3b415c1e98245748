//! What was tried on this machine, kept for the next start of the program: trying costs a handful of processes each time.
//!
//! A finding counts only under exactly the conditions under which it was tried: the same boot, namespaces, rights, groups, switches of
//! the kernel and program. What sandboxes hold is only reported from here; a command gets the strongest sandbox that can be made then.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::process::{Resource, getegid, geteuid, getrlimit};
use serde::{Deserialize, Serialize};

use crate::launch::LauncherSettings;
use crate::level::{Capacity, Level, SWITCHES};
use crate::sys;

/// How many sets of conditions are remembered: those of a login, a service and a few containers with one home.
const REMEMBERED: usize = 8;
/// Far more than that takes.
const LONGEST: u64 = 1 << 20;
/// What of `/proc/self/status` decides about sandboxes.
const RIGHTS: [&str; 6] = ["Groups:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "Seccomp_filters:"];
const NAMESPACES: [&str; 5] = ["user", "mnt", "pid", "net", "cgroup"];

/// The findings under the conditions of this process.
#[derive(Debug)]
pub(crate) struct Tried {
    stage: PathBuf,
    settings: LauncherSettings,
    /// Loaded when it is first needed, because most starts of this program try nothing.
    loaded: OnceLock<Option<Loaded>>,
}

#[derive(Debug)]
struct Loaded {
    file: PathBuf,
    findings: Mutex<Findings>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Findings {
    conditions: String,
    capacity: Option<Kept>,
    /// Where a process has entered a control group and was held by it.
    groups: Vec<String>,
}

/// A [`Capacity`] as it is written down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    level: String,
    why: Option<String>,
    maps_users: bool,
}

impl Tried {
    pub(crate) fn new(stage: &Path, settings: &LauncherSettings) -> Self {
        Self { stage: stage.to_owned(), settings: settings.clone(), loaded: OnceLock::new() }
    }

    /// What sandboxes were found to hold.
    pub(crate) fn capacity(&self) -> Option<Capacity> {
        self.load()?.capacity()
    }

    /// That there is no sandbox at all is not kept: it is tried again each time.
    pub(crate) fn keep_capacity(&self, found: &Capacity) {
        let kept = found.level.map(|level| Kept { level: level.name().into(), why: found.why.clone(), maps_users: found.maps_users });
        if let Some(loaded) = self.load() {
            loaded.change(|findings| findings.capacity = kept);
        }
    }

    /// A sandbox of the strongest level was just made: whatever else was found before is outdated.
    pub(crate) fn noted_full(&self) {
        let Some(Some(loaded)) = self.loaded.get() else { return };
        if loaded.capacity().is_some_and(|known| known.level < Some(Level::Full)) {
            loaded.change(|findings| findings.capacity = None);
        }
    }

    pub(crate) fn has_group(&self, group: &str) -> bool {
        self.load().is_some_and(|loaded| loaded.lock().groups.iter().any(|known| known == group))
    }

    pub(crate) fn keep_groups(&self, groups: Vec<String>) {
        if let Some(loaded) = self.load() {
            loaded.change(|findings| findings.groups = groups);
        }
    }

    /// Before anything changes the conditions.
    pub(crate) fn remember(&self) {
        let _ = self.load();
    }

    /// Nothing is kept without a file, or where the boot cannot be told from others.
    fn load(&self) -> Option<&Loaded> {
        let load = || Some(Loaded::open(self.settings.tried.clone()?, conditions(&self.stage, &self.settings)?));
        self.loaded.get_or_init(load).as_ref()
    }
}

impl Loaded {
    fn open(file: PathBuf, conditions: String) -> Self {
        let known = read(&file).into_iter().find(|findings| findings.conditions == conditions);
        let findings = known.unwrap_or_else(|| Findings { conditions, ..Findings::default() });
        Self { file, findings: Mutex::new(findings) }
    }

    fn lock(&self) -> MutexGuard<'_, Findings> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn capacity(&self) -> Option<Capacity> {
        let kept = self.lock().capacity.clone()?;
        Some(Capacity { level: Some(kept.level.parse().ok()?), why: kept.why, maps_users: kept.maps_users })
    }

    fn change(&self, change: impl FnOnce(&mut Findings)) {
        let mut findings = self.lock();
        let before = findings.clone();
        change(&mut findings);
        // What cannot be kept is tried again.
        if *findings != before {
            let _ = write(&self.file, &findings);
        }
    }
}

fn read(file: &Path) -> Vec<Findings> {
    let is_ours = |metadata: &fs::Metadata| metadata.is_file() && metadata.uid() == geteuid().as_raw() && metadata.len() <= LONGEST;
    let text = file.symlink_metadata().ok().filter(is_ours).and_then(|_| fs::read(file).ok());
    text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Those that were changed last come first. Written aside: a reader sees all of it or what was there before.
fn write(file: &Path, findings: &Findings) -> io::Result<()> {
    let others = read(file).into_iter().filter(|other| other.conditions != findings.conditions);
    let all: Vec<Findings> = std::iter::once(findings.clone()).chain(others).take(REMEMBERED).collect();
    let aside = file.with_extension(format!("{}.new", std::process::id()));
    let written = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&aside);
    let written = written.and_then(|to| serde_json::to_writer(io::BufWriter::new(to), &all).map_err(io::Error::from));
    written.and_then(|()| fs::rename(&aside, file)).inspect_err(|_| drop(fs::remove_file(&aside)))
}

/// Everything that decides what sandboxes and groups can be made, as text.
fn conditions(stage: &Path, settings: &LauncherSettings) -> Option<String> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let boot = text("/proc/sys/kernel/random/boot_id");
    let program = stage.metadata().ok()?;
    if boot.is_empty() {
        return None;
    }
    let mut all = format!("boot {boot}\n");
    let mut add = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(all, "{name} {value}");
    };
    add("kernel", &text("/proc/sys/kernel/osrelease"));
    add("program", &identity(&program));
    add("user", &format_args!("{} {}", geteuid().as_raw(), getegid().as_raw()));
    for name in NAMESPACES {
        let namespace = fs::read_link(format!("/proc/self/ns/{name}")).unwrap_or_default();
        add("namespace", &namespace.display());
    }
    let status = text("/proc/self/status");
    for line in status.lines().filter(|line| RIGHTS.iter().any(|name| line.starts_with(name))) {
        add("right", &line);
    }
    add("profile", &text("/proc/self/attr/current"));
    add("processes", &format_args!("{:?}", getrlimit(Resource::Nproc).current));
    for (switch, ..) in SWITCHES {
        add(switch, &text(&format!("/proc/sys/{}", switch.replace('.', "/"))));
    }
    add("landlock", &sys::landlock_version());
    add("groups", &text("/proc/self/cgroup"));
    // Masked parts of `/proc` decide about process tables, and the rest about groups.
    let mounts = text("/proc/self/mountinfo");
    let is_of_kernel = |point: &str| ["/", "/proc", "/sys"].contains(&point) || point.starts_with("/proc/") || point.starts_with("/sys/");
    for line in mounts.lines().filter(|line| line.split(' ').nth(4).is_some_and(is_of_kernel)) {
        add("mount", &line);
    }
    let scratch = settings.scratch.as_ref().and_then(|path| path.ancestors().find_map(|path| path.metadata().ok()));
    add("scratch", &scratch.map_or(0, |metadata| metadata.dev()));
    add(
        "settings",
        &format_args!("{:?} {}", settings.sandbox_user, settings.limits.processes.is_some() || settings.limits.memory.is_some()),
    );
    Some(all)
}

fn identity(program: &fs::Metadata) -> String {
    let (device, inode, length) = (program.dev(), program.ino(), program.len());
    format!("{device} {inode} {length} {}.{}", program.mtime(), program.mtime_nsec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Capacity {
        Capacity { level: Some(Level::Full), why: None, maps_users: true }
    }

    fn tried(file: &Path, conditions: &str) -> Tried {
        let loaded = OnceLock::from(Some(Loaded::open(file.to_owned(), conditions.into())));
        Tried { stage: PathBuf::new(), settings: LauncherSettings::default(), loaded }
    }

    #[test]
    fn findings_count_only_under_the_conditions_they_were_made_under() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tried.json");
        let first = tried(&file, "a");
        assert!(first.capacity().is_none() && !first.has_group("g"));
        first.keep_capacity(&full());
        first.keep_groups(vec!["g".into()]);
        let again = tried(&file, "a");
        assert_eq!(again.capacity(), Some(full()));
        assert!(again.has_group("g") && !again.has_group("h"));
        let elsewhere = tried(&file, "b");
        assert!(elsewhere.capacity().is_none() && !elsewhere.has_group("g"));
        let less = Capacity { level: Some(Level::Landlock), why: Some("no".into()), maps_users: false };
        elsewhere.keep_capacity(&less);
        assert_eq!((tried(&file, "a").capacity(), tried(&file, "b").capacity()), (Some(full()), Some(less)));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_is_outdated_or_spoilt_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tried.json");
        let known = tried(&file, "a");
        known.keep_capacity(&Capacity { level: Some(Level::Mounts), why: None, maps_users: false });
        known.noted_full();
        assert!(tried(&file, "a").capacity().is_none());
        known.keep_capacity(&full());
        known.noted_full();
        assert_eq!(tried(&file, "a").capacity(), Some(full()));
        known.keep_capacity(&Capacity { level: None, why: Some("busy".into()), maps_users: false });
        assert!(tried(&file, "a").capacity().is_none());
        for spoilt in ["", "{", "[{\"conditions\":\"a\",\"capacity\":{\"level\":\"all\",\"mapsUsers\":true}}]", "[{\"conditions\":3}]"] {
            fs::write(&file, spoilt).unwrap();
            assert!(tried(&file, "a").capacity().is_none(), "{spoilt}");
        }
    }

    #[test]
    fn old_conditions_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tried.json");
        for number in 0..3 * REMEMBERED {
            tried(&file, &number.to_string()).keep_capacity(&full());
        }
        assert_eq!(read(&file).len(), REMEMBERED);
        assert!(tried(&file, &(3 * REMEMBERED - 1).to_string()).capacity().is_some() && tried(&file, "0").capacity().is_none());
    }

    #[test]
    fn another_program_is_another_condition() {
        let of = |stage: &str| conditions(Path::new(stage), &LauncherSettings::default());
        assert_eq!(of("/proc/self/exe"), of("/proc/self/exe"));
        assert!(of("/proc/self/exe").is_some() && of("/proc/self/exe") != of("/bin/sh") && of("/none").is_none());
        assert!(of("/bin/sh").unwrap().starts_with("boot "));
    }
}
