//! Letting go of cells in which nothing runs: each is a handful of processes and open files, and most workspaces are not used again soon.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::home::HeldLayers;
use super::{CleanUp, LauncherState, ProcessScope, Shared};
use crate::policy::Policy;

/// How many cells an owner keeps in which nothing runs, and for how long. The next start in one that was let go makes it anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdleCells {
    pub most: usize,
    pub patience: Duration,
}

impl Default for IdleCells {
    fn default() -> Self {
        Self { most: 16, patience: Duration::from_secs(300) }
    }
}

impl ProcessScope {
    /// Sees to it that cells are let go, now and later.
    pub(super) fn tend(&self, state: &mut LauncherState) {
        self.shared.shed(state);
        if !state.is_tended
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            state.is_tended = true;
            runtime.spawn(tend(Arc::downgrade(&self.shared), Arc::downgrade(&self.state), self.shared.settings.idle.patience));
        }
    }
}

/// As long as there are cells.
async fn tend(shared: Weak<Shared>, state: Weak<Mutex<LauncherState>>, patience: Duration) {
    loop {
        tokio::time::sleep(patience / 2).await;
        let (Some(shared), Some(state)) = (shared.upgrade(), state.upgrade()) else { return };
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.ended {
            return;
        }
        shared.shed(&mut state);
        if state.cells.is_empty() && shared.zygote.rest() {
            state.is_tended = false;
            return;
        }
    }
}

impl Shared {
    /// Those that were used longest ago, if there are many, and those that were not used for long.
    fn shed(self: &Arc<Self>, state: &mut LauncherState) {
        let IdleCells { most, patience } = self.settings.idle;
        let mut idle: Vec<(Instant, Policy)> =
            state.cells.iter().filter_map(|(policy, cell)| Some((cell.idle_since()?, policy.clone()))).collect();
        idle.sort_by_key(|(since, _)| *since);
        let too_many = idle.len().saturating_sub(most);
        for (number, (since, policy)) in idle.into_iter().enumerate() {
            if number < too_many || since.elapsed() >= patience {
                self.let_go(state, &policy);
            }
        }
    }

    fn let_go(self: &Arc<Self>, state: &mut LauncherState, policy: &Policy) {
        if !state.cells.get(policy).is_some_and(|cell| cell.end_if_idle()) {
            return;
        }
        let Some(cell) = state.cells.remove(policy) else { return };
        // Something may still run in one that this one took the place of, and needs the same placeholders.
        let is_needed = state.retired.iter().any(|retired| retired.strong_count() > 0);
        let places = if is_needed { Vec::new() } else { state.places.remove(policy).unwrap_or_default() };
        CleanUp { shared: self.clone(), cells: vec![cell], group: None, places, layers: HeldLayers::new(), temporary: None }.begin();
    }
}
