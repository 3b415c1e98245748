//! Keeps some space free for everybody: whoever writes most while there is too little is stopped.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use crate::home;
use crate::launch::State;
use crate::meter::{self, Meter};

/// How often is looked, while there is room and while there is not.
const CALM: Duration = Duration::from_millis(500);
const SHORT: Duration = Duration::from_millis(100);

type Watched = (Weak<Meter>, Weak<Mutex<State>>);

#[derive(Debug, Clone, Default)]
pub struct Watchdog(Arc<Mutex<Vec<Watched>>>);

impl Watchdog {
    /// Watches an owner from now on. The watching itself begins with the first one and ends with the last.
    pub fn watch(&self, meter: &Arc<Meter>, state: &Arc<Mutex<State>>) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|(meter, _)| meter.strong_count() > 0);
        list.push((Arc::downgrade(meter), Arc::downgrade(state)));
        if list.len() == 1
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(self.clone().run());
        }
    }

    async fn run(self) {
        let mut was_short = false;
        loop {
            tokio::time::sleep(if was_short { SHORT } else { CALM }).await;
            let watched: Vec<_> = {
                let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                list.retain(|(meter, _)| meter.strong_count() > 0);
                if list.is_empty() {
                    return;
                }
                list.iter().filter_map(|(meter, state)| Some((meter.upgrade()?, state.clone()))).collect()
            };
            let looked = tokio::task::spawn_blocking(move || {
                look_at_layers(&watched);
                look(&watched, was_short)
            });
            was_short = looked.await.unwrap_or(false);
        }
    }
}

/// Has layers over the home emptied that have become too large: their commands are stopped, and the next ones find them empty.
fn look_at_layers(watched: &[(Arc<Meter>, Weak<Mutex<State>>)]) {
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
                state.cells.values().for_each(|cell| cell.kill_all());
            }
        }
    }
}

/// Whether there is too little space. The second time in a row somebody has to go.
fn look(watched: &[(Arc<Meter>, Weak<Mutex<State>>)], was_short: bool) -> bool {
    if !watched.iter().any(|(meter, _)| meter.is_short_of_space()) {
        return false;
    }
    let parents = meter::parents();
    let written = watched.iter().map(|(meter, state)| (meter.newly_written(&parents), meter, state));
    let Some((bytes, meter, state)) = written.max_by_key(|(bytes, ..)| *bytes) else { return true };
    if was_short
        && bytes > 0
        && let Some(state) = state.upgrade()
    {
        meter.note_shortage();
        let cells: Vec<_> = state.lock().unwrap_or_else(PoisonError::into_inner).cells.values().cloned().collect();
        for cell in cells {
            cell.kill_all();
        }
    }
    true
}
