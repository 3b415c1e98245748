//! From items of history to messages.

use serde_json::{Value, json};

use crate::model::Prompt;

pub fn of(prompt: &Prompt) -> Vec<Value> {
    let mut messages = Vec::with_capacity(prompt.history.items().len() + 1);
    if !prompt.instructions.is_empty() {
        messages.push(json!({"role": "system", "content": &*prompt.instructions}));
    }
    let mut images = Vec::new();
    for item in prompt.history.items() {
        let Ok(item) = serde_json::from_str::<Value>(item.get()) else { continue };
        // Nothing may stand between the results of one answer's calls.
        let is_output = item["type"].as_str().is_some_and(|kind| kind.ends_with("_output"));
        if !is_output {
            show(&mut messages, &mut images);
        }
        add(&mut messages, &mut images, &item);
    }
    show(&mut messages, &mut images);
    messages
}

/// Images of tools, in a message of the user.
fn show(messages: &mut Vec<Value>, images: &mut Vec<Value>) {
    if !images.is_empty() {
        messages.push(json!({"role": "user", "content": std::mem::take(images)}));
    }
}

fn add(messages: &mut Vec<Value>, images: &mut Vec<Value>, item: &Value) {
    let text = |name: &str| item[name].as_str().unwrap_or_default();
    match text("type") {
        "message" => {
            // Templates of local models know a system message at the very beginning only.
            let role = if text("role") == "assistant" { "assistant" } else { "user" };
            messages.push(json!({"role": role, "content": content(&item["content"])}));
        }
        "function_call" => add_call(messages, text("call_id"), text("name"), text("arguments").to_owned()),
        "custom_tool_call" => {
            let arguments = json!({"input": text("input")}).to_string();
            add_call(messages, text("call_id"), text("name"), arguments);
        }
        "function_call_output" | "custom_tool_call_output" => {
            let (text, shown) = output(&item["output"]);
            messages.push(json!({"role": "tool", "tool_call_id": item["call_id"].as_str().unwrap_or_default(), "content": text}));
            images.extend(shown);
        }
        _ => {}
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
                    Some("input_image") => images.push(image(part)),
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
    use crate::model::{History, Item};

    fn messages_of(items: &[Value]) -> Value {
        let items = items.iter().cloned().map(Item::from).collect();
        let prompt = Prompt {
            model: "m".into(),
            instructions: "be brief".into(),
            history: History::new(items),
            tools: [].into(),
            output_schema: None,
            effort: None,
            cache_key: String::new(),
            trace: None,
        };
        of(&prompt).into()
    }

    #[test]
    fn a_conversation_with_tools() {
        let messages = messages_of(&[
            json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}]}),
            json!({"type": "reasoning", "encrypted_content": "xyz"}),
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look"}]}),
            json!({"type": "function_call", "call_id": "1", "name": "exec_command", "arguments": "{\"cmd\":\"ls\"}"}),
            json!({"type": "custom_tool_call", "call_id": "2", "name": "apply_patch", "input": "*** Begin"}),
            json!({"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": "data:x"}]}),
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
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]},
                {"role": "assistant", "content": "a picture"},
            ])
        );
    }

    #[test]
    fn images_of_the_user_make_a_list() {
        let messages = messages_of(&[json!({"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "what is this"}, {"type": "input_image", "image_url": "data:x"}]})]);
        assert_eq!(messages[1]["content"][1], json!({"type": "image_url", "image_url": {"url": "data:x"}}));
    }
}
