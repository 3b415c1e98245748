//! What is done: the calls of a turn that clients see as items.

use std::collections::BTreeMap;

use outpost_runtime::patch::Diff;
use outpost_thread::{
    ApprovalAsked, ApprovalKind, CallDetail, CallId, CallOutcome, CallReport, ChangeKind, CommandOrigin, DynamicDetail, McpDetail,
    PlannedChange, PlannedStep, PlannedStepStatus, WrittenFile,
};
use outpost_wire::app::event::{PlanStatus, PlanStep};
use outpost_wire::app::item::{CommandAction, CommandSource, FileUpdate, FileUpdateKind, Item, WorkStatus};

use super::same;

/// The item of a call that begins. Calls that only think, look or wait have none.
pub(super) fn item(call: &CallId, thread: &str, detail: CallDetail) -> Option<Item> {
    let id = call.to_string();
    let status = WorkStatus::InProgress;
    Some(match detail {
        CallDetail::CommandExecution(detail) => {
            let is_users = detail.source == CommandOrigin::UserShell;
            let source = if is_users { CommandSource::UserShell } else { CommandSource::Agent };
            command_item(id, CommandPlace { command: detail.command, cwd: detail.cwd, environment_id: detail.environment_id }, source)
        }
        CallDetail::FileChange(detail) => Item::FileChange {
            id,
            changes: detail.changes.into_iter().map(update).collect(),
            status,
            environment_id: detail.environment_id,
            error: None,
        },
        CallDetail::ImageView(detail) => Item::ImageView { id, path: detail.path, environment_id: detail.environment_id, error: None },
        CallDetail::McpToolCall(detail) => mcp_item(id, detail),
        CallDetail::DynamicToolCall(detail) => dynamic_item(id, detail),
        CallDetail::CollabAgentToolCall(detail) => Item::CollabAgentToolCall {
            id,
            tool: detail.tool,
            status,
            sender_thread_id: thread.to_owned(),
            receiver_thread_ids: detail.receivers,
            agents_states: BTreeMap::new(),
            prompt: detail.prompt,
            model: None,
            reasoning_effort: None,
        },
        CallDetail::TerminalInteraction(_) | CallDetail::SkillRead(_) | CallDetail::Plan(_) | CallDetail::Unknown(_) => return None,
    })
}

/// The item of a call that a user is asked about.
pub(super) fn asked_item(call: &CallId, asked: &ApprovalAsked) -> Option<Item> {
    let id = call.to_string();
    let question = asked.question();
    Some(match &asked.kind {
        ApprovalKind::Command => {
            let (command, cwd) = (question.command.unwrap_or_default(), question.cwd.unwrap_or_default());
            command_item(id, CommandPlace { command, cwd, environment_id: question.environment_id }, CommandSource::Agent)
        }
        ApprovalKind::FileChange => Item::FileChange {
            id,
            changes: question.changes.into_iter().map(update).collect(),
            status: WorkStatus::InProgress,
            environment_id: question.environment_id,
            error: None,
        },
        ApprovalKind::McpTool => {
            let (server, tool) = (question.server.unwrap_or_default(), question.tool.unwrap_or_default());
            mcp_item(id, McpDetail { server, tool, arguments: question.arguments, environment_id: question.environment_id })
        }
        ApprovalKind::DynamicTool => {
            let (namespace, tool) = (question.namespace, question.tool.unwrap_or_default());
            dynamic_item(id, DynamicDetail { namespace, tool, arguments: question.arguments })
        }
        ApprovalKind::Permissions | ApprovalKind::UserInput | ApprovalKind::McpElicitation | ApprovalKind::Unknown(_) => return None,
    })
}

struct CommandPlace {
    command: String,
    cwd: String,
    environment_id: Option<String>,
}

fn command_item(id: String, place: CommandPlace, source: CommandSource) -> Item {
    Item::CommandExecution {
        id,
        command_actions: vec![CommandAction::Unknown { command: place.command.clone() }],
        command: place.command,
        cwd: place.cwd,
        environment_id: place.environment_id,
        process_id: None,
        source,
        status: WorkStatus::InProgress,
        aggregated_output: None,
        exit_code: None,
        duration_ms: None,
        plugin_id: None,
        script_path: None,
        sandbox_hint: None,
    }
}

fn mcp_item(id: String, detail: McpDetail) -> Item {
    Item::McpToolCall {
        id,
        server: detail.server,
        tool: detail.tool,
        arguments: detail.arguments,
        status: WorkStatus::InProgress,
        result: None,
        error: None,
        duration_ms: None,
        plugin_id: None,
        app_context: None,
        mcp_app_resource_uri: None,
        mcp_app_ui: None,
        read_only_hint: None,
        environment_id: detail.environment_id,
    }
}

fn dynamic_item(id: String, detail: DynamicDetail) -> Item {
    Item::DynamicToolCall {
        id,
        namespace: detail.namespace,
        tool: detail.tool,
        arguments: detail.arguments,
        status: WorkStatus::InProgress,
        content_items: None,
        success: None,
        duration_ms: None,
    }
}

fn update(change: PlannedChange) -> FileUpdate {
    let kind = match change.kind {
        ChangeKind::Add => FileUpdateKind::Add,
        ChangeKind::Delete => FileUpdateKind::Delete,
        ChangeKind::Update { move_path } => FileUpdateKind::Update { move_path },
    };
    FileUpdate { path: change.path, kind, diff: change.diff }
}

/// The item of a call that is over, after so many milliseconds.
pub(super) fn completed(item: &mut Item, outcome: CallOutcome, ended: &CallReport, took: u64) {
    let succeeded = match (outcome, ended.exit_code) {
        (CallOutcome::Completed, None | Some(0)) => WorkStatus::Completed,
        (CallOutcome::Declined, _) => WorkStatus::Declined,
        _ => WorkStatus::Failed,
    };
    match item {
        Item::CommandExecution { status, process_id, aggregated_output, exit_code, duration_ms, sandbox_hint, .. } => {
            *sandbox_hint = ended.sandbox_hint.clone();
            *status = succeeded;
            *exit_code = ended.exit_code;
            *process_id = ended.session_id.map(|session| session.to_string());
            *aggregated_output = ended.aggregated_output.clone().or_else(|| ended.error_text().map(str::to_owned));
            *duration_ms = Some(ended.duration_ms.unwrap_or(took));
        }
        Item::FileChange { status, changes, error, .. } => {
            *status = succeeded;
            *error = ended.error_text().map(str::to_owned);
            changes.iter_mut().for_each(|change| place(change, &ended.changes));
        }
        Item::ImageView { error, .. } => *error = ended.error_text().map(str::to_owned),
        Item::McpToolCall { status, result, error, duration_ms, .. } => {
            *status = if succeeded == WorkStatus::Completed { succeeded } else { WorkStatus::Failed };
            *result = ended.result.clone();
            *error = ended.error.clone().map(|error| if error.is_string() { serde_json::json!({"message": error}) } else { error });
            *duration_ms = Some(ended.duration_ms.unwrap_or(took));
        }
        Item::DynamicToolCall { status, content_items, success, duration_ms, .. } => {
            *status = if succeeded == WorkStatus::Completed { succeeded } else { WorkStatus::Failed };
            let answer = ended.answer.clone().unwrap_or_default();
            *content_items = same(&answer["contentItems"]);
            *success = Some(succeeded == WorkStatus::Completed);
            *duration_ms = Some(took);
        }
        Item::CollabAgentToolCall { status, receiver_thread_ids, agents_states, .. } => {
            *status = if succeeded == WorkStatus::Completed { succeeded } else { WorkStatus::Failed };
            if !ended.receivers.is_empty() {
                receiver_thread_ids.clone_from(&ended.receivers);
            }
            agents_states.clone_from(&ended.states);
        }
        _ => {}
    }
}

/// Shows a change as it was made: with its true places, and with what was in a file that is gone.
fn place(change: &mut FileUpdate, written: &[WrittenFile]) {
    let own = || written.iter().find(|written| written.path == change.path);
    let true_one = match &change.kind {
        FileUpdateKind::Add => None,
        FileUpdateKind::Update { move_path: Some(_) } => written.iter().find_map(|written| moved(written, &change.path)),
        FileUpdateKind::Update { move_path: None } => own().and_then(|written| written.diff.clone()),
        FileUpdateKind::Delete => own().and_then(removed),
    };
    if let Some(diff) = true_one {
        change.diff = diff;
    }
}

/// What became of a file that was moved, if it was moved here.
fn moved(written: &WrittenFile, from: &str) -> Option<String> {
    written.moved_diff.clone().filter(|_| written.moved_from.as_deref() == Some(from))
}

/// What was in a file that is gone.
fn removed(written: &WrittenFile) -> Option<String> {
    Some(Diff::parse(written.diff.as_deref()?)?.removed())
}

pub(super) fn plan(steps: Vec<PlannedStep>) -> Vec<PlanStep> {
    let status = |status| match status {
        PlannedStepStatus::Completed => PlanStatus::Completed,
        PlannedStepStatus::InProgress => PlanStatus::InProgress,
        PlannedStepStatus::Pending => PlanStatus::Pending,
    };
    steps.into_iter().map(|step| PlanStep { status: status(step.status), step: step.step }).collect()
}
