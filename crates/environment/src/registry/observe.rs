//! What supervisors tell the registry about their handles.

use std::sync::Arc;

use outpost_wire::EnvironmentId;

use super::entry::{Entry, EnvironmentState};
use super::feed::{RegistryEvent, RegistryTransition};
use super::{After, Inside, Registry, Shared};
use crate::environment::Observer;
use crate::state::{Connected, ConnectionState, ExecutorIdentity, FailureKind};

/// Hears one handle. It does not keep the registry alive.
pub(super) fn observer(registry: &Arc<Shared>, id: EnvironmentId, generation: u64) -> Observer {
    let registry = Arc::downgrade(registry);
    Arc::new(move |state| {
        if let Some(registry) = registry.upgrade() {
            Registry(registry).observe(&id, generation, state);
        }
    })
}

impl Registry {
    /// Writes down how a handle stands, and passes it on.
    fn observe(&self, id: &EnvironmentId, generation: u64, state: &ConnectionState) {
        let mut inside = self.lock();
        // What becomes of a handle that was replaced is between it and those who hold it.
        let Some(entry) = inside.entries.get_mut(id).filter(|entry| entry.generation == generation) else { return };
        entry.standing = EnvironmentState::from(state);
        let standing = entry.standing.clone();
        inside.tell(id, generation, standing, RegistryTransition::Changed);
        let mut after = After::default();
        match state {
            ConnectionState::Ready(connected) => inside.recognise(id, connected),
            ConnectionState::Failed(failure) => {
                if !failure.lost.is_empty() {
                    let (processes, reason) = (failure.lost.to_vec(), failure.reason.to_string());
                    inside.feed.tell(RegistryEvent::Lost { id: id.clone(), generation, processes, reason });
                }
                if failure.kind == FailureKind::OtherExecutor {
                    self.renew(&mut inside, id, &mut after);
                }
            }
            ConnectionState::Idle | ConnectionState::Connecting | ConnectionState::Recovering { .. } => {}
        }
        drop(inside);
        after.finish();
    }

    /// A handle that is bound to an executor which is no longer there makes way for one that is not.
    fn renew(&self, inside: &mut Inside, id: &EnvironmentId, after: &mut After) {
        let Some((kind, origin, recipe)) =
            inside.entries.get(id).and_then(|entry| Some((entry.kind.clone(), entry.origin, entry.live.as_ref()?.recipe.clone())))
        else {
            return;
        };
        let entry = self.entry(inside, id.clone(), kind, recipe);
        inside.insert(Entry { origin, ..entry }, after);
    }
}

impl Inside {
    /// The first time that a handle is ready: is it the executor that was there before?
    fn recognise(&mut self, id: &EnvironmentId, connected: &Connected) {
        let Some(entry) = self.entries.get_mut(id).filter(|entry| !entry.is_recognised) else { return };
        entry.is_recognised = true;
        let generation = entry.generation;
        let now = ExecutorIdentity::of(&connected.info);
        let was = self.known.insert(id.clone(), now.clone());
        if let Some(was) = was.filter(|was| !was.is_same_executor(&now)) {
            self.feed.tell(RegistryEvent::OtherExecutor { id: id.clone(), generation, was, now });
        }
    }
}
