//! What this host can hold, and by what: told by the executor, and tried by the self-check.

use rustix::process::geteuid;
use serde::Serialize;
use std::path::{Path, PathBuf};

use crate::launch::{LaunchError, Launcher, LauncherSettings};
use crate::limits::{Limit, PROCESSES};
use crate::policy::{Policy, Rules};
use crate::sys;

/// One promise on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// What is promised, in a few words.
    pub promise: &'static str,
    pub holds: bool,
    /// What holds it, or would.
    pub mechanism: String,
    /// Why it does not hold, or with which restriction it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What this host can hold.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    pub rows: Vec<Row>,
}

impl Verdict {
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
const CALLS: &str = "no kernel settings, new namespaces, set-id files, terminal injection";
const FORKS: &str = "a number of processes per session";
const MEMORY: &str = "an amount of memory per session";

/// Tries everything out, with this program as the stage (see [`crate::stage`]) and with files in a directory of ours.
pub fn probe(scratch: &Path) -> Verdict {
    probe_with(&Launcher::with_own_stage(LauncherSettings { scratch: Some(scratch.to_owned()), ..LauncherSettings::default() }), scratch)
}

/// The same for a launcher that is there already.
pub fn probe_with(launcher: &Launcher, scratch: &Path) -> Verdict {
    let owner = launcher.owner();
    let reason = |tried: Result<(), LaunchError>| tried.err().map(|error| error.to_string());
    let open = reason(owner.prepare(&Policy::Open));
    let work = trial_directory(scratch);
    let held = match &work {
        Ok(work) => reason(owner.prepare(&Policy::Confined(std::sync::Arc::new(Rules::workspace_write([work.clone()]))))),
        Err(error) => Some(format!("nothing could be tried in {}: {error}", scratch.display())),
    };
    owner.end();
    if let Ok(work) = work {
        let _ = std::fs::remove_dir_all(work);
    }
    rows(open.as_deref(), held.as_deref(), &Held::of(launcher))
}

/// What limits are held by, and why not by something better.
struct Held {
    limits: Vec<Limit>,
    why: String,
}

impl Held {
    fn of(launcher: &Launcher) -> Self {
        Self { limits: launcher.limits(), why: launcher.why_no_groups() }
    }
}

/// What can be said without trying, from what the kernel says of itself. Wrong where something else stands in the way: then
/// the first sandbox is refused.
pub fn foresee(launcher: &Launcher) -> Verdict {
    let reason = if geteuid().is_root() {
        (!has_admin_rights()).then(|| "root without CAP_SYS_ADMIN; name a --sandbox-user".to_owned())
    } else {
        user_namespaces_are_off().then(|| "user namespaces are off for ordinary users".to_owned())
    };
    rows(None, reason.as_deref(), &Held::of(launcher))
}

fn trial_directory(scratch: &Path) -> std::io::Result<PathBuf> {
    let work = scratch.join(format!("trial-{}", std::process::id()));
    std::fs::create_dir_all(&work)?;
    work.canonicalize()
}

fn rows(open: Option<&str>, held: Option<&str>, Held { limits, why }: &Held) -> Verdict {
    let namespaces = if geteuid().is_root() { "mount namespace, idmapped mounts" } else { "user and mount namespaces" };
    let identity = if geteuid().is_root() { "a user per session" } else { "the executor's own user, in a namespace without rights" };
    let landlock = sys::landlock_version();
    let second = if landlock > 0 { format!("Landlock {landlock}") } else { "no Landlock here".into() };
    let row = |promise, reason: Option<&str>, mechanism: String| Row {
        promise,
        holds: reason.is_none(),
        mechanism,
        reason: reason.map(Into::into),
    };
    let mut rows = vec![
        row(OUTLIVES, open, "reapers".into()),
        row(FILES, held, format!("{namespaces}, {second}")),
        row(PROTECTED, held, "mounts on placeholders".into()),
        row(NETWORK, held, "network namespace".into()),
        row(ROOT, held, identity.into()),
        row(CALLS, held, "seccomp, no_new_privs, no capabilities".into()),
    ];
    for (promise, what) in [(FORKS, PROCESSES), (MEMORY, crate::limits::MEMORY)] {
        let limit = limits.iter().find(|limit| limit.what == what);
        rows.push(Row {
            promise,
            holds: limit.is_some(),
            mechanism: limit.map_or("none".into(), |limit| limit.mechanism.name().into()),
            reason: match limit.map(|limit| limit.mechanism.name()) {
                None => Some(format!("it was taken off, or root without control groups cannot be held to it ({why})")),
                Some("rlimit") => Some(format!("counted per user or per process instead of per session, without a control group: {why}")),
                Some(_) => None,
            },
        });
    }
    Verdict { rows }
}

fn has_admin_rights() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(rustix::thread::CapabilitySet::SYS_ADMIN))
}

fn user_namespaces_are_off() -> bool {
    let is = |path: &str, value: &str| std::fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    is("/proc/sys/user/max_user_namespaces", "0")
        || is("/proc/sys/kernel/unprivileged_userns_clone", "0")
        || is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1")
}
