//! A thread that is loaded: how to talk to it and how to watch it. The thread itself lives in its driver's task.

use std::sync::Arc;

use bytes::Bytes;
use outpost_store::Store;
use outpost_thread::{
    Approval, ApprovalId, ApprovalKind, CallId, Decision, Entry, Fact, InputId, InputOrigin, InterruptReason, Ordinal, Raw, Settings,
    Thread, ThreadId, TurnId, TurnKind,
};
use outpost_wire::SharedError;
use outpost_wire::envelope::TraceContext;
use outpost_wire::intent::Selection;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};

use crate::feed::{FeedReader, ThreadFeed};
use crate::mcp::{Binding, McpEvent};
use crate::model::ModelProgress;

/// What happens in a loaded thread. Entries are in the store before they are published; everything else is only told
/// to those who listen at that moment.
#[derive(Debug, Clone)]
pub enum ThreadEvent {
    Entry(Arc<Entry>),
    Progress {
        turn: TurnId,
        step: u32,
        progress: ModelProgress,
    },
    Output {
        call: CallId,
        bytes: Bytes,
    },
    /// A command that outlived its call has ended.
    ProcessEnded {
        call: CallId,
        exit_code: Option<i32>,
    },
    Status(ThreadActivity),
    /// Of its MCP servers.
    Mcp(McpEvent),
    /// Something that its users should know, and that ends nothing.
    Warning {
        message: String,
    },
}

/// What a thread is doing, in a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThreadActivity {
    Idle,
    Active {
        waits_for_approval: bool,
        waits_for_input: bool,
    },
    /// It had to stop; resuming it may help.
    Broken {
        reason: String,
    },
    /// It is not loaded any more.
    Closed,
}

impl ThreadActivity {
    pub(crate) fn of(thread: &Thread) -> Self {
        match &thread.turn {
            None if thread.queued.is_empty() => Self::Idle,
            None => Self::Active { waits_for_approval: false, waits_for_input: false },
            Some(turn) => {
                let is_input = |approval: &&Approval| {
                    matches!(approval.asked.kind, ApprovalKind::UserInput | ApprovalKind::DynamicTool | ApprovalKind::McpElicitation)
                };
                let inputs = turn.approvals.iter().filter(is_input).count();
                Self::Active { waits_for_approval: turn.approvals.len() > inputs, waits_for_input: inputs > 0 }
            }
        }
    }
}

/// Something that a user, a client or another agent says to a thread.
#[derive(Debug, Clone, Default)]
pub struct NewInput {
    pub mode: InputMode,
    pub origin: InputOrigin,
    /// The same key again is the same input, not a second one.
    pub client_key: Option<String>,
    /// Who says it, where clients have names.
    pub by: Option<String>,
    /// As the client wrote it.
    pub content: Vec<Raw>,
    /// As the model sees it, where that is not simply the texts of `content`.
    pub items: Vec<Raw>,
    /// Settings that stay for later turns.
    pub settings: Settings,
    /// A selection that stays.
    pub selection: Option<Selection>,
    /// A selection for the turn that this starts, and no longer.
    pub turn_selection: Option<Selection>,
    pub output_schema: Option<Raw>,
    /// What kind of turn it starts.
    pub kind: TurnKind,
    /// What of a distributed trace the requests to the model belong to. It is not stored.
    pub trace: Option<TraceContext>,
}

/// The tag of the message by which a model learns that it is to finish a turn.
pub(crate) const TURN_RESUMED: &str = "turn_resumed";

impl NewInput {
    /// A text of the user's.
    pub fn text(text: &str) -> Self {
        Self { content: vec![Raw::from(serde_json::json!({"type": "text", "text": text}))], ..Self::default() }
    }

    /// Asks for the rest of a turn that was interrupted, or that failed.
    pub fn go_on() -> Self {
        let text = format!(
            "<{TURN_RESUMED}>\nThe user wants the last turn finished, which did not come to its end. Look at the present state first: \
             commands that were stopped may have done a part of their work.\n</{TURN_RESUMED}>"
        );
        let item = serde_json::json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]});
        Self { items: vec![Raw::from(item)], ..Self::text("go on") }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum InputMode {
    /// Goes to the running turn if there is one, else starts one.
    #[default]
    StartOrSteer,
    /// Only if no turn is running.
    StartIfIdle,
    /// Waits for a turn of its own.
    Queue,
    /// Only to the running turn, and only if it is this one.
    Steer { expected: Option<TurnId> },
}

/// What is to become of inputs that wait for a turn of their own.
#[derive(Debug, Clone)]
pub enum QueueChange {
    /// Says something else instead, in the same place.
    Replace { input: InputId, content: Vec<Raw>, items: Vec<Raw> },
    /// Was never said.
    Remove(InputId),
    /// Those of the user in this order; all of them must be named.
    Order(Vec<InputId>),
    /// Waits no longer: it goes to the running turn, or starts one. The first one if none is named.
    Start(Option<InputId>),
}

/// What became of such a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueChangeResult {
    Done,
    /// There is no such input that waits.
    Unknown,
    /// It is taken up in this turn.
    Taken(TurnId),
}

/// What became of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    Started(TurnId),
    Steered(TurnId),
    Queued,
    /// It was there already: the same key.
    Known(Option<TurnId>),
}

#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum CommandError {
    #[error("the thread is not loaded any more")]
    Closed,
    #[error("no turn is running")]
    NoTurn,
    #[error("turn `{expected}` is not running; `{running}` is")]
    OtherTurn { expected: TurnId, running: TurnId },
    #[error("a turn is running")]
    Busy,
    #[error(
        "a turn is running, and what is meant for one turn only (environments, an output schema) cannot join it: wait for its end, interrupt \
         it, or change the thread's own environments"
    )]
    OwnTurn,
    #[error("a turn of this kind cannot be steered")]
    NotSteerable,
    #[error("turn not found: {0}")]
    UnknownTurn(TurnId),
    #[error("no question `{0}` is open: it was never asked or is already answered")]
    NoQuestion(ApprovalId),
    #[error("it could not be stored: {0}")]
    NotStored(#[source] SharedError),
    #[error("{0}")]
    Invalid(#[source] SharedError),
}

/// A question aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    pub prompt: String,
    /// Instead of that of the thread.
    pub effort: Option<String>,
}

/// The answer to a question aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sampled {
    /// Nothing if the model said nothing.
    pub text: Option<String>,
    pub usage: crate::model::ModelUsage,
}

/// A command of the user's that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserCommand {
    pub turn: TurnId,
    pub call: CallId,
    /// Whether the turn is there for nothing else.
    pub is_own_turn: bool,
}

/// A command that outlived its call and still runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackgroundProcess {
    /// What the model calls it.
    pub session: u64,
    pub call: CallId,
    /// The entry that asked for it.
    pub asked_ordinal: Ordinal,
    pub command: String,
    /// The environment that it runs in.
    pub environment: String,
}

pub(crate) type CommandReply<T> = oneshot::Sender<Result<T, CommandError>>;

pub(crate) enum DriverCommand {
    Input(Box<NewInput>, CommandReply<Accepted>),
    Interrupt {
        turn: Option<TurnId>,
        reason: InterruptReason,
        reply: CommandReply<()>,
    },
    Answer {
        approval: ApprovalId,
        decision: Decision,
        detail: Option<Raw>,
        by: Option<String>,
        reply: CommandReply<()>,
    },
    /// Facts that change how the thread is described or how later turns run.
    Change(Vec<Fact>, CommandReply<()>),
    Queue(QueueChange, CommandReply<QueueChangeResult>),
    Compact(CommandReply<TurnId>),
    /// The model is asked something aside.
    Sample(Sample, CommandReply<Sampled>),
    /// A turn and all later ones do not count any more.
    Revert(TurnId, CommandReply<()>),
    Shell {
        command: String,
        environment: Option<String>,
        reply: CommandReply<UserCommand>,
    },
    /// Stops one call of the running turn.
    StopCall(CallId),
    Snapshot(oneshot::Sender<Thread>),
    /// MCP servers that the thread is to keep running instead of those that it has.
    KeepServers(Arc<Binding>),
    /// The commands that outlived their calls and still run.
    Terminals(oneshot::Sender<Vec<BackgroundProcess>>),
    /// Looks for those that a previous run of the thread left running.
    FindCommands(oneshot::Sender<Vec<CallId>>),
    /// Ends one of them, or all.
    Terminate {
        session: Option<u64>,
        reply: CommandReply<usize>,
    },
    Shutdown(InterruptReason),
    /// The program ends, and the thread can be loaded again: its commands go on.
    Leave(InterruptReason),
    /// The thread will be handed over: nothing begins any more, and the answer comes when no call runs that the next node could neither find
    /// again nor repeat.
    LastCalls(oneshot::Sender<()>),
    /// Ends as [`Self::Leave`] does, and another node goes on with the turn.
    HandOver,
}

/// A handle of a loaded thread. Cheap to clone; dropping it does not unload the thread.
#[derive(Clone)]
pub struct LiveThread {
    pub(crate) id: ThreadId,
    pub(crate) mailbox: mpsc::Sender<DriverCommand>,
    pub(crate) feed: Arc<ThreadFeed<ThreadEvent>>,
    pub(crate) store: Store,
    pub(crate) status: watch::Receiver<ThreadActivity>,
    /// The thread that made it, if it is an agent.
    pub(crate) maker: Option<ThreadId>,
    /// It works for the runtime itself, and is not published.
    pub(crate) internal: bool,
}

impl LiveThread {
    pub fn id(&self) -> ThreadId {
        self.id
    }

    /// The thread that made it, if it is an agent.
    pub fn maker(&self) -> Option<ThreadId> {
        self.maker
    }

    /// Everything that happens from now on.
    pub fn subscribe(&self) -> FeedReader<ThreadEvent> {
        self.feed.subscribe()
    }

    pub fn status(&self) -> ThreadActivity {
        self.status.borrow().clone()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Waits until the driver has ended and given the thread back.
    pub(crate) async fn ended(&self) {
        let mut status = self.status.clone();
        // If it is gone without a word, it has ended as well.
        let _ = status.wait_for(|status| matches!(status, ThreadActivity::Closed | ThreadActivity::Broken { .. })).await;
    }

    pub async fn input(&self, input: NewInput) -> Result<Accepted, CommandError> {
        self.ask(|reply| DriverCommand::Input(Box::new(input), reply)).await
    }

    /// Stops the running turn; with a turn given, only that one. A turn that is over already is no error.
    pub async fn interrupt(&self, turn: Option<TurnId>, reason: InterruptReason) -> Result<(), CommandError> {
        self.ask(|reply| DriverCommand::Interrupt { turn, reason, reply }).await
    }

    pub async fn answer(&self, approval: ApprovalId, decision: Decision, detail: Option<Raw>) -> Result<(), CommandError> {
        self.answer_by(approval, decision, detail, None).await
    }

    /// The same for a person with a name.
    pub async fn answer_by(
        &self,
        approval: ApprovalId,
        decision: Decision,
        detail: Option<Raw>,
        by: Option<String>,
    ) -> Result<(), CommandError> {
        self.ask(|reply| DriverCommand::Answer { approval, decision, detail, by, reply }).await
    }

    /// Changes settings, selection, capability roots, names and marks.
    pub async fn change(&self, facts: Vec<Fact>) -> Result<(), CommandError> {
        self.ask(|reply| DriverCommand::Change(facts, reply)).await
    }

    /// Changes what waits for a turn of its own.
    pub async fn queue(&self, change: QueueChange) -> Result<QueueChangeResult, CommandError> {
        self.ask(|reply| DriverCommand::Queue(change, reply)).await
    }

    pub async fn compact(&self) -> Result<TurnId, CommandError> {
        self.ask(DriverCommand::Compact).await
    }

    /// Asks the model something with all that it knows of the thread; the thread knows nothing of it. Dropping the future cancels it.
    pub async fn sample(&self, sample: Sample) -> Result<Sampled, CommandError> {
        self.ask(|reply| DriverCommand::Sample(sample, reply)).await
    }

    /// Goes on from before a turn: it and all later ones do not count any more. What they did is not undone.
    pub async fn revert(&self, before: TurnId) -> Result<(), CommandError> {
        self.ask(|reply| DriverCommand::Revert(before, reply)).await
    }

    /// Runs a command that the user typed: as a turn of its own, or beside what the running turn does.
    pub async fn shell(&self, command: String, environment: Option<String>) -> Result<UserCommand, CommandError> {
        self.ask(|reply| DriverCommand::Shell { command, environment, reply }).await
    }

    /// Stops a command that [`LiveThread::shell`] began, and nothing else. One that is over already is no error.
    pub async fn stop_command(&self, command: UserCommand) -> Result<(), CommandError> {
        if command.is_own_turn {
            // If another turn is running by now, it has ended.
            let _ = self.interrupt(Some(command.turn), InterruptReason::Budget).await;
            return Ok(());
        }
        self.mailbox.send(DriverCommand::StopCall(command.call)).await.map_err(|_| CommandError::Closed)
    }

    /// The state as it is now.
    pub async fn snapshot(&self) -> Result<Thread, CommandError> {
        let (reply, answer) = oneshot::channel();
        self.mailbox.send(DriverCommand::Snapshot(reply)).await.map_err(|_| CommandError::Closed)?;
        answer.await.map_err(|_| CommandError::Closed)
    }

    /// The thread keeps these servers running as long as it is loaded. A step that runs goes on with its own.
    pub(crate) async fn keep_servers(&self, servers: Arc<Binding>) {
        let _ = self.mailbox.send(DriverCommand::KeepServers(servers)).await;
    }

    /// The commands that outlived their calls and still run.
    pub async fn terminals(&self) -> Result<Vec<BackgroundProcess>, CommandError> {
        let (reply, answer) = oneshot::channel();
        self.mailbox.send(DriverCommand::Terminals(reply)).await.map_err(|_| CommandError::Closed)?;
        answer.await.map_err(|_| CommandError::Closed)
    }

    /// Looks for commands that a previous run of the thread left running, in the environments that it works in now, and follows
    /// them like those of this life. The end of each is published, also of one that has ended since. An environment that cannot be
    /// reached is passed over.
    pub async fn find_commands(&self) -> Result<Vec<CallId>, CommandError> {
        let (reply, answer) = oneshot::channel();
        self.mailbox.send(DriverCommand::FindCommands(reply)).await.map_err(|_| CommandError::Closed)?;
        answer.await.map_err(|_| CommandError::Closed)
    }

    /// Ends one of them, or all if none is named; how many there were to end.
    pub async fn terminate(&self, session: Option<u64>) -> Result<usize, CommandError> {
        self.ask(|reply| DriverCommand::Terminate { session, reply }).await
    }

    /// Gives the thread up as it stands: a running turn stays open, and the process that loads the thread next goes on with it. A
    /// thread that another process drives is left to it.
    pub async fn hand_over(&self) {
        if self.mailbox.send(DriverCommand::HandOver).await.is_ok() {
            self.ended().await;
        }
    }

    /// Waits until no turn is running and nothing is queued.
    pub async fn settled(&self) -> ThreadActivity {
        let mut status = self.status.clone();
        let settled = status.wait_for(|status| !matches!(status, ThreadActivity::Active { .. })).await;
        settled.map_or(ThreadActivity::Closed, |status| status.clone())
    }

    async fn ask<T>(&self, command: impl FnOnce(CommandReply<T>) -> DriverCommand) -> Result<T, CommandError> {
        let (reply, answer) = oneshot::channel();
        self.mailbox.send(command(reply)).await.map_err(|_| CommandError::Closed)?;
        answer.await.map_err(|_| CommandError::Closed)?
    }
}
