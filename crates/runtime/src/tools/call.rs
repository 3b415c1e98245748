//! From a model's item to a call that we understand.

use outpost_thread::Raw;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::DynamicTool;
use super::agents::AgentCall;
use super::exec::{ExecCommand, WriteStdin};
use super::image::ViewImage;
use super::permit::RequestPermissions;
use super::plan::UpdatePlan;
use super::skill::ReadSkill;
use super::wait::WaitForEnvironment;

/// What the model wants to be done.
#[derive(Debug)]
pub enum ToolCall {
    Exec(ExecCommand),
    WriteStdin(WriteStdin),
    Patch(String),
    Image(ViewImage),
    Plan(UpdatePlan),
    /// Questions to the user.
    Question(Value),
    Wait(WaitForEnvironment),
    Permissions(RequestPermissions),
    Skill(ReadSkill),
    Agent(AgentCall),
    /// Run by the client.
    Dynamic {
        tool: String,
        arguments: Value,
    },
}

#[derive(Deserialize)]
struct Item {
    #[serde(rename = "type")]
    kind: String,
    name: String,
    #[serde(default)]
    arguments: String,
    #[serde(default)]
    input: String,
}

#[derive(Deserialize)]
struct TextInput {
    input: String,
}

impl ToolCall {
    /// Reads a call; an error is a sentence for the model.
    pub fn read(item: &Raw, dynamic: &[DynamicTool]) -> Result<Self, String> {
        let item: Item = item.read().map_err(|error| format!("this call cannot be read: {error}"))?;
        let arguments = if item.arguments.trim().is_empty() { "{}" } else { item.arguments.as_str() };
        Ok(match item.name.as_str() {
            "exec_command" => Self::Exec(parse(&item.name, arguments)?),
            "write_stdin" => Self::WriteStdin(parse(&item.name, arguments)?),
            "apply_patch" if item.kind == "custom_tool_call" => Self::Patch(item.input),
            "apply_patch" => Self::Patch(parse::<TextInput>(&item.name, arguments)?.input),
            "view_image" => Self::Image(parse(&item.name, arguments)?),
            "update_plan" => Self::Plan(parse(&item.name, arguments)?),
            "request_user_input" => Self::Question(parse(&item.name, arguments)?),
            "read_skill" => Self::Skill(parse(&item.name, arguments)?),
            "request_permissions" => Self::Permissions(parse(&item.name, arguments)?),
            "wait_for_environment" => Self::Wait(parse(&item.name, arguments)?),
            name if AgentCall::is_name(name) => Self::Agent(AgentCall::read(name, arguments)?),
            name if dynamic.iter().any(|tool| tool.name == name) => {
                Self::Dynamic { tool: name.to_owned(), arguments: parse(name, arguments)? }
            }
            name => return Err(format!("there is no tool `{name}`")),
        })
    }
}

pub(super) fn parse<T: DeserializeOwned>(tool: &str, arguments: &str) -> Result<T, String> {
    serde_json::from_str(arguments).map_err(|error| format!("the arguments of `{tool}` cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(name: &str, arguments: &str) -> Result<ToolCall, String> {
        ToolCall::read(&Raw::from(json!({"type": "function_call", "call_id": "c", "name": name, "arguments": arguments})), &[])
    }

    #[test]
    fn what_cannot_be_understood_is_said_to_the_model() {
        assert!(read("fly", "{}").unwrap_err().contains("no tool `fly`"));
        assert!(read("exec_command", "{").unwrap_err().contains("`exec_command` cannot be read"));
        assert!(read("exec_command", "{}").unwrap_err().contains("cmd"));
        assert!(matches!(read("exec_command", r#"{"cmd":"ls","unknown":1}"#), Ok(ToolCall::Exec(_))));
    }

    #[test]
    fn a_patch_comes_in_two_shapes() {
        assert!(matches!(read("apply_patch", r#"{"input":"x"}"#), Ok(ToolCall::Patch(text)) if text == "x"));
        let item = Raw::from(json!({"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "y"}));
        assert!(matches!(ToolCall::read(&item, &[]), Ok(ToolCall::Patch(text)) if text == "y"));
    }
}
