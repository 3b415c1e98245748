//! Holds what the kernel does not: some space stays free for all users, and where no control group counts a session's memory, the
//! program that uses most is stopped when there is too much of it.
//!
//! While nothing runs, nothing is looked at.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::home;
use crate::launch::LauncherState;
use crate::meter::{self, Meter};

/// How often is looked, while there is room and while there is not.
const CALM: Duration = Duration::from_millis(500);
const SHORT: Duration = Duration::from_millis(100);
/// How often memory is looked at, at most.
const CLOSE: Duration = Duration::from_millis(20);
/// Bytes that programs can take of memory in a second: as far as that is away, so long can be waited.
const PER_SECOND: u64 = 4 << 30;
/// How much longer than looking itself is waited at least: looking must not become the work of this machine.
const RESTS: u32 = 10;

type Watched = (Weak<Meter>, Weak<Mutex<LauncherState>>);
type Held = (Arc<Meter>, Weak<Mutex<LauncherState>>);

#[derive(Debug, Clone, Default)]
pub(crate) struct Watchdog(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    list: Mutex<Vec<Watched>>,
    /// Held by the one that looks.
    looking: Arc<Mutex<bool>>,
    wake: Arc<Notify>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// Says that the watchdog does not look any more, however that came to be.
struct Looking(Arc<Mutex<bool>>);

impl Drop for Looking {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Inner {
    fn list(&self) -> MutexGuard<'_, Vec<Watched>> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|(meter, _)| meter.strong_count() > 0);
        list
    }
}

impl Watchdog {
    /// Watches an owner from now on, whenever it runs something.
    pub(crate) fn watch(&self, meter: &Arc<Meter>, state: &Arc<Mutex<LauncherState>>) {
        self.0.list().push((Arc::downgrade(meter), Arc::downgrade(state)));
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut looking = self.0.looking.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *looking, true) {
            let guard = Looking(self.0.looking.clone());
            runtime.spawn(run(Arc::downgrade(&self.0), self.0.wake.clone(), guard));
        }
    }

    /// Something was started.
    pub(crate) fn wake(&self) {
        self.0.wake.notify_one();
    }
}

async fn run(inner: Weak<Inner>, wake: Arc<Notify>, _looking: Looking) {
    let mut was_short = false;
    let mut rest = Duration::ZERO;
    loop {
        let Some(watched) = inner.upgrade().map(|inner| busy(&inner)) else { return };
        if watched.is_empty() {
            wake.notified().await;
            continue;
        }
        tokio::time::sleep(pause(&watched, was_short).max(rest)).await;
        let looked = tokio::task::spawn_blocking(move || {
            let since = Instant::now();
            hold_memory(&watched);
            look_at_layers(&watched);
            (look(&watched, was_short), since.elapsed() * RESTS)
        });
        (was_short, rest) = looked.await.unwrap_or_default();
    }
}

/// Those who run something now.
fn busy(inner: &Inner) -> Vec<Held> {
    let list: Vec<Held> = inner.list().iter().filter_map(|(meter, state)| Some((meter.upgrade()?, state.clone()))).collect();
    let is_busy = |state: &Weak<Mutex<LauncherState>>| {
        let cells = state.upgrade().map(|state| state.lock().unwrap_or_else(PoisonError::into_inner).all_cells());
        cells.is_some_and(|cells| cells.iter().any(|cell| cell.is_busy()))
    };
    list.into_iter().filter(|(_, state)| is_busy(state)).collect()
}

/// How long can be waited before it is looked again.
fn pause(watched: &[Held], was_short: bool) -> Duration {
    let free = watched.iter().filter_map(|(meter, _)| meter.free_memory()).min();
    let memory = free.map_or(CALM, |free| Duration::from_millis(free / (PER_SECOND / 1000)).clamp(CLOSE, CALM));
    if was_short { memory.min(SHORT) } else { memory }
}

/// Has layers over the home emptied that have become too large: their commands are stopped, and the next ones find them empty.
fn look_at_layers(watched: &[Held]) {
    for (meter, state) in watched {
        let Some((most, state)) = meter.home_layer().zip(state.upgrade()) else { continue };
        let slots: Vec<PathBuf> = {
            let state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.layers.values().filter_map(|layer| layer.slot()).map(|slot| slot.path().to_owned()).collect()
        };
        for slot in slots.iter().filter(|slot| meter.may_have_grown(slot, most)) {
            let bytes = home::size(slot);
            meter.note_size(slot, bytes);
            if bytes > most {
                meter.note_full_layer();
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                state.full_layers.push(slot.clone());
                state.all_cells().iter().for_each(|cell| cell.kill_all());
            }
        }
    }
}

fn hold_memory(watched: &[Held]) {
    for (meter, state) in watched {
        // A program that took another user's rights cannot be killed from here; its reaper tries, too.
        if !meter.hold_memory() {
            kill_all(state);
        }
    }
}

fn kill_all(state: &Weak<Mutex<LauncherState>>) {
    let Some(state) = state.upgrade() else { return };
    let cells = state.lock().unwrap_or_else(PoisonError::into_inner).all_cells();
    for cell in cells {
        cell.kill_all();
    }
}

/// Whether there is too little space. The second time in a row a process has to go.
fn look(watched: &[Held], was_short: bool) -> bool {
    if !watched.iter().any(|(meter, _)| meter.is_short_of_space()) {
        return false;
    }
    let parents = meter::parents();
    let written = watched.iter().map(|(meter, state)| (meter.newly_written(&parents), meter, state));
    let Some((bytes, meter, state)) = written.max_by_key(|(bytes, ..)| *bytes) else { return true };
    if was_short && bytes > 0 {
        meter.note_shortage();
        kill_all(state);
    }
    true
}
