//! What is said: messages of users and of the model, and what it thought.

use outpost_thread::{DamagedRange, GeneratedImage, InputReceived, Raw};
use outpost_wire::app::item::{Item, MissingEntries, Phase};
use serde::Deserialize;
use serde_json::{Value, json};

/// A message as its sender wrote it. Clients expect every part to be whole.
pub(super) fn user_message(input: &InputReceived) -> Item {
    let mut content: Vec<Value> = input.content.iter().filter_map(|part| part.read().ok()).collect();
    if content.is_empty() {
        content = input.items.iter().flat_map(texts).map(|text| json!({"type": "text", "text": text})).collect();
    }
    for part in &mut content {
        if part["type"] == "text" && part["text_elements"].is_null() {
            part["text_elements"] = json!([]);
        }
    }
    Item::UserMessage { id: input.input.to_string(), content, client_id: input.client_key.clone(), by: input.by.clone() }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Said {
    #[serde(rename = "type")]
    kind: String,
    id: Option<String>,
    role: String,
    content: Option<Vec<Part>>,
    summary: Option<Vec<Part>>,
    phase: Option<Phase>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Part {
    text: String,
}

fn texts(item: &Raw) -> Vec<String> {
    item.read::<Said>().ok().and_then(|said| said.content).map(joined_parts).unwrap_or_default()
}

fn joined_parts(parts: Vec<Part>) -> Vec<String> {
    parts.into_iter().map(|part| part.text).collect()
}

/// An item of the model's that is shown as it is: a message, a thought or a picture. It is named by the model's own name for it, if there is one.
pub(super) fn said(item: &Raw, name: impl FnOnce(Option<&str>) -> String) -> Option<Item> {
    if let Some(image) = GeneratedImage::of(item) {
        let id = name(image.id.as_deref().filter(|id| !id.is_empty()));
        return Some(picture(id, image));
    }
    shown(item.read().ok()?, name)
}

/// A picture that is not there yet.
pub(super) fn picture_begun(id: String) -> Item {
    Item::ImageGeneration {
        id,
        status: "in_progress".to_owned(),
        result: String::new(),
        revised_prompt: None,
        saved_path: None,
        transparent_background: None,
        failure: None,
    }
}

fn picture(id: String, image: GeneratedImage) -> Item {
    Item::ImageGeneration {
        id,
        status: image.end().to_owned(),
        result: image.result.unwrap_or_default(),
        revised_prompt: image.revised_prompt,
        saved_path: image.saved_path,
        transparent_background: None,
        failure: None,
    }
}

/// The same while it is being made: nothing is in it yet. One without a name cannot be followed.
pub(super) fn begun(item: &Value, name: impl FnOnce(&str) -> String) -> Option<Item> {
    if let Some(image) = GeneratedImage::of(&Raw::from(item.clone())) {
        let id = name(image.id.as_deref().filter(|id| !id.is_empty())?);
        return Some(picture_begun(id));
    }
    let said: Said = serde_json::from_value(item.clone()).ok()?;
    let id = name(said.id.as_deref().filter(|id| !id.is_empty())?);
    Some(match shown(said, |_| id)? {
        Item::AgentMessage { id, phase, .. } => message(id, String::new(), phase),
        Item::Reasoning { id, .. } => Item::Reasoning { id, summary: vec![], content: vec![] },
        other => other,
    })
}

fn shown(said: Said, name: impl FnOnce(Option<&str>) -> String) -> Option<Item> {
    let id = || name(said.id.as_deref().filter(|id| !id.is_empty()));
    match (said.kind.as_str(), said.role.as_str()) {
        ("message", "assistant") => {
            let text = joined_parts(said.content.unwrap_or_default()).concat();
            Some(message(id(), text, said.phase))
        }
        ("reasoning", _) => Some(Item::Reasoning {
            id: id(),
            summary: joined_parts(said.summary.unwrap_or_default()),
            content: joined_parts(said.content.unwrap_or_default()),
        }),
        _ => None,
    }
}

pub(super) fn message(id: String, text: String, phase: Option<Phase>) -> Item {
    Item::AgentMessage { id, text, phase, memory_citation: None, delivery: None, questions: None, damage: None }
}

/// What stands in the place of entries that cannot be read. It is a message, because every client shows those.
pub(super) fn missing(range: &DamagedRange) -> Item {
    let text = format!("[A part of this thread is missing here: {range}.]");
    let damage = Some(MissingEntries { from: range.from, to: range.to, what: range.what.clone() });
    let id = format!("missing_{}", range.from);
    Item::AgentMessage { id, text, phase: None, memory_citation: None, delivery: None, questions: None, damage }
}

/// The text of what a user said.
pub(super) fn words(input: &InputReceived) -> Option<String> {
    #[derive(Deserialize)]
    struct Part {
        text: String,
    }
    input.content.iter().find_map(|part| part.read::<Part>().ok()).map(|part| part.text)
}

/// The text of what the agent said.
pub(super) fn text(item: &Item) -> Option<&str> {
    if let Item::AgentMessage { text, .. } = item { Some(text) } else { None }
}
