//! From what a client says to what a thread is told.

use std::collections::BTreeMap;
use std::fmt;

use outpost_runtime::pictures::{LARGEST_FILE, Picture};
use outpost_thread::Raw;
use outpost_wire::Fault;
use outpost_wire::app::turn::{AdditionalContext, ContextKind, UserInput};
use serde_json::{Value, json};

/// What a client said, as it said it and as the model is told.
#[derive(Debug, Default)]
pub(crate) struct UserMessage {
    pub content: Vec<Raw>,
    /// Only where it is more than the texts of `content`.
    pub items: Vec<Raw>,
}

pub(crate) async fn message(input: Vec<UserInput>, context: Option<BTreeMap<String, AdditionalContext>>) -> Result<UserMessage, Fault> {
    let content = input.iter().filter_map(|part| Raw::of(part).ok()).collect();
    let is_plain = context.as_ref().is_none_or(BTreeMap::is_empty) && input.iter().all(|part| matches!(part, UserInput::Text { .. }));
    if is_plain && !input.is_empty() {
        return Ok(UserMessage { content, items: vec![] });
    }
    let mut items: Vec<Raw> = context.into_iter().flatten().map(|(name, context)| known(&name, context)).collect();
    let mut parts = Vec::new();
    for part in input {
        parts.push(part_of(part).await?);
    }
    if !parts.is_empty() {
        items.push(Raw::from(json!({"type": "message", "role": "user", "content": parts})));
    }
    Ok(UserMessage { content, items })
}

/// What the application knows, the model may believe; what others wrote, it may only read.
fn known(name: &str, context: AdditionalContext) -> Raw {
    let name = context.name.as_deref().unwrap_or(name).replace(['"', '<', '>'], "");
    let (role, tag) = match context.kind {
        ContextKind::Application => ("developer", "application_context"),
        ContextKind::Untrusted => ("user", "untrusted_context"),
    };
    let text = format!("<{tag} name=\"{name}\">\n{}\n</{tag}>", context.value);
    Raw::from(json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}))
}

async fn part_of(part: UserInput) -> Result<Value, Fault> {
    let image = |url: String, detail: Option<String>| json!({"type": "input_image", "image_url": url, "detail": detail.unwrap_or_else(|| "auto".into())});
    Ok(match part {
        UserInput::Text { text, .. } => json!({"type": "input_text", "text": text}),
        UserInput::Image { url: Some(url), detail, .. } => image(fitted(url).await?, detail),
        UserInput::Image { file_id: Some(file), .. } => json!({"type": "input_image", "file_id": file}),
        UserInput::Image { .. } => return Err(Fault::invalid_request("an image needs a `url` or a `fileId`")),
        UserInput::LocalImage { path, detail } => image(file_url(&path).await?, detail),
        UserInput::Audio { url } => json!({"type": "input_text", "text": format!("[audio: {url}]")}),
        UserInput::LocalAudio { path } => json!({"type": "input_text", "text": format!("[audio file: {path}]")}),
        UserInput::Skill { name, path } => json!({"type": "input_text", "text": format!("Use the skill `{name}` ({path}).")}),
        UserInput::Mention { name, path } => json!({"type": "input_text", "text": format!("[{name}]({path})")}),
    })
}

/// An address with a picture that models take; one that holds it is looked at.
async fn fitted(url: String) -> Result<String, Fault> {
    let fitted = tokio::task::spawn_blocking(move || Picture::fitted(&url).map(std::borrow::Cow::into_owned)).await;
    let refuse = |why: &dyn fmt::Display| Fault::invalid_request(format!("the image cannot be used: {why}"));
    fitted.map_err(|error| refuse(&error))?.map_err(|error| refuse(&error))
}

/// A file of this machine as a URL that holds it.
async fn file_url(path: &str) -> Result<String, Fault> {
    let refuse = |why: &dyn fmt::Display| Fault::invalid_request(format!("the image `{path}` cannot be used: {why}"));
    let metadata = tokio::fs::metadata(path).await.map_err(|error| refuse(&error))?;
    if metadata.len() > LARGEST_FILE as u64 {
        return Err(refuse(&format!("it has more than {LARGEST_FILE} bytes")));
    }
    let bytes = tokio::fs::read(path).await.map_err(|error| refuse(&error))?;
    let picture = tokio::task::spawn_blocking(move || Picture::read(bytes)).await.map_err(|error| refuse(&error))?;
    Ok(picture.map_err(|error| refuse(&error))?.address())
}
