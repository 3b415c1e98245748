//! What a server offers, what is asked of it and what it answers, in words of our own.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

/// So many tools that are left out are named.
const SHOWN: usize = 5;

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
    pub(crate) fn of(raw: Value) -> Self {
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

    /// What it costs a request, in bytes.
    fn size(&self) -> usize {
        self.name.len() + self.description.len() + self.input_schema.to_string().len()
    }
}

/// The tools that can be offered to a model, of all that a server lists, and why the others cannot.
pub(crate) fn usable(listed: Vec<Value>, most: usize) -> (Vec<ServerTool>, Vec<String>) {
    let (mut tools, mut left_out, mut names) = (Vec::<ServerTool>::new(), Vec::new(), HashSet::new());
    for raw in listed {
        let tool = ServerTool::of(raw);
        let shown: String = tool.name.chars().take(64).filter(|c| !c.is_control()).collect();
        if tool.name.trim().is_empty() {
            left_out.push("one has no name".to_owned());
        } else if !names.insert(tool.name.clone()) {
            left_out.push(format!("`{shown}` is listed twice"));
        } else if tool.size() > most {
            left_out.push(format!("`{shown}` takes {} bytes to describe, and {most} are the most", tool.size()));
        } else {
            tools.push(tool);
        }
    }
    let more = left_out.len().saturating_sub(SHOWN);
    left_out.truncate(SHOWN);
    left_out.extend((more > 0).then(|| format!("and {more} more")));
    (tools, left_out)
}

/// As many of the first tools as fit into so many bytes, and how many are left over.
pub fn fitting<'a>(tools: impl Iterator<Item = &'a ServerTool>, mut room: usize) -> (Vec<&'a ServerTool>, usize) {
    let mut left_over = 0;
    let fits = |tool: &&ServerTool| {
        let left = if left_over == 0 { room.checked_sub(tool.size()) } else { None };
        left_over += usize::from(left.is_none());
        room = left.unwrap_or(room);
        left.is_some()
    };
    (tools.filter(fits).collect(), left_over)
}

/// What a server offers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServerListing {
    pub tools: Vec<ServerTool>,
    /// Why some of what it lists is not offered.
    pub left_out: Vec<String>,
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
    /// The answer is no longer needed.
    pub cancel: CancellationToken,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_used_is_left_out_and_told() {
        let tool = |name: &str, description: &str| json!({"name": name, "description": description, "inputSchema": {"type": "object"}});
        let listed = vec![tool("a", ""), tool("", ""), tool("a", "again"), tool("vast", &"d".repeat(2000)), tool("b", "")];
        let (tools, left_out) = usable(listed, 1000);
        assert_eq!(tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(left_out.len(), 3, "{left_out:?}");
        assert!(left_out[0].contains("no name") && left_out[1].contains("`a` is listed twice"), "{left_out:?}");
        assert!(left_out[2].contains("`vast` takes 20"), "{left_out:?}");
        assert_eq!((fitting(tools.iter(), 1000).1, fitting(tools.iter(), 30).1, fitting(tools.iter(), 0).1), (0, 1, 2));
        let (_, left_out) = usable(vec![tool(" ", ""); 100], 1000);
        assert_eq!((left_out.len(), left_out[5].as_str()), (6, "and 95 more"));
    }
}
