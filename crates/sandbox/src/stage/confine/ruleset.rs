//! Landlock: the second fence around files, and the one around signals and sockets without a path. Without namespaces, the only one.
//!
//! It cannot take anything away inside a directory that it allows to be written; that is what the view is for.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::fs::{Mode, OFlags, open};

use super::{ConfineRefused, During};
use crate::level::Level;
use crate::plan::{Confinement, PathShape, PlannedPath};
use crate::policy::{NetworkRule, PathAccess};

/// Places outside of any policy that programs have to write to. All of them belong to the sandbox alone.
const PRIVATE: [&str; 2] = ["/dev", "/proc"];
/// The same where nothing does: what any user may use without leaving anything behind. Other devices may hold whole file systems.
const HARMLESS: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// How many places may have to be named one by one because something beside them is denied.
const MANY: usize = 20_000;

const VERSION: ABI = ABI::V6;

/// Devices are few and harmless here, and terminals could not be used without.
fn handled() -> BitFlags<AccessFs> {
    AccessFs::from_all(VERSION) & !BitFlags::from(AccessFs::IoctlDev)
}

/// Whether this kernel holds any of it.
pub(super) fn restrict(confinement: &Confinement) -> Result<bool, ConfineRefused> {
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(handled())
        .during("Landlock")?
        .scope(Scope::from_all(VERSION))
        .during("Landlock")?
        .create()
        .during("Landlock")?;
    rules = allow(rules, Path::new("/"), AccessFs::from_read(VERSION))?;
    // A directory that the layer over the home does not have is not written either.
    let is_there = |place: &&PlannedPath| place.shape != PathShape::Home || place.path.is_dir();
    let writing =
        confinement.places.iter().filter(|place| place.access == PathAccess::Write).filter(is_there).map(|place| place.path.as_path());
    let is_own_table = confinement.level == Level::Full && !confinement.identity.is_root_by_name();
    let own = if is_own_table { &PRIVATE[..] } else { &PRIVATE[..1] };
    for path in writing.chain(own.iter().map(Path::new)) {
        rules = allow(rules, path, handled())?;
    }
    let status = rules.restrict_self().during("Landlock")?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Without a view of its own: what is not named here cannot be read either.
pub(super) fn restrict_alone(confinement: &Confinement) -> Result<(), ConfineRefused> {
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))
        .during("there is no Landlock here")?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(handled())
        .during("Landlock")?
        .scope(Scope::from_all(VERSION))
        .during("Landlock")?;
    let rules = match confinement.network {
        // Nothing may be connected to; seccomp lets no process make the sockets for it either.
        NetworkRule::Restricted => rules.handle_access(AccessNet::from_all(VERSION)).during("Landlock")?,
        NetworkRule::Enabled => rules,
    };
    let mut rules = rules.create().during("Landlock")?;
    let named = confinement.places.iter().filter(|place| place.access == PathAccess::Deny).map(|place| place.path.as_path());
    let denied: Vec<&Path> = named.chain([Path::new("/dev")]).collect();
    for place in confinement.places.iter().filter(|place| place.access != PathAccess::Deny && !place.path.starts_with("/dev")) {
        if place.access == PathAccess::Write {
            if let Some(inside) = denied.iter().find(|path| path.starts_with(&place.path)) {
                return Err(
                    format!("{} is denied inside {}, which Landlock alone cannot hold", inside.display(), place.path.display()).into()
                );
            }
            rules = allow(rules, &place.path, handled())?;
            continue;
        }
        let mut left = vec![place.path.clone()];
        let mut named = 0;
        while let Some(path) = left.pop() {
            if denied.contains(&path.as_path()) {
                continue;
            }
            if !denied.iter().any(|inner| inner.starts_with(&path)) {
                rules = allow(rules, &path, AccessFs::from_read(VERSION))?;
                named += 1;
            } else {
                left.extend(entries(&path)?);
            }
            if named + left.len() > MANY {
                return Err(
                    format!("what may be read beside what is denied below {} is too much for Landlock", place.path.display()).into()
                );
            }
        }
    }
    let devices = confinement.devices.iter().map(PathBuf::as_path);
    for path in HARMLESS.iter().map(Path::new).chain(devices).filter(|path| path.exists()) {
        rules = allow(rules, path, handled())?;
    }
    let status = rules.restrict_self().during("Landlock")?;
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err("there is no Landlock here".into());
    }
    Ok(())
}

/// What is in a directory. Links are left out: where they lead is named by itself, or denied.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, ConfineRefused> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        // What we may not look into, no process inside may either.
        Err(_) => return Ok(Vec::new()),
    };
    let is_link = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_symlink());
    Ok(entries.flatten().filter(|entry| !is_link(entry)).map(|entry| entry.path()).collect())
}

fn allow(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, ConfineRefused> {
    // Not by the library's own `PathFd`: with musl the standard library takes O_PATH for part of the access mode and drops it, so that
    // a device or a pipe would really be opened.
    let place = match open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(place) => place,
        // Gone meanwhile, or closed to this user: then it is closed to it inside as well.
        Err(_) if !access.contains(AccessFs::WriteFile) => return Ok(rules),
        Err(error) => return Err(format!("Landlock at {}: {}", path.display(), std::io::Error::from(error)).into()),
    };
    let access = if path.is_dir() { access } else { access & AccessFs::from_file(VERSION) };
    rules.add_rule(PathBeneath::new(place, access)).during(format!("Landlock at {}", path.display()))
}
