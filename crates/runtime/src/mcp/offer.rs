//! What a server offers, what is asked of it and what it answers, in words of our own.

use std::time::Duration;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

/// A tool of a server, as the server describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerTool {
    pub name: String,
    pub description: String,
    pub input_schema: Value,
    pub read_only: bool,
    pub destructive: bool,
    /// All that the server says of it.
    pub raw: Value,
}

impl ServerTool {
    pub(super) fn of(raw: Value) -> Self {
        let text = |name: &str| raw[name].as_str().unwrap_or_default().to_owned();
        let hint = |name: &str| raw["annotations"][name] == true;
        let description = text("description");
        Self {
            name: text("name"),
            description: if description.is_empty() { text("title") } else { description },
            input_schema: raw["inputSchema"].clone(),
            read_only: hint("readOnlyHint"),
            destructive: hint("destructiveHint") && !hint("readOnlyHint"),
            raw,
        }
    }
}

/// What a server offers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listing {
    pub tools: Vec<ServerTool>,
    pub has_resources: bool,
    /// Name, title, version, as the server tells them.
    pub info: Option<Value>,
    pub instructions: Option<String>,
}

/// What a tool answered, as on the wire.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolResult {
    pub content: Vec<Value>,
    pub structured: Option<Value>,
    pub is_error: bool,
    pub meta: Option<Value>,
}

/// A call of a tool.
pub struct ToolRequest<'a> {
    pub tool: &'a str,
    pub arguments: Option<Map<String, Value>>,
    pub meta: Option<Map<String, Value>>,
    pub timeout: Duration,
    /// Nobody wants the answer any more.
    pub cancel: CancellationToken,
}
