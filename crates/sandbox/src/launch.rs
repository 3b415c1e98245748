//! Starting a child.

mod matches;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{getegid, geteuid};
use thiserror::Error;
use tokio::task::JoinHandle;

use crate::cell::{self, Cell, Running, Worker};
use crate::cgroup::{Group, Hierarchies};
use crate::child::{Child, ChildEnd, Input, Kin, Output, Terminal};
use crate::level::{self, Capacity, LEVELS, Level};
use crate::limits::{Limit, Limits};
use crate::message::{self, Cause};
use crate::meter::Meter;
use crate::plan::{Confinement, Identity, Place, Plan, Rights};
use crate::policy::{Access, Network, Policy, Rules};
use crate::pty;
use crate::scratch::Scratch;
use crate::watchdog::Watchdog;
use crate::zygote::Zygote;

/// How much a child can print before it has to wait.
const PIPE: usize = 256 << 10;
/// Users that nobody has: where those of sandboxes begin, and how many there are.
const FIRST_ID: u32 = 1_600_000_000;
const IDS: u64 = 500_000_000;

/// What to start. Everything is spelled out; nothing is inherited from this process.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Looked up in the child's own `PATH` unless it holds a slash.
    pub program: OsString,
    /// What the program is told as its own name, if not `program`.
    pub arg0: Option<OsString>,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    pub io: LaunchIo,
    pub policy: Policy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchIo {
    /// Three separate streams; without `stdin` the child finds its input at its end.
    Pipes { stdin: bool },
    /// One terminal for all three, which becomes the child's controlling one.
    Terminal(TerminalSize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

impl Default for TerminalSize {
    fn default() -> Self {
        Self { rows: 24, cols: 80 }
    }
}

/// Why nothing was started.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// The system would not run the program.
    #[error(transparent)]
    Spawn(#[from] io::Error),
    /// The system would not run the program because of a limit.
    #[error("{error}: {limit} is reached")]
    Limit { error: io::Error, limit: Limit },
    /// The policy cannot be held here, so nothing was run.
    #[error("{0}")]
    Unenforceable(String),
    #[error("its owner is gone")]
    Ended,
}

/// What a launcher needs to know of its machine.
#[derive(Debug, Clone, Default)]
pub struct LauncherSettings {
    /// A directory of our own for what sandboxes need on the machine.
    pub scratch: Option<PathBuf>,
    /// Whom sandboxed code runs as if the executor runs as root: user and group. Otherwise somebody new each time.
    pub sandbox_user: Option<(u32, u32)>,
    /// The home of the executor's user, where the tools of that user often are.
    pub home: Option<PathBuf>,
    pub limits: Limits,
    /// Sandboxes that hold less are refused.
    pub minimum: Level,
}

/// Starts children. Cheap to clone; all clones share one zygote.
#[derive(Debug, Clone)]
pub struct Launcher(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    zygote: Zygote,
    settings: LauncherSettings,
    /// Made when it is first needed, because most executors never confine anything.
    scratch: OnceLock<Scratch>,
    /// Held while it is made: what one makes, another one would clean up.
    scratching: Mutex<()>,
    hierarchies: Mutex<Option<Arc<Hierarchies>>>,
    capacity: Mutex<Option<Capacity>>,
    capacity_as_owner: Mutex<Option<Capacity>>,
    watchdog: Watchdog,
    owners: AtomicU64,
    clean_ups: Mutex<Vec<JoinHandle<()>>>,
}

impl Launcher {
    /// `stage` is a program that calls [`crate::stage::run_if_asked`] first thing.
    pub fn new(stage: impl Into<PathBuf>, settings: LauncherSettings) -> Self {
        let limits = &settings.limits;
        let zygote = Zygote::new(stage.into(), limits.processes.is_some() || limits.memory.is_some());
        Self(Arc::new(Shared {
            zygote,
            settings,
            scratch: OnceLock::new(),
            scratching: Mutex::default(),
            hierarchies: Mutex::default(),
            capacity: Mutex::default(),
            capacity_as_owner: Mutex::default(),
            watchdog: Watchdog::default(),
            owners: AtomicU64::new(1),
            clean_ups: Mutex::default(),
        }))
    }

    /// This program as its own stage, also after its file was replaced. Nothing starts unless its `main` calls
    /// [`crate::stage::run_if_asked`] first.
    pub fn with_own_stage(settings: LauncherSettings) -> Self {
        Self::new("/proc/self/exe", settings)
    }

    /// Somebody whose processes end with it.
    pub fn owner(&self) -> Owner {
        let number = self.0.owners.fetch_add(1, Ordering::Relaxed);
        Owner { shared: self.0.clone(), number, meter: OnceLock::new(), state: Arc::default() }
    }

    /// Waits until nothing is left of owners that ended.
    pub async fn tidied(&self) {
        let clean_ups = std::mem::take(&mut *self.0.clean_ups());
        for clean_up in clean_ups {
            let _ = clean_up.await;
        }
    }

    /// The limits of every owner, and what holds them here.
    pub fn limits(&self) -> Vec<Limit> {
        self.0.settings.limits.held(&self.0.hierarchies())
    }

    /// What a sandbox holds here: tried out, once.
    pub fn capacity(&self) -> Capacity {
        self.0.capacity()
    }

    /// Whom sandboxed code runs as, if the executor is root and none is mapped: nobody was named.
    pub(crate) fn has_sandbox_user(&self) -> bool {
        self.0.settings.sandbox_user.is_some()
    }

    pub(crate) fn minimum(&self) -> Level {
        self.0.settings.minimum
    }

    /// Why control groups do not hold all of them; empty if they do.
    pub fn why_no_groups(&self) -> String {
        self.0.hierarchies().why()
    }
}

impl Shared {
    fn clean_ups(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        let mut clean_ups = self.clean_ups.lock().unwrap_or_else(PoisonError::into_inner);
        clean_ups.retain(|clean_up| !clean_up.is_finished());
        clean_ups
    }

    fn hierarchies(&self) -> Arc<Hierarchies> {
        let mut known = self.hierarchies.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_with(|| Arc::new(self.zygote.find_groups())).clone()
    }

    /// From now on nobody is put into groups: it was tried, and it worked, but it does not any more.
    fn do_without_groups(&self, why: String) -> Arc<Hierarchies> {
        let none = Arc::new(Hierarchies::none(why));
        *self.hierarchies.lock().unwrap_or_else(PoisonError::into_inner) = Some(none.clone());
        none
    }

    /// What cannot be made now is tried again the next time: a disk that was full may have room by then.
    fn scratch(&self) -> Result<&Scratch, LaunchError> {
        let _making = self.scratching.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scratch) = self.scratch.get() {
            return Ok(scratch);
        }
        let refused = |why: String| LaunchError::Unenforceable(format!("what the sandbox needs on this machine cannot be kept ({why})"));
        let parent = self.settings.scratch.as_ref().ok_or_else(|| refused("nowhere".into()))?;
        let scratch = Scratch::open(parent, &format!("{}-{:x}", std::process::id(), unique()))
            .map_err(|error| refused(format!("{}: {error}", parent.display())))?;
        Ok(self.scratch.get_or_init(|| scratch))
    }

    /// Whom sandboxed code of this owner runs as, where users can be mapped.
    fn identity(&self, owner: u64) -> Identity {
        match self.settings.sandbox_user {
            _ if !geteuid().is_root() => Identity::Own,
            Some((uid, gid)) => Identity::Named { uid, gid },
            None => Identity::Mapped { id: session_id(owner) },
        }
    }

    fn known_capacity(&self) -> Option<Capacity> {
        self.capacity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tries one level after the other with a policy that lets everything be read.
    fn capacity(&self) -> Capacity {
        let mut known = self.capacity.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_with(|| self.find_capacity()).clone()
    }

    fn find_capacity(&self) -> Capacity {
        let mapped = self.identity(0);
        match mapped {
            Identity::Mapped { .. } => match self.try_level(Level::Full, mapped) {
                Ok(()) => Capacity { level: Some(Level::Full), why: None, maps_users: true },
                Err(_) => self.capacity_as_owner(),
            },
            _ => self.strongest(mapped),
        }
    }

    /// The same where users are not mapped although the executor is root.
    fn capacity_as_owner(&self) -> Capacity {
        let mut known = self.capacity_as_owner.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_with(|| self.strongest(Identity::Owner { uid: 0, gid: 0, id: session_id(0) })).clone()
    }

    fn strongest(&self, identity: Identity) -> Capacity {
        let mut why: Vec<String> = Vec::new();
        let mut found = None;
        for level in LEVELS {
            match self.try_level(level, identity) {
                Ok(()) => {
                    found = Some(level);
                    break;
                }
                Err(reason) if why.iter().any(|known| known.ends_with(&reason)) => {}
                Err(reason) => why.push(format!("{level}: {reason}")),
            }
        }
        Capacity { level: found, why: Some(why.join("; ")).filter(|why| !why.is_empty()), maps_users: false }
    }

    fn try_level(&self, level: Level, identity: Identity) -> Result<(), String> {
        let mut places = vec![Place { path: "/".into(), access: Access::Read, rights: Rights::Others, fixed: false }];
        // Whether users can be mapped depends on the file system; that of our own files stands for the others.
        let own = self.settings.scratch.as_ref().and_then(|path| path.ancestors().find(|path| path.is_dir())?.canonicalize().ok());
        if let (Some(path), Identity::Mapped { .. }) = (own.filter(|own| own != Path::new("/")), identity) {
            places.push(Place { path, access: Access::Write, rights: Rights::Owners, fixed: false });
        }
        let confinement = Confinement { level, places, network: Network::Restricted, identity, temporary: None };
        let plan = Plan { confinement: Some(confinement), ..Plan::default() };
        let control = self.zygote.cell(&plan.encode(), &[]).map_err(|error| error.to_string())?;
        // It ends with its socket.
        cell::answer(&control).map_err(|error| error.to_string())?.map_err(|(_, reason)| reason)
    }

    /// The home of the executor's user if others may not enter it, as sandboxed code of root could not. What it may read of
    /// the machine then includes it, as it does for every other user.
    fn closed_home(&self) -> Option<PathBuf> {
        let home = self.settings.home.as_ref()?.canonicalize().ok()?;
        let mode = home.metadata().ok().filter(std::fs::Metadata::is_dir)?.mode();
        (geteuid().is_root() && self.settings.sandbox_user.is_none() && mode & 0o005 != 0o005).then_some(home)
    }
}

/// A user that nobody else is.
fn session_id(owner: u64) -> u32 {
    FIRST_ID + ((u64::from(std::process::id()) << 12 | owner & 0xfff) % IDS) as u32
}

/// A number that another start of this process would not have.
fn unique() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

/// Whoever processes belong to: nothing that was started through it outlives it.
#[derive(Debug)]
pub struct Owner {
    shared: Arc<Shared>,
    number: u64,
    meter: OnceLock<Arc<Meter>>,
    state: Arc<Mutex<State>>,
}

/// In which way a policy is held.
#[derive(Debug, Clone, Copy)]
struct Shape {
    level: Level,
    identity: Identity,
}

/// A cell and the network that it shares, or why there is none.
type Adopted = Result<(Cell, Vec<OwnedFd>), (Cause, String)>;

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) cells: HashMap<Policy, Arc<Cell>>,
    /// The network that cells without any other share, once one of them has made it.
    network: Vec<OwnedFd>,
    /// Placeholders that our cells need.
    places: Vec<PathBuf>,
    has_temporary: bool,
    ended: bool,
}

impl Owner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Must be called where tasks can be spawned. Waits, on this thread, until the program runs.
    pub fn start(&self, launch: &Launch) -> Result<Child, LaunchError> {
        // Everything that can fail for want of descriptors comes before the child.
        let streams = Streams::open(launch.io)?;
        let cell = self.cell(&launch.policy)?;
        let terminal = matches!(launch.io, LaunchIo::Terminal(_));
        if let Some(meter) = self.meter.get()
            && works_at(&launch.policy, &launch.cwd)
        {
            meter.watch_directory(&launch.cwd);
        }
        let started = cell.start(|job| message::encode_start(job, terminal, launch), &streams.theirs()).and_then(|started| started);
        match started {
            Ok(running) => Ok(streams.child(running)),
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Nothing was forked; perhaps because of a limit.
    fn refused(&self, error: io::Error) -> LaunchError {
        match self.meter.get().and_then(|meter| meter.refused()) {
            Some(limit) => LaunchError::Limit { error, limit },
            None => error.into(),
        }
    }

    /// Somebody inside the sandbox of a policy who does work of ours there: the worker that the stage was given. It ends
    /// with the socket.
    pub fn worker(&self, policy: &Policy) -> Result<Worker, LaunchError> {
        self.cell(policy)?.worker().map_err(|error| self.refused(error))
    }

    /// Makes sure that things can be started under a policy, without starting any.
    pub fn prepare(&self, policy: &Policy) -> Result<(), LaunchError> {
        self.cell(policy).map(drop)
    }

    /// What sandboxed code of this owner sees as `/tmp`, wherever its policy lets it write there.
    pub fn temporary(&self) -> Result<PathBuf, LaunchError> {
        self.temporary_of(&mut self.lock())
    }

    fn temporary_of(&self, state: &mut State) -> Result<PathBuf, LaunchError> {
        if state.ended {
            return Err(LaunchError::Ended);
        }
        state.has_temporary = true;
        Ok(self.shared.scratch()?.temporary(self.number)?)
    }

    fn cell(&self, policy: &Policy) -> Result<Arc<Cell>, LaunchError> {
        let mut state = self.lock();
        if state.ended {
            return Err(LaunchError::Ended);
        }
        if let Some(cell) = state.cells.get(policy).filter(|cell| cell.is_there()) {
            return Ok(cell.clone());
        }
        let meter = self.meter()?;
        let (cell, network) = match policy {
            Policy::Open => self.make_cell(Plan::default(), policy, &meter, &state)?,
            Policy::Confined(rules) => self.confined_cell(rules, policy, &meter, &mut state)?,
        };
        if state.network.is_empty() {
            state.network = network;
        }
        let cell = Arc::new(cell);
        state.cells.insert(policy.clone(), cell.clone());
        Ok(cell)
    }

    /// At the strongest level that this machine holds, never at a lower one because of what a policy names: otherwise whoever can
    /// spoil a policy could choose the level.
    fn confined_cell(
        &self,
        rules: &Arc<Rules>,
        policy: &Policy,
        meter: &Arc<Meter>,
        state: &mut State,
    ) -> Result<(Cell, Vec<OwnedFd>), LaunchError> {
        let known = self.shared.known_capacity();
        let first = known.clone().unwrap_or(Capacity { level: Some(Level::Full), why: None, maps_users: true });
        let refused = match self.cell_within(&first, rules, policy, meter, state) {
            Err(LaunchError::Unenforceable(reason)) if known.is_none() => reason,
            made => return made,
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
        rules: &Arc<Rules>,
        policy: &Policy,
        meter: &Arc<Meter>,
        state: &mut State,
    ) -> Result<(Cell, Vec<OwnedFd>), LaunchError> {
        let level = self.level(capacity, rules)?;
        let mapped = self.shared.identity(self.number);
        let is_mapped = matches!(mapped, Identity::Mapped { .. });
        let owner = || self.owner_of(rules);
        let identity = if is_mapped && !capacity.maps_users { owner()? } else { mapped };
        let plan = self.plan(Shape { level, identity }, rules, policy, (meter, &mut *state))?;
        match self.adopt(plan, policy, meter, state)? {
            // Only this file system does not do it.
            Err((Cause::Users, reason)) if is_mapped => {
                let level = self.level(&self.shared.capacity_as_owner(), rules)?;
                let plan = self.plan(Shape { level, identity: owner()? }, rules, policy, (meter, &mut *state))?;
                let made = self.adopt(plan, policy, meter, state)?;
                made.map_err(|(_, other)| LaunchError::Unenforceable(format!("{reason}; and as its owner: {other}")))
            }
            made => made.map_err(|(_, reason)| LaunchError::Unenforceable(reason)),
        }
    }

    /// The level for a policy, or why there is none.
    fn level(&self, capacity: &Capacity, rules: &Rules) -> Result<Level, LaunchError> {
        let why = || capacity.why.clone().unwrap_or_default();
        let raise = || capacity.raised_by().map(|by| format!("; {by}")).unwrap_or_default();
        let Some(level) = capacity.level else {
            return Err(LaunchError::Unenforceable(format!("this machine holds no sandbox ({}){}", why(), raise())));
        };
        let minimum = self.shared.settings.minimum;
        if level < minimum {
            return Err(LaunchError::Unenforceable(format!(
                "this machine holds sandboxes of the level `{level}`, and sandbox_minimum = \"{minimum}\" asks for more ({}){}",
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
    fn owner_of(&self, rules: &Rules) -> Result<Identity, LaunchError> {
        let roots = rules.writable_roots().map(|rule| &rule.path).filter(|path| *path != Path::new("/tmp"));
        let mut owners: Vec<((u32, u32), &PathBuf)> = Vec::new();
        for path in roots.chain(rules.workspaces()) {
            let Ok(metadata) = path.metadata() else { continue };
            owners.push(((metadata.uid(), metadata.gid()), path));
        }
        let (uid, gid) = owners.first().map_or((geteuid().as_raw(), getegid().as_raw()), |(owner, _)| *owner);
        if let Some((_, other)) = owners.iter().find(|((other, _), path)| *other != uid && rules.access(path).access == Access::Write) {
            return Err(LaunchError::Unenforceable(format!(
                "{} and {} belong to different users, who cannot be mapped to one here; give them to one user",
                owners.first().map(|(_, path)| path.display().to_string()).unwrap_or_default(),
                other.display()
            )));
        }
        Ok(Identity::Owner { uid, gid, id: session_id(self.number) })
    }

    fn make_cell(&self, plan: Plan, policy: &Policy, meter: &Arc<Meter>, state: &State) -> Result<(Cell, Vec<OwnedFd>), LaunchError> {
        self.adopt(plan, policy, meter, state)?.map_err(|(_, reason)| LaunchError::Unenforceable(reason))
    }

    fn adopt(&self, mut plan: Plan, policy: &Policy, meter: &Arc<Meter>, state: &State) -> Result<Adopted, LaunchError> {
        plan.rlimits = self.shared.settings.limits.rlimits(&self.shared.hierarchies(), policy);
        plan.cgroups = meter.doors();
        let control = self.shared.zygote.cell(&plan.encode(), &state.network)?;
        Ok(match Cell::adopt(control, meter.clone())? {
            Err((Cause::Groups, why)) => {
                let none = self.shared.do_without_groups(why);
                meter.without_group(self.shared.settings.limits.held(&none));
                plan.rlimits = self.shared.settings.limits.rlimits(&none, policy);
                plan.cgroups = Vec::new();
                Cell::adopt(self.shared.zygote.cell(&plan.encode(), &state.network)?, meter.clone())?
            }
            made => made,
        })
    }

    fn meter(&self) -> Result<Arc<Meter>, LaunchError> {
        if let Some(meter) = self.meter.get() {
            return Ok(meter.clone());
        }
        let limits = &self.shared.settings.limits;
        let made = Meter::new(limits, &self.shared.hierarchies(), self.number).or_else(|error| {
            let none = self.shared.do_without_groups(format!("no group can be made: {error}"));
            Meter::new(limits, &none, self.number)
        });
        let meter = Arc::new(made?);
        self.shared.watchdog.watch(&meter, &self.state);
        Ok(self.meter.get_or_init(|| meter).clone())
    }

    fn plan(
        &self,
        Shape { level, identity }: Shape,
        rules: &Rules,
        policy: &Policy,
        (meter, state): (&Meter, &mut State),
    ) -> Result<Plan, LaunchError> {
        let writes_all = rules.access(Path::new("/")).access == Access::Write;
        if writes_all && identity != Identity::Own {
            return Err(LaunchError::Unenforceable(
                "as root, a sandbox that may write everywhere would have to be root; name the roots that it may write".into(),
            ));
        }
        let mut places: BTreeMap<PathBuf, Access> = rules.iter().map(|rule| (rule.path.clone(), rule.access)).collect();
        let matches = matches::find(rules, matches::BOUNDS).map_err(LaunchError::Unenforceable)?;
        places.extend(matches.iter().map(|found| (found.path.clone(), Access::Deny)));
        let movable: HashSet<&PathBuf> = matches.iter().filter(|found| found.is_found_anywhere(rules)).map(|found| &found.path).collect();
        let user_home = self.shared.settings.home.as_ref().and_then(|home| home.canonicalize().ok());
        for rule in
            rules.iter().filter(|rule| rule.access != Access::Write && !rule.path.starts_with("/tmp") | is_in_root(rules, &rule.path))
        {
            let around = rule.path.parent().map_or(Access::Deny, |parent| rules.access(parent).access);
            if level > Level::Landlock
                && around == Access::Write
                && rule.path.symlink_metadata().is_err() | self.shared.scratch()?.is_placeholder(&rule.path)
            {
                let held = self.shared.scratch()?.hold_place(&rule.path, user_home.as_deref())?;
                state.places.extend(held);
            }
        }
        for workspace in rules.workspaces().iter().filter(|path| rules.access(path).access == Access::Read && !is_of_the_system(path)) {
            places.entry(workspace.clone()).or_insert(Access::Read);
        }
        let home = self.shared.closed_home().filter(|home| rules.access(home).access == Access::Read && !is_of_the_system(home));
        if let Some(home) = &home {
            places.entry(home.clone()).or_insert(Access::Read);
        }
        let rights = |path: &PathBuf, access: Access| match access {
            Access::Write => Rights::Owners,
            Access::Read if rules.workspaces().contains(path) && !is_of_the_system(path) => Rights::Owners,
            Access::Read if home.as_ref() == Some(path) => Rights::OwnersIfPossible,
            _ => Rights::Others,
        };
        let places = places
            .into_iter()
            .map(|(path, access)| Place { rights: rights(&path, access), fixed: !movable.contains(&path), path, access })
            .collect();
        let temporary = Some(self.temporary_of(state)?);
        for place in rules.iter().filter(|rule| works_at(policy, &rule.path)) {
            meter.watch_directory(&place.path);
        }
        if let Some(temporary) = temporary.as_ref().filter(|_| rules.access(Path::new("/tmp")).access == Access::Write) {
            meter.watch_directory(temporary);
        }
        Ok(Plan { confinement: Some(Confinement { level, places, network: rules.network, identity, temporary }), ..Plan::default() })
    }

    /// Kills everything that was started. Nothing can be started any more.
    pub fn end(&self) {
        let (cells, places, has_temporary) = {
            let mut state = self.lock();
            state.ended = true;
            state.network.clear();
            (std::mem::take(&mut state.cells), std::mem::take(&mut state.places), std::mem::take(&mut state.has_temporary))
        };
        for cell in cells.values() {
            cell.end();
        }
        let clean_up = CleanUp {
            shared: self.shared.clone(),
            cells: cells.into_values().collect(),
            group: self.meter.get().and_then(|meter| meter.take_group()),
            places,
            temporary: has_temporary.then_some(self.number),
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => self.shared.clean_ups().push(runtime.spawn(clean_up.run())),
            Err(_) => clean_up.release(),
        }
    }
}

/// What is left to do once everything of an owner is dead: before that, somebody could still use what is taken away.
struct CleanUp {
    shared: Arc<Shared>,
    cells: Vec<Arc<Cell>>,
    group: Option<Group>,
    places: Vec<PathBuf>,
    temporary: Option<u64>,
}

impl CleanUp {
    async fn run(mut self) {
        for _ in 0..500 {
            if !self.cells.iter().any(|cell| cell.is_there()) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // First what others can see.
        self.release();
        if let Some(group) = self.group.take() {
            group.remove().await;
        }
    }

    fn release(&self) {
        if let Some(scratch) = self.shared.scratch.get() {
            scratch.release_places(&self.places);
            if let Some(number) = self.temporary {
                scratch.remove_temporary(number);
            }
        }
    }
}

/// Places that are not somebody's work, whatever a request says: their owner's rights are not lent.
fn is_of_the_system(path: &Path) -> bool {
    const TOPS: [&str; 12] = ["/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var"];
    path == Path::new("/") || TOPS.iter().any(|top| path == Path::new(top))
}

/// Whether what is written at a path, as a process under this policy names it, comes to be at the same path of the machine.
fn works_at(policy: &Policy, path: &Path) -> bool {
    let Policy::Confined(rules) = policy else { return true };
    let has_own_temporary = rules.access(Path::new("/")).access != Access::Write;
    rules.access(path).access == Access::Write && !(has_own_temporary && path.starts_with("/tmp") && !is_in_root(rules, path))
}

/// Whether a path below `/tmp` is also below a writable root there, which is the machine's own and not the sandbox's.
fn is_in_root(rules: &Rules, path: &Path) -> bool {
    rules
        .writable_roots()
        .chain(rules.iter().filter(|rule| rule.access == Access::Write))
        .any(|root| root.path != Path::new("/tmp") && root.path.starts_with("/tmp") && path.starts_with(&root.path))
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.end();
    }
}

/// Both ends of what a child reads and writes.
enum Streams {
    Pipes { input: Option<Input>, output: Output, errors: Output, theirs: Vec<OwnedFd> },
    Terminal { input: Input, output: Output, terminal: Terminal, slave: OwnedFd },
}

impl Streams {
    fn open(io: LaunchIo) -> io::Result<Self> {
        match io {
            LaunchIo::Pipes { stdin } => {
                let (output, child_output) = io::pipe()?;
                // A child that prints a lot then waits for us less often. Who has many pipes may be refused; it works all the same.
                let _ = fcntl_setpipe_size(&output, PIPE);
                let (errors, child_errors) = io::pipe()?;
                let mut theirs: Vec<OwnedFd> = vec![child_output.into(), child_errors.into()];
                let input = if stdin {
                    let (child_input, input) = io::pipe()?;
                    theirs.push(child_input.into());
                    Some(Input::new(input.into())?)
                } else {
                    None
                };
                Ok(Self::Pipes { input, output: Output::new(output.into())?, errors: Output::new(errors.into())?, theirs })
            }
            LaunchIo::Terminal(size) => {
                let (master, slave) = pty::open(size)?;
                let (input, output) = (Input::new(master.try_clone()?)?, Output::new(master.try_clone()?)?);
                let slave = pty_slave(&slave)?;
                Ok(Self::Terminal { input, output, terminal: Terminal(master), slave })
            }
        }
    }

    fn theirs(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Pipes { theirs, .. } => theirs.iter().map(AsFd::as_fd).collect(),
            Self::Terminal { slave, .. } => vec![slave.as_fd()],
        }
    }

    fn child(self, running: Running) -> Child {
        let kin = Kin(running.clone());
        let end = ChildEnd::new(running);
        match self {
            Self::Pipes { input, output, errors, .. } => Child { kin, input, output, errors: Some(errors), terminal: None, end },
            Self::Terminal { input, output, terminal, .. } => {
                Child { kin, input: Some(input), output, errors: None, terminal: Some(terminal), end }
            }
        }
    }
}

/// The side of a terminal that a child gets, without it becoming ours.
fn pty_slave(path: &std::path::Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NOCTTY.bits();
    Ok(File::options().read(true).write(true).custom_flags(flags.cast_signed()).open(path)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_could_not_be_made_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let obstacle = directory.path().join("run");
        std::fs::write(&obstacle, "").unwrap();
        let settings = LauncherSettings { scratch: Some(obstacle.join("cells")), ..LauncherSettings::default() };
        let owner = Launcher::with_own_stage(settings).owner();
        let refused = owner.temporary().unwrap_err().to_string();
        assert!(refused.contains("cells: "), "{refused}");
        std::fs::remove_file(&obstacle).unwrap();
        assert!(owner.temporary().unwrap().is_dir());
    }

    #[test]
    fn space_is_watched_where_it_is_used() {
        let rule = |path: &str, access| crate::policy::Rule { path: path.into(), access, origin: crate::policy::Origin::Request };
        let rules = [rule("/", Access::Read), rule("/tmp", Access::Write), rule("/tmp/w", Access::Write), rule("/w", Access::Write)];
        let policy = Policy::Confined(Arc::new(Rules::new(rules, Vec::new(), crate::policy::Network::Restricted)));
        let works = |path: &str| works_at(&policy, Path::new(path));
        assert!(works("/w/x") && works("/tmp/w/x") && !works("/tmp") && !works("/tmp/x") && !works("/etc"));
        assert!(works_at(&Policy::Open, Path::new("/tmp")));
    }
}
