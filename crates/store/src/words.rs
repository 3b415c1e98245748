//! The words of model items: what a search looks at and what a reader is shown. Items are carried as JSON, so this looks for
//! the members that hold text in all their kinds.

use outpost_thread::{Entry, Fact, Kept, Raw};
use serde_json::Value;

/// Of the output of a call, only so much is worth searching.
const OUTPUT: usize = 8 << 10;

/// All text of an item, one part a line.
pub fn of(item: &Raw) -> String {
    let mut text = String::new();
    if let Ok(value) = item.read::<Value>() {
        collect(&value, &mut text);
    }
    text
}

/// What can be searched of an entry; nothing for most kinds.
pub fn searchable(entry: &Entry) -> String {
    let mut text = String::new();
    match &entry.fact {
        Fact::InputReceived(input) => {
            let items = if input.items.is_empty() { &input.content } else { &input.items };
            add(items, &mut text, usize::MAX);
        }
        Fact::ModelAnswered(answer) => add(&answer.items, &mut text, usize::MAX),
        Fact::CallFinished(end) => add(&end.items, &mut text, OUTPUT),
        Fact::ContextCompacted(compacted) => {
            for kept in &compacted.kept {
                if let Kept::Item(item) = kept {
                    add(std::slice::from_ref(item), &mut text, OUTPUT);
                }
            }
        }
        Fact::MetadataChanged(change) => text.extend(change.name.iter().flatten().map(String::as_str)),
        _ => {}
    }
    text
}

fn add(items: &[Raw], text: &mut String, limit: usize) {
    for item in items {
        let words = of(item);
        let end = words.char_indices().map(|(at, _)| at).find(|at| *at >= limit).unwrap_or(words.len());
        text.push_str(&words[..end]);
        text.push('\n');
    }
}

fn collect(value: &Value, text: &mut String) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match (name.as_str(), member) {
                    ("text" | "arguments" | "output" | "input" | "query" | "revised_prompt", Value::String(words)) => {
                        text.push_str(words);
                        text.push('\n');
                    }
                    ("name", Value::String(words)) if members.contains_key("call_id") => {
                        text.push_str(words);
                        text.push('\n');
                    }
                    ("content" | "output" | "summary" | "action" | "command" | "item", Value::Object(_) | Value::Array(_)) => {
                        collect(member, text)
                    }
                    ("content", Value::String(words)) => {
                        text.push_str(words);
                        text.push('\n');
                    }
                    _ => {}
                }
            }
        }
        Value::Array(parts) => {
            for part in parts {
                match part {
                    Value::String(words) => {
                        text.push_str(words);
                        text.push(' ');
                    }
                    part => collect(part, text),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_is_found_in_all_kinds_of_items() {
        let text = |value: Value| of(&Raw::from(value));
        let message = json!({"type": "message", "role": "user", "id": "no", "content": [{"type": "input_text", "text": "hello"}, {"type": "input_image", "image_url": "data:no"}]});
        assert_eq!(text(message), "hello\n");
        assert_eq!(
            text(json!({"type": "function_call", "name": "shell", "call_id": "no", "arguments": "{\"cmd\":\"ls\"}"})),
            "{\"cmd\":\"ls\"}\nshell\n"
        );
        assert_eq!(text(json!({"type": "function_call_output", "call_id": "no", "output": "a file"})), "a file\n");
        assert_eq!(
            text(json!({"type": "reasoning", "encrypted_content": "no", "summary": [{"type": "summary_text", "text": "why"}]})),
            "why\n"
        );
        assert_eq!(text(json!({"type": "text", "text": "plain"})), "plain\n");
    }
}
