//! What programs outside take away from sandboxes while something runs in them: heard from the guards of cells, told to those who
//! wants to know, and put back where the executor has to help.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::net::unix::pipe;

use super::{LaunchError, LauncherState, Shared};
use crate::cell::Cell;
use crate::channel::{self, Channel};
use crate::message::{Loss, OrderOutcome};
use crate::scratch::Scratch;

/// A file that an editor replaces may be missing for so long before a placeholder takes its place.
const REFILL: Duration = Duration::from_millis(100);

/// Whom losses are told to.
#[derive(Clone, Default)]
pub struct LossSink(Option<Arc<dyn Fn(Loss) + Send + Sync>>);

impl LossSink {
    pub fn new(tell: impl Fn(Loss) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }
}

impl fmt::Debug for LossSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LossSink({})", self.0.is_some())
    }
}

/// What is needed to keep the cells of an owner.
#[derive(Clone)]
pub(super) struct Keeping {
    pub(super) shared: Arc<Shared>,
    pub(super) state: Weak<Mutex<LauncherState>>,
}

impl Keeping {
    /// Has the guard of a cell look at everything, and makes what it needs for that. Returns why the cell cannot be used any more.
    pub(super) fn put_in_order(&self, cell: &Cell) -> Result<Option<String>, LaunchError> {
        let Ok(mut checked) = cell.check() else { return Ok(Some("its guard is gone".into())) };
        if !checked.missing.is_empty() {
            self.hold(cell, &checked.missing)?;
            match cell.check() {
                Ok(again) => checked = again,
                Err(_) => return Ok(Some("its guard is gone".into())),
            }
        }
        Ok(checked.stale)
    }

    /// Puts placeholders where something is missing that sandboxed code must not make.
    fn hold(&self, cell: &Cell, missing: &[PathBuf]) -> Result<(), LaunchError> {
        let home = self.shared.settings.home.as_ref().and_then(|home| home.canonicalize().ok());
        let scratch = self.shared.scratch()?;
        let Some(state) = self.state.upgrade() else { return Err(LaunchError::Ended) };
        for path in missing {
            let held = scratch.hold_place(path, home.as_deref())?;
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.ended {
                drop(state);
                scratch.release_places(&held);
                return Err(LaunchError::Ended);
            }
            // Those of a cell that others have taken the place of stay as long as the owner.
            let policy = state.cells.iter().find(|(_, known)| std::ptr::eq(Arc::as_ptr(known), cell)).map(|(policy, _)| policy.clone());
            state.places.entry(policy.unwrap_or_default()).or_default().extend(held);
        }
        Ok(())
    }

    /// Hears the guard of a cell from now on, where tasks can be spawned.
    pub(super) fn listen(self, reports: Channel, cell: &Arc<Cell>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let Ok(reports) = pipe::Receiver::from_owned_fd_unchecked(reports.into_descriptor()) else { return };
        let cell = Arc::downgrade(cell);
        runtime.spawn(async move {
            let refilling = Arc::new(Mutex::new(BTreeSet::new()));
            while let Some(loss) = next(&reports).await {
                let Some(state) = self.state.upgrade() else { return };
                let is_missing = loss.outcome == OrderOutcome::Missing;
                let (sink, is_borrowed) = {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    (state.losses.clone(), is_missing && state.borrowed.remove(&loss.path))
                };
                if is_missing && refilling.lock().unwrap_or_else(PoisonError::into_inner).insert(loss.path.clone()) {
                    // No editor puts back what another executor needs no more.
                    let after = if is_borrowed { Duration::ZERO } else { REFILL };
                    tokio::spawn(self.clone().refill(cell.clone(), loss.path.clone(), refilling.clone(), after));
                }
                // A placeholder of another executor went, and ours comes: nothing was lost. What holds nothing has no effect outside, and is ours
                // as a rule.
                if is_borrowed || loss.outcome == OrderOutcome::Made && Scratch::looks_like_placeholder(&loss.path) {
                    continue;
                }
                if let LossSink(Some(tell)) = sink {
                    tell(loss);
                }
            }
        });
    }

    /// What is missing is about to be made again as a rule, by the program that took it away.
    async fn refill(self, cell: Weak<Cell>, path: PathBuf, refilling: Arc<Mutex<BTreeSet<PathBuf>>>, after: Duration) {
        tokio::time::sleep(after).await;
        refilling.lock().unwrap_or_else(PoisonError::into_inner).remove(&path);
        let _ = tokio::task::spawn_blocking(move || {
            if let Some(cell) = cell.upgrade() {
                let _ = self.put_in_order(&cell);
            }
        })
        .await;
    }
}

async fn next(reports: &pipe::Receiver) -> Option<Loss> {
    loop {
        reports.readable().await.ok()?;
        match reports.try_io(|| channel::receive(reports.as_fd())) {
            Ok(Some(message)) => return Loss::decode(&message.bytes).ok(),
            Ok(None) => return None,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}
