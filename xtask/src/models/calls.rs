//! The calls that a model made, as the journals of its threads have them: also those that no client is shown, of tools that there are not
//! and of `write_stdin`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Calls {
    pub count: usize,
    /// The most in a row that were the same and had the same result. Waiting for something that runs is none.
    pub repeats: usize,
}

/// The calls of all threads of a home.
pub(super) fn of(home: &Path) -> anyhow::Result<Calls> {
    let mut calls = Calls { count: 0, repeats: 0 };
    for journal in journals(&home.join("threads")) {
        let found = in_journal(&fs::read_to_string(journal)?);
        calls = Calls { count: calls.count + found.count, repeats: calls.repeats.max(found.repeats) };
    }
    Ok(calls)
}

fn journals(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let found = entries.flat_map(|path| if path.is_dir() { journals(&path) } else { vec![path] });
    found.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl")).collect()
}

fn in_journal(lines: &str) -> Calls {
    let entries: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of_kind = |kind: &'static str| entries.iter().filter(move |entry| entry["kind"] == kind).map(|entry| &entry["data"]);
    let results: HashMap<&str, &Value> =
        of_kind("callFinished").filter_map(|end| Some((end["call"].as_str()?, &end["items"][0]["output"]))).collect();
    let (mut count, mut repeats, mut in_a_row, mut last) = (0, 0, 0, None);
    for (answer, call) in
        of_kind("modelAnswered").flat_map(|answer| answer["calls"].as_array().into_iter().flatten().map(move |call| (answer, call)))
    {
        let item = call["item"].as_u64().and_then(|at| answer["items"].get(usize::try_from(at).ok()?));
        let arguments = item.map(|item| format!("{}{}", item["arguments"], item["input"]));
        let result = call["call"].as_str().and_then(|id| results.get(id)).and_then(|output| output.as_str()).unwrap_or_default();
        // How long it took differs every time.
        let result = result.strip_prefix("Time: ").and_then(|rest| rest.split_once('\n')).map_or(result, |(_, rest)| rest);
        let tool = call["tool"].as_str().unwrap_or_default();
        count += 1;
        let waits = matches!(tool, "wait_agent" | "wait_for_environment") || tool == "write_stdin" && result.starts_with("Still running");
        if waits {
            (in_a_row, last) = (0, None);
            continue;
        }
        let this = Some((tool, arguments, result));
        in_a_row = if this == last { in_a_row + 1 } else { 1 };
        last = this;
        repeats = repeats.max(in_a_row);
    }
    Calls { count, repeats }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn journal(calls: &[(&str, &str, &str)]) -> String {
        let mut lines = vec![json!({"format": "outpost-journal"}).to_string()];
        for (at, (tool, arguments, output)) in calls.iter().enumerate() {
            let id = format!("c{at}");
            let items = json!([{"type": "message"}, {"type": "function_call", "call_id": id, "name": tool, "arguments": arguments}]);
            lines.push(
                json!({"kind": "modelAnswered", "data": {"items": items, "calls": [{"call": id, "tool": tool, "item": 1}]}}).to_string(),
            );
            let items = json!([{"type": "function_call_output", "call_id": id, "output": output}]);
            lines.push(json!({"kind": "callFinished", "data": {"call": id, "items": items}}).to_string());
        }
        lines.join("\n")
    }

    #[test]
    fn calls_of_every_tool_are_counted() {
        let invented = ("write_stdin", r#"{"session_id":1}"#, "no command with the session id 1 is running");
        let unknown = ("delete_file", r#"{"path":"a"}"#, "there is no tool `delete_file`");
        assert_eq!(in_journal(&journal(&[invented, invented, unknown, unknown, unknown, invented])), Calls { count: 6, repeats: 3 });
    }

    #[test]
    fn other_results_and_waiting_are_no_repeats() {
        let waiting = ("write_stdin", r#"{"session_id":1}"#, "Time: 5 s\nStill running");
        let run = |output| ("exec_command", r#"{"cmd":"date"}"#, output);
        let calls = [waiting, waiting, waiting, run("Time: 1 s\none"), run("Time: 2 s\none"), run("Time: 1 s\ntwo")];
        assert_eq!(in_journal(&journal(&calls)), Calls { count: 6, repeats: 2 });
    }

    #[test]
    fn journals_are_found_below_their_days() {
        let home = tempfile::tempdir().unwrap();
        let day = home.path().join("threads/2026/11/18");
        fs::create_dir_all(&day).unwrap();
        fs::write(day.join("a.jsonl"), journal(&[("x", "{}", "y"), ("x", "{}", "y")])).unwrap();
        fs::write(day.join("a.lease"), "").unwrap();
        assert_eq!(of(home.path()).unwrap(), Calls { count: 2, repeats: 2 });
    }
}
