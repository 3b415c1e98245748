//! Loaded threads without subscribers and work: so many are kept, the others are unloaded.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outpost_thread::ThreadId;
use tokio::sync::Notify;

/// So many threads that were unloaded here are known by their ids.
const KNOWN: usize = 65_536;

pub(crate) struct Resting {
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Those that have rested longest first.
    beds: BTreeMap<u64, Arc<Notify>>,
    unloaded: HashSet<ThreadId>,
    /// The same, in the order of their ends; perhaps with some that were loaded again.
    order: VecDeque<ThreadId>,
}

/// A thread that rests.
pub(crate) struct Bed {
    number: u64,
    call: Arc<Notify>,
    resting: Arc<Resting>,
}

impl Resting {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to rest. If there are too many, the one that has rested longest is called to end.
    pub(crate) fn lie_down(self: &Arc<Self>) -> Bed {
        let call = Arc::new(Notify::new());
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.beds.insert(number, call.clone());
        while state.beds.len() > self.most {
            let Some((_, oldest)) = state.beds.pop_first() else { break };
            oldest.notify_one();
        }
        Bed { number, call, resting: self.clone() }
    }

    /// It was unloaded because it was not in use: a client that names it again finds it.
    pub(crate) fn note_unloaded(&self, id: ThreadId) {
        let mut state = self.lock();
        if state.unloaded.insert(id) {
            state.order.push_back(id);
        }
        while state.order.len() > KNOWN {
            let Some(oldest) = state.order.pop_front() else { break };
            state.unloaded.remove(&oldest);
        }
    }

    pub(crate) fn was_unloaded(&self, id: ThreadId) -> bool {
        self.lock().unloaded.contains(&id)
    }

    /// It is loaded again, or was put away.
    pub(crate) fn forget(&self, id: ThreadId) {
        let mut state = self.lock();
        if state.unloaded.remove(&id) {
            state.order.retain(|known| *known != id);
        }
    }
}

impl Bed {
    /// Waits until others need the place.
    pub(crate) async fn called(&self) {
        self.call.notified().await;
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.resting.lock().beds.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_one_that_has_rested_longest_is_called() {
        let resting = Resting::new(2);
        let (first, second) = (resting.lie_down(), resting.lie_down());
        assert!(first.called().now_or_never().is_none());
        let third = resting.lie_down();
        assert!(first.called().now_or_never().is_some() && second.called().now_or_never().is_none());
        drop(second);
        drop(first);
        let fourth = resting.lie_down();
        assert!(third.called().now_or_never().is_none() && fourth.called().now_or_never().is_none());
    }

    #[test]
    fn those_that_were_unloaded_are_known_until_they_are_loaded_again() {
        let resting = Resting::new(1);
        let ids: Vec<ThreadId> = (0..KNOWN + 2).map(|number| ThreadId::new(Uuid::from_u128(number as u128))).collect();
        ids.iter().for_each(|id| resting.note_unloaded(*id));
        assert!(!resting.was_unloaded(ids[0]) && !resting.was_unloaded(ids[1]) && resting.was_unloaded(ids[2]));
        resting.forget(ids[2]);
        assert!(!resting.was_unloaded(ids[2]) && resting.was_unloaded(ids[3]));
    }
}
