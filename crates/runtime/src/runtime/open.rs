//! From a stored thread to a running driver.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use outpost_store::{ClaimMode, FactsAside, Lease, Need, Store, append_aside, unnoted};
use outpost_thread::{DamageNoted, Fact, SelectionChanged, Thread, ThreadId, said};
use outpost_wire::PathUri;
use outpost_wire::intent::Selection;
use tokio::sync::{mpsc, watch};

use super::manage::{ThreadError, fold};
use super::{AgentStart, RuntimeShared, lock, run_uncancelled};
use crate::agents::AgentSlot;
use crate::driver::{Driver, DriverStart};
use crate::feed::ThreadFeed;
use crate::live::{DriverCommand, LiveThread, ThreadActivity, ThreadEvent};

/// So many commands may wait for a thread.
const MAILBOX: usize = 64;

/// Whether a thread that begins to run was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    New,
    Again,
}

/// The right to write a thread that no driver has yet.
pub(super) struct ThreadClaim {
    pub store: Store,
    pub lease: Lease,
    pub id: ThreadId,
}

impl RuntimeShared {
    /// A thread, loaded if it was not. Two who ask at the same time get the same one.
    pub(crate) async fn load(self: Arc<Self>, id: ThreadId) -> Result<LiveThread, ThreadError> {
        run_uncancelled(self.load_as(id, ClaimMode::IfFree)).await
    }

    /// A thread by its journal.
    pub(super) async fn load_journal(self: Arc<Self>, path: &Path) -> Result<LiveThread, ThreadError> {
        let id = self.thread_of_journal(path)?;
        self.load(id).await
    }

    /// The thread that a journal of this home is of.
    pub(super) fn thread_of_journal(&self, path: &Path) -> Result<ThreadId, ThreadError> {
        let invalid = |why: String| ThreadError::Invalid(format!("{}: {why}", path.display()).into());
        let id = path.file_stem().and_then(|name| name.to_str()).and_then(|name| name.parse::<ThreadId>().ok());
        let id = id.ok_or_else(|| invalid("a journal is named after its thread".into()))?;
        let Store::Local(store) = &self.store else { return Err(invalid("this store has no journals".into())) };
        let real = |path: &Path| path.canonicalize().ok();
        let own = store.journal(id);
        match own.as_deref().and_then(real) {
            Some(own) if Some(&own) == real(path).as_ref() => Ok(id),
            Some(own) if self.live(id).is_some() => Err(invalid(format!("thread {id} is running already, from {}", own.display()))),
            Some(own) => Err(invalid(format!("thread {id} is kept in {}", own.display()))),
            None => Err(invalid("it is not one of this home; `outpost thread import` takes it in".into())),
        }
    }

    pub(super) async fn load_as(self: Arc<Self>, id: ThreadId, mode: ClaimMode) -> Result<LiveThread, ThreadError> {
        let slot = self.slot(id);
        let _loading = slot.loading.lock().await;
        if let Some(live) = self.live(id) {
            return Ok(live);
        }
        // One that is just ending has not given it back yet.
        let ending = lock(&slot.live).clone();
        if let Some(ending) = ending {
            ending.ended().await;
        }
        let store = self.store_of(id).await;
        let lease = match store.claim(id, mode).await {
            Ok(lease) => lease,
            Err(error) => {
                self.forget(id);
                return Err(error.into());
            }
        };
        let opened = match outpost_store::open(&store, id).await {
            Ok(opened) => opened,
            Err(error) => {
                store.give_up(lease).await;
                self.forget(id);
                return Err(error.into());
            }
        };
        let (mut claim, mut thread) = (ThreadClaim { store: store.clone(), lease, id }, opened.thread.clone());
        if let Some(noted) = opened.unnoted() {
            tracing::warn!(thread = %id, damage = noted.damage.len(), "a thread is damaged; what is whole goes on");
            (claim, thread) = self.append(claim, Some(thread), vec![noted.into()]).await?;
        }
        if let Some(selection) = self.missing_selection(&thread) {
            let fact = SelectionChanged { selection: Some(selection), capability_roots: None };
            (claim, thread) = self.append(claim, Some(thread), vec![fact.into()]).await?;
        }
        let lease = claim.lease;
        let seat = self.seat(&thread);
        let is_waiting = thread.turn.is_none() && thread.queued.is_empty() && !thread.wakes.is_empty();
        let agents: Vec<ThreadId> = thread.agents.iter().filter(|(_, agent)| agent.open).map(|(id, _)| *id).collect();
        // A thread that only waits for commands does not end its nodes, however many of them end meanwhile.
        if mode == ClaimMode::Orphaned && is_waiting && agents.is_empty() {
            store.forget_claims(&lease).await;
        }
        if let Some(selection) = thread.effective_selection() {
            // Its first turn finds them connected, or on the way.
            self.registry.prepare(selection, &thread.capability_roots);
        }
        let live = self.run(Life::Again, store.clone(), lease, thread, seat);
        self.clone().look_for_damage(store, live.clone());
        if !agents.is_empty() {
            // Agents that were in the middle of their work when the program ended go on with it, and so do theirs.
            tokio::spawn(async move {
                for id in agents {
                    self.clone().busy(id).await;
                }
            });
        }
        Ok(live)
    }

    /// Writes facts down for a thread that is claimed and has no driver yet, and folds them in. If that cannot be done, the thread is given
    /// back.
    pub(super) async fn append(
        &self,
        claim: ThreadClaim,
        thread: Option<Thread>,
        facts: Vec<Fact>,
    ) -> Result<(ThreadClaim, Thread), ThreadError> {
        let (at, last) = ((self.clock)(), thread.as_ref().map_or(0, |thread| thread.last));
        let aside = FactsAside { last, at, facts, need: Need::Stored };
        let appended = match (append_aside(&claim.store, &claim.lease, aside).await, thread) {
            (Err(error), _) => Err(error.into()),
            (Ok(appended), None) => fold(&appended.entries),
            (Ok(appended), Some(mut thread)) => {
                appended.entries.iter().for_each(|entry| drop(thread.apply(entry)));
                Ok(thread)
            }
        };
        match appended {
            Ok(thread) => Ok((claim, thread)),
            Err(error) => {
                claim.store.give_up(claim.lease).await;
                self.forget(claim.id);
                Err(error)
            }
        }
    }

    /// A thread of another program says where it worked and not in which environment: it works in the default ones, there.
    pub(super) fn missing_selection(&self, thread: &Thread) -> Option<Selection> {
        if thread.metadata.imported.is_none() || thread.selection.is_some() {
            return None;
        }
        let cwd = PathUri::from_syntax(thread.settings.cwd.as_deref()?).ok()?;
        Some(self.registry.default_selection(&cwd, std::slice::from_ref(&cwd))).filter(|selection| !selection.is_empty())
    }

    /// Opening a thread reads only its end. The rest is looked at meanwhile, and what is found is written down and told.
    fn look_for_damage(self: Arc<Self>, store: Store, live: LiveThread) {
        tokio::spawn(async move {
            let Ok(_turn) = self.loaded.checking.acquire().await else { return };
            let found = match store.verify(live.id, None).await {
                Ok(verdict) => verdict.damage,
                Err(error) => return tracing::debug!(thread = %live.id, %error, "a thread cannot be checked"),
            };
            let ranges = found.iter().filter(|(_, damage)| damage.loses_entries()).map(|(_, damage)| damage.range());
            let ranges: Vec<_> = ranges.collect();
            if ranges.is_empty() {
                return;
            }
            let Ok(thread) = live.snapshot().await else { return };
            let damage = unnoted(&thread.damage, ranges.into_iter());
            if !damage.is_empty() {
                tracing::warn!(thread = %live.id, damage = damage.len(), "a thread is damaged; what is whole goes on");
                // If it is not loaded any more, the next one who opens it finds the same.
                let _ = live.change(vec![DamageNoted { damage, through: None, continued: false }.into()]).await;
            }
        });
    }

    /// A thread that has work to do, loaded if it was not.
    // Boxed, because loading a thread wakes its agents, which loads threads.
    pub(crate) fn busy(self: Arc<Self>, id: ThreadId) -> Pin<Box<dyn Future<Output = Option<LiveThread>> + Send>> {
        Box::pin(async move {
            if let Some(live) = self.live(id) {
                return matches!(live.status(), ThreadActivity::Active { .. }).then_some(live);
            }
            let thread = self.state_of(id).await.ok()?;
            if thread.turn.is_none() && thread.queued.is_empty() && thread.wakes.is_empty() {
                return None;
            }
            let loaded = self.load(id).await;
            loaded.inspect_err(|error| tracing::warn!(thread = %id, %error, "an agent cannot go on")).ok()
        })
    }

    /// How a thread stands, be it loaded or not.
    pub(super) async fn state_of(&self, id: ThreadId) -> Result<Thread, ThreadError> {
        if let Some(live) = self.live(id)
            && let Ok(thread) = live.snapshot().await
        {
            return Ok(thread);
        }
        let store = self.store_of(id).await;
        Ok(outpost_store::open(&store, id).await?.thread)
    }

    /// Threads that are not kept are in a store of their own.
    pub(super) async fn store_of(&self, id: ThreadId) -> Store {
        if self.ephemeral.head(id).await.is_ok() { self.ephemeral.clone() } else { self.store.clone() }
    }

    /// Gives up the place of a thread that is not loaded after all. A caller that waits for it there keeps it: in another place they
    /// would not see each other.
    pub(super) fn forget(&self, id: ThreadId) {
        let mut threads = lock(&self.loaded.slots);
        // The caller has one, too.
        if threads.get(&id).is_some_and(|slot| lock(&slot.live).is_none() && Arc::strong_count(slot) <= 2) {
            threads.remove(&id);
        }
    }

    /// Starts the driver of a thread.
    pub(super) fn run(self: &Arc<Self>, life: Life, store: Store, lease: Lease, thread: Thread, seat: AgentSlot) -> LiveThread {
        let id = thread.id;
        let maker = thread.metadata.parent.as_ref().map(|parent| parent.thread);
        let (mailbox, commands) = mpsc::channel(MAILBOX);
        let (status, watched) = watch::channel(ThreadActivity::of(&thread));
        let feed = Arc::new(ThreadFeed::new(self.config.feed));
        feed.set_mark(thread.last);
        let internal = is_internal(&thread);
        let live = LiveThread { id, mailbox, feed: feed.clone(), store: store.clone(), status: watched, maker, internal };
        self.loaded.resting.forget(id);
        *lock(&self.slot(id).live) = Some(live.clone());
        // Before it can do anything, so that subscribers of its parent miss nothing of it.
        if let (Some(maker), false) = (maker, live.internal) {
            let start = AgentStart { thread: Arc::new(thread.clone()), maker, is_new: life == Life::New };
            self.loaded.agent_starts.publish(start, 4096);
        }
        let driver = Driver::new(DriverStart { shared: self.clone(), store, lease, thread, feed, status, mailbox: commands, seat });
        let (shared, own) = (self.clone(), live.clone());
        tokio::spawn(async move {
            driver.run().await;
            // Only its own place: another life of the thread may have begun.
            let mut threads = lock(&shared.loaded.slots);
            let Some(slot) = threads.get(&id) else { return };
            if lock(&slot.live).take_if(|live| live.mailbox.same_channel(&own.mailbox)).is_none() {
                return;
            }
            shared.mcp.forget(id);
            // Another caller may be opening it again.
            if Arc::strong_count(slot) == 1 {
                threads.remove(&id);
            }
        });
        live
    }

    /// Closes the mailbox of a thread, unless it has subscribers, a handle that is in use, or a command that waits: a handle that is
    /// taken later is a closed one.
    pub(crate) fn close_if_unneeded(
        &self,
        id: ThreadId,
        mailbox: &mut mpsc::Receiver<DriverCommand>,
        feed: &ThreadFeed<ThreadEvent>,
    ) -> bool {
        let Some(slot) = lock(&self.loaded.slots).get(&id).cloned() else { return true };
        let live = lock(&slot.live);
        if is_held(mailbox) || !mailbox.is_empty() || feed.has_readers() {
            return false;
        }
        if live.as_ref().is_some_and(|live| !live.internal) {
            self.loaded.resting.note_unloaded(id);
        }
        mailbox.close();
        true
    }

    /// What a thread's model said last.
    pub(crate) async fn last_message(&self, id: ThreadId) -> Option<String> {
        let store = self.store_of(id).await;
        let page = store.page(id, outpost_store::PageRequest { turns: 1, ..Default::default() }).await.ok()?;
        page.entries.iter().rev().find_map(|entry| match &entry.fact {
            Fact::ModelAnswered(answered) => answered.items.iter().rev().find_map(said),
            _ => None,
        })
    }
}

/// Whether a handle of a thread is in use, besides those that keep it.
pub(crate) fn is_held(mailbox: &mpsc::Receiver<DriverCommand>) -> bool {
    // One in its slot, one with the task that waits for its end.
    mailbox.sender_strong_count() > 2
}

/// Whether a thread works for the runtime itself, by who started it.
pub(super) fn is_internal(thread: &Thread) -> bool {
    let source = thread.metadata.source.as_ref().and_then(|source| source.read::<serde_json::Value>().ok());
    source.is_some_and(|source| source.get("internal").is_some())
}
