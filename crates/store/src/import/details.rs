//! What clients are shown of calls, from what other programs wrote down of them.

use outpost_thread::{CallDetail, CallReport, ChangeKind, CommandDetail, FileChangeDetail, McpDetail, PlannedChange};
use serde_json::Value;

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name)?.as_str()
}

/// A command as people write it: the script of a shell is shown without the shell.
fn command(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(words) => {
            let words: Vec<&str> = words.iter().map(Value::as_str).collect::<Option<_>>()?;
            match words.as_slice() {
                [_, flag, script] if matches!(*flag, "-c" | "-lc") => Some((*script).to_owned()),
                words => Some(words.join(" ")),
            }
        }
        _ => None,
    }
}

/// Of a call as the model asked for it.
pub(super) fn asked(item: &Value, cwd: Option<&str>) -> Option<CallDetail> {
    let arguments: Value = match item.get("arguments").or_else(|| item.get("action"))? {
        Value::String(text) => serde_json::from_str(text).ok()?,
        other => other.clone(),
    };
    let said = ["cmd", "command"].into_iter().find_map(|name| arguments.get(name)).and_then(command)?;
    let place = ["workdir", "working_directory"].into_iter().find_map(|name| text(&arguments, name)).or(cwd).unwrap_or_default();
    Some(execution(said, place))
}

/// Of a call as a client was shown it.
pub(super) fn begun(detail: &Value) -> Option<CallDetail> {
    if let Some(invocation) = detail.get("invocation").or_else(|| detail.get("server").map(|_| detail)) {
        let arguments = invocation.get("arguments").cloned().unwrap_or_default();
        let (server, tool) = (text(invocation, "server")?.to_owned(), text(invocation, "tool")?.to_owned());
        return Some(CallDetail::McpToolCall(McpDetail { server, tool, arguments, environment_id: None }));
    }
    if let Some(changes) = detail.get("changes") {
        return Some(CallDetail::FileChange(FileChangeDetail { changes: updates(changes), environment_id: None }));
    }
    let said = detail.get("command").and_then(command)?;
    Some(execution(said, text(detail, "cwd").unwrap_or_default()))
}

fn execution(command: String, cwd: &str) -> CallDetail {
    CallDetail::CommandExecution(CommandDetail { command, cwd: cwd.to_owned(), ..CommandDetail::default() })
}

/// Changes of files: a map from paths, or a list of them.
fn updates(changes: &Value) -> Vec<PlannedChange> {
    let update = |path: &str, change: &Value| {
        let kind = change.get("kind").filter(|kind| kind.is_object()).unwrap_or(change);
        let diff = ["unified_diff", "diff", "content"].into_iter().find_map(|name| text(change, name)).unwrap_or_default();
        let kind = match text(kind, "type") {
            Some("add") => ChangeKind::Add,
            Some("delete") => ChangeKind::Delete,
            _ => ChangeKind::Update { move_path: text(kind, "move_path").map(str::to_owned) },
        };
        PlannedChange { path: path.to_owned(), kind, diff: diff.to_owned() }
    };
    match changes {
        Value::Object(changes) => changes.iter().map(|(path, change)| update(path, change)).collect(),
        Value::Array(changes) => changes.iter().filter_map(|change| Some(update(text(change, "path")?, change))).collect(),
        _ => Vec::new(),
    }
}

/// The end of a call as clients are shown it; what was written down elsewhere stays with it.
pub(super) fn ended(detail: Value) -> CallReport {
    let number = |names: [&str; 2]| names.into_iter().find_map(|name| detail.get(name)?.as_i64());
    let output = ["aggregated_output", "aggregatedOutput", "formatted_output", "stdout"].into_iter().find_map(|name| text(&detail, name));
    let took = detail
        .get("duration")
        .and_then(|duration| Some(duration.get("secs")?.as_u64()?.saturating_mul(1000) + duration.get("nanos")?.as_u64()? / 1_000_000));
    let result = detail.get("result").filter(|result| !result.is_null());
    CallReport {
        exit_code: number(["exit_code", "exitCode"]).and_then(|code| i32::try_from(code).ok()),
        aggregated_output: output.map(str::to_owned),
        duration_ms: took.or_else(|| number(["duration_ms", "durationMs"]).and_then(|took| u64::try_from(took).ok())),
        result: result.map(|result| result.get("Ok").unwrap_or(result).clone()),
        original: Some(detail),
        ..CallReport::default()
    }
}
