//! Calls that a model wrote into its text, because its template or its server has no other place for them.
//!
//! Only what can be nothing else is read: a whole JSON object, or the tags of a known template, that names a tool which was
//! offered and holds its arguments. Everything else stays text. Providers have this as the quirk `text_calls`.

use serde_json::{Map, Value, json};

use super::{HistoryItem, ModelProgress, ModelResponse, OnProgress, StopReason, ToolInput, ToolSpec};

/// What a text comes to: the calls in it, and what else it says.
#[derive(Debug, Default, PartialEq)]
struct Reading {
    rest: String,
    calls: Vec<Call>,
    /// Whether nothing is said behind the last call.
    ends_with_call: bool,
}

#[derive(Debug, PartialEq)]
struct Call {
    name: String,
    arguments: Value,
}

/// Takes the calls out of the messages of an answer that has none besides. The user is told that this was done.
pub(super) fn apply(response: &mut ModelResponse, tools: &[ToolSpec], ids: &(dyn Fn() -> String + Send + Sync), progress: OnProgress<'_>) {
    let kind = |item: &Value| item["type"].as_str().unwrap_or_default().to_owned();
    let read: Vec<Value> = response.items.iter().filter_map(|item| item.read().ok()).collect();
    if read.len() != response.items.len() || read.iter().any(|item| kind(item).ends_with("_call")) {
        return;
    }
    let mut items = Vec::new();
    let mut count = 0;
    for mut item in read {
        let text = item["content"].as_array().filter(|_| kind(&item) == "message");
        let text: Option<String> = text.map(|parts| parts.iter().filter_map(|part| part["text"].as_str()).collect());
        let Some(reading) = text.as_deref().and_then(|text| Reading::of(text, tools)) else {
            items.push(item);
            continue;
        };
        if !reading.rest.is_empty() {
            item["content"] = json!([{"type": "output_text", "text": reading.rest}]);
            items.push(item);
        }
        count += reading.calls.len();
        items.extend(reading.calls.into_iter().map(|call| {
            let arguments = call.arguments.to_string();
            json!({"type": "function_call", "call_id": format!("call_{}", ids()), "name": call.name, "arguments": arguments})
        }));
    }
    if count > 0 {
        response.items = items.into_iter().map(HistoryItem::from).collect();
        let what = if count == 1 { "a call".to_owned() } else { format!("{count} calls") };
        progress(ModelProgress::Notice { text: format!("the model wrote {what} as text; taken as such (provider quirk `text_calls`)") });
    }
}

/// What an answer says last that is complete and makes no call.
fn last_words(response: &ModelResponse) -> Option<String> {
    let is_call =
        |item: &HistoryItem| item.read::<Value>().is_ok_and(|item| item["type"].as_str().is_some_and(|kind| kind.ends_with("_call")));
    let is_settled = response.stop == StopReason::Complete && !response.items.iter().any(is_call);
    response.items.iter().filter_map(outpost_thread::said).next_back().filter(|_| is_settled)
}

/// Marks an answer that is a call that cannot be read, or ends with one: as text it would end the turn with nothing done.
///
/// An answer may also end with such JSON because the user wanted to see it. Nothing in it tells the two apart, so that both are asked about
/// once, and fail the turn if the next answer ends in the same way: a failed turn whose answer can be read costs less than a task that
/// counts as done and is not. The model is told how to show a call: with words behind it, which make it text here, too.
pub(super) fn mark_unreadable(response: &mut ModelResponse) {
    if last_words(response).is_some_and(|text| is_unreadable(&text) || ends_unread(&text)) {
        response.stop = StopReason::UnreadableCall;
    }
}

/// Whether a text has the members of a call and nothing before them.
fn is_unreadable(text: &str) -> bool {
    let inner = unwrapped(text);
    inner.starts_with(['{', '[']) && has(inner, "name") && (has(inner, "arguments") || has(inner, "parameters"))
}

fn has(json: &str, member: &str) -> bool {
    json.contains(&format!("\"{member}\""))
}

/// Whether a text ends with a call, whatever stands before: in a fence, or in the tags of a template. In a fence behind words, `parameters`
/// are those of the definition of a tool more often than those of a call.
fn ends_unread(text: &str) -> bool {
    let text = without_tags(text);
    let code = last_fence(text).and_then(code_of_calls).map(str::trim);
    let in_fence = code.is_some_and(|code| code.starts_with(['{', '[']) && has(code, "name") && has(code, "arguments"));
    let begins = ["{", "<parameter", "<arg_key>"];
    in_fence || last_tagged(text).is_some_and(|body| begins.iter().any(|begin| body.contains(begin)))
}

/// What is in the fence that a text ends with. Only the end of a line ends a fence: texts within a call may hold fences of their own. The
/// last one may be open, because generation stops there.
fn last_fence(text: &str) -> Option<&str> {
    let (mut open, mut last, mut next) = (None, None, 0);
    for whole in text.split_inclusive('\n') {
        let (start, line) = (next, whole.trim_end());
        next += whole.len();
        if open.is_none() {
            last = last.filter(|_| line.is_empty());
            open = opening(line).map(|at| start + at);
        }
        if let Some(body) = open.and_then(|from: usize| text.get(from..start + line.len())?.strip_suffix(FENCE)) {
            (open, last) = (None, Some(body));
        }
    }
    open.map(|from| &text[from..]).or(last)
}

/// Where the content of a fence begins that a line opens. One that ends before its line does is a word of the line.
fn opening(line: &str) -> Option<usize> {
    let (before, rest) = line.split_once(FENCE)?;
    let is_whole = !rest.strip_suffix(FENCE).unwrap_or(rest).contains(FENCE);
    is_whole.then_some(before.len() + FENCE.len())
}

/// What stands behind the tag that begins the last line with one, if it is the end of a text.
fn last_tagged(text: &str) -> Option<&str> {
    let begins_line = |start: usize| without_tags(text[..start].rsplit('\n').next().unwrap_or_default()).is_empty();
    let tags = SHAPES.iter().filter(|shape| shape.open != FENCE);
    let found = tags.filter_map(|shape| Some((text.rfind(shape.open).filter(|start| begins_line(*start))?, shape)));
    let (start, shape) = found.max_by_key(|(start, _)| *start)?;
    let body = &text[start + shape.open.len()..];
    let behind = if shape.close.is_empty() { None } else { body.split_once(shape.close) };
    behind.is_none_or(|(_, behind)| without_tags(behind).is_empty()).then_some(body)
}

/// Without the tags or the fence around it.
fn unwrapped(text: &str) -> &str {
    let text = text.trim();
    let tagged = text.strip_prefix("<tool_call>").map(|rest| rest.trim_end().trim_end_matches("</tool_call>"));
    let fenced = || text.strip_prefix("```json").map(|rest| rest.trim_end().trim_end_matches("```"));
    tagged.or_else(fenced).unwrap_or(text).trim()
}

/// Where calls in text are not read: says how they would be, and marks an answer that ends with one. Nothing of it was done, and the model
/// waits for a result.
pub(super) fn point_out(response: &mut ModelResponse, tools: &[ToolSpec], progress: OnProgress<'_>) {
    let Some(reading) = last_words(response).and_then(|text| Reading::of_offered(&text, tools)) else { return };
    progress(ModelProgress::Notice {
        text: "the model wrote a call as text, which was not run; `quirks = [\"text_calls\"]` in the entry of its provider \
               (`model_providers`) takes such calls"
            .to_owned(),
    });
    if reading.ends_with_call {
        response.stop = StopReason::TextCall;
    }
}

impl Reading {
    /// Nothing if there is no call in the text.
    fn of(text: &str, tools: &[ToolSpec]) -> Option<Self> {
        let of_none = || unknown(text).map(|call| Self { rest: String::new(), calls: vec![call], ends_with_call: true });
        Self::of_offered(text, tools).or_else(of_none)
    }

    /// Nothing if there is no call of a tool that there is.
    fn of_offered(text: &str, tools: &[ToolSpec]) -> Option<Self> {
        if let Some(calls) = calls_in_json(text, tools).or_else(|| after_name(text, tools)) {
            return Some(Self { rest: String::new(), calls, ends_with_call: true });
        }
        let mut reading = Self::default();
        let mut rest = text;
        while !rest.is_empty() {
            let Some(found) = SHAPES.iter().filter_map(|shape| Found::first(rest, shape)).min_by_key(|found| found.start) else { break };
            let before = &rest[..found.start];
            reading.rest.push_str(before);
            let calls = (found.shape.read)(&rest[found.body.clone()], tools);
            reading.ends_with_call = calls.is_some();
            match calls {
                Some(calls) => reading.calls.extend(calls),
                None => reading.rest.push_str(&rest[found.start..found.end]),
            }
            rest = &rest[found.end..];
        }
        reading.ends_with_call &= without_tags(rest).is_empty();
        reading.rest.push_str(rest);
        reading.rest = without_tags(&reading.rest).to_owned();
        (!reading.calls.is_empty()).then_some(reading)
    }
}

/// How templates mark a call.
struct Shape {
    open: &'static str,
    close: &'static str,
    read: fn(&str, &[ToolSpec]) -> Option<Vec<Call>>,
}

const FENCE: &str = "```";

const SHAPES: [Shape; 12] = [
    Shape { open: "<tool_call>", close: "</tool_call>", read: tagged },
    Shape { open: "<tools>", close: "</tools>", read: calls_in_json },
    Shape { open: "<|tool_call>", close: "<tool_call|>", read: bare_keys },
    Shape { open: "<|python_tag|>", close: "<|eom_id|>", read: calls_in_json },
    Shape { open: "<|python_start|>", close: "<|python_end|>", read: calls_in_json },
    Shape { open: "<｜tool▁calls▁begin｜>", close: "<｜tool▁calls▁end｜>", read: separated },
    Shape { open: "<invoke name=\"", close: "</invoke>", read: invoked },
    Shape { open: "<function=", close: "</function>", read: after_function },
    Shape { open: "<function_call>", close: "</function_call>", read: calls_in_json },
    Shape { open: FENCE, close: FENCE, read: fenced },
    Shape { open: "[TOOL_CALLS]", close: "", read: bracketed },
    Shape { open: "to=functions.", close: "<|call|>", read: channelled },
];

/// What templates put around calls, and what is left when those are taken out.
const AROUND: [&str; 10] = [
    "<tool_call>",
    "</tool_call>",
    "<function_calls>",
    "</function_calls>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|call|>",
    "<|start|>assistant",
    "<|channel|>commentary",
    "<｜end▁of▁sentence｜>",
];

/// Without what stands around calls at its end.
fn without_tags(text: &str) -> &str {
    let mut text = text.trim();
    while let Some(rest) = AROUND.iter().find_map(|tag| text.strip_suffix(tag)) {
        text = rest.trim_end();
    }
    // The same, where the server has taken the marks of the channel away.
    if text == "commentary" { "" } else { text }
}

/// One place in a text that looks like a call.
struct Found {
    shape: &'static Shape,
    start: usize,
    body: std::ops::Range<usize>,
    end: usize,
}

impl Found {
    fn first(text: &str, shape: &'static Shape) -> Option<Self> {
        let start = text.find(shape.open)?;
        let from = start + shape.open.len();
        // The last end is often missing: generation stops there.
        let close = if shape.close.is_empty() { None } else { text[from..].find(shape.close).map(|at| from + at) };
        let until = close.unwrap_or(text.len());
        Some(Self { shape, start, body: from..until, end: close.map_or(text.len(), |close| close + shape.close.len()) })
    }
}

/// One JSON value after the other, each of them a call or a list of calls.
fn calls_in_json(text: &str, tools: &[ToolSpec]) -> Option<Vec<Call>> {
    let text = text.trim();
    if !text.starts_with(['{', '[']) {
        return None;
    }
    let values = |text: &str| serde_json::Deserializer::from_str(text).into_iter::<Value>().collect::<Result<Vec<_>, _>>().ok();
    let values = values(text).or_else(|| values(&with_escapes(text)))?;
    let mut calls = Vec::new();
    for value in values {
        match value {
            Value::Array(list) => list.iter().try_for_each(|value| call(value, tools).map(|call| calls.push(call)))?,
            value => calls.push(call(&value, tools)?),
        }
    }
    (!calls.is_empty()).then_some(calls)
}

/// An answer that is nothing but a call of a tool that there is not. As a call it is answered with the tools that there are; as text it
/// would end the turn with nothing done.
fn unknown(text: &str) -> Option<Call> {
    let inner = unwrapped(text);
    let read = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
    let object = read(inner).or_else(|| read(&with_escapes(inner)))?;
    let name = object.get("name")?.as_str()?;
    let arguments = object.get("arguments").or_else(|| object.get("parameters")).filter(|arguments| arguments.is_object())?;
    // Small models put files, commands and the names of tasks there.
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-. /".contains(c);
    if object.len() != 2 || !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(is_name) {
        return None;
    }
    // In the alphabet and the length that every API takes.
    let name = name.chars().take(64).map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    Some(Call { name, arguments: arguments.clone() })
}

/// A call as an object: its name, and its arguments as an object or as text that holds one.
fn call(value: &Value, tools: &[ToolSpec]) -> Option<Call> {
    let object = match value.get("function") {
        Some(function @ Value::Object(_)) => function.as_object()?,
        _ => value.as_object()?,
    };
    let member = |names: &[&str]| names.iter().find_map(|name| object.get(*name));
    let tool = offered(member(&["name", "tool", "tool_name"])?.as_str()?, tools)?;
    let arguments = match member(&["arguments", "parameters", "args", "input"])? {
        arguments @ Value::Object(_) => arguments.clone(),
        Value::String(text) => serde_json::from_str(text).ok().filter(Value::is_object)?,
        _ => return None,
    };
    Some(Call { name: tool.name.clone(), arguments: without_schema(arguments, tool) })
}

/// Small models copy words of the schema into the arguments. None of them can be an argument that was misspelled.
fn without_schema(mut arguments: Value, tool: &ToolSpec) -> Value {
    const WORDS: [&str; 4] = ["required", "type", "properties", "additionalProperties"];
    let is_argument = |name: &str| matches!(&tool.input, ToolInput::Object(schema) if schema["properties"].get(name).is_some());
    if let Some(arguments) = arguments.as_object_mut() {
        arguments.retain(|name, _| !WORDS.contains(&name.as_str()) || is_argument(name));
    }
    arguments
}

fn offered<'t>(name: &str, tools: &'t [ToolSpec]) -> Option<&'t ToolSpec> {
    let name = name.trim().trim_start_matches("functions.");
    tools.iter().find(|tool| tool.name == name)
}

/// Line ends and tabs within strings, which models write as they are, as JSON wants them.
fn with_escapes(text: &str) -> String {
    let (mut escaped, mut inside, mut after_backslash) = (String::with_capacity(text.len()), false, false);
    for c in text.chars() {
        match c {
            '\n' if inside => escaped.push_str("\\n"),
            '\r' if inside => escaped.push_str("\\r"),
            '\t' if inside => escaped.push_str("\\t"),
            c => escaped.push(c),
        }
        inside ^= c == '"' && !after_backslash;
        after_backslash = c == '\\' && !after_backslash;
    }
    escaped
}

fn fenced(body: &str, tools: &[ToolSpec]) -> Option<Vec<Call>> {
    calls_in_json(code_of_calls(body)?, tools)
}

/// What is in a fence, whose first line names a language, if calls are written in that.
fn code_of_calls(body: &str) -> Option<&str> {
    let (language, code) = body.split_once('\n').unwrap_or(("", body));
    match language.trim() {
        "" | "json" | "jsonc" | "tool_call" | "tool_code" | "tool" | "function_call" => Some(code),
        language if language.starts_with('{') => Some(body),
        _ => None,
    }
}

/// Between the tags stands JSON, a function with parameters in tags of their own, or a name with keys and values in tags.
fn tagged(body: &str, tools: &[ToolSpec]) -> Option<Vec<Call>> {
    let body = body.trim();
    if let Some(function) = body.strip_prefix("<function=") {
        return after_function(function.split("</function>").next().unwrap_or(function), tools);
    }
    if let Some(calls) = calls_in_json(body, tools) {
        return Some(calls);
    }
    let (name, pairs) = body.split_once("<arg_key>").map_or((body, ""), |(name, _)| (name, &body[name.len()..]));
    let tool = offered(name, tools)?;
    let mut arguments = Map::new();
    for pair in pairs.split("<arg_key>").skip(1) {
        let (key, value) = pair.split_once("</arg_key>")?;
        let value = value.split_once("<arg_value>")?.1.split("</arg_value>").next()?;
        arguments.insert(key.trim().to_owned(), typed(tool, key.trim(), value));
    }
    Some(vec![Call { name: tool.name.clone(), arguments: Value::Object(arguments) }])
}

/// `NAME>` and then `<parameter=KEY>VALUE</parameter>`, any number of times, or an object.
fn after_function(body: &str, tools: &[ToolSpec]) -> Option<Vec<Call>> {
    let (name, parameters) = body.split_once('>')?;
    if parameters.trim_start().starts_with('{') {
        return named(name, parameters, tools);
    }
    let tool = offered(name, tools)?;
    let mut arguments = Map::new();
    for parameter in parameters.split("<parameter=").skip(1) {
        let (key, value) = parameter.split_once('>')?;
        arguments.insert(key.trim().to_owned(), typed(tool, key.trim(), parameter_value(value)));
    }
    Some(vec![Call { name: tool.name.clone(), arguments: Value::Object(arguments) }])
}

/// What stands before the end of a parameter. The template puts a value on lines of its own.
fn parameter_value(text: &str) -> &str {
    let value = text.split_once("</parameter>").map_or(text, |(value, _)| value);
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}

/// `NAME">` and then `<parameter name="KEY">VALUE</parameter>`, any number of times.
fn invoked(body: &str, tools: &[ToolSpec]) -> Option<Vec<Call>> {
    let (name, parameters) = body.split_once("\">")?;
    let tool = offered(name, tools)?;
    let mut arguments = Map::new();
    for parameter in parameters.split("<parameter name=\"").skip(1) {
        let (key, value) = parameter.split_once("\">")?;
        arguments.insert(key.to_owned(), typed(tool, key, parameter_value(value)));
    }
    Some(vec![Call { name: tool.name.clone(), arguments: Value::Object(arguments) }])
}

/// The name of a tool on a line of its own, and its arguments as an object: nothing marks it, so that nothing else may be said.
fn after_name(text: &str, tools: &[ToolSpec]) -> Option<Vec<Call>> {
    let (name, arguments) = text.trim().split_once('\n')?;
    named(name, arguments, tools)
}

/// DeepSeek's calls, each between marks of its own: `NAME｜sep｜{…}`, or `function｜sep｜NAME` and a fence.
fn separated(body: &str, tools: &[ToolSpec]) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    for part in body.split("<｜tool▁call▁begin｜>").skip(1) {
        let (head, rest) = part.split("<｜tool▁call▁end｜>").next()?.split_once("<｜tool▁sep｜>")?;
        let (name, arguments) = if head.trim() == "function" { rest.trim_start().split_once('\n')? } else { (head, rest) };
        let arguments = arguments.trim().trim_start_matches("```json").trim_start_matches("```").trim_end_matches("```");
        calls.extend(named(name, arguments, tools)?);
    }
    (!calls.is_empty()).then_some(calls)
}

/// Gemma's calls: `call:NAME{KEY:VALUE,…}`, where texts stand between marks of their own and nothing is nested.
fn bare_keys(body: &str, tools: &[ToolSpec]) -> Option<Vec<Call>> {
    const QUOTE: &str = "<|\"|>";
    let (name, arguments) = body.trim().strip_prefix("call:")?.split_once('{')?;
    let tool = offered(name, tools)?;
    let mut rest = arguments.trim_end().strip_suffix('}')?.trim();
    let mut read = Map::new();
    while !rest.is_empty() {
        let (key, value) = rest.split_once(':')?;
        let (value, after) = match value.strip_prefix(QUOTE) {
            Some(text) => text.split_once(QUOTE).map(|(text, after)| (Value::from(text), after))?,
            None => {
                let (word, _) = value.split_once(',').unwrap_or((value, ""));
                (serde_json::from_str(word.trim()).ok()?, &value[word.len()..])
            }
        };
        read.insert(key.trim().to_owned(), value);
        rest = after.trim_start().trim_start_matches(',').trim_start();
    }
    Some(vec![Call { name: tool.name.clone(), arguments: Value::Object(read) }])
}

/// A list of calls, or `NAME[ARGS]{…}`.
fn bracketed(body: &str, tools: &[ToolSpec]) -> Option<Vec<Call>> {
    let Some((name, arguments)) = body.split_once("[ARGS]") else { return calls_in_json(body, tools) };
    named(name, arguments, tools)
}

/// `NAME … <|message|>{…}`, or `NAME json{…}` where the server has taken the marks away.
fn channelled(body: &str, tools: &[ToolSpec]) -> Option<Vec<Call>> {
    let name = body.split(|c: char| c.is_whitespace() || c == '<').next()?;
    let unmarked = || body[name.len()..].trim_start().trim_start_matches("json");
    named(name, body.split_once("<|message|>").map_or_else(unmarked, |(_, arguments)| arguments), tools)
}

fn named(name: &str, arguments: &str, tools: &[ToolSpec]) -> Option<Vec<Call>> {
    let tool = offered(name, tools)?;
    let arguments = arguments.trim();
    let read = |text: &str| serde_json::from_str::<Value>(text).ok().filter(Value::is_object);
    let arguments = read(arguments).or_else(|| read(&with_escapes(arguments)))?;
    Some(vec![Call { name: tool.name.clone(), arguments }])
}

/// A value that came as text, as the tool wants it.
fn typed(tool: &ToolSpec, key: &str, text: &str) -> Value {
    let kind = match &tool.input {
        ToolInput::Object(schema) => schema["properties"][key]["type"].as_str().unwrap_or("string"),
        ToolInput::Text { .. } => "string",
    };
    match kind {
        "string" => text.into(),
        _ => serde_json::from_str(text.trim()).unwrap_or_else(|_| text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Vec<ToolSpec> {
        let schema = json!({"type": "object", "properties": {"cmd": {"type": "string"}, "tty": {"type": "boolean"}}});
        let tool = |name: &str| ToolSpec { name: name.into(), description: String::new(), input: ToolInput::Object(schema.clone()) };
        vec![tool("exec_command"), tool("list_agents")]
    }

    fn read(text: &str) -> Option<Reading> {
        Reading::of(text, &tools())
    }

    /// An answer of a model that is known to write its calls as text, as a public issue shows it.
    #[derive(serde::Deserialize)]
    struct Answer {
        model: String,
        shape: String,
        text: String,
        /// What it says besides the call.
        #[serde(default)]
        says: String,
    }

    fn answers() -> Vec<Answer> {
        serde_json::from_str(include_str!("../../../../fixtures/answers.json")).unwrap()
    }

    #[test]
    fn every_known_shape_is_a_call() {
        for Answer { model, shape, text, says } in answers() {
            let reading = read(&text).unwrap_or_else(|| panic!("{model}, {shape}: {text}"));
            let call = Call { name: "exec_command".into(), arguments: json!({"cmd": "echo done > made.txt"}) };
            assert_eq!((reading.calls, reading.rest), (vec![call], says), "{model}, {shape}: {text}");
            assert!(reading.ends_with_call, "{model}, {shape}");
        }
    }

    #[test]
    fn it_is_known_whether_something_is_said_behind_a_call() {
        let call = "<tool_call>{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"ls\"}}</tool_call>";
        assert!(read(&format!("First: {call}\n")).unwrap().ends_with_call);
        assert!(!read(&format!("{call}\nis how it is called.")).unwrap().ends_with_call);
        assert!(!read(&format!("{call}\n```sh\nls\n```")).unwrap().ends_with_call);
    }

    #[test]
    fn an_answer_that_is_only_a_call_of_no_tool_is_one_all_the_same() {
        for text in [
            "```json\n{\"name\": \"fly\", \"arguments\": {\"to\": \"x\"}}\n```",
            "<tool_call>{\"name\": \"fly\", \"arguments\": {\"to\": \"x\"}}</tool_call>",
        ] {
            let reading = read(text).unwrap();
            assert_eq!(reading.calls, [Call { name: "fly".into(), arguments: json!({"to": "x"}) }], "{text}");
        }
        // As Qwen2.5-Coder 0.5B wrote it.
        let named = read("{\"name\": \"list.txt\", \"arguments\": {\"cmd\": \"wc -l <list.txt>\"}}").unwrap();
        assert_eq!(named.calls[0].name, "list_txt");
    }

    #[test]
    fn a_call_that_cannot_be_read_is_told_from_an_answer() {
        for text in [
            "{\"name\": \"exec_command\", \"arguments\": {\n  \"cmd\": \"sh -c 'echo \" + \"\\\"add.sh\\\"\" + \"'\"\n}}",
            "{\"name\": \"apply_patch\", \"arguments\": {\"input\": \"x\"}, \"required\": [\"input\"], \"type\": \"object\"}}",
            "```json\n{\"name\": \"Do it\", \"arguments\": {}}\n```",
            "<tool_call>\n{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"ls\"\n</tool_call>",
        ] {
            assert!(read(text).is_none() && is_unreadable(text), "{text}");
        }
        for text in ["done", "{\"name\": \"x\"}", "Call it so: {\"name\": \"x\", \"arguments\": {}}", "```sh\nls\n```"] {
            assert!(!is_unreadable(text), "{text}");
        }
    }

    #[test]
    fn a_call_that_was_not_read_at_the_end_of_an_answer_is_told_from_one_that_is_shown() {
        let fly = "{\"name\": \"fly\", \"arguments\": {\"to\": \"x\"}}";
        let patch = "{\"name\": \"apply_diff\", \"arguments\": {\"input\": \"+```sh\\n+ls\\n+```\\n\"}}";
        for text in [
            format!("I'll delete it:\n```json\n{fly}\n```"),
            format!("I'll delete it:\n\n```\n{fly}\n```\n\n"),
            format!("First:\n```sh\nls\n```\nThen: ```json\n{fly}"),
            format!("I write it:\n```json\n{patch}\n```"),
            format!("I write it:\n```json\n{patch}```"),
            "I run it:\n```json\n{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"sh -c \" + \"ls\"}\n```".into(),
            format!("I'll delete it:\n<tool_call>\n{fly}\n</tool_call><|im_end|>"),
            "I run it:\n<tool_call>\n{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"ls\"\n</tool_call>".into(),
            "So:\n<tool_call>\n<function=fly>\n<parameter=to>\nx\n</parameter>\n</function>\n</tool_call>".into(),
            "So:\n<tool_call>fly\n<arg_key>to</arg_key>\n<arg_value>x</arg_value>\n</tool_call>".into(),
            "So.\n<|channel|>commentary to=functions.fly <|constrain|>json<|message|>{\"to\": \"x\"}<|call|>".into(),
        ] {
            assert!(read(&text).is_none() && ends_unread(&text), "{text}");
        }
        for text in [
            format!("Like this:\n```json\n{fly}\n```\nThat is all."),
            format!("Like this:\n```json\n{fly}\n```\nand then\n```sh\nls\n```"),
            format!("Use ```{fly}``` and then ```fly```."),
            format!("Like this:\n<tool_call>\n{fly}\n</tool_call>\nThat is all."),
            format!("Like this:\n```xml\n<tool_call>\n{fly}\n</tool_call>\n```"),
            format!("It is {fly}"),
            format!("A program:\n```python\ncall = {fly}\n```"),
            "The definition:\n```json\n{\"name\": \"fly\", \"parameters\": {\"type\": \"object\"}}\n```".into(),
            "The settings:\n```json\n{\"name\": \"web\"}\n```".into(),
        ] {
            assert!(read(&text).is_none() && !ends_unread(&text), "{text}");
        }
    }

    #[test]
    fn words_of_the_schema_are_no_arguments() {
        let reading = read("{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"ls\", \"required\": [\"cmd\"], \"env\": 1}}").unwrap();
        assert_eq!(reading.calls[0].arguments, json!({"cmd": "ls", "env": 1}), "what may be misspelled stays, and is refused");
    }

    #[test]
    fn what_is_said_besides_stays() {
        let call = "```json\n{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"ls\"}}\n```";
        let reading = read(&format!("First:\n{call}\nand then\n{call}\n")).unwrap();
        assert_eq!((reading.rest.as_str(), reading.calls.len()), ("First:\n\nand then", 2));
        let lines = read("{\"name\": \"exec_command\", \"arguments\": {\"cmd\": \"cat <<E\nx\nE\"}}").unwrap();
        assert_eq!(lines.calls[0].arguments["cmd"], "cat <<E\nx\nE");
        let typed = read("<function=exec_command><parameter=cmd>ls</parameter><parameter=tty>true</parameter></function>").unwrap();
        assert_eq!(typed.calls[0].arguments, json!({"cmd": "ls", "tty": true}));
    }

    #[test]
    fn text_that_only_looks_like_a_call_stays_text() {
        for text in [
            "Use {\"name\": \"exec_command\"}.",
            "Like this:\n```json\n{\"name\": \"fly\", \"arguments\": {}}\n```\nit flies.",
            "```json\n{\"name\": \"exec_command\"}\n```",
            "```sh\nls\n```",
            "```json\n{\"version\": 1}\n```",
            "<tool_call>nothing</tool_call>",
            "The file holds `<function=` and ends.",
        ] {
            assert!(read(text).is_none() && !is_unreadable(text) && !ends_unread(text), "{text}");
        }
        // What has the members of a call is not taken for one, either: the model is asked to mend it.
        for text in ["{\"name\": \"fly\", \"arguments\": {}, \"version\": 2}", "{\"name\": \"Ada Lovelace\", \"arguments\": {}}"] {
            assert!(read(text).is_none() && is_unreadable(text), "{text}");
        }
    }
}
