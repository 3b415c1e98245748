//! What is told while it happens, before anything of it is stored: words and thoughts of the model, output of commands.

use outpost_runtime::model::{ModelProgress, ReasoningPart};
use outpost_thread::{CallId, TurnId};
use outpost_wire::app::event;
use outpost_wire::app::item::Item;
use outpost_wire::app::turn::TurnError;

use super::{Projector, item_name};
use crate::projection::{ClientMessage, items};

impl Projector {
    pub(super) fn progress(&mut self, turn: &TurnId, step: u32, progress: &ModelProgress) -> Vec<ClientMessage> {
        // A reader that has caught up from the store may still be handed what led there.
        let is_stale = self.turn.as_ref().is_none_or(|open| open.id != *turn)
            || self.answered.as_ref().is_some_and(|(known, answered)| known == turn && *answered >= step);
        if is_stale {
            return Vec::new();
        }
        let mut out = Vec::new();
        let (thread_id, turn_id) = (self.name.clone(), turn.to_string());
        let name = |own: &str| item_name(own, turn, step);
        match progress {
            ModelProgress::ItemStarted { item } => {
                if let Some(item) = items::begun(item, name) {
                    self.say(turn, item, &mut out);
                }
            }
            ModelProgress::TextDelta { item_id, delta } if !item_id.is_empty() => {
                let item_id = name(item_id);
                self.say(turn, items::message(item_id.clone(), String::new(), None), &mut out);
                out.push(event::AgentMessageDelta { thread_id, turn_id, item_id, delta: delta.clone() }.into());
            }
            ModelProgress::ReasoningDelta { item_id, part, delta } if !item_id.is_empty() => {
                let (item_id, delta) = (name(item_id), delta.clone());
                self.say(turn, Item::Reasoning { id: item_id.clone(), summary: vec![], content: vec![] }, &mut out);
                match *part {
                    ReasoningPart::Content(content_index) => {
                        out.push(event::ReasoningTextDelta { thread_id, turn_id, item_id, delta, content_index }.into());
                    }
                    ReasoningPart::Summary(summary_index) => {
                        if self.thinking.insert((item_id.clone(), summary_index)) {
                            let (thread_id, turn_id, item_id) = (thread_id.clone(), turn_id.clone(), item_id.clone());
                            out.push(event::ReasoningPartAdded { thread_id, turn_id, item_id, summary_index }.into());
                        }
                        out.push(event::ReasoningDelta { thread_id, turn_id, item_id, delta, summary_index }.into());
                    }
                }
            }
            ModelProgress::Retrying { reason, .. } => {
                self.saying.clear();
                self.thinking.clear();
                let error = TurnError {
                    message: reason.clone(),
                    codex_error_info: Some("other".into()),
                    additional_details: None,
                    misalignment: None,
                };
                out.push(event::ErrorNotice { thread_id, turn_id, error, will_retry: true }.into());
            }
            _ => {}
        }
        out
    }

    /// Tells that the model begins to say something, once. A client that subscribed a moment ago is told then.
    fn say(&mut self, turn: &TurnId, item: Item, out: &mut Vec<ClientMessage>) {
        if self.saying.insert(item.id().to_owned()) {
            let at = self.turn.as_ref().map_or(0, |open| open.asked_at);
            out.push(self.item_started(turn, item, at));
        }
    }

    pub(super) fn output(&mut self, call: &CallId, bytes: &[u8]) -> Vec<ClientMessage> {
        let Some(doing) = self.calls.get_mut(call) else { return Vec::new() };
        let delta = text(&mut doing.tail, bytes);
        if delta.is_empty() {
            return Vec::new();
        }
        let (thread_id, turn_id) = (self.name.clone(), doing.turn.to_string());
        vec![event::CommandOutputDelta { thread_id, turn_id, item_id: call.to_string(), delta }.into()]
    }
}

/// The text of bytes that may end in the middle of a character; the beginning of that one is kept.
fn text(tail: &mut Vec<u8>, bytes: &[u8]) -> String {
    tail.extend_from_slice(bytes);
    let mut out = String::new();
    let mut rest = tail.as_slice();
    loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                out.push_str(valid);
                rest = &[];
                break;
            }
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                out.push_str(&String::from_utf8_lossy(valid));
                match error.error_len() {
                    Some(length) => {
                        out.push(char::REPLACEMENT_CHARACTER);
                        rest = &after[length..];
                    }
                    None => {
                        rest = after;
                        break;
                    }
                }
            }
        }
    }
    *tail = rest.to_vec();
    out
}
