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

/// So much of the new context it may take: about 2,000 tokens.
const BUDGET: usize = 8_000;
/// So much of it is for files; the latest are kept.
const FOR_FILES: usize = 5_000;
/// So much of one line is kept.
const LINE: usize = 300;

const TAG: &str = "<work_state>";
const FILES: &str = "Changed files:";
const PLAN: &str = "Plan:";

/// The message with it; nothing if nothing is known. `running` has a line for each command that runs behind a session id.
pub(super) fn message(items: &[Raw], running: &[String]) -> Option<String> {
    let (files, plan) = gather(items);
    let mut text = String::from(TAG);
    section(&mut text, FILES, &latest(files));
    section(&mut text, "Running commands:", running);
    section(&mut text, PLAN, &plan);
    (text != TAG).then(|| {
        let end = text.floor_char_boundary(BUDGET);
        format!("{}\n</work_state>", text[..end].trim_end())
    })
}

fn section(text: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    text.push('\n');
    text.push_str(title);
    for line in lines {
        text.push_str("\n- ");
        text.push_str(&line[..line.floor_char_boundary(LINE)]);
    }
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
                before.lines().skip_while(move |line| *line != title).skip(1).map_while(|line| line.strip_prefix("- "))
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

/// The latest of them that fit, and how many do not.
fn latest(files: Vec<String>) -> Vec<String> {
    let mut room = FOR_FILES;
    let fits = |line: &&String| {
        let size = line.len().min(LINE) + 3;
        room = room.saturating_sub(size);
        room > 0
    };
    let count = files.iter().rev().take_while(fits).count();
    let left = files.len() - count;
    let more = (left > 0).then(|| format!("(and {left} before these)"));
    more.into_iter().chain(files.into_iter().skip(left)).collect()
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
            "<work_state>\nChanged files:\n- A /w/old\n- in box: A /b/new\n- in box: M /w/a\nRunning commands:\n\
             - session id 7 in local: npm run dev\nPlan:\n- completed: one\n- in_progress: two\n</work_state>"
        );
        assert_eq!(message(&[state("hello")], &[]), None);
    }

    #[test]
    fn it_keeps_to_its_budget_with_the_latest_files() {
        let lines: Vec<String> = (0..5000).map(|n| format!("A /w/file-{n}")).collect();
        let text = message(&[output("1", &format!("{APPLIED}{}", lines.join("\n")))], &vec!["x".repeat(4000); 40]).unwrap();
        assert!(text.len() <= BUDGET + 20 && text.contains("file-4999") && text.contains("before these"), "{}", text.len());
        assert!(!text.contains("file-10\n"));
    }
}
