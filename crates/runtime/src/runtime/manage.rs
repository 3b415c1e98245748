//! Starting, resuming, forking and ending threads.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outpost_store::{AppendError, ClaimError, ClaimMode, ForkRequest, ForkStoreError, Lease, PageRequest, ReadError, Store};
use outpost_thread::{
    Cut, Entry, Fact, ForkError, ForkPoint, InputId, InputOrigin, InputReceived, InterruptReason, Marker, Ordinal, Outline, Parent, Raw,
    TurnId,
};
use outpost_thread::{Settings, Thread, ThreadCreated, ThreadForked, ThreadId};
use outpost_wire::SharedError;
use outpost_wire::intent::{CapabilityRoot, EnvironmentId, RootsError};
use thiserror::Error;
use tokio::sync::oneshot;

use super::open::{Life, ThreadClaim};
use super::{Runtime, RuntimeFuture, RuntimeShared, run_uncancelled};
use crate::agents::AgentSlot;
use crate::capabilities::StepCapabilities;
use crate::live::{DriverCommand, LiveThread};
use crate::mcp::layers::{SESSION_LAYER, ServerLayer, merged, problems};
use crate::model::ProviderError;

/// So long calls that no other node could find again may take to end before the threads of a node are handed over.
const LAST_CALLS: Duration = Duration::from_secs(8);

#[derive(Debug, Error)]
pub enum ThreadError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(transparent)]
    Fork(#[from] ForkError),
    #[error(transparent)]
    Store(#[from] ForkStoreError),
    #[error(transparent)]
    Roots(#[from] RootsError),
    #[error("capability root `{root}` is in environment `{environment}`, which does not exist; add the environment first, or name another")]
    UnknownEnvironment { root: String, environment: EnvironmentId },
    #[error("{0}")]
    Invalid(#[source] SharedError),
}

/// A new thread. Everything is checked before anything is made.
#[derive(Debug, Clone)]
pub struct StartThread {
    /// `thread` is replaced by a new id unless one was reserved.
    pub created: ThreadCreated,
    pub reserved: Option<ThreadId>,
    /// Model items with which it begins.
    pub history: Vec<Raw>,
    /// Kept only as long as this program runs.
    pub ephemeral: bool,
}

impl StartThread {
    pub fn new() -> Self {
        let created = ThreadCreated::new(ThreadId::new(uuid::Uuid::nil()));
        Self { created, reserved: None, history: vec![], ephemeral: false }
    }
}

impl Default for StartThread {
    fn default() -> Self {
        Self::new()
    }
}

/// A thread that continues another.
#[derive(Debug, Clone)]
pub struct ForkThread {
    pub parent: ThreadId,
    pub point: ForkPoint,
    /// `thread`, `parent` and `base` are filled in.
    pub forked: ThreadForked,
    /// Gone with this program. One that is kept cannot continue one that is not.
    pub ephemeral: bool,
}

impl ForkThread {
    pub fn new(parent: ThreadId, point: ForkPoint) -> Self {
        let nil = ThreadId::new(uuid::Uuid::nil());
        Self { parent, point, forked: ThreadForked::new(nil, parent), ephemeral: false }
    }
}

/// What became of each thread when the program ended. Those that are not complete are still there.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ShutdownReport {
    pub completed: Vec<ThreadId>,
    pub submit_failed: Vec<ThreadId>,
    pub timed_out: Vec<ThreadId>,
    /// Another program, or the next start of this one, goes on with a thread and asks for its commands.
    pub is_work_left: bool,
}

impl Runtime {
    pub fn start(&self, start: StartThread) -> RuntimeFuture<'_, Result<LiveThread, ThreadError>> {
        Box::pin(async move {
            self.0.check_roots(&start.created.capability_roots, &[])?;
            let shared = self.0.clone();
            run_uncancelled(async move { shared.start(start, None).await }).await
        })
    }

    /// A thread that is stored; if it runs already, that one.
    pub fn resume(&self, id: ThreadId) -> RuntimeFuture<'_, Result<LiveThread, ThreadError>> {
        Box::pin(async move { self.0.clone().load(id).await })
    }

    /// The same by the file that it is kept in.
    pub fn resume_journal<'a>(&'a self, path: &'a Path) -> RuntimeFuture<'a, Result<LiveThread, ThreadError>> {
        Box::pin(async move { self.0.clone().load_journal(path).await })
    }

    /// Which thread a file of this home keeps; nothing is loaded.
    pub fn thread_of_journal(&self, path: &Path) -> Result<ThreadId, ThreadError> {
        self.0.thread_of_journal(path)
    }

    /// The same as [`Runtime::resume`], also if another program holds it.
    pub fn take_over(&self, id: ThreadId) -> RuntimeFuture<'_, Result<LiveThread, ThreadError>> {
        Box::pin(async move { run_uncancelled(self.0.clone().load_as(id, ClaimMode::TakeOver)).await })
    }

    pub fn fork(&self, fork: ForkThread) -> RuntimeFuture<'_, Result<LiveThread, ThreadError>> {
        Box::pin(async move {
            if let Some(roots) = &fork.forked.capability_roots {
                self.0.check_roots(roots, &[])?;
            }
            let shared = self.0.clone();
            run_uncancelled(async move { shared.fork(fork, None).await }).await
        })
    }

    /// How often an executor has told what a folder holds, rather than that it is still the same.
    pub fn capability_bundles(&self) -> u64 {
        self.0.skills.discoveries.told()
    }

    /// Why each capability root of a thread is in its next step, or why not, and what it offers. Environments that are only
    /// starting are waited for as a step would.
    pub fn why(&self, id: ThreadId) -> RuntimeFuture<'_, Result<StepCapabilities, ThreadError>> {
        Box::pin(async move {
            let thread = match self.get(id) {
                Some(live) => live.snapshot().await.map_err(|error| ThreadError::Invalid(SharedError::new(error)))?,
                None => outpost_store::open(&self.0.store, id).await?.thread,
            };
            Ok(self.0.why(&thread).await)
        })
    }

    /// Unloads a thread; its running turn is interrupted with this reason. It can be resumed.
    pub fn unload(&self, id: ThreadId, reason: InterruptReason) -> RuntimeFuture<'_, ()> {
        Box::pin(async move {
            self.0.unload(id, reason).await;
        })
    }

    /// Unloads all threads at once, each with so much time, and then ends their servers.
    pub fn shutdown(&self, within: Duration) -> RuntimeFuture<'_, ShutdownReport> {
        Box::pin(async move {
            let report = self.end_threads(within).await;
            self.end_servers(within).await;
            report
        })
    }

    /// The second part of [`Self::shutdown`].
    pub fn end_servers(&self, within: Duration) -> RuntimeFuture<'_, ()> {
        Box::pin(async move { self.0.mcp.pool.shut_down(within).await })
    }

    /// The first part of [`Self::shutdown`].
    pub fn end_threads(&self, within: Duration) -> RuntimeFuture<'_, ShutdownReport> {
        Box::pin(async move {
            let has_heirs = self.0.store.has_heirs().await;
            if has_heirs {
                self.last_calls().await;
            }
            let mut tasks = tokio::task::JoinSet::new();
            for live in self.0.all_live() {
                tasks.spawn(async move {
                    // What is kept in memory ends with this program.
                    let command = match &live.store {
                        Store::Postgres(_) if has_heirs => DriverCommand::HandOver,
                        _ => DriverCommand::Leave(InterruptReason::Shutdown),
                    };
                    match tokio::time::timeout(within, live.mailbox.send(command)).await {
                        // Its driver has ended already.
                        Ok(Err(_)) => return (live.id, Outcome::Completed),
                        Err(_) => return (live.id, Outcome::SubmitFailed),
                        Ok(Ok(())) => {}
                    }
                    match tokio::time::timeout(within, live.ended()).await {
                        Ok(()) => (live.id, Outcome::Completed),
                        Err(_) => (live.id, Outcome::TimedOut),
                    }
                });
            }
            let mut report = ShutdownReport::default();
            while let Some(done) = tasks.join_next().await {
                match done {
                    Ok((id, Outcome::Completed)) => report.completed.push(id),
                    Ok((id, Outcome::SubmitFailed)) => report.submit_failed.push(id),
                    Ok((id, Outcome::TimedOut)) => report.timed_out.push(id),
                    Err(_) => {}
                }
            }
            let is_complete = report.submit_failed.is_empty() && report.timed_out.is_empty();
            report.is_work_left = !is_complete || self.0.loaded.is_work_left.load(Ordering::Acquire);
            for ids in [&mut report.completed, &mut report.submit_failed, &mut report.timed_out] {
                ids.sort_by_key(ToString::to_string);
            }
            report
        })
    }

    /// Waits for calls that another node could neither find again nor repeat. All threads stay until then, so that none is loaded here
    /// again, or taken for done by the one that made it.
    async fn last_calls(&self) {
        let mut waits = tokio::task::JoinSet::new();
        for live in self.0.all_live() {
            let (reply, answer) = oneshot::channel();
            waits.spawn(async move {
                if live.mailbox.send(DriverCommand::LastCalls(reply)).await.is_ok() {
                    let _ = answer.await;
                }
            });
        }
        let _ = tokio::time::timeout(LAST_CALLS, waits.join_all()).await;
    }

    /// A thread and all agents below it: as stored and as loaded, each once, parents before children.
    pub fn subtree(&self, root: ThreadId) -> RuntimeFuture<'_, Result<Vec<ThreadId>, ThreadError>> {
        Box::pin(async move { self.0.subtree(root).await })
    }

    /// Unloads a thread and all agents below it; returns whom that concerned. All of them can be resumed.
    pub fn unload_tree(&self, root: ThreadId, reason: InterruptReason) -> RuntimeFuture<'_, Result<Vec<ThreadId>, ThreadError>> {
        Box::pin(async move { self.0.unload_tree(root, reason).await })
    }
}

enum Outcome {
    Completed,
    SubmitFailed,
    TimedOut,
}

impl RuntimeShared {
    /// The check of roots that a client names: those that are known already may be in environments that are gone.
    pub(crate) fn check_roots(&self, roots: &[CapabilityRoot], known: &[CapabilityRoot]) -> Result<(), ThreadError> {
        CapabilityRoot::check_all(roots)?;
        let unknown = |root: &&CapabilityRoot| !known.contains(root) && self.registry.status(root.environment_id()).is_none();
        match roots.iter().find(unknown) {
            Some(root) => Err(ThreadError::UnknownEnvironment { root: root.id.clone(), environment: root.environment_id().clone() }),
            None => Ok(()),
        }
    }

    pub(super) async fn start(self: &Arc<Self>, start: StartThread, seat: Option<AgentSlot>) -> Result<LiveThread, ThreadError> {
        let StartThread { mut created, reserved, history, ephemeral } = start;
        CapabilityRoot::check_all(&created.capability_roots)?;
        if let Some(provider) = &created.settings.model_provider
            && !self.models.providers().contains_key(provider)
        {
            let known = self.models.providers().keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(ThreadError::Invalid(SharedError::new(ProviderError::Unknown { provider: provider.clone(), known })));
        }
        self.take_servers(&mut created.settings)?;
        let id = reserved.unwrap_or_else(|| (self.thread_ids)());
        created.thread = id;
        let store = if ephemeral { self.ephemeral.clone() } else { self.store.clone() };
        let slot = self.slot(id);
        let _loading = slot.loading.lock().await;
        let lease = match store.create(id).await {
            Ok(lease) => lease,
            Err(error) => {
                self.forget(id);
                return Err(error.into());
            }
        };
        let mut facts: Vec<Fact> = vec![created.into()];
        if !history.is_empty() {
            let input = InputId((self.ids)());
            let origin = InputOrigin::History;
            facts.push(InputReceived { input, turn: None, origin, client_key: None, by: None, content: vec![], items: history }.into());
        }
        let claim = ThreadClaim { store, lease, id };
        let (ThreadClaim { store, lease, .. }, thread) = self.append(claim, None, facts).await?;
        Ok(self.bring_up(store, lease, thread, seat))
    }

    /// Starts the driver of a thread that is new, and tells of it.
    fn bring_up(self: &Arc<Self>, store: Store, lease: Lease, thread: Thread, seat: Option<AgentSlot>) -> LiveThread {
        let id = thread.id;
        let seat = seat.unwrap_or_else(|| self.seat(&thread));
        let live = self.run(Life::New, store, lease, thread, seat);
        if !live.internal {
            self.loaded.created.publish(id, 32);
        }
        live
    }

    /// Settings that a client gives a thread are checked before they are written down, and secrets are taken out of its servers.
    pub(crate) fn take_servers(&self, settings: &mut Settings) -> Result<(), ThreadError> {
        crate::settings::check(settings).map_err(|error| ThreadError::Invalid(SharedError::new(error)))?;
        // Settings that leave it out change nothing about it.
        if let Some(why) = settings.approval_policy.as_ref().and_then(|_| self.config.policy_refusal(settings)) {
            return Err(ThreadError::Invalid(why.into()));
        }
        if !settings.other.contains_key(SESSION_LAYER) {
            return Ok(());
        }
        let (layer, missing) = self.mcp.withheld.restored(settings).map_err(ThreadError::Invalid)?;
        layer.tell_unknown_keys();
        // Whether what it changes fits what lies in files is seen when both are put together.
        let whole = |value: &serde_json::Value| value.get("command").is_some() || value.get("url").is_some() || !value.is_object();
        let own = ServerLayer(layer.0.into_iter().filter(|(name, value)| whole(value) && !missing.contains_key(name)).collect());
        let problems = problems(&merged(&ServerLayer::default(), &own, self.mcp.pool.limits()));
        if !problems.is_empty() {
            return Err(ThreadError::Invalid(problems.join("; ").into()));
        }
        self.mcp.withheld.withhold(settings);
        Ok(())
    }

    pub(super) async fn fork(self: &Arc<Self>, fork: ForkThread, seat: Option<AgentSlot>) -> Result<LiveThread, ThreadError> {
        let ForkThread { parent, point, mut forked, ephemeral } = fork;
        if let Some(roots) = &forked.capability_roots {
            CapabilityRoot::check_all(roots)?;
        }
        self.take_servers(&mut forked.settings)?;
        forked.thread = (self.thread_ids)();
        forked.parent = parent;
        let source = self.store_of(parent).await;
        let is_kept = self.ephemeral.head(parent).await.is_err();
        let store = if ephemeral { self.ephemeral.clone() } else { self.store.clone() };
        // The whole of it needs no look back: what the fork begins with is how its parent stands.
        let state = match (&point, self.live(parent)) {
            (ForkPoint::Interrupted(_), Some(live)) => {
                Some(live.snapshot().await.map_err(|error| ThreadError::Invalid(SharedError::new(error)))?)
            }
            (ForkPoint::Interrupted(_), None) => Some(outpost_store::open(&source, parent).await?.thread),
            _ => None,
        };
        let cut = match (&point, &state) {
            (ForkPoint::Interrupted(marker), Some(thread)) => thread.cut_here(*marker),
            (ForkPoint::AfterTurn(turn) | ForkPoint::BeforeTurn(turn), _) => cut_at(&source, parent, &point, turn).await?,
            _ => outline(&source, parent).await?.cut(&point)?,
        };
        if let Some(state) = state.as_ref().filter(|_| forked.selection.is_none()) {
            forked.selection = self.missing_selection(state);
        }
        let id = forked.thread;
        let request = ForkRequest { forked, cut, at: (self.clock)() };
        let lease = match &store {
            // It cannot share what lies in another store.
            Store::Memory(memory) if ephemeral && is_kept => {
                let shared = prefix(&source, parent, request.cut.ordinal).await?;
                memory.fork_of(shared, request).await?
            }
            store => store.fork(request).await?,
        };
        let opened = match state {
            Some(state) => outpost_store::open_fork(&store, id, state).await,
            None => outpost_store::open(&store, id).await,
        };
        let thread = match opened {
            Ok(opened) => opened.thread,
            Err(error) => {
                store.release(lease).await;
                return Err(error.into());
            }
        };
        Ok(self.bring_up(store, lease, thread, seat))
    }

    /// Another agent for a thread. It works where its maker works now, with the same rules.
    pub(crate) async fn spawn_agent(self: Arc<Self>, maker: &Thread, fork_context: bool) -> Result<LiveThread, SharedError> {
        let depth = maker.metadata.parent.as_ref().map_or(0, |parent| parent.depth) + 1;
        if depth > self.config.agents.depth {
            return Err(format!("agents may be nested {} deep, not deeper", self.config.agents.depth).into());
        }
        let seat = self.tree(maker).seat();
        let seat = seat.ok_or_else(|| self.too_many_agents())?;
        let session = maker.metadata.session.clone().unwrap_or_else(|| maker.id.to_string());
        let parent = Parent { thread: maker.id, depth, path: None, nickname: None, role: None };
        let source = Some(Raw::from(serde_json::json!({"subAgent": {"thread_spawn": {"parent_thread_id": maker.id, "depth": depth}}})));
        // Agents are kept as long as their parent.
        let ephemeral = self.ephemeral.head(maker.id).await.is_ok();
        let started = if fork_context {
            let mut fork = ForkThread::new(maker.id, ForkPoint::LastStep(Marker::Off));
            fork.forked.session = Some(session);
            fork.forked.spawned_by = Some(parent);
            fork.forked.source = source;
            fork.forked.thread_source = Some("subagent".into());
            fork.forked.selection = maker.effective_selection().cloned();
            fork.ephemeral = ephemeral;
            self.fork(fork, Some(seat)).await
        } else {
            let mut start = StartThread::new();
            start.ephemeral = ephemeral;
            start.created = ThreadCreated {
                session: Some(session),
                source,
                thread_source: Some("subagent".into()),
                parent: Some(parent),
                instructions: maker.instructions.clone(),
                settings: maker.settings.clone(),
                selection: maker.effective_selection().cloned(),
                capability_roots: maker.capability_roots.clone(),
                ..ThreadCreated::new(maker.id)
            };
            self.start(start, Some(seat)).await
        };
        started.map_err(SharedError::new)
    }

    pub(crate) fn too_many_agents(&self) -> String {
        format!("{} agents are at work already, and there may be no more; wait for one of them, or close one", self.config.agents.most)
    }

    /// A thread and all agents below it: as stored and as loaded, each once, parents before children.
    pub(crate) async fn subtree(&self, root: ThreadId) -> Result<Vec<ThreadId>, ThreadError> {
        let mut found = vec![root];
        let mut next = 0;
        while let Some(id) = found.get(next).copied() {
            next += 1;
            let thread = match self.state_of(id).await {
                Err(error) if id == root => return Err(error),
                state => state.ok(),
            };
            let children = thread.map(|thread| thread.agents.into_keys().collect::<Vec<_>>()).unwrap_or_default();
            found.extend(children.into_iter().filter(|child| !found.contains(child)).collect::<Vec<_>>());
        }
        Ok(found)
    }

    /// Unloads a thread and all agents below it, makers first, so that no more are made meanwhile.
    pub(crate) async fn unload_tree(&self, root: ThreadId, reason: InterruptReason) -> Result<Vec<ThreadId>, ThreadError> {
        let mut ended = Vec::new();
        self.unload(root, reason).await;
        for id in self.subtree(root).await? {
            if self.live(id).is_some() {
                self.unload(id, reason).await;
            }
            ended.push(id);
        }
        Ok(ended)
    }

    pub(crate) async fn unload(&self, id: ThreadId, reason: InterruptReason) {
        self.loaded.resting.forget(id);
        let Some(live) = self.in_slot(id) else { return };
        // If it is not taken any more, the thread is ending already.
        let _ = live.mailbox.send(DriverCommand::Shutdown(reason)).await;
        live.ended().await;
    }
}

pub(super) fn fold(entries: &[Entry]) -> Result<Thread, ThreadError> {
    let invalid = |error: outpost_thread::FoldError| ThreadError::Invalid(SharedError::new(error));
    let (first, rest) = entries.split_first().ok_or_else(|| ThreadError::Invalid("nothing was stored".into()))?;
    let mut thread = Thread::begin(first).map_err(invalid)?;
    for entry in rest {
        thread.apply(entry).map_err(invalid)?;
    }
    Ok(thread)
}

/// The entries of a thread up to an ordinal. Those of a damaged one cannot be counted on.
async fn prefix(store: &Store, id: ThreadId, ordinal: Ordinal) -> Result<Vec<Entry>, ThreadError> {
    let mut history = store.history(id, 0).await?;
    let mut entries = Vec::new();
    while let Some(batch) = history.next().await? {
        if !batch.damage.is_empty() {
            return Err(ThreadError::Invalid("the thread is damaged; a fork of it must be kept".into()));
        }
        entries.extend(batch.entries.into_iter().filter(|entry| entry.ordinal <= ordinal));
    }
    Ok(entries)
}

/// The cut before or after a turn. Only as much is read, from the end backwards, as tells where that is.
async fn cut_at(store: &Store, id: ThreadId, point: &ForkPoint, turn: &TurnId) -> Result<Cut, ThreadError> {
    let (mut entries, mut request) = (VecDeque::new(), PageRequest { turns: 2, ..PageRequest::default() });
    loop {
        let page = store.page(id, request).await?;
        page.entries.into_iter().rev().for_each(|entry| entries.push_front(entry));
        let is_all = page.before.is_none();
        let begins = |entry: &Entry| matches!(&entry.fact, Fact::TurnStarted(fact) if fact.turn == *turn);
        let ends = |entry: &Entry| matches!(entry.fact, Fact::TurnFinished(_));
        // What stands between the end of the turn before and its own beginning belongs to it.
        let is_whole = entries.iter().position(begins).is_some_and(|at| entries.iter().take(at).any(ends));
        if is_all || is_whole {
            let mut outline = Outline::default();
            entries.iter().for_each(|entry| outline.apply(entry));
            match outline.cut(point) {
                // It may have been taken back and another of its name may stand before; only the whole says so.
                Err(ForkError::UnknownTurn(_)) if !is_all => {}
                other => return Ok(other?),
            }
        }
        request = PageRequest { before: page.before, turns: request.turns * 2, bytes: request.bytes * 2 };
    }
}

/// Where the turns of a thread begin and end.
pub(crate) async fn outline(store: &Store, id: ThreadId) -> Result<Outline, ReadError> {
    let mut outline = Outline::default();
    let mut history = store.history(id, 0).await?;
    while let Some(batch) = history.next().await? {
        batch.entries.iter().for_each(|entry| outline.apply(entry));
    }
    Ok(outline)
}
