//! What the real APIs refuse, in the words in which they refuse it.
//!
//! One pure function looks at the body of a request, so that the scripted model and tests of properties hold a history to the same
//! rules. It knows the wires as their documentation and their refusals describe them, and nothing of the program that speaks.

mod anthropic;
mod chat;
mod responses;
mod tools;

use std::collections::BTreeSet;
use std::fmt;

use outpost_wire::base64;
use serde_json::{Value, json};

use self::chat::chat;
use self::responses::Responses;
use self::tools::{function, names, output_format, responses_tool, tools};

/// The wire of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Responses,
    Chat,
    Anthropic,
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
    pub fn body(&self, wire: Wire) -> Value {
        if wire == Wire::Anthropic {
            return json!({"type": "error", "error": {"type": "invalid_request_error", "message": self.message}});
        }
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
const LARGEST_BODY_OF_ANTHROPIC: usize = 32_000_000;
const LARGEST_PICTURE: usize = 20 << 20;
const WIDEST_PICTURE: u32 = 8000;

/// What a server knows of the other side: what it said itself it takes back.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// Kinds of items that are no part of the documented API.
    pub kinds: BTreeSet<String>,
    /// Thoughts that were told in plain words.
    pub plain_thoughts: bool,
    /// Thoughts of the Anthropic wire, and the signature of each.
    pub thoughts: Vec<(String, String)>,
}

/// Whether the real API of a wire takes this request.
pub fn check(wire: Wire, body: &[u8], known: &Known) -> Checked {
    let largest = if wire == Wire::Anthropic { LARGEST_BODY_OF_ANTHROPIC } else { LARGEST_BODY };
    if body.len() > largest {
        return Err(Violation { message: format!("The request is larger than {largest} bytes."), param: None, code: None });
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
        Wire::Anthropic => return anthropic::messages(body, known),
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
        Wire::Anthropic => {}
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
        let png = crate::model::PIXEL;
        assert_eq!(with(&format!("data:image/png;base64,{png}")), "");
        assert_eq!(with("https://example.org/x.png"), "");
        assert!(with(&format!("data:image/gif;base64,{png}")).contains("unsupported image"));
        assert!(with("data:image/bmp;base64,Qk0=").contains("unsupported image"));
        assert!(with("data:image/png;base64,iVBORw0KGgo=").contains("does not represent a valid image"));
        assert!(with("file:///x.png").contains("Expected a base64-encoded data URL"));
        let made = json!({"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": png});
        assert_eq!(input(std::slice::from_ref(&made)), "");
        let changed = |name: &str, value: Value| {
            let mut item = made.clone();
            item[name] = value;
            input(&[item])
        };
        assert!(changed("size", "1x1".into()).contains("Unknown parameter"));
        assert!(changed("id", "0198".into()).contains("begins with 'ig'"));
        assert!(changed("result", Value::Null).contains("Missing required parameter"));
    }
}
