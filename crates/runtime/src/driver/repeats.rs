//! A model that makes the same call again and again, and gets the same answer every time. Waiting for something that runs is none.

use std::collections::HashMap;

use outpost_thread::{Raw, is_user_message};
use serde_json::Value;

use super::call_item::CallItem;
use crate::tools::command_report::{STILL_RUNNING, without_time};

/// So many identical calls in a row are pointed out to the model.
pub(super) const POINTED_OUT: usize = 3;
/// So many end the turn.
pub(super) const TOO_MANY: usize = 6;

/// How often the last call was made in a row, with the same result, since the user said something; and which tool it was.
pub(super) fn repeated(items: &[Raw]) -> Option<(usize, String)> {
    let mut outputs: HashMap<String, Value> = HashMap::new();
    let mut last: Option<(CallItem, Value)> = None;
    let mut count = 0;
    for raw in items.iter().rev() {
        let Ok(item) = raw.read::<CallItem>() else { continue };
        match item.kind.as_str() {
            "message" if is_user_message(raw) => break,
            "function_call_output" | "custom_tool_call_output" => drop(outputs.insert(item.call_id, item.output)),
            "function_call" | "custom_tool_call" => {
                let output = comparable(outputs.remove(&item.call_id).unwrap_or_default());
                match &last {
                    None if waits(&item, &output) => return None,
                    None => last = Some((item, output)),
                    Some((later, same)) => {
                        let is_same = later.name == item.name && later.arguments == item.arguments && later.input == item.input;
                        if !is_same || *same != output {
                            break;
                        }
                    }
                }
                count += 1;
                if count == TOO_MANY {
                    break;
                }
            }
            _ => {}
        }
    }
    last.map(|(item, _)| (count, item.name))
}

/// A result without what differs every time: how long it took.
fn comparable(output: Value) -> Value {
    match output {
        Value::String(text) => match without_time(&text) {
            Some(rest) => rest.into(),
            None => text.into(),
        },
        other => other,
    }
}

/// Whether a call only waits for something that is still under way.
fn waits(item: &CallItem, output: &Value) -> bool {
    match item.name.as_str() {
        "write_stdin" => output.as_str().is_some_and(|text| text.starts_with(STILL_RUNNING)),
        "wait_agent" | "wait_for_environment" => true,
        _ => false,
    }
}

/// What the model is told.
pub(super) fn pointed_out(count: usize, tool: &str) -> String {
    format!(
        "<repeated_call>\nThe last {count} calls of `{tool}` were identical, and so were their results. The same call again will give the \
         same result: change something, try another way, or tell the user what is in the way.\n</repeated_call>"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pair(id: usize, name: &str, arguments: &str, output: &str) -> [Raw; 2] {
        [
            Raw::from(json!({"type": "function_call", "call_id": id.to_string(), "name": name, "arguments": arguments})),
            Raw::from(json!({"type": "function_call_output", "call_id": id.to_string(), "output": output})),
        ]
    }

    fn message(text: &str) -> Raw {
        Raw::from(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}))
    }

    #[test]
    fn identical_calls_with_identical_results_are_counted() {
        let mut items: Vec<Raw> = vec![message("go")];
        assert_eq!(repeated(&items), None);
        for n in 0..4 {
            items.extend(pair(n, "exec_command", "{}", &format!("Time: {n}.1 s\nExit code: 0")));
            items.push(message("<environment_context>x</environment_context>"));
            assert_eq!(repeated(&items), Some((n + 1, "exec_command".into())));
        }
        let mut other = items.clone();
        other.extend(pair(9, "exec_command", "{}", "Time: 1.1 s\nExit code: 1"));
        assert_eq!(repeated(&other), Some((1, "exec_command".into())), "another result");
        other.extend(pair(10, "exec_command", "{\"cmd\":\"ls\"}", "Time: 1.1 s\nExit code: 1"));
        assert_eq!(repeated(&other), Some((1, "exec_command".into())), "other arguments");
        items.push(message("try once more"));
        items.extend(pair(11, "exec_command", "{}", "Exit code: 0"));
        assert_eq!(repeated(&items), Some((1, "exec_command".into())), "the user asked for it");
    }

    #[test]
    fn waiting_is_no_repetition() {
        let polls = |output: &str| (0..9).flat_map(|n| pair(n, "write_stdin", "{}", output)).collect::<Vec<_>>();
        assert_eq!(repeated(&polls("Time: 1 s\nStill running, session id: 3")), None);
        assert_eq!(repeated(&polls("no command with the session id 3")), Some((TOO_MANY, "write_stdin".into())));
        let waits: Vec<Raw> = (0..9).flat_map(|n| pair(n, "wait_agent", "{}", "{}")).collect();
        assert_eq!(repeated(&waits), None);
    }
}
