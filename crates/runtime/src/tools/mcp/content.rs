//! What a server answers, as the model and clients are shown it.

use std::time::Duration;

use outpost_thread::{CallId, CallOutcome, CallReport};
use serde_json::{Value, json};

use crate::mcp::{McpError, ToolResult};
use crate::tools::output::HeadTail;
use crate::tools::{CallEnd, ResultType};

/// So much of a result the model is shown, in tokens.
const SHOWN_TOKENS: usize = 10_000;
/// So much of a result clients are shown, in bytes of JSON.
const SHOWN_LATER: usize = 256 << 10;

/// What the model and clients are told of a call.
pub(super) fn told(kind: ResultType, call: &CallId, answered: Result<ToolResult, McpError>, took: Duration) -> CallEnd {
    let took = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    match answered {
        Ok(result) => {
            let outcome = if result.is_error { CallOutcome::Failed } else { CallOutcome::Completed };
            let output = parts(&for_model(&result));
            let error = result.is_error.then(|| text_of(&result.content));
            let report =
                CallReport { result: Some(shown(&result)), error: error.map(Into::into), duration_ms: Some(took), ..CallReport::default() };
            CallEnd { outcome, items: vec![kind.item(call, output)], report: Some(report.into()), facts: vec![] }
        }
        Err(error) => {
            let text = error.to_string();
            let report = CallReport { duration_ms: Some(took), ..CallReport::failed(&text) };
            CallEnd { outcome: CallOutcome::Failed, items: vec![kind.item(call, text)], report: Some(report.into()), facts: vec![] }
        }
    }
}

/// All that a result says, as parts: that it is an error, its content, and its structured content unless that stands there already.
fn for_model(result: &ToolResult) -> Vec<Value> {
    let text = |text: String| json!({"type": "text", "text": text});
    let failed = result.is_error.then(|| text("The tool reports that it failed:".into()));
    let stands_there = |structured: &&Value| {
        let same =
            |part: &Value| part["text"].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()).as_ref() == Some(*structured);
        result.content.iter().any(same)
    };
    let structured = result.structured.as_ref().filter(|structured| !stands_there(structured)).map(|value| text(value.to_string()));
    failed.into_iter().chain(result.content.iter().cloned()).chain(structured).collect()
}

/// A result for clients; what is too large is only told of.
fn shown(result: &ToolResult) -> Value {
    let whole = json!({"content": result.content, "structuredContent": result.structured, "_meta": result.meta});
    let length = whole.to_string().len();
    if length <= SHOWN_LATER {
        return whole;
    }
    let text = shortened(&text_of(&result.content));
    json!({"content": [{"type": "text", "text": format!("{text}\n[{length} bytes in all]")}], "structuredContent": null, "_meta": null})
}

fn text_of(content: &[Value]) -> String {
    content.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
}

pub(super) fn shortened(text: &str) -> String {
    let mut room = HeadTail::default();
    room.push(text.as_bytes());
    room.show(SHOWN_TOKENS).text
}

/// The contents of a resource as part of a result.
pub(super) fn embedded(contents: &Value) -> Value {
    json!({"type": "resource", "resource": contents})
}

/// A result for the model: one text where there are only texts, otherwise a list of parts.
pub(super) fn parts(content: &[Value]) -> Value {
    let converted: Vec<Value> = content.iter().map(part).collect();
    if converted.iter().all(|part| part["type"] == "input_text") {
        return shortened(&text_of(&converted)).into();
    }
    let parts = converted.into_iter().map(|mut part| {
        if let Some(text) = part["text"].as_str() {
            part["text"] = shortened(text).into();
        }
        part
    });
    parts.collect()
}

fn part(content: &Value) -> Value {
    let text = |text: &str| json!({"type": "input_text", "text": text});
    let (data, mime) = (content["data"].as_str(), content["mimeType"].as_str());
    match (content["type"].as_str(), data) {
        (Some("text"), _) => text(content["text"].as_str().unwrap_or_default()),
        (Some("image"), Some(data)) => {
            json!({"type": "input_image", "image_url": format!("data:{};base64,{data}", mime.unwrap_or("image/png"))})
        }
        (Some(kind @ "audio"), Some(data)) => {
            text(&format!("[{kind}, {}, about {} bytes: it cannot be shown]", mime.unwrap_or("of an unknown type"), data.len() / 4 * 3))
        }
        (Some("resource"), _) => match (content["resource"]["text"].as_str(), content["resource"]["blob"].as_str()) {
            (Some(inner), _) => text(inner),
            (None, Some(blob)) => {
                let mime = content["resource"]["mimeType"].as_str().unwrap_or("of an unknown type");
                if mime.starts_with("image/") {
                    return json!({"type": "input_image", "image_url": format!("data:{mime};base64,{blob}")});
                }
                text(&format!(
                    "[{}: {mime}, about {} bytes: it cannot be shown]",
                    content["resource"]["uri"].as_str().unwrap_or_default(),
                    blob.len() / 4 * 3
                ))
            }
            (None, None) => text(&content.to_string()),
        },
        _ => text(&content.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_one_and_pictures_are_shown() {
        assert_eq!(parts(&[json!({"type": "text", "text": "a"}), json!({"type": "text", "text": "b"})]), json!("a\nb"));
        assert_eq!(parts(&[]), json!(""));
        let mixed = parts(&[json!({"type": "text", "text": "a"}), json!({"type": "image", "data": "QUJD", "mimeType": "image/gif"})]);
        assert_eq!(mixed[1]["image_url"], "data:image/gif;base64,QUJD");
        let resource = parts(&[json!({"type": "resource", "resource": {"uri": "x:1", "text": "inside"}})]);
        assert_eq!(resource, json!("inside"));
        let link = parts(&[json!({"type": "resource_link", "uri": "x:2", "name": "two"})]);
        assert!(link.as_str().unwrap().contains("x:2"));
        let audio = parts(&[json!({"type": "audio", "data": "AAAA", "mimeType": "audio/wav"})]);
        assert!(audio.as_str().unwrap().contains("cannot be shown"));
    }

    #[test]
    fn the_model_is_told_all_that_a_result_says() {
        let part = |text: &str| json!({"type": "text", "text": text});
        let result = |content: Vec<Value>, structured: Option<Value>, is_error| ToolResult { content, structured, is_error, meta: None };
        let structured = json!({"degrees": 21, "unit": "C"});
        let told = |result: &ToolResult| parts(&for_model(result)).as_str().unwrap().to_owned();
        assert_eq!(told(&result(vec![part("warm")], Some(structured.clone()), false)), "warm\n{\"degrees\":21,\"unit\":\"C\"}");
        assert_eq!(told(&result(vec![], Some(structured.clone()), false)), structured.to_string());
        // Servers say it twice for clients that know only one of them.
        assert_eq!(told(&result(vec![part(r#"{"unit":"C", "degrees":21}"#)], Some(structured), false)), r#"{"unit":"C", "degrees":21}"#);
        assert_eq!(told(&result(vec![part("no such city")], None, true)), "The tool reports that it failed:\nno such city");
    }

    #[test]
    fn too_much_is_cut() {
        let long: String = (0..100_000).map(|n| format!("line {n}\n")).collect();
        let output = parts(&[json!({"type": "text", "text": long})]);
        assert!(output.as_str().unwrap().len() < 50_000 && output.as_str().unwrap().contains("left out"));
        let result = ToolResult { content: vec![json!({"type": "text", "text": long})], ..ToolResult::default() };
        assert!(shown(&result).to_string().len() < 100_000);
    }
}
