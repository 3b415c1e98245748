//! Confining a cell: once, before it starts anything. Whatever it starts later is inside.
//!
//! Namespaces first, because they need rights; then the view of the file system; then the rights go; then Landlock and
//! seccomp, which need none and cannot be taken off again. Any step that fails is the end of the cell: a policy that cannot
//! be held is not run.

mod filter;
mod guard;
mod home;
mod idmap;
mod masks;
mod matches;
mod names;
mod network;
mod ruleset;
mod view;
mod watch;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use self::filter::Tracing;
pub(super) use self::guard::GuardSockets;
use self::guard::{Guard, Keeper};
pub(super) use self::masks::mount_at;
pub use self::watch::Quiet;
use self::watch::Watch;
use crate::level::Level;
use crate::message::CellFailure;
use crate::plan::{Confinement, PathShape, PlannedPath, Rights, SandboxUser};
use crate::policy::PathAccess;
use crate::shares::Shares;
use crate::sys::{self, Fork, SignalReader};

/// Why a cell cannot be confined, for the request that needs it.
#[derive(Debug, Clone)]
pub struct ConfineRefused {
    reason: String,
    cause: CellFailure,
}

impl ConfineRefused {
    /// The users of a mount cannot be mapped, which may be done in another way.
    fn users(self) -> Self {
        Self { cause: CellFailure::Users, ..self }
    }

    /// The layer over the home cannot be mounted, without which a policy can be held as well.
    fn layer(self) -> Self {
        Self { cause: CellFailure::Layer, ..self }
    }

    pub fn cause(&self) -> CellFailure {
        self.cause
    }
}

impl From<String> for ConfineRefused {
    fn from(reason: String) -> Self {
        Self { reason, cause: CellFailure::Policy }
    }
}

impl From<&str> for ConfineRefused {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

impl From<ConfineRefused> for String {
    fn from(refused: ConfineRefused) -> Self {
        refused.reason
    }
}

impl Display for ConfineRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Adds what was being done to an error.
trait During<T> {
    fn during(self, what: impl Display) -> Result<T, ConfineRefused>;
}

impl<T, E: Display> During<T> for Result<T, E> {
    fn during(self, what: impl Display) -> Result<T, ConfineRefused> {
        self.map_err(|error| format!("{what}: {error}").into())
    }
}

/// What the processes of a cell need to know of it.
pub(super) struct Settled {
    /// What those that come later may use as well.
    pub shares: Shares,
    pub quiet: Quiet,
}

/// Confines this process. Returns in a new process, the first of its own process table. `shared` is what earlier cells of the
/// session made.
pub(super) fn confine(confinement: &Confinement, shared: Shares, ends: GuardSockets) -> Result<Settled, ConfineRefused> {
    if confinement.level == Level::Landlock {
        // Without mounts there is nothing to keep in place, and nothing that could be put back.
        alone(&with_matches(confinement, None)?)?;
        return Ok(Settled { shares: Shares::default(), quiet: Quiet::Always });
    }
    // Handles of other namespaces can only be made from here.
    let sources = view::ViewSources::open(confinement)?;
    let mut shares = network::separate(confinement, shared)?;
    shares.mounts = home::enter(confinement, &sources, shares.mounts.take())?;
    // Heard from here on, so that no change is missed between looking and holding. Without it, everything is looked at before each start.
    let mut watch = Watch::open().ok();
    let confinement = with_matches(confinement, watch.as_mut())?;
    if let Some(watch) = &mut watch {
        let places = confinement.places.iter().filter(|place| !view::is_in_layer(&confinement.places, &place.path));
        places.for_each(|place| watch.around(&place.path));
    }
    let quiet = match &watch {
        Some(watch) => watch.quiet().during("hearing of changes")?,
        None => Quiet::Never,
    };
    let keeper = Keeper::new(watch, &confinement);
    let (kept, built) = crate::channel::pair().during("the guard of the sandbox")?;
    let signals = SignalReader::listen().during("signals")?;
    match sys::fork().during("the first process of the sandbox")? {
        Fork::Parent(first) => {
            drop((sources, shares, built, quiet));
            Guard::new(first, signals, ends, keeper).run(&kept)
        }
        Fork::Child => drop((signals, ends, keeper, kept)),
    }
    sys::hear_of_parents_end().during("its parent")?;
    let masks = view::build(&confinement, sources)?;
    guard::hand_over(&built, &masks).during("the guard of the sandbox")?;
    drop_rights(&confinement)?;
    set_no_new_privs(true).during("no_new_privs")?;
    let has_landlock = ruleset::restrict(&confinement)?;
    filter::install(confinement.network, confinement.level, Tracing::held(confinement.level, has_landlock))?;
    // Programs inside may look into each other, and not into the processes that hold the sandbox: those are of the same user and in
    // the same domain, and this keeps their memory, their descriptors and their system calls closed.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).during("dumpable")?;
    // Lost with the change of user.
    sys::hear_of_parents_end().during("its parent")?;
    guard::is_kept(&built).during("the guard of the sandbox")?;
    Ok(Settled { shares, quiet })
}

/// Adds what the patterns deny now. Every directory in which they could come to deny something is watched before it is read.
fn with_matches(confinement: &Confinement, mut watch: Option<&mut Watch>) -> Result<Confinement, ConfineRefused> {
    let mut visit = |directory: &std::path::Path| {
        if let Some(watch) = &mut watch {
            watch.for_pattern(directory, confinement);
        }
    };
    let found = matches::find(&confinement.globs, matches::BOUNDS, &mut visit)?;
    let mut places: BTreeMap<_, _> = confinement.places.iter().map(|place| (place.path.clone(), place.clone())).collect();
    for found in found.iter().filter(|found| !view::is_in_layer(&confinement.places, &found.path)) {
        let path = found.path.clone();
        let fixed = !found.is_found_anywhere(&confinement.places);
        let by_pattern = !places.contains_key(&path);
        let place = PlannedPath {
            path: path.clone(),
            access: PathAccess::Deny,
            rights: Rights::Others,
            fixed,
            shape: PathShape::Tree,
            by_pattern,
            source: None,
        };
        places.insert(path, place);
    }
    Ok(Confinement { places: places.into_values().collect(), ..confinement.clone() })
}

/// Without namespaces: rights go, and Landlock and seccomp are all that holds.
fn alone(confinement: &Confinement) -> Result<(), ConfineRefused> {
    drop_rights(confinement)?;
    set_no_new_privs(true).during("no_new_privs")?;
    ruleset::restrict_alone(confinement)?;
    filter::install(confinement.network, confinement.level, Tracing::held(confinement.level, true))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).during("dumpable")?;
    sys::hear_of_parents_end().during("its parent")
}

fn become_user(uid: u32, gid: u32) -> Result<(), ConfineRefused> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[]).during("groups")?;
    set_thread_res_gid(gid, gid, gid).during("the group of the sandbox")?;
    set_thread_res_uid(uid, uid, uid).during("the user of the sandbox")
}

fn drop_rights(confinement: &Confinement) -> Result<(), ConfineRefused> {
    // Nothing that is run later gets any of them back.
    for capability in CapabilitySet::all().iter() {
        match remove_capability_from_bounding_set(capability) {
            Ok(()) | Err(Errno::INVAL) => {}
            // Without namespaces an ordinary user may not, and has none: no_new_privs keeps it so.
            Err(Errno::PERM) if confinement.level == Level::Landlock => break,
            Err(error) => return Err(format!("capabilities: {}", io::Error::from(error)).into()),
        }
    }
    match confinement.identity {
        SandboxUser::Mapped { id } => become_user(id, id)?,
        SandboxUser::Named { uid, gid } if geteuid().is_root() => become_user(uid, gid)?,
        SandboxUser::Owner { uid, gid, .. } if confinement.level == Level::Landlock && uid != 0 => become_user(uid, gid)?,
        SandboxUser::Named { .. } | SandboxUser::Own | SandboxUser::Owner { .. } => {}
    }
    let none = CapabilitySets { effective: CapabilitySet::empty(), permitted: CapabilitySet::empty(), inheritable: CapabilitySet::empty() };
    set_capabilities(None, none).during("capabilities")?;
    // Without namespaces the owner of the workspace may be root: then it is root by name only, which is told.
    let is_owner = confinement.level == Level::Landlock && matches!(confinement.identity, SandboxUser::Owner { uid: 0, .. });
    if geteuid().is_root() && !is_owner {
        return Err("it would run as root".into());
    }
    Ok(())
}
