//! One loaded thread: asks what is to be done, does it, and writes down what happened.
//!
//! The order *append, apply, publish* is the whole story of durability, and it is written once: in [`Driver::record`].
//! Everything that takes time runs beside the driver and reports back; the driver itself never waits for a model, a command
//! or a reader.

mod calls;
mod commands;
mod compaction;
mod queue;
mod repeats;
mod revert;
mod sample;
mod servers;
mod step;

use step::Told;
pub(crate) use step::user_message;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outpost_store::{AppendError, Lease, Need, ReadError, Store, keep_checkpoint};
use outpost_thread::{
    ApprovalId, CallId, Context, DamageNoted, Entry, Fact, InterruptReason, Step, Thread, TurnFinished, TurnId, TurnStatus,
};
use outpost_thread::{CompactReason, Marker, Raw, Seq, TurnStarted};
use outpost_wire::envelope::TraceContext;
use serde_json::json;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::agents::Seat;
use crate::approvals::Grants;
use crate::feed::Feed;
use crate::live::{Command, Event, Status};
use crate::mcp::Binding;
use crate::model::{Answer, ModelError, Written};
use crate::runtime::Shared;
use crate::tools::mcp::CallQuestion;
use crate::tools::processes::Processes;
use crate::tools::{CallEnd, Consent, StepTools};

/// The model's view is kept for so long after a turn; a thread that sleeps needs none.
const CONTEXT_KEPT: Duration = Duration::from_secs(20);

/// So many calls of one thread run at the same time; the others of an answer wait for their turn.
const MOST_AT_ONCE: usize = 32;

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
}

/// What came back from work beside the driver.
enum Done {
    Asked { turn: TurnId, step: u32, answer: Result<Answer, ModelError> },
    Summarised { turn: TurnId, answer: Result<Answer, ModelError> },
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
}

pub(crate) struct Driver {
    shared: Arc<Shared>,
    store: Store,
    lease: Lease,
    thread: Thread,
    context: Option<Context>,
    /// What was written of the context for the wire.
    written: Written,
    feed: Arc<Feed<Event>>,
    status: watch::Sender<Status>,
    mailbox: mpsc::Receiver<Command>,
    work: JoinSet<Done>,
    /// The request to the model, if one is out.
    asking: Option<AbortHandle>,
    calls: HashMap<CallId, RunningCall>,
    /// What the present step froze. Nothing after a restart: then it is captured anew.
    step: Option<Arc<StepTools>>,
    /// What the model was told last of what is around it.
    told: Told,
    processes: Arc<Processes>,
    grants: Grants,
    /// What users answered to calls that wait for more than a yes.
    answers: HashMap<CallId, Consent>,
    /// The place among the agents of a tree.
    seat: Seat,
    /// Calls that were told to stop and have to run alone: the next such one waits until they have stopped.
    ending: Vec<CancellationToken>,
    /// What calls that need a machine wait for, so that not all of a long answer run at once.
    slots: Arc<Semaphore>,
    /// The items of the answer whose calls were looked at last, and where it stands.
    answer: Option<(Seq, Vec<Raw>)>,
    /// Why the context is being compacted, while it is.
    compacting: CompactReason,
    /// A caller is awaiting this command; fail on a full disk instead of retrying.
    is_asked: bool,
    /// What of a distributed trace the running turn belongs to, as far as this program knows.
    trace: Option<TraceContext>,
    /// The MCP servers that run as long as this thread is loaded.
    servers: Option<Arc<Binding>>,
    /// What running calls ask the user.
    questions: (mpsc::UnboundedSender<CallQuestion>, mpsc::UnboundedReceiver<CallQuestion>),
    elicitations: HashMap<ApprovalId, servers::Waiting>,
}

/// What a driver needs to begin.
pub(crate) struct Start {
    pub shared: Arc<Shared>,
    pub store: Store,
    pub lease: Lease,
    pub thread: Thread,
    pub feed: Arc<Feed<Event>>,
    pub status: watch::Sender<Status>,
    pub mailbox: mpsc::Receiver<Command>,
    pub seat: Seat,
}

impl Driver {
    pub fn new(start: Start) -> Self {
        let Start { shared, store, lease, thread, feed, status, mailbox, seat } = start;
        let processes = Arc::new(Processes::new(thread.id, feed.clone()));
        Self {
            shared,
            store,
            lease,
            thread,
            context: None,
            written: Written::default(),
            feed,
            status,
            mailbox,
            work: JoinSet::new(),
            asking: None,
            calls: HashMap::new(),
            step: None,
            told: Told::default(),
            processes,
            grants: Grants::default(),
            answers: HashMap::new(),
            seat,
            ending: Vec::new(),
            slots: Arc::new(Semaphore::new(MOST_AT_ONCE)),
            answer: None,
            compacting: CompactReason::Full,
            is_asked: false,
            trace: None,
            servers: None,
            questions: mpsc::unbounded_channel(),
            elicitations: HashMap::new(),
        }
    }

    /// Runs until the thread is unloaded or cannot go on.
    pub async fn run(mut self) {
        self.tell_status();
        let stop = loop {
            // Callers of a previous run do not wait any more.
            if let Err(stop) = self.end_orphans().await {
                break stop;
            }
            if let Err(stop) = self.advance().await {
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
        let is_idle = self.work.is_empty() && matches!(self.thread.next(), Step::Idle);
        let sleeps = is_idle && self.context.is_some();
        // A command that goes on behind a session id keeps its thread loaded.
        let unloads = is_idle && !sleeps && !self.processes.has_running();
        let time_left = self.time_left();
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
            Some(question) = self.questions.1.recv() => self.ask_user(question).await,
            () = tokio::time::sleep(CONTEXT_KEPT), if sleeps => {
                self.context = None;
                self.written = Written::default();
                self.told = Told::default();
                Ok(())
            }
            // Subscribers may send input at any time; they are checked again later.
            () = tokio::time::sleep(self.shared.config.unload_after), if unloads => {
                if self.feed.has_readers() { Ok(()) } else { Err(Stop::Unloaded) }
            }
            () = tokio::time::sleep(time_left.unwrap_or_default()), if time_left.is_some() => self.time_is_up().await,
        }
    }

    async fn done(&mut self, done: Done) -> Result<(), Stop> {
        match done {
            Done::Asked { turn, step, answer } if self.is_running(&turn) => {
                self.asking = None;
                self.answered(turn, step, answer).await
            }
            Done::Summarised { turn, answer } if self.is_running(&turn) => {
                self.asking = None;
                self.summarised(turn, answer).await
            }
            Done::Called { turn, call, end } => self.called(turn, call, end).await,
            _ => Ok(()),
        }
    }

    /// Does what the state asks for until only waiting is left.
    async fn advance(&mut self) -> Result<(), Stop> {
        loop {
            // Of many calls each end would otherwise copy all the others.
            if self.only_waits() {
                return Ok(());
            }
            match self.thread.next() {
                Step::Idle | Step::AwaitAnswer { .. } => return Ok(()),
                Step::StartTurn { inputs } => {
                    let turn = TurnId((self.shared.ids)());
                    let inputs = inputs.into_iter().map(|input| input.id).collect();
                    let started = TurnStarted::new(turn, inputs);
                    self.begin_turn(vec![started.into()]).await?;
                }
                Step::AskModel { .. } | Step::Compact { .. } if self.asking.is_some() => return Ok(()),
                Step::AskModel { turn, step } => {
                    if let Some(reason) = self.spent() {
                        tracing::info!(thread = %self.thread.id, reason, "a budget is used up");
                        self.finish_turn(turn, TurnStatus::Interrupted, Some(InterruptReason::Budget), Some(reason)).await?;
                    } else {
                        self.begin_step(turn, step).await?;
                    }
                }
                Step::Compact { turn, reason } => self.begin_compaction(turn, reason).await?,
                Step::Decide { turn, calls } => self.decide(turn, calls).await?,
                Step::RunCalls { turn, calls } => self.run_approved(turn, calls).await?,
                Step::ReattachCalls { turn, calls, .. } => {
                    let strangers: Vec<_> = calls.into_iter().filter(|call| !self.calls.contains_key(&call.id)).collect();
                    if strangers.is_empty() {
                        return Ok(());
                    }
                    self.reattach(turn, strangers).await?;
                }
                Step::FinishTurn { turn, status } => {
                    let reason = (status == TurnStatus::Interrupted).then_some(InterruptReason::User);
                    self.finish_turn(turn, status, reason, None).await?;
                }
            }
        }
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
        let entry = |(seq, fact)| Entry { seq, at, fact };
        let entries: Vec<Entry> = (self.thread.last + 1..).zip(facts).map(entry).collect();
        let appended = loop {
            match self.store.append(&self.lease, entries.clone(), need).await {
                Err(error @ AppendError::NoSpace { .. }) if !self.is_asked => {
                    self.set_status(Status::Broken { reason: error.to_string() });
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
            if let Some(context) = &mut self.context {
                context.apply(&entry);
            }
            let weight = 256 + entry.fact.data().map_or(0, |data| data.get().len());
            self.feed.publish(Event::Entry(Arc::new(entry)), weight);
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
        let over = |limit: Option<u64>, used: u64| limit.filter(|limit| used >= *limit);
        if let Some(limit) = over(budgets.turn_tokens, total.saturating_sub(before)) {
            return Some(format!("this turn has used its {limit} tokens (`budgets.turn_tokens`)"));
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
        let limit = self.shared.config.budgets.turn_seconds?;
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
        let limit = Duration::from_secs(self.shared.config.budgets.turn_seconds?);
        let turn = self.thread.turn.as_ref().filter(|_| !matches!(self.thread.next(), Step::AwaitAnswer { .. }))?;
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
        if let Some(asking) = self.asking.take() {
            asking.abort();
        }
        let mut facts = self.abort_calls();
        facts.push(finished.into());
        self.record(facts, Need::BeforeCompleted).await?;
        self.answers.clear();
        self.trace = None;
        self.answer = None;
        self.step = None;
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
        if let Err(error) = keep_checkpoint(&self.store, &self.thread).await {
            tracing::debug!(thread = %self.thread.id, %error, "no checkpoint could be kept");
        }
    }

    fn tell_status(&self) {
        self.set_status(Status::of(&self.thread));
    }

    fn set_status(&self, status: Status) {
        let changed = self.status.send_if_modified(|now| {
            let differs = *now != status;
            now.clone_from(&status);
            differs
        });
        if changed {
            self.feed.publish(Event::Status(status), 64);
        }
    }

    /// Leaves everything as the next driver of this thread needs it.
    async fn close(mut self, stop: &Stop) {
        if let Some(asking) = self.asking.take() {
            asking.abort();
        }
        for running in self.calls.values() {
            running.task.abort();
        }
        self.mailbox.close();
        self.store.release(self.lease).await;
        let status = match stop {
            Stop::Unloaded => Status::Closed,
            other => {
                tracing::warn!(thread = %self.thread.id, reason = %other, "a thread had to stop");
                Status::Broken { reason: other.to_string() }
            }
        };
        self.status.send_replace(status.clone());
        self.feed.publish(Event::Status(status), 64);
        self.feed.end();
        // Callers that still wait get no answer: the sender is dropped with the command.
        while self.mailbox.try_recv().is_ok() {}
    }
}
