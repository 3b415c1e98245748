//! Lines of a rollout become facts of a thread. One direction, one place: nothing else knows both languages.
//!
//! What the model saw is kept item by item. What this program has no word for is carried as a fact of the unknown kind
//! `codex.<type>`, so that nothing is lost. Lines that only repeat for clients what another line says are left out.

use std::collections::{BTreeMap, HashMap};

use outpost_thread::{
    CallId, CallOutcome, CompactReason, ContextCompacted, Fact, InterruptReason, Kept, MetadataChanged, Raw, SelectionChanged, Settings,
    SettingsChanged, ThreadId, TurnStatus, is_user_message,
};
use outpost_wire::intent::Selection;
use serde_json::{Value, json};

use super::line::RolloutLine;
use super::scribe::{Dated, Ending, ImportedCall, Scribe};
use super::{details, meta};

/// A thread as facts, and what could not be said in them.
#[derive(Debug)]
pub(super) struct Converted {
    pub facts: Vec<Dated>,
    pub turns: u64,
    /// Kinds of lines that were carried without being understood, and how many of each.
    pub carried: BTreeMap<String, u64>,
}

/// What is known of the thread beside its rollout.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Beside<'a> {
    pub name: Option<&'a str>,
    pub archived: bool,
}

/// Folds lines into facts.
pub(super) struct Converter {
    thread: ThreadId,
    scribe: Scribe,
    carried: BTreeMap<String, u64>,
    is_created: bool,
    settings: Settings,
    selection: Option<Selection>,
    /// What clients were shown of calls, by call id.
    details: HashMap<String, Value>,
    /// Newer rollouts say in a line of its own what each answer used; their other counts repeat it.
    has_usage_records: bool,
    context_generation: u32,
}

impl Converter {
    pub(super) fn new(thread: ThreadId) -> Self {
        Self {
            thread,
            scribe: Scribe::default(),
            carried: BTreeMap::new(),
            is_created: false,
            settings: Settings::default(),
            selection: None,
            details: HashMap::new(),
            has_usage_records: false,
            context_generation: 0,
        }
    }

    pub(super) fn line(&mut self, line: &RolloutLine) {
        self.scribe.at = line.at().unwrap_or_default().max(self.scribe.at);
        if !self.is_created && line.kind != "session_meta" {
            // A rollout without a head is still a conversation.
            self.create(&json!({}));
        }
        match line.kind.as_str() {
            "session_meta" if !self.is_created => self.create(&line.payload),
            // A copy of the head of the thread that this one was forked from.
            "session_meta" => {}
            "response_item" => self.item(&line.payload),
            "event_msg" => self.event(line),
            "turn_context" => {
                self.select(meta::selection(&line.payload));
                self.set(meta::turn_settings(&line.payload));
            }
            "compacted" => self.compacted(&line.payload),
            "token_usage_record" => {
                self.has_usage_records = true;
                self.used(line.payload.get("usage"));
            }
            kind => self.carry(kind, &line.payload),
        }
    }

    /// A turn that is still open is closed as interrupted: whatever ran it does not run here.
    pub(super) fn finish(mut self, beside: Beside<'_>) -> Converted {
        let status = if self.scribe.turn_id().is_some_and(|id| !id.as_str().starts_with("rollout-")) {
            TurnStatus::Interrupted
        } else {
            TurnStatus::Completed
        };
        self.scribe.end_turn(status, Some(InterruptReason::Shutdown));
        let marks = MetadataChanged {
            name: beside.name.map(|name| Some(name.to_owned())),
            archived: beside.archived.then_some(true),
            ..MetadataChanged::default()
        };
        if marks != MetadataChanged::default() && !self.scribe.facts.is_empty() {
            self.scribe.fact(marks);
        }
        Converted { turns: self.scribe.turns(), facts: self.scribe.facts, carried: self.carried }
    }

    fn carry(&mut self, kind: &str, payload: &Value) {
        let kind = format!("codex.{kind}");
        *self.carried.entry(kind.clone()).or_default() += 1;
        self.scribe.fact(Fact::Unknown { kind, data: Raw::from(payload.clone()) });
    }

    fn create(&mut self, payload: &Value) {
        self.is_created = true;
        let created = meta::created(self.thread, payload);
        self.settings = created.settings.clone();
        self.selection.clone_from(&created.selection);
        self.scribe.provider = self.settings.model_provider.clone();
        self.scribe.fact(created);
    }

    fn select(&mut self, new: Option<Selection>) {
        if new.is_some() && new != self.selection {
            self.selection.clone_from(&new);
            self.scribe.fact(SelectionChanged { selection: new, capability_roots: None });
        }
    }

    fn set(&mut self, new: Settings) {
        let change = meta::difference(&self.settings, &new);
        if change == Settings::default() {
            return;
        }
        self.settings = meta::merged(&self.settings, &change);
        self.scribe.model = self.settings.model.clone();
        self.scribe.provider = self.settings.model_provider.clone();
        self.scribe.fact(SettingsChanged { settings: change });
    }

    fn item(&mut self, payload: &Value) {
        let raw = Raw::from(payload.clone());
        let member = |name: &str| payload.get(name).and_then(Value::as_str).unwrap_or_default();
        let first = |names: [&str; 2]| names.into_iter().map(member).find(|text| !text.is_empty()).unwrap_or_default().to_owned();
        match (member("type"), member("role")) {
            ("message", "assistant") => self.scribe.said(raw, None),
            ("message", _) if is_user_message(&raw) && !is_project_notes(&raw) => self.scribe.input(raw, member("id")),
            ("message", _) => self.scribe.context(raw),
            ("function_call" | "custom_tool_call" | "local_shell_call" | "tool_search_call", _) => {
                let (call, tool) = (first(["call_id", "id"]), first(["name", "type"]));
                let begun = details::asked(payload, self.settings.cwd.as_deref());
                self.scribe.said(raw, (!call.is_empty()).then(|| ImportedCall { call: CallId::from(call), tool, begun }));
            }
            (kind, _) if kind.ends_with("_output") && !member("call_id").is_empty() => {
                let detail = self.details.remove(member("call_id"));
                let begun = detail.as_ref().and_then(details::begun);
                let ending = Ending { outcome: outcome(detail.as_ref()), begun, report: detail.map(details::ended) };
                self.scribe.returned(raw, CallId::from(member("call_id")), ending);
            }
            // Reasoning, searches, images, and whatever else the model said.
            _ => self.scribe.said(raw, None),
        }
    }

    fn event(&mut self, line: &RolloutLine) {
        match line.inner() {
            "task_started" | "turn_started" => self.scribe.begin_turn(line.text("turn_id")),
            "task_complete" | "turn_complete" => {
                let failed = line.payload.get("error").is_some_and(|error| !error.is_null());
                self.scribe.end_turn(if failed { TurnStatus::Failed } else { TurnStatus::Completed }, None);
            }
            "turn_aborted" => {
                let reason = match line.text("reason").unwrap_or_default() {
                    "replaced" => InterruptReason::Replaced,
                    "budget_limited" => InterruptReason::Budget,
                    _ => InterruptReason::User,
                };
                self.scribe.end_turn(TurnStatus::Interrupted, Some(reason));
            }
            "token_count" if !self.has_usage_records => self.used(line.payload.get("info").and_then(|info| info.get("last_token_usage"))),
            "thread_rolled_back" => self.scribe.roll_back(line.payload.get("num_turns").and_then(Value::as_u64).unwrap_or(0)),
            "thread_settings_applied" => {
                if let Some(settings) = line.payload.get("thread_settings") {
                    self.set(meta::thread_settings(settings));
                }
            }
            "thread_name_updated" => {
                let name = line.text("thread_name").map(str::to_owned);
                self.scribe.fact(MetadataChanged { name: Some(name), ..MetadataChanged::default() });
            }
            "item_completed" => self.shown(line.payload.get("item")),
            "exec_command_end" | "patch_apply_end" | "mcp_tool_call_end" => {
                if let Some(call) = line.text("call_id") {
                    self.details.insert(call.to_owned(), line.payload.clone());
                }
            }
            "user_message" | "agent_message" | "agent_reasoning" | "agent_reasoning_raw_content" | "token_count" | "context_compacted" => {}
            kind => self.carry(&format!("event_msg.{kind}"), &line.payload),
        }
    }

    /// What a client was shown. Calls keep it; messages are known from their items.
    fn shown(&mut self, item: Option<&Value>) {
        let Some(item) = item else { return };
        let member = |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default();
        match member("type") {
            "UserMessage" | "AgentMessage" | "Reasoning" | "ContextCompaction" => {}
            "CommandExecution" | "FileChange" | "McpToolCall" | "DynamicToolCall" => {
                self.details.insert(member("id").to_owned(), item.clone());
            }
            kind => self.carry(&format!("item.{kind}"), item),
        }
    }

    fn used(&mut self, usage: Option<&Value>) {
        if let Some(tokens) = usage.map(meta::tokens).filter(|tokens| tokens.input + tokens.output > 0) {
            self.scribe.used(tokens);
        }
    }

    /// Older rollouts hold only the summary; newer ones the whole new context.
    fn compacted(&mut self, payload: &Value) {
        self.scribe.compacting();
        let number = payload.get("window_number").and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        self.context_generation = number.unwrap_or(self.context_generation + 1);
        let kept = match payload.get("replacement_history").and_then(Value::as_array) {
            Some(items) => items.iter().map(|item| Kept::Item(Raw::from(item.clone()))).collect(),
            None => {
                let text = payload.get("message").and_then(Value::as_str).unwrap_or_default();
                let message = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]});
                vec![Kept::Item(Raw::from(message))]
            }
        };
        let turn = self.scribe.turn_id().cloned();
        self.scribe.fact(ContextCompacted {
            turn,
            reason: CompactReason::Asked,
            kept,
            tokens: 0,
            context_generation: self.context_generation,
        });
    }
}

/// Notes of a project that older rollouts hold as messages of the user, without a tag around them.
fn is_project_notes(item: &Raw) -> bool {
    crate::words::of(item).starts_with("# AGENTS.md instructions")
}

/// From what a client was shown of a call.
fn outcome(detail: Option<&Value>) -> CallOutcome {
    let status = detail.and_then(|detail| detail.get("status")).and_then(Value::as_str);
    let success = detail.and_then(|detail| detail.get("success")).and_then(Value::as_bool);
    match status {
        Some("failed") => CallOutcome::Failed,
        Some("declined") => CallOutcome::Declined,
        _ if success == Some(false) => CallOutcome::Failed,
        _ => CallOutcome::Completed,
    }
}
