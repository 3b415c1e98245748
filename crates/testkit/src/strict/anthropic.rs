//! Messages of the Anthropic API, and their order.

use std::collections::BTreeSet;

use outpost_wire::base64;
use serde_json::Value;

use super::tools::schema_fault;
use super::{Checked, Known, MOST_TOOLS, Violation, WIDEST_PICTURE};

const PARAMS: [&str; 16] = [
    "model",
    "max_tokens",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "thinking",
    "output_config",
    "metadata",
    "stop_sequences",
    "temperature",
    "top_k",
    "top_p",
    "service_tier",
    "container",
];

/// In base64.
const LARGEST_PICTURE: usize = 5 << 20;
const MOST_MARKS: usize = 4;
const MOST_PICTURES: usize = 100;
/// Beside more pictures than these, a side may have no more than so many pixels.
const MANY_PICTURES: usize = 20;
const WIDEST_OF_MANY: u32 = 2000;

/// This API names the place in its message and has no codes.
fn refuse(place: &str, why: impl std::fmt::Display) -> Violation {
    let message = if place.is_empty() { why.to_string() } else { format!("{place}: {why}") };
    Violation { message, param: None, code: None }
}

pub(super) fn messages(body: &Value, known: &Known) -> Checked {
    let members = body.as_object().into_iter().flatten();
    if let Some((name, _)) = members.into_iter().find(|(name, _)| !PARAMS.contains(&name.as_str())) {
        return Err(refuse(name, "Extra inputs are not permitted"));
    }
    if body["model"].as_str().is_none_or(str::is_empty) {
        return Err(refuse("model", "Field required"));
    }
    let most = match &body["max_tokens"] {
        Value::Null => return Err(refuse("max_tokens", "Field required")),
        count => count.as_u64().filter(|count| *count > 0).ok_or_else(|| refuse("max_tokens", "Input should be greater than 0"))?,
    };
    system(&body["system"])?;
    let tools = tools(&body["tools"])?;
    let messages = match &body["messages"] {
        Value::Array(messages) if !messages.is_empty() => messages,
        Value::Array(_) => return Err(refuse("messages", "at least one message is required")),
        _ => return Err(refuse("messages", "Field required")),
    };
    let mut order = Order { known, ids: BTreeSet::new(), open: Vec::new(), uses_tools: false };
    for (index, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if !matches!(role, "user" | "assistant") {
            return Err(refuse(&format!("messages.{index}.role"), "Input should be 'user' or 'assistant'"));
        }
        if index == 0 && role != "user" {
            return Err(refuse("messages", "first message must use the \"user\" role"));
        }
        if index > 0 && messages[index - 1]["role"] == role {
            let why = format!("roles must alternate between \"user\" and \"assistant\", but found multiple \"{role}\" roles in a row");
            return Err(refuse("messages", why));
        }
        order.message(index, role, &message["content"])?;
    }
    let mut widths = Vec::new();
    widest_sides(&body["messages"], &mut widths);
    sides(&widths)?;
    if !order.open.is_empty() {
        return Err(unanswered(messages.len() - 1, &order.open));
    }
    if messages.last().is_some_and(|last| last["role"] != "user") {
        return Err(refuse("", "This model does not support assistant message prefill. The conversation must end with a user message."));
    }
    if order.uses_tools && tools == 0 {
        return Err(refuse("", "Requests which include `tool_use` or `tool_result` blocks must define tools"));
    }
    thinking(body, messages, most)?;
    let marks = marks(body);
    if marks > MOST_MARKS {
        return Err(refuse("", format!("A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {marks}.")));
    }
    Ok(())
}

struct Order<'a> {
    known: &'a Known,
    ids: BTreeSet<String>,
    /// The calls of the last message.
    open: Vec<String>,
    uses_tools: bool,
}

impl Order<'_> {
    fn message(&mut self, index: usize, role: &str, content: &Value) -> Checked {
        let place = format!("messages.{index}");
        let blocks = match content {
            Value::String(text) => {
                spoken(&place, text)?;
                &[][..]
            }
            Value::Array(blocks) if !blocks.is_empty() => blocks,
            Value::Array(_) => {
                return Err(refuse(&place, "all messages must have non-empty content except for the optional final assistant message"));
            }
            _ => return Err(refuse(&format!("{place}.content"), "Field required")),
        };
        let answered: Vec<String> = blocks
            .iter()
            .take_while(|block| block["type"] == "tool_result")
            .filter_map(|block| block["tool_use_id"].as_str().map(str::to_owned))
            .collect();
        let missing: Vec<String> = self.open.iter().filter(|id| !answered.contains(id)).cloned().collect();
        if !missing.is_empty() {
            return Err(unanswered(index - 1, &missing));
        }
        let asked = std::mem::take(&mut self.open);
        let mut results = BTreeSet::new();
        for (at, block) in blocks.iter().enumerate() {
            let place = format!("{place}.content.{at}");
            match (role, block["type"].as_str().unwrap_or_default()) {
                (_, "text") => {
                    spoken(&place, block["text"].as_str().ok_or_else(|| refuse(&format!("{place}.text.text"), "Field required"))?)?
                }
                ("user", "image") => picture(&place, &block["source"])?,
                ("user", "tool_result") => {
                    self.uses_tools = true;
                    let id = block["tool_use_id"].as_str().unwrap_or_default().to_owned();
                    if !asked.contains(&id) {
                        let why = format!(
                            "unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
                        );
                        return Err(refuse(&place, why));
                    }
                    if !results.insert(id.clone()) {
                        let why = format!("each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id}");
                        return Err(refuse(&place, why));
                    }
                    result(&place, &block["content"])?;
                }
                ("assistant", "tool_use") => {
                    self.uses_tools = true;
                    self.call(&place, block)?;
                }
                ("assistant", "thinking") => self.thought(&place, block)?,
                ("assistant", "redacted_thinking") => {
                    let data = block["data"].as_str().unwrap_or_default();
                    if !self.known.thoughts.iter().any(|(_, sealed)| sealed == data) {
                        return Err(refuse(&place, "Invalid `data` in `redacted_thinking` block"));
                    }
                }
                (_, other) => {
                    return Err(refuse(&place, format!("Input tag '{other}' found using 'type' does not match any of the expected tags")));
                }
            }
        }
        Ok(())
    }

    fn call(&mut self, place: &str, block: &Value) -> Checked {
        let id = block["id"].as_str().unwrap_or_default();
        if !is_name(id, usize::MAX) {
            return Err(refuse(&format!("{place}.tool_use.id"), "String should match pattern '^[a-zA-Z0-9_-]+$'"));
        }
        if !is_name(block["name"].as_str().unwrap_or_default(), 128) {
            return Err(refuse(&format!("{place}.tool_use.name"), "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"));
        }
        if !block["input"].is_object() {
            return Err(refuse(&format!("{place}.tool_use.input"), "Input should be a valid dictionary"));
        }
        if !self.ids.insert(id.to_owned()) {
            return Err(refuse("messages", "`tool_use` ids must be unique"));
        }
        self.open.push(id.to_owned());
        Ok(())
    }

    /// A thought is taken back only as it was given.
    fn thought(&self, place: &str, block: &Value) -> Checked {
        let (Some(text), Some(signature)) = (block["thinking"].as_str(), block["signature"].as_str()) else {
            return Err(refuse(&format!("{place}.thinking.signature"), "Field required"));
        };
        if block.get("cache_control").is_some() {
            return Err(refuse(&format!("{place}.thinking.cache_control"), "Extra inputs are not permitted"));
        }
        let is_known = self.known.thoughts.iter().any(|(thought, sealed)| thought == text && sealed == signature);
        if is_known { Ok(()) } else { Err(refuse(place, "Invalid `signature` in `thinking` block")) }
    }
}

fn unanswered(index: usize, ids: &[String]) -> Violation {
    let why = format!(
        "`tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
        ids.join(", ")
    );
    refuse(&format!("messages.{index}"), why)
}

fn spoken(_: &str, text: &str) -> Checked {
    match text {
        "" => Err(refuse("messages", "text content blocks must be non-empty")),
        text if text.trim().is_empty() => Err(refuse("messages", "text content blocks must contain non-whitespace text")),
        _ => Ok(()),
    }
}

fn result(place: &str, content: &Value) -> Checked {
    match content {
        Value::Null | Value::String(_) => Ok(()),
        Value::Array(blocks) => blocks.iter().enumerate().try_for_each(|(at, block)| {
            let place = format!("{place}.tool_result.content.{at}");
            match block["type"].as_str() {
                Some("text") => spoken(&place, block["text"].as_str().unwrap_or_default()),
                Some("image") => picture(&place, &block["source"]),
                other => Err(refuse(&place, format!("Input tag '{}' does not match any of the expected tags", other.unwrap_or("null")))),
            }
        }),
        _ => Err(refuse(&format!("{place}.tool_result.content"), "Input should be a valid list")),
    }
}

fn picture(place: &str, source: &Value) -> Checked {
    let text = |name: &str| source[name].as_str().unwrap_or_default();
    match text("type") {
        "url" if text("url").starts_with("https://") => Ok(()),
        "url" => Err(refuse(&format!("{place}.image.source.url"), "Only HTTPS URLs are supported.")),
        "base64" => {
            if !["image/png", "image/jpeg", "image/gif", "image/webp"].contains(&text("media_type")) {
                let why = "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'";
                return Err(refuse(&format!("{place}.image.source.base64.media_type"), why));
            }
            if text("data").len() > LARGEST_PICTURE {
                let why = format!("image exceeds 5 MB maximum: {} bytes > {LARGEST_PICTURE} bytes", text("data").len());
                return Err(refuse(&format!("{place}.image.source.base64"), why));
            }
            let bytes =
                base64::decode(text("data")).map_err(|_| refuse(&format!("{place}.image.source.base64.data"), "Invalid base64 data"))?;
            match outpost_thread::picture_kind(&bytes) {
                Some(kind) if kind == text("media_type") => Ok(()),
                Some(kind) => {
                    let why = format!("Image does not match the provided media type {}, it appears to be {kind}", text("media_type"));
                    Err(refuse(place, why))
                }
                None => Err(refuse("", "Could not process image")),
            }
        }
        other => Err(refuse(&format!("{place}.image.source"), format!("Input tag '{other}' does not match any of the expected tags"))),
    }
}

/// The longest side of each picture that a request holds, however deep.
fn widest_sides(value: &Value, found: &mut Vec<u32>) {
    match value {
        Value::Object(members) if members.get("type").is_some_and(|kind| kind == "image") => {
            let bytes = base64::decode(value["source"]["data"].as_str().unwrap_or_default()).unwrap_or_default();
            found.push(outpost_thread::picture_size(&bytes).map_or(0, |(width, height)| width.max(height)));
        }
        Value::Object(members) => members.values().for_each(|member| widest_sides(member, found)),
        Value::Array(values) => values.iter().for_each(|value| widest_sides(value, found)),
        _ => {}
    }
}

fn sides(pictures: &[u32]) -> Checked {
    if pictures.len() > MOST_PICTURES {
        return Err(refuse("messages", format!("too many images: {} > {MOST_PICTURES}", pictures.len())));
    }
    let widest = pictures.iter().max().copied().unwrap_or_default();
    if widest > WIDEST_PICTURE {
        return Err(refuse("messages", format!("At least one of the image dimensions exceed max allowed size: {WIDEST_PICTURE} pixels")));
    }
    if pictures.len() > MANY_PICTURES && widest > WIDEST_OF_MANY {
        let why = format!("At least one of the image dimensions exceed max allowed size for many-image requests: {WIDEST_OF_MANY} pixels");
        return Err(refuse("messages", why));
    }
    Ok(())
}

fn system(system: &Value) -> Checked {
    match system {
        Value::Null | Value::String(_) => Ok(()),
        Value::Array(blocks) => blocks.iter().enumerate().try_for_each(|(at, block)| match block["text"].as_str() {
            Some(text) if block["type"] == "text" && !text.is_empty() => Ok(()),
            Some("") => Err(refuse("system", "text content blocks must be non-empty")),
            _ => Err(refuse(&format!("system.{at}.text"), "Field required")),
        }),
        _ => Err(refuse("system", "Input should be a valid list")),
    }
}

/// How many there are.
fn tools(tools: &Value) -> Result<usize, Violation> {
    let tools = match tools {
        Value::Null => return Ok(0),
        Value::Array(tools) => tools,
        _ => return Err(refuse("tools", "Input should be a valid list")),
    };
    if tools.len() > MOST_TOOLS {
        return Err(refuse("tools", format!("List should have at most {MOST_TOOLS} items")));
    }
    let mut names = BTreeSet::new();
    for (at, tool) in tools.iter().enumerate() {
        let place = format!("tools.{at}.custom");
        let name = tool["name"].as_str().unwrap_or_default();
        if !is_name(name, 128) {
            return Err(refuse(&format!("{place}.name"), "String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"));
        }
        if !names.insert(name) {
            return Err(refuse("tools", "Tool names must be unique."));
        }
        let schema = &tool["input_schema"];
        if schema["type"] != "object" {
            return Err(refuse(&format!("{place}.input_schema.type"), "Field required"));
        }
        if ["anyOf", "oneOf", "allOf"].iter().any(|choice| schema.get(choice).is_some()) {
            let why = "input_schema does not support oneOf, allOf, or anyOf at the top level";
            return Err(refuse(&format!("{place}.input_schema"), why));
        }
        if schema_fault(schema, &mut Vec::new()).is_some() {
            let why = "JSON schema is invalid. It must match JSON Schema draft 2020-12";
            return Err(refuse(&format!("{place}.input_schema"), why));
        }
    }
    Ok(tools.len())
}

fn thinking(body: &Value, messages: &[Value], most: u64) -> Checked {
    match body["thinking"]["type"].as_str() {
        None | Some("disabled" | "adaptive") => Ok(()),
        Some("enabled") => {
            let budget = body["thinking"]["budget_tokens"].as_u64().unwrap_or(0);
            if budget < 1024 {
                return Err(refuse("thinking.enabled.budget_tokens", "Input should be greater than or equal to 1024"));
            }
            if budget >= most {
                return Err(refuse("", "`max_tokens` must be greater than `thinking.budget_tokens`."));
            }
            if let [.., answer, results] = messages
                && results["content"][0]["type"] == "tool_result"
                && !matches!(answer["content"][0]["type"].as_str(), Some("thinking" | "redacted_thinking"))
            {
                let place = format!("messages.{}.content.0.type", messages.len() - 2);
                let found = answer["content"][0]["type"].as_str().unwrap_or("text");
                let why = format!(
                    "Expected `thinking` or `redacted_thinking`, but found `{found}`. When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)."
                );
                return Err(refuse(&place, why));
            }
            Ok(())
        }
        Some(other) => Err(refuse("thinking", format!("Input tag '{other}' does not match any of the expected tags"))),
    }
}

fn marks(value: &Value) -> usize {
    match value {
        Value::Object(members) => {
            let own = usize::from(members.get("cache_control").is_some_and(Value::is_object));
            // What a model wrote, and schemas, may hold members of any name.
            own + members
                .iter()
                .filter(|(name, _)| !matches!(name.as_str(), "input" | "input_schema"))
                .map(|(_, inner)| marks(inner))
                .sum::<usize>()
        }
        Value::Array(list) => list.iter().map(marks).sum(),
        _ => 0,
    }
}

fn is_name(name: &str, most: usize) -> bool {
    !name.is_empty() && name.len() <= most && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(messages: Value) -> String {
        with(json!({"messages": messages}))
    }

    fn with(more: Value) -> String {
        let tool = json!({"name": "x", "input_schema": {"type": "object", "properties": {}}});
        let mut body = json!({"model": "m", "max_tokens": 2000, "tools": [tool], "messages": [{"role": "user", "content": "hi"}]});
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        let known = Known { thoughts: vec![("hm".into(), "sig".into())], ..Known::default() };
        super::messages(&body, &known).map_or_else(|violation| violation.message, |()| String::new())
    }

    fn user(blocks: Value) -> Value {
        json!({"role": "user", "content": blocks})
    }

    fn model(blocks: Value) -> Value {
        json!({"role": "assistant", "content": blocks})
    }

    #[test]
    fn roles_and_results() {
        let hi = || user(json!("hi"));
        let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "x", "input": {}});
        let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "r"});
        let text = json!({"type": "text", "text": "t"});
        assert_eq!(refused(json!([hi(), model(json!([call("a"), call("b")])), user(json!([result("b"), result("a"), text]))])), "");
        assert!(refused(json!([model(json!("x")), hi()])).contains("first message must use"));
        assert!(refused(json!([hi(), hi()])).contains("multiple \"user\" roles in a row"));
        assert!(refused(json!([hi(), model(json!("x"))])).contains("must end with a user message"));
        let unanswered = "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a";
        assert!(refused(json!([hi(), model(json!([call("a")])), hi()])).starts_with(unanswered));
        assert!(refused(json!([hi(), model(json!([call("a")]))])).starts_with(unanswered));
        assert!(refused(json!([hi(), model(json!([call("a")])), user(json!([text, result("a")]))])).starts_with(unanswered));
        assert!(refused(json!([user(json!([result("a")]))])).contains("unexpected `tool_use_id`"));
        assert!(refused(json!([hi(), model(json!([call("a")])), user(json!([result("a"), result("a")]))])).contains("a single result"));
        assert!(refused(json!([hi(), model(json!([call("a.b")])), user(json!([result("a.b")]))])).contains("match pattern"));
        let twice =
            json!([hi(), model(json!([call("a")])), user(json!([result("a")])), model(json!([call("a")])), user(json!([result("a")]))]);
        assert!(refused(twice).contains("ids must be unique"));
        assert!(refused(json!([user(json!([{"type": "text", "text": " "}]))])).contains("non-whitespace"));
        assert!(
            with(json!({"tools": [], "messages": [hi(), model(json!([call("a")])), user(json!([result("a")]))]}))
                .contains("must define tools")
        );
    }

    #[test]
    fn thoughts_and_limits() {
        let thought = |text: &str| json!({"type": "thinking", "thinking": text, "signature": "sig"});
        let messages = |text: &str| json!([user(json!("hi")), model(json!([thought(text)])), user(json!("go"))]);
        assert_eq!(refused(messages("hm")), "");
        assert!(refused(messages("other")).contains("Invalid `signature` in `thinking` block"));
        assert_eq!(with(json!({"max_tokens": null})), "max_tokens: Field required");
        let thinking = |budget: u64| json!({"thinking": {"type": "enabled", "budget_tokens": budget}});
        assert_eq!(with(thinking(1500)), "");
        assert!(with(thinking(2000)).contains("must be greater than `thinking.budget_tokens`"));
        assert!(with(thinking(100)).contains("greater than or equal to 1024"));
        let call = json!({"type": "tool_use", "id": "a", "name": "x", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": "a"});
        let mut running = thinking(1500);
        running["messages"] = json!([user(json!("hi")), model(json!([call])), user(json!([result]))]);
        assert!(with(running).contains("Expected `thinking` or `redacted_thinking`, but found `tool_use`"));
        assert!(with(json!({"think": 1})).contains("Extra inputs"));
        let block = json!({"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}});
        assert!(refused(json!([user(json!([block, block, block, block, block]))])).contains("Found 5"));
    }
}
