//! The Anthropic Messages API, as Anthropic, llama.cpp, vLLM and gateways serve it.
//!
//! Both directions are translated here: items of history become messages of alternating roles, and content blocks become items.
//! Thinking travels as reasoning items with the signature that the provider gave, and goes back unchanged to the same provider.

mod messages;
mod stream;
mod thinking;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::exchange::{ModelCall, ProviderMessage};
use super::facts::ModelFacts;
use super::quirk::{Quirk, Quirks};
use super::schema::{is_strict, sound};
use super::{ModelError, ModelResponse, OnProgress, Prompt, ToolInput, ToolSpec};

/// The version of the API that every request names.
pub(super) const VERSION: &str = "2023-06-01";

/// The part of the API that says what becomes of thoughts whose beginning has changed.
const BINDING_CONTROLS: &str = "thinking-binding-controls-2026-08-01";

/// What an answer may take where neither the table of models nor the configuration says it.
const MAX_OUTPUT: u64 = 32_000;

/// The mark of reasoning items that hold a thinking block of this API.
pub(super) const FORMAT: &str = "anthropic";

/// Asks once.
pub(super) async fn ask(call: &ModelCall<'_>, prompt: &Prompt, progress: OnProgress<'_>) -> Result<ModelResponse, ModelError> {
    let body = serde_json::to_vec(&request(prompt, &call.provider.quirks)).map_err(|error| call.nonsense(error))?;
    let call = &ModelCall { beta: beta(prompt), ..*call };
    let mut events = call.post("messages", body, progress).await?;
    let mut answer = stream::PartialAnswer::new(call.ids, progress);
    while let Some(data) = events.next().await? {
        let event: Value = match serde_json::from_slice(&data) {
            Ok(event) => event,
            Err(_) if data.as_ref() == b"[DONE]" => continue,
            Err(error) => return Err(call.not_json("an event", error)),
        };
        if event["type"] == "error" {
            let told = ProviderMessage::from_value(&event["error"]);
            let status = status(&told.code);
            return Err(call.failure(status, told, None));
        }
        if answer.take(&event) {
            return answer.finish();
        }
    }
    // A stop reason says that the answer is whole, even if the server closes without the last event.
    if answer.is_whole() { answer.finish() } else { Err(call.cut("the stream ended before the answer did")) }
}

/// The status that the provider would have answered with, had the error come before the stream.
fn status(kind: &str) -> u16 {
    match kind {
        "invalid_request_error" => 400,
        "authentication_error" => 401,
        "billing_error" => 402,
        "permission_error" => 403,
        "not_found_error" => 404,
        "request_too_large" => 413,
        "rate_limit_error" => 429,
        "timeout_error" => 504,
        "overloaded_error" => 529,
        _ => 500,
    }
}

/// What a request needs that the version of the API does not have yet.
fn beta(prompt: &Prompt) -> Option<&'static str> {
    prompt.facts.binds_thoughts.then_some(BINDING_CONTROLS)
}

/// The body of a request.
pub(super) fn request(prompt: &Prompt, quirks: &Quirks) -> Value {
    let conversation = messages::of(prompt);
    let max_tokens = max_tokens(&prompt.facts);
    let mut body = json!({"model": prompt.model, "max_tokens": max_tokens, "stream": true});
    if let Some(tier) = &prompt.service_tier {
        body["service_tier"] = tier.as_str().into();
    }
    let mut system = prompt.instructions.to_string();
    let mut config = serde_json::Map::new();
    if let Some(schema) = &prompt.output_schema {
        // Not every server of this wire holds a model to a schema, so that the model is asked for it, too.
        system.push_str(&format!("\n\nYour final answer must be JSON that follows this schema, and nothing else:\n{schema}"));
        if prompt.facts.structured && is_strict(schema) {
            config.insert("format".into(), json!({"type": "json_schema", "schema": **schema}));
        }
    }
    let mut system = json!([{"type": "text", "text": system}]);
    let mut tools: Vec<Value> = prompt.tools.iter().map(tool).collect();
    if tools.is_empty() && !conversation.tools.is_empty() {
        // A history with calls is refused without the tools that were called, also where none may be called now.
        tools = conversation.tools.iter().map(|name| called_before(name)).collect();
        body["tool_choice"] = json!({"type": "none"});
    } else if !tools.is_empty() && (quirks.has(Quirk::NoParallelCalls) || !prompt.facts.parallel_calls) {
        body["tool_choice"] = json!({"type": "auto", "disable_parallel_tool_use": true});
    }
    let thinking = thinking::of(prompt, max_tokens, conversation.may_think);
    if let Some(thinking) = thinking.thinking {
        body["thinking"] = thinking;
    }
    if let Some(effort) = thinking.effort {
        config.insert("effort".into(), effort.into());
    }
    if !config.is_empty() {
        body["output_config"] = config.into();
    }
    let mut messages = conversation.messages;
    if !quirks.has(Quirk::NoCacheControl) {
        // Tools and system stand before the messages, so that a mark on the system covers both.
        mark(&mut system);
        let users = messages.iter_mut().rev().filter(|message| message["role"] == "user").take(2);
        users.for_each(|message| mark(&mut message["content"]));
    }
    if !prompt.instructions.is_empty() || prompt.output_schema.is_some() {
        body["system"] = system;
    }
    if !tools.is_empty() {
        body["tools"] = tools.into();
    }
    body["messages"] = messages.into();
    body
}

/// The most that an answer may take. It is a part of the context window, so that a small window leaves room for the question.
fn max_tokens(facts: &ModelFacts) -> u64 {
    facts.max_output.unwrap_or_else(|| MAX_OUTPUT.min(facts.context_window / 4)).max(1)
}

/// Marks the last block as the end of what the provider may cache.
fn mark(blocks: &mut Value) {
    if let Some(last) = blocks.as_array_mut().and_then(|blocks| blocks.last_mut()) {
        last["cache_control"] = json!({"type": "ephemeral"});
    }
}

fn tool(tool: &ToolSpec) -> Value {
    let schema = match &tool.input {
        ToolInput::Object(schema) => sound(schema),
        ToolInput::Text { .. } => {
            json!({"type": "object", "properties": {"input": {"type": "string", "description": "The whole text"}}, "required": ["input"]})
        }
    };
    json!({"name": tool.name, "description": tool.description, "input_schema": without_choices(schema)})
}

/// This API refuses a choice between schemas at the top; each of the choices is one of its own tools elsewhere.
fn without_choices(mut schema: Value) -> Value {
    if let Some(schema) = schema.as_object_mut() {
        schema.retain(|name, _| !matches!(name.as_str(), "anyOf" | "oneOf" | "allOf"));
    }
    schema
}

fn called_before(name: &str) -> Value {
    json!({"name": name, "description": "Not available now.", "input_schema": {"type": "object", "properties": {}}})
}

/// The names of tools that a history calls.
type Called = BTreeSet<String>;
