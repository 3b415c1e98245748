//! From what is on the command line and on standard input to what the agent is told.

use std::io::{IsTerminal, Read};
use std::path::Path;

use anyhow::{Context, bail};
use outpost_runtime::live::NewInput;
use outpost_runtime::pictures::Picture;
use outpost_thread::Raw;
use serde_json::{Value, json};

use crate::agent_args::ExecOptions;

/// The input of the turn. A resumed thread may go on without one.
pub(super) fn read(options: &ExecOptions, argument: Option<String>, may_be_empty: bool) -> anyhow::Result<Option<NewInput>> {
    let text = text(argument)?;
    let schema = options.output_schema.as_deref().map(schema).transpose()?;
    if text.is_empty() && options.images.is_empty() {
        if may_be_empty {
            return Ok(None);
        }
        bail!("there is no prompt: give one as an argument, or on standard input");
    }
    let mut input = NewInput { output_schema: schema, ..NewInput::default() };
    let mut parts = Vec::new();
    for file in &options.images {
        input.content.push(Raw::from(json!({"type": "localImage", "path": file})));
        parts.push(json!({"type": "input_image", "image_url": picture(file)?}));
    }
    if !text.is_empty() {
        input.content.push(Raw::from(json!({"type": "text", "text": text})));
        parts.push(json!({"type": "input_text", "text": text}));
    }
    if !options.images.is_empty() {
        input.items = vec![Raw::from(json!({"type": "message", "role": "user", "content": parts}))];
    }
    Ok(Some(input))
}

/// An argument, standard input, or one after the other.
fn text(argument: Option<String>) -> anyhow::Result<String> {
    let argument = argument.filter(|text| text != "-").filter(|text| !text.trim().is_empty());
    let mut piped = String::new();
    if !std::io::stdin().is_terminal() {
        std::io::stdin().read_to_string(&mut piped).context("the prompt cannot be read from standard input")?;
    }
    Ok(match (argument, piped.trim().is_empty()) {
        (Some(argument), true) => argument,
        (Some(argument), false) => format!("{argument}\n\n{piped}"),
        (None, true) => String::new(),
        (None, false) => piped,
    })
}

fn schema(file: &Path) -> anyhow::Result<Raw> {
    let text = std::fs::read_to_string(file).with_context(|| format!("the output schema {} cannot be read", file.display()))?;
    let schema: Value = serde_json::from_str(&text).with_context(|| format!("the output schema {} is not valid JSON", file.display()))?;
    if !schema.is_object() {
        bail!("the output schema {} is not a JSON object", file.display());
    }
    Ok(Raw::from(schema))
}

/// A picture as models take it.
fn picture(file: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(file).with_context(|| format!("the picture {} cannot be read", file.display()))?;
    let picture = Picture::read(bytes).with_context(|| format!("the picture {} cannot be shown", file.display()))?;
    Ok(picture.address())
}
