//! Items of the Responses API, and the pairs of calls and outputs among them.

use std::collections::{BTreeMap, BTreeSet};

use outpost_wire::base64;
use serde_json::Value;

use super::{Checked, Known, LONGEST_NAME, LONGEST_TEXT, Violation, call_id, name, picture, text};

/// What an item of the Responses API is to its neighbours.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Call,
    Output,
}

pub(super) struct Responses<'a> {
    pub(super) known: &'a Known,
    pub(super) store: bool,
}

impl Responses<'_> {
    pub(super) fn check(&self, body: &Value) -> Checked {
        let items = match &body["input"] {
            Value::String(_) => return Ok(()),
            Value::Array(items) if !items.is_empty() => items,
            Value::Array(_) | Value::Null => return Err(Violation::missing("input")),
            _ => return Err(Violation::kind("input", "a string or an array of input items")),
        };
        let (mut ids, mut calls) = (BTreeSet::new(), Calls::default());
        for (index, item) in items.iter().enumerate() {
            let param = format!("input[{index}]");
            if !item.is_object() {
                return Err(Violation::kind(param, "an input item"));
            }
            let kind = match &item["type"] {
                Value::Null if item["role"].is_string() => "message",
                Value::String(kind) => kind,
                _ => return Err(Violation::missing(format!("{param}.type"))),
            };
            self.id(item, kind, &param, &mut ids)?;
            self.item(item, kind, &param)?;
            calls.note(item, kind, &param)?;
        }
        calls.end()
    }

    fn id<'b>(&self, item: &'b Value, kind: &str, param: &str, ids: &mut BTreeSet<&'b str>) -> Checked {
        let prefix = match kind {
            "message" => "msg",
            "reasoning" => "rs",
            "function_call" => "fc",
            "custom_tool_call" => "ctc",
            "image_generation_call" => "ig",
            _ => "",
        };
        let param = format!("{param}.id");
        let Some(id) = item["id"].as_str() else { return Ok(()) };
        text(&item["id"], param.clone(), LONGEST_NAME)?;
        if !id.starts_with(prefix) {
            return Err(Violation::new(
                format!("Invalid '{param}': '{id}'. Expected an ID that begins with '{prefix}'."),
                param,
                "invalid_value",
            ));
        }
        if !ids.insert(id) {
            let message = format!("Duplicate item found with id {id}. Remove duplicate items from your input and try again.");
            return Err(Violation::new(message, "input", "invalid_value"));
        }
        Ok(())
    }

    fn item(&self, item: &Value, kind: &str, param: &str) -> Checked {
        match kind {
            "message" => message(item, param),
            "function_call" => {
                name(&item["name"], format!("{param}.name"))?;
                text(&item["arguments"], format!("{param}.arguments"), LONGEST_TEXT)
            }
            "custom_tool_call" => {
                name(&item["name"], format!("{param}.name"))?;
                text(&item["input"], format!("{param}.input"), LONGEST_TEXT)
            }
            "function_call_output" | "custom_tool_call_output" => match &item["output"] {
                Value::Array(parts) => parts_of(parts, &format!("{param}.output"), &INPUT),
                output => text(output, format!("{param}.output"), LONGEST_TEXT),
            },
            "reasoning" => {
                if !item["summary"].is_array() {
                    return Err(Violation::missing(format!("{param}.summary")));
                }
                if item["encrypted_content"].is_string() || self.known.plain_thoughts || self.store {
                    return Ok(());
                }
                let id = item["id"].as_str().unwrap_or("rs");
                let message = format!(
                    "Item with id '{id}' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input."
                );
                Err(Violation { message, param: Some("input".into()), code: None })
            }
            "image_generation_call" => generated(item, param),
            kind if OTHER_KINDS.contains(&kind) || self.known.kinds.contains(kind) => Ok(()),
            kind => Err(Violation::value(format!("{param}.type"), kind, &["message", "reasoning", "function_call", "and others"])),
        }
    }
}

/// A picture that the model made: its members are those that the API documents for input, and nothing is stored that an id alone could name.
fn generated(item: &Value, param: &str) -> Checked {
    const MEMBERS: [&str; 4] = ["type", "id", "status", "result"];
    if let Some(stranger) = item.as_object().into_iter().flatten().map(|(name, _)| name).find(|name| !MEMBERS.contains(&name.as_str())) {
        let param = format!("{param}.{stranger}");
        return Err(Violation::new(format!("Unknown parameter: '{param}'."), param, "unknown_parameter"));
    }
    text(&item["id"], format!("{param}.id"), LONGEST_NAME)?;
    let data = item["result"].as_str().ok_or_else(|| Violation::missing(format!("{param}.result")))?;
    match base64::decode(data) {
        Ok(bytes) if !bytes.is_empty() => Ok(()),
        _ => Err(Violation::new(format!("Invalid '{param}.result'. Expected base64."), format!("{param}.result"), "invalid_value")),
    }
}

const OTHER_KINDS: [&str; 15] = [
    "local_shell_call",
    "local_shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "computer_call",
    "computer_call_output",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "item_reference",
    "compaction",
];

const INPUT: [&str; 3] = ["input_text", "input_image", "input_file"];
const OUTPUT: [&str; 2] = ["output_text", "refusal"];

fn message(item: &Value, param: &str) -> Checked {
    const ROLES: [&str; 4] = ["assistant", "system", "developer", "user"];
    let role = item["role"].as_str().unwrap_or_default();
    if !ROLES.contains(&role) {
        return Err(Violation::value(format!("{param}.role"), role, &ROLES));
    }
    match &item["content"] {
        Value::Array(parts) => parts_of(parts, &format!("{param}.content"), if role == "assistant" { &OUTPUT } else { &INPUT }),
        content => text(content, format!("{param}.content"), LONGEST_TEXT),
    }
}

fn parts_of(parts: &[Value], param: &str, allowed: &[&str]) -> Checked {
    for (index, part) in parts.iter().enumerate() {
        let param = format!("{param}[{index}]");
        let kind = part["type"].as_str().unwrap_or_default();
        if !allowed.contains(&kind) {
            return Err(Violation::value(param, kind, allowed));
        }
        match kind {
            "input_text" | "output_text" => text(&part["text"], format!("{param}.text"), LONGEST_TEXT)?,
            "input_image" if part["file_id"].is_string() => {}
            "input_image" => picture(&part["image_url"], format!("{param}.image_url"))?,
            _ => {}
        }
        if !part["detail"].is_null() {
            const DETAILS: [&str; 4] = ["low", "high", "auto", "original"];
            let detail = part["detail"].as_str().unwrap_or_default();
            if !DETAILS.contains(&detail) {
                return Err(Violation::value(format!("{param}.detail"), detail, &DETAILS));
            }
        }
    }
    Ok(())
}

/// Calls and their outputs: each has exactly one of the other, and the call comes first.
#[derive(Default)]
struct Calls {
    /// Whether each has its output.
    calls: BTreeMap<String, (bool, String, &'static str)>,
}

impl Calls {
    fn side(item: &Value, kind: &str) -> Option<(Side, &'static str)> {
        Some(match kind {
            "function_call" => (Side::Call, "function call"),
            "custom_tool_call" => (Side::Call, "custom tool call"),
            "local_shell_call" => (Side::Call, "local shell call"),
            "tool_search_call" if item["call_id"].is_string() => (Side::Call, "tool search call"),
            "function_call_output" => (Side::Output, "function call"),
            "custom_tool_call_output" => (Side::Output, "custom tool call"),
            "local_shell_call_output" => (Side::Output, "local shell call"),
            "tool_search_output" if item["call_id"].is_string() => (Side::Output, "tool search call"),
            _ => return None,
        })
    }

    fn note(&mut self, item: &Value, kind: &str, param: &str) -> Checked {
        let Some((side, what)) = Self::side(item, kind) else { return Ok(()) };
        let id = call_id(&item["call_id"], format!("{param}.call_id"))?;
        match side {
            Side::Call => {
                if self.calls.insert(id.to_owned(), (false, param.to_owned(), what)).is_some() {
                    return Err(Violation::new(format!("Duplicate {what} found with call_id {id}."), param, "invalid_value"));
                }
            }
            Side::Output => {
                // A local shell call may be answered as if it were a function.
                let fits = |of: &str| of == what || of == "local shell call" && what == "function call";
                let Some((has_output, _, _)) = self.calls.get_mut(id).filter(|(_, _, of)| fits(of)) else {
                    let message = format!("No tool call found for {what} output with call_id {id}.");
                    return Err(Violation { message, param: Some("input".into()), code: None });
                };
                if *has_output {
                    return Err(Violation::new(format!("Duplicate tool output found for {what} {id}."), param, "invalid_value"));
                }
                *has_output = true;
            }
        }
        Ok(())
    }

    fn end(&self) -> Checked {
        match self.calls.iter().find(|(_, (has_output, _, _))| !has_output) {
            None => Ok(()),
            Some((id, (_, _, what))) => {
                let message = format!("No tool output found for {what} {id}.");
                Err(Violation { message, param: Some("input".into()), code: None })
            }
        }
    }
}
