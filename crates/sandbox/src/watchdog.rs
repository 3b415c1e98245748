//! Keeps some space free for everybody: whoever writes most while there is too little is stopped.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

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
            was_short = tokio::task::spawn_blocking(move || look(&watched, was_short)).await.unwrap_or(false);
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
