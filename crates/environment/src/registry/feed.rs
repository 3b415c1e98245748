//! News about environments: one numbered log, any number of readers. A reader that is new, or too far behind, is told the
//! state of everything as it is now and goes on from there.

use std::collections::VecDeque;

use outpost_wire::EnvironmentId;
use tokio::sync::watch;

use super::{EnvironmentState, Registry};
use crate::state::ExecutorIdentity;

/// So many changes are kept for readers that are behind.
const KEPT: usize = 1024;

/// Something about one environment, or about the configuration.
#[derive(Debug, Clone)]
pub struct RegistryChange {
    /// Grows by one with every change. What is replayed has the number of the last change before it.
    pub sequence: u64,
    pub event: RegistryEvent,
}

#[derive(Debug, Clone)]
pub enum RegistryEvent {
    /// How an environment stands; told on every change, and replayed to a new reader.
    Environment { id: EnvironmentId, generation: u64, standing: EnvironmentState, transition: RegistryTransition },
    /// Another executor answers behind an id than before, or one that cannot show to be the same. Whatever was
    /// remembered, approved or granted for the id belongs to the old one.
    OtherExecutor { id: EnvironmentId, generation: u64, was: ExecutorIdentity, now: ExecutorIdentity },
    /// Processes of an environment that were given up, by name.
    Lost { id: EnvironmentId, generation: u64, processes: Vec<String>, reason: String },
    /// A changed configuration was taken over.
    Configured,
    /// A changed configuration is wrong; the one before it stays in force.
    Misconfigured { reason: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryTransition {
    /// Not new; this is how it stands.
    Replayed,
    Added,
    /// The same environment under a new handle.
    Replaced,
    Changed,
    Removed,
}

/// The log itself; guarded by the registry's lock.
pub(super) struct Feed {
    last: u64,
    kept: VecDeque<RegistryChange>,
    told: watch::Sender<u64>,
}

impl Default for Feed {
    fn default() -> Self {
        Self { last: 0, kept: VecDeque::new(), told: watch::Sender::new(0) }
    }
}

impl Feed {
    pub(super) fn tell(&mut self, event: RegistryEvent) {
        self.last += 1;
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(RegistryChange { sequence: self.last, event });
        self.told.send_replace(self.last);
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.told.subscribe()
    }

    /// What came after that number; nothing if some of it is no longer kept.
    pub(super) fn after(&self, sequence: u64) -> Option<impl Iterator<Item = &RegistryChange>> {
        let first = self.last - self.kept.len() as u64;
        let skip = usize::try_from(sequence.checked_sub(first)?).ok()?;
        Some(self.kept.iter().skip(skip))
    }
}

/// Reads the changes.
pub struct Watcher {
    pub(super) registry: Registry,
    pub(super) told: watch::Receiver<u64>,
    pub(super) ready: VecDeque<RegistryChange>,
    pub(super) read: u64,
}

impl Watcher {
    /// The next change; at first, how every environment stood when the watching began.
    pub async fn next(&mut self) -> RegistryChange {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return change;
            }
            // Marked before looking, so that nothing between the two is missed.
            self.told.mark_unchanged();
            (self.read, self.ready) = self.registry.changes_after(Some(self.read));
            if self.ready.is_empty() && self.told.changed().await.is_err() {
                // The watcher itself keeps the registry, and that keeps the sender.
                std::future::pending::<()>().await;
            }
        }
    }
}
