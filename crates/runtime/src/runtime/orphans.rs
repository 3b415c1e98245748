//! Threads whose node died: a node that lives takes them up without being asked.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use outpost_store::{ClaimMode, MOST_CLAIMS, OrphanFate, OrphanedThread, PassedOrphans, PostgresStore, Store};
use outpost_thread::ThreadId;
use tokio::time::sleep;

use crate::live::ThreadActivity;

use super::{Runtime, RuntimeFuture, RuntimeShared, run_uncancelled};

/// How often orphans are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// So many are taken up at a look, so that a thousand at once are spread over the nodes that are there.
const AT_A_LOOK: usize = 16;
/// So many of these at the same time.
const AT_ONCE: usize = 4;

impl Runtime {
    /// Takes up threads with work to do whose node died, for as long as this is polled. Only a store that nodes share has such threads.
    pub fn take_up_orphans(&self) -> RuntimeFuture<'_, ()> {
        Box::pin(async move {
            let Store::Postgres(store) = &self.0.store else { return std::future::pending().await };
            let looking = async {
                let (mut passed, mut told) = (PassedOrphans::default(), HashSet::new());
                loop {
                    sleep(LOOK).await;
                    self.0.look_for_orphans(&mut passed, &mut told).await;
                }
            };
            tokio::join!(looking, self.let_go(store));
        })
    }
}

impl Runtime {
    /// Unloads idle threads that other nodes have taken, so that their clients are told. One that works notices at its next write.
    async fn let_go(&self, store: &PostgresStore) {
        loop {
            for thread in store.taken_threads().await {
                if let Some(live) = self.get(thread).filter(|live| !matches!(live.status(), ThreadActivity::Active { .. })) {
                    tracing::info!(%thread, "another node has taken this thread");
                    live.hand_over().await;
                }
            }
        }
    }
}

impl RuntimeShared {
    async fn look_for_orphans(self: &Arc<Self>, passed: &mut PassedOrphans, told: &mut HashSet<ThreadId>) {
        let found = match self.store.orphans(AT_A_LOOK, passed).await {
            Ok(found) => found,
            Err(error) => return tracing::warn!(%error, "threads of nodes that died are not looked for"),
        };
        let ours = found.into_iter().filter(|(orphan, fate)| {
            tell(orphan, *fate, told);
            *fate == OrphanFate::TakeUp
        });
        stream::iter(ours).for_each_concurrent(AT_ONCE, |(orphan, _)| self.take_up(orphan)).await;
    }

    async fn take_up(self: &Arc<Self>, orphan: OrphanedThread) {
        let taken = match run_uncancelled(self.clone().load_as(orphan.thread, ClaimMode::Orphaned)).await {
            Ok(taken) => taken,
            // Another node was faster.
            Err(error) => return tracing::debug!(thread = %orphan.thread, %error, "a thread of a node that died was not taken up"),
        };
        tracing::info!(thread = %orphan.thread, host = orphan.host, "a thread of a node that died goes on here");
        // An agent is found by those that made it if they are at the same node.
        let mut maker = taken.maker();
        while let Some(id) = maker {
            maker = match self.clone().load(id).await {
                Ok(live) => live.maker(),
                Err(error) => return tracing::debug!(thread = %id, %error, "the thread that made an agent is not taken up with it"),
            };
        }
    }
}

/// Says once what becomes of a thread that is not taken up.
fn tell(orphan: &OrphanedThread, fate: OrphanFate, told: &mut HashSet<ThreadId>) {
    if fate == OrphanFate::TakeUp || !told.insert(orphan.thread) {
        return;
    }
    let (thread, host) = (orphan.thread, &orphan.host);
    match fate {
        OrphanFate::Parked => tracing::error!(
            %thread,
            "parked: {MOST_CLAIMS} nodes in a row ended while they had this thread; `outpost exec resume {thread}` tries it once more"
        ),
        _ => tracing::warn!(%thread, host, "a thread of a node that died works on that node's machine, and waits for a node there"),
    }
}
