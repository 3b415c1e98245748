//! Chat Completions, as Ollama, llama.cpp, vLLM and many gateways speak it.
//!
//! Both directions are translated here: items of history become messages, and the pieces of a streamed message become
//! items. What this wire has no words for (sealed reasoning, unknown kinds) is left out of the request; it stays in the
//! thread.

mod messages;
mod stream;

use serde_json::{Value, json};

use super::exchange::{ModelCall, ProviderMessage, status};
use super::quirk::{Quirk, Quirks};
use super::schema::{is_strict, sound};
use super::{ModelError, ModelResponse, OnProgress, Prompt, ToolInput, ToolSpec};

/// Asks once.
pub(super) async fn ask(call: &ModelCall<'_>, prompt: &Prompt, progress: OnProgress<'_>) -> Result<ModelResponse, ModelError> {
    let body = serde_json::to_vec(&request(prompt, &call.provider.quirks)).map_err(|error| call.nonsense(error))?;
    let mut events = call.post("chat/completions", body, progress).await?;
    let mut stream = stream::PartialMessage::new(call.ids, progress);
    while let Some(data) = events.next().await? {
        if data.as_ref() == b"[DONE]" {
            return stream.finish().map_err(|error| call.nonsense(error));
        }
        let chunk: Value = serde_json::from_slice(&data).map_err(|error| call.not_json("an event", error))?;
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            return Err(call.failure(status(error).unwrap_or(500), ProviderMessage::from_value(error), None));
        }
        stream.take(&chunk);
    }
    // Some servers close without the last word; a finish reason says that the message is whole all the same.
    if stream.is_whole() {
        return stream.finish().map_err(|error| call.nonsense(error));
    }
    Err(call.cut("the stream ended before the answer did"))
}

/// The body of a request.
pub(super) fn request(prompt: &Prompt, quirks: &Quirks) -> Value {
    let mut body = json!({"model": prompt.model, "messages": messages::of(prompt, quirks), "stream": true});
    if !quirks.has(Quirk::NoStreamOptions) {
        body["stream_options"] = json!({"include_usage": true});
    }
    if !prompt.tools.is_empty() {
        body["tools"] = prompt.tools.iter().map(tool).collect();
        if quirks.has(Quirk::NoParallelCalls) || !prompt.facts.parallel_calls {
            body["parallel_tool_calls"] = false.into();
        }
    }
    if prompt.facts.image_generation {
        body["modalities"] = json!(["text", "image"]);
    }
    if let Some(effort) = &prompt.effort {
        body["reasoning_effort"] = prompt.facts.effort(effort).into();
    }
    if let Some(tier) = &prompt.service_tier {
        body["service_tier"] = tier.as_str().into();
    }
    if let Some(schema) = &prompt.output_schema {
        body["response_format"] =
            json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": is_strict(schema), "schema": **schema}});
    }
    body
}

/// Text tools have no equal here; they become functions with one text argument, and [`messages`] turns calls back.
fn tool(tool: &ToolSpec) -> Value {
    let parameters = match &tool.input {
        ToolInput::Object(schema) => sound(schema),
        ToolInput::Text { .. } => {
            json!({"type": "object", "properties": {"input": {"type": "string", "description": "The whole text"}}, "required": ["input"]})
        }
    };
    json!({"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": parameters}})
}
