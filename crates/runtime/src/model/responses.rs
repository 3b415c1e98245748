//! The Responses API.

use std::borrow::Cow;

use outpost_thread::GeneratedImage;
use serde::Serialize;
use serde_json::{Value, json};

use super::exchange::{ModelCall, ProviderMessage};
use super::history::Pieces;
use super::quirk::{Quirk, Quirks};
use super::schema::{is_strict, sound};
use super::{
    HistoryItem, ModelError, ModelProgress, ModelResponse, ModelUsage, OnProgress, Prompt, ReasoningPart, StopReason, ToolInput, ToolSpec,
};

/// Asks once.
pub(super) async fn ask(call: &ModelCall<'_>, prompt: &Prompt, progress: OnProgress<'_>) -> Result<ModelResponse, ModelError> {
    let body = body(prompt, &call.provider.quirks).map_err(|error| call.nonsense(error))?;
    let mut events = call.post("responses", reqwest::Body::wrap(body), progress).await?;
    let mut answer = ModelResponse::default();
    while let Some(data) = events.next().await? {
        let event: Value = match serde_json::from_slice(&data) {
            Ok(event) => event,
            Err(_) if data.as_ref() == b"[DONE]" => continue,
            Err(error) => return Err(call.not_json("an event", error)),
        };
        if let Some(usage) = take(call, event, &mut answer, progress)? {
            answer.usage = usage;
            return Ok(answer);
        }
    }
    Err(call.cut("the stream ended before the answer did"))
}

/// Takes one event; the usage when it is the last.
fn take(
    call: &ModelCall<'_>,
    mut event: Value,
    answer: &mut ModelResponse,
    progress: OnProgress<'_>,
) -> Result<Option<ModelUsage>, ModelError> {
    let text = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
    match event["type"].as_str().unwrap_or_default() {
        "response.output_item.added" => progress(ModelProgress::ItemStarted { item: event["item"].take() }),
        "response.output_text.delta" => {
            progress(ModelProgress::TextDelta { item_id: text(&event, "item_id"), delta: text(&event, "delta") });
        }
        kind @ ("response.reasoning_summary_text.delta" | "response.reasoning_text.delta") => {
            let index = |name: &str| event[name].as_u64().and_then(|index| u32::try_from(index).ok()).unwrap_or(0);
            let part = match kind {
                "response.reasoning_text.delta" => ReasoningPart::Content(index("content_index")),
                _ => ReasoningPart::Summary(index("summary_index")),
            };
            progress(ModelProgress::ReasoningDelta { item_id: text(&event, "item_id"), part, delta: text(&event, "delta") });
        }
        "response.output_item.done" => {
            let item = event["item"].take();
            if !item.is_object() {
                return Err(call.nonsense("an item that is not an object"));
            }
            answer.items.push(HistoryItem::from(item.clone()));
            if item["type"] != "image_generation_call" {
                progress(ModelProgress::ItemFinished { item });
            }
        }
        "response.completed" => return Ok(Some(usage(&event["response"]["usage"]))),
        "response.failed" => return Err(call.failure(500, ProviderMessage::from_value(&event["response"]["error"]), None)),
        "error" => {
            let told = if event["error"].is_null() { &event } else { &event["error"] };
            return Err(call.failure(500, ProviderMessage::from_value(told), None));
        }
        "response.incomplete" => {
            let reason = text(&event["response"]["incomplete_details"], "reason");
            answer.stop = match reason.as_str() {
                "max_output_tokens" => StopReason::Truncated,
                "content_filter" => StopReason::Refused,
                _ => return Err(call.cut(format!("the provider stopped it ({reason})"))),
            };
            // Whether a call is whole is not known. A picture is.
            answer.items.retain(|item| !item.get().contains("_call\"") || GeneratedImage::of(item).is_some());
            return Ok(Some(usage(&event["response"]["usage"])));
        }
        _ => {}
    }
    Ok(None)
}

fn usage(usage: &Value) -> ModelUsage {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let (input, output) = (number(&usage["input_tokens"]), number(&usage["output_tokens"]));
    ModelUsage {
        input_tokens: input,
        cached_input_tokens: number(&usage["input_tokens_details"]["cached_tokens"]),
        cache_write_tokens: 0,
        output_tokens: output,
        reasoning_tokens: number(&usage["output_tokens_details"]["reasoning_tokens"]),
        total_tokens: usage["total_tokens"].as_u64().unwrap_or(input + output),
    }
}

/// What stands before the history in the body of a request.
#[derive(Serialize)]
struct Before<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    instructions: &'a str,
}

/// What stands behind it.
#[derive(Serialize)]
struct After<'a> {
    tools: Vec<Value>,
    tool_choice: &'static str,
    parallel_tool_calls: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_tier: Option<&'a str>,
    store: bool,
    stream: bool,
    include: [&'static str; 1],
    prompt_cache_key: &'a str,
}

/// The body of a request: one object, whose middle is the history as it lies.
pub(super) fn body(prompt: &Prompt, quirks: &Quirks) -> serde_json::Result<Pieces> {
    let mut before = serde_json::to_vec(&Before { model: &prompt.model, instructions: &prompt.instructions })?;
    before.pop();
    before.extend_from_slice(b",\"input\":[");
    let after = After {
        tools: prompt.tools.iter().map(tool).chain(draws(prompt)).collect(),
        tool_choice: "auto",
        parallel_tool_calls: prompt.facts.parallel_calls && !quirks.has(Quirk::NoParallelCalls),
        reasoning: prompt.effort.as_ref().map(|effort| json!({"effort": prompt.facts.effort(effort), "summary": "auto"})),
        text: prompt
            .output_schema
            .as_ref()
            .map(|schema| json!({"format": {"type": "json_schema", "name": "answer", "strict": is_strict(schema), "schema": **schema}})),
        service_tier: prompt.service_tier.as_deref(),
        store: false,
        stream: true,
        // Reasoning comes back sealed, so that it can be handed over again without being stored by the provider.
        include: ["reasoning.encrypted_content"],
        prompt_cache_key: &prompt.cache_key,
    };
    let mut end = serde_json::to_vec(&after)?;
    end.splice(..1, *b"],");
    let history = if prompt.facts.vision { Cow::Borrowed(&prompt.history) } else { prompt.history.without_pictures() };
    Ok(history.body(before, end))
}

/// The provider's own tool for pictures.
fn draws(prompt: &Prompt) -> Option<Value> {
    prompt.facts.image_generation.then(|| json!({"type": "image_generation"}))
}

fn tool(tool: &ToolSpec) -> Value {
    match &tool.input {
        ToolInput::Object(schema) => {
            json!({"type": "function", "name": tool.name, "description": tool.description, "strict": false, "parameters": sound(schema)})
        }
        ToolInput::Text { grammar } => json!({
            "type": "custom", "name": tool.name, "description": tool.description,
            "format": {"type": "grammar", "syntax": "lark", "definition": grammar},
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ModelFacts, ModelHistory};

    fn sent(facts: ModelFacts) -> Value {
        let picture = json!({"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}]});
        let items = vec![HistoryItem::from(picture), HistoryItem::from(json!({"type": "message", "role": "user", "content": []}))];
        let plain = Prompt::plain("m", "", ModelHistory::new(items));
        body(&Prompt { facts: facts.into(), service_tier: Some("flex".into()), ..plain }, &Quirks::default()).unwrap().read().unwrap()
    }

    #[test]
    fn a_model_that_cannot_see_is_told_of_pictures() {
        let blind = sent(ModelFacts { vision: false, ..ModelFacts::default() });
        assert_eq!(blind["input"][0]["content"][1], json!({"type": "input_text", "text": "[an image, which this model cannot see]"}));
        assert_eq!(blind["input"].as_array().map(Vec::len), Some(2));
        assert!(!sent(ModelFacts::default()).to_string().contains("cannot see"));
    }

    #[test]
    fn the_service_tier_is_sent_as_it_is_spelled() {
        assert_eq!(sent(ModelFacts::default())["service_tier"], "flex");
        let without = body(&Prompt::plain("m", "", ModelHistory::default()), &Quirks::default()).unwrap().read().unwrap();
        assert_eq!(without.get("service_tier"), None);
    }
}
