//! Starting a child.

mod capacity;
mod confined;
mod home;
mod idle;
mod losses;
mod streams;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rustix::process::geteuid;
use thiserror::Error;
use tokio::sync::watch;

use self::confined::{Made, works_at};
use self::home::HeldLayers;
pub use self::home::Layering;
pub use self::idle::IdleCells;
use self::losses::Keeping;
pub use self::losses::LossSink;
use self::streams::Streams;
use crate::cell::{Cell, Engaged, OrderedProgram, Started, WorkerHandle};
use crate::cgroup::{Group, Hierarchies};
use crate::child::Child;
use crate::level::{Capacity, Level};
use crate::limits::{EffectiveLimit, Limits};
use crate::message::{self, CellStanding};
use crate::meter::Meter;
use crate::plan::{CellPlan, SandboxUser};
use crate::policy::Policy;
use crate::scratch::Scratch;
use crate::shares::Shares;
use crate::tried::Tried;
use crate::watchdog::Watchdog;
use crate::zygote::Zygote;

/// How often something is tried to be started while programs outside replace what its sandbox holds.
const ATTEMPTS: usize = 6;
/// Users without an account: where those of sandboxes begin, and how many there are.
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
    /// In the place of the program, a relay of our own: it connects the child's input and output with this port of the loopback that
    /// programs under the same policy have. Needs pipes with an input.
    pub connect: Option<u16>,
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
    Limit {
        #[source]
        error: io::Error,
        limit: EffectiveLimit,
    },
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
    /// Whom sandboxed code runs as if the executor runs as root: user and group. Otherwise a new user each time.
    pub sandbox_user: Option<(u32, u32)>,
    /// The home of the executor's user, where the tools of that user often are.
    pub home: Option<PathBuf>,
    /// Where layers over the home are kept.
    pub layers: Option<PathBuf>,
    pub limits: Limits,
    /// How many files a command may have open that has no limit of its own, where that is less than the executor itself may.
    pub open_files: Option<u64>,
    /// Sandboxes that hold less are refused.
    pub minimum: Level,
    /// Where that is written down, if not in the configuration of the user.
    pub minimum_from: Option<String>,
    /// A file of our own that keeps what was tried here for the next start.
    pub tried: Option<PathBuf>,
    pub idle: IdleCells,
}

impl LauncherSettings {
    /// The setting that refuses lower levels, as it is named to people.
    pub(crate) fn minimum_named(&self) -> String {
        let place = self.minimum_from.as_ref().map(|file| format!(" in {file}")).unwrap_or_default();
        format!("sandbox_minimum = \"{}\"{place}", self.minimum)
    }
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
    layering: Mutex<Layering>,
    /// Whether there was a home to try it with.
    layer_tried: OnceLock<bool>,
    /// Owners that ended and have not given their layers back yet.
    releasing: AtomicU64,
    tried: Tried,
    watchdog: Watchdog,
    owners: AtomicU64,
    /// So many owners have ended of which something is left.
    clean_ups: watch::Sender<usize>,
}

impl Launcher {
    /// `stage` is a program that calls [`crate::stage::run_if_asked`] first thing.
    pub fn new(stage: impl Into<PathBuf>, settings: LauncherSettings) -> Self {
        let limits = &settings.limits;
        let stage = stage.into();
        let tried = Tried::new(&stage, &settings);
        let zygote = Zygote::new(stage, limits.processes.is_some() || limits.memory.is_some(), settings.open_files);
        if let Some(scratch) = &settings.scratch {
            Scratch::clean_up(scratch);
        }
        let layering = home::first_layering(settings.layers.as_deref());
        Self(Arc::new(Shared {
            zygote,
            settings,
            scratch: OnceLock::new(),
            scratching: Mutex::default(),
            hierarchies: Mutex::default(),
            capacity: Mutex::default(),
            capacity_as_owner: Mutex::default(),
            layering,
            layer_tried: OnceLock::new(),
            releasing: AtomicU64::new(0),
            tried,
            watchdog: Watchdog::default(),
            owners: AtomicU64::new(1),
            clean_ups: watch::Sender::new(0),
        }))
    }

    /// This program as its own stage, also after its file was replaced. Nothing starts unless its `main` calls
    /// [`crate::stage::run_if_asked`] first.
    pub fn with_own_stage(settings: LauncherSettings) -> Self {
        Self::new("/proc/self/exe", settings)
    }

    /// What it was told about its machine.
    pub fn settings(&self) -> &LauncherSettings {
        &self.0.settings
    }

    /// A scope whose processes end with it.
    pub fn owner(&self) -> ProcessScope {
        let number = self.0.owners.fetch_add(1, Ordering::Relaxed);
        ProcessScope { shared: self.0.clone(), number, meter: OnceLock::new(), state: Arc::default() }
    }

    /// Waits until nothing is left of owners that ended.
    pub async fn tidied(&self) {
        let _ = self.0.clean_ups.subscribe().wait_for(|left| *left == 0).await;
    }

    /// Leaves nothing on the machine. Nothing can be confined any more.
    pub fn leave(&self) {
        if let Some(scratch) = self.0.scratch.get() {
            scratch.leave();
        }
    }

    /// The limits of every owner, and what holds them here.
    pub fn limits(&self) -> Vec<EffectiveLimit> {
        self.0.settings.limits.held(&self.0.hierarchies())
    }

    /// How layers over the home are kept here: tried out, once. Nothing if there is no home to put one over.
    pub fn layering(&self) -> Option<Layering> {
        let is_tried = *self.0.layer_tried.get_or_init(|| self.try_layer());
        is_tried.then(|| self.0.layering())
    }

    /// What a sandbox holds here: tried out, once.
    pub fn capacity(&self) -> Capacity {
        self.0.capacity()
    }

    /// The same, perhaps by a previous run under the same conditions.
    pub(crate) fn told_capacity(&self) -> Capacity {
        self.0.told_capacity()
    }

    /// Whom sandboxed code runs as, if the executor is root and none is mapped: no user was named.
    pub(crate) fn has_sandbox_user(&self) -> bool {
        self.0.settings.sandbox_user.is_some()
    }

    pub(crate) fn minimum(&self) -> Level {
        self.0.settings.minimum
    }

    pub(crate) fn minimum_named(&self) -> String {
        self.0.settings.minimum_named()
    }

    /// Why control groups do not hold all of them; empty if they do.
    pub fn why_no_groups(&self) -> String {
        self.0.hierarchies().why()
    }
}

impl Shared {
    fn hierarchies(&self) -> Arc<Hierarchies> {
        let mut known = self.hierarchies.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_with(|| Arc::new(self.zygote.find_groups(&self.tried))).clone()
    }

    /// From now on no process is put into groups: it was tried, and it worked, but it does not any more.
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
    fn identity(&self, owner: u64) -> SandboxUser {
        match self.settings.sandbox_user {
            _ if !geteuid().is_root() => SandboxUser::Own,
            Some((uid, gid)) => SandboxUser::Named { uid, gid },
            None => SandboxUser::Mapped { id: session_id(owner) },
        }
    }

    /// The home of the executor's user if others may not enter it, as sandboxed code of root could not. What it may read of
    /// the machine then includes it, as it does for every other user.
    fn closed_home(&self) -> Option<PathBuf> {
        let home = self.settings.home.as_ref()?.canonicalize().ok()?;
        let mode = home.metadata().ok().filter(std::fs::Metadata::is_dir)?.mode();
        (geteuid().is_root() && self.settings.sandbox_user.is_none() && mode & 0o005 != 0o005).then_some(home)
    }
}

/// A user that no other process runs as.
fn session_id(owner: u64) -> u32 {
    FIRST_ID + ((u64::from(std::process::id()) << 12 | owner & 0xfff) % IDS) as u32
}

/// A number that another start of this process would not have.
fn unique() -> u128 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

/// What processes belong to: nothing that was started through it outlives it.
#[derive(Debug)]
pub struct ProcessScope {
    shared: Arc<Shared>,
    number: u64,
    meter: OnceLock<Arc<Meter>>,
    state: Arc<Mutex<LauncherState>>,
}

#[derive(Debug, Default)]
pub(crate) struct LauncherState {
    pub(crate) cells: HashMap<Policy, Arc<Cell>>,
    /// Those that others have taken the place of, as long as something runs in them.
    retired: Vec<Weak<Cell>>,
    /// Those that want to know what programs outside took away.
    losses: LossSink,
    /// What cells share, once one of them has made it.
    shares: Shares,
    /// The layers over the home that cells use.
    pub(crate) layers: HeldLayers,
    /// Layers that were too large: the next cell finds them empty.
    pub(crate) full_layers: Vec<PathBuf>,
    /// Placeholders that our cells need.
    places: HashMap<Policy, Vec<PathBuf>>,
    /// What looks like a placeholder and is not ours: another executor may have made it, and takes it away when it ends.
    borrowed: BTreeSet<PathBuf>,
    has_temporary: bool,
    /// A task ends cells that are not used.
    is_tended: bool,
    ended: bool,
}

impl LauncherState {
    /// Another cell is to take the place of this one: what runs in it goes on.
    fn retire(&mut self, policy: &Policy, cell: &Arc<Cell>) {
        cell.retire();
        if self.cells.get(policy).is_some_and(|current| Arc::ptr_eq(current, cell)) {
            self.cells.remove(policy);
        }
        self.retired.retain(|retired| retired.strong_count() > 0);
        self.retired.push(Arc::downgrade(cell));
    }

    /// Every cell in which something may run.
    pub(crate) fn all_cells(&self) -> Vec<Arc<Cell>> {
        self.cells.values().cloned().chain(self.retired.iter().filter_map(Weak::upgrade)).collect()
    }
}

impl ProcessScope {
    fn lock(&self) -> MutexGuard<'_, LauncherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Must be called where tasks can be spawned. Waits, on this thread, until the program runs.
    pub fn start(&self, launch: &Launch) -> Result<Child, LaunchError> {
        // Everything that can fail for want of descriptors comes before the child.
        let streams = Streams::open(launch.io)?;
        let terminal = matches!(launch.io, LaunchIo::Terminal(_));
        let mut was_checked = false;
        let mut crowded = None;
        for _ in 0..ATTEMPTS {
            let cell = self.cell(&launch.policy)?;
            self.watch_space(launch);
            let standing = CellStanding { was_checked, ..cell.standing() };
            if let Some(user) = cell.user() {
                streams.give_to(user);
            }
            match cell.start(|job| message::encode_start(job, terminal, launch, &standing), &streams.theirs()) {
                Ok(Started::Running(running)) => {
                    self.shared.watchdog.wake();
                    return Ok(streams.child(running));
                }
                Ok(Started::Failed(error)) if self.is_crowded_out(&error) => {
                    self.lock().retire(&launch.policy, &cell);
                    crowded = Some(error);
                }
                Ok(Started::Failed(error)) | Err(error) => return Err(self.refused(error)),
                Ok(Started::Doubtful) => self.put_in_order(&launch.policy, &cell)?,
            }
            was_checked = true;
        }
        Err(crowded.map_or_else(
            || LaunchError::Unenforceable("programs outside replace what the sandbox holds faster than it can be put back".into()),
            |error| self.refused(error),
        ))
    }

    /// Gives the order to start something, and leaves it to [`ProcessScope::outcome`] to wait for what comes of it. Must be called
    /// where tasks can be spawned.
    pub fn order(&self, launch: &Launch) -> Result<OrderedStart, LaunchError> {
        let streams = Streams::open(launch.io)?;
        let terminal = matches!(launch.io, LaunchIo::Terminal(_));
        let cell = self.cell(&launch.policy)?;
        self.watch_space(launch);
        if let Some(user) = cell.user() {
            streams.give_to(user);
        }
        let standing = cell.standing();
        let ordered = cell.order(|job| message::encode_start(job, terminal, launch, &standing), &streams.theirs());
        Ok(OrderedStart { streams, program: ordered.map_err(|error| self.refused(error))?, _cell: cell })
    }

    /// Waits for what comes of an order. Nothing if it has to be made anew, with [`ProcessScope::start`].
    pub async fn outcome(&self, ordered: OrderedStart) -> Result<Option<Child>, LaunchError> {
        let OrderedStart { streams, program, _cell } = ordered;
        match program.outcome().await {
            Ok(Started::Running(running)) => {
                self.shared.watchdog.wake();
                Ok(Some(streams.child(running)))
            }
            Ok(Started::Failed(error)) if self.is_crowded_out(&error) => Ok(None),
            Ok(Started::Failed(error)) | Err(error) => Err(self.refused(error)),
            Ok(Started::Doubtful) => Ok(None),
        }
    }

    fn watch_space(&self, launch: &Launch) {
        if let Some(meter) = self.meter.get()
            && uses_space(launch)
        {
            meter.watch_directory(&launch.cwd);
        }
    }

    /// Has everything that a cell holds put back in place; where that is not possible, the next one is made anew.
    fn put_in_order(&self, policy: &Policy, cell: &Arc<Cell>) -> Result<(), LaunchError> {
        let keeping = Keeping { shared: self.shared.clone(), state: Arc::downgrade(&self.state) };
        if keeping.put_in_order(cell)?.is_none() {
            return Ok(());
        }
        self.lock().retire(policy, cell);
        Ok(())
    }

    /// The same for what is started next under a policy.
    pub fn verify(&self, policy: &Policy) -> Result<(), LaunchError> {
        let cell = self.cell(policy)?;
        self.put_in_order(policy, &cell)
    }

    /// Whom to tell what programs outside took away from our sandboxes.
    pub fn report_losses(&self, sink: LossSink) {
        self.lock().losses = sink;
    }

    /// Nothing was forked; perhaps because of a limit.
    fn refused(&self, error: io::Error) -> LaunchError {
        match self.meter.get().and_then(|meter| meter.refused(&error)) {
            Some(limit) => LaunchError::Limit { error, limit },
            None => error.into(),
        }
    }

    /// Nothing was forked, because other sessions have grown since the cell was made. One that is made now has its own number on top of theirs.
    fn is_crowded_out(&self, error: &io::Error) -> bool {
        self.meter.get().is_some_and(|meter| meter.is_crowded_out(error))
    }

    /// A process inside the sandbox of a policy that does work of ours there: the worker that the stage was given. It ends
    /// with the socket.
    pub fn worker(&self, policy: &Policy) -> Result<WorkerHandle, LaunchError> {
        let cell = self.cell(policy)?;
        let made = match cell.worker() {
            Err(error) if self.is_crowded_out(&error) => {
                self.lock().retire(policy, &cell);
                self.cell(policy)?.worker()
            }
            made => made,
        };
        made.map_err(|error| self.refused(error))
    }

    /// Makes sure that things can be started under a policy, without starting any.
    pub fn prepare(&self, policy: &Policy) -> Result<(), LaunchError> {
        self.cell(policy).map(drop)
    }

    /// What sandboxed code of this owner sees as `/tmp`, wherever its policy lets it write there.
    pub fn temporary(&self) -> Result<PathBuf, LaunchError> {
        self.temporary_of(&mut self.lock())
    }

    fn temporary_of(&self, state: &mut LauncherState) -> Result<PathBuf, LaunchError> {
        if state.ended {
            return Err(LaunchError::Ended);
        }
        state.has_temporary = true;
        Ok(self.shared.scratch()?.temporary(self.number)?)
    }

    fn cell(&self, policy: &Policy) -> Result<Engaged, LaunchError> {
        let mut state = self.lock();
        if state.ended {
            return Err(LaunchError::Ended);
        }
        self.empty_full_layers(&mut state);
        if let Some(cell) = state.cells.get(policy).cloned() {
            if !cell.is_in_place() {
                state.retire(policy, &cell);
            } else if let Some(cell) = Some(cell).filter(|cell| cell.is_there()).as_ref().and_then(Cell::engage) {
                return Ok(cell);
            }
        }
        let meter = self.meter()?;
        let Made { cell, shares, reports } = match policy {
            Policy::Open => self.make_cell(CellPlan::default(), &meter, &state)?,
            Policy::Confined(rules) => self.confined_cell(rules, policy, &meter, &mut state)?,
        };
        state.shares.adopt(shares);
        let cell = Arc::new(cell);
        if let Some(reports) = reports {
            if let Some(why) = cell.check()?.stale {
                return Err(LaunchError::Unenforceable(why));
            }
            let keeping = Keeping { shared: self.shared.clone(), state: Arc::downgrade(&self.state) };
            keeping.listen(reports, &cell);
        }
        let engaged = cell.engage().ok_or(LaunchError::Ended)?;
        state.cells.insert(policy.clone(), cell);
        self.tend(&mut state);
        Ok(engaged)
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
        if let Some(why) = limits.shortfall(&self.shared.hierarchies()) {
            return Err(LaunchError::Unenforceable(why));
        }
        self.shared.watchdog.watch(&meter, &self.state);
        Ok(self.meter.get_or_init(|| meter).clone())
    }

    /// Kills everything that was started. Nothing can be started any more.
    pub fn end(&self) {
        let (cells, places, layers, has_temporary) = {
            let mut state = self.lock();
            state.ended = true;
            state.losses = LossSink::default();
            state.shares = Shares::default();
            let retired = std::mem::take(&mut state.retired);
            let cells: Vec<Arc<Cell>> =
                std::mem::take(&mut state.cells).into_values().chain(retired.iter().filter_map(Weak::upgrade)).collect();
            let places = std::mem::take(&mut state.places).into_values().flatten().collect();
            (cells, places, std::mem::take(&mut state.layers), std::mem::take(&mut state.has_temporary))
        };
        for cell in &cells {
            cell.end();
        }
        let group = self.meter.get().and_then(|meter| meter.take_group());
        let temporary = has_temporary.then_some(self.number);
        CleanUp { shared: self.shared.clone(), cells, group, places, layers, temporary }.begin();
    }
}

/// A start that was ordered and is not known to run yet.
pub struct OrderedStart {
    streams: Streams,
    program: OrderedProgram,
    /// It does not end meanwhile.
    _cell: Engaged,
}

/// Whether space is to be watched where it runs. A relay writes no file; where it stands says nothing.
fn uses_space(launch: &Launch) -> bool {
    launch.connect.is_none() && works_at(&launch.policy, &launch.cwd)
}

/// What is left to do once everything of an owner is dead: before that, a process could still use what is taken away.
struct CleanUp {
    shared: Arc<Shared>,
    cells: Vec<Arc<Cell>>,
    group: Option<Group>,
    places: Vec<PathBuf>,
    layers: HeldLayers,
    temporary: Option<u64>,
}

/// Counted for as long as it is there, however its task ends.
struct CountedCleanUp(Arc<Shared>);

impl Drop for CountedCleanUp {
    fn drop(&mut self) {
        self.0.clean_ups.send_modify(|left| *left -= 1);
    }
}

impl CleanUp {
    fn begin(mut self) {
        let shared = self.shared.clone();
        if !self.layers.is_empty() {
            shared.releasing.fetch_add(1, Ordering::AcqRel);
        }
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                shared.clean_ups.send_modify(|left| *left += 1);
                let counted = CountedCleanUp(shared);
                runtime.spawn(async move {
                    let _counted = counted;
                    self.run().await;
                });
            }
            Err(_) => self.release(),
        }
    }

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

    /// Called once.
    fn release(&mut self) {
        if !self.layers.is_empty() {
            self.layers.drain().for_each(|(_, layer)| layer.release());
            self.shared.releasing.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(scratch) = self.shared.scratch.get() {
            scratch.release_places(&self.places);
            if let Some(number) = self.temporary {
                scratch.remove_temporary(number);
            }
        }
    }
}

impl Drop for ProcessScope {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::policy::{PathAccess, PathRules};

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
        let rule = |path: &str, access| crate::policy::PathRule { path: path.into(), access, origin: crate::policy::RuleOrigin::Request };
        let rules = [
            rule("/", PathAccess::Read),
            rule("/tmp", PathAccess::Write),
            rule("/tmp/w", PathAccess::Write),
            rule("/w", PathAccess::Write),
        ];
        let policy = Policy::Confined(Arc::new(PathRules::new(rules, Vec::new(), crate::policy::NetworkRule::Restricted)));
        let works = |path: &str| works_at(&policy, Path::new(path));
        assert!(works("/w/x") && works("/tmp/w/x") && !works("/tmp") && !works("/tmp/x") && !works("/etc"));
        assert!(works_at(&Policy::Open, Path::new("/tmp")));
        let launch = |connect| Launch {
            program: "x".into(),
            arg0: None,
            args: Vec::new(),
            env: Vec::new(),
            cwd: "/".into(),
            io: LaunchIo::Pipes { stdin: true },
            policy: Policy::Open,
            connect,
        };
        assert!(uses_space(&launch(None)) && !uses_space(&launch(Some(80))), "a relay uses none");
    }
}
