//! Pictures that a model makes: items of its answers, in the shape that the Responses API has for them.

use std::fmt;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::raw::Raw;

/// The type of such items.
const KIND: &str = "image_generation_call";

/// A picture that a model made, or tried to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GeneratedImage {
    #[serde(rename = "type")]
    kind: String,
    /// The name that its provider gave it. Another provider has no use for it.
    pub id: Option<String>,
    pub status: Option<String>,
    /// What the picture was made from, if the provider worded the request anew.
    pub revised_prompt: Option<String>,
    /// The file, in base64.
    pub result: Option<String>,
    /// Ours: the file on the machine that drives the thread.
    pub saved_path: Option<String>,
}

impl GeneratedImage {
    /// The picture of a model item, if it is one.
    pub fn of(item: &Raw) -> Option<Self> {
        Self::is_in(item.get()).then(|| item.read().ok()).flatten().filter(|image: &Self| image.kind == KIND)
    }

    /// Whether an item may hold one: nearly all do not, and need not be read.
    fn is_in(item: &str) -> bool {
        item.contains("\"image_generation_call\"")
    }

    /// The item of a picture that came without one.
    pub fn item(result: &str) -> Value {
        json!({"type": KIND, "status": "completed", "result": result})
    }

    /// The picture in base64, if it was made.
    pub fn data(&self) -> Option<&str> {
        self.result.as_deref().filter(|data| !data.is_empty())
    }

    /// How it ended, in the API's words. Providers send a finished picture with the word that it had while it was made.
    pub fn end(&self) -> &str {
        match (self.data(), self.status.as_deref()) {
            (Some(_), _) => "completed",
            (None, Some(status)) if status != "completed" => status,
            (None, _) => "failed",
        }
    }

    /// An item without the name that its provider gave it.
    pub(crate) fn nameless(item: &Raw) -> Raw {
        with_member(item, "id", None)
    }

    /// An item with the file that it was saved as, and with no other.
    pub fn saved_as(item: &Raw, path: Option<String>) -> Raw {
        with_member(item, "saved_path", path)
    }
}

fn with_member(item: &Raw, name: &str, value: Option<String>) -> Raw {
    let Ok(Value::Object(mut members)) = item.read() else { return item.clone() };
    match value {
        Some(value) => members.insert(name.to_owned(), value.into()),
        None => members.remove(name),
    };
    Raw::from(Value::Object(members))
}

/// What people read in the place of the picture.
impl fmt::Display for GeneratedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.saved_path, self.data()) {
            (Some(path), _) => write!(f, "image saved as {path}"),
            (None, Some(_)) => write!(f, "image made; it is kept in the thread"),
            (None, None) => write!(f, "no image was made ({})", self.end()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_that_is_there_was_made_whatever_its_provider_says() {
        let end = |item: Value| GeneratedImage::of(&Raw::from(item)).map(|image| image.end().to_owned());
        assert_eq!(end(json!({"type": KIND, "status": "generating", "result": "QUJD"})).as_deref(), Some("completed"));
        assert_eq!(end(json!({"type": KIND, "status": "completed", "result": null})).as_deref(), Some("failed"));
        assert_eq!(end(json!({"type": KIND, "status": "incomplete"})).as_deref(), Some("incomplete"));
    }

    #[test]
    fn people_read_where_a_picture_is() {
        let told = |item: Value| GeneratedImage::of(&Raw::from(item)).map(|image| image.to_string());
        let image = json!({"type": KIND, "id": "ig_1", "status": "completed", "result": "QUJD", "saved_path": "/home/x/a.png"});
        assert_eq!(told(image).as_deref(), Some("image saved as /home/x/a.png"));
        assert_eq!(told(GeneratedImage::item("QUJD")).as_deref(), Some("image made; it is kept in the thread"));
        assert_eq!(told(json!({"type": KIND, "status": "failed", "result": null})).as_deref(), Some("no image was made (failed)"));
        assert_eq!(told(json!({"type": "message", "content": "\"image_generation_call\""})), None);
    }
}
