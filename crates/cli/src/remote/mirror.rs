//! A thread of a server, opened and mirrored: what happens there comes in as notifications, what is asked of it goes out as requests.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use outpost_runtime::feed::FeedLimits;
use outpost_runtime::live::{Accepted, BackgroundProcess, CommandError, LiveThread, NewInput, ThreadActivity, ThreadEvent, UserCommand};
use outpost_runtime::mcp::McpEvent;
use outpost_runtime::mirror::{MirrorCommand, RunningTurn, Tells, ThreadMirror};
use outpost_runtime::model::ModelProgress;
use outpost_store::MemoryStore;
use outpost_thread::{CallId, Entry, Fact, Raw, Thread, ThreadCreated, ThreadId, TurnId};
use outpost_wire::app::event::{AgentMessageDelta, CommandOutputDelta, ErrorNotice, McpServerStatusUpdated, TokenUsageUpdated, Warning};
use outpost_wire::app::journal::{
    JournalEntry, ThreadApprovalAnswer, ThreadApprovalAnswerParams, ThreadEntriesList, ThreadEntriesListParams, ThreadEntry,
};
use outpost_wire::app::overview::{ThreadOverview, ThreadOverviewParams};
use outpost_wire::app::settings::{ThreadSettingsUpdate, ThreadSettingsUpdateParams};
use outpost_wire::app::thread::{
    BackgroundTerminalsClean, BackgroundTerminalsList, BackgroundTerminalsListParams, BackgroundTerminalsTerminate,
    BackgroundTerminalsTerminateParams, ThreadCompactStart, ThreadOpened, ThreadResume, ThreadResumeParams, ThreadRevert,
    ThreadRevertParams, ThreadShellCommand, ThreadShellCommandParams,
};
use outpost_wire::app::turn::{AdditionalContext, ContextKind, TurnInterrupt, TurnInterruptParams, TurnStart, TurnStartParams, UserInput};
use outpost_wire::app::{AppMethod, ThreadParams};
use outpost_wire::intent::{Attachment, EnvironmentId, Selection};
use outpost_wire::{PathUri, SharedError};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::connection::{BACK, GONE};
use super::{FollowedThread, FrameRoute, Notified, RemoteServer, Waits};
use crate::agents_remote::places_of;
use crate::out::with_causes;

/// So long after it closed a thread a server that stops may take to close the connection: longer than it gives all its threads.
const STOPPING: Duration = Duration::from_secs(22);

/// A thread of a server that is followed here.
pub(crate) struct OpenedMirror {
    pub thread: LiveThread,
    /// How it stood when it was opened.
    pub before: Thread,
    window: ContextWindow,
    _pump: AbortOnDropHandle<()>,
}

impl OpenedMirror {
    /// What the context of its model may hold; 0 until the server has told.
    pub(crate) fn context_window(&self) -> u64 {
        self.window.0.load(Ordering::Relaxed)
    }
}

/// What the context of a thread's model may hold, as the server told last.
#[derive(Clone, Default)]
struct ContextWindow(Arc<AtomicU64>);

impl RemoteServer {
    /// Follows a thread that was started or resumed on this connection.
    pub(crate) async fn mirror(&self, opened: &ThreadOpened, store: MemoryStore, limits: FeedLimits) -> anyhow::Result<OpenedMirror> {
        // First to listen and then to look, so that nothing falls in between.
        let mut notified = self.route(&opened.thread.id);
        let initial = initial(opened)?;
        let (thread, mut mirror, commands) = ThreadMirror::new(initial, store, limits).await.context("the thread is open already")?;
        let is_answering = self.catch_up(&mut mirror, Tells::NoOne, &mut notified).await?.unwrap_or_default();
        let before = mirror.state();
        let window = ContextWindow::default();
        window.0.store(opened.model_context_window.unwrap_or_default(), Ordering::Relaxed);
        let follows = FollowedThread { routes: self.routes.clone(), thread: opened.thread.id.clone() };
        follows.is_followed_on(self.connection.number());
        let remote = RemoteThread::new(self, &mirror);
        let pump = Pump {
            server: self.clone(),
            id: opened.thread.id.clone(),
            mirror,
            window: window.clone(),
            follows,
            is_answering,
            has_hole: false,
        };
        let task = tokio::spawn(async move {
            tokio::select! {
                () = pump.run(notified) => {}
                // What is asked is passed on whatever is waited for beside: who wants to stop a turn must be told that it cannot be.
                () = remote.carry_out_all(commands) => {}
            }
        });
        Ok(OpenedMirror { thread, before, window, _pump: AbortOnDropHandle::new(task) })
    }

    /// Reads what is stored and not known here yet. What is notified meanwhile stays to be heard.
    /// Tells whether a model is being asked, if that was read.
    async fn catch_up(&self, mirror: &mut ThreadMirror, tells: Tells, notified: &mut FrameRoute) -> anyhow::Result<Option<bool>> {
        let (mut after, mut answering) = (mirror.last(), None);
        loop {
            let params = ThreadEntriesListParams { thread_id: mirror.id().to_string(), after: Some(after), limit: None };
            let page = notified.hold(self.call::<ThreadEntriesList>(&params)).await?;
            let entries: Vec<Entry> = page.data.into_iter().map(entry).collect();
            answering = is_answering(entries.iter()).or(answering);
            if !mirror.entries(entries, tells).await {
                anyhow::bail!("{} told the entries of thread {} out of order", self.address(), mirror.id());
            }
            match page.next_after {
                Some(next) => after = next,
                None => return Ok(answering),
            }
        }
    }
}

pub(super) fn entry(entry: JournalEntry) -> Entry {
    Entry { ordinal: entry.ordinal, at: entry.at_ms, fact: Fact::read(entry.version, &entry.kind, Raw::from(entry.data)) }
}

impl Notified {
    /// The entry that it tells of, if it does.
    pub(crate) fn entry(&self) -> Option<(ThreadId, Entry)> {
        if self.method != "thread/entry" {
            return None;
        }
        let told: ThreadEntry = read(&self.params)?;
        Some((told.thread_id.parse().ok()?, entry(told.entry)))
    }
}

impl RemoteServer {
    /// A handle of a thread that is not followed here: it can be answered, and that is all.
    pub(crate) async fn answerable(&self, id: ThreadId) -> Option<LiveThread> {
        let initial = Thread::begin(&Entry { ordinal: 1, at: 0, fact: ThreadCreated::new(id).into() }).ok()?;
        let store = MemoryStore::new(std::sync::Arc::new(crate::store::now), None);
        let (thread, mirror, commands) = ThreadMirror::new(initial, store, FeedLimits::default()).await?;
        let remote = RemoteThread::new(self, &mirror);
        tokio::spawn(async move {
            remote.carry_out_all(commands).await;
            drop(mirror);
        });
        Some(thread)
    }
}

/// What is known of a thread of which nothing is stored yet.
fn initial(opened: &ThreadOpened) -> anyhow::Result<Thread> {
    let id: ThreadId = opened.thread.id.parse().context("the server names a thread by no id")?;
    let mut created = ThreadCreated::new(id);
    created.settings.model = Some(opened.model.clone());
    created.settings.model_provider = Some(opened.model_provider.clone());
    let places = opened.thread.environments.iter().flatten().filter_map(|place| {
        let cwd = PathUri::from_syntax(&place.cwd).or_else(|_| PathUri::parse(&place.cwd)).ok()?;
        Some(Attachment::new(EnvironmentId::parse(&place.environment_id).ok()?, cwd))
    });
    created.selection = Selection::new(places.collect()).ok();
    Ok(Thread::begin(&Entry { ordinal: 1, at: 0, fact: created.into() })?)
}

struct Pump {
    server: RemoteServer,
    id: String,
    mirror: ThreadMirror,
    window: ContextWindow,
    follows: FollowedThread,
    /// A model is being asked.
    is_answering: bool,
    /// A part of its answer was not heard: the rest is told with the whole.
    has_hole: bool,
}

/// Whether a model is being asked after these entries; nothing if they do not say.
fn is_answering<'a>(entries: impl DoubleEndedIterator<Item = &'a Entry>) -> Option<bool> {
    entries.rev().find_map(|entry| match &entry.fact {
        Fact::ModelAsked(_) => Some(true),
        Fact::ModelAnswered(_) | Fact::TurnFinished(_) => Some(false),
        _ => None,
    })
}

/// Why a thread is followed anew.
#[derive(Clone, Copy)]
enum FollowedAgain {
    ConnectionBack,
    Closed,
}

impl Pump {
    async fn run(mut self, mut notified: FrameRoute) {
        while let Some(heard) = notified.next().await {
            if !self.hear(&heard, &mut notified).await {
                return;
            }
        }
        self.give_up();
    }

    /// The thread goes on there.
    fn give_up(&self) {
        let why = self.server.given_up().unwrap_or_else(|| format!("the connection to {} was lost", self.server.address()));
        let reason = format!("{why}; the thread goes on there");
        self.mirror.event(ThreadEvent::Status(ThreadActivity::Broken { reason }));
    }

    /// Follows the thread anew, from where it was followed last. False if that cannot be.
    async fn go_on(&mut self, why: FollowedAgain, notified: &mut FrameRoute) -> bool {
        let params = ThreadResumeParams { thread_id: self.id.clone(), exclude_turns: true, ..ThreadResumeParams::default() };
        let resumed = notified.hold(self.server.ask::<ThreadResume>(&params, Waits::ForConnection)).await;
        let read = match resumed {
            Ok((_, number)) => {
                // Before what is caught up with: that may end the turn, and with it the program that shows this.
                self.warn(match why {
                    FollowedAgain::ConnectionBack => format!("the connection to {} was lost and is back", self.server.address()),
                    FollowedAgain::Closed => "the thread was closed where it was driven, and is followed again".to_owned(),
                });
                let read = self.server.catch_up(&mut self.mirror, Tells::Followers, notified).await;
                self.follows.is_followed_on(number);
                read
            }
            Err(error) => Err(error),
        };
        match read {
            Ok(answering) => {
                self.is_answering = answering.unwrap_or(self.is_answering);
                self.has_hole = self.is_answering;
                self.server.routes.tell_others(BACK);
                true
            }
            Err(error) => {
                let what = match why {
                    FollowedAgain::ConnectionBack => format!("the connection to {} is back, but the thread", self.server.address()),
                    FollowedAgain::Closed => "the thread was closed where it was driven, and".to_owned(),
                };
                let reason = format!("{what} cannot be followed: {}", with_causes(&error));
                self.mirror.event(ThreadEvent::Status(ThreadActivity::Broken { reason }));
                false
            }
        }
    }

    fn hear_of_model(&mut self, answering: Option<bool>) {
        let Some(answering) = answering else { return };
        self.is_answering = answering;
        self.has_hole = false;
    }

    fn warn(&self, message: String) {
        self.mirror.event(ThreadEvent::Warning { message });
    }

    /// Whether a node has the thread, or had it until it died.
    async fn is_held(&self, notified: &mut FrameRoute) -> bool {
        let params = ThreadOverviewParams { thread_ids: vec![self.id.clone()] };
        let asked = self.server.while_connected(self.server.call::<ThreadOverview>(&params));
        let Some(Ok(overview)) = notified.hold(asked).await else { return false };
        overview.data.first().is_some_and(|entry| entry.holder.is_some())
    }

    /// Whether nothing is to be done in the thread: a driver that failed would fail again, and what was archived is not to be loaded.
    fn is_at_rest(&self) -> bool {
        let state = self.mirror.state();
        state.turn.is_none() && state.queued.is_empty() && !state.metadata.archived
    }

    /// A server that stops closes its threads first. True if that is why.
    async fn is_stopping(&self, notified: &mut FrameRoute) -> bool {
        let told = tokio::time::timeout(STOPPING, async {
            loop {
                match notified.next().await {
                    Some(heard) if heard.method == BACK || heard.method == GONE => return Some(heard),
                    Some(_) => {}
                    None => return None,
                }
            }
        });
        match told.await {
            Ok(Some(heard)) => {
                notified.kept.push_front(heard);
                true
            }
            Ok(None) => true,
            Err(_) => false,
        }
    }

    /// Whether the thread is still open.
    async fn hear(&mut self, heard: &Notified, notified: &mut FrameRoute) -> bool {
        match heard.method.as_str() {
            "thread/entry" => {
                let Some(ThreadEntry { entry: told, .. }) = read(&heard.params) else { return true };
                let told = entry(told);
                self.hear_of_model(is_answering(std::iter::once(&told)));
                if !self.mirror.entries(vec![told], Tells::Followers).await {
                    match self.server.catch_up(&mut self.mirror, Tells::Followers, notified).await {
                        Ok(answering) => self.hear_of_model(answering),
                        Err(error) => tracing::warn!("a part of what happened cannot be read: {}", with_causes(&error)),
                    }
                }
            }
            "item/agentMessage/delta" => {
                if let Some(AgentMessageDelta { turn_id, item_id, delta, .. }) = read(&heard.params).filter(|_| !self.has_hole) {
                    let progress = ModelProgress::TextDelta { item_id, delta };
                    self.mirror.event(ThreadEvent::Progress { turn: TurnId(turn_id), step: 0, progress });
                }
            }
            "item/commandExecution/outputDelta" => {
                if let Some(CommandOutputDelta { item_id, delta, .. }) = read(&heard.params) {
                    self.mirror.event(ThreadEvent::Output { call: CallId(item_id), bytes: Bytes::from(delta) });
                }
            }
            "thread/tokenUsage/updated" => {
                if let Some(TokenUsageUpdated { token_usage, .. }) = read(&heard.params)
                    && let Some(window) = token_usage.model_context_window
                {
                    self.window.0.store(window, Ordering::Relaxed);
                }
            }
            "mcpServer/startupStatus/updated" => {
                if let Some(McpServerStatusUpdated { name, status, error, .. }) = read(&heard.params) {
                    self.mirror.event(ThreadEvent::Mcp(McpEvent::Startup { server: name, state: status, error }));
                }
            }
            "warning" => {
                if let Some(Warning { message, .. }) = read(&heard.params) {
                    self.mirror.event(ThreadEvent::Warning { message });
                }
            }
            "error" => {
                if let Some(ErrorNotice { error, will_retry: true, .. }) = read(&heard.params) {
                    self.mirror.event(ThreadEvent::Warning { message: error.message });
                }
            }
            GONE => self.warn(format!("the connection to {} was lost; trying to get it back", self.server.address())),
            BACK => return self.go_on(FollowedAgain::ConnectionBack, notified).await,
            // Through the server that we have, its next node is found, too.
            "thread/closed" => {
                // What is asked of the thread meanwhile waits until it is followed again.
                self.follows.is_followed_on(0);
                if !self.is_held(notified).await {
                    if self.is_stopping(notified).await {
                        return true;
                    }
                    if !self.is_at_rest() && !self.is_held(notified).await {
                        return false;
                    }
                }
                return self.go_on(FollowedAgain::Closed, notified).await;
            }
            _ => {}
        }
        true
    }
}

fn read<T: DeserializeOwned>(params: &[u8]) -> Option<T> {
    serde_json::from_slice(params).inspect_err(|error| tracing::warn!(%error, "a notification of the server makes no sense")).ok()
}

/// A part of a model's item as a client sends it.
fn sent_part(part: &Value) -> Option<UserInput> {
    match part["type"].as_str()? {
        "input_image" => Some(UserInput::Image { url: part["image_url"].as_str().map(str::to_owned), file_id: None, detail: None }),
        _ => Some(UserInput::Text { text: part["text"].as_str()?.to_owned(), text_elements: None }),
    }
}

/// Who carries out what is asked of the thread.
#[derive(Clone)]
struct RemoteThread {
    server: RemoteServer,
    id: String,
    running: RunningTurn,
    turns: watch::Receiver<HashSet<TurnId>>,
}

impl RemoteThread {
    fn new(server: &RemoteServer, mirror: &ThreadMirror) -> Self {
        Self { server: server.clone(), id: mirror.id().to_string(), running: mirror.running(), turns: mirror.turns() }
    }

    /// Answers take as long as they take; what is asked next does not wait for them.
    async fn carry_out_all(&self, mut commands: mpsc::Receiver<MirrorCommand>) {
        while let Some(command) = commands.recv().await {
            tokio::spawn(self.clone().carry_out(command));
        }
    }

    async fn call<M: AppMethod>(&self, params: &M::Params) -> Result<M::Output, CommandError>
    where
        M::Params: serde::Serialize,
    {
        let answer = self.server.ask::<M>(params, Waits::ForThreads).await.map(|(output, _)| output);
        answer.map_err(|error| CommandError::Invalid(SharedError::worded(with_causes(&error), error)))
    }

    fn named(&self) -> ThreadParams {
        ThreadParams { thread_id: self.id.clone() }
    }

    async fn carry_out(self, command: MirrorCommand) {
        // A reply that nothing waits for any more is no error.
        match command {
            MirrorCommand::Input(input, reply) => drop(reply.send(self.input(*input).await)),
            MirrorCommand::Interrupt { turn, reply, .. } => drop(reply.send(self.interrupt(turn).await)),
            MirrorCommand::Answer { approval, decision, detail, reply } => {
                let decision = serde_json::to_value(decision).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default();
                let detail = detail.and_then(|detail| detail.read().ok());
                let params = ThreadApprovalAnswerParams { thread_id: self.id.clone(), approval_id: approval.0, decision, detail };
                drop(reply.send(self.call::<ThreadApprovalAnswer>(&params).await.map(drop)));
            }
            MirrorCommand::Change(facts, reply) => drop(reply.send(self.change(facts).await)),
            MirrorCommand::Compact(reply) => {
                let begun = self.call::<ThreadCompactStart>(&self.named()).await;
                drop(reply.send(begun.map(|_| TurnId(String::new()))));
            }
            MirrorCommand::Revert(turn, reply) => {
                let params = ThreadRevertParams { thread_id: self.id.clone(), before_turn_id: turn.0 };
                drop(reply.send(self.call::<ThreadRevert>(&params).await.map(drop)));
            }
            MirrorCommand::Shell { command, environment, reply } => {
                let params =
                    ThreadShellCommandParams { thread_id: self.id.clone(), command, timeout_ms: None, environment_id: environment };
                let begun = self.call::<ThreadShellCommand>(&params).await;
                let begun = begun.map(|_| UserCommand { turn: TurnId(String::new()), call: CallId(String::new()), is_own_turn: true });
                drop(reply.send(begun));
            }
            MirrorCommand::Terminals(reply) => {
                let listed = self.server.while_connected(self.terminals()).await.and_then(Result::ok);
                drop(reply.send(listed.unwrap_or_default()));
            }
            MirrorCommand::Terminate { session, reply } => drop(reply.send(self.terminate(session).await)),
        }
    }

    async fn input(mut self, input: NewInput) -> Result<Accepted, CommandError> {
        let items: Vec<Value> = input.items.iter().filter_map(|item| item.read().ok()).collect();
        let pictures: Vec<&Value> = items.iter().filter_map(|item| item["content"].as_array()).flatten().collect();
        let has_pictures = pictures.iter().any(|part| part["type"] == "input_image");
        // A file of this machine is none of the server's: pictures travel with the message.
        let said = match has_pictures {
            true => pictures.into_iter().filter_map(sent_part).collect(),
            false => input.content.iter().filter_map(|part| part.read::<UserInput>().ok()).collect(),
        };
        // What the model is told besides, such as that a turn is to be finished.
        let told = items.iter().filter(|_| !has_pictures);
        let texts = told.filter_map(|item| item["content"][0]["text"].as_str().map(str::to_owned));
        let context = texts
            .enumerate()
            .map(|(number, value)| (format!("note{number}"), AdditionalContext { kind: ContextKind::Application, value, name: None }));
        let params = TurnStartParams {
            thread_id: self.id.clone(),
            input: said,
            output_schema: input.output_schema.and_then(|schema| schema.read().ok()),
            // With a key it can be said twice, and counts once.
            client_user_message_id: input.client_key.or_else(|| Some(Uuid::new_v4().to_string())),
            additional_context: Some(context.collect()).filter(|context: &std::collections::BTreeMap<_, _>| !context.is_empty()),
            ..TurnStartParams::default()
        };
        let turn = TurnId(self.call::<TurnStart>(&params).await?.turn.id);
        // What asks next is told of a thread that is at work.
        let begun = self.turns.wait_for(|begun| begun.contains(&turn)).await;
        begun.map(|_| ()).map_err(|_| CommandError::Closed)?;
        Ok(Accepted::Started(turn))
    }

    async fn interrupt(&self, turn: Option<TurnId>) -> Result<(), CommandError> {
        let Some(turn) = turn.or_else(|| self.running.id()) else { return Ok(()) };
        let params = TurnInterruptParams { thread_id: self.id.clone(), turn_id: turn.0 };
        // Who stops a turn wants to know at once that it goes on.
        match self.server.while_connected(self.call::<TurnInterrupt>(&params)).await {
            Some(interrupted) => interrupted.map(drop),
            None => {
                Err(CommandError::Invalid(format!("the connection to {} is lost; the turn goes on there", self.server.address()).into()))
            }
        }
    }

    async fn change(&self, facts: Vec<Fact>) -> Result<(), CommandError> {
        for fact in facts {
            let mut params = ThreadSettingsUpdateParams { thread_id: self.id.clone(), ..Default::default() };
            match fact {
                Fact::SettingsChanged(changed) => {
                    params.model = changed.settings.model;
                    params.effort = changed.settings.reasoning_effort;
                }
                Fact::SelectionChanged(changed) => {
                    params.environments = changed.selection.as_ref().map(places_of);
                    params.selected_capability_roots = changed.capability_roots.map(|roots| {
                        roots.into_iter().filter_map(|root| serde_json::from_value(serde_json::to_value(root).ok()?).ok()).collect()
                    });
                }
                _ => return Err(CommandError::Invalid("this cannot be changed from here".into())),
            }
            self.call::<ThreadSettingsUpdate>(&params).await?;
        }
        Ok(())
    }

    async fn terminals(&self) -> Result<Vec<BackgroundProcess>, CommandError> {
        let params = BackgroundTerminalsListParams { thread_id: self.id.clone(), cursor: None, limit: None };
        let listed = self.call::<BackgroundTerminalsList>(&params).await?.data;
        let process = |terminal: outpost_wire::app::thread::BackgroundTerminal| BackgroundProcess {
            session: terminal.process_id.parse().unwrap_or_default(),
            call: CallId(terminal.item_id),
            asked_ordinal: 0,
            command: terminal.command,
            environment: terminal.environment_id.unwrap_or_default(),
        };
        Ok(listed.into_iter().map(process).collect())
    }

    async fn terminate(&self, session: Option<u64>) -> Result<usize, CommandError> {
        match session {
            Some(session) => {
                let params = BackgroundTerminalsTerminateParams { thread_id: self.id.clone(), process_id: session.to_string() };
                Ok(usize::from(self.call::<BackgroundTerminalsTerminate>(&params).await?.terminated))
            }
            None => {
                let count = self.terminals().await?.len();
                self.call::<BackgroundTerminalsClean>(&self.named()).await?;
                Ok(count)
            }
        }
    }
}
