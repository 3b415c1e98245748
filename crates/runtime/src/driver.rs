//! One loaded thread: asks what is to be done, does it, and writes down what happened.
//!
//! The order *append, apply, publish* is the whole story of durability, and it is written once: in [`Driver::record`].
//! Everything that takes time runs beside the driver and reports back; the driver itself never waits for a model, a command
//! or a reader.

mod call_item;
mod calls;
mod commands;
mod compaction;
mod images;
mod last_words;
mod losses;
mod nudge;
mod queue;
mod repeats;
mod revert;
mod sample;
mod servers;
mod step;
mod wakes;
mod work_state;

use step::AnnouncedContext;
pub(crate) use step::user_message;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outpost_store::{AppendError, Lease, Need, ReadError, Store, keep_checkpoint};
use outpost_thread::{
    ApprovalId, CallId, Context, DamageNoted, Entry, Fact, InterruptReason, NextAction, Thread, ThreadId, TurnFinished, TurnId, TurnStatus,
};
use outpost_thread::{CompactReason, Marker, Ordinal, Raw, TurnStarted};
use outpost_wire::envelope::TraceContext;
use serde_json::json;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::agents::AgentSlot;
use crate::approvals::SessionApprovals;
use crate::feed::ThreadFeed;
use crate::live::{DriverCommand, ThreadActivity, ThreadEvent};
use crate::mcp::Binding;
use crate::model::{ModelError, ModelResponse, WrittenSoFar};
use crate::resting::Bed;
use crate::runtime::{RuntimeShared, is_held};
use crate::tools::mcp::CallQuestion;
use crate::tools::processes::BackgroundProcesses;
use crate::tools::{CallEnd, Consent, StepTools};

/// The model's view is kept for so long after a turn; a thread that sleeps needs none.
const CONTEXT_KEPT: Duration = Duration::from_secs(20);

/// So many calls of one thread run at the same time; the others of an answer wait for their turn.
const MOST_AT_ONCE: usize = 32;

/// A thread that could be unloaded but for a handle that is in use is checked again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// How often a full disk is tried again.
const SPACE_AGAIN: Duration = Duration::from_millis(500);

/// Why a driver stops.
#[derive(Debug, Error)]
pub(crate) enum Stop {
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("it was unloaded")]
    Unloaded,
    #[error("it goes on in another node")]
    HandedOver,
}

/// What came back from work beside the driver.
enum Done {
    Asked { turn: TurnId, step: u32, answer: Result<ModelResponse, ModelError> },
    Summarised { turn: TurnId, answer: Result<ModelResponse, ModelError> },
    Called { turn: TurnId, call: CallId, end: CallEnd },
}

/// A call that runs.
struct RunningCall {
    turn: TurnId,
    task: AbortHandle,
    cancel: CancellationToken,
    /// Nothing that was asked for after it may begin before it ends.
    alone: bool,
    /// Cancelled when it has ended, however it did.
    over: CancellationToken,
    has_begun: Arc<AtomicBool>,
    elsewhere: Elsewhere,
}

/// What another node could do about a call that this one leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Elsewhere {
    /// Find its process, or write to one once more under the same name.
    Found,
    /// Do it again.
    Repeated,
    /// Neither.
    Lost,
}

/// Where calls begin, until it is closed.
#[derive(Default)]
struct CallGate(Mutex<bool>);

impl CallGate {
    fn close(&self) {
        *self.is_closed() = true;
    }

    /// Notes that a call begins, if it may.
    fn enter(&self, has_begun: &AtomicBool) -> bool {
        let is_closed = self.is_closed();
        has_begun.store(!*is_closed, Ordering::Release);
        !*is_closed
    }

    fn is_closed(&self) -> MutexGuard<'_, bool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunningCall {
    fn is_lost_with_its_node(&self) -> bool {
        self.elsewhere == Elsewhere::Lost && self.has_begun.load(Ordering::Acquire)
    }
}

pub(crate) struct Driver {
    shared: Arc<RuntimeShared>,
    thread: Thread,
    journal: ThreadJournal,
    audience: Audience,
    mailbox: mpsc::Receiver<DriverCommand>,
    /// What runs beside the driver and reports back.
    work: JoinSet<Done>,
    model: ModelView,
    turn: TurnState,
    calls: Calls,
    processes: Arc<BackgroundProcesses>,
    grants: SessionApprovals,
    /// The place among the agents of a tree.
    seat: AgentSlot,
    /// A caller is awaiting this command; fail on a full disk instead of retrying.
    is_asked: bool,
    /// The MCP servers that run as long as this thread is loaded.
    servers: Option<Arc<Binding>>,
    /// Who hears what sandboxes lose, for each environment that is worked in.
    losses: losses::Hearings,
    /// While the thread has neither subscribers nor work.
    bed: Option<Bed>,
    /// Commands whose end begins a turn.
    wakes: wakes::Wakes,
    /// The thread is about to be handed over, and nothing begins any more. Answered when no call runs that would be lost.
    last_calls: Option<Vec<oneshot::Sender<()>>>,
}

/// Where facts are written, and the right to.
struct ThreadJournal {
    store: Store,
    lease: Lease,
}

/// Those who follow the thread.
struct Audience {
    feed: Arc<ThreadFeed<ThreadEvent>>,
    status: watch::Sender<ThreadActivity>,
}

/// What the model knows, and what is known of it.
#[derive(Default)]
struct ModelView {
    context: Option<Context>,
    /// What was written of the context for the wire.
    written: WrittenSoFar,
    /// What the model was told last of what is around it.
    told: AnnouncedContext,
    /// The context window that was told to be smaller than assumed.
    small_window: Option<u64>,
    /// The model that was told not to be in the table.
    unknown: Option<String>,
}

/// What belongs to the running turn and is not in the journal.
struct TurnState {
    /// The request to the model, if one is out.
    asking: Option<AbortHandle>,
    /// What the last answer lacked, if the model is asked to go on.
    lack: Option<nudge::Lack>,
    /// What the user was told about answers of this turn: each is told once.
    notices: Arc<Mutex<BTreeSet<String>>>,
    /// What the present step froze. Nothing after a restart: then it is captured anew.
    step: Option<Arc<StepTools>>,
    /// The items of the answer whose calls were looked at last, and where it stands.
    answer: Option<(Ordinal, Vec<Raw>)>,
    /// What users answered to calls that wait for more than a yes.
    answers: HashMap<CallId, Consent>,
    /// Why the context is being compacted, while it is.
    compacting: CompactReason,
    /// What of a distributed trace it belongs to, as far as this program knows.
    trace: Option<TraceContext>,
}

/// The calls that run, and what they wait for.
struct Calls {
    running: HashMap<CallId, RunningCall>,
    /// Those that were told to stop and have to run alone: the next such one waits until they have stopped.
    ending: Vec<CancellationToken>,
    /// What calls that need a machine wait for, so that not all of a long answer run at once.
    slots: Arc<Semaphore>,
    gate: Arc<CallGate>,
    /// What they ask the user.
    questions: (mpsc::UnboundedSender<CallQuestion>, mpsc::UnboundedReceiver<CallQuestion>),
    elicitations: HashMap<ApprovalId, servers::Waiting>,
}

/// What a driver needs to begin.
pub(crate) struct DriverStart {
    pub shared: Arc<RuntimeShared>,
    pub store: Store,
    pub lease: Lease,
    pub thread: Thread,
    pub feed: Arc<ThreadFeed<ThreadEvent>>,
    pub status: watch::Sender<ThreadActivity>,
    pub mailbox: mpsc::Receiver<DriverCommand>,
    pub seat: AgentSlot,
}

impl Driver {
    pub(crate) fn new(start: DriverStart) -> Self {
        let DriverStart { shared, store, lease, thread, feed, status, mailbox, seat } = start;
        let processes = Arc::new(BackgroundProcesses::new(thread.id, feed.clone()));
        Self {
            shared,
            thread,
            journal: ThreadJournal { store, lease },
            audience: Audience { feed, status },
            mailbox,
            work: JoinSet::new(),
            model: ModelView::default(),
            turn: TurnState {
                asking: None,
                lack: None,
                notices: Arc::default(),
                step: None,
                answer: None,
                answers: HashMap::new(),
                compacting: CompactReason::Full,
                trace: None,
            },
            calls: Calls {
                running: HashMap::new(),
                ending: Vec::new(),
                slots: Arc::new(Semaphore::new(MOST_AT_ONCE)),
                gate: Arc::default(),
                questions: mpsc::unbounded_channel(),
                elicitations: HashMap::new(),
            },
            processes,
            grants: SessionApprovals::default(),
            seat,
            is_asked: false,
            servers: None,
            losses: losses::Hearings::default(),
            bed: None,
            wakes: wakes::Wakes::default(),
            last_calls: None,
        }
    }

    /// Runs until the thread is unloaded or cannot go on.
    pub(crate) async fn run(mut self) {
        self.tell_status();
        let stop = loop {
            // Callers of a previous run do not wait any more.
            if let Err(stop) = self.end_orphans().await {
                break stop;
            }
            if let Some(waiting) = &mut self.last_calls {
                if !self.calls.running.values().any(RunningCall::is_lost_with_its_node) {
                    for reply in waiting.drain(..) {
                        let _ = reply.send(());
                    }
                }
            } else if let Err(stop) = self.advance().await {
                break stop;
            }
            if let Err(stop) = self.wait().await {
                break stop;
            }
        };
        self.close(&stop).await;
    }

    /// Waits for one thing to happen and deals with it.
    async fn wait(&mut self) -> Result<(), Stop> {
        let is_idle = self.work.is_empty() && matches!(self.thread.next(), NextAction::Idle);
        let sleeps = is_idle && self.model.context.is_some();
        // A command that goes on behind a session id keeps its thread loaded.
        let unloads = is_idle && !sleeps && !self.processes.has_running() && self.thread.wakes.is_empty();
        let is_followed = self.audience.feed.has_readers();
        let is_held = self.lie_down(is_idle && !is_followed);
        let time_left = self.time_left();
        let waits_for_place = is_idle && self.wakes.wait_for_place();
        tokio::select! {
            command = self.mailbox.recv() => match command {
                Some(command) => self.command(command).await,
                None => Err(Stop::Unloaded),
            },
            Some(done) = self.work.join_next(), if !self.work.is_empty() => match done {
                Ok(done) => self.done(done).await,
                // The end of a cancelled call is written by the code that cancelled it.
                Err(_) => Ok(()),
            },
            () = self.wakes.ended(), if self.wakes.are_followed() => Ok(()),
            () = tokio::time::sleep(LOOK_AGAIN), if waits_for_place => Ok(()),
            Some(question) = self.calls.questions.1.recv() => self.ask_user(question).await,
            () = tokio::time::sleep(CONTEXT_KEPT), if sleeps => {
                self.model.context = None;
                self.model.written = WrittenSoFar::default();
                self.model.told = AnnouncedContext::default();
                Ok(())
            }
            // Subscribers may send input at any time; they are checked again later.
            () = tokio::time::sleep(self.shared.config.unload_after), if unloads => self.unload_if_unneeded(),
            () = called(self.bed.as_ref()) => {
                self.bed = None;
                self.unload_if_unneeded()
            }
            () = self.audience.feed.left(), if is_idle && is_followed => Ok(()),
            () = tokio::time::sleep(LOOK_AGAIN), if is_held => Ok(()),
            () = tokio::time::sleep(time_left.unwrap_or_default()), if time_left.is_some() => self.time_is_up().await,
        }
    }

    /// Begins to rest, or goes on with it, if nothing of the thread would be lost with this life of it; else gets up. True if only
    /// handles are in the way.
    fn lie_down(&mut self, is_quiet: bool) -> bool {
        let has_servers = || self.servers.iter().any(|binding| binding.servers.iter().any(|server| server.connection.is_some()));
        let is_active = |agent: &ThreadId| matches!(self.shared.status(*agent), Some(ThreadActivity::Active { .. }));
        let has_agents = || self.thread.agents.iter().any(|(id, agent)| agent.open && is_active(id));
        // What the user allowed for as long as the thread is loaded stays allowed for that long.
        let may_end = is_quiet
            && self.grants.is_empty()
            && !self.processes.has_running()
            && self.thread.wakes.is_empty()
            && !has_servers()
            && !has_agents();
        let is_held = is_held(&self.mailbox);
        if !may_end || is_held {
            self.bed = None;
        } else if self.bed.is_none() {
            self.bed = Some(self.shared.loaded.resting.lie_down());
        }
        may_end && is_held
    }

    fn unload_if_unneeded(&mut self) -> Result<(), Stop> {
        let is_over = self.shared.close_if_unneeded(self.thread.id, &mut self.mailbox, &self.audience.feed);
        if is_over { Err(Stop::Unloaded) } else { Ok(()) }
    }

    async fn done(&mut self, done: Done) -> Result<(), Stop> {
        match done {
            Done::Asked { turn, step, answer } if self.is_running(&turn) => {
                self.turn.asking = None;
                self.answered(turn, step, answer).await
            }
            Done::Summarised { turn, answer } if self.is_running(&turn) => {
                self.turn.asking = None;
                self.summarised(turn, answer).await
            }
            Done::Called { turn, call, end } => self.called(turn, call, end).await,
            _ => Ok(()),
        }
    }

    /// Does what the state asks for until only waiting is left.
    async fn advance(&mut self) -> Result<(), Stop> {
        self.follow_wakes().await;
        loop {
            if self.thread.turn.is_none() {
                self.wake().await?;
            }
            // Of many calls each end would otherwise copy all the others.
            if self.only_waits() {
                return Ok(());
            }
            match self.thread.next() {
                NextAction::Idle | NextAction::AwaitAnswer { .. } => return Ok(()),
                NextAction::StartTurn { inputs } => {
                    let turn = TurnId((self.shared.ids)());
                    let inputs = inputs.into_iter().map(|input| input.id).collect();
                    let started = TurnStarted::new(turn, inputs);
                    self.begin_turn(vec![started.into()]).await?;
                }
                NextAction::AskModel { .. } | NextAction::Compact { .. } if self.turn.asking.is_some() => return Ok(()),
                NextAction::AskModel { turn, step } => {
                    if let Some(reason) = self.spent() {
                        tracing::info!(thread = %self.thread.id, reason, "a budget is used up");
                        self.finish_turn(turn, TurnStatus::Interrupted, Some(InterruptReason::Budget), Some(reason)).await?;
                    } else {
                        self.begin_step(turn, step).await?;
                    }
                }
                NextAction::Compact { turn, reason } => self.begin_compaction(turn, reason).await?,
                NextAction::Decide { turn, calls } => self.decide(turn, calls).await?,
                NextAction::RunCalls { turn, calls } => self.run_approved(turn, calls).await?,
                NextAction::ReattachCalls { turn, calls, .. } => {
                    let unattached: Vec<_> = calls.into_iter().filter(|call| !self.calls.running.contains_key(&call.id)).collect();
                    if unattached.is_empty() {
                        return Ok(());
                    }
                    self.reattach(turn, unattached).await?;
                }
                NextAction::FinishTurn { turn, status } => {
                    let reason = (status == TurnStatus::Interrupted).then_some(InterruptReason::User);
                    self.finish_turn(turn, status, reason, None).await?;
                }
            }
        }
    }

    /// Whether something is to be done without being asked for.
    fn has_work(&self) -> bool {
        !matches!(self.thread.next(), NextAction::Idle) || !self.thread.wakes.is_empty()
    }

    fn is_running(&self, turn: &TurnId) -> bool {
        self.thread.turn.as_ref().is_some_and(|running| running.id == *turn)
    }

    /// Append, apply, publish: nothing is true before it is stored, and nothing else is published. On a full disk what
    /// has happened already waits for space; what a caller asks for is refused instead.
    async fn record(&mut self, facts: Vec<Fact>, need: Need) -> Result<(), Stop> {
        if facts.is_empty() {
            return Ok(());
        }
        let at = (self.shared.clock)();
        let entry = |(ordinal, fact)| Entry { ordinal, at, fact };
        let entries: Vec<Entry> = (self.thread.last + 1..).zip(facts).map(entry).collect();
        let appended = loop {
            match self.journal.store.append(&self.journal.lease, entries.clone(), need).await {
                Err(error @ AppendError::NoSpace { .. }) if !self.is_asked => {
                    self.set_status(ThreadActivity::Broken { reason: error.to_string() });
                    tokio::time::sleep(SPACE_AGAIN).await;
                }
                other => break other?,
            }
        };
        self.shared.counts.note(appended.entries.iter().map(|entry| &entry.fact));
        for entry in appended.entries {
            if let Err(error) = self.thread.apply(&entry) {
                tracing::error!(thread = %self.thread.id, %error, "a fact of our own does not fit");
            }
            if let Some(context) = &mut self.model.context {
                context.apply(&entry);
            }
            // The calls of an answer are looked at next; what was just written need not be read.
            if let Fact::ModelAnswered(answered) = &entry.fact
                && !answered.calls.is_empty()
            {
                self.turn.answer = Some((entry.ordinal, answered.items.clone()));
            }
            let weight = 256 + entry.fact.data().map_or(0, |data| data.get().len());
            let end = entry.end();
            self.audience.feed.publish(ThreadEvent::Entry(Arc::new(entry)), weight);
            self.audience.feed.set_mark(end);
        }
        self.tell_status();
        Ok(())
    }

    async fn begin_turn(&mut self, mut facts: Vec<Fact>) -> Result<(), Stop> {
        if self.thread.damage_is_new {
            // A client that starts a turn was shown what is missing. Continuing without it is a decision, and is recorded.
            let damage = self.thread.damage.iter().cloned().collect();
            facts.insert(0, DamageNoted { damage, through: None, continued: true }.into());
        }
        self.record(facts, Need::Stored).await
    }

    /// Which budget is used up, if one is. A turn's own is counted from its first entry, through every restart.
    fn spent(&self) -> Option<String> {
        let budgets = &self.shared.config.budgets;
        let total = self.thread.usage.total.total;
        let before = self.thread.turn.as_ref().map_or(total, |turn| turn.tokens_before);
        let over = |limit: Option<u64>, used: u64| limit.filter(|limit| *limit > 0 && used >= *limit);
        if let Some(limit) = over(budgets.turn_tokens, total.saturating_sub(before)) {
            return Some(format!("this turn has used its {limit} tokens (`budgets.turn_tokens`)"));
        }
        let steps = self.thread.turn.as_ref().map_or(0, |turn| u64::from(turn.next_step()));
        if let Some(limit) = over(budgets.turn_steps, steps) {
            return Some(format!("this turn has asked the model {limit} times (`budgets.turn_steps`)"));
        }
        if let Some(limit) = over(budgets.woken_turns, self.thread.woken.saturating_sub(1)) {
            return Some(format!("{limit} turns in a row were begun by ends of commands, without a word of yours (`budgets.woken_turns`)"));
        }
        if let Some(limit) = over(budgets.thread_tokens, total) {
            return Some(format!("this thread has used its {limit} tokens (`budgets.thread_tokens`)"));
        }
        if let Some(limit) = over(budgets.tree_tokens, self.seat.tree_tokens()) {
            return Some(format!("this thread and its agents have used their {limit} tokens (`budgets.tree_tokens`)"));
        }
        self.out_of_time()
    }

    fn out_of_time(&self) -> Option<String> {
        let limit = self.shared.config.budgets.turn_seconds.filter(|limit| *limit > 0)?;
        let is_over = self.time_left().is_some_and(|left| left.is_zero());
        is_over.then(|| format!("this turn has taken its {limit} seconds (`budgets.turn_seconds`)"))
    }

    /// Ends the running turn if its time is up.
    async fn time_is_up(&mut self) -> Result<(), Stop> {
        let turn = self.thread.turn.as_ref().map(|turn| turn.id.clone());
        match (turn, self.out_of_time()) {
            (Some(turn), Some(reason)) => {
                self.finish_turn(turn, TurnStatus::Interrupted, Some(InterruptReason::Budget), Some(reason)).await
            }
            _ => Ok(()),
        }
    }

    /// How long the running turn may still take; nothing if there is no limit, or while it only waits for a user's answer.
    fn time_left(&self) -> Option<Duration> {
        let limit = Duration::from_secs(self.shared.config.budgets.turn_seconds.filter(|limit| *limit > 0)?);
        let turn = self.thread.turn.as_ref().filter(|_| !matches!(self.thread.next(), NextAction::AwaitAnswer { .. }))?;
        let taken = Duration::from_millis((self.shared.clock)().saturating_sub(turn.started_at));
        Some(limit.saturating_sub(taken))
    }

    /// Ends a turn. Whatever still runs in it is stopped first. It is told when it cannot be lost any more.
    async fn finish_turn(
        &mut self,
        turn: TurnId,
        status: TurnStatus,
        reason: Option<InterruptReason>,
        message: Option<String>,
    ) -> Result<(), Stop> {
        let error = message.map(|message| json!({"message": message}));
        self.end_turn(TurnFinished {
            turn: Some(turn),
            status,
            reason,
            error: error.map(Raw::from),
            marker: if status == TurnStatus::Interrupted { Marker::User } else { Marker::Off },
        })
        .await
    }

    async fn end_turn(&mut self, finished: TurnFinished) -> Result<(), Stop> {
        self.end_turn_after(Vec::new(), finished).await
    }

    /// Ends a turn together with the facts that end it.
    async fn end_turn_after(&mut self, mut facts: Vec<Fact>, finished: TurnFinished) -> Result<(), Stop> {
        if let Some(asking) = self.turn.asking.take() {
            asking.abort();
        }
        facts.extend(self.abort_calls());
        facts.push(finished.into());
        self.record(facts, Need::BeforeCompleted).await?;
        self.turn.answers.clear();
        self.turn.lack = None;
        self.turn.notices = Arc::default();
        self.turn.trace = None;
        self.turn.answer = None;
        self.turn.step = None;
        if self.thread.queued.is_empty() {
            self.seat.rest();
        }
        self.keep_checkpoint().await;
        Ok(())
    }

    /// Keeps the state aside from time to time, so that opening the thread stays quick.
    async fn keep_checkpoint(&self) {
        if self.thread.turn.is_some() || !self.thread.turns.is_multiple_of(self.shared.config.checkpoint_every) {
            return;
        }
        if let Err(error) = keep_checkpoint(&self.journal.store, &self.thread).await {
            tracing::debug!(thread = %self.thread.id, %error, "no checkpoint could be kept");
        }
    }

    fn tell_status(&self) {
        self.set_status(ThreadActivity::of(&self.thread));
    }

    fn set_status(&self, status: ThreadActivity) {
        let changed = self.audience.status.send_if_modified(|now| {
            let differs = *now != status;
            now.clone_from(&status);
            differs
        });
        if changed {
            self.audience.feed.publish(ThreadEvent::Status(status), 64);
        }
    }

    /// Leaves everything as the next driver of this thread needs it.
    async fn close(mut self, stop: &Stop) {
        if let Some(asking) = self.turn.asking.take() {
            asking.abort();
        }
        for running in self.calls.running.values() {
            running.task.abort();
        }
        self.mailbox.close();
        match stop {
            Stop::HandedOver => {
                self.shared.loaded.is_work_left.store(true, Ordering::Release);
                self.journal.store.hand_over(self.journal.lease).await;
            }
            // The database was away for too long, or came back without what was written last. A thread that is given back waits for a client;
            // this one goes on, here or in another node, once the database is there. If it cannot be read, it is parked after some tries.
            Stop::Append(AppendError::Database(_) | AppendError::Conflict { .. }) | Stop::Read(_) if self.has_work() => {
                self.journal.store.give_up(self.journal.lease).await;
            }
            _ => self.journal.store.release(self.journal.lease).await,
        }
        let status = match stop {
            Stop::Unloaded | Stop::HandedOver => ThreadActivity::Closed,
            other => {
                tracing::warn!(thread = %self.thread.id, reason = %other, "a thread had to stop");
                ThreadActivity::Broken { reason: other.to_string() }
            }
        };
        self.audience.status.send_replace(status.clone());
        self.audience.feed.publish(ThreadEvent::Status(status), 64);
        self.audience.feed.end();
        // Callers that still wait get no answer: the sender is dropped with the command.
        while self.mailbox.try_recv().is_ok() {}
    }
}

/// Waits until the place of a thread that rests is needed.
async fn called(bed: Option<&Bed>) {
    match bed {
        Some(bed) => bed.called().await,
        None => std::future::pending().await,
    }
}
