//! What the driver reads of a call, or of its output, in the history of the model.

use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
pub(super) struct CallItem {
    #[serde(rename = "type", default)]
    pub kind: String,
    #[serde(default)]
    pub call_id: String,
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub arguments: String,
    #[serde(default)]
    pub input: String,
    #[serde(default)]
    pub output: Value,
}
