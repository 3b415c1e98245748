//! Executors that dial in: their links are handed in, one at a time, and the newest counts.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use outpost_rpc::{Close, Link};
use tokio::sync::Notify;

/// Where the newest link waits until it is taken.
#[derive(Default)]
pub struct Slot {
    waiting: Mutex<Option<Link>>,
    came: Notify,
}

impl Slot {
    /// Waits for the next link and takes it.
    pub async fn take(&self) -> Link {
        loop {
            self.filled().await;
            if let Some(link) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return link;
            }
        }
    }

    /// Waits until there is a link that nobody has taken.
    pub async fn filled(&self) {
        loop {
            let mut came = std::pin::pin!(self.came.notified());
            came.as_mut().enable();
            if self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
                return;
            }
            came.await;
        }
    }
}

/// Where links are handed in. It does not keep the environment alive.
#[derive(Clone)]
pub struct Door(Weak<Slot>);

/// Nobody is there any more to take the link; it was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the environment that this executor joins is gone")]
pub struct Refusal;

impl Door {
    pub(super) fn new(slot: &Arc<Slot>) -> Self {
        Self(Arc::downgrade(slot))
    }

    /// Hands in a link to an executor. A link that was handed in before gives way to it.
    pub fn hand_in(&self, link: Link) -> Result<(), Refusal> {
        let Some(slot) = self.0.upgrade() else {
            link.tx.close(Close::new(Close::NORMAL, Refusal.to_string()));
            return Err(Refusal);
        };
        let older = slot.waiting.lock().unwrap_or_else(PoisonError::into_inner).replace(link);
        if let Some(older) = older {
            older.tx.close(Close::new(Close::TAKEN_OVER, "a newer connection came before this one was used"));
        }
        slot.came.notify_waiters();
        Ok(())
    }
}
