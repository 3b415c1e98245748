//! Tells those who hear of a thread when one of its environments is lost or is there again.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use outpost_environment::{EnvironmentState, Registry, RegistryEvent, RegistryTransition};
use outpost_wire::app::event::{EnvironmentConnected, EnvironmentDisconnected, Notice};
use outpost_wire::app::skills::SkillsChanged;
use outpost_wire::intent::EnvironmentId;
use tokio::sync::watch;

use crate::server::ServerShared;

/// Runs for as long as the server does.
pub(crate) async fn follow(server: Weak<ServerShared>, registry: Registry) {
    let mut watcher = registry.watch();
    let mut ready: HashSet<EnvironmentId> = HashSet::new();
    loop {
        let change = watcher.next().await;
        let Some(server) = server.upgrade() else { return };
        let RegistryEvent::Environment { id, standing, transition, .. } = change.event else { continue };
        let is_ready = standing == EnvironmentState::Ready;
        let changed = if is_ready { ready.insert(id.clone()) } else { ready.remove(&id) };
        // How things stood when the server began is no news.
        if changed && transition != RegistryTransition::Replayed {
            tell(&server, &id, is_ready).await;
        }
    }
}

/// The same for the skills of this machine, of which all clients hear.
pub(crate) async fn follow_skills(server: Weak<ServerShared>, mut changes: watch::Receiver<u64>) {
    while changes.changed().await.is_ok() {
        let Some(server) = server.upgrade() else { return };
        server.broadcast(&SkillsChanged {}.into());
    }
}

async fn tell(server: &Arc<ServerShared>, id: &EnvironmentId, is_ready: bool) {
    let connections = server.connections();
    let threads: HashSet<_> = connections.iter().flat_map(|connection| connection.threads()).collect();
    for thread in threads {
        let Some(live) = server.runtime.get(thread) else { continue };
        let Ok(state) = live.snapshot().await else { continue };
        if state.effective_selection().is_none_or(|selection| selection.get(id).is_none()) {
            continue;
        }
        let (thread_id, environment_id) = (thread.to_string(), id.to_string());
        let notice: Notice = if is_ready {
            EnvironmentConnected { thread_id, environment_id }.into()
        } else {
            EnvironmentDisconnected { thread_id, environment_id }.into()
        };
        connections.iter().filter(|connection| connection.is_subscribed(thread)).for_each(|connection| connection.tell(&notice));
    }
}
