//! What a tool of ours is, and from a model's item to a call that one of them understands.
//!
//! A tool is a file: what the model is told of it, what its arguments are, what becomes of a call, and what it does once it may run.

use outpost_thread::Raw;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::catalogue::Offer;
use super::{CallPlan, OWN, RequestedCall, StepTools};
use crate::model::ToolSpec;

/// A tool of ours.
pub(super) struct OwnTool {
    pub name: &'static str,
    /// What the model is told of it; nothing while it cannot be used.
    pub spec: fn(&Offer) -> Option<ToolSpec>,
    /// Reads what the model wrote; an error is a sentence for the model.
    pub read: fn(&WrittenCall) -> Result<Box<dyn OwnCall>, String>,
}

/// A call of a tool of ours that was understood.
pub(super) trait OwnCall {
    fn plan(self: Box<Self>, step: &StepTools, asked: &RequestedCall<'_>) -> CallPlan;
}

/// A call as the model wrote it.
#[derive(Deserialize)]
pub(super) struct WrittenCall {
    #[serde(rename = "type")]
    pub kind: String,
    pub name: String,
    #[serde(default)]
    arguments: String,
    /// What is no JSON.
    #[serde(default)]
    pub input: String,
}

impl WrittenCall {
    pub(super) fn of(item: &Raw) -> Result<Self, String> {
        item.read().map_err(|error| format!("this call cannot be read: {error}"))
    }

    /// The tool of ours that is meant.
    pub(super) fn own(&self) -> Option<&'static OwnTool> {
        OWN.iter().find(|tool| tool.name == self.name)
    }

    pub(super) fn arguments<T: DeserializeOwned>(&self) -> Result<T, String> {
        let text = if self.arguments.trim().is_empty() { "{}" } else { self.arguments.as_str() };
        serde_json::from_str(text).map_err(|error| format!("the arguments of `{}` cannot be read: {error}", self.name))
    }

    /// For a tool whose arguments are all that there is to a call.
    pub(super) fn call<T: DeserializeOwned + OwnCall + 'static>(&self) -> Result<Box<dyn OwnCall>, String> {
        Ok(Box::new(self.arguments::<T>()?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;

    fn read(name: &str, arguments: &str) -> Result<(), String> {
        let item = json!({"type": "function_call", "call_id": "c", "name": name, "arguments": arguments});
        let written = WrittenCall::of(&Raw::from(item))?;
        (written.own().expect("a tool of ours").read)(&written).map(drop)
    }

    #[test]
    fn what_cannot_be_understood_is_said_to_the_model() {
        assert!(WrittenCall::of(&Raw::from(json!({"type": "function_call"}))).err().unwrap().contains("this call cannot be read"));
        assert!(read("exec_command", "{").unwrap_err().contains("`exec_command` cannot be read"));
        assert!(read("exec_command", "{}").unwrap_err().contains("cmd"));
        assert!(read("exec_command", r#"{"cmd":"ls","environment_id":"box"}"#).is_ok());
    }

    /// An argument that is overlooked may be the one that says on which machine.
    #[test]
    fn arguments_that_a_tool_does_not_have_are_refused_with_those_that_it_has() {
        let mut named = HashSet::new();
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
            named.insert(name);
            assert!(read(name, &arguments.to_string()).is_ok(), "{name}");
            let mut more = arguments;
            more["environment"] = "box".into();
            let why = read(name, &more.to_string()).unwrap_err();
            assert!(why.contains("unknown field `environment`") && why.contains(accepted), "{name}: {why}");
        }
        assert_eq!(named, OWN.iter().map(|tool| tool.name).collect(), "each tool stands here");
    }
}
