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
    Patch {
        text: String,
        environment: Option<String>,
    },
    Image(ViewImage),
    Plan(UpdatePlan),
    /// Questions to the user.
    Question(Vec<Value>),
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
#[serde(deny_unknown_fields)]
struct PatchInput {
    input: String,
    #[serde(default)]
    environment_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Questions {
    questions: Vec<Value>,
}

impl ToolCall {
    /// Reads a call; an error is a sentence for the model.
    pub fn read(item: &Raw, dynamic: &[DynamicTool]) -> Result<Self, String> {
        let item: Item = item.read().map_err(|error| format!("this call cannot be read: {error}"))?;
        let arguments = if item.arguments.trim().is_empty() { "{}" } else { item.arguments.as_str() };
        Ok(match item.name.as_str() {
            "exec_command" => Self::Exec(parse(&item.name, arguments)?),
            "write_stdin" => Self::WriteStdin(parse(&item.name, arguments)?),
            "apply_patch" if item.kind == "custom_tool_call" => Self::Patch { text: item.input, environment: None },
            "apply_patch" => {
                let PatchInput { input, environment_id } = parse(&item.name, arguments)?;
                Self::Patch { text: input, environment: environment_id }
            }
            "view_image" => Self::Image(parse(&item.name, arguments)?),
            "update_plan" => Self::Plan(parse(&item.name, arguments)?),
            "request_user_input" => {
                let Questions { questions } = parse(&item.name, arguments)?;
                Self::Question(questions)
            }
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
        assert!(matches!(read("exec_command", r#"{"cmd":"ls","environment_id":"box"}"#), Ok(ToolCall::Exec(_))));
    }

    #[test]
    fn a_patch_comes_in_two_shapes() {
        assert!(matches!(read("apply_patch", r#"{"input":"x"}"#), Ok(ToolCall::Patch { text, environment: None }) if text == "x"));
        let named = read("apply_patch", r#"{"input":"x","environment_id":"box"}"#);
        assert!(matches!(named, Ok(ToolCall::Patch { environment: Some(id), .. }) if id == "box"));
        let item = Raw::from(json!({"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "y"}));
        assert!(matches!(ToolCall::read(&item, &[]), Ok(ToolCall::Patch { text, .. }) if text == "y"));
    }

    /// An argument that is overlooked may be the one that says on which machine.
    #[test]
    fn arguments_that_a_tool_does_not_have_are_refused_with_those_that_it_has() {
        for (name, arguments, accepted) in [
            ("exec_command", json!({"cmd": "ls"}), "`environment_id`"),
            ("write_stdin", json!({"session_id": 1}), "`chars`"),
            ("apply_patch", json!({"input": "x"}), "`environment_id`"),
            ("view_image", json!({"path": "x"}), "`environment_id`"),
            ("update_plan", json!({"plan": []}), "`explanation`"),
            ("request_user_input", json!({"questions": []}), "`questions`"),
            ("read_skill", json!({"skill": "x"}), "`file`"),
            ("request_permissions", json!({"permissions": {}}), "`environment_id`"),
            ("wait_for_environment", json!({"environment_id": "x"}), "`environment_id`"),
            ("spawn_agent", json!({"message": "x"}), "`fork_context`"),
            ("send_input", json!({"target": "x", "message": "y"}), "`interrupt`"),
            ("wait_agent", json!({"targets": []}), "`timeout_ms`"),
            ("interrupt_agent", json!({"target": "x"}), "`target`"),
            ("close_agent", json!({"target": "x"}), "`target`"),
            ("list_agents", json!({}), "there are no"),
        ] {
            assert!(read(name, &arguments.to_string()).is_ok(), "{name}");
            let mut more = arguments;
            more["environment"] = "box".into();
            let why = read(name, &more.to_string()).unwrap_err();
            assert!(why.contains("unknown field `environment`") && why.contains(accepted), "{name}: {why}");
        }
    }
}
