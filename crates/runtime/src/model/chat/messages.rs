//! From items of history to messages.

use outpost_thread::GeneratedImage;
use serde_json::{Value, json};

use crate::model::{Prompt, Quirk, Quirks};
use crate::pictures::outgoing;

pub(super) fn of(prompt: &Prompt, quirks: &Quirks) -> Vec<Value> {
    let mut messages = Vec::with_capacity(prompt.history.items().len() + 1);
    if !prompt.instructions.is_empty() {
        messages.push(json!({"role": "system", "content": &*prompt.instructions}));
    }
    let mut images = Vec::new();
    for raw in prompt.history.items() {
        let Some(item) = outgoing(raw, prompt.facts.vision) else { continue };
        // Nothing may stand between calls and their results, nor between the results of one answer's calls.
        let is_output = item["type"].as_str().is_some_and(|kind| kind.ends_with("_output"));
        let has_open_calls = messages.last().is_some_and(|last| last["tool_calls"].is_array());
        if !is_output && !has_open_calls {
            show(&mut messages, &mut images);
        }
        if GeneratedImage::of(raw).is_some() {
            images.extend(item["content"].as_array().cloned().unwrap_or_default());
            continue;
        }
        if quirks.has(Quirk::EchoReasoning) && item["type"] == "reasoning" {
            think(&mut messages, &item);
            continue;
        }
        add(&mut messages, &mut images, &item);
    }
    show(&mut messages, &mut images);
    messages
}

/// Images of tools and of the model itself, in a message of the user: only there this wire has a place for them.
fn show(messages: &mut Vec<Value>, images: &mut Vec<Value>) {
    if !images.is_empty() {
        messages.push(json!({"role": "user", "content": content(&std::mem::take(images).into())}));
    }
}

fn add(messages: &mut Vec<Value>, images: &mut Vec<Value>, item: &Value) {
    let text = |name: &str| item[name].as_str().unwrap_or_default();
    match text("type") {
        "message" | "" if item["role"].is_string() => {
            if text("role") == "assistant" {
                return say(messages, content(&item["content"]));
            }
            // Templates of local models know a system message at the very beginning only.
            messages.push(json!({"role": "user", "content": content(&item["content"])}));
        }
        "function_call" => add_call(messages, text("call_id"), text("name"), arguments(text("arguments"))),
        "custom_tool_call" => {
            let arguments = json!({"input": text("input")}).to_string();
            add_call(messages, text("call_id"), text("name"), arguments);
        }
        // What other programs offered to a model, and what this wire has no words of its own for.
        "local_shell_call" => add_call(messages, text("call_id"), "local_shell", object(&item["action"])),
        "tool_search_call" if item["call_id"].is_string() => {
            add_call(messages, text("call_id"), "tool_search", object(&item["arguments"]));
        }
        "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
            let (text, shown) = output(&item["output"]);
            messages.push(json!({"role": "tool", "tool_call_id": item["call_id"].as_str().unwrap_or_default(), "content": text}));
            images.extend(shown);
        }
        "tool_search_output" if item["call_id"].is_string() => {
            messages.push(json!({"role": "tool", "tool_call_id": item["call_id"], "content": item["tools"].to_string()}));
        }
        _ => {}
    }
}

/// What the model thought, for servers that want it back: it stands in the message that follows it.
fn think(messages: &mut Vec<Value>, item: &Value) {
    let parts = item["content"].as_array().into_iter().flatten();
    let thought: String = parts.filter_map(|part| part["text"].as_str()).collect();
    if !thought.is_empty() {
        messages.push(json!({"role": "assistant", "content": "", "reasoning_content": thought}));
    }
}

/// What the model said. Between a call and its result nothing may stand, so that a comment on calls joins them.
fn say(messages: &mut Vec<Value>, content: Value) {
    let is_open = |last: &&mut Value| last["tool_calls"].is_array() || last["reasoning_content"].is_string();
    let calls = messages.last_mut().filter(|last| last["role"] == "assistant").filter(is_open);
    let Some(last) = calls else { return messages.push(json!({"role": "assistant", "content": content})) };
    let said = [&last["content"], &content].map(|content| content.as_str().unwrap_or_default()).into_iter().filter(|text| !text.is_empty());
    last["content"] = said.collect::<Vec<_>>().join("\n").into();
}

/// Parameters as an object. Servers read them to fill in a template and refuse what they cannot read, so that what a model wrote
/// badly is shown to it as what it wrote.
fn arguments(text: &str) -> String {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(_)) => text.to_owned(),
        _ if text.trim().is_empty() => "{}".into(),
        _ => json!({"unreadable": text}).to_string(),
    }
}

fn object(value: &Value) -> String {
    match value {
        Value::Object(_) => value.to_string(),
        Value::String(text) => arguments(text),
        _ => "{}".into(),
    }
}

/// Calls of one answer belong into one message, together with what was said before them.
fn add_call(messages: &mut Vec<Value>, id: &str, name: &str, arguments: String) {
    let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    if let Some(last) = messages.last_mut().filter(|last| last["role"] == "assistant") {
        match last["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(call),
            None => last["tool_calls"] = json!([call]),
        }
    } else {
        messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
    }
}

/// A tool's message can hold text only; its images follow later.
fn output(output: &Value) -> (String, Vec<Value>) {
    let (mut text, mut images) = (String::new(), Vec::new());
    match output {
        Value::Array(parts) => {
            for part in parts {
                match part["type"].as_str() {
                    Some("input_image") => images.push(part.clone()),
                    _ => text.push_str(part["text"].as_str().unwrap_or_default()),
                }
            }
        }
        Value::String(whole) => text.push_str(whole),
        other => text = other.to_string(),
    }
    if text.is_empty() && !images.is_empty() {
        text = "(an image follows)".into();
    }
    (text, images)
}

/// Plain text where there is nothing else, because not every server takes a list.
fn content(content: &Value) -> Value {
    let Some(parts) = content.as_array() else { return content.clone() };
    if parts.iter().any(|part| part["type"] == "input_image") {
        let part = |part: &Value| match part["type"].as_str() {
            Some("input_image") => image(part),
            _ => json!({"type": "text", "text": part["text"].as_str().unwrap_or_default()}),
        };
        return parts.iter().map(part).collect();
    }
    parts.iter().map(|part| part["text"].as_str().unwrap_or_default()).collect::<Vec<_>>().join("\n").into()
}

fn image(part: &Value) -> Value {
    json!({"type": "image_url", "image_url": {"url": part["image_url"].as_str().unwrap_or_default()}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{HistoryItem, ModelFacts, ModelHistory};

    fn messages_of(items: &[Value]) -> Value {
        let items = items.iter().cloned().map(HistoryItem::from).collect();
        of(&Prompt::plain("m", "be brief", ModelHistory::new(items)), &Quirks::default()).into()
    }

    #[test]
    fn a_conversation_with_tools() {
        let messages = messages_of(&[
            json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}]}),
            json!({"type": "reasoning", "encrypted_content": "xyz"}),
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]}),
            json!({"type": "function_call", "call_id": "1", "name": "exec_command", "arguments": "{\"cmd\":\"ls\"}"}),
            json!({"type": "custom_tool_call", "call_id": "2", "name": "apply_patch", "input": "*** Begin"}),
            json!({"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": "https://x"}]}),
            json!({"type": "custom_tool_call_output", "call_id": "2", "output": "a"}),
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a picture"}]}),
        ]);
        assert_eq!(
            messages,
            json!([
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "look"},
                {"role": "assistant", "content": "I look", "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "exec_command", "arguments": "{\"cmd\":\"ls\"}"}},
                    {"id": "2", "type": "function", "function": {"name": "apply_patch", "arguments": "{\"input\":\"*** Begin\"}"}},
                ]},
                {"role": "tool", "tool_call_id": "1", "content": "(an image follows)"},
                {"role": "tool", "tool_call_id": "2", "content": "a"},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x"}}]},
                {"role": "assistant", "content": "a picture"},
            ])
        );
    }

    #[test]
    fn images_of_the_user_make_a_list() {
        let messages = messages_of(&[json!({"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "what is this"}, {"type": "input_image", "image_url": "https://x"}]})]);
        assert_eq!(messages[1]["content"][1], json!({"type": "image_url", "image_url": {"url": "https://x"}}));
    }

    #[test]
    fn a_model_that_cannot_see_is_told_of_an_image() {
        let items = [
            json!({"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "https://x"}]}),
            json!({"type": "function_call", "call_id": "1", "name": "view_image", "arguments": "{}"}),
            json!({"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": "https://x"}]}),
        ];
        let blind = ModelFacts { vision: false, ..ModelFacts::default() };
        let items = items.map(HistoryItem::from).to_vec();
        let prompt = Prompt { facts: blind.into(), ..Prompt::plain("m", "", ModelHistory::new(items)) };
        let messages = Value::from(of(&prompt, &Quirks::default()));
        assert!(!messages.to_string().contains("https://x"), "{messages}");
        assert_eq!((&messages[0]["content"], messages.as_array().unwrap().len()), (&json!("[an image, which this model cannot see]"), 3));
    }

    #[test]
    fn nothing_stands_between_calls_and_their_results() {
        let call = |id: &str, arguments: &str| json!({"type": "function_call", "call_id": id, "name": "x", "arguments": arguments});
        let said = json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "and"}]});
        let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "r"});
        let shell =
            json!({"type": "local_shell_call", "call_id": "3", "status": "completed", "action": {"type": "exec", "command": ["ls"]}});
        let messages = messages_of(&[call("1", "{bad"), said, call("2", ""), shell, result("1"), result("2"), result("3")]);
        let roles: Vec<&str> = messages.as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "assistant", "tool", "tool", "tool"]);
        let calls = &messages[1]["tool_calls"];
        assert_eq!((&messages[1]["content"], calls.as_array().unwrap().len()), (&json!("and"), 3));
        assert_eq!(calls[0]["function"]["arguments"], json!({"unreadable": "{bad"}).to_string());
        assert_eq!((&calls[1]["function"]["arguments"], &calls[2]["function"]["name"]), (&json!("{}"), &json!("local_shell")));
    }
}
