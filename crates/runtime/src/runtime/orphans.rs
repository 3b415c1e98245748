//! Threads whose node died: a node that lives takes them up without being asked.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use outpost_store::{ClaimMode, MOST_CLAIMS, OrphanFate, OrphanedThread, PostgresStore, Store};
use outpost_thread::ThreadId;
use tokio::time::sleep;

use crate::live::ThreadActivity;

use super::{Runtime, RuntimeFuture, RuntimeShared, lock, run_uncancelled};

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
                let told = Mutex::default();
                loop {
                    sleep(LOOK).await;
                    self.0.look_for_orphans(&told).await;
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
    async fn look_for_orphans(self: &Arc<Self>, told: &Mutex<HashSet<ThreadId>>) {
        let found = match self.store.orphans(AT_A_LOOK).await {
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
        match run_uncancelled(self.clone().load_as(orphan.thread, ClaimMode::Orphaned)).await {
            Ok(_) => tracing::info!(thread = %orphan.thread, host = orphan.host, "a thread of a node that died goes on here"),
            // Another node was faster.
            Err(error) => tracing::debug!(thread = %orphan.thread, %error, "a thread of a node that died was not taken up"),
        }
    }
}

/// Says once what becomes of a thread that is not taken up.
fn tell(orphan: &OrphanedThread, fate: OrphanFate, told: &Mutex<HashSet<ThreadId>>) {
    if fate == OrphanFate::TakeUp || !lock(told).insert(orphan.thread) {
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
