//! What the real APIs refuse, in the words in which they refuse it.
//!
//! One pure function looks at the body of a request, so that the scripted model and tests of properties hold a history to the same
//! rules. It knows the wires as their documentation and their refusals describe them, and nothing of the program that speaks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use outpost_wire::base64;
use serde_json::{Value, json};

/// The wire of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Responses,
    Chat,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub message: String,
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.param.iter().try_for_each(|param| write!(f, " ({param})"))
    }
}

impl Violation {
    fn new(message: impl Into<String>, param: impl Into<String>, code: &'static str) -> Self {
        Self { message: message.into(), param: Some(param.into()), code: Some(code) }
    }

    /// The body of the answer, which has the status 400.
    pub fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": "invalid_request_error", "param": self.param, "code": self.code}})
    }

    fn missing(param: impl Into<String>) -> Self {
        let param = param.into();
        Self::new(format!("Missing required parameter: '{param}'."), param, "missing_required_parameter")
    }

    fn unknown(param: impl Into<String>) -> Self {
        let param = param.into();
        Self::new(format!("Unknown parameter: '{param}'."), param, "unknown_parameter")
    }

    fn kind(param: impl Into<String>, expected: &str) -> Self {
        let param = param.into();
        Self::new(format!("Invalid type for '{param}': expected {expected}."), param, "invalid_type")
    }

    fn value(param: impl Into<String>, found: &str, supported: &[&str]) -> Self {
        let supported: Vec<String> = supported.iter().map(|value| format!("'{value}'")).collect();
        Self::new(format!("Invalid value: '{found}'. Supported values are: {}.", supported.join(", ")), param, "invalid_value")
    }

    fn too_long(param: impl Into<String>, what: &str, most: usize, found: usize) -> Self {
        let (param, article) = (param.into(), if what == "array" { "an" } else { "a" });
        let message = format!(
            "Invalid '{param}': {what} too long. Expected {article} {what} with maximum length {most}, but got {article} {what} with length {found} instead."
        );
        Self::new(message, param, if what == "array" { "array_above_max_length" } else { "string_above_max_length" })
    }

    fn pattern(param: impl Into<String>) -> Self {
        let param = param.into();
        let message =
            format!("Invalid '{param}': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.");
        Self::new(message, param, "invalid_value")
    }
}

type Checked = Result<(), Violation>;

const LONGEST_TEXT: usize = 10_485_760;
const LONGEST_NAME: usize = 64;
const MOST_TOOLS: usize = 128;
const LARGEST_BODY: usize = 50 << 20;
const LARGEST_PICTURE: usize = 20 << 20;
const WIDEST_PICTURE: u32 = 8000;

/// What a server knows of the other side: what it said itself it takes back.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Kinds of items that are no part of the documented API.
    pub kinds: BTreeSet<String>,
    /// Thoughts that were told in plain words.
    pub plain_thoughts: bool,
}

/// Whether the real API of a wire takes this request.
pub fn check(wire: Wire, body: &[u8], known: &Known) -> Checked {
    if body.len() > LARGEST_BODY {
        return Err(Violation { message: format!("The request is larger than {LARGEST_BODY} bytes."), param: None, code: None });
    }
    let Ok(body) = serde_json::from_slice::<Value>(body) else {
        let message = "We could not parse the JSON body of your request.".to_owned();
        return Err(Violation { message, param: None, code: None });
    };
    check_value(wire, &body, known)
}

/// The same for a body that was read already.
pub fn check_value(wire: Wire, body: &Value, known: &Known) -> Checked {
    let Some(members) = body.as_object() else { return Err(Violation::kind("body", "an object")) };
    let params: &[&str] = match wire {
        Wire::Responses => &RESPONSES,
        Wire::Chat => &CHAT,
    };
    if let Some(name) = members.keys().find(|name| !params.contains(&name.as_str())) {
        return Err(Violation::unknown(name.as_str()));
    }
    text(&body["model"], "model", LONGEST_TEXT)?;
    if body["model"] == "" {
        return Err(Violation::missing("model"));
    }
    match wire {
        Wire::Responses => {
            Responses { known, store: body["store"] != false }.check(body)?;
            for (index, tool) in tools(body)?.iter().enumerate() {
                responses_tool(tool, &format!("tools[{index}]"))?;
            }
            names(tools(body)?.iter().map(|tool| &tool["name"]))?;
            if !body["text"]["format"].is_null() {
                output_format(&body["text"]["format"], "text.format")?;
            }
            effort(&body["reasoning"]["effort"], "reasoning.effort")?;
            if !body["prompt_cache_key"].is_null() {
                text(&body["prompt_cache_key"], "prompt_cache_key", 64)?;
            }
        }
        Wire::Chat => {
            chat(body)?;
            for (index, tool) in tools(body)?.iter().enumerate() {
                let param = format!("tools[{index}]");
                if tool["type"] != "function" {
                    return Err(Violation::value(
                        format!("{param}.type"),
                        tool["type"].as_str().unwrap_or("null"),
                        &["function", "custom"],
                    ));
                }
                function(&tool["function"], &format!("{param}.function"))?;
            }
            names(tools(body)?.iter().map(|tool| &tool["function"]["name"]))?;
            match body["response_format"]["type"].as_str() {
                None | Some("text" | "json_object") => {}
                Some("json_schema") => output_format(&body["response_format"]["json_schema"], "response_format")?,
                Some(other) => return Err(Violation::value("response_format.type", other, &["json_object", "json_schema", "text"])),
            }
            effort(&body["reasoning_effort"], "reasoning_effort")?;
        }
    }
    Ok(())
}

const RESPONSES: [&str; 22] = [
    "model",
    "instructions",
    "input",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "text",
    "store",
    "stream",
    "stream_options",
    "include",
    "prompt_cache_key",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "previous_response_id",
    "safety_identifier",
    "service_tier",
    "temperature",
    "top_p",
    "truncation",
];

const CHAT: [&str; 21] = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "response_format",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "prompt_cache_key",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "temperature",
    "top_p",
    "verbosity",
];

fn text(value: &Value, param: impl Into<String>, most: usize) -> Checked {
    match value {
        Value::String(text) if text.chars().count() > most => Err(Violation::too_long(param, "string", most, text.chars().count())),
        Value::String(_) => Ok(()),
        Value::Null => Err(Violation::missing(param)),
        _ => Err(Violation::kind(param, "a string")),
    }
}

fn name(value: &Value, param: String) -> Checked {
    text(value, param.clone(), LONGEST_NAME)?;
    let name = value.as_str().unwrap_or_default();
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() || !name.chars().all(is_letter) { Err(Violation::pattern(param)) } else { Ok(()) }
}

fn call_id(value: &Value, param: String) -> Result<&str, Violation> {
    text(value, param.clone(), LONGEST_NAME)?;
    match value.as_str() {
        None | Some("") => Err(Violation::missing(param)),
        Some(id) => Ok(id),
    }
}

fn effort(value: &Value, param: &str) -> Checked {
    const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];
    match value {
        Value::Null => Ok(()),
        Value::String(effort) if EFFORTS.contains(&effort.as_str()) => Ok(()),
        other => Err(Violation::value(param, other.as_str().unwrap_or("?"), &EFFORTS)),
    }
}

/// What an item of the Responses API is to its neighbours.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Call,
    Output,
}

struct Responses<'a> {
    known: &'a Known,
    store: bool,
}

impl Responses<'_> {
    fn check(&self, body: &Value) -> Checked {
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
            kind if OTHER_KINDS.contains(&kind) || self.known.kinds.contains(kind) => Ok(()),
            kind => Err(Violation::value(format!("{param}.type"), kind, &["message", "reasoning", "function_call", "and others"])),
        }
    }
}

const OTHER_KINDS: [&str; 16] = [
    "local_shell_call",
    "local_shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
    "file_search_call",
    "image_generation_call",
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

fn chat(body: &Value) -> Checked {
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

/// A picture by its address, or within it.
fn picture(url: &Value, param: String) -> Checked {
    text(url, param.clone(), LARGEST_BODY)?;
    let url = url.as_str().unwrap_or_default();
    if url.starts_with("https://") || url.starts_with("http://") {
        return Ok(());
    }
    let data = url.strip_prefix("data:").and_then(|data| data.split_once(";base64,"));
    let Some((kind, bytes)) = data.and_then(|(kind, data)| Some((kind, base64::decode(data).ok()?))) else {
        let start: String = url.chars().take(40).collect();
        let message = format!(
            "Invalid '{param}'. Expected a base64-encoded data URL with an image MIME type (e.g. 'data:image/png;base64,aW1nIGJ5dGVzIGhlcmU='), but got '{start}'."
        );
        return Err(Violation::new(message, param, "invalid_value"));
    };
    let is = match &bytes[..] {
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        _ => "",
    };
    let unsupported =
        "You uploaded an unsupported image. Please make sure your image has of one the following formats: ['png', 'jpeg', 'gif', 'webp'].";
    if is.is_empty() || is != kind {
        return Err(Violation::new(unsupported, param, "invalid_image_format"));
    }
    if bytes.len() > LARGEST_PICTURE {
        return Err(Violation::new(format!("The image is larger than {LARGEST_PICTURE} bytes."), param, "image_too_large"));
    }
    match outpost_thread::picture_size(&bytes) {
        None => Err(Violation::new("The image data you provided does not represent a valid image.", param, "image_parse_error")),
        Some((width, height)) if width.max(height) > WIDEST_PICTURE => {
            let message = format!("At least one of the image dimensions exceed max allowed size: {WIDEST_PICTURE} pixels");
            Err(Violation::new(message, param, "image_too_large"))
        }
        Some(_) => Ok(()),
    }
}

fn tools(body: &Value) -> Result<&[Value], Violation> {
    match &body["tools"] {
        Value::Null => Ok(&[]),
        Value::Array(tools) if tools.len() > MOST_TOOLS => Err(Violation::too_long("tools", "array", MOST_TOOLS, tools.len())),
        Value::Array(tools) => Ok(tools),
        _ => Err(Violation::kind("tools", "an array")),
    }
}

fn names<'a>(names: impl Iterator<Item = &'a Value>) -> Checked {
    let mut seen = BTreeSet::new();
    for name in names.filter_map(Value::as_str) {
        if !seen.insert(name) {
            return Err(Violation::new(format!("Tool names must be unique: '{name}'."), "tools", "invalid_value"));
        }
    }
    Ok(())
}

fn responses_tool(tool: &Value, param: &str) -> Checked {
    match tool["type"].as_str() {
        Some("function") => function(tool, param),
        Some("custom") => {
            name(&tool["name"], format!("{param}.name"))?;
            let format = &tool["format"];
            match format["type"].as_str() {
                None | Some("text") => Ok(()),
                Some("grammar") if !matches!(format["syntax"].as_str(), Some("lark" | "regex")) => {
                    Err(Violation::value(format!("{param}.format.syntax"), format["syntax"].as_str().unwrap_or("null"), &["lark", "regex"]))
                }
                Some("grammar") => text(&format["definition"], format!("{param}.format.definition"), LONGEST_TEXT),
                Some(other) => Err(Violation::value(format!("{param}.format.type"), other, &["text", "grammar"])),
            }
        }
        other => Err(Violation::value(format!("{param}.type"), other.unwrap_or("null"), &["function", "custom", "and others"])),
    }
}

fn function(function: &Value, param: &str) -> Checked {
    name(&function["name"], format!("{param}.name"))?;
    if !function["description"].is_null() {
        text(&function["description"], format!("{param}.description"), LONGEST_TEXT)?;
    }
    let schema = &function["parameters"];
    if schema.is_null() {
        return Ok(());
    }
    let refuse = |why: String| {
        let message = format!("Invalid schema for function '{}': {why}", function["name"].as_str().unwrap_or_default());
        Violation::new(message, format!("{param}.parameters"), "invalid_function_parameters")
    };
    if schema["type"] != "object" {
        let found = schema["type"].as_str().unwrap_or("None");
        return Err(refuse(format!("schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{found}\"'.")));
    }
    if !schema["properties"].is_object() {
        return Err(refuse("In context=(), object schema missing properties.".into()));
    }
    schema_fault(schema, &mut Vec::new()).map_or(Ok(()), |why| Err(refuse(why)))
}

/// What is wrong with a schema, where there is something.
fn schema_fault(schema: &Value, place: &mut Vec<String>) -> Option<String> {
    const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];
    let members = match schema {
        Value::Bool(_) => return None,
        Value::Object(members) => members,
        other => return Some(format!("{other} is not of type 'object', 'boolean'.")),
    };
    let context =
        |place: &[String]| format!("In context=({})", place.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", "));
    let kinds: Vec<&Value> = match members.get("type") {
        None => vec![],
        Some(Value::Array(kinds)) => kinds.iter().collect(),
        Some(kind) => vec![kind],
    };
    if let Some(kind) = kinds.iter().find(|kind| !kind.as_str().is_some_and(|kind| TYPES.contains(&kind))) {
        return Some(format!("{kind} is not valid under any of the given schemas."));
    }
    let has = |name: &str| members.contains_key(name);
    if kinds.iter().any(|kind| *kind == "array") && !has("items") && !has("prefixItems") {
        return Some(format!("{}, array schema missing items.", context(place)));
    }
    if members.get("required").is_some_and(|names| !names.as_array().is_some_and(|names| names.iter().all(Value::is_string))) {
        return Some(format!("{} is not of type 'array'.", members["required"]));
    }
    for (name, inner) in members {
        let inner: Vec<(String, &Value)> = match (name.as_str(), inner) {
            ("properties" | "$defs" | "definitions" | "patternProperties", Value::Object(inner)) => {
                inner.iter().map(|(key, inner)| (key.clone(), inner)).collect()
            }
            ("properties" | "$defs" | "definitions" | "patternProperties", other) => {
                return Some(format!("{other} is not of type 'object'."));
            }
            ("items", Value::Array(inner)) | ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(inner)) => {
                inner.iter().enumerate().map(|(at, inner)| (at.to_string(), inner)).collect()
            }
            ("items" | "additionalProperties" | "not", inner) => vec![(String::new(), inner)],
            _ => continue,
        };
        for (key, inner) in inner {
            place.push(name.clone());
            place.extend((!key.is_empty()).then(|| key.clone()));
            let fault = schema_fault(inner, place);
            place.truncate(place.len() - 1 - usize::from(!key.is_empty()));
            if fault.is_some() {
                return fault;
            }
        }
    }
    None
}

/// The format of an answer; a strict one has rules of its own.
fn output_format(format: &Value, param: &str) -> Checked {
    if param == "text.format" && matches!(format["type"].as_str(), Some("text" | "json_object")) {
        return Ok(());
    }
    name(&format["name"], format!("{param}.name"))?;
    let refuse = |why: String| {
        let message = format!("Invalid schema for response_format '{}': {why}", format["name"].as_str().unwrap_or_default());
        Violation::new(message, format!("{param}.schema"), "invalid_json_schema")
    };
    if format["schema"]["type"] != "object" {
        return Err(refuse(format!("schema must be a JSON Schema of 'type: \"object\"', got 'type: {}'.", format["schema"]["type"])));
    }
    if let Some(why) = schema_fault(&format["schema"], &mut Vec::new()) {
        return Err(refuse(why));
    }
    if format["strict"] == true
        && let Some(why) = strict_fault(&format["schema"], &mut Vec::new())
    {
        return Err(refuse(why));
    }
    Ok(())
}

fn strict_fault(schema: &Value, place: &mut Vec<String>) -> Option<String> {
    let context = format!("In context=({})", place.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", "));
    if schema["type"] == "object" || schema["properties"].is_object() {
        if schema["additionalProperties"] != false {
            return Some(format!("{context}, 'additionalProperties' is required to be supplied and to be false."));
        }
        let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            if !required.contains(&name.as_str()) {
                let text = "'required' is required to be supplied and to be an array including every key in properties";
                return Some(format!("{context}, {text}. Missing '{name}'."));
            }
            place.extend(["properties".into(), name.clone()]);
            let fault = strict_fault(inner, place);
            place.truncate(place.len() - 2);
            if fault.is_some() {
                return fault;
            }
        }
    }
    let inner =
        ["anyOf", "oneOf", "allOf"].iter().flat_map(|name| schema[*name].as_array().into_iter().flatten()).chain(schema.get("items"));
    for inner in inner {
        place.push("items".into());
        let fault = strict_fault(inner, place);
        place.pop();
        if fault.is_some() {
            return fault;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(wire: Wire, body: &Value) -> String {
        check_value(wire, body, &Known::default()).map_or_else(|violation| violation.message, |()| String::new())
    }

    fn input(items: &[Value]) -> String {
        refused(Wire::Responses, &json!({"model": "m", "store": false, "input": items}))
    }

    fn messages(messages: &[Value]) -> String {
        refused(Wire::Chat, &json!({"model": "m", "messages": messages}))
    }

    fn call(id: &str) -> Value {
        json!({"type": "function_call", "call_id": id, "name": "exec_command", "arguments": "{}"})
    }

    fn output(id: &str) -> Value {
        json!({"type": "function_call_output", "call_id": id, "output": "x"})
    }

    #[test]
    fn calls_and_outputs_of_the_responses_api() {
        assert_eq!(input(&[call("a"), call("b"), output("b"), output("a")]), "");
        assert_eq!(input(&[call("a")]), "No tool output found for function call a.");
        assert_eq!(input(&[output("a"), call("a")]), "No tool call found for function call output with call_id a.");
        assert!(input(&[call("a"), output("a"), output("a")]).contains("Duplicate tool output"));
        assert!(input(&[call("a"), output("a"), call("a"), output("a")]).contains("Duplicate function call"));
        let custom = json!({"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": ""});
        assert!(input(&[custom, output("a")]).starts_with("No tool call found for function call output"));
    }

    #[test]
    fn items_of_the_responses_api() {
        let said = |id: &str| json!({"type": "message", "id": id, "role": "assistant", "content": [{"type": "output_text", "text": "x"}]});
        assert!(input(&[said("0198")]).contains("Expected an ID that begins with 'msg'"));
        assert!(input(&[said("msg_1"), said("msg_1")]).contains("Duplicate item found with id msg_1"));
        assert!(
            input(&[json!({"type": "message", "role": "assistant", "content": [{"type": "input_text", "text": "x"}]})])
                .contains("'output_text'")
        );
        assert!(input(&[json!({"type": "reasoning", "id": "rs_1", "summary": []})]).contains("not persisted"));
        assert!(input(&[json!({"type": "hologram"})]).contains("Invalid value: 'hologram'"));
        assert!(
            input(&[json!({"type": "function_call", "call_id": "a", "name": "a b", "arguments": "{}"})]).contains("does not match pattern")
        );
        assert!(input(&[call(&"x".repeat(65))]).contains("maximum length 64"));
        assert_eq!(input(&[]), "Missing required parameter: 'input'.");
    }

    #[test]
    fn the_order_of_chat() {
        let asked = json!({"role": "assistant", "content": "", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "x", "arguments": "{}"}}]});
        let result = json!({"role": "tool", "tool_call_id": "a", "content": "r"});
        let user = json!({"role": "user", "content": "hi"});
        let system = json!({"role": "system", "content": "be"});
        assert_eq!(messages(&[system.clone(), user.clone(), asked.clone(), result.clone(), user.clone()]), "");
        assert!(messages(&[asked.clone(), user.clone(), result.clone()]).ends_with("did not have response messages: a"));
        assert!(messages(std::slice::from_ref(&asked)).ends_with("did not have response messages: a"));
        assert!(messages(&[user.clone(), result.clone()]).contains("must be a response to a preceeding message"));
        assert!(messages(&[asked.clone(), result.clone(), result.clone()]).contains("must be a response"));
        assert!(messages(&[user, system]).contains("at the beginning"));
        let mut bad = asked;
        bad["tool_calls"][0]["function"]["arguments"] = "{".into();
        assert!(messages(&[bad, result]).contains("Failed to parse tool call arguments"));
    }

    #[test]
    fn tools_and_schemas() {
        let with = |tools: Value| refused(Wire::Responses, &json!({"model": "m", "input": "x", "tools": tools}));
        let tool = |name: &str, schema: Value| json!({"type": "function", "name": name, "parameters": schema});
        let sound = json!({"type": "object", "properties": {"a": {"type": "array", "items": {}}}});
        assert_eq!(with(json!([tool("a", sound.clone())])), "");
        assert!(with(json!([tool("a", json!({"type": "object"}))])).contains("object schema missing properties"));
        assert!(with(json!([tool("a", json!({"properties": {}}))])).contains("got 'type: \"None\"'"));
        let nested = json!({"type": "object", "properties": {"a": {"type": "array"}}});
        assert!(with(json!([tool("a", nested)])).contains("In context=('properties', 'a'), array schema missing items."));
        assert!(with(json!([tool("a", json!({"type": "object", "properties": {"a": {"type": "text"}}}))])).contains("not valid under any"));
        assert!(with(json!([tool("a.b", sound.clone())])).contains("does not match pattern"));
        assert!(with(json!([tool("a", sound.clone()), tool("a", sound.clone())])).contains("unique"));
        let many: Vec<Value> = (0..129).map(|n| tool(&format!("t{n}"), sound.clone())).collect();
        assert!(with(many.into()).contains("maximum length 128, but got an array with length 129"));
        let format = |schema: Value| json!({"model": "m", "input": "x", "text": {"format": {"type": "json_schema", "name": "a", "strict": true, "schema": schema}}});
        assert!(refused(Wire::Responses, &format(sound)).contains("'additionalProperties' is required"));
        assert!(refused(Wire::Responses, &json!({"model": "m", "input": "x", "think": 1})).contains("Unknown parameter: 'think'"));
    }

    #[test]
    fn pictures() {
        let with = |url: &str| input(&[json!({"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": url}]})]);
        // One transparent pixel.
        let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";
        assert_eq!(with(&format!("data:image/png;base64,{png}")), "");
        assert_eq!(with("https://example.org/x.png"), "");
        assert!(with(&format!("data:image/gif;base64,{png}")).contains("unsupported image"));
        assert!(with("data:image/bmp;base64,Qk0=").contains("unsupported image"));
        assert!(with("data:image/png;base64,iVBORw0KGgo=").contains("does not represent a valid image"));
        assert!(with("file:///x.png").contains("Expected a base64-encoded data URL"));
    }
}
