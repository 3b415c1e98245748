//! What the model sees: the history as model items, in the order in which the model must be shown them.
//!
//! This is a fold of its own, because it is large and only needed while a turn runs. It starts at
//! [`crate::Thread::context_start`]. Items are carried as they were received. Results stand in the order of the calls, not in
//! the order in which they ended; a call without a result gets one that says so (`pairs.rs`); steering stands where a step took
//! it up.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;

use crate::compact::{ContextCompacted, Kept};
use crate::entry::{DamagedRange, Entry, Fact};
use crate::id::{InputId, Ordinal, TurnId};
use crate::input::{InputOrigin, InputReceived};
use crate::pairs::Pairs;
use crate::raw::Raw;
use crate::turn::{InterruptReason, Marker, TurnFinished, TurnStatus};

/// The model items of a thread, from its last compaction on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Context {
    pairs: Pairs,
    waiting: Vec<WaitingInput>,
    /// Who was asked last: what only its maker can read among the items is theirs.
    provider: Option<String>,
    /// Whether a step of our own was captured. Steps of another program, whose history was imported, have no detail: a provider of
    /// the same name may have been asked there with another account, which cannot read what the first one may.
    is_ours: bool,
    /// How often items were taken out again.
    revision: u32,
}

#[derive(Debug, Clone, PartialEq)]
struct WaitingInput {
    input: InputId,
    turn: Option<TurnId>,
    ordinal: Ordinal,
    items: Vec<Raw>,
}

impl Context {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn items(&self) -> &[Raw] {
        self.pairs.items()
    }

    /// The items for a caller that keeps them for a while. They are not copied; what is added meanwhile is not theirs.
    pub fn shared(&self) -> Arc<Vec<Raw>> {
        self.pairs.shared()
    }

    /// The items as `provider` can be asked with them now, in the middle of whatever runs: calls that have not ended are told as
    /// stopped, and what only another provider can read is left out.
    pub fn whole_for(&self, provider: &str) -> Arc<Vec<Raw>> {
        let is_own = self.provider.as_deref() == Some(provider);
        if is_own && !self.pairs.has_open_calls() {
            return self.shared();
        }
        let mut pairs = self.pairs.clone();
        pairs.settle();
        if !is_own {
            pairs.forget_private();
        }
        pairs.shared()
    }

    /// How often items were taken out again. While this is the same, items were only added.
    pub fn revision(&self) -> u32 {
        self.revision
    }

    /// The items, and the entry that each comes from.
    pub fn located(&self) -> impl Iterator<Item = (Ordinal, &Raw)> {
        self.pairs.from().iter().copied().zip(self.items())
    }

    /// What the user said last: the messages after everything else, and those that steer the turn and are taken up by its next step.
    pub fn last_words(&self, turn: &TurnId) -> Vec<&Raw> {
        let is_message = |item: &&Raw| user_text(item).is_some();
        let items = self.items();
        let trailing = items.iter().rev().take_while(is_message).count();
        let steering = self.waiting.iter().filter(|waiting| waiting.turn.as_ref() == Some(turn)).flat_map(|waiting| &waiting.items);
        items[items.len() - trailing..].iter().chain(steering).filter(|item| is_user_message(item)).collect()
    }

    /// All of it as the beginning of a new context: by ordinals where an entry stands with exactly its own items, the rest item
    /// by item. `entries` are those that the items come from.
    pub fn kept(&self, entries: &[Entry]) -> Vec<Kept> {
        let (items, located) = (self.items(), self.pairs.from());
        let mut kept = Vec::new();
        let mut at = 0;
        while at < items.len() {
            let ordinal = located[at];
            let run = located[at..].iter().take_while(|from| **from == ordinal).count();
            let shown = &items[at..at + run];
            let own =
                entries.iter().find(|entry| entry.ordinal == ordinal && !matches!(entry.fact, Fact::ContextCompacted(_))).map(model_items);
            let is_whole = own.is_some_and(|own| own == shown) && located.iter().filter(|from| **from == ordinal).count() == run;
            if is_whole {
                kept.push(Kept::Entry(ordinal));
            } else {
                kept.extend(shown.iter().cloned().map(Kept::Item));
            }
            at += run;
        }
        kept
    }

    /// The entries that must be at hand before a compaction can be the beginning of a context.
    pub fn needs(compaction: &ContextCompacted) -> Vec<Ordinal> {
        compaction.kept.iter().filter_map(|kept| if let Kept::Entry(ordinal) = kept { Some(*ordinal) } else { None }).collect()
    }

    /// Starts at a compaction. `older` are the entries before it that [`Context::needs`] and `Thread::waited_then` name; one that
    /// is missing is damage and left out.
    pub fn begin(compaction: &ContextCompacted, ordinal: Ordinal, older: &[Entry]) -> Self {
        let mut context = Self::default();
        let kept = Self::needs(compaction);
        let mut stock = Vec::new();
        for entry in older {
            if kept.contains(&entry.ordinal) {
                stock.extend(model_items(entry).into_iter().map(|item| (entry.ordinal, item)));
            } else {
                context.apply(entry);
            }
        }
        context.compact(compaction, ordinal, &stock);
        context
    }

    pub fn apply(&mut self, entry: &Entry) {
        let ordinal = entry.ordinal;
        match &entry.fact {
            Fact::InputReceived(input) if input.origin == InputOrigin::History => self.add(ordinal, input_items(input)),
            Fact::InputReceived(input) => {
                self.waiting.push(WaitingInput { input: input.input.clone(), turn: input.turn.clone(), ordinal, items: input_items(input) })
            }
            Fact::QueueChanged(change) => self.waiting.retain(|waiting| waiting.turn.is_some() || change.queue.contains(&waiting.input)),
            Fact::TurnStarted(turn) => {
                self.pairs.settle();
                for id in &turn.inputs {
                    if let Some(at) = self.waiting.iter().position(|waiting| waiting.input == *id) {
                        let waiting = self.waiting.remove(at);
                        self.add(waiting.ordinal, waiting.items);
                    }
                }
            }
            Fact::StepCaptured(step) => {
                self.is_ours |= step.detail.is_some();
                self.pairs.settle();
                self.take_steering(&step.turn);
                self.add(ordinal, step.items.iter().cloned());
            }
            Fact::ModelAsked(asked) => {
                // Another provider cannot read what the last one thought, and would refuse it.
                let provider = asked.provider.as_ref().filter(|_| self.is_ours);
                if provider != self.provider.as_ref() {
                    self.provider = provider.cloned();
                    self.revision += u32::from(self.pairs.forget_private());
                }
            }
            Fact::ModelAnswered(answer) => self.pairs.answer(ordinal, &answer.items, &answer.calls),
            Fact::CallFinished(end) => self.pairs.end_call(&end.call, ordinal, &end.items, end.outcome),
            Fact::ContextCompacted(compaction) => {
                self.pairs.settle();
                let old: Vec<(Ordinal, Raw)> = self.located().map(|(ordinal, item)| (ordinal, item.clone())).collect();
                self.compact(compaction, ordinal, &old);
            }
            Fact::TurnFinished(end) => self.finish(end, ordinal),
            Fact::ThreadForked(_) => {
                self.pairs.settle();
                self.waiting.clear();
            }
            Fact::DamageNoted(noted) => {
                for range in noted.here(ordinal) {
                    // Whether they were taken up is not known; they were said.
                    for waiting in std::mem::take(&mut self.waiting) {
                        self.add(waiting.ordinal, waiting.items);
                    }
                    self.add(ordinal, vec![missing(range)]);
                }
            }
            Fact::ThreadCreated(_)
            | Fact::MetadataChanged(_)
            | Fact::SettingsChanged(_)
            | Fact::TurnSettingsChanged(_)
            | Fact::SelectionChanged(_)
            | Fact::ApprovalAsked(_)
            | Fact::ApprovalAnswered(_)
            | Fact::PermissionsGranted(_)
            | Fact::CallStarted(_)
            | Fact::WakeSet(_)
            | Fact::WakeEnded(_)
            | Fact::AgentSpawned(_)
            | Fact::AgentClosed(_)
            | Fact::TurnsReverted(_)
            | Fact::Unknown { .. } => {}
        }
    }

    fn add(&mut self, ordinal: Ordinal, items: impl IntoIterator<Item = Raw>) {
        self.pairs.add(items.into_iter().map(|item| (ordinal, item)));
    }

    fn take_steering(&mut self, turn: &TurnId) {
        for waiting in self.waiting.extract_if(.., |waiting| waiting.turn.as_ref() == Some(turn)).collect::<Vec<_>>() {
            self.add(waiting.ordinal, waiting.items);
        }
    }

    fn finish(&mut self, end: &TurnFinished, ordinal: Ordinal) {
        self.pairs.settle();
        if let Some(turn) = &end.turn
            && end.status != TurnStatus::Completed
        {
            self.take_steering(turn);
        }
        if end.status == TurnStatus::Interrupted
            && let Some(item) = marker(end.marker, end.reason)
        {
            self.add(ordinal, [item]);
        }
    }

    /// Starts anew with what is kept of the `old` items. The providers of the reasoning among them are no longer known.
    fn compact(&mut self, compaction: &ContextCompacted, ordinal: Ordinal, old: &[(Ordinal, Raw)]) {
        let mut items = Vec::new();
        for kept in &compaction.kept {
            match kept {
                Kept::Item(item) => items.push((ordinal, item.clone())),
                Kept::Entry(wanted) => items.extend(old.iter().filter(|(from, _)| from == wanted).cloned()),
            }
        }
        self.pairs = Pairs::default();
        self.pairs.add(items);
        self.pairs.settle();
        self.pairs.forget_private();
        (self.provider, self.is_ours) = (None, false);
    }
}

/// What an entry adds to the model's view by itself.
pub(crate) fn model_items(entry: &Entry) -> Vec<Raw> {
    match &entry.fact {
        Fact::InputReceived(input) => input_items(input),
        Fact::StepCaptured(step) => step.items.clone(),
        Fact::ModelAnswered(answer) => answer.items.clone(),
        Fact::CallFinished(end) => end.items.clone(),
        Fact::ContextCompacted(compaction) => {
            compaction.kept.iter().filter_map(|kept| if let Kept::Item(item) = kept { Some(item.clone()) } else { None }).collect()
        }
        _ => Vec::new(),
    }
}

#[derive(Deserialize)]
struct TextPart<'a> {
    #[serde(rename = "type", borrow)]
    kind: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    text: Option<std::borrow::Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Option<std::borrow::Cow<'a, str>>,
    #[serde(borrow, default)]
    path: Option<std::borrow::Cow<'a, str>>,
}

impl TextPart<'_> {
    /// A text as it is, and a skill that the client named as the user would name it.
    fn said(self) -> Option<String> {
        match self.kind.as_ref() {
            "text" => self.text.map(Into::into),
            "skill" => self.path.filter(|path| path.starts_with("skill://")).or(self.name).map(|skill| format!("${skill}")),
            _ => None,
        }
    }
}

/// An input as the model sees it: its own items, or one user message made of its texts.
pub(crate) fn input_items(input: &InputReceived) -> Vec<Raw> {
    if !input.items.is_empty() {
        return input.items.clone();
    }
    let texts: Vec<_> = input
        .content
        .iter()
        .filter_map(|part| serde_json::from_str::<TextPart<'_>>(part.get()).ok())
        .filter_map(|part| part.said())
        .map(|text| json!({"type": "input_text", "text": text}))
        .collect();
    if texts.is_empty() { Vec::new() } else { vec![Raw::from(json!({"type": "message", "role": "user", "content": texts}))] }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    role: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a serde_json::value::RawValue>,
}

/// The first text of a user message.
fn user_text(item: &Raw) -> Option<String> {
    let message: Message<'_> = serde_json::from_str(item.get()).ok()?;
    if message.kind != "message" || message.role != "user" {
        return None;
    }
    let content = message.content?.get();
    if let Ok(text) = serde_json::from_str::<String>(content) {
        return Some(text);
    }
    let parts: Vec<serde_json::Value> = serde_json::from_str(content).ok()?;
    Some(parts.iter().find_map(|part| part.get("text")?.as_str()).unwrap_or_default().to_owned())
}

/// What a model item says, if it is a message.
pub fn said(item: &Raw) -> Option<String> {
    let item: serde_json::Value = item.read().ok()?;
    if item["type"] != "message" {
        return None;
    }
    Some(item["content"].as_array()?.iter().filter_map(|part| part["text"].as_str()).collect())
}

/// Whether a model item is a message that a user wrote, and not one that was injected: those start with a tag.
pub fn is_user_message(item: &Raw) -> bool {
    user_text(item).is_some_and(|text| !starts_with_tag(&text))
}

fn starts_with_tag(text: &str) -> bool {
    let Some(rest) = text.trim_start().strip_prefix('<') else { return false };
    let name = rest.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-'));
    matches!(name, Some(end) if end > 0 && matches!(rest.as_bytes()[end], b'>' | b' '))
}

/// The first words of a user message.
pub(crate) fn preview(item: &Raw) -> Option<String> {
    const LENGTH: usize = 200;
    let text = user_text(item).filter(|text| !starts_with_tag(text) && !text.trim().is_empty())?;
    let text = text.trim();
    Some(text.char_indices().nth(LENGTH).map_or(text, |(end, _)| &text[..end]).to_owned())
}

/// What the model is told in the place of entries that cannot be read.
fn missing(range: &DamagedRange) -> Raw {
    let text = format!(
        "<missing_history>\nA part of this conversation cannot be read any more ({range}). What was said and done there is not known. \
         Look at the present state before you rely on anything that may have happened there.\n</missing_history>"
    );
    Raw::from(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}))
}

/// The message that tells the model of an interruption.
pub fn marker(marker: Marker, reason: Option<InterruptReason>) -> Option<Raw> {
    let role = match marker {
        Marker::Off => return None,
        Marker::User => "user",
        Marker::Developer => "developer",
    };
    let why = match reason {
        Some(InterruptReason::Shutdown) => "The program was shut down during this turn; no user asked for the turn to stop.",
        Some(InterruptReason::Budget) => "This turn was stopped because its budget was used up.",
        Some(InterruptReason::Replaced) => "This turn was stopped because another one took its place.",
        Some(InterruptReason::User | InterruptReason::Forked) | None => "This turn was stopped on purpose.",
    };
    let text = format!(
        "<turn_aborted>\n{why} Commands that it started may have run in part, and some may still be running. \
         Look at the present state before you rely on their effects.\n</turn_aborted>"
    );
    Some(Raw::from(json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]})))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::CallRequest;
    use crate::entry::ModelAnswered;

    fn item(kind: &str) -> Raw {
        Raw::from(json!({"type": kind, "call_id": "c", "role": "user"}))
    }

    #[test]
    fn the_model_is_told_what_is_missing() {
        let noted = |from, to, through| {
            let damage = vec![DamagedRange { from, to, what: "altered".into() }];
            Fact::from(crate::entry::DamageNoted { damage, through, continued: false })
        };
        let said = InputReceived {
            input: "i".into(),
            turn: None,
            origin: InputOrigin::User,
            client_key: None,
            by: None,
            content: vec![],
            items: vec![item("message")],
        };
        let mut context = Context::new();
        for (ordinal, fact) in [(2, said.into()), (3, noted(3, 7, Some(7))), (8, noted(3, 7, None)), (9, noted(9, 12, None))] {
            context.apply(&Entry { ordinal, at: 0, fact });
        }
        let texts: Vec<_> = context.items().iter().map(|item| user_text(item).unwrap_or_default()).collect();
        assert_eq!(texts.len(), 3, "{texts:?}");
        assert_eq!(texts[0], "", "what was said before stays");
        assert!(texts[1].contains("entries 3 to 7: altered") && texts[2].contains("entries 9 to 12"), "{texts:?}");
        assert!(!is_user_message(&context.items()[1]), "it is not a message of the user");
    }

    /// Models refuse a call that something else follows than its result.
    #[test]
    fn nothing_stands_between_a_call_and_its_result() {
        let turn = TurnId::from("t");
        let call = CallRequest { call: "c".into(), item: 0, tool: "exec_command".into() };
        let answered = ModelAnswered {
            turn: turn.clone(),
            step: 0,
            items: vec![item("function_call")],
            calls: vec![call],
            complete: true,
            goes_on: false,
            usage: None,
            response: None,
        };
        let injected = InputReceived {
            input: "i".into(),
            turn: None,
            origin: InputOrigin::History,
            client_key: None,
            by: None,
            content: vec![],
            items: vec![item("message")],
        };
        let end = TurnFinished { turn: Some(turn), status: TurnStatus::Completed, reason: None, error: None, marker: Marker::Off };
        let mut context = Context::new();
        for (ordinal, fact) in (1..).zip([Fact::from(answered), injected.into(), end.into()]) {
            context.apply(&Entry { ordinal, at: 0, fact });
        }
        let kind = |item: &Raw| item.read::<serde_json::Value>().unwrap()["type"].as_str().unwrap().to_owned();
        let kinds: Vec<String> = context.items().iter().map(kind).collect();
        assert_eq!(kinds, ["function_call", "function_call_output", "message"]);
    }
}
