//! What the model is told about its tools.

use std::sync::Arc;

use serde_json::{Map, Value, json};

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

/// The grammar of a patch, in Lark's notation.
const PATCH_GRAMMAR: &str = r#"start: begin environment? change+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
environment: "*** Environment ID: " /[^\n]+/ LF
change: add | delete | update
add: "*** Add File: " path LF added+
delete: "*** Delete File: " path LF
update: "*** Update File: " path LF move? chunk*
move: "*** Move to: " path LF
chunk: heading? line+ last?
heading: ("@@" | "@@ " /[^\n]+/) LF
added: "+" /[^\n]*/ LF
line: ("+" | "-" | " ") /[^\n]*/ LF
last: "*** End of File" LF
path: /[^\n]+/
%import common.LF
"#;

/// The tools of a step. What cannot be used now is not offered, because every word of it is read with each request: nothing that needs
/// an environment without one, no question where none may be asked, nothing for sessions and agents before there are some. What was
/// offered once in a thread stays, so that a provider's cache of the beginning is kept.
pub fn tools(offer: &Offer) -> Vec<ToolSpec> {
    let mut tools = Vec::new();
    if offer.environments > 0 {
        tools.extend([exec_command(offer), apply_patch(offer)]);
        tools.extend(offer.sessions.then(write_stdin));
        tools.extend(offer.vision.then(|| view_image(offer)));
    }
    if offer.permissions {
        tools.push(request_permissions());
    }
    tools.push(update_plan());
    if offer.questions {
        tools.push(request_user_input());
    }
    if offer.starting {
        tools.push(wait_for_environment());
    }
    if offer.skills {
        tools.push(read_skill());
    }
    if offer.agents {
        tools.push(spawn_agent());
        tools.extend(offer.has_agents.then(agents).into_iter().flatten());
    }
    tools
}

fn function(name: &str, description: &str, properties: Value, required: &[&str]) -> ToolSpec {
    let schema = json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    ToolSpec { name: name.into(), description: description.into(), input: ToolInput::Object(schema) }
}

fn string(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn number(description: &str) -> Value {
    json!({"type": "number", "description": description})
}

/// With more than one environment each call may name the one that it means.
fn with_environment(mut properties: Map<String, Value>, offer: &Offer) -> Value {
    if offer.environments > 1 {
        properties.insert("environment_id".into(), string("Id of the environment; default: the primary one."));
    }
    Value::Object(properties)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn exec_command(offer: &Offer) -> ToolSpec {
    let mut properties = object(json!({
        "cmd": {"type": "string"},
        "workdir": string("Default: the environment's directory."),
        "tty": {"type": "boolean", "description": "Run on a terminal."},
        "yield_time_ms": number("Wait so long for its end (250 to 30000, default 10000)."),
        "max_output_tokens": {"type": "number"},
        "wake": {"type": "boolean", "description": "If it goes on after this call: begin a turn when it ends."},
    }));
    if offer.escalation {
        properties.insert("sandbox_permissions".into(), sandbox_permissions(offer));
        properties.insert("justification".into(), string("One sentence for the user that says why, if they are asked."));
        let words = "With require_escalated: the first words of commands that the user may allow for good.";
        properties.insert("prefix_rule".into(), json!({"type": "array", "items": {"type": "string"}, "description": words}));
    }
    if offer.permissions {
        properties.insert(
            "additional_permissions".into(),
            permissions("With with_additional_permissions: what this one command needs. Relative paths start at its directory."),
        );
    }
    function(
        "exec_command",
        "Runs a shell command. If it does not end in time it goes on, and you get a session id for it.",
        with_environment(properties, offer),
        &["cmd"],
    )
}

fn sandbox_permissions(offer: &Offer) -> Value {
    let mut names = vec!["use_default", "require_escalated"];
    let mut description =
        String::from("`require_escalated` asks the user to let it run outside of the sandbox. Only when it cannot work inside.");
    if offer.permissions {
        names.insert(1, "with_additional_permissions");
        description.push_str(" `with_additional_permissions` asks for no more than additional_permissions says; prefer it.");
    }
    json!({"type": "string", "enum": names, "description": description})
}

/// What can be asked for on top of the sandbox.
fn permissions(description: &str) -> Value {
    let paths = |what: &str| json!({"type": "array", "items": {"type": "string"}, "description": what});
    json!({
        "type": "object", "description": description,
        "properties": {
            "network": {"type": "object", "properties": {"enabled": {"type": "boolean"}}, "additionalProperties": false},
            "file_system": {
                "type": "object",
                "properties": {
                    "read": paths("Files and directories to read."),
                    "write": paths("Files and directories to write, with all that is below them. They must exist."),
                },
                "additionalProperties": false,
            },
        },
        "additionalProperties": false,
    })
}

fn request_permissions() -> ToolSpec {
    let properties = json!({
        "reason": string("One sentence for the user that says why."),
        "environment_id": string("The environment that they are for, by its id. Without it, the primary one."),
        "permissions": permissions("As little as the task needs. Relative paths start at the environment's directory."),
    });
    function(
        "request_permissions",
        "Asks the user to let commands and patches in one environment do more than its sandbox allows: read or write certain paths, use the \
         network. The answer says what was granted, and for how long; it may be less than you asked for, or nothing.",
        properties,
        &["permissions"],
    )
}

fn write_stdin() -> ToolSpec {
    let properties = json!({
        "session_id": {"type": "number"},
        "chars": string("What to write; empty: only look."),
        "yield_time_ms": {"type": "number"},
        "max_output_tokens": {"type": "number"},
    });
    function("write_stdin", "Writes to a running command, or looks at what it has done since.", properties, &["session_id"])
}

fn apply_patch(offer: &Offer) -> ToolSpec {
    let mut description = String::from(
        "Creates, edits and deletes files: all of a patch or nothing. Each file has one of these sections:\n\
         *** Begin Patch\n\
         *** Add File: new.txt\n\
         +first line\n\
         *** Update File: src/a.py\n\
         @@ def main():\n \
         kept line\n\
         -old line\n\
         +new line\n\
         *** Delete File: old.txt\n\
         *** End Patch\n\
         Give about three kept lines around a change; the text after @@ may be left out. `*** Move to: PATH` after Update File renames.",
    );
    if offer.environments > 1 {
        description.push_str(" `*** Environment ID: ID` after the first line names the environment; default: the primary one.");
    }
    let input = if offer.text_tools {
        ToolInput::Text { grammar: PATCH_GRAMMAR.to_owned() }
    } else {
        let properties = with_environment(object(json!({"input": string("The patch.")})), offer);
        ToolInput::Object(json!({"type": "object", "properties": properties, "required": ["input"], "additionalProperties": false}))
    };
    ToolSpec { name: "apply_patch".into(), description, input }
}

fn view_image(offer: &Offer) -> ToolSpec {
    let properties = object(json!({"path": {"type": "string"}}));
    function("view_image", "Shows you an image file.", with_environment(properties, offer), &["path"])
}

fn update_plan() -> ToolSpec {
    let step = json!({
        "type": "object",
        "properties": {"step": {"type": "string"}, "status": {"enum": ["pending", "in_progress", "completed"]}},
        "required": ["step", "status"],
    });
    let properties = json!({"explanation": {"type": "string"}, "plan": {"type": "array", "items": step}});
    function("update_plan", "Shows the user your plan; at most one step is in progress.", properties, &["plan"])
}

fn request_user_input() -> ToolSpec {
    let option = json!({
        "type": "object", "properties": {"label": {"type": "string"}, "description": {"type": "string"}},
        "required": ["label", "description"], "additionalProperties": false,
    });
    let question = json!({
        "type": "object",
        "properties": {
            "id": string("A name for the answer."),
            "header": string("At most twelve characters."),
            "question": string("One sentence."),
            "options": {"type": "array", "items": option, "minItems": 2, "maxItems": 3},
        },
        "required": ["id", "header", "question", "options"], "additionalProperties": false,
    });
    let properties = json!({"questions": {"type": "array", "items": question, "minItems": 1, "maxItems": 3}});
    function("request_user_input", "Asks the user one to three short questions and waits for the answers.", properties, &["questions"])
}

fn wait_for_environment() -> ToolSpec {
    let properties = json!({"environment_id": string("The environment that is starting.")});
    function("wait_for_environment", "Waits until an environment that is starting is ready or has failed.", properties, &["environment_id"])
}

fn read_skill() -> ToolSpec {
    let properties = json!({
        "skill": string("The skill, by its name, or by its skill:// address where several have the name."),
        "file": string("Another file in the skill's folder, relative to it. Without it, the skill itself is read."),
    });
    function("read_skill", "Reads a skill, or a file that belongs to it.", properties, &["skill"])
}

fn spawn_agent() -> ToolSpec {
    function(
        "spawn_agent",
        "Starts another agent on a task of its own, in the same environments.",
        json!({
            "message": string("The task, with all that the agent must know."),
            "fork_context": {"type": "boolean", "description": "Whether it knows this conversation."},
        }),
        &["message"],
    )
}

fn agents() -> [ToolSpec; 5] {
    let target = string("The id of the agent, as spawn_agent returned it.");
    [
        function(
            "send_input",
            "Sends a message to an agent.",
            json!({"target": target, "message": string("The message."), "interrupt": {"type": "boolean", "description": "Whether to stop what it does now."}}),
            &["target", "message"],
        ),
        function(
            "wait_agent",
            "Waits until one of the agents has finished, and returns what it said.",
            json!({"targets": {"type": "array", "items": {"type": "string"}}, "timeout_ms": number("At most so long (10000 to 3600000, otherwise 30000).")}),
            &["targets"],
        ),
        function("interrupt_agent", "Stops what an agent does now; it can be told to go on.", json!({"target": target}), &["target"]),
        function("close_agent", "Ends an agent that is not needed any more.", json!({"target": target}), &["target"]),
        function("list_agents", "Lists your agents and what they are doing.", json!({}), &[]),
    ]
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
