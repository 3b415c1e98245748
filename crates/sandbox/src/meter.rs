//! Watching over what one session uses: its groups, its memory where no group counts it, and the space that it leaves to others.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::statvfs;

use crate::cgroup::{Group, Hierarchies};
use crate::child::Exit;
use crate::limits::{CPU, EffectiveLimit, FILE_SIZE, FREE_SPACE, HOME_LAYER, Limits, MEMORY, Mechanism, PROCESSES};
use crate::memory::{MeasuredProcess, Program, Root, Strike, Use};

/// What a killed process reports that wrote too much into one file, or used too much time.
const FILE_TOO_LARGE: i32 = 25;
const TOO_MUCH_TIME: i32 = 24;
const BY_SHELL_FILE: i32 = 128 + FILE_TOO_LARGE;
const BY_SHELL_TIME: i32 = 128 + TOO_MUCH_TIME;
/// How many directories of one file system are remembered.
const WATCHED: usize = 8;
/// So many kills that were not asked about are remembered.
const REMEMBERED: usize = 64;

#[derive(Debug)]
pub(crate) struct Meter {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    limits: Vec<EffectiveLimit>,
    group: Option<Group>,
    /// Where its processes can write, by file system.
    directories: HashMap<u64, HashSet<PathBuf>>,
    /// Bytes above the floor of the fullest of these file systems, when all of them were last looked at.
    space: Option<u64>,
    /// Its cells, by their numbers on this machine.
    cells: Vec<Root>,
    /// Bytes that each of its processes had written when it was last looked at.
    written: HashMap<u32, u64>,
    /// How large layers were when they were last measured, and how much was free on their disk then.
    measured: HashMap<PathBuf, (u64, u64)>,
    /// What was killed for a limit that the kernel does not hold.
    kills: Vec<Kill>,
    /// Bytes of memory that were used when it was last looked at.
    memory: u64,
    /// What was killed last for using memory, and when.
    strike: Option<(Instant, Strike)>,
}

#[derive(Debug)]
struct Kill {
    what: &'static str,
    /// Nothing: everything was killed.
    program: Option<Program>,
}

impl State {
    /// What this program, or something that came of it, was killed for.
    fn killed(&mut self, program: Program) -> Option<&'static str> {
        let at = self.kills.iter().position(|kill| kill.program.is_none_or(|killed| killed == program))?;
        let what = self.kills[at].what;
        self.kills.retain(|kill| kill.program.is_some_and(|killed| killed != program));
        Some(what)
    }

    fn note(&mut self, kill: Kill) {
        if self.kills.len() >= REMEMBERED {
            self.kills.remove(0);
        }
        self.kills.push(kill);
    }

    /// Its processes, among all of this machine with their parents.
    fn own(&self, parents: &HashMap<u32, u32>) -> Vec<u32> {
        let cells: HashSet<u32> = self.cells.iter().map(|cell| cell.pid).collect();
        let is_own = |pid: &u32| {
            let mut at = *pid;
            for _ in 0..64 {
                if cells.contains(&at) {
                    return true;
                }
                match parents.get(&at) {
                    Some(parent) if *parent != 0 => at = *parent,
                    _ => return false,
                }
            }
            false
        };
        parents.keys().copied().filter(is_own).collect()
    }

    fn limit(&self, what: &str) -> Option<EffectiveLimit> {
        self.limits.iter().find(|limit| limit.what == what).copied()
    }

    /// The limit of memory if it is ours to hold.
    /// The limit of processes, if a process was refused and the kernel counts them by user: with those of every other session of that user.
    fn shared_process_limit(&self, refused: &io::Error) -> Option<EffectiveLimit> {
        self.limit(PROCESSES).filter(|limit| limit.mechanism == Mechanism::Rlimit && refused.kind() == io::ErrorKind::WouldBlock)
    }

    fn memory_limit(&self) -> Option<u64> {
        self.limit(MEMORY).filter(|limit| limit.mechanism == Mechanism::Watchdog).map(|limit| limit.value)
    }
}

impl Meter {
    pub(crate) fn new(limits: &Limits, hierarchies: &Hierarchies, number: u64) -> std::io::Result<Self> {
        let group = Group::make(hierarchies, limits, number)?;
        let state = State { group: Some(group), limits: limits.held(hierarchies), ..State::default() };
        Ok(Self { state: Mutex::new(state) })
    }

    /// Its groups hold no process any more: from now on these limits count. Returns what is to be removed.
    pub(crate) fn without_group(&self, limits: Vec<EffectiveLimit>) -> Option<Group> {
        let mut state = self.lock();
        state.limits = limits;
        state.group.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn doors(&self) -> Vec<PathBuf> {
        self.lock().group.as_ref().map(Group::doors).unwrap_or_default()
    }

    pub(crate) fn watch_directory(&self, directory: &Path) {
        // What is not there has no room that could be used.
        let Ok(metadata) = directory.metadata() else { return };
        let mut state = self.lock();
        let known = state.directories.entry(metadata.dev()).or_default();
        // One would do, unless it is removed.
        if known.len() >= WATCHED {
            known.retain(|directory| directory.is_dir());
        }
        if known.len() < WATCHED && !known.contains(directory) {
            known.insert(directory.to_owned());
            state.space = None;
        }
    }

    pub(crate) fn watch_cell(&self, cell: Root) {
        let mut state = self.lock();
        // Retired ones are gone some day, and their numbers are other processes'.
        state.cells.retain(|known| Path::new(&format!("/proc/{}", known.pid)).exists());
        state.cells.push(cell);
    }

    pub(crate) fn forget_cell(&self, pid: u32) {
        self.lock().cells.retain(|known| known.pid != pid);
    }

    /// Which limit a program ran into that ended like this, if that can be told.
    pub(crate) fn reached(&self, program: Program, exit: Exit) -> Option<EffectiveLimit> {
        let mut state = self.lock();
        let group = state.group.as_ref().and_then(Group::reached);
        let killed = state.killed(program);
        let what = match exit {
            Exit::Code(0) => return None,
            _ if let Some(killed) = killed => killed,
            // A shell tells of the end of its child in its own way.
            Exit::Signal(FILE_TOO_LARGE) | Exit::Code(BY_SHELL_FILE) => FILE_SIZE,
            Exit::Signal(TOO_MUCH_TIME) | Exit::Code(BY_SHELL_TIME) => CPU,
            _ => group?,
        };
        state.limit(what)
    }

    /// Which limit kept a process from being started.
    pub(crate) fn refused(&self, error: &io::Error) -> Option<EffectiveLimit> {
        let state = self.lock();
        match state.group.as_ref().and_then(Group::reached) {
            Some(what) => state.limit(what),
            None => state.shared_process_limit(error),
        }
    }

    /// Whether a process was refused for those of other sessions: the kernel counts them together, and this session has room.
    pub(crate) fn is_crowded_out(&self, error: &io::Error) -> bool {
        let state = self.lock();
        let Some(limit) = state.shared_process_limit(error) else { return false };
        state.own(&parents()).into_iter().map(threads_of).sum::<u64>() < limit.value
    }

    pub(crate) fn take_group(&self) -> Option<Group> {
        self.lock().group.take()
    }

    /// The file systems it works on that have less room left than they should.
    pub(crate) fn is_short_of_space(&self) -> bool {
        let state = self.lock();
        let Some(floor) = state.limit(FREE_SPACE) else { return false };
        let directories: Vec<_> = state.directories.values().flatten().cloned().collect();
        drop(state);
        let stats = directories.iter().filter_map(|directory| statvfs(directory).ok()).filter(|stat| stat.f_blocks > 0);
        let least = stats.map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)).min().unwrap_or(u64::MAX);
        self.lock().space = Some(least.saturating_sub(floor.value));
        least < floor.value
    }

    /// How much may still be written before space is short, as far as it is known.
    pub(crate) fn free_space(&self) -> Option<u64> {
        let state = self.lock();
        if state.limit(FREE_SPACE).is_some() { state.space } else { Some(u64::MAX) }
    }

    /// How much a layer over the home may grow before it is measured again, as far as it is known.
    pub(crate) fn free_layer(&self, layer: &Path, most: u64) -> Option<u64> {
        self.lock().measured.get(layer).map(|(bytes, _)| most.saturating_sub(*bytes) / 2)
    }

    /// How much its processes have written since this was last asked. `parents` are all processes with their parents.
    pub(crate) fn newly_written(&self, parents: &HashMap<u32, u32>) -> u64 {
        let mut state = self.lock();
        let mut written = HashMap::new();
        let mut more = 0;
        for pid in state.own(parents) {
            let bytes = written_by(pid);
            more += bytes.saturating_sub(state.written.get(&pid).copied().unwrap_or(0));
            written.insert(pid, bytes);
        }
        state.written = written;
        more
    }

    /// How large a layer over the home may be.
    pub(crate) fn home_layer(&self) -> Option<u64> {
        self.lock().limit(HOME_LAYER).map(|limit| limit.value)
    }

    /// Whether a layer may have reached its limit since it was last measured: only then is measuring worth its time. By what was written
    /// to its disk meanwhile, by any program.
    pub(crate) fn may_have_grown(&self, layer: &Path, most: u64) -> bool {
        match (self.lock().measured.get(layer), free(layer)) {
            (Some((bytes, before)), Some(now)) => before.saturating_sub(now) > most.saturating_sub(*bytes) / 2,
            _ => true,
        }
    }

    pub(crate) fn note_size(&self, layer: &Path, bytes: u64) {
        let now = free(layer).unwrap_or_default();
        self.lock().measured.insert(layer.to_owned(), (bytes, now));
    }

    pub(crate) fn note_full_layer(&self) {
        let mut state = self.lock();
        state.note(Kill { what: HOME_LAYER, program: None });
        state.measured.clear();
    }

    pub(crate) fn note_shortage(&self) {
        self.lock().note(Kill { what: FREE_SPACE, program: None });
    }

    /// How much memory may still be used before something is killed for it; nothing if the kernel holds the limit, or there is none.
    pub(crate) fn free_memory(&self) -> Option<u64> {
        let state = self.lock();
        Some(state.memory_limit()?.saturating_sub(state.memory))
    }

    /// Looks at how much memory is used, and kills what uses most if that is too much: as many programs as hold what is too much, and
    /// more of them each time that this was not enough. So long was to be waited since the last look. False if nothing could be killed
    /// although it has to be.
    pub(crate) fn hold_memory(&self, pause: Duration) -> bool {
        let (limit, cells) = {
            let state = self.lock();
            let Some(limit) = state.memory_limit() else { return true };
            (limit, state.cells.clone())
        };
        let used = Use::of(&cells, limit);
        let mut state = self.lock();
        state.memory = used.bytes;
        if used.bytes <= limit {
            state.strike = None;
            return true;
        }
        let not_enough = match &state.strike {
            None => 0,
            Some((at, strike)) => match strike.not_enough(&used, at.elapsed(), pause) {
                None => return true,
                Some(count) => count,
            },
        };
        let killed: Vec<MeasuredProcess> = used.largest_beyond(limit, not_enough).into_iter().cloned().collect();
        let mut was_killed = false;
        for process in &killed {
            // Noted before its end can be told.
            state.note(Kill { what: MEMORY, program: process.program() });
            was_killed |= process.kill();
        }
        state.strike = Some((Instant::now(), Strike { killed, count: not_enough.saturating_add(1) }));
        was_killed
    }
}

fn free(path: &Path) -> Option<u64> {
    statvfs(path).ok().map(|stat| stat.f_bfree.saturating_mul(stat.f_frsize))
}

fn written_by(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("wchar:")?.trim().parse().ok()).unwrap_or(0)
}

/// How many processes the kernel counts for one: its threads.
fn threads_of(pid: u32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |tasks| tasks.count() as u64)
}

/// Every process of this machine with its parent.
pub(crate) fn parents() -> HashMap<u32, u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect()
}
