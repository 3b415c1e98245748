//! From the pieces of a streamed message to items.

use std::collections::BTreeMap;

use outpost_thread::GeneratedImage;
use serde_json::{Value, json};

use crate::model::{HistoryItem, ModelProgress, ModelResponse, ModelUsage, OnProgress, ReasoningPart, StopReason};

/// A message that is being put together.
pub(super) struct PartialMessage<'a> {
    ids: &'a (dyn Fn() -> String + Send + Sync),
    progress: OnProgress<'a>,
    text: Part,
    reasoning: Part,
    /// By their place in the message; pieces of several calls may come mixed.
    calls: BTreeMap<u64, Call>,
    /// Pictures that the model made, in base64.
    images: Vec<String>,
    usage: ModelUsage,
    /// Why it ended, once it has.
    finished: Option<StopReason>,
}

/// A text that grows, and the id under which its growth is told.
#[derive(Default)]
struct Part {
    id: Option<String>,
    text: String,
}

#[derive(Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl<'a> PartialMessage<'a> {
    pub(super) fn new(ids: &'a (dyn Fn() -> String + Send + Sync), progress: OnProgress<'a>) -> Self {
        let (text, reasoning) = (Part::default(), Part::default());
        Self { ids, progress, text, reasoning, calls: BTreeMap::new(), images: Vec::new(), usage: ModelUsage::default(), finished: None }
    }

    pub(super) fn take(&mut self, chunk: &Value) {
        if chunk["usage"].is_object() {
            self.usage = usage(&chunk["usage"]);
        }
        let choice = &chunk["choices"][0];
        let delta = &choice["delta"];
        if let Some(text) = delta["content"].as_str().filter(|text| !text.is_empty()) {
            self.say(text);
        }
        // Two spellings of the same thing are about.
        let reasoning = delta["reasoning_content"].as_str().or_else(|| delta["reasoning"].as_str());
        if let Some(text) = reasoning.filter(|text| !text.is_empty()) {
            self.think(text);
        }
        for piece in delta["tool_calls"].as_array().into_iter().flatten() {
            self.take_call(piece);
        }
        // Gateways send a picture whole, as an address that holds it.
        let addresses = delta["images"].as_array().into_iter().flatten().filter_map(|image| image["image_url"]["url"].as_str());
        let data = addresses.filter_map(|address| address.split_once(";base64,")).map(|(_, data)| data.to_owned());
        for data in data {
            // Some repeat it in the last chunk.
            if !self.images.contains(&data) {
                self.images.push(data);
            }
        }
        match choice["finish_reason"].as_str() {
            None => {}
            Some("length") => self.finished = Some(StopReason::Truncated),
            Some("content_filter") => self.finished = Some(StopReason::Refused),
            Some(_) => self.finished = Some(StopReason::Complete),
        }
    }

    fn say(&mut self, delta: &str) {
        let is_new = self.text.id.is_none();
        let id = self.text.grow(delta, self.ids);
        if is_new {
            (self.progress)(ModelProgress::ItemStarted { item: message(&id, "") });
        }
        (self.progress)(ModelProgress::TextDelta { item_id: id, delta: delta.to_owned() });
    }

    fn think(&mut self, delta: &str) {
        let is_new = self.reasoning.id.is_none();
        let id = self.reasoning.grow(delta, self.ids);
        if is_new {
            (self.progress)(ModelProgress::ItemStarted { item: reasoning(&id, "") });
        }
        (self.progress)(ModelProgress::ReasoningDelta { item_id: id, part: ReasoningPart::Content(0), delta: delta.to_owned() });
    }

    fn take_call(&mut self, piece: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let id = text(&piece["id"]);
        let next = self.calls.keys().next_back().map_or(0, |last| last + 1);
        // Servers that send whole calls leave the place out, or give all of them the first: each is one of its own.
        let is_another = |call: &Call| !id.is_empty() && !call.id.is_empty() && call.id != id;
        let place = piece["index"].as_u64().filter(|place| !self.calls.get(place).is_some_and(is_another)).unwrap_or(next);
        let call = self.calls.entry(place).or_default();
        if call.id.is_empty() {
            call.id = id;
        }
        call.name.push_str(&text(&piece["function"]["name"]));
        match &piece["function"]["arguments"] {
            Value::String(piece) => call.arguments.push_str(piece),
            Value::Null => {}
            whole => call.arguments = whole.to_string(),
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.finished.is_some()
    }

    pub(super) fn finish(self) -> Result<ModelResponse, serde_json::Error> {
        let mut items = Vec::new();
        if let Some(id) = self.reasoning.id {
            items.push(reasoning(&id, &self.reasoning.text));
        }
        if let Some(id) = self.text.id {
            items.push(message(&id, &self.text.text));
        }
        items.extend(self.images.iter().map(|data| GeneratedImage::item(data)));
        let stop = self.finished.unwrap_or_default();
        for call in self.calls.into_values() {
            // The limit may have cut off its arguments; a part of a command is not run.
            if stop == StopReason::Truncated && serde_json::from_str::<Value>(&call.arguments).is_err() {
                continue;
            }
            let id = if call.id.is_empty() { format!("call_{}", (self.ids)()) } else { call.id };
            let arguments = if call.arguments.is_empty() { "{}".into() } else { call.arguments };
            items.push(json!({"type": "function_call", "call_id": id, "name": call.name, "arguments": arguments}));
        }
        let answer = ModelResponse { items: items.iter().cloned().map(HistoryItem::from).collect(), usage: self.usage, stop };
        for item in items {
            (self.progress)(ModelProgress::ItemFinished { item });
        }
        Ok(answer)
    }
}

impl Part {
    fn grow(&mut self, delta: &str, ids: &(dyn Fn() -> String + Send + Sync)) -> String {
        self.text.push_str(delta);
        self.id.get_or_insert_with(ids).clone()
    }
}

fn message(id: &str, text: &str) -> Value {
    json!({"type": "message", "id": id, "role": "assistant", "content": [{"type": "output_text", "text": text}]})
}

fn reasoning(id: &str, text: &str) -> Value {
    json!({"type": "reasoning", "id": id, "summary": [], "content": [{"type": "reasoning_text", "text": text}]})
}

fn usage(usage: &Value) -> ModelUsage {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let (input, output) = (number(&usage["prompt_tokens"]), number(&usage["completion_tokens"]));
    ModelUsage {
        input_tokens: input,
        cached_input_tokens: number(&usage["prompt_tokens_details"]["cached_tokens"]),
        cache_write_tokens: 0,
        output_tokens: output,
        reasoning_tokens: number(&usage["completion_tokens_details"]["reasoning_tokens"]),
        total_tokens: usage["total_tokens"].as_u64().unwrap_or(input + output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(chunks: &[Value]) -> (ModelResponse, bool) {
        let ids = || "fresh".to_owned();
        let mut message = PartialMessage::new(&ids, &|_| {});
        for chunk in chunks {
            message.take(chunk);
        }
        let whole = message.is_whole();
        (message.finish().unwrap(), whole)
    }

    fn delta(delta: Value) -> Value {
        json!({"choices": [{"delta": delta, "finish_reason": null}]})
    }

    #[test]
    fn pieces_of_text_and_mixed_calls_are_put_together() {
        let (answer, whole) = run(&[
            delta(json!({"role": "assistant", "content": ""})),
            delta(json!({"reasoning_content": "hm"})),
            delta(json!({"content": "Let "})),
            delta(json!({"content": "me"})),
            delta(json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "exec_command", "arguments": "{\"cmd\""}}]})),
            delta(json!({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "update_plan", "arguments": "{}"}}]})),
            delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": ":\"ls\"}"}}]})),
            json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}),
            json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}),
        ]);
        assert!(whole);
        let items: Vec<Value> = answer.items.iter().map(|item| serde_json::from_str(item.get()).unwrap()).collect();
        assert_eq!(items[0]["type"], "reasoning");
        assert_eq!(items[1]["content"][0]["text"], "Let me");
        assert_eq!(items[2], json!({"type": "function_call", "call_id": "a", "name": "exec_command", "arguments": "{\"cmd\":\"ls\"}"}));
        assert_eq!(items[3]["call_id"], "b");
        assert_eq!(answer.usage, ModelUsage { input_tokens: 7, output_tokens: 3, total_tokens: 10, ..ModelUsage::default() });
    }

    #[test]
    fn whole_calls_without_place_or_id_are_told_apart() {
        let call = |name: &str| json!({"function": {"name": name, "arguments": {"a": 1}}});
        let (answer, _) = run(&[delta(json!({"tool_calls": [call("x"), call("y")]}))]);
        let items: Vec<Value> = answer.items.iter().map(|item| serde_json::from_str(item.get()).unwrap()).collect();
        assert_eq!((items.len(), &items[0]["name"], &items[1]["name"]), (2, &json!("x"), &json!("y")));
        assert_eq!(items[0]["arguments"], "{\"a\":1}");
        assert_eq!(items[0]["call_id"], "call_fresh");
        // Ollama gives all of them the first place.
        let call = |id: &str| json!({"index": 0, "id": id, "function": {"name": "x", "arguments": "{}"}});
        let (answer, _) = run(&[delta(json!({"tool_calls": [call("a")]})), delta(json!({"tool_calls": [call("b")]}))]);
        let items: Vec<Value> = answer.items.iter().map(|item| serde_json::from_str(item.get()).unwrap()).collect();
        assert_eq!((items.len(), &items[1]["call_id"], &items[1]["arguments"]), (2, &json!("b"), &json!("{}")));
    }
}
