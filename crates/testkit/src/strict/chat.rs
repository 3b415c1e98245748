//! Messages of Chat Completions, and their order.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Checked, LONGEST_TEXT, Violation, call_id, name, picture, text};

pub(super) fn chat(body: &Value) -> Checked {
    let messages = match &body["messages"] {
        Value::Array(messages) if !messages.is_empty() => messages,
        Value::Array(_) => {
            let message = "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.";
            return Err(Violation::new(message, "messages", "empty_array"));
        }
        _ => return Err(Violation::missing("messages")),
    };
    let (mut open, mut ids): (BTreeSet<String>, BTreeSet<String>) = Default::default();
    for (index, message) in messages.iter().enumerate() {
        let param = format!("messages[{index}]");
        let role = message["role"].as_str().unwrap_or_default();
        if role != "tool" && !open.is_empty() {
            return Err(unanswered(&open));
        }
        match role {
            // Templates of local models refuse one anywhere else.
            "system" | "developer" if index > 0 => {
                return Err(Violation::new("System message must be at the beginning.", format!("{param}.role"), "invalid_value"));
            }
            "system" | "developer" => text(&message["content"], format!("{param}.content"), LONGEST_TEXT)?,
            "user" => match &message["content"] {
                Value::Array(parts) if !parts.is_empty() => chat_parts(parts, &format!("{param}.content"))?,
                content => text(content, format!("{param}.content"), LONGEST_TEXT)?,
            },
            "assistant" => assistant(message, &param, &mut open, &mut ids)?,
            "tool" => {
                text(&message["content"], format!("{param}.content"), LONGEST_TEXT)?;
                let id = call_id(&message["tool_call_id"], format!("{param}.tool_call_id"))?;
                if !open.remove(id) {
                    let message =
                        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.";
                    return Err(Violation { message: message.into(), param: Some(format!("messages.[{index}].role")), code: None });
                }
            }
            other => {
                return Err(Violation::value(
                    format!("{param}.role"),
                    other,
                    &["system", "assistant", "user", "function", "tool", "developer"],
                ));
            }
        }
    }
    if open.is_empty() { Ok(()) } else { Err(unanswered(&open)) }
}

fn assistant(message: &Value, param: &str, open: &mut BTreeSet<String>, ids: &mut BTreeSet<String>) -> Checked {
    let calls = match &message["tool_calls"] {
        Value::Null => &[][..],
        Value::Array(calls) if !calls.is_empty() => calls,
        _ => return Err(Violation::kind(format!("{param}.tool_calls"), "an array with at least one call")),
    };
    match &message["content"] {
        Value::Null if !calls.is_empty() => {}
        Value::Array(parts) => {
            if let Some(part) = parts.iter().find(|part| !matches!(part["type"].as_str(), Some("text" | "refusal"))) {
                return Err(Violation::value(format!("{param}.content"), part["type"].as_str().unwrap_or_default(), &["text", "refusal"]));
            }
        }
        content => text(content, format!("{param}.content"), LONGEST_TEXT)?,
    }
    for (index, call) in calls.iter().enumerate() {
        let param = format!("{param}.tool_calls[{index}]");
        if call["type"] != "function" {
            return Err(Violation::missing(format!("{param}.type")));
        }
        let id = call_id(&call["id"], format!("{param}.id"))?;
        name(&call["function"]["name"], format!("{param}.function.name"))?;
        text(&call["function"]["arguments"], format!("{param}.function.arguments"), LONGEST_TEXT)?;
        // Servers that fill in a template read them.
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        if !serde_json::from_str::<Value>(arguments).is_ok_and(|arguments| arguments.is_object()) {
            return Err(Violation::new(
                "Failed to parse tool call arguments as JSON",
                format!("{param}.function.arguments"),
                "invalid_value",
            ));
        }
        if !ids.insert(id.to_owned()) {
            return Err(Violation::new(format!("Duplicate tool call found with id {id}."), param, "invalid_value"));
        }
        open.insert(id.to_owned());
    }
    Ok(())
}

fn unanswered(open: &BTreeSet<String>) -> Violation {
    let ids: Vec<&str> = open.iter().map(String::as_str).collect();
    let message = format!(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: {}",
        ids.join(", ")
    );
    Violation { message, param: Some("messages".into()), code: None }
}

fn chat_parts(parts: &[Value], param: &str) -> Checked {
    for (index, part) in parts.iter().enumerate() {
        let param = format!("{param}[{index}]");
        match part["type"].as_str().unwrap_or_default() {
            "text" => text(&part["text"], format!("{param}.text"), LONGEST_TEXT)?,
            "image_url" => picture(&part["image_url"]["url"], format!("{param}.image_url.url"))?,
            other => return Err(Violation::value(param, other, &["text", "image_url", "input_audio", "refusal", "audio", "file"])),
        }
    }
    Ok(())
}
