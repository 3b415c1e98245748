//! From the events of a streamed answer to items.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::FORMAT;
use crate::model::{HistoryItem, ModelError, ModelProgress, ModelResponse, ModelUsage, OnProgress, ReasoningPart, StopReason};

/// An answer that is being put together.
pub(super) struct PartialAnswer<'a> {
    ids: &'a (dyn Fn() -> String + Send + Sync),
    progress: OnProgress<'a>,
    blocks: BTreeMap<u64, Block>,
    usage: Counts,
    stop: Option<String>,
}

enum Block {
    Text {
        id: String,
        text: String,
    },
    Thinking {
        id: String,
        text: String,
        signature: String,
    },
    Redacted {
        id: String,
        data: String,
    },
    Call {
        id: String,
        name: String,
        input: Value,
        json: String,
    },
    /// A kind that we did not ask for.
    Other,
}

/// Tokens as this API counts them: what was read from the cache is no part of the input.
#[derive(Default)]
struct Counts {
    input: u64,
    cache_read: u64,
    cache_write: u64,
    output: u64,
}

impl<'a> PartialAnswer<'a> {
    pub(super) fn new(ids: &'a (dyn Fn() -> String + Send + Sync), progress: OnProgress<'a>) -> Self {
        Self { ids, progress, blocks: BTreeMap::new(), usage: Counts::default(), stop: None }
    }

    /// Takes one event; true if it is the last.
    pub(super) fn take(&mut self, event: &Value) -> bool {
        let index = event["index"].as_u64().unwrap_or(0);
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.usage.take(&event["message"]["usage"]),
            "content_block_start" => self.begin(index, &event["content_block"]),
            "content_block_delta" => self.grow(index, &event["delta"]),
            "content_block_stop" => {
                if let Some(item) = self.blocks.get(&index).and_then(Block::item) {
                    (self.progress)(ModelProgress::ItemFinished { item });
                }
            }
            "message_delta" => {
                self.usage.take(&event["usage"]);
                let stop = event["delta"]["stop_reason"].as_str().map(str::to_owned);
                self.stop = stop.or_else(|| self.stop.take());
            }
            "message_stop" => return true,
            _ => {}
        }
        false
    }

    fn begin(&mut self, index: u64, block: &Value) {
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        let block = match block["type"].as_str().unwrap_or_default() {
            "text" => Block::Text { id: (self.ids)(), text: text("text") },
            "thinking" => Block::Thinking { id: (self.ids)(), text: text("thinking"), signature: text("signature") },
            "redacted_thinking" => Block::Redacted { id: (self.ids)(), data: text("data") },
            "tool_use" => {
                let id = Some(text("id")).filter(|id| !id.is_empty()).unwrap_or_else(|| format!("call_{}", (self.ids)()));
                Block::Call { id, name: text("name"), input: block["input"].clone(), json: String::new() }
            }
            _ => Block::Other,
        };
        let begun = match &block {
            Block::Text { id, text } => Some(message(id, text)),
            Block::Thinking { id, text, .. } => Some(thought(id, text, "")),
            _ => None,
        };
        if let Some(item) = begun {
            (self.progress)(ModelProgress::ItemStarted { item });
        }
        self.blocks.insert(index, block);
    }

    fn grow(&mut self, index: u64, delta: &Value) {
        let piece = |name: &str| delta[name].as_str().unwrap_or_default();
        let told = match (self.blocks.get_mut(&index), delta["type"].as_str().unwrap_or_default()) {
            (Some(Block::Text { id, text }), "text_delta") => {
                text.push_str(piece("text"));
                ModelProgress::TextDelta { item_id: id.clone(), delta: piece("text").to_owned() }
            }
            (Some(Block::Thinking { id, text, .. }), "thinking_delta") => {
                text.push_str(piece("thinking"));
                let part = ReasoningPart::Content(0);
                ModelProgress::ReasoningDelta { item_id: id.clone(), part, delta: piece("thinking").to_owned() }
            }
            (Some(Block::Thinking { signature, .. }), "signature_delta") => return signature.push_str(piece("signature")),
            (Some(Block::Call { json, .. }), "input_json_delta") => return json.push_str(piece("partial_json")),
            _ => return,
        };
        (self.progress)(told);
    }

    pub(super) fn is_whole(&self) -> bool {
        self.stop.is_some()
    }

    pub(super) fn finish(self) -> Result<ModelResponse, ModelError> {
        let stop = match self.stop.as_deref() {
            Some("max_tokens") => StopReason::Truncated,
            Some("refusal") => StopReason::Refused,
            Some("pause_turn") => StopReason::Paused,
            Some("model_context_window_exceeded") => {
                return Err(ModelError::ContextExceeded { message: "the answer reached the end of the model's context window".into() });
            }
            _ => StopReason::Complete,
        };
        let is_broken = |block: &Block| stop == StopReason::Truncated && matches!(block, Block::Call { json, .. } if !is_object(json));
        let items = self.blocks.values().filter(|block| !is_broken(block)).filter_map(Block::item);
        let items = items.map(HistoryItem::from).collect();
        Ok(ModelResponse { items, usage: self.usage.total(), stop })
    }
}

impl Block {
    fn item(&self) -> Option<Value> {
        match self {
            Self::Text { text, .. } if text.is_empty() => None,
            Self::Text { id, text } => Some(message(id, text)),
            Self::Thinking { text, signature, .. } if text.is_empty() && signature.is_empty() => None,
            Self::Thinking { id, text, signature } => Some(thought(id, text, signature)),
            Self::Redacted { id, data } => {
                Some(json!({"type": "reasoning", "id": id, "format": FORMAT, "summary": [], "encrypted_content": data, "redacted": true}))
            }
            Self::Call { id, name, input, json } => {
                let arguments = match input {
                    _ if !json.is_empty() => json.clone(),
                    Value::Object(_) => input.to_string(),
                    _ => "{}".into(),
                };
                Some(json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments}))
            }
            Self::Other => None,
        }
    }
}

fn is_object(json: &str) -> bool {
    json.is_empty() || serde_json::from_str::<serde_json::Map<String, Value>>(json).is_ok()
}

fn message(id: &str, text: &str) -> Value {
    json!({"type": "message", "id": id, "role": "assistant", "content": [{"type": "output_text", "text": text}]})
}

/// A thinking block. Without a signature it is for people only.
fn thought(id: &str, text: &str, signature: &str) -> Value {
    let mut item = json!({"type": "reasoning", "id": id, "format": FORMAT, "summary": []});
    if !text.is_empty() {
        item["content"] = json!([{"type": "reasoning_text", "text": text}]);
    }
    if !signature.is_empty() {
        item["encrypted_content"] = signature.into();
    }
    item
}

impl Counts {
    /// Later counts replace earlier ones; an event need not tell all of them.
    fn take(&mut self, usage: &Value) {
        let set = |count: &mut u64, name: &str| *count = usage[name].as_u64().unwrap_or(*count);
        set(&mut self.input, "input_tokens");
        set(&mut self.cache_read, "cache_read_input_tokens");
        set(&mut self.cache_write, "cache_creation_input_tokens");
        set(&mut self.output, "output_tokens");
    }

    fn total(&self) -> ModelUsage {
        let input = self.input + self.cache_read + self.cache_write;
        ModelUsage {
            input_tokens: input,
            cached_input_tokens: self.cache_read,
            cache_write_tokens: self.cache_write,
            output_tokens: self.output,
            reasoning_tokens: 0,
            total_tokens: input + self.output,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(events: &[Value]) -> (ModelResponse, bool) {
        let ids = || "fresh".to_owned();
        let mut answer = PartialAnswer::new(&ids, &|_| {});
        let ended = events.iter().any(|event| answer.take(event));
        (answer.finish().unwrap(), ended)
    }

    fn begin(index: u64, block: Value) -> Value {
        json!({"type": "content_block_start", "index": index, "content_block": block})
    }

    fn delta(index: u64, delta: Value) -> Value {
        json!({"type": "content_block_delta", "index": index, "delta": delta})
    }

    fn items(answer: &ModelResponse) -> Vec<Value> {
        answer.items.iter().map(|item| item.read().unwrap()).collect()
    }

    #[test]
    fn blocks_become_items_in_their_order() {
        let (answer, ended) = run(&[
            json!({"type": "message_start", "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 70, "cache_creation_input_tokens": 20, "output_tokens": 1}}}),
            begin(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
            delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
            delta(0, json!({"type": "signature_delta", "signature": "si"})),
            delta(0, json!({"type": "signature_delta", "signature": "gned"})),
            json!({"type": "ping"}),
            begin(1, json!({"type": "redacted_thinking", "data": "sealed"})),
            begin(2, json!({"type": "text", "text": ""})),
            delta(2, json!({"type": "text_delta", "text": "I "})),
            delta(2, json!({"type": "text_delta", "text": "look"})),
            begin(3, json!({"type": "tool_use", "id": "toolu_1", "name": "exec_command", "input": {}})),
            begin(4, json!({"type": "tool_use", "id": "toolu_2", "name": "list_agents", "input": {}})),
            delta(3, json!({"type": "input_json_delta", "partial_json": "{\"cmd\":"})),
            delta(3, json!({"type": "input_json_delta", "partial_json": "\"ls\"}"})),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}}),
            json!({"type": "message_stop"}),
        ]);
        assert!(ended);
        assert_eq!(
            items(&answer),
            [
                json!({"type": "reasoning", "id": "fresh", "format": "anthropic", "summary": [],
                    "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": "signed"}),
                json!({"type": "reasoning", "id": "fresh", "format": "anthropic", "summary": [], "encrypted_content": "sealed", "redacted": true}),
                message("fresh", "I look"),
                json!({"type": "function_call", "call_id": "toolu_1", "name": "exec_command", "arguments": "{\"cmd\":\"ls\"}"}),
                json!({"type": "function_call", "call_id": "toolu_2", "name": "list_agents", "arguments": "{}"}),
            ]
        );
        let usage = answer.usage;
        assert_eq!((usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens), (95, 70, 20));
        assert_eq!((usage.output_tokens, usage.total_tokens), (9, 104));
    }

    #[test]
    fn a_call_that_the_limit_cut_off_is_left_out() {
        let (answer, _) = run(&[
            begin(0, json!({"type": "text", "text": "so far"})),
            begin(1, json!({"type": "tool_use", "id": "a", "name": "exec_command", "input": {}})),
            delta(1, json!({"type": "input_json_delta", "partial_json": "{\"cmd\":\"rm -r"})),
            json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}),
        ]);
        assert_eq!((items(&answer), answer.stop), (vec![message("fresh", "so far")], StopReason::Truncated));
    }
}
