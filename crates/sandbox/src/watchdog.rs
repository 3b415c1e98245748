//! Holds what the kernel does not: some space stays free for all users, and where no control group counts a session's memory, the
//! program that uses most is stopped when there is too much of it.
//!
//! While nothing runs, nothing is looked at. While something runs, it is looked at when a limit could be reached at the earliest: where
//! there is much room, processes that do nothing cost next to nothing.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::home;
use crate::launch::LauncherState;
use crate::meter::{self, Meter};

/// How often is looked at most, while there is room and while there is not, and how often at least.
const CALM: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);
/// How often memory is looked at, at most.
const CLOSE: Duration = Duration::from_millis(20);
/// Bytes that programs can take of memory, or write, in a second: as far as a limit is away, so long can be waited.
const PER_SECOND: u64 = 4 << 30;
/// A layer that grows a little beyond its limit harms no other program: it may be looked at so much later.
const LAYER_SLACK: u64 = 16;
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
    let mut looked_at = tokio::time::Instant::now();
    loop {
        let Some(watched) = inner.upgrade().map(|inner| busy(&inner)) else { return };
        if watched.is_empty() {
            wake.notified().await;
            continue;
        }
        let pause = pause(&watched, was_short).max(rest);
        drop(watched);
        tokio::select! {
            () = tokio::time::sleep_until(looked_at + pause) => {}
            // What was started may write where nothing was looked at yet.
            () = wake.notified() => tokio::time::sleep_until(looked_at + pause.min(CALM)).await,
        }
        let Some(watched) = inner.upgrade().map(|inner| busy(&inner)) else { return };
        let looked = tokio::task::spawn_blocking(move || {
            let since = Instant::now();
            hold_memory(&watched, pause);
            look_at_layers(&watched);
            (look(&watched, was_short), since.elapsed() * RESTS)
        });
        (was_short, rest) = looked.await.unwrap_or_default();
        looked_at = tokio::time::Instant::now();
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
    let memory = watched.iter().filter_map(|(meter, _)| meter.free_memory()).min();
    let space = watched.iter().map(|(meter, _)| meter.free_space()).chain(watched.iter().flat_map(layers));
    // What was never looked at may be full.
    let space = space.map(Option::unwrap_or_default).min();
    pause_for(memory, space, was_short)
}

fn pause_for(memory: Option<u64>, space: Option<u64>, was_short: bool) -> Duration {
    let until = |bytes: u64| Duration::from_millis(bytes / (PER_SECOND / 1000));
    let memory = memory.map_or(LONG, |bytes| until(bytes).clamp(CLOSE, LONG));
    let space = space.map_or(LONG, |bytes| until(bytes).clamp(CALM, LONG));
    let pause = memory.min(space);
    if was_short { pause.min(SHORT) } else { pause }
}

/// How much each layer over the home may grow before it has to be measured again.
fn layers((meter, state): &Held) -> Vec<Option<u64>> {
    let Some((most, state)) = meter.home_layer().zip(state.upgrade()) else { return Vec::new() };
    slots(&state).iter().map(|slot| meter.free_layer(slot, most).map(|bytes| bytes.saturating_mul(LAYER_SLACK))).collect()
}

fn slots(state: &Mutex<LauncherState>) -> Vec<PathBuf> {
    let state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.layers.values().filter_map(|layer| layer.slot()).map(|slot| slot.path().to_owned()).collect()
}

/// Has layers over the home emptied that have become too large: their commands are stopped, and the next ones find them empty.
fn look_at_layers(watched: &[Held]) {
    for (meter, state) in watched {
        let Some((most, state)) = meter.home_layer().zip(state.upgrade()) else { continue };
        for slot in slots(&state).iter().filter(|slot| meter.may_have_grown(slot, most)) {
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

fn hold_memory(watched: &[Held], pause: Duration) {
    for (meter, state) in watched {
        // A program that took another user's rights cannot be killed from here; its reaper tries, too.
        if !meter.hold_memory(pause) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_again_when_a_limit_could_be_reached_and_not_before() {
        for (memory, space, was_short, expected) in [
            (None, Some(u64::MAX), false, LONG),
            (None, None, false, LONG),
            // What was not looked at yet.
            (None, Some(0), false, CALM),
            (None, Some(40 * PER_SECOND), false, Duration::from_secs(40)),
            (Some(2 * PER_SECOND), Some(40 * PER_SECOND), false, Duration::from_secs(2)),
            (Some(0), Some(u64::MAX), false, CLOSE),
            (None, Some(u64::MAX), true, SHORT),
            (Some(0), Some(0), true, CLOSE),
        ] {
            assert_eq!(pause_for(memory, space, was_short), expected, "{memory:?} {space:?} {was_short}");
        }
    }
}
