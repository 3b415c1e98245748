//! From items of history to messages whose roles alternate, with every result at the beginning of the message after its call.

use std::collections::HashMap;

use outpost_thread::GeneratedImage;
use outpost_wire::base64;
use serde_json::{Value, json};

use super::{Called, FORMAT};
use crate::model::Prompt;
use crate::pictures::outgoing;

/// The API refuses a larger picture, counted in base64.
const LARGEST_PICTURE: usize = 5 << 20;

/// A history as messages.
pub(super) struct Conversation {
    pub messages: Vec<Value>,
    pub tools: Called,
    /// Whether thinking with a budget may be asked for: the API refuses it where the last calls were made without thinking.
    pub may_think: bool,
}

pub(super) fn of(prompt: &Prompt) -> Conversation {
    let mut writer = Writer { messages: Vec::new(), images: Vec::new(), ids: HashMap::new(), tools: Called::new() };
    for raw in prompt.history.items() {
        let Some(item) = outgoing(raw, prompt.facts.vision) else { continue };
        if GeneratedImage::of(raw).is_some() {
            writer.images.extend(Writer::blocks(&item["content"]));
            continue;
        }
        let is_output = item["type"].as_str().is_some_and(|kind| kind.ends_with("_output"));
        if !is_output && !writer.has_open_calls() {
            writer.show();
        }
        writer.add(&item);
    }
    writer.show();
    let Writer { mut messages, tools, .. } = writer;
    if messages.first().is_none_or(|first| first["role"] != "user") {
        messages.insert(
            0,
            json!({"role": "user", "content": [{"type": "text", "text": "(The beginning of this conversation was left out.)"}]}),
        );
    }
    if messages.last().is_some_and(|last| last["role"] != "user") {
        messages.push(json!({"role": "user", "content": [{"type": "text", "text": "Go on."}]}));
    }
    let may_think = may_think(&messages);
    Conversation { messages, tools, may_think }
}

/// Whether the answer whose results come last began with a thought, if there is one.
fn may_think(messages: &[Value]) -> bool {
    let [.., answer, results] = messages else { return true };
    let is = |message: &Value, kinds: &[&str]| message["content"][0]["type"].as_str().is_some_and(|kind| kinds.contains(&kind));
    !is(results, &["tool_result"]) || is(answer, &["thinking", "redacted_thinking"])
}

struct Writer {
    messages: Vec<Value>,
    /// Pictures that the model made: they follow in a message of the user, where nothing awaits a result.
    images: Vec<Value>,
    /// Ids of calls as this API takes them.
    ids: HashMap<String, String>,
    tools: Called,
}

impl Writer {
    fn add(&mut self, item: &Value) {
        let text = |name: &str| item[name].as_str().unwrap_or_default();
        match text("type") {
            "message" | "" if item["role"].is_string() => {
                let role = if text("role") == "assistant" { "assistant" } else { "user" };
                for block in Self::blocks(&item["content"]) {
                    self.push(role, block);
                }
            }
            "reasoning" if text("format") == FORMAT => {
                if let Some(block) = thought(item) {
                    self.push("assistant", block);
                }
            }
            "function_call" => self.call(text("call_id"), text("name"), arguments(text("arguments"))),
            "custom_tool_call" => self.call(text("call_id"), text("name"), json!({"input": text("input")})),
            // What other programs offered to a model, and what this wire has no words of its own for.
            "local_shell_call" => self.call(text("call_id"), "local_shell", object(&item["action"])),
            "tool_search_call" if item["call_id"].is_string() => self.call(text("call_id"), "tool_search", object(&item["arguments"])),
            "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
                let blocks = Self::blocks(&item["output"]);
                self.result(text("call_id"), blocks);
            }
            "tool_search_output" if item["call_id"].is_string() => {
                self.result(text("call_id"), vec![json!({"type": "text", "text": item["tools"].to_string()})]);
            }
            _ => {}
        }
    }

    fn has_open_calls(&self) -> bool {
        let blocks = self.messages.last().filter(|last| last["role"] == "assistant").and_then(|last| last["content"].as_array());
        blocks.is_some_and(|blocks| blocks.iter().any(|block| block["type"] == "tool_use"))
    }

    fn show(&mut self) {
        for block in std::mem::take(&mut self.images) {
            self.push("user", block);
        }
    }

    /// Adds a block to the message of its role, or begins one.
    fn push(&mut self, role: &str, block: Value) {
        match self.messages.last_mut().filter(|last| last["role"] == role).and_then(|last| last["content"].as_array_mut()) {
            Some(blocks) => blocks.push(block),
            None => self.messages.push(json!({"role": role, "content": [block]})),
        }
    }

    fn call(&mut self, id: &str, name: &str, input: Value) {
        let id = self.id(id);
        self.tools.insert(name.to_owned());
        self.push("assistant", json!({"type": "tool_use", "id": id, "name": name, "input": input}));
    }

    fn result(&mut self, id: &str, blocks: Vec<Value>) {
        let id = self.id(id);
        let mut result = json!({"type": "tool_result", "tool_use_id": id});
        if !blocks.is_empty() {
            result["content"] = blocks.into();
        }
        self.push("user", result);
    }

    /// An id of the letters that this API takes; one for each id of the history.
    fn id(&mut self, id: &str) -> String {
        if let Some(known) = self.ids.get(id) {
            return known.clone();
        }
        let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let sound: String = id.chars().map(|c| if is_letter(c) { c } else { '_' }).collect();
        let sound = if sound.is_empty() { "call".to_owned() } else { sound };
        let is_free = |id: &str| self.ids.values().all(|taken| taken != id);
        let numbered = (2_u32..).map(|number| format!("{sound}_{number}"));
        let free = std::iter::once(sound.clone()).chain(numbered).find(|id| is_free(id)).unwrap_or_default();
        self.ids.insert(id.to_owned(), free.clone());
        free
    }

    /// The blocks of a message or of a result. Text that says nothing is refused, so it is left out.
    fn blocks(content: &Value) -> Vec<Value> {
        let text = |text: &str| (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text}));
        match content {
            Value::String(whole) => text(whole).into_iter().collect(),
            Value::Array(parts) => parts
                .iter()
                .filter_map(|part| match part["type"].as_str() {
                    Some("input_image") => Some(image(part["image_url"].as_str().unwrap_or_default())),
                    Some("refusal") => text(part["refusal"].as_str().unwrap_or_default()),
                    _ => text(part["text"].as_str().unwrap_or_default()),
                })
                .collect(),
            Value::Null => Vec::new(),
            other => text(&other.to_string()).into_iter().collect(),
        }
    }
}

/// The block of thinking that an item holds; nothing if it is not signed, because then nothing may be sent back.
fn thought(item: &Value) -> Option<Value> {
    let sealed = item["encrypted_content"].as_str().filter(|sealed| !sealed.is_empty())?;
    if item["redacted"] == true {
        return Some(json!({"type": "redacted_thinking", "data": sealed}));
    }
    let parts = item["content"].as_array().into_iter().flatten();
    let thinking: String = parts.filter_map(|part| part["text"].as_str()).collect();
    Some(json!({"type": "thinking", "thinking": thinking, "signature": sealed}))
}

/// Parameters as an object. What a model wrote badly is shown to it as what it wrote.
fn arguments(text: &str) -> Value {
    match serde_json::from_str::<Value>(text) {
        Ok(object @ Value::Object(_)) => object,
        _ if text.trim().is_empty() => json!({}),
        _ => json!({"unreadable": text}),
    }
}

fn object(value: &Value) -> Value {
    match value {
        Value::Object(_) => value.clone(),
        Value::String(text) => arguments(text),
        _ => json!({}),
    }
}

fn image(address: &str) -> Value {
    let refused = |why: &str| json!({"type": "text", "text": format!("[a picture that cannot be shown: {why}]")});
    if address.starts_with("https://") {
        return json!({"type": "image", "source": {"type": "url", "url": address}});
    }
    match address.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,")) {
        Some((_, data)) if data.len() > LARGEST_PICTURE => refused("it has more than 5 MB"),
        // A line break or a missing `=` is forgiven elsewhere and refused here.
        Some((kind, data)) => match base64::decode(data) {
            Ok(bytes) => json!({"type": "image", "source": {"type": "base64", "media_type": kind, "data": base64::encode(&bytes)}}),
            Err(_) => refused("it is damaged"),
        },
        None => refused("its address does not begin with `https:`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{HistoryItem, ModelHistory};

    fn conversation(items: &[Value]) -> Conversation {
        let items = items.iter().cloned().map(HistoryItem::from).collect();
        of(&Prompt::plain("m", "be brief", ModelHistory::new(items)))
    }

    fn said(role: &str, text: &str) -> Value {
        let kind = if role == "assistant" { "output_text" } else { "input_text" };
        json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]})
    }

    #[test]
    fn a_conversation_with_tools() {
        let items = [
            said("user", "look"),
            json!({"type": "reasoning", "format": "anthropic", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": "sig"}),
            json!({"type": "reasoning", "format": "anthropic", "summary": [], "encrypted_content": "data", "redacted": true}),
            json!({"type": "reasoning", "summary": [], "encrypted_content": "of another wire"}),
            said("assistant", "I look"),
            json!({"type": "function_call", "call_id": "a.1", "name": "exec_command", "arguments": "{\"cmd\":\"ls\"}"}),
            json!({"type": "custom_tool_call", "call_id": "a_1", "name": "apply_patch", "input": "*** Begin"}),
            json!({"type": "function_call_output", "call_id": "a.1", "output": [{"type": "input_image", "image_url": "https://x"}]}),
            json!({"type": "custom_tool_call_output", "call_id": "a_1", "output": " "}),
            said("user", "and now?"),
        ];
        let conversation = conversation(&items);
        assert_eq!(
            Value::from(conversation.messages),
            json!([
                {"role": "user", "content": [{"type": "text", "text": "look"}]},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "sig"},
                    {"type": "redacted_thinking", "data": "data"},
                    {"type": "text", "text": "I look"},
                    {"type": "tool_use", "id": "a_1", "name": "exec_command", "input": {"cmd": "ls"}},
                    {"type": "tool_use", "id": "a_1_2", "name": "apply_patch", "input": {"input": "*** Begin"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "a_1", "content": [{"type": "image", "source": {"type": "url", "url": "https://x"}}]},
                    {"type": "tool_result", "tool_use_id": "a_1_2"},
                    {"type": "text", "text": "and now?"},
                ]},
            ])
        );
        assert!(conversation.may_think);
        assert_eq!(conversation.tools.into_iter().collect::<Vec<_>>(), ["apply_patch", "exec_command"]);
    }

    #[test]
    fn roles_alternate_from_user_to_user() {
        let roles = |items: &[Value]| -> Vec<String> {
            conversation(items).messages.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(roles(&[]), ["user"]);
        assert_eq!(roles(&[said("assistant", "x"), said("assistant", "y")]), ["user", "assistant", "user"]);
        assert_eq!(roles(&[said("user", "x"), said("user", " "), said("developer", "y")]), ["user"]);
    }

    #[test]
    fn calls_that_were_made_without_thinking_forbid_it_until_the_next_question() {
        let call = json!({"type": "function_call", "call_id": "a", "name": "x", "arguments": "{bad"});
        let output = json!({"type": "function_call_output", "call_id": "a", "output": "r"});
        let running = conversation(&[said("user", "go"), call.clone(), output.clone()]);
        assert!(!running.may_think);
        assert_eq!(running.messages[1]["content"][0]["input"], json!({"unreadable": "{bad"}));
        assert!(conversation(&[said("user", "go"), call, output, said("assistant", "done"), said("user", "more")]).may_think);
    }
}
