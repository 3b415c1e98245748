//! Tools that a client runs: what they may be called. Providers refuse a whole request for one name that they do not take.

use std::collections::HashSet;

use outpost_thread::Raw;
use outpost_wire::Fault;
use outpost_wire::app::thread::DynamicTool;
use serde_json::{Value, json};

/// Providers take no longer names.
const LONGEST: usize = 64;
/// Tools of MCP servers begin like this.
const RESERVED: &str = "mcp__";
/// What a namespace ends with, in the name that the model knows a tool by.
const BETWEEN: &str = "__";

/// The tools as a thread keeps them, or what is wrong with one of them.
pub(super) fn checked(tools: Vec<DynamicTool>) -> Result<Vec<Raw>, Fault> {
    let mut names = HashSet::new();
    let mut out = Vec::new();
    for tool in tools {
        match tool {
            DynamicTool::Function { name, description, input_schema, .. } => {
                check(&name, &name, &input_schema, &mut names)?;
                out.push(Raw::from(json!({"name": name, "description": description, "inputSchema": input_schema})));
            }
            DynamicTool::Namespace { name: namespace, tools, .. } => {
                check_name("namespace", &namespace)?;
                if tools.is_empty() {
                    return Err(refused(&namespace, "the namespace holds no tool"));
                }
                for tool in tools {
                    let DynamicTool::Function { name, description, input_schema, .. } = tool else {
                        return Err(refused(&namespace, "a namespace holds tools and no other namespace"));
                    };
                    let whole = format!("{namespace}{BETWEEN}{name}");
                    check(&name, &whole, &input_schema, &mut names)?;
                    out.push(Raw::from(json!({
                        "name": whole, "namespace": namespace, "tool": name, "description": description, "inputSchema": input_schema,
                    })));
                }
            }
        }
    }
    Ok(out)
}

/// `whole` is what the model calls it.
fn check(name: &str, whole: &str, schema: &Value, names: &mut HashSet<String>) -> Result<(), Fault> {
    check_name("tool", name)?;
    if whole.len() > LONGEST {
        return Err(refused(whole, &format!("its name has {} characters, and {LONGEST} are the most", whole.len())));
    }
    if outpost_runtime::tools::is_own(whole) {
        return Err(refused(whole, "this program has a tool of that name"));
    }
    if !(schema.is_null() || schema.is_object()) {
        return Err(refused(whole, "`inputSchema` is not a JSON schema: it must be an object"));
    }
    if !names.insert(whole.to_owned()) {
        return Err(refused(whole, "there are two tools of that name"));
    }
    Ok(())
}

fn check_name(what: &str, name: &str) -> Result<(), Fault> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if name.is_empty() {
        return Err(refused(name, &format!("a {what} needs a name")));
    }
    if let Some(odd) = name.chars().find(|c| !is_fine(*c)) {
        return Err(refused(name, &format!("the name of a {what} is made of letters, digits, `_` and `-`, not of {odd:?}")));
    }
    if name.len() > LONGEST {
        return Err(refused(name, &format!("its name has {} characters, and {LONGEST} are the most", name.len())));
    }
    if name.starts_with(RESERVED) || name == "mcp" {
        return Err(refused(name, &format!("names that begin with `{RESERVED}` are those of MCP servers")));
    }
    if name.contains(BETWEEN) {
        return Err(refused(name, "two underscores in a row stand between a namespace and a tool"));
    }
    Ok(())
}

fn refused(name: &str, why: &str) -> Fault {
    Fault::invalid_request(format!("dynamicTools: `{}`: {why}", name.escape_debug()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn why(tools: Value) -> String {
        checked(serde_json::from_value(tools).unwrap()).unwrap_err().message
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "name": name, "description": "d", "inputSchema": {"type": "object"}})
    }

    fn space(name: &str, tools: &[Value]) -> Value {
        json!({"type": "namespace", "name": name, "description": "d", "tools": tools})
    }

    #[test]
    fn what_providers_do_not_take_is_refused_with_the_reason() {
        for (tools, said) in [
            (json!([tool("a"), tool("a")]), "two tools of that name"),
            (json!([tool("a-b"), space("x", &[tool("y")]), space("x", &[tool("y")])]), "two tools of that name"),
            (json!([tool("")]), "a tool needs a name"),
            (json!([space("", &[tool("y")])]), "a namespace needs a name"),
            (json!([space("x", &[])]), "holds no tool"),
            (json!([space("x", &[space("y", &[tool("z")])])]), "no other namespace"),
            (json!([tool("a b")]), "made of letters"),
            (json!([tool("\u{e4}")]), "made of letters"),
            (json!([tool(&"a".repeat(65))]), "65 characters"),
            (json!([space(&"a".repeat(40), &[tool(&"b".repeat(40))])]), "82 characters"),
            (json!([tool("mcp__x")]), "MCP servers"),
            (json!([space("mcp", &[tool("x")])]), "MCP servers"),
            (json!([tool("a__b")]), "two underscores"),
            (json!([tool("exec_command")]), "this program has a tool"),
            (json!([{"type": "function", "name": "a", "description": "d", "inputSchema": 7}]), "not a JSON schema"),
        ] {
            let found = why(tools.clone());
            assert!(found.contains(said), "{tools}: {found}");
        }
        let fine = json!([tool("weather"), tool(&"a".repeat(64)), space("maps", &[tool("find"), tool("weather")])]);
        assert_eq!(checked(serde_json::from_value(fine).unwrap()).unwrap().len(), 4);
    }
}
