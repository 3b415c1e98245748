//! Calls and their outputs, as the APIs of models insist on them: every call has exactly one output, every output follows its
//! call, nothing but outputs stands between them, and no two calls share an id.
//!
//! A thread may be interrupted, killed, cut, compacted, reverted or imported at any place, so its journal promises none of this.
//! Here it is made true, item by item: what was already added is never changed.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::call::{CallOutcome, CallRequest};
use crate::generated_image::GeneratedImage;
use crate::id::{CallId, Ordinal};
use crate::raw::Raw;

/// APIs refuse longer names of tools, and longer ids of calls.
const LONGEST_NAME: usize = 64;
const LONGEST_ID: usize = 64;

/// Model items in an order that APIs accept.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Pairs {
    items: Arc<Vec<Raw>>,
    /// Which entry each item comes from.
    from: Vec<Ordinal>,
    /// Calls among the items that have no output there yet. One of them at least has none at all.
    open: Vec<OpenCall>,
    /// What came while calls were open: nothing stands between a call and its output.
    behind: Vec<(Ordinal, Raw)>,
    /// The ids of all calls.
    ids: HashSet<String>,
    /// How many items only the provider can read that made them, or are named by it.
    private: usize,
}

#[derive(Debug, Clone, PartialEq)]
struct OpenCall {
    /// In the journal.
    id: CallId,
    /// In the item; another one if the journal's was taken or is too long.
    shown: String,
    ordinal: Ordinal,
    kind: CallKind,
    output: Option<(Ordinal, Raw)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallKind {
    Function,
    Custom,
    LocalShell,
    ToolSearch,
}

impl CallKind {
    fn of(kind: &str) -> Option<Self> {
        match kind {
            "function_call" => Some(Self::Function),
            "custom_tool_call" => Some(Self::Custom),
            "local_shell_call" => Some(Self::LocalShell),
            "tool_search_call" => Some(Self::ToolSearch),
            _ => None,
        }
    }

    /// The type of the item that answers such a call.
    const fn output_type(self) -> &'static str {
        match self {
            Self::Function | Self::LocalShell => "function_call_output",
            Self::Custom => "custom_tool_call_output",
            Self::ToolSearch => "tool_search_output",
        }
    }

    /// An output that is made here.
    fn output(self, call: &str, text: &str) -> Raw {
        Raw::from(match self {
            Self::ToolSearch => json!({
                "type": self.output_type(), "call_id": call, "status": "incomplete", "execution": "client", "tools": [],
            }),
            _ => json!({"type": self.output_type(), "call_id": call, "output": text}),
        })
    }
}

fn is_output(kind: &str) -> bool {
    matches!(kind, "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" | "tool_search_output")
}

/// What must be known of an item to find its place.
#[derive(Deserialize)]
struct Shape<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    call_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    execution: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    encrypted_content: Option<Cow<'a, str>>,
}

impl<'a> Shape<'a> {
    fn of(item: &'a Raw) -> Option<Self> {
        serde_json::from_str(item.get()).ok().or_else(|| Self::of_stranger(item))
    }

    /// An item whose members have other types than those that we know. What is no object at all is no item.
    fn of_stranger(item: &Raw) -> Option<Self> {
        let item: serde_json::Map<String, Value> = item.read().ok()?;
        let text = |name: &str| item.get(name).and_then(Value::as_str).map(|text| Cow::Owned(text.to_owned()));
        Some(Self {
            kind: text("type").unwrap_or_default(),
            call_id: text("call_id"),
            name: text("name"),
            execution: text("execution"),
            encrypted_content: text("encrypted_content"),
        })
    }

    fn call(&self) -> Option<CallKind> {
        let kind = CallKind::of(&self.kind)?;
        // A search that the provider itself makes has no output of ours.
        let is_theirs = kind == CallKind::ToolSearch && (self.call_id.is_none() || self.execution.as_deref() == Some("server"));
        (!is_theirs).then_some(kind)
    }

    fn is_output(&self) -> bool {
        is_output(&self.kind) && !(self.kind == "tool_search_output" && self.call_id.is_none())
    }

    fn call_id(&self) -> &str {
        self.call_id.as_deref().unwrap_or_default()
    }

    /// Whether only the provider that made it can read it: its thoughts, its own tools, and whatever we do not know.
    fn is_private(&self) -> bool {
        // A message may go without saying that it is one. A picture can be shown to every model.
        !matches!(self.kind.as_ref(), "" | "message" | "image_generation_call") && self.call().is_none() && !self.is_output()
    }

    /// A thought that travels with the history.
    fn is_sealed(&self) -> bool {
        self.kind == "reasoning" && self.encrypted_content.is_some()
    }
}

impl Pairs {
    pub(crate) fn items(&self) -> &[Raw] {
        &self.items
    }

    pub(crate) fn shared(&self) -> Arc<Vec<Raw>> {
        self.items.clone()
    }

    pub(crate) fn from(&self) -> &[Ordinal] {
        &self.from
    }

    pub(crate) fn has_open_calls(&self) -> bool {
        !self.open.is_empty()
    }

    /// Adds what stands in the history by itself: messages, and whatever was given as a history. An output without its call is left
    /// out; a call whose output is not there when something else follows gets one that says so.
    pub(crate) fn add(&mut self, items: impl IntoIterator<Item = (Ordinal, Raw)>) {
        let items: Vec<(Ordinal, Raw)> = items.into_iter().collect();
        let mut outputs: HashMap<String, usize> = HashMap::new();
        let of_output = |item: &Raw| Shape::of(item).filter(Shape::is_output).map(|shape| shape.call_id().to_owned());
        for id in items.iter().filter_map(|(_, item)| of_output(item)) {
            *outputs.entry(id).or_default() += 1;
        }
        let mut own = HashSet::new();
        for (ordinal, item) in items {
            let Some(shape) = Shape::of(&item) else { continue };
            if shape.is_output() {
                let id = shape.call_id().to_owned();
                outputs.entry(id.clone()).and_modify(|count| *count -= 1);
                self.answer_call(&CallId(id), ordinal, std::slice::from_ref(&item));
            } else if shape.is_private() && !shape.is_sealed() {
                // Its provider is unknown, and every other provider would refuse it.
            } else if let Some(kind) = shape.call() {
                own.insert(self.open_call(ordinal, &item, &shape, kind, None));
            } else {
                // A call that runs right now is waited for; one of this history has ended, whatever became of it.
                self.stop(|call| own.contains(&call.shown) && outputs.get(call.id.as_str()).is_none_or(|count| *count == 0));
                let item = if GeneratedImage::of(&item).is_some() { GeneratedImage::nameless(&item) } else { item };
                self.add_aside(ordinal, sound_message(&item).unwrap_or(item));
            }
        }
    }

    /// Adds what belongs to no answer: it waits while calls are open.
    fn add_aside(&mut self, ordinal: Ordinal, item: Raw) {
        if self.open.is_empty() {
            self.push(ordinal, item);
        } else {
            self.behind.push((ordinal, item));
        }
    }

    /// Adds an answer of the model. Its calls wait for their outputs.
    pub(crate) fn answer(&mut self, ordinal: Ordinal, items: &[Raw], calls: &[CallRequest]) {
        for (index, item) in items.iter().enumerate() {
            let Some(shape) = Shape::of(item) else { continue };
            let asked = calls.iter().find(|call| call.item == index).map(|call| &call.call);
            match shape.call() {
                Some(kind) => drop(self.open_call(ordinal, item, &shape, kind, asked)),
                None if shape.is_output() => self.answer_call(&CallId(shape.call_id().to_owned()), ordinal, std::slice::from_ref(item)),
                None => self.push(ordinal, item.clone()),
            }
        }
    }

    /// A call has ended. The first output among the items is its own; messages stand behind the outputs of all open calls.
    pub(crate) fn end_call(&mut self, call: &CallId, ordinal: Ordinal, items: &[Raw], outcome: CallOutcome) {
        let is_open = self.open.iter().any(|open| open.id == *call && open.output.is_none());
        if is_open && !items.iter().any(|item| Shape::of(item).is_some_and(|shape| shape.is_output())) {
            let text = match outcome {
                CallOutcome::Completed => "This call has ended and returned nothing.",
                _ => CALL_STOPPED,
            };
            self.stop_with(text, |open| open.id == *call);
        }
        // An output without a call is of no use to the model: it belongs to a command of the user's, or to one that outlived its turn.
        self.answer_call(call, ordinal, items);
    }

    fn answer_call(&mut self, call: &CallId, ordinal: Ordinal, items: &[Raw]) {
        for item in items {
            let Some(shape) = Shape::of(item) else { continue };
            if !shape.is_output() {
                self.add_aside(ordinal, item.clone());
            } else if let Some(open) = self.open.iter_mut().find(|open| open.id == *call && open.output.is_none()) {
                let fits = shape.kind == open.kind.output_type() && shape.call_id() == open.shown;
                open.output = Some((ordinal, if fits { item.clone() } else { fitted(item, open) }));
            }
        }
        self.close();
    }

    /// Adds a call; the id under which it is shown.
    fn open_call(&mut self, ordinal: Ordinal, item: &Raw, shape: &Shape<'_>, kind: CallKind, asked: Option<&CallId>) -> String {
        let id = asked.cloned().unwrap_or_else(|| CallId(shape.call_id().to_owned()));
        let shown = self.free_id(shape.call_id());
        let name = match kind {
            CallKind::Function | CallKind::Custom => tool_name(shape.name.as_deref().unwrap_or_default()),
            CallKind::LocalShell | CallKind::ToolSearch => Cow::Borrowed(shape.name.as_deref().unwrap_or_default()),
        };
        let is_sound = shown == shape.call_id() && shape.name.as_deref().unwrap_or_default() == name && has_input(item, kind);
        let item = if is_sound { item.clone() } else { sound_call(item, kind, &shown, &name) };
        self.ids.insert(shown.clone());
        self.open.push(OpenCall { id, shown: shown.clone(), ordinal, kind, output: None });
        self.push(ordinal, item);
        shown
    }

    /// An id for a call that no other one has.
    fn free_id(&self, id: &str) -> String {
        if !id.is_empty() && id.len() <= LONGEST_ID && !self.ids.contains(id) {
            return id.to_owned();
        }
        let stem = if id.is_empty() { "call" } else { id };
        let end = (0..=stem.len().min(LONGEST_ID - 8)).rev().find(|end| stem.is_char_boundary(*end)).unwrap_or(0);
        let numbered = (2_u32..).map(|number| format!("{}_{number}", &stem[..end]));
        numbered.into_iter().find(|id| !self.ids.contains(id)).unwrap_or_default()
    }

    /// Ends every open call: what has no output is told as stopped.
    pub(crate) fn settle(&mut self) {
        self.stop(|_| true);
    }

    fn stop(&mut self, which: impl Fn(&OpenCall) -> bool) {
        self.stop_with(CALL_STOPPED, which);
    }

    fn stop_with(&mut self, text: &str, which: impl Fn(&OpenCall) -> bool) {
        for open in self.open.iter_mut().filter(|open| open.output.is_none()) {
            if which(open) {
                open.output = Some((open.ordinal, open.kind.output(&open.shown, text)));
            }
        }
        self.close();
    }

    /// Once all open calls have their outputs, these follow, in the order of the calls, and then whatever waited.
    fn close(&mut self) {
        if self.open.iter().any(|open| open.output.is_none()) {
            return;
        }
        for (ordinal, item) in std::mem::take(&mut self.open).into_iter().filter_map(|open| open.output) {
            self.push(ordinal, item);
        }
        for (ordinal, item) in std::mem::take(&mut self.behind) {
            self.push(ordinal, item);
        }
    }

    fn push(&mut self, ordinal: Ordinal, item: Raw) {
        self.private += usize::from(is_private(&item) || is_named_image(&item));
        Arc::make_mut(&mut self.items).push(item);
        self.from.push(ordinal);
    }

    /// Leaves out what only the provider can read that made it, and the names of its pictures; whether there was anything.
    pub(crate) fn forget_private(&mut self) -> bool {
        if self.private == 0 {
            return false;
        }
        let items = std::mem::take(Arc::make_mut(&mut self.items));
        let from = std::mem::take(&mut self.from);
        let nameless = |item: Raw| if is_named_image(&item) { GeneratedImage::nameless(&item) } else { item };
        let readable = from.into_iter().zip(items).filter(|(_, item)| !is_private(item));
        let (from, items) = readable.map(|(from, item)| (from, nameless(item))).unzip();
        (self.from, self.items, self.private) = (from, Arc::new(items), 0);
        true
    }
}

fn is_private(item: &Raw) -> bool {
    Shape::of(item).is_some_and(|shape| shape.is_private())
}

fn is_named_image(item: &Raw) -> bool {
    GeneratedImage::of(item).is_some_and(|image| image.id.is_some())
}

/// What the model is told of a call without an output.
pub const CALL_STOPPED: &str = "This call was stopped before it ended. It may have done a part of its work.";

/// An output as its call needs it.
fn fitted(item: &Raw, call: &OpenCall) -> Raw {
    let Ok(Value::Object(mut output)) = item.read::<Value>() else { return call.kind.output(&call.shown, CALL_STOPPED) };
    if call.kind == CallKind::ToolSearch && output.get("type").is_none_or(|kind| kind != "tool_search_output") {
        return call.kind.output(&call.shown, CALL_STOPPED);
    }
    output.insert("type".into(), call.kind.output_type().into());
    output.insert("call_id".into(), call.shown.as_str().into());
    if call.kind != CallKind::ToolSearch && !output.contains_key("output") {
        output.insert("output".into(), "".into());
    }
    Raw::from(Value::Object(output))
}

/// A name that APIs take for a tool, as near to what the model wrote as possible.
fn tool_name(name: &str) -> Cow<'_, str> {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(is_letter) {
        return name.into();
    }
    let sound: String = name.chars().map(|c| if is_letter(c) { c } else { '_' }).take(LONGEST_NAME).collect();
    if sound.is_empty() { "unnamed".into() } else { sound.into() }
}

/// A message whose parts are of the kinds that its role allows, if they were not: what models say has other parts than what they
/// are told.
fn sound_message(item: &Raw) -> Option<Raw> {
    // Nearly all are as they should be, and need not be read.
    let text = item.get();
    let is_model = text.contains("\"assistant\"");
    if !text.contains(if is_model { "\"input_text\"" } else { "\"output_text\"" }) && !text.contains("\"type\":\"text\"") {
        return None;
    }
    let mut message: Value = item.read().ok()?;
    let wanted = if message["role"] == "assistant" { "output_text" } else { "input_text" };
    let parts = message.get_mut("content")?.as_array_mut()?;
    let wrong = |part: &&mut Value| matches!(part["type"].as_str(), Some("input_text" | "output_text" | "text")) && part["type"] != wanted;
    let count = parts.iter_mut().filter(wrong).map(|part| part["type"] = wanted.into()).count();
    (count > 0).then(|| Raw::from(message))
}

/// Whether a call holds its parameters as APIs expect them.
fn has_input(item: &Raw, kind: CallKind) -> bool {
    #[derive(Deserialize)]
    struct Input<'a> {
        #[serde(borrow, default)]
        arguments: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        input: Option<Cow<'a, str>>,
    }
    match (kind, serde_json::from_str::<Input<'_>>(item.get())) {
        (CallKind::LocalShell | CallKind::ToolSearch, _) => true,
        (CallKind::Function, Ok(input)) => input.arguments.is_some(),
        (CallKind::Custom, Ok(input)) => input.input.is_some(),
        (_, Err(_)) => false,
    }
}

/// A call with another id or name, and with parameters if it has none.
fn sound_call(item: &Raw, kind: CallKind, id: &str, name: &str) -> Raw {
    let Ok(Value::Object(mut call)) = item.read::<Value>() else { return item.clone() };
    call.insert("call_id".into(), id.into());
    if !name.is_empty() {
        call.insert("name".into(), name.into());
    }
    let (member, empty) = match kind {
        CallKind::Function => ("arguments", "{}"),
        CallKind::Custom => ("input", ""),
        CallKind::LocalShell | CallKind::ToolSearch => return Raw::from(Value::Object(call)),
    };
    let text = match call.get(member) {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => empty.to_owned(),
        Some(other) => other.to_string(),
    };
    call.insert(member.into(), text.into());
    Raw::from(Value::Object(call))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> Raw {
        Raw::from(json!({"type": "function_call", "call_id": id, "name": "exec_command", "arguments": "{}"}))
    }

    fn output(id: &str, text: &str) -> Raw {
        Raw::from(json!({"type": "function_call_output", "call_id": id, "output": text}))
    }

    fn message(text: &str) -> Raw {
        Raw::from(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}))
    }

    fn asked(ids: &[&str]) -> Vec<CallRequest> {
        (0..).zip(ids).map(|(item, id)| CallRequest { call: CallId((*id).into()), tool: "exec_command".into(), item }).collect()
    }

    /// Each item in a word: `>a` is a call, `<a` its output, `<a!` one that was made here.
    fn shown(pairs: &Pairs) -> String {
        let word = |item: &Raw| {
            let item: Value = item.read().unwrap();
            let id = item["call_id"].as_str().unwrap_or_default();
            match item["type"].as_str().unwrap() {
                kind if kind.ends_with("_output") => {
                    format!("<{id}{}", if item["output"] == CALL_STOPPED || item["status"] == "incomplete" { "!" } else { "" })
                }
                kind if kind.ends_with("_call") => format!(">{id}"),
                "message" => item["content"][0]["text"].as_str().unwrap().to_owned(),
                kind => kind.to_owned(),
            }
        };
        pairs.items().iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_aborted_call_has_an_output_too() {
        let mut pairs = Pairs::default();
        pairs.answer(1, &[call("a"), call("b")], &asked(&["a", "b"]));
        pairs.end_call(&"b".into(), 2, &[output("b", "done")], CallOutcome::Completed);
        pairs.add([(3, message("meanwhile"))]);
        assert_eq!(shown(&pairs), ">a >b", "outputs stand in the order of the calls");
        pairs.end_call(&"a".into(), 4, &[], CallOutcome::Aborted);
        assert_eq!(shown(&pairs), ">a >b <a! <b meanwhile");
        pairs.end_call(&"a".into(), 5, &[output("a", "late"), message("it ended")], CallOutcome::Completed);
        assert_eq!(shown(&pairs), ">a >b <a! <b meanwhile it ended", "a second output is none");
    }

    #[test]
    fn a_given_history_is_made_whole() {
        let mut pairs = Pairs::default();
        let given = [output("z", "of nothing"), call("a"), message("one"), call("b"), output("b", "x"), message("two"), call("c")];
        pairs.add(given.map(|item| (1, item)));
        assert_eq!(shown(&pairs), ">a <a! one >b <b two >c");
        pairs.settle();
        assert_eq!(shown(&pairs), ">a <a! one >b <b two >c <c!");
        assert_eq!(pairs.from().len(), pairs.items().len());
    }

    #[test]
    fn steering_between_a_call_and_its_output_stands_behind_it() {
        let mut pairs = Pairs::default();
        pairs.add([call("a"), message("steering"), output("a", "x"), message("two")].map(|item| (1, item)));
        assert_eq!(shown(&pairs), ">a <a steering two");
    }

    #[test]
    fn no_two_calls_share_an_id() {
        let mut pairs = Pairs::default();
        for ordinal in [1, 3] {
            pairs.answer(ordinal, &[call("a")], &asked(&["a"]));
            pairs.end_call(&"a".into(), ordinal + 1, &[output("a", "x")], CallOutcome::Completed);
        }
        pairs.answer(5, &[call(&"long".repeat(30)), call("")], &asked(&[&"long".repeat(30), ""]));
        pairs.settle();
        let words = shown(&pairs);
        assert!(words.starts_with(">a <a >a_2 <a_2 >longlong"), "{words}");
        assert!(words.ends_with("<call_2!"), "{words}");
        assert!(pairs.ids.iter().all(|id| id.len() <= LONGEST_ID && !id.is_empty()));
    }

    #[test]
    fn an_output_has_the_type_of_its_call() {
        let mut pairs = Pairs::default();
        let custom = Raw::from(json!({"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": "x"}));
        pairs.answer(1, std::slice::from_ref(&custom), &asked(&["a"]));
        pairs.end_call(&"a".into(), 2, &[output("a", "done")], CallOutcome::Completed);
        assert_eq!(pairs.items()[1].read::<Value>().unwrap()["type"], "custom_tool_call_output");
        let search = Raw::from(json!({"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {}}));
        let theirs = Raw::from(json!({"type": "tool_search_call", "call_id": null, "execution": "server", "arguments": {}}));
        pairs.answer(3, &[search, theirs], &[]);
        pairs.settle();
        assert_eq!(shown(&pairs), ">a <a >s > <s!");
        assert_eq!(pairs.items()[4].read::<Value>().unwrap()["type"], "tool_search_output");
    }

    #[test]
    fn what_a_model_wrote_badly_is_made_readable() {
        let mut pairs = Pairs::default();
        pairs.answer(1, &[Raw::from(json!({"type": "function_call", "call_id": "a", "name": "run it!", "arguments": {"x": 1}}))], &[]);
        pairs.settle();
        let item: Value = pairs.items()[0].read().unwrap();
        assert_eq!((&item["name"], &item["arguments"]), (&json!("run_it_"), &json!("{\"x\":1}")));
    }

    #[test]
    fn what_only_its_maker_can_read_can_be_left_out() {
        let mut pairs = Pairs::default();
        let thought = |sealed: Option<&str>| Raw::from(json!({"type": "reasoning", "summary": [], "encrypted_content": sealed}));
        let search = Raw::from(json!({"type": "web_search_call", "id": "ws"}));
        pairs.answer(1, &[thought(None), search.clone(), call("a")], &[CallRequest { call: "a".into(), tool: "x".into(), item: 2 }]);
        pairs.add([(2, message("the word \"reasoning\""))]);
        assert!(pairs.forget_private() && !pairs.forget_private());
        pairs.settle();
        assert_eq!(shown(&pairs), ">a <a! the word \"reasoning\"");
        // Of what is given as a history, only a sealed thought may be meant for the provider that is asked next.
        pairs.add([thought(None), thought(Some("x")), search].map(|item| (3, item)));
        assert_eq!(shown(&pairs), ">a <a! the word \"reasoning\" reasoning");
    }

    #[test]
    fn a_picture_stays_for_another_provider_without_its_name() {
        let image = Raw::from(json!({"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "QUJD"}));
        let nameless = json!({"type": "image_generation_call", "status": "completed", "result": "QUJD"});
        let mut pairs = Pairs::default();
        pairs.answer(1, &[image.clone(), message("here it is")], &[]);
        assert_eq!(pairs.items()[0], image);
        assert!(pairs.forget_private() && !pairs.forget_private());
        pairs.add([(2, image)]);
        let items: Vec<Value> = pairs.items().iter().map(|item| item.read().unwrap()).collect();
        assert_eq!((items.len(), &items[0], &items[2]), (3, &nameless, &nameless));
        assert_eq!(pairs.from(), [1, 1, 2]);
    }

    #[test]
    fn parts_of_messages_fit_their_role() {
        let given =
            |role: &str, kind: &str| json!({"type": "message", "role": role, "content": [{"type": kind, "text": "the \"input_text\""}]});
        for (role, kind, wanted) in [
            ("assistant", "input_text", "output_text"),
            ("assistant", "output_text", "output_text"),
            ("user", "output_text", "input_text"),
            ("developer", "text", "input_text"),
            ("user", "input_text", "input_text"),
        ] {
            let mut pairs = Pairs::default();
            pairs.add([(1, Raw::from(given(role, kind)))]);
            assert_eq!(pairs.items()[0].read::<Value>().unwrap(), given(role, wanted));
        }
    }
}
