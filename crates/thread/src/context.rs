//! What the model sees: the history as model items, in the order in which the model must be shown them.
//!
//! This is a fold of its own, because it is large and only needed while a turn runs. It starts at
//! [`crate::Thread::context_start`]. Items are carried as they were received. Results stand in the order of the calls, not in
//! the order in which they ended; a call without a result gets one that says so; steering stands where a step took it up.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;

use crate::compact::{ContextCompacted, Kept};
use crate::entry::{DamagedRange, Entry, Fact};
use crate::id::{CallId, InputId, Seq, TurnId};
use crate::input::{InputOrigin, InputReceived};
use crate::raw::Raw;
use crate::turn::{InterruptReason, Marker, TurnFinished, TurnStatus};

/// The model items of a thread, from its last compaction on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Context {
    items: Arc<Vec<Raw>>,
    /// Which entry each item comes from.
    from: Vec<Seq>,
    waiting: Vec<WaitingInput>,
    calls: Vec<OpenCall>,
    /// What came while calls were open: nothing stands between a call and its result.
    behind: Vec<(Seq, Raw)>,
}

#[derive(Debug, Clone, PartialEq)]
struct WaitingInput {
    input: InputId,
    turn: Option<TurnId>,
    seq: Seq,
    items: Vec<Raw>,
}

#[derive(Debug, Clone, PartialEq)]
struct OpenCall {
    id: CallId,
    seq: Seq,
    result_type: &'static str,
    result: Option<(Seq, Vec<Raw>)>,
}

impl Context {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn items(&self) -> &[Raw] {
        &self.items
    }

    /// The items for somebody who keeps them for a while. They are not copied; what is added meanwhile is not theirs.
    pub fn shared(&self) -> Arc<Vec<Raw>> {
        self.items.clone()
    }

    /// The items, and the entry that each comes from.
    pub fn located(&self) -> impl Iterator<Item = (Seq, &Raw)> {
        self.from.iter().copied().zip(self.items.iter())
    }

    /// What the user said last: the messages after everything else, and those that steer the turn and are taken up by its next step.
    pub fn last_words(&self, turn: &TurnId) -> Vec<&Raw> {
        let is_message = |item: &&Raw| user_text(item).is_some();
        let trailing = self.items.iter().rev().take_while(is_message).count();
        let steering = self.waiting.iter().filter(|waiting| waiting.turn.as_ref() == Some(turn)).flat_map(|waiting| &waiting.items);
        self.items[self.items.len() - trailing..].iter().chain(steering).filter(|item| is_user_message(item)).collect()
    }

    /// All of it as the beginning of a new context: by ordinals where an entry stands with exactly its own items, the rest item
    /// by item. `entries` are those that the items come from.
    pub fn kept(&self, entries: &[Entry]) -> Vec<Kept> {
        let mut kept = Vec::new();
        let mut at = 0;
        while at < self.items.len() {
            let seq = self.from[at];
            let run = self.from[at..].iter().take_while(|from| **from == seq).count();
            let items = &self.items[at..at + run];
            let own = entries.iter().find(|entry| entry.seq == seq && !matches!(entry.fact, Fact::ContextCompacted(_))).map(model_items);
            let is_whole = own.is_some_and(|own| own == items) && self.from.iter().filter(|from| **from == seq).count() == run;
            if is_whole {
                kept.push(Kept::Entry(seq));
            } else {
                kept.extend(items.iter().cloned().map(Kept::Item));
            }
            at += run;
        }
        kept
    }

    /// The entries that must be at hand before a compaction can be the beginning of a context.
    pub fn needs(compaction: &ContextCompacted) -> Vec<Seq> {
        compaction.kept.iter().filter_map(|kept| if let Kept::Entry(seq) = kept { Some(*seq) } else { None }).collect()
    }

    /// Starts at a compaction. `older` are the entries before it that [`Context::needs`] and `Thread::waited_then` name; one that
    /// is missing is damage and left out.
    pub fn begin(compaction: &ContextCompacted, seq: Seq, older: &[Entry]) -> Self {
        let mut context = Self::default();
        let kept = Self::needs(compaction);
        for entry in older {
            if kept.contains(&entry.seq) {
                context.extend(entry.seq, model_items(entry));
            } else {
                context.apply(entry);
            }
        }
        context.compact(compaction, seq);
        context
    }

    pub fn apply(&mut self, entry: &Entry) {
        let seq = entry.seq;
        match &entry.fact {
            Fact::InputReceived(input) if input.origin == InputOrigin::History => self.add_aside(seq, input_items(input)),
            Fact::InputReceived(input) => {
                self.waiting.push(WaitingInput { input: input.input.clone(), turn: input.turn.clone(), seq, items: input_items(input) })
            }
            Fact::QueueChanged(change) => self.waiting.retain(|waiting| waiting.turn.is_some() || change.queue.contains(&waiting.input)),
            Fact::TurnStarted(turn) => {
                // Nothing is open here, unless the end of the turn before is lost.
                self.settle();
                for id in &turn.inputs {
                    if let Some(at) = self.waiting.iter().position(|waiting| waiting.input == *id) {
                        let waiting = self.waiting.remove(at);
                        self.extend(waiting.seq, waiting.items);
                    }
                }
            }
            Fact::StepCaptured(step) => {
                self.settle();
                self.take_steering(&step.turn);
                self.extend(seq, step.items.iter().cloned());
            }
            Fact::ModelAnswered(answer) => {
                self.extend(seq, answer.items.iter().cloned());
                self.calls.extend(answer.calls.iter().map(|request| OpenCall {
                    id: request.call.clone(),
                    seq,
                    result_type: answer.items.get(request.item).map_or(FUNCTION_RESULT, result_type),
                    result: None,
                }));
            }
            Fact::CallFinished(end) => match self.calls.iter_mut().find(|call| call.id == end.call) {
                Some(call) => drop(call.result.get_or_insert_with(|| (seq, end.items.clone()))),
                // A command of the user's, or one that outlived its turn: nobody waits for a result, but messages are shown.
                None => self.add_aside(seq, messages(&end.items)),
            },
            Fact::ContextCompacted(compaction) => {
                self.settle();
                self.compact(compaction, seq);
            }
            Fact::TurnFinished(end) => self.finish(end, seq),
            Fact::ThreadForked(_) => {
                self.settle();
                self.waiting.clear();
            }
            Fact::DamageNoted(noted) => {
                for range in noted.here(seq) {
                    // Whether they were taken up is not known; they were said.
                    for waiting in std::mem::take(&mut self.waiting) {
                        self.add_aside(waiting.seq, waiting.items);
                    }
                    self.add_aside(seq, vec![missing(range)]);
                }
            }
            _ => {}
        }
    }

    fn push(&mut self, seq: Seq, item: Raw) {
        Arc::make_mut(&mut self.items).push(item);
        self.from.push(seq);
    }

    fn extend(&mut self, seq: Seq, items: impl IntoIterator<Item = Raw>) {
        for item in items {
            self.push(seq, item);
        }
    }

    /// What belongs to no step.
    fn add_aside(&mut self, seq: Seq, items: Vec<Raw>) {
        if self.calls.is_empty() {
            self.extend(seq, items);
        } else {
            self.behind.extend(items.into_iter().map(|item| (seq, item)));
        }
    }

    /// Results in the order of their calls. Whatever has none is told as stopped.
    fn settle(&mut self) {
        for call in std::mem::take(&mut self.calls) {
            match call.result {
                Some((seq, items)) => self.extend(seq, items),
                None => self.push(call.seq, stopped(&call)),
            }
        }
        for (seq, item) in std::mem::take(&mut self.behind) {
            self.push(seq, item);
        }
    }

    fn take_steering(&mut self, turn: &TurnId) {
        for waiting in self.waiting.extract_if(.., |waiting| waiting.turn.as_ref() == Some(turn)).collect::<Vec<_>>() {
            self.extend(waiting.seq, waiting.items);
        }
    }

    fn finish(&mut self, end: &TurnFinished, seq: Seq) {
        self.settle();
        if let Some(turn) = &end.turn
            && end.status != TurnStatus::Completed
        {
            self.take_steering(turn);
        }
        if end.status == TurnStatus::Interrupted
            && let Some(item) = marker(end.marker, end.reason)
        {
            self.push(seq, item);
        }
    }

    fn compact(&mut self, compaction: &ContextCompacted, seq: Seq) {
        let old: Vec<(Seq, Raw)> = std::mem::take(&mut self.from).into_iter().zip(std::mem::take(Arc::make_mut(&mut self.items))).collect();
        for kept in &compaction.kept {
            match kept {
                Kept::Item(item) => self.push(seq, item.clone()),
                Kept::Entry(wanted) => {
                    for (from, item) in old.iter().filter(|(from, _)| from == wanted) {
                        self.push(*from, item.clone());
                    }
                }
            }
        }
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

const FUNCTION_RESULT: &str = "function_call_output";

#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: std::borrow::Cow<'a, str>,
}

/// The type of the item that answers a call of this type.
fn result_type(call: &Raw) -> &'static str {
    match serde_json::from_str::<Kind<'_>>(call.get()) {
        Ok(Kind { kind }) if kind == "custom_tool_call" => "custom_tool_call_output",
        Ok(Kind { kind }) if kind == "tool_search_call" => "tool_search_output",
        _ => FUNCTION_RESULT,
    }
}

fn stopped(call: &OpenCall) -> Raw {
    let output = "This call was stopped before it ended. It may have done a part of its work.";
    Raw::from(json!({"type": call.result_type, "call_id": call.id, "output": output}))
}

/// What the model is told in the place of entries that cannot be read.
fn missing(range: &DamagedRange) -> Raw {
    let text = format!(
        "<missing_history>\nA part of this conversation cannot be read any more ({range}). What was said and done there is not known. \
         Look at the present state before you rely on anything that may have happened there.\n</missing_history>"
    );
    Raw::from(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}))
}

/// A result without a call would confuse the model.
fn messages(items: &[Raw]) -> Vec<Raw> {
    let is_message = |item: &&Raw| serde_json::from_str::<Kind<'_>>(item.get()).is_ok_and(|item| item.kind == "message");
    items.iter().filter(is_message).cloned().collect()
}

/// The message that tells the model of an interruption.
pub fn marker(marker: Marker, reason: Option<InterruptReason>) -> Option<Raw> {
    let role = match marker {
        Marker::Off => return None,
        Marker::User => "user",
        Marker::Developer => "developer",
    };
    let why = match reason {
        Some(InterruptReason::Shutdown) => "The program was shut down during this turn; nobody asked for the turn to stop.",
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
            content: vec![],
            items: vec![item("message")],
        };
        let mut context = Context::new();
        for (seq, fact) in [(2, said.into()), (3, noted(3, 7, Some(7))), (8, noted(3, 7, None)), (9, noted(9, 12, None))] {
            context.apply(&Entry { seq, at: 0, fact });
        }
        let texts: Vec<_> = context.items().iter().map(|item| user_text(item).unwrap_or_default()).collect();
        assert_eq!(texts.len(), 3, "{texts:?}");
        assert_eq!(texts[0], "", "what was said before stays");
        assert!(texts[1].contains("entries 3 to 7: altered") && texts[2].contains("entries 9 to 12"), "{texts:?}");
        assert!(!is_user_message(&context.items()[1]), "nobody said it");
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
            content: vec![],
            items: vec![item("message")],
        };
        let end = TurnFinished { turn: Some(turn), status: TurnStatus::Completed, reason: None, error: None, marker: Marker::Off };
        let mut context = Context::new();
        for (seq, fact) in (1..).zip([Fact::from(answered), injected.into(), end.into()]) {
            context.apply(&Entry { seq, at: 0, fact });
        }
        let kind = |item: &Raw| item.read::<serde_json::Value>().unwrap()["type"].as_str().unwrap().to_owned();
        let kinds: Vec<String> = context.items().iter().map(kind).collect();
        assert_eq!(kinds, ["function_call", "function_call_output", "message"]);
    }
}
