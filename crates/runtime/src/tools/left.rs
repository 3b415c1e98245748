//! Commands that a previous run of a thread left running, and whose end it was not told: found where they run, by the names that the thread gave them.

use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{Registry, Repeat};
use outpost_store::Store;
use outpost_thread::{CallId, Thread};
use outpost_wire::exec::environment::Unit;
use outpost_wire::exec::process::List;
use outpost_wire::intent::EnvironmentId;

use super::earlier::{EarlierCommand, EarlierSearch, asked_at};
use super::former::is_executor;
use super::processes::BackgroundProcesses;

pub(crate) struct LeftCommands {
    pub registry: Registry,
    pub store: Store,
    pub processes: Arc<BackgroundProcesses>,
    pub thread: Thread,
}

impl LeftCommands {
    pub(crate) async fn find(&self) -> Vec<CallId> {
        let selection = self.thread.effective_selection().cloned().unwrap_or_default();
        let attached = Vec::from(selection).into_iter().map(|attachment| attachment.environment_id);
        futures_util::future::join_all(attached.map(|id| self.find_in(id))).await.concat()
    }

    async fn find_in(&self, id: EnvironmentId) -> Vec<CallId> {
        let mut calls = Vec::new();
        let Some(environment) = self.registry.get(&id) else { return calls };
        let listed = match environment.call::<List>(&Unit, Repeat::Harmless).await {
            Ok(listed) => listed.processes,
            Err(error) => {
                tracing::warn!(environment = %id, %error, "commands that were left there are not looked for");
                return calls;
            }
        };
        for process in listed.into_iter().filter(|process| self.processes.is_own(&process.process_id)) {
            let Some(session) = process.process_id.split('/').nth(1).and_then(|number| number.parse().ok()) else { continue };
            if self.processes.get(session).is_some() {
                continue;
            }
            let Some(earlier) = self.earlier(session).await.filter(|earlier| is_executor(&environment, earlier.executor.as_deref())) else {
                continue;
            };
            // One that a call of the running turn has found already is followed there.
            let Ok(found) = environment.adopt(&process.process_id, self.processes.claim(&process.process_id)).await else { continue };
            calls.push(earlier.call.clone());
            let running = self.processes.follow_after(earlier.call, found, earlier.detail, earlier.shown);
            if let Some(evicted) = self.processes.keep(session, running) {
                let _ = tokio::time::timeout(Duration::from_secs(2), evicted.process.terminate()).await;
            }
        }
        calls
    }

    pub(crate) async fn earlier(&self, session: u64) -> Option<EarlierCommand> {
        let mut search = EarlierSearch::new(session);
        let mut history = self.store.history(self.thread.id, asked_at(session).0.checked_sub(1)?).await.ok()?;
        while let Some(batch) = history.next().await.ok()? {
            batch.entries.iter().for_each(|entry| search.see(entry));
        }
        search.found()
    }
}
