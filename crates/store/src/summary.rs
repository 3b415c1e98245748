//! What a list shows of a thread: a fold over its entries that looks only at the few that matter for it.
//!
//! Every store keeps one summary per thread and brings it up to date with what is appended. It is derived: the entries are the
//! truth.

use std::collections::BTreeSet;

use outpost_thread::{
    Entry, Fact, InputOrigin, InputReceived, Ordinal, Raw, Selection, Settings, ThreadCreated, ThreadForked, ThreadId, is_user_message,
};
use serde::{Deserialize, Serialize};

use crate::list::ListOrder;
use crate::words;

/// Characters of the first message that a list shows.
const PREVIEW: usize = 160;

/// A row of a list. Times are milliseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadSummary {
    pub id: ThreadId,
    pub created_at: u64,
    /// When something was last written to it.
    pub updated_at: u64,
    /// When its last turn began; output does not move it.
    pub recency_at: u64,
    /// The last ordinal.
    #[serde(rename = "seq")]
    pub ordinal: Ordinal,
    /// Finished turns.
    pub turns: u64,
    pub archived: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The first words of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// Who started it, as one word: `cli`, `exec`, `subagent`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The person whose client started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The agent that made this sub-agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ThreadId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ThreadId>,
    /// Where it works, if that was selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<Selection>,
    /// The machine that `local` is in this thread, where nodes on several machines share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_host: Option<String>,
    /// It came from another program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub imported: bool,
    /// Entries of it cannot be read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub damaged: bool,
    /// Commands whose end begins a turn, by their session ids.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub wakes: BTreeSet<u64>,
}

impl ThreadSummary {
    /// Nothing is known yet.
    pub fn new(id: ThreadId) -> Self {
        Self {
            id,
            created_at: 0,
            updated_at: 0,
            recency_at: 0,
            ordinal: 0,
            turns: 0,
            archived: false,
            name: None,
            preview: None,
            source: None,
            by: None,
            thread_source: None,
            cwd: None,
            model: None,
            provider: None,
            parent: None,
            forked_from: None,
            selection: None,
            local_host: None,
            imported: false,
            damaged: false,
            wakes: BTreeSet::new(),
        }
    }

    pub const fn time(&self, order: ListOrder) -> u64 {
        match order {
            ListOrder::Created => self.created_at,
            ListOrder::Updated => self.updated_at,
            ListOrder::Recency => self.recency_at,
        }
    }

    /// Kinds of entries whose data must be read; of all others the kind and the time are enough.
    pub fn needs(&self, kind: &str) -> bool {
        match kind {
            "inputReceived" => self.preview.is_none(),
            "threadCreated" | "threadForked" | "metadataChanged" | "settingsChanged" | "selectionChanged" | "damageNoted" | "wakeSet"
            | "wakeEnded" => true,
            _ => false,
        }
    }

    pub fn apply(&mut self, entry: &Entry) {
        self.pass(entry.end(), entry.at, entry.fact.kind());
        match &entry.fact {
            Fact::ThreadCreated(fact) => self.created(fact, entry.at),
            Fact::ThreadForked(fact) => self.forked(fact, entry.at),
            Fact::MetadataChanged(fact) => {
                if let Some(name) = &fact.name {
                    self.name.clone_from(name);
                }
                self.archived = fact.archived.unwrap_or(self.archived);
            }
            Fact::SettingsChanged(fact) => self.set(&fact.settings),
            Fact::SelectionChanged(fact) => {
                self.select(fact.selection.as_ref());
                // As in the thread itself: that of the first step since it was selected.
                if fact.selection.is_some() {
                    self.local_host = None;
                }
            }
            Fact::StepCaptured(fact) if self.local_host.is_none() => {
                self.local_host = fact.environments.iter().find_map(|environment| environment.host.clone());
            }
            Fact::WakeSet(fact) => drop(self.wakes.insert(fact.session)),
            Fact::WakeEnded(fact) => drop(self.wakes.remove(&fact.session)),
            Fact::InputReceived(fact) if self.preview.is_none() => self.preview = preview(fact),
            Fact::TurnSettingsChanged(_)
            | Fact::InputReceived(_)
            | Fact::QueueChanged(_)
            | Fact::TurnStarted(_)
            | Fact::StepCaptured(_)
            | Fact::ModelAsked(_)
            | Fact::ModelAnswered(_)
            | Fact::ApprovalAsked(_)
            | Fact::ApprovalAnswered(_)
            | Fact::PermissionsGranted(_)
            | Fact::CallStarted(_)
            | Fact::CallFinished(_)
            | Fact::AgentSpawned(_)
            | Fact::AgentClosed(_)
            | Fact::ContextCompacted(_)
            | Fact::TurnsReverted(_)
            | Fact::TurnFinished(_)
            | Fact::DamageNoted(_)
            | Fact::Unknown { .. } => {}
        }
    }

    /// An entry of which only this is known, because it needs no more.
    pub fn pass(&mut self, ordinal: Ordinal, at: u64, kind: &str) {
        self.ordinal = ordinal;
        self.updated_at = self.updated_at.max(at);
        match kind {
            "turnStarted" => self.recency_at = self.recency_at.max(at),
            "turnFinished" => self.turns += 1,
            "damageNoted" => self.damaged = true,
            _ => {}
        }
    }

    fn created(&mut self, fact: &ThreadCreated, at: u64) {
        (self.created_at, self.recency_at) = (at, at);
        self.source = fact.source.as_ref().and_then(word);
        self.thread_source.clone_from(&fact.thread_source);
        self.by.clone_from(&fact.by);
        self.parent = fact.parent.as_ref().map(|parent| parent.thread);
        self.name.clone_from(&fact.name);
        self.imported = fact.imported.is_some();
        self.forked_from = fact.forked_from;
        self.set(&fact.settings);
        self.select(fact.selection.as_ref());
    }

    /// What the shared past says must be in `self` already.
    fn forked(&mut self, fact: &ThreadForked, at: u64) {
        (self.created_at, self.recency_at) = (at, at);
        self.id = fact.thread;
        self.forked_from = Some(fact.parent);
        self.archived = false;
        self.wakes.clear();
        self.thread_source.clone_from(&fact.thread_source);
        self.parent = fact.spawned_by.as_ref().map(|parent| parent.thread);
        self.name.clone_from(&fact.name);
        if let Some(source) = &fact.source {
            self.source = word(source);
        }
        self.set(&fact.settings);
        self.select(fact.selection.as_ref());
    }

    /// A fork begins with what its parent shows.
    pub fn inherit(&mut self, parent: &Self) {
        *self = Self { id: self.id, ..parent.clone() };
    }

    fn select(&mut self, selection: Option<&Selection>) {
        if selection.is_some() {
            self.selection = selection.cloned();
        }
    }

    fn set(&mut self, settings: &Settings) {
        fn set(mine: &mut Option<String>, theirs: Option<&String>) {
            if theirs.is_some() {
                *mine = theirs.cloned();
            }
        }
        set(&mut self.cwd, settings.cwd.as_ref());
        set(&mut self.model, settings.model.as_ref());
        set(&mut self.provider, settings.model_provider.as_ref());
    }
}

/// A source is a word, or a word with details.
fn word(source: &Raw) -> Option<String> {
    match source.read::<serde_json::Value>().ok()? {
        serde_json::Value::String(word) => Some(word),
        serde_json::Value::Object(details) => details.keys().next().cloned(),
        _ => None,
    }
}

fn preview(input: &InputReceived) -> Option<String> {
    let text = match input.origin {
        InputOrigin::Agent => return None,
        _ => {
            let said = input.items.iter().filter(|item| is_user_message(item)).chain(&input.content);
            said.map(words::of).find(|text| !text.trim().is_empty())?
        }
    };
    let text = text.trim();
    Some(text.char_indices().nth(PREVIEW).map_or(text, |(end, _)| &text[..end]).to_owned())
}
