//! What the program itself knows of the work, kept when the conversation is summed up: changed files, running commands and the plan. A
//! summary that forgets one of them would make the model do it again, or lose it. Environments are announced anew anyway.
//!
//! It is gathered from what the model was told, also of imported conversations: that is in memory, and the typed reports of calls are in
//! the journal only.

use std::collections::HashMap;

use outpost_thread::{Raw, said};
use serde_json::Value;

use super::call_item::CallItem;
use crate::tools::APPLIED;

/// So much of the new context each section may take, in bytes: about 2,000 tokens together. None can push another one out.
const FOR_PLAN: usize = 2_000;
const FOR_COMMANDS: usize = 2_000;
const FOR_FILES: usize = 4_000;
/// So much of one line is kept.
const LINE: usize = 300;

const TAG: &str = "<work_state>";
/// The end of the line that stands for those that are left out.
const MORE: &str = " before these)";
const PLAN: &str = "Plan:";
const COMMANDS: &str = "Running commands:";
const FILES: &str = "Changed files:";

/// The message with it; nothing if nothing is known. `running` has a line for each command that runs behind a session id.
pub(super) fn message(items: &[Raw], running: &[String]) -> Option<String> {
    let (files, plan) = gather(items);
    let mut text = String::from(TAG);
    section(&mut text, PLAN, FOR_PLAN, &open_last(plan));
    section(&mut text, COMMANDS, FOR_COMMANDS, running);
    section(&mut text, FILES, FOR_FILES, &files);
    (text != TAG).then(|| format!("{text}\n</work_state>"))
}

/// The last lines that fit, and how many do not.
fn section(text: &mut String, title: &str, mut room: usize, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let kept = |line: &String| line.floor_char_boundary(LINE);
    let fits = |line: &&String| {
        let size = kept(line) + "\n- ".len();
        let is_room = size <= room;
        room = room.saturating_sub(size);
        is_room
    };
    let left = lines.len() - lines.iter().rev().take_while(fits).count();
    text.push('\n');
    text.push_str(title);
    if left > 0 {
        text.push_str(&format!("\n- (and {left}{MORE}"));
    }
    for line in &lines[left..] {
        text.push_str("\n- ");
        text.push_str(&line[..kept(line)]);
    }
}

/// What is done of a plan, and then what is not: where there is too much of it, what is done is left out.
fn open_last(plan: Vec<String>) -> Vec<String> {
    let (done, open): (Vec<_>, Vec<_>) = plan.into_iter().partition(|step| step.starts_with("completed"));
    done.into_iter().chain(open).collect()
}

/// The files that patches changed, oldest first and each once, and the last plan.
fn gather(items: &[Raw]) -> (Vec<String>, Vec<String>) {
    let (mut files, mut plan) = (Vec::<String>::new(), Vec::new());
    let mut environments: HashMap<String, String> = HashMap::new();
    let mut add = |line: String| {
        // What became of a file last is what counts; its name follows a letter.
        let file = |line: &str| line.rsplit_once(' ').map(|(_, path)| path.to_owned());
        files.retain(|known| file(known) != file(&line));
        files.push(line);
    };
    for raw in items {
        if let Some(before) = said(raw).filter(|text| text.starts_with(TAG)) {
            let kept = |title: &'static str| {
                let lines = before.lines().skip_while(move |line| *line != title).skip(1).map_while(|line| line.strip_prefix("- "));
                lines.filter(|line| !(line.starts_with("(and ") && line.ends_with(MORE)))
            };
            kept(FILES).for_each(|line| add(line.to_owned()));
            plan = kept(PLAN).map(str::to_owned).collect();
            continue;
        }
        let Ok(item) = raw.read::<CallItem>() else { continue };
        match (item.kind.as_str(), item.name.as_str()) {
            ("function_call", "apply_patch") => {
                let arguments: Value = serde_json::from_str(&item.arguments).unwrap_or_default();
                if let Some(environment) = arguments["environment_id"].as_str() {
                    environments.insert(item.call_id, environment.to_owned());
                }
            }
            ("function_call", "update_plan") => {
                let arguments: Value = serde_json::from_str(&item.arguments).unwrap_or_default();
                let step = |step: &Value| Some(format!("{}: {}", step["status"].as_str()?, step["step"].as_str()?));
                plan = arguments["plan"].as_array().into_iter().flatten().filter_map(step).collect();
            }
            ("function_call_output" | "custom_tool_call_output", _) => {
                let environment = environments.remove(&item.call_id).map(|id| format!("in {id}: ")).unwrap_or_default();
                let changed = item.output.as_str().and_then(|text| text.strip_prefix(APPLIED));
                changed.into_iter().flat_map(str::lines).for_each(|line| add(format!("{environment}{line}")));
            }
            _ => {}
        }
    }
    (files, plan)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn call(id: &str, name: &str, arguments: Value) -> Raw {
        Raw::from(json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments.to_string()}))
    }

    fn output(id: &str, text: &str) -> Raw {
        Raw::from(json!({"type": "function_call_output", "call_id": id, "output": text}))
    }

    fn state(text: &str) -> Raw {
        Raw::from(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}))
    }

    #[test]
    fn it_holds_what_was_changed_planned_and_runs() {
        let items = [
            state("<work_state>\nChanged files:\n- A /w/old\n- A /w/a\nPlan:\n- pending: x\n</work_state>"),
            call("1", "apply_patch", json!({"input": "…", "environment_id": "box"})),
            output("1", "Done. These files were changed:\nA /b/new\nM /w/a"),
            call("2", "apply_patch", json!({"input": "…"})),
            output("2", "line 3: expected `+`"),
            call("3", "update_plan", json!({"plan": [{"step": "one", "status": "completed"}, {"step": "two", "status": "in_progress"}]})),
        ];
        let text = message(&items, &["session id 7 in local: npm run dev".into()]).unwrap();
        assert_eq!(
            text,
            "<work_state>\nPlan:\n- completed: one\n- in_progress: two\nRunning commands:\n- session id 7 in local: npm run dev\n\
             Changed files:\n- A /w/old\n- in box: A /b/new\n- in box: M /w/a\n</work_state>"
        );
        assert_eq!(message(&[state("hello")], &[]), None);
    }

    /// However much there is of one, the others stay; also when it is made of what it was before.
    #[test]
    fn each_section_keeps_to_its_budget() {
        let lines: Vec<String> = (0..5000).map(|n| format!("A /w/file-{n}")).collect();
        let done = (0..100).map(|n| json!({"step": format!("{n}: {}", "done ".repeat(50)), "status": "completed"}));
        let plan: Vec<Value> = done.chain([json!({"step": "ship it", "status": "pending"})]).collect();
        let mut items = vec![output("1", &format!("{APPLIED}{}", lines.join("\n"))), call("2", "update_plan", json!({"plan": plan}))];
        let running: Vec<String> = (0..40).map(|n| format!("session id {n} in local: {}", "x".repeat(4000))).collect();
        for round in 0..3 {
            let text = message(&items, &running).unwrap();
            assert!(text.len() <= FOR_PLAN + FOR_COMMANDS + FOR_FILES + 200, "{round}: {}", text.len());
            for kept in ["pending: ship it", "session id 39 in local", "file-4999", "before these"] {
                assert!(text.contains(kept), "{round}: {kept}: {text}");
            }
            assert!(!text.contains("file-10\n"));
            items = vec![state(&text), output("3", &format!("{APPLIED}A /w/file-4999"))];
        }
    }

    /// Three hundred calls of all kinds, as a long turn has them: what counts is the last state of each thing.
    #[test]
    fn a_long_mixed_history_comes_to_its_last_state() {
        let mut items = vec![state("make it")];
        for n in 0..300 {
            let id = format!("c{n}");
            let (name, arguments, told) = match n % 5 {
                0 => ("exec_command", json!({"cmd": format!("cargo test {n}")}), "Exit code: 1\nfailed\n".to_owned()),
                1 => ("apply_patch", json!({"input": "…"}), format!("{APPLIED}M /w/src/part-{}.rs", n % 30)),
                2 => ("apply_patch", json!({"input": "…", "environment_id": "box"}), format!("{APPLIED}A /b/log-{n}")),
                3 => ("apply_patch", json!({"input": "…"}), "line 3: expected `+`".to_owned()),
                _ => {
                    let step =
                        |step: i32| json!({"step": format!("part {step}"), "status": if step < n / 60 { "completed" } else { "pending" }});
                    ("update_plan", json!({"plan": (0..5).map(step).collect::<Vec<_>>()}), "Plan updated".to_owned())
                }
            };
            items.extend([call(&id, name, arguments), output(&id, &told)]);
        }
        let text = message(&items, &[]).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1..7],
            ["Plan:", "- completed: part 0", "- completed: part 1", "- completed: part 2", "- completed: part 3", "- pending: part 4"]
        );
        assert_eq!(lines[7], FILES);
        for n in [1, 6, 11, 16, 21, 26] {
            assert_eq!(text.matches(&format!("- M /w/src/part-{n}.rs")).count(), 1, "{text}");
        }
        assert_eq!(text.matches("- in box: A /b/log-").count(), 60);
    }
}
