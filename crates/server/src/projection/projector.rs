//! The fold: entries and events in, what a client is told out.

mod damage;
mod failure;
mod progress;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use outpost_runtime::live::{ThreadActivity, ThreadEvent};
use outpost_runtime::mcp::McpEvent;
use outpost_thread::{
    ApprovalAsked, ApprovalId, CallDetail, CallFinished, CallId, CallStarted, Entry, Fact, InputId, InputOrigin, InputReceived, Recorded,
};
use outpost_thread::{
    ModelAnswered, Ordinal, Raw, Settings, Thread, ThreadId, TokenTotals, TurnFinished, TurnId, TurnKind, TurnStarted, TurnStatus,
};
use outpost_wire::app::event::{self, Notice, TokenCounts, TokenUsage};
use outpost_wire::app::item::{Item, TimedItem};
use outpost_wire::app::queue::ThreadQueueChanged;
use outpost_wire::app::thread::ThreadStatus;
use outpost_wire::app::turn::{ItemsView, Turn, TurnStatus as Shown};
use serde::Deserialize;

pub use self::damage::warning as damage_warning;
use self::failure::Failure;
use super::ask::{About, ApprovalPrompt, Params};
use super::diffs::TurnDiff;
use super::{ClientMessage, Defaults, calls, items, thread};

/// What must be known of a thread to tell what happens in it.
pub struct Projector {
    id: ThreadId,
    name: String,
    defaults: Arc<Defaults>,
    /// The last entry that was told.
    last: Ordinal,
    settings: Settings,
    total: TokenTotals,
    turn: Option<Open>,
    /// Inputs that no turn has taken up yet.
    inputs: HashMap<InputId, Waiting>,
    calls: HashMap<CallId, Doing>,
    asked: Vec<ApprovalPrompt>,
    status: Option<ThreadStatus>,
    /// What the model is saying right now.
    saying: HashSet<String>,
    /// Paragraphs of summaries that were announced.
    thinking: HashSet<(String, u32)>,
    /// The last step whose answer is known; what is still told of it is stale.
    answered: Option<(TurnId, u32)>,
    /// Tools in namespaces, by what the model calls them.
    spaces: HashMap<String, Spaced>,
    /// What the running turn's patches have changed; nothing for those who do not want to know.
    diff: Option<TurnDiff>,
    /// Something before this cannot be read, so that turns may continue or begin without a record of their start or end.
    is_torn: bool,
    /// It tells what happens now, and not what happened.
    is_live: bool,
}

/// An input that no turn has taken up yet.
struct Waiting {
    said: InputReceived,
    /// Where the journal has it. One that starts a turn at once stands right before that turn.
    ordinal: Ordinal,
}

/// A tool of the client's in a namespace.
#[derive(Clone, Deserialize)]
struct Spaced {
    name: String,
    namespace: String,
    tool: String,
}

/// The running turn.
struct Open {
    id: TurnId,
    started_at: u64,
    /// When the model was last asked.
    asked_at: u64,
    last_message: Option<TimedItem>,
    kind: TurnKind,
}

/// A call that clients see.
struct Doing {
    item: Item,
    turn: TurnId,
    started_at: u64,
    /// The rest of a character whose other bytes are still to come.
    tail: Vec<u8>,
    is_over: bool,
}

impl Projector {
    /// Before the first entry.
    pub fn new(id: ThreadId, defaults: Arc<Defaults>) -> Self {
        Self {
            id,
            name: id.to_string(),
            defaults,
            last: 0,
            settings: Settings::default(),
            total: TokenTotals::default(),
            turn: None,
            inputs: HashMap::new(),
            calls: HashMap::new(),
            asked: Vec::new(),
            status: None,
            saying: HashSet::new(),
            thinking: HashSet::new(),
            answered: None,
            spaces: HashMap::new(),
            diff: Some(TurnDiff::default()),
            is_torn: false,
            is_live: false,
        }
    }

    /// For callers that only want turns and items.
    pub fn without_diffs(self) -> Self {
        Self { diff: None, ..self }
    }

    /// For entries from the middle of a thread. What they rely on and what came before them is not known.
    pub fn amid(thread: &Thread, defaults: Arc<Defaults>) -> Self {
        let mut made = Self::new(thread.id, defaults);
        made.offers(&thread.dynamic_tools);
        made
    }

    /// In the middle of a thread. `recent` are the entries that [`Projector::needs`] names, in their order.
    pub fn at(thread: &Thread, recent: &[Entry], defaults: Arc<Defaults>) -> Self {
        let mut made = Self::amid(thread, defaults);
        for entry in recent.iter().filter(|entry| entry.ordinal <= thread.last) {
            made.entry(entry);
        }
        made.last = thread.last;
        made.settings = thread.settings.clone();
        made.total = thread.usage.total;
        made.is_live = true;
        made
    }

    /// From where on the entries of a thread must be known to go on with it, and which single ones before that.
    pub fn needs(thread: &Thread) -> (Option<Ordinal>, Vec<Ordinal>) {
        let since = thread.turn.as_ref().map(|turn| turn.started_ordinal);
        let waiting = thread.queued.iter().map(|input| input.ordinal).filter(|ordinal| since.is_none_or(|since| *ordinal < since));
        (since, waiting.collect())
    }

    /// The last entry that was told.
    pub fn last(&self) -> Ordinal {
        self.last
    }

    /// Questions that are still open.
    pub fn open_questions(&self) -> &[ApprovalPrompt] {
        &self.asked
    }

    /// Whether a call that began has not ended.
    pub fn has_open_calls(&self) -> bool {
        self.calls.values().any(|doing| !doing.is_over)
    }

    /// Notes what the client knows already of how the thread stands.
    pub fn knows_status(&mut self, status: ThreadStatus) {
        self.status = Some(status);
    }

    /// What is to be told of an entry. One that was told already is told no second time.
    pub fn entry(&mut self, entry: &Entry) -> Vec<ClientMessage> {
        if entry.ordinal <= self.last {
            return Vec::new();
        }
        self.last = entry.end();
        let mut out = Vec::new();
        if self.is_torn {
            self.mend(entry, &mut out);
        }
        match &entry.fact {
            Fact::ThreadCreated(fact) => {
                self.settings = fact.settings.clone();
                self.offers(&fact.dynamic_tools);
            }
            Fact::ThreadForked(fact) => {
                self.inputs.clear();
                self.asked.clear();
                self.settings.apply(&fact.settings);
                self.offers(fact.dynamic_tools.as_deref().unwrap_or_default());
            }
            Fact::SettingsChanged(fact) => {
                self.settings.apply(&fact.settings);
                out.push(self.settings_notice());
            }
            Fact::SelectionChanged(_) => out.push(self.settings_notice()),
            Fact::InputReceived(fact) => self.received(fact, entry, &mut out),
            Fact::QueueChanged(fact) => {
                self.inputs.retain(|input, _| fact.queue.contains(input));
                out.push(self.queue_notice());
            }
            Fact::TurnStarted(fact) => self.turn_started(fact, entry, &mut out),
            Fact::ModelAsked(_) => self.turn.iter_mut().for_each(|turn| turn.asked_at = entry.at),
            Fact::ModelAnswered(fact) => self.model_answered(fact, entry, &mut out),
            Fact::ApprovalAsked(fact) => self.approval_asked(fact, entry.at, &mut out),
            Fact::ApprovalAnswered(fact) => self.resolved(&fact.approval, &mut out),
            Fact::CallStarted(fact) => self.call_started(fact, entry.at, &mut out),
            Fact::CallFinished(fact) => self.call_finished(fact, entry.at, &mut out),
            Fact::ContextCompacted(_) => self.compacted(entry, &mut out),
            Fact::TurnsReverted(fact) => {
                out.push(ClientMessage::Reverted(fact.before.clone()));
                out.push(event::ThreadReverted { thread_id: self.name.clone() }.into());
            }
            Fact::TurnFinished(fact) => self.turn_finished(fact, entry.at, &mut out),
            Fact::DamageNoted(fact) => self.damage_noted(fact, entry, &mut out),
            Fact::MetadataChanged(_)
            | Fact::TurnSettingsChanged(_)
            | Fact::StepCaptured(_)
            | Fact::PermissionsGranted(_)
            | Fact::WakeSet(_)
            | Fact::WakeEnded(_)
            | Fact::AgentSpawned(_)
            | Fact::AgentClosed(_)
            | Fact::Unknown { .. } => {}
        }
        mark(&mut out, entry.ordinal);
        out
    }

    /// What is to be told of something that happens now.
    pub fn event(&mut self, event: &ThreadEvent) -> Vec<ClientMessage> {
        match event {
            ThreadEvent::Entry(entry) => self.entry(entry),
            ThreadEvent::Progress { turn, step, progress } => self.progress(turn, *step, progress),
            ThreadEvent::Output { call, bytes } => self.output(call, bytes),
            ThreadEvent::ProcessEnded { call, .. } => {
                if self.calls.get(call).is_some_and(|doing| doing.is_over) {
                    self.calls.remove(call);
                }
                Vec::new()
            }
            ThreadEvent::Mcp(event) => self.mcp(event),
            ThreadEvent::Warning { message } => {
                vec![event::Warning { thread_id: Some(self.name.clone()), message: message.clone() }.into()]
            }
            ThreadEvent::Status(status) => self.status(status),
        }
    }

    fn mcp(&self, event: &McpEvent) -> Vec<ClientMessage> {
        let thread_id = self.name.clone();
        match event {
            McpEvent::Startup { server, state, error } => {
                let (name, status, error) = (server.clone(), state.clone(), error.clone());
                vec![event::McpServerStatusUpdated { name, status, error, failure_reason: None, thread_id: Some(thread_id) }.into()]
            }
            McpEvent::Warning { message } => vec![event::Warning { thread_id: Some(thread_id), message: message.clone() }.into()],
            McpEvent::Progress { call, progress, total, message } => {
                let Some(doing) = self.calls.get(&CallId::from(call.as_str())) else { return Vec::new() };
                let message = message.clone().unwrap_or_else(|| match total {
                    Some(total) => format!("{progress} of {total}"),
                    None => progress.to_string(),
                });
                vec![event::McpToolCallProgress { thread_id, turn_id: doing.turn.to_string(), item_id: call.clone(), message }.into()]
            }
        }
    }

    fn status(&mut self, status: &ThreadActivity) -> Vec<ClientMessage> {
        let mut out = Vec::new();
        self.stands(thread::status(Some(status)), &mut out);
        out
    }

    fn stands(&mut self, status: ThreadStatus, out: &mut Vec<ClientMessage>) {
        if self.status.as_ref() != Some(&status) {
            self.status = Some(status.clone());
            out.push(event::ThreadStatusChanged { thread_id: self.name.clone(), status }.into());
        }
    }

    fn offers(&mut self, tools: &[Raw]) {
        let spaced = tools.iter().filter_map(|tool| tool.read::<Spaced>().ok());
        self.spaces.extend(spaced.map(|tool| (tool.name.clone(), tool)));
    }

    /// Calls a tool in a namespace as the client does.
    fn call_by_name(&self, name: &mut String, space: &mut Option<String>) {
        if let Some(spaced) = self.spaces.get(name.as_str()) {
            name.clone_from(&spaced.tool);
            *space = Some(spaced.namespace.clone());
        }
    }

    fn settings_notice(&self) -> ClientMessage {
        let thread_settings = self.defaults.settings(&self.settings);
        event::ThreadSettingsUpdated { thread_id: self.name.clone(), thread_settings, ordinal: None }.into()
    }

    fn received(&mut self, fact: &InputReceived, entry: &Entry, out: &mut Vec<ClientMessage>) {
        match (fact.origin, &fact.turn) {
            (InputOrigin::History | InputOrigin::Shell, _) => {}
            (_, Some(turn)) => self.whole(turn, items::user_message(fact), entry.at, out),
            (_, None) => {
                self.inputs.insert(fact.input.clone(), Waiting { said: fact.clone(), ordinal: entry.ordinal });
                if self.turn.is_some() {
                    out.push(self.queue_notice());
                }
            }
        }
    }

    fn queue_notice(&self) -> ClientMessage {
        ThreadQueueChanged { thread_id: self.name.clone() }.into()
    }

    /// An item that is there at once.
    fn whole(&self, turn: &TurnId, item: Item, at: u64, out: &mut Vec<ClientMessage>) {
        out.push(self.item_started(turn, item.clone(), at));
        out.push(self.item_completed(turn, item, (at, at)));
    }

    fn item_started(&self, turn: &TurnId, item: Item, at: u64) -> ClientMessage {
        let (thread_id, turn_id) = (self.name.clone(), turn.to_string());
        let item = TimedItem { item, started_at_ms: Some(at), completed_at_ms: None };
        event::ItemStarted { thread_id, turn_id, item, started_at_ms: at, ordinal: None }.into()
    }

    /// Of an item that began and ended then.
    fn item_completed(&self, turn: &TurnId, item: Item, (began, at): (u64, u64)) -> ClientMessage {
        let (thread_id, turn_id) = (self.name.clone(), turn.to_string());
        let item = TimedItem { item, started_at_ms: Some(began), completed_at_ms: Some(at) };
        event::ItemCompleted { thread_id, turn_id, item, completed_at_ms: at, ordinal: None }.into()
    }

    fn turn_started(&mut self, fact: &TurnStarted, entry: &Entry, out: &mut Vec<ClientMessage>) {
        let at = entry.at;
        self.turn = Some(Open { id: fact.turn.clone(), started_at: at, asked_at: at, last_message: None, kind: fact.kind });
        self.diff = self.diff.take().map(|_| TurnDiff::default());
        let turn = Turn {
            id: fact.turn.to_string(),
            items: vec![],
            items_view: ItemsView::NotLoaded,
            status: Shown::InProgress,
            error: None,
            started_at: Some(at / 1000),
            completed_at: None,
            duration_ms: None,
            root_turn_id: fact.root_turn.as_ref().map(ToString::to_string),
            plan: None,
        };
        // Clients expect to hear that the thread is at work before they hear at what.
        self.stands(ThreadStatus::Active { active_flags: vec![] }, out);
        out.push(event::TurnStarted { thread_id: self.name.clone(), turn, ordinal: None }.into());
        let taken: Vec<Waiting> = fact.inputs.iter().filter_map(|input| self.inputs.remove(input)).collect();
        if taken.iter().any(|waiting| waiting.ordinal + 1 != entry.ordinal) {
            out.push(self.queue_notice());
        }
        for Waiting { said, .. } in &taken {
            self.whole(&fact.turn, items::user_message(said), at, out);
        }
        if fact.kind == TurnKind::Review {
            let review = taken.iter().find_map(|waiting| items::words(&waiting.said)).unwrap_or_default();
            self.whole(&fact.turn, Item::EnteredReviewMode { id: format!("{}.review", fact.turn), review }, at, out);
        }
    }

    fn model_answered(&mut self, fact: &ModelAnswered, entry: &Entry, out: &mut Vec<ClientMessage>) {
        let began = self.turn.as_ref().map_or(entry.at, |turn| turn.asked_at);
        for (index, raw) in fact.items.iter().enumerate() {
            let name = |own: Option<&str>| match own {
                Some(own) => item_name(own, &fact.turn, fact.step),
                None => format!("item_{}_{index}", entry.ordinal),
            };
            let Some(item) = items::said(raw, name) else { continue };
            if !self.saying.remove(item.id()) {
                let begun = match &item {
                    Item::AgentMessage { id, phase, .. } => items::message(id.clone(), String::new(), *phase),
                    Item::Reasoning { id, .. } => Item::Reasoning { id: id.clone(), summary: vec![], content: vec![] },
                    Item::ImageGeneration { id, .. } => items::picture_begun(id.clone()),
                    other => other.clone(),
                };
                out.push(self.item_started(&fact.turn, begun, began));
            }
            if let (Some(turn), Item::AgentMessage { .. }) = (&mut self.turn, &item) {
                turn.last_message = Some(TimedItem { item: item.clone(), started_at_ms: Some(began), completed_at_ms: Some(entry.at) });
            }
            out.push(self.item_completed(&fact.turn, item, (began, entry.at)));
        }
        if fact.complete {
            self.saying.clear();
            self.thinking.clear();
            self.answered = Some((fact.turn.clone(), fact.step));
        }
        if let Some(last) = fact.usage {
            self.total = self.total.plus(last);
            let token_usage = TokenUsage {
                total: counts(self.total),
                last: counts(last),
                model_context_window: Some(self.defaults.context_window(&self.settings)),
            };
            let (thread_id, turn_id) = (self.name.clone(), fact.turn.to_string());
            out.push(event::TokenUsageUpdated { thread_id, turn_id, token_usage, ordinal: None }.into());
        }
    }

    fn approval_asked(&mut self, fact: &ApprovalAsked, at: u64, out: &mut Vec<ClientMessage>) {
        let item = fact.call.as_ref().map_or_else(|| fact.approval.to_string(), ToString::to_string);
        if let Some(call) = &fact.call
            && let Some(mut item) = calls::asked_item(call, fact)
        {
            if let Item::DynamicToolCall { tool, namespace, .. } = &mut item {
                self.call_by_name(tool, namespace);
            }
            self.begin(call, &fact.turn, item, at, out);
        }
        if let Some(mut ask) = ApprovalPrompt::of(fact, &About { thread: &self.name, item: &item, at }) {
            if let Params::Tool(params) = &mut ask.params {
                self.call_by_name(&mut params.tool, &mut params.namespace);
            }
            self.asked.push(ask.clone());
            out.push(ClientMessage::Ask(Box::new(ask)));
        }
    }

    fn resolved(&mut self, approval: &ApprovalId, out: &mut Vec<ClientMessage>) {
        let before = self.asked.len();
        self.asked.retain(|ask| ask.approval != *approval);
        if self.asked.len() < before {
            out.push(ClientMessage::Resolved(approval.clone()));
        }
    }

    /// Tells that a call begins, unless that was told with its approval question.
    fn begin(&mut self, call: &CallId, turn: &TurnId, item: Item, at: u64, out: &mut Vec<ClientMessage>) {
        if self.calls.contains_key(call) {
            return;
        }
        out.push(self.item_started(turn, item.clone(), at));
        let doing = Doing { item, turn: turn.clone(), started_at: at, tail: Vec::new(), is_over: false };
        self.calls.insert(call.clone(), doing);
    }

    fn call_started(&mut self, fact: &CallStarted, at: u64, out: &mut Vec<ClientMessage>) {
        let Some(detail) = fact.detail.as_ref().map(Recorded::read) else { return };
        let (thread_id, turn_id) = (self.name.clone(), fact.turn.to_string());
        match detail {
            CallDetail::Plan(detail) => {
                let (explanation, plan) = (detail.explanation, calls::plan(detail.plan));
                out.push(event::TurnPlanUpdated { thread_id, turn_id, explanation, plan }.into());
            }
            CallDetail::TerminalInteraction(detail) => {
                let Some(item_id) = detail.process_call else { return };
                let process_id = match self.calls.get(&CallId(item_id.clone())).map(|doing| &doing.item) {
                    Some(Item::CommandExecution { process_id: Some(process), .. }) => process.clone(),
                    _ => item_id.clone(),
                };
                out.push(event::TerminalInteraction { thread_id, turn_id, item_id, process_id, stdin: detail.stdin }.into());
            }
            detail => {
                if let Some(item) = calls::item(&fact.call, &self.name, detail) {
                    self.begin(&fact.call, &fact.turn, item, at, out);
                }
            }
        }
    }

    fn call_finished(&mut self, fact: &CallFinished, at: u64, out: &mut Vec<ClientMessage>) {
        let ended = fact.report();
        let refused = ended.begun.as_ref().filter(|_| !self.calls.contains_key(&fact.call));
        if let Some(begun) = refused {
            let item = calls::item(&fact.call, &self.name, begun.read());
            item.into_iter().for_each(|item| self.begin(&fact.call, &fact.turn, item, at, out));
        }
        let Some(doing) = self.calls.get_mut(&fact.call).filter(|doing| !doing.is_over) else { return };
        calls::completed(&mut doing.item, fact.outcome, &ended, at.saturating_sub(doing.started_at));
        doing.is_over = true;
        let (item, turn, times) = (doing.item.clone(), doing.turn.clone(), (doing.started_at, at));
        if ended.session_id.is_none() {
            self.calls.remove(&fact.call);
        }
        let (thread_id, turn_id) = (self.name.clone(), turn.to_string());
        let warning = |message: &String| event::Warning { thread_id: Some(thread_id.clone()), message: message.clone() }.into();
        out.extend(ended.notices.iter().map(warning));
        let Item::FileChange { changes, environment_id, .. } = &item else { return out.push(self.item_completed(&turn, item, times)) };
        if ended.changes.is_empty() {
            return out.push(self.item_completed(&turn, item, times));
        }
        let (item_id, changes, place) = (fact.call.to_string(), changes.clone(), environment_id.clone().unwrap_or_default());
        out.push(event::FileChangePatchUpdated { thread_id: thread_id.clone(), turn_id: turn_id.clone(), item_id, changes }.into());
        out.push(self.item_completed(&turn, item, times));
        if let Some(diff) = &mut self.diff {
            diff.take(&place, ended.root.as_deref().unwrap_or_default(), &ended.changes);
            out.push(event::TurnDiffUpdated { thread_id, turn_id, diff: diff.to_string(), ordinal: None }.into());
        }
    }

    fn compacted(&mut self, entry: &Entry, out: &mut Vec<ClientMessage>) {
        let Some(turn) = self.turn.as_ref().map(|turn| turn.id.clone()) else { return };
        self.whole(&turn, Item::ContextCompaction { id: format!("compaction_{}", entry.ordinal) }, entry.at, out);
        out.push(event::ThreadCompacted { thread_id: self.name.clone(), turn_id: turn.to_string() }.into());
    }

    fn turn_finished(&mut self, fact: &TurnFinished, at: u64, out: &mut Vec<ClientMessage>) {
        let Some(id) = &fact.turn else { return };
        for ask in std::mem::take(&mut self.asked) {
            out.push(ClientMessage::Resolved(ask.approval));
        }
        self.saying.clear();
        self.thinking.clear();
        let open = self.turn.take().filter(|open| open.id == *id);
        if open.as_ref().is_some_and(|open| open.kind == TurnKind::Review) {
            let found =
                open.as_ref().and_then(|open| open.last_message.as_ref()).and_then(|message| items::text(message)).unwrap_or_default();
            self.whole(id, Item::ExitedReviewMode { id: format!("{id}.reviewed"), review: found.to_owned() }, at, out);
        }
        let (started_at, last_message) = open.map_or((at, None), |open| (open.started_at, open.last_message));
        let error = fact.error.as_ref().and_then(|error| error.read::<Failure>().ok()).map(Failure::shown);
        let status = match fact.status {
            TurnStatus::Completed => Shown::Completed,
            TurnStatus::Interrupted => Shown::Interrupted,
            TurnStatus::Failed => Shown::Failed,
        };
        if let (Shown::Failed, Some(error)) = (status, &error) {
            let (thread_id, turn_id) = (self.name.clone(), id.to_string());
            out.push(event::ErrorNotice { thread_id, turn_id, error: error.clone(), will_retry: false }.into());
        }
        self.stands(if status == Shown::Failed { ThreadStatus::SystemError } else { ThreadStatus::Idle }, out);
        let turn = Turn {
            id: id.to_string(),
            items: last_message.into_iter().collect(),
            items_view: ItemsView::Summary,
            status,
            error,
            started_at: Some(started_at / 1000),
            completed_at: Some(at / 1000),
            duration_ms: Some(at.saturating_sub(started_at)),
            root_turn_id: None,
            plan: None,
        };
        out.push(event::TurnCompleted { thread_id: self.name.clone(), turn, ordinal: None }.into());
    }

    pub fn thread(&self) -> ThreadId {
        self.id
    }
}

/// A client that has read the last message of an entry has read all of it.
fn mark(out: &mut [ClientMessage], ordinal: Ordinal) {
    let place = |told: &mut ClientMessage| match told {
        ClientMessage::Notice(Notice::TurnStarted(notice)) => notice.ordinal = Some(ordinal),
        ClientMessage::Notice(Notice::TurnCompleted(notice)) => notice.ordinal = Some(ordinal),
        ClientMessage::Notice(Notice::ItemStarted(notice)) => notice.ordinal = Some(ordinal),
        ClientMessage::Notice(Notice::ItemCompleted(notice)) => notice.ordinal = Some(ordinal),
        ClientMessage::Notice(Notice::TurnDiffUpdated(notice)) => notice.ordinal = Some(ordinal),
        ClientMessage::Notice(Notice::TokenUsageUpdated(notice)) => notice.ordinal = Some(ordinal),
        ClientMessage::Notice(Notice::ThreadSettingsUpdated(notice)) => notice.ordinal = Some(ordinal),
        _ => {}
    };
    out.iter_mut().rev().take(1).for_each(place);
}

/// What an item of the model's is called. Models name their items, and not all of them never twice; what clients see is named
/// once in a thread, and the same whether it is heard or read.
fn item_name(own: &str, turn: &TurnId, step: u32) -> String {
    let turn = turn.as_str();
    let tail = turn.char_indices().rev().nth(7).map_or(turn, |(at, _)| &turn[at..]);
    format!("{own}.{tail}.{step}")
}

fn counts(tokens: TokenTotals) -> TokenCounts {
    TokenCounts {
        total_tokens: tokens.total,
        input_tokens: tokens.input,
        cached_input_tokens: tokens.cached_input,
        cache_write_input_tokens: tokens.cache_write_input,
        output_tokens: tokens.output,
        reasoning_output_tokens: tokens.reasoning_output,
    }
}
