//! What decides which tools the model is told of, and the words that their descriptions share. Each tool describes itself in its own file.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::OWN;
use crate::model::{ToolInput, ToolSpec};

/// What decides which tools a step offers, and how they look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// How many environments are selected, ready or not.
    pub environments: usize,
    /// Whether one of them is still on its way.
    pub starting: bool,
    /// Whether the user can be asked for more than the sandbox gives.
    pub permissions: bool,
    /// Whether there are skills to read.
    pub skills: bool,
    /// Whether a patch can be written as plain text.
    pub text_tools: bool,
    pub agents: bool,
    /// Whether a user is there to answer questions.
    pub questions: bool,
    /// Whether the user may be asked to let a command leave the sandbox.
    pub escalation: bool,
    /// Whether a command of this thread went on behind a session id.
    pub sessions: bool,
    /// Whether this thread has made agents.
    pub has_agents: bool,
    /// Whether the model can be shown images.
    pub vision: bool,
}

/// The tools of a step. What cannot be used now is not offered, because every word of it is read with each request: nothing that needs
/// an environment without one, no question where none may be asked, nothing for sessions and agents before there are some. What was
/// offered once in a thread stays, so that a provider's cache of the beginning is kept.
pub fn tools(offer: &Offer) -> Vec<ToolSpec> {
    OWN.iter().filter_map(|tool| (tool.spec)(offer)).collect()
}

pub(super) fn function(name: &str, description: &str, properties: Value, required: &[&str]) -> ToolSpec {
    let schema = json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    ToolSpec { name: name.into(), description: description.into(), input: ToolInput::Object(schema) }
}

pub(super) fn string(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

pub(super) fn number(description: &str) -> Value {
    json!({"type": "number", "description": description})
}

/// With more than one environment each call may name the one that it means.
pub(super) fn with_environment(mut properties: Map<String, Value>, offer: &Offer) -> Value {
    if offer.environments > 1 {
        properties.insert("environment_id".into(), string("Id of the environment; default: the primary one."));
    }
    Value::Object(properties)
}

pub(super) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Models refuse requests with more.
const MOST_TOOLS: usize = 128;

/// The tools of a step, shared by all who need them. What is one too many, or has a name that another one has, is left out.
pub fn shared(offer: &Offer, more: impl IntoIterator<Item = ToolSpec>) -> Arc<[ToolSpec]> {
    let mut names = std::collections::HashSet::new();
    let (kept, left_out): (Vec<_>, Vec<_>) =
        tools(offer).into_iter().chain(more).partition(|tool| names.len() < MOST_TOOLS && names.insert(tool.name.clone()));
    if !left_out.is_empty() {
        let names: Vec<&str> = left_out.iter().map(|tool| tool.name.as_str()).collect();
        tracing::warn!(tools = names.join(", "), "more tools than a model takes, or two with one name: these are left out");
    }
    kept.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(environments: usize) -> Offer {
        Offer {
            environments,
            starting: false,
            permissions: true,
            skills: true,
            text_tools: true,
            agents: true,
            questions: true,
            escalation: true,
            sessions: true,
            has_agents: true,
            vision: true,
        }
    }

    fn names(offer: &Offer) -> Vec<String> {
        tools(offer).into_iter().map(|tool| tool.name).collect()
    }

    #[test]
    fn without_an_environment_nothing_that_needs_one_is_offered() {
        let names = names(&offer(0));
        assert!(!names.iter().any(|name| ["exec_command", "write_stdin", "apply_patch", "view_image"].contains(&name.as_str())));
        assert!(names.contains(&"update_plan".to_owned()));
    }

    #[test]
    fn the_environment_can_be_named_when_there_are_several() {
        let has = |count: usize| {
            let tools = tools(&offer(count));
            let ToolInput::Object(schema) = &tools[0].input else { panic!() };
            (schema["properties"].get("environment_id").is_some(), tools[1].description.contains("Environment ID"))
        };
        assert_eq!(has(1), (false, false));
        assert_eq!(has(2), (true, true));
    }

    #[test]
    fn permissions_are_offered_where_a_user_can_be_asked() {
        let exec = |offer: &Offer| tools(offer)[0].clone();
        let (with, without) = (offer(1), Offer { permissions: false, ..offer(1) });
        assert!(names(&with).contains(&"request_permissions".to_owned()) && !names(&without).contains(&"request_permissions".to_owned()));
        let has = |offer: &Offer| {
            let ToolInput::Object(schema) = exec(offer).input else { panic!() };
            (schema["properties"].get("additional_permissions").is_some(), schema.to_string().contains("with_additional_permissions"))
        };
        assert_eq!((has(&with), has(&without)), ((true, true), (false, false)));
    }

    #[test]
    fn waiting_is_offered_only_while_something_starts() {
        assert!(!names(&offer(2)).contains(&"wait_for_environment".to_owned()));
        assert!(names(&Offer { starting: true, ..offer(2) }).contains(&"wait_for_environment".to_owned()));
    }

    #[test]
    fn names_are_unique() {
        let mut all = names(&Offer { starting: true, ..offer(2) });
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn no_more_tools_than_a_model_takes() {
        let more = |name: String| ToolSpec { name, description: String::new(), input: ToolInput::Object(json!({})) };
        let all = shared(&offer(1), (0..200).map(|n| more(format!("t{n}"))));
        assert_eq!(all.len(), MOST_TOOLS);
        let twice = shared(&offer(1), [more("update_plan".into())]);
        assert_eq!(twice.len(), tools(&offer(1)).len());
    }
}
