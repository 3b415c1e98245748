//! Making the cell of a policy: its level, whom it runs as, and the plan that the stage carries out.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::{getegid, geteuid};

use super::{LaunchError, LauncherState, ProcessScope, session_id};
use crate::cell::{Anchor, Cell};
use crate::channel::Channel;
use crate::level::{self, Capacity, Level};
use crate::limits::Count;
use crate::message::CellFailure;
use crate::meter::Meter;
use crate::mount_table::MountTable;
use crate::plan::{CellPlan, Confinement, PathShape, PlannedPath, Rights, SandboxUser};
use crate::policy::{PathAccess, PathRule, PathRules, Policy, RuleOrigin};
use crate::scratch::Scratch;
use crate::shares::Shares;

/// In which way a policy is held.
#[derive(Debug, Clone, Copy)]
struct Enforcement {
    level: Level,
    identity: SandboxUser,
}

/// A cell that was just made.
pub(super) struct Made {
    pub(super) cell: Cell,
    /// What it shares with those that come later.
    pub(super) shares: Shares,
    /// Where its guard reports losses, if it has one.
    pub(super) reports: Option<Channel>,
}

/// A new cell, or why there is none.
type Outcome = Result<Made, (CellFailure, String)>;

impl ProcessScope {
    /// At the strongest level that this machine holds, never at a lower one because of what a policy names: otherwise a client that can
    /// spoil a policy could choose the level.
    pub(super) fn confined_cell(
        &self,
        rules: &Arc<PathRules>,
        policy: &Policy,
        meter: &Arc<Meter>,
        state: &mut LauncherState,
    ) -> Result<Made, LaunchError> {
        let known = self.shared.known_capacity();
        let first = known.clone().unwrap_or(Capacity { level: Some(Level::Full), why: None, maps_users: true });
        let refused = match self.cell_within(&first, rules, policy, meter, state) {
            Err(LaunchError::Unenforceable(reason)) if known.is_none() => reason,
            made => {
                if made.is_ok() && known.is_none() {
                    self.shared.tried.noted_full();
                }
                return made;
            }
        };
        let found = self.shared.capacity();
        if found == first {
            return Err(LaunchError::Unenforceable(refused));
        }
        self.cell_within(&found, rules, policy, meter, state)
    }

    fn cell_within(
        &self,
        capacity: &Capacity,
        rules: &Arc<PathRules>,
        policy: &Policy,
        meter: &Arc<Meter>,
        state: &mut LauncherState,
    ) -> Result<Made, LaunchError> {
        let level = self.level(capacity, rules)?;
        let mapped = self.shared.identity(self.number);
        let is_mapped = matches!(mapped, SandboxUser::Mapped { .. });
        let owner = || self.owner_of(rules);
        let identity = if is_mapped && !capacity.maps_users { owner()? } else { mapped };
        match self.adopt_planned(Enforcement { level, identity }, rules, policy, (meter, &mut *state))? {
            // Only this file system does not do it.
            Err((CellFailure::Users, reason)) if is_mapped => {
                let level = self.level(&self.shared.capacity_as_owner(), rules)?;
                let made = self.adopt_planned(Enforcement { level, identity: owner()? }, rules, policy, (meter, &mut *state))?;
                made.map_err(|(_, other)| LaunchError::Unenforceable(format!("{reason}; and as its owner: {other}")))
            }
            made => made.map_err(|(_, reason)| LaunchError::Unenforceable(reason)),
        }
    }

    /// With a layer over the home as good as this machine has one.
    fn adopt_planned(
        &self,
        enforcement: Enforcement,
        rules: &PathRules,
        policy: &Policy,
        (meter, state): (&Arc<Meter>, &mut LauncherState),
    ) -> Result<Outcome, LaunchError> {
        loop {
            let plan = self.plan(enforcement, rules, policy, (meter, &mut *state))?;
            match self.adopt(plan, meter, state)? {
                Err((CellFailure::Layer, why)) if self.shared.layer_failed(&why) => {
                    // Those that other cells use stay as they are.
                    let unused = state.layers.extract_if(|_, layer| layer.mounts.is_none());
                    unused.collect::<Vec<_>>().into_iter().for_each(|(_, layer)| layer.release());
                }
                made => {
                    if let (Ok(made), Some(layer)) = (&made, rules.home().and_then(|view| state.layers.get_mut(&view.workspace)))
                        && layer.mounts.is_none()
                    {
                        layer.mounts = made.shares.mounts.as_ref().and_then(|mounts| mounts.try_clone().ok());
                    }
                    return Ok(made);
                }
            }
        }
    }

    /// The level for a policy, or why there is none.
    fn level(&self, capacity: &Capacity, rules: &PathRules) -> Result<Level, LaunchError> {
        let why = || capacity.why.clone().unwrap_or_default();
        let raise = || capacity.raised_by().map(|by| format!("; {by}")).unwrap_or_default();
        let Some(level) = capacity.level else {
            return Err(LaunchError::Unenforceable(format!("this machine holds no sandbox ({}){}", why(), raise())));
        };
        let minimum = self.shared.settings.minimum;
        if level < minimum {
            return Err(LaunchError::Unenforceable(format!(
                "this machine holds sandboxes of the level `{level}`, and {} asks for more ({}){}",
                self.shared.settings.minimum_named(),
                why(),
                raise()
            )));
        }
        match level::needed(rules) {
            (needed, Some(what)) if level < needed => Err(LaunchError::Unenforceable(format!(
                "{what}, which lies inside a writable root: that takes a sandbox of the level `{needed}`, and this machine holds `{level}` ({}){}",
                why(),
                raise()
            ))),
            _ => Ok(level),
        }
    }

    /// The one who owns what the policy is about, where users cannot be mapped.
    fn owner_of(&self, rules: &PathRules) -> Result<SandboxUser, LaunchError> {
        let roots = rules
            .writable_roots()
            .filter(|rule| rule.origin != RuleOrigin::Home)
            .map(|rule| &rule.path)
            .filter(|path| *path != Path::new("/tmp"));
        let mut owners: Vec<((u32, u32), &PathBuf)> = Vec::new();
        for path in roots.chain(rules.workspaces()) {
            let Ok(metadata) = path.metadata() else { continue };
            owners.push(((metadata.uid(), metadata.gid()), path));
        }
        let (uid, gid) = owners.first().map_or((geteuid().as_raw(), getegid().as_raw()), |(owner, _)| *owner);
        if let Some((_, other)) = owners.iter().find(|((other, _), path)| *other != uid && rules.access(path).access == PathAccess::Write) {
            return Err(LaunchError::Unenforceable(format!(
                "{} and {} belong to different users, who cannot be mapped to one here; give them to one user",
                owners.first().map(|(_, path)| path.display().to_string()).unwrap_or_default(),
                other.display()
            )));
        }
        Ok(SandboxUser::Owner { uid, gid, id: session_id(self.number) })
    }

    pub(super) fn make_cell(&self, plan: CellPlan, meter: &Arc<Meter>, state: &LauncherState) -> Result<Made, LaunchError> {
        self.adopt(plan, meter, state)?.map_err(|(_, reason)| LaunchError::Unenforceable(reason))
    }

    fn adopt(&self, mut plan: CellPlan, meter: &Arc<Meter>, state: &LauncherState) -> Result<Outcome, LaunchError> {
        let count = match &plan.confinement {
            None => Count::Open,
            Some(confinement) if confinement.level == Level::Landlock => Count::Shared,
            Some(_) => Count::Apart,
        };
        plan.rlimits = self.shared.settings.limits.rlimits(&self.shared.hierarchies(), count);
        plan.cgroups = meter.doors();
        let frame = plan.confinement.as_ref().and_then(|confinement| confinement.home.as_ref()).map(|layer| layer.frame.clone());
        let layer = frame.and_then(|frame| state.layers.values().find(|layer| layer.is_at(&frame)));
        let shares = state.shares.with_mounts(layer.and_then(|layer| layer.mounts.as_ref()))?;
        plan.shares = shares.kinds();
        Ok(match self.fork_cell(&plan, meter, &shares)? {
            Err((CellFailure::Groups, why)) => {
                let none = self.shared.do_without_groups(why);
                if let Some(why) = self.shared.settings.limits.shortfall(&none) {
                    return Err(LaunchError::Unenforceable(why));
                }
                meter.without_group(self.shared.settings.limits.held(&none));
                plan.rlimits = self.shared.settings.limits.rlimits(&none, count);
                plan.cgroups = Vec::new();
                self.fork_cell(&plan, meter, &shares)?
            }
            made => made,
        })
    }

    fn fork_cell(&self, plan: &CellPlan, meter: &Arc<Meter>, shares: &Shares) -> Result<Outcome, LaunchError> {
        // Only mounts have a guard that keeps them in place. Landlock knows directories and not their names: looked at before the cell is made,
        // so that no change is missed in between.
        let is_guarded = plan.confinement.as_ref().is_some_and(|confinement| confinement.level > Level::Landlock);
        let written = plan.confinement.iter().filter(|_| !is_guarded).flat_map(|confinement| &confinement.places);
        let anchors = written.filter(|place| place.access == PathAccess::Write).map(|place| Anchor::at(&place.path)).collect();
        let (ends, reports) = self.shared.zygote.cell(&plan.encode(), &shares.descriptors())?;
        let made = Cell::adopt(ends, is_guarded, meter.clone())?;
        let user = plan.confinement.as_ref().and_then(|confinement| confinement.identity.other_user());
        Ok(made.map(|(cell, shares)| Made { cell: cell.of(user).anchored(anchors), shares, reports: is_guarded.then_some(reports) }))
    }

    fn plan(
        &self,
        Enforcement { level, identity }: Enforcement,
        rules: &PathRules,
        policy: &Policy,
        (meter, state): (&Meter, &mut LauncherState),
    ) -> Result<CellPlan, LaunchError> {
        let writes_all = rules.access(Path::new("/")).access == PathAccess::Write;
        if writes_all && identity != SandboxUser::Own {
            return Err(LaunchError::Unenforceable(
                "as root, a sandbox that may write everywhere would have to be root; name the roots that it may write".into(),
            ));
        }
        // First of all: it removes what a killed executor left behind, and what is missing then is looked for below.
        let scratch = self.shared.scratch()?;
        let layer = self.home_layer(rules, level, identity, state)?;
        // Without mounts nothing is taken away inside a writable root, and there is no layer.
        let is_held = |rule: &&PathRule| match rule.origin {
            RuleOrigin::Home => layer.is_some(),
            RuleOrigin::Credentials => {
                level > Level::Landlock || rule.path.parent().is_none_or(|parent| rules.on_machine(parent) != PathAccess::Write)
            }
            _ => true,
        };
        let held: Vec<&PathRule> = rules.iter().filter(is_held).collect();
        let mut places: BTreeMap<PathBuf, PathAccess> = held.iter().map(|rule| (rule.path.clone(), rule.access)).collect();
        if let Some(view) = rules.home().filter(|_| layer.is_none()) {
            for path in view.secrets().filter(|path| !rules.names(path) && rules.on_machine(path) == PathAccess::Read) {
                places.entry(path).or_insert(PathAccess::Deny);
            }
        }
        let user_home = self.shared.settings.home.as_ref().and_then(|home| home.canonicalize().ok());
        let is_held =
            |path: &Path, access: PathAccess| (access != PathAccess::Write || rules.source_of(path).is_some()) && !rules.is_in_layer(path);
        for rule in
            rules.iter().filter(|rule| is_held(&rule.path, rule.access) && !rule.path.starts_with("/tmp") | is_in_root(rules, &rule.path))
        {
            let around = rule.path.parent().map_or(PathAccess::Deny, |parent| rules.on_machine(parent));
            let is_free = rule.path.symlink_metadata().is_err() || scratch.is_placeholder(&rule.path);
            if level > Level::Landlock && around == PathAccess::Write && is_free {
                let held = scratch.hold_place(&rule.path, user_home.as_deref())?;
                state.places.entry(policy.clone()).or_default().extend(held);
            } else if level > Level::Landlock && around == PathAccess::Write && Scratch::looks_like_placeholder(&rule.path) {
                state.borrowed.insert(rule.path.clone());
            }
        }
        for workspace in rules.workspaces().iter().filter(|path| rules.access(path).access == PathAccess::Read && !is_of_the_system(path)) {
            places.entry(workspace.clone()).or_insert(PathAccess::Read);
        }
        for (path, limit) in other_names(&MountTable::read(), rules, identity) {
            places.entry(path).or_insert(limit);
        }
        let home = self
            .shared
            .closed_home()
            .filter(|home| layer.is_none() && rules.access(home).access == PathAccess::Read && !is_of_the_system(home));
        if let Some(home) = &home {
            places.entry(home.clone()).or_insert(PathAccess::Read);
        }
        let is_layered = |path: &Path| layer.is_some() && rules.iter().any(|rule| rule.path == path && rule.origin == RuleOrigin::Home);
        let rights = |path: &PathBuf, access: PathAccess| match access {
            PathAccess::Write if is_layered(path) => Rights::Others,
            PathAccess::Write => Rights::Owners,
            PathAccess::Read if rules.source_of(path).is_some() => Rights::Owners,
            PathAccess::Read if rules.workspaces().contains(path) && !is_of_the_system(path) => Rights::Owners,
            PathAccess::Read if home.as_ref() == Some(path) => Rights::OwnersIfPossible,
            // What a policy names in the home is seen as the rest of it is.
            PathAccess::Read if layer.as_ref().is_some_and(|layer| path.starts_with(&layer.home)) => Rights::OwnersIfPossible,
            _ => Rights::Others,
        };
        let tree = |(path, access): (PathBuf, PathAccess)| PlannedPath {
            rights: rights(&path, access),
            // What is seen inside a layer lies in a directory of ours, which other programs do not know.
            fixed: access == PathAccess::Write || rules.source_of(&path).is_none(),
            source: rules.source_of(&path).map(Path::to_owned),
            shape: if is_layered(&path) { PathShape::Home } else { PathShape::Tree },
            path,
            access,
            by_pattern: false,
        };
        let link = |(path, access): (&Path, PathAccess)| PlannedPath {
            path: path.to_owned(),
            access,
            rights: Rights::Others,
            fixed: true,
            shape: PathShape::Link,
            by_pattern: false,
            source: None,
        };
        // Without mounts nothing can be seen in the place of something else.
        places.retain(|path, _| level > Level::Landlock || rules.source_of(path).is_none());
        let mut places: Vec<PlannedPath> = places.into_iter().map(tree).collect();
        let is_changeable = |link: &Path| link.parent().is_some_and(|parent| works_at(policy, parent));
        places.extend(rules.links().filter(|(path, _)| is_changeable(path)).map(link));
        places.sort_by(|a, b| a.path.cmp(&b.path));
        places.dedup_by(|later, first| later.path == first.path);
        let temporary = Some(self.temporary_of(state)?);
        for place in rules.iter().filter(|rule| works_at(policy, &rule.path)) {
            meter.watch_directory(&place.path);
        }
        if let Some(temporary) = temporary.as_ref().filter(|_| rules.access(Path::new("/tmp")).access == PathAccess::Write) {
            meter.watch_directory(temporary);
        }
        if let Some(store) = layer.as_ref().and_then(|layer| layer.store.as_ref()) {
            meter.watch_directory(store);
        }
        let (globs, devices, network) = (rules.globs().to_vec(), rules.devices().cloned().collect(), rules.network);
        let confinement = Confinement { level, places, globs, network, identity, temporary, devices, home: layer };
        Ok(CellPlan { confinement: Some(confinement), ..CellPlan::default() })
    }
}

/// Where what is denied or protected can be found under another name, because it is mounted there as well, and what is left of it there. A
/// name that the policy itself gives something at is what it wants.
fn other_names(mounts: &MountTable, rules: &PathRules, identity: SandboxUser) -> Vec<(PathBuf, PathAccess)> {
    // Of such places a sandbox with users of its own sees nothing that is mounted in them.
    let is_alone = |point: &Path| {
        let mut tops = rules.writable_roots().map(|rule| &rule.path).chain(rules.workspaces());
        matches!(identity, SandboxUser::Mapped { .. }) && tops.any(|top| top != Path::new("/") && point != top && point.starts_with(top))
    };
    let mut names = Vec::new();
    for rule in rules.iter() {
        let around = rule.path.parent().map_or(PathAccess::Deny, |parent| rules.on_machine(parent));
        let limit = match rule.access {
            PathAccess::Deny => PathAccess::Deny,
            PathAccess::Read if around == PathAccess::Write => PathAccess::Read,
            // What is seen there is a layer; the machine's own is seen under the other name.
            PathAccess::Write if rules.source_of(&rule.path).is_some() => PathAccess::Read,
            _ => continue,
        };
        let is_given = |path: &Path| rules.iter().any(|other| other.access > limit && other.path.starts_with(path));
        for name in mounts.other_names(&rule.path) {
            let is_more = rules.access(&name.path).access > limit && !is_given(&name.path);
            if is_more && !is_alone(&name.point) && name.path.symlink_metadata().is_ok() {
                names.push((name.path, limit));
            }
        }
    }
    // What is denied by one rule and protected by another is denied.
    names.sort();
    names
}

/// Places of the system, which are no workspace, whatever a request says: their owner's rights are not lent.
fn is_of_the_system(path: &Path) -> bool {
    const TOPS: [&str; 12] = ["/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var"];
    path == Path::new("/") || TOPS.iter().any(|top| path == Path::new(top))
}

/// Whether what is written at a path, as a process under this policy names it, comes to be at the same path of the machine.
pub(super) fn works_at(policy: &Policy, path: &Path) -> bool {
    let Policy::Confined(rules) = policy else { return true };
    let has_own_temporary = rules.access(Path::new("/")).access != PathAccess::Write;
    rules.on_machine(path) == PathAccess::Write && !(has_own_temporary && path.starts_with("/tmp") && !is_in_root(rules, path))
}

/// Whether a path below `/tmp` is also below a writable root there, which is the machine's own and not the sandbox's.
fn is_in_root(rules: &PathRules, path: &Path) -> bool {
    rules
        .writable_roots()
        .chain(rules.iter().filter(|rule| rule.access == PathAccess::Write))
        .any(|root| root.path != Path::new("/tmp") && root.path.starts_with("/tmp") && path.starts_with(&root.path))
}
