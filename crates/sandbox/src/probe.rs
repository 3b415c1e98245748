//! What this host can hold, and by what: told by the executor, and tried by the self-check.

use rustix::process::geteuid;
use serde::Serialize;
use std::path::{Path, PathBuf};

use crate::launch::{LaunchError, Launcher, LauncherSettings, Layering};
use crate::level::{Capacity, Level};
use crate::limits::PROCESSES;
use crate::policy::{KEY_DIRECTORY, PROTECTED_IF_PRESENT, PROTECTED_NAMES, PathRules, Policy, STARTUP_FILES};
use crate::sys;

/// One promise on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PromiseRow {
    /// What is promised, in a few words.
    pub promise: &'static str,
    pub holds: bool,
    /// What holds it, or would.
    pub mechanism: String,
    /// Why it does not hold, or with which restriction it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl PromiseRow {
    /// Whether a control group would hold what nothing holds here.
    pub fn lacks_control_group(&self) -> bool {
        !self.holds && [FORKS, MEMORY].contains(&self.promise)
    }
}

/// What this host can hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostVerdict {
    /// How much of it; nothing if there is no sandbox at all.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "by_name")]
    pub level: Option<Level>,
    pub rows: Vec<PromiseRow>,
    /// The one setting that would raise the level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raised_by: Option<String>,
}

fn by_name<S: serde::Serializer>(level: &Option<Level>, serializer: S) -> Result<S::Ok, S::Error> {
    level.map(Level::name).serialize(serializer)
}

impl HostVerdict {
    /// What does not hold, in a line for people, if anything of a sandbox does not.
    pub fn shortfall(&self) -> Option<String> {
        let level = self.level.filter(|level| *level < Level::Full)?;
        let missing: Vec<_> = self.rows.iter().filter(|row| !row.holds && ![FORKS, MEMORY].contains(&row.promise)).collect();
        let told: Vec<_> = missing.iter().map(|row| format!("{} ({})", row.promise, row.reason.as_deref().unwrap_or("?"))).collect();
        let not_held = if told.is_empty() { String::new() } else { format!("; it does not hold: {}", told.join("; ")) };
        let raise = self.raised_by.as_deref().map(|by| format!("; to raise it: {by}")).unwrap_or_default();
        Some(format!("the sandbox of this machine has the level `{level}`{not_held}{raise}"))
    }

    /// Why nothing can be run in a sandbox here, or at all.
    pub fn refusal(&self) -> Option<String> {
        let row = self.rows.iter().find(|row| !row.holds && [OUTLIVES, LEVEL].contains(&row.promise))?;
        Some(format!("{}: {}", row.promise, row.reason.as_deref().unwrap_or(&row.mechanism)))
    }

    /// Whether everything that the default policy (workspace-write) needs is there.
    pub fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.holds)
    }
}

const OUTLIVES: &str = "nothing outlives its session";
const FILES: &str = "reads and writes only where the policy says";
const PROTECTED: &str = "protected paths stay read-only, also before they exist";
const NETWORK: &str = "no network";
const ROOT: &str = "sandboxed code never runs as root";
/// The row that tells how much of a sandbox there is; where it does not hold, there is none.
pub const LEVEL: &str = "a level of the sandbox";
const PROCESSES_OF_OTHERS: &str = "other processes are out of reach";
const HOME: &str = "tools write their caches and settings into a layer of the workspace";
const SECRETS: &str = "keys and tokens in the home are not seen";
const PRIVATE: &str = "/tmp and /run of its own";
const CALLS: &str = "no kernel settings, new namespaces, set-id files, terminal injection";
const FORKS: &str = "a number of processes per session";
const MEMORY: &str = "an amount of memory per session";

/// Tries everything out, with this program as the stage (see [`crate::stage`]) and with files in a directory of ours.
pub fn probe(scratch: &Path) -> HostVerdict {
    probe_at(scratch, LauncherSettings::default())
}

/// The same with what else a launcher is given on this host.
pub fn probe_at(scratch: &Path, settings: LauncherSettings) -> HostVerdict {
    let settings = LauncherSettings { scratch: Some(scratch.to_owned()), ..settings };
    probe_with(&Launcher::with_own_stage(settings), scratch)
}

/// The same for a launcher that is there already: a process, and one that is confined as by default.
pub fn probe_with(launcher: &Launcher, scratch: &Path) -> HostVerdict {
    let owner = launcher.owner();
    let reason = |tried: Result<(), LaunchError>| tried.err().map(|error| error.to_string());
    let open = reason(owner.prepare(&Policy::Open));
    let work = trial_directory(scratch);
    let held = match &work {
        Ok(work) => reason(owner.prepare(&Policy::Confined(std::sync::Arc::new(PathRules::workspace_write([work.clone()]))))),
        Err(error) => Some(format!("nothing could be tried in {}: {error}", scratch.display())),
    };
    owner.end();
    if let Ok(work) = work {
        let _ = std::fs::remove_dir_all(work);
    }
    rows(&launcher.capacity(), (open.as_deref(), held.as_deref()), launcher)
}

/// What is told of this host: its level and its limits, which were tried once, perhaps by a previous run.
pub fn told(launcher: &Launcher) -> HostVerdict {
    let (capacity, minimum) = (launcher.told_capacity(), launcher.minimum());
    let refused = match capacity.level {
        None => Some(capacity.why.clone().unwrap_or_default()),
        Some(level) if level < minimum => Some(format!("the level `{level}` is less than {}", launcher.minimum_named())),
        Some(_) => None,
    };
    rows(&capacity, (None, refused.as_deref()), launcher)
}

fn trial_directory(scratch: &Path) -> std::io::Result<PathBuf> {
    let work = scratch.join(format!("trial-{}", std::process::id()));
    std::fs::create_dir_all(&work)?;
    work.canonicalize()
}

/// `open` and `held`: why nothing can be run without a sandbox, or with one.
fn rows(capacity: &Capacity, (open, held): (Option<&str>, Option<&str>), launcher: &Launcher) -> HostVerdict {
    let level = capacity.level.unwrap_or_default();
    let landlock = sys::landlock_version();
    let second = if landlock > 0 { format!("Landlock {landlock}") } else { "no Landlock here".into() };
    let mut rows = Vec::new();
    let mut add = |promise, mechanism: String, missing: Option<String>, restriction: Option<&str>| {
        let reason = missing.clone().or_else(|| restriction.map(Into::into));
        rows.push(PromiseRow { promise, holds: missing.is_none(), mechanism, reason });
    };
    let held = || held.map(str::to_owned);
    let not_at = |enough: Level, what: &str| held().or_else(|| (level < enough).then(|| what.to_owned()));
    let is_root = geteuid().is_root();
    add(OUTLIVES, "reapers".into(), open.map(str::to_owned), None);
    let raise = capacity.why.as_ref().map(|why| {
        let by = capacity.raised_by().map(|by| format!("; to raise it: {by}")).unwrap_or_default();
        format!("not more, because of {why}{by}")
    });
    let name = capacity.level.map_or("none", Level::name);
    add(LEVEL, name.into(), held(), raise.as_deref());
    let files = match level {
        Level::Landlock => second.clone(),
        _ if is_root && capacity.maps_users => format!("mount namespace, idmapped mounts, {second}"),
        _ => format!("user and mount namespaces, {second}"),
    };
    let owner_may = "modes, owners, times and attributes of files elsewhere can be changed by their owner; directories that hold something denied cannot be listed";
    add(FILES, files, held(), (level == Level::Landlock).then_some(owner_may));
    let names: Vec<_> = PROTECTED_NAMES.iter().chain(PROTECTED_IF_PRESENT).copied().collect();
    let at_home: Vec<_> = STARTUP_FILES.iter().chain([&KEY_DIRECTORY]).copied().collect();
    let unprotected = format!(
        "Landlock takes nothing away inside a writable root, so these are not protected there: {}, and in a home {}",
        names.join(", "),
        at_home.join(", ")
    );
    add(PROTECTED, "mounts on placeholders".into(), not_at(Level::Mounts, &unprotected), None);
    let (network, restriction) = match level {
        Level::Landlock => ("seccomp: no sockets", Some("there is no loopback either, and no sockets with a path")),
        _ => ("network namespace with a loopback of its own", None),
    };
    add(NETWORK, network.into(), held(), restriction);
    let (processes, exposed) = match (level, landlock >= 6) {
        (Level::Full, _) => ("a process table of its own", None),
        (_, true) => ("Landlock: no signals, no looking inside", None),
        (_, false) => ("Landlock: no looking inside", Some("processes of the same user can be signalled (Landlock before version 6)")),
    };
    let seen = (level < Level::Full).then_some("the names and arguments of other processes can be seen");
    add(PROCESSES_OF_OTHERS, processes.into(), held().or(exposed.map(Into::into)), seen);
    let shared = "/tmp and /run are the machine's own";
    add(PRIVATE, "mounts of its own".into(), not_at(Level::Mounts, shared), None);
    let no_layer = "without mounts there is no layer: caches and settings in the home may be read only";
    let (layer, restriction) = match launcher.layering() {
        None => ("none".to_owned(), Some("the executor's user has no home".to_owned())),
        Some(Layering::Kept) => ("overlay, kept by workspace".to_owned(), None),
        Some(Layering::InMemory(why)) => ("overlay, in memory".to_owned(), Some(format!("it goes with the session, because of {why}"))),
        Some(Layering::Nothing(why)) => ("none".to_owned(), Some(why)),
    };
    let missing = restriction.clone().filter(|_| layer == "none" && launcher.layering().is_some());
    add(HOME, layer, not_at(Level::Mounts, no_layer).or(missing), restriction.as_deref());
    let inside = "settings that hold secrets among others cannot be read at all, and nothing is hidden inside a writable root";
    let by = if level == Level::Landlock { "Landlock" } else { "mounts" };
    add(SECRETS, by.into(), held(), (level == Level::Landlock).then_some(inside));
    let is_named = launcher.has_sandbox_user();
    let (identity, restriction) = match (is_root, is_named || !is_root, capacity.maps_users) {
        (true, true, _) => ("the user that was named", None),
        (_, true, _) if level == Level::Landlock => ("the executor's own user, without rights", None),
        (_, true, _) => ("the executor's own user, in a namespace without rights", None),
        (_, false, true) => ("a user per session", None),
        (_, false, false) => ("the owner of the workspace, without rights", Some("what belongs to the workspace's owner can be read")),
    };
    let by_name = is_root && !is_named && level == Level::Landlock;
    let root = "where the workspace belongs to root, it is root without any right; name a --sandbox-user who owns the workspace";
    add(ROOT, identity.into(), held().or_else(|| by_name.then(|| root.to_owned())), restriction);
    add(CALLS, "seccomp, no_new_privs, no capabilities".into(), held(), None);
    limits(launcher, &mut rows);
    HostVerdict { level: capacity.level, rows, raised_by: capacity.raised_by() }
}

fn limits(launcher: &Launcher, rows: &mut Vec<PromiseRow>) {
    let (limits, why) = (launcher.limits(), launcher.why_no_groups());
    for (promise, what) in [(FORKS, PROCESSES), (MEMORY, crate::limits::MEMORY)] {
        let limit = limits.iter().find(|limit| limit.what == what);
        rows.push(PromiseRow {
            promise,
            holds: limit.is_some(),
            mechanism: limit.map_or("none".into(), |limit| limit.mechanism.name().into()),
            reason: match limit.map(|limit| limit.mechanism.name()) {
                None => Some(format!("it was taken off, or root without control groups cannot be held to it ({why})")),
                Some("rlimit") => Some(format!("counted per user or per process instead of per session, without a control group: {why}")),
                Some("watchdog") => Some(format!(
                    "watched and not held: the program that uses most is stopped when a session uses more, without a control group: {why}"
                )),
                Some(_) => None,
            },
        });
    }
}
