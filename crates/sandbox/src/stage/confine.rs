//! Confining a cell: once, before it starts anything. Whatever it starts later is inside.
//!
//! Namespaces first, because they need rights; then the view of the file system; then the rights go; then Landlock and
//! seccomp, which need none and cannot be taken off again. Any step that fails is the end of the cell: a policy that cannot
//! be held is not run.

mod filter;
mod guard;
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
pub use self::guard::Ends;
use self::guard::{Guard, Keeper};
pub use self::masks::mount_at;
pub use self::watch::Quiet;
use self::watch::Watch;
use crate::level::Level;
use crate::message::Cause;
use crate::plan::{Confinement, Identity, Place, Rights, Shape};
use crate::policy::Access;
use crate::sys::{self, Fork, Signals};

pub use network::Network;

/// Why a cell cannot be confined, for whoever asked for it.
#[derive(Debug, Clone)]
pub struct Refused {
    reason: String,
    by_users: bool,
}

impl Refused {
    /// The users of a mount cannot be mapped, which may be done in another way.
    fn users(self) -> Self {
        Self { by_users: true, ..self }
    }

    pub fn cause(&self) -> Cause {
        if self.by_users { Cause::Users } else { Cause::Policy }
    }
}

impl From<String> for Refused {
    fn from(reason: String) -> Self {
        Self { reason, by_users: false }
    }
}

impl From<&str> for Refused {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

impl From<Refused> for String {
    fn from(refused: Refused) -> Self {
        refused.reason
    }
}

impl Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Adds what was being done to an error.
trait During<T> {
    fn during(self, what: impl Display) -> Result<T, Refused>;
}

impl<T, E: Display> During<T> for Result<T, E> {
    fn during(self, what: impl Display) -> Result<T, Refused> {
        self.map_err(|error| format!("{what}: {error}").into())
    }
}

/// What the processes of a cell need to know of it.
pub struct Settled {
    /// The network of this cell, for those that come later.
    pub network: Network,
    pub quiet: Quiet,
}

/// Confines this process. Returns in a new process, the first of its own process table. `shared` is the network of the
/// session, if one of its cells has made it before.
pub fn confine(confinement: &Confinement, shared: Network, ends: Ends) -> Result<Settled, Refused> {
    if confinement.level == Level::Landlock {
        // Without mounts there is nothing to keep in place, and nothing that could be put back.
        alone(&with_matches(confinement, None)?)?;
        return Ok(Settled { network: Network::default(), quiet: Quiet::Always });
    }
    // Handles of other namespaces can only be made from here.
    let sources = view::Sources::open(confinement)?;
    let network = network::separate(confinement, shared)?;
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
    let signals = Signals::listen().during("signals")?;
    match sys::fork().during("the first process of the sandbox")? {
        Fork::Parent(first) => {
            drop((sources, network, built, quiet));
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
    Ok(Settled { network, quiet })
}

/// Adds what the patterns deny now. Every directory in which they could come to deny something is watched before it is read.
fn with_matches(confinement: &Confinement, mut watch: Option<&mut Watch>) -> Result<Confinement, Refused> {
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
        let place =
            Place { path: path.clone(), access: Access::Deny, rights: Rights::Others, fixed, shape: Shape::Tree, by_pattern, source: None };
        places.insert(path, place);
    }
    Ok(Confinement { places: places.into_values().collect(), ..confinement.clone() })
}

/// Without namespaces: rights go, and Landlock and seccomp are all that holds.
fn alone(confinement: &Confinement) -> Result<(), Refused> {
    drop_rights(confinement)?;
    set_no_new_privs(true).during("no_new_privs")?;
    ruleset::restrict_alone(confinement)?;
    filter::install(confinement.network, confinement.level, Tracing::held(confinement.level, true))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).during("dumpable")?;
    sys::hear_of_parents_end().during("its parent")
}

fn become_user(uid: u32, gid: u32) -> Result<(), Refused> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[]).during("groups")?;
    set_thread_res_gid(gid, gid, gid).during("the group of the sandbox")?;
    set_thread_res_uid(uid, uid, uid).during("the user of the sandbox")
}

fn drop_rights(confinement: &Confinement) -> Result<(), Refused> {
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
        Identity::Mapped { id } => become_user(id, id)?,
        Identity::Named { uid, gid } if geteuid().is_root() => become_user(uid, gid)?,
        Identity::Owner { uid, gid, .. } if confinement.level == Level::Landlock && uid != 0 => become_user(uid, gid)?,
        Identity::Named { .. } | Identity::Own | Identity::Owner { .. } => {}
    }
    let none = CapabilitySets { effective: CapabilitySet::empty(), permitted: CapabilitySet::empty(), inheritable: CapabilitySet::empty() };
    set_capabilities(None, none).during("capabilities")?;
    // Without namespaces the owner of the workspace may be root: then it is root by name only, which is told.
    let is_owner = confinement.level == Level::Landlock && matches!(confinement.identity, Identity::Owner { uid: 0, .. });
    if geteuid().is_root() && !is_owner {
        return Err("it would run as root".into());
    }
    Ok(())
}
