//! What is done: the calls of a turn that clients see as items.

use std::collections::BTreeMap;

use outpost_thread::{CallFinished, CallId, CallOutcome, Raw};
use outpost_wire::app::event::{PlanStatus, PlanStep};
use outpost_wire::app::item::{CommandAction, CommandSource, FileUpdate, FileUpdateKind, Item, WorkStatus};
use serde::Deserialize;
use serde_json::Value;

use super::diffs::PatchedFile;
use super::same;

/// What the loop notes of a call when it begins. Each kind uses some of it.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct CallStart {
    #[serde(rename = "type")]
    pub kind: String,
    command: String,
    cwd: String,
    environment_id: Option<String>,
    source: Option<String>,
    changes: Vec<FileUpdate>,
    path: String,
    server: String,
    tool: String,
    namespace: Option<String>,
    arguments: Value,
    prompt: Option<String>,
    /// Agents that it is about.
    receivers: Vec<String>,
    pub explanation: Option<String>,
    pub plan: Vec<ReportedStep>,
    pub process_call: Option<String>,
    pub stdin: String,
}

#[derive(Deserialize)]
pub struct ReportedStep {
    step: String,
    status: String,
}

/// What it notes of a call's end.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct CallEndDetail {
    exit_code: Option<i32>,
    duration_ms: Option<u64>,
    aggregated_output: Option<String>,
    sandbox_hint: Option<String>,
    /// The command goes on under this name.
    pub session_id: Option<u64>,
    /// What its executor had to say besides.
    pub notices: Vec<String>,
    error: Option<Value>,
    result: Option<Value>,
    answer: Option<Value>,
    /// Agents that it was about, and how they stand.
    receivers: Vec<String>,
    states: BTreeMap<String, Value>,
    /// Files that were written and removed, and what their paths are shown relative to.
    pub changes: Vec<PatchedFile>,
    pub root: String,
    /// What it would have been, if it was refused before it began.
    pub begun: Option<CallStart>,
}

pub fn read_begun(detail: Option<&Raw>) -> CallStart {
    detail.and_then(|raw| raw.read().ok()).unwrap_or_default()
}

pub fn read_ended(detail: Option<&Raw>) -> CallEndDetail {
    detail.and_then(|raw| raw.read().ok()).unwrap_or_default()
}

/// The item of a call that begins, or that a user is asked about. Calls that only think, look or wait have none.
pub fn item(call: &CallId, thread: &str, kind: &str, begun: CallStart) -> Option<Item> {
    let id = call.to_string();
    let status = WorkStatus::InProgress;
    Some(match kind {
        "commandExecution" | "command" => Item::CommandExecution {
            id,
            command_actions: vec![CommandAction::Unknown { command: begun.command.clone() }],
            command: begun.command,
            cwd: begun.cwd,
            environment_id: begun.environment_id,
            process_id: None,
            source: if begun.source.as_deref() == Some("userShell") { CommandSource::UserShell } else { CommandSource::Agent },
            status,
            aggregated_output: None,
            exit_code: None,
            duration_ms: None,
            plugin_id: None,
            script_path: None,
            sandbox_hint: None,
        },
        "fileChange" => Item::FileChange { id, changes: begun.changes, status, environment_id: begun.environment_id },
        "imageView" => Item::ImageView { id, path: begun.path, environment_id: begun.environment_id },
        "mcpToolCall" | "mcpTool" => Item::McpToolCall {
            id,
            server: begun.server,
            tool: begun.tool,
            arguments: begun.arguments,
            status,
            result: None,
            error: None,
            duration_ms: None,
            plugin_id: None,
            app_context: None,
            mcp_app_resource_uri: None,
            mcp_app_ui: None,
            read_only_hint: None,
            environment_id: begun.environment_id,
        },
        "dynamicToolCall" | "dynamicTool" => Item::DynamicToolCall {
            id,
            namespace: begun.namespace,
            tool: begun.tool,
            arguments: begun.arguments,
            status,
            content_items: None,
            success: None,
            duration_ms: None,
        },
        "collabAgentToolCall" => Item::CollabAgentToolCall {
            id,
            tool: begun.tool,
            status,
            sender_thread_id: thread.to_owned(),
            receiver_thread_ids: begun.receivers,
            agents_states: BTreeMap::new(),
            prompt: begun.prompt,
            model: None,
            reasoning_effort: None,
        },
        _ => return None,
    })
}

/// The item of a call that is over, after so many milliseconds.
pub fn completed(item: &mut Item, finished: &CallFinished, took: u64) {
    let ended = read_ended(finished.detail.as_ref());
    let succeeded = match (finished.outcome, ended.exit_code) {
        (CallOutcome::Completed, None | Some(0)) => WorkStatus::Completed,
        (CallOutcome::Declined, _) => WorkStatus::Declined,
        _ => WorkStatus::Failed,
    };
    match item {
        Item::CommandExecution { status, process_id, aggregated_output, exit_code, duration_ms, sandbox_hint, .. } => {
            *sandbox_hint = ended.sandbox_hint;
            *status = succeeded;
            *exit_code = ended.exit_code;
            *process_id = ended.session_id.map(|session| session.to_string());
            *aggregated_output = ended.aggregated_output.or_else(|| ended.error.and_then(|error| error.as_str().map(str::to_owned)));
            *duration_ms = Some(ended.duration_ms.unwrap_or(took));
        }
        Item::FileChange { status, changes, .. } => {
            *status = succeeded;
            changes.iter_mut().for_each(|change| place(change, &ended.changes));
        }
        Item::McpToolCall { status, result, error, duration_ms, .. } => {
            *status = if succeeded == WorkStatus::Completed { succeeded } else { WorkStatus::Failed };
            *result = ended.result;
            *error = ended.error.map(|error| if error.is_string() { serde_json::json!({"message": error}) } else { error });
            *duration_ms = Some(ended.duration_ms.unwrap_or(took));
        }
        Item::DynamicToolCall { status, content_items, success, duration_ms, .. } => {
            *status = if succeeded == WorkStatus::Completed { succeeded } else { WorkStatus::Failed };
            let answer = ended.answer.unwrap_or_default();
            *content_items = same(&answer["contentItems"]);
            *success = Some(succeeded == WorkStatus::Completed);
            *duration_ms = Some(took);
        }
        Item::CollabAgentToolCall { status, receiver_thread_ids, agents_states, .. } => {
            *status = if succeeded == WorkStatus::Completed { succeeded } else { WorkStatus::Failed };
            if !ended.receivers.is_empty() {
                *receiver_thread_ids = ended.receivers;
            }
            *agents_states = ended.states;
        }
        _ => {}
    }
}

/// Shows a change as it was made: with its true places, and with what was in a file that is gone.
fn place(change: &mut FileUpdate, written: &[PatchedFile]) {
    let own = || written.iter().find(|written| written.path == change.path);
    let true_one = match &change.kind {
        FileUpdateKind::Add => None,
        FileUpdateKind::Update { move_path: Some(_) } => written.iter().find_map(|written| written.moved(&change.path)).map(str::to_owned),
        FileUpdateKind::Update { move_path: None } => own().and_then(PatchedFile::hunks).map(str::to_owned),
        FileUpdateKind::Delete => own().and_then(PatchedFile::removed),
    };
    if let Some(diff) = true_one {
        change.diff = diff;
    }
}

pub fn plan(steps: Vec<ReportedStep>) -> Vec<PlanStep> {
    let status = |word: &str| match word {
        "completed" => PlanStatus::Completed,
        "in_progress" => PlanStatus::InProgress,
        _ => PlanStatus::Pending,
    };
    steps.into_iter().map(|step| PlanStep { status: status(&step.status), step: step.step }).collect()
}
