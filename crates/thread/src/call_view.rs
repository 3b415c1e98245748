//! A call as people are shown it: what it does, where, and what came of it.
//!
//! Terminals, transcripts and `exec --json` render these values; each decides on its own words, and none of them reads the records.

use serde_json::Value;

use crate::call::{CallFinished, CallOutcome, CallStarted};
use crate::detail::{CallDetail, ChangeKind, PlannedStep, Recorded};

/// What a call does, and where.
#[derive(Debug, Clone, PartialEq)]
pub struct CallView {
    /// The environment. Of a call that was refused, as the model named it.
    pub place: Option<String>,
    pub action: CallAction,
}

#[derive(Debug, Clone, PartialEq)]
pub enum CallAction {
    Command {
        command: String,
        /// Its call waits until it ends.
        is_awaited: bool,
    },
    Files(Vec<FileView>),
    McpTool {
        server: String,
        tool: String,
        arguments: Value,
    },
    Plan(Vec<PlannedStep>),
    /// A call of which the name of its tool is shown.
    Other,
}

/// A file that is to be changed, or was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileView {
    pub path: String,
    /// `add`, `delete` or `update`.
    pub change: &'static str,
    /// Hunks, once it was changed, unless it is no text or too large.
    pub diff: Option<String>,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedCallView {
    pub ending: CallEnding,
    /// What it would have done, if it was refused before it began.
    pub refused: Option<CallView>,
    pub exit_code: Option<i32>,
    /// What is kept of a command's output, and how many bytes it printed.
    pub output: Option<String>,
    pub output_bytes: u64,
    /// Files that were written and removed.
    pub files: Vec<FileView>,
    /// What its executor had to say besides.
    pub notices: Vec<String>,
    /// What an MCP server answered.
    pub result: Option<Value>,
    /// Why it failed, in the words of the program or of an MCP server.
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallEnding {
    Done,
    /// A command ended with another exit code than zero. What stopped it or stood in its way, if that is known.
    Exited {
        code: i32,
        stopped_by: Option<String>,
        sandbox_hint: Option<String>,
    },
    /// A command goes on without its call.
    RunsOn,
    /// Why, if that is a text.
    Failed(Option<String>),
    Declined,
    Lost,
    Stopped,
}

impl CallView {
    fn of(place: Option<String>, detail: Option<CallDetail>) -> Self {
        let file = |path: String, kind: &ChangeKind| FileView { path, change: kind.as_str(), diff: None };
        let (named, action) = match detail {
            Some(CallDetail::CommandExecution(detail)) => {
                let is_awaited = detail.is_awaited();
                (detail.environment_id, CallAction::Command { command: detail.command, is_awaited })
            }
            Some(CallDetail::FileChange(detail)) => {
                let files = detail.changes.into_iter().map(|change| file(change.path, &change.kind)).collect();
                (detail.environment_id, CallAction::Files(files))
            }
            Some(CallDetail::McpToolCall(detail)) => {
                let (server, tool, arguments) = (detail.server, detail.tool, detail.arguments);
                (detail.environment_id, CallAction::McpTool { server, tool, arguments })
            }
            Some(CallDetail::Plan(detail)) => (None, CallAction::Plan(detail.plan)),
            Some(CallDetail::ImageView(detail)) => (detail.environment_id, CallAction::Other),
            Some(CallDetail::SkillRead(detail)) => (detail.environment_id, CallAction::Other),
            Some(
                CallDetail::TerminalInteraction(_)
                | CallDetail::DynamicToolCall(_)
                | CallDetail::CollabAgentToolCall(_)
                | CallDetail::Unknown(_),
            )
            | None => (None, CallAction::Other),
        };
        Self { place: place.or(named), action }
    }
}

impl CallStarted {
    pub fn view(&self) -> CallView {
        let place = self.environment.as_ref().map(ToString::to_string);
        CallView::of(place, self.detail.as_ref().map(Recorded::read))
    }
}

impl CallFinished {
    pub fn view(&self) -> EndedCallView {
        let report = self.report();
        let error = report.error_text().or_else(|| report.error.as_ref()?["message"].as_str()).map(str::to_owned);
        let ending = match (self.outcome, report.exit_code) {
            (CallOutcome::Completed, Some(code)) if code != 0 => {
                CallEnding::Exited { code, stopped_by: report.limit, sandbox_hint: report.sandbox_hint }
            }
            (CallOutcome::Completed, None) if report.session_id.is_some() => CallEnding::RunsOn,
            (CallOutcome::Completed, _) => CallEnding::Done,
            (CallOutcome::Failed, _) => CallEnding::Failed(report.error_text().map(str::to_owned)),
            (CallOutcome::Declined, _) => CallEnding::Declined,
            (CallOutcome::Lost, _) => CallEnding::Lost,
            (CallOutcome::Aborted, _) => CallEnding::Stopped,
        };
        let files = report.changes.into_iter();
        EndedCallView {
            ending,
            refused: report.begun.map(|begun| CallView::of(None, Some(begun.read()))),
            exit_code: report.exit_code,
            output: report.aggregated_output,
            output_bytes: report.output_bytes.unwrap_or_default(),
            files: files.map(|file| FileView { path: file.path, change: file.kind.as_str(), diff: file.diff }).collect(),
            notices: report.notices,
            result: report.result,
            error,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::detail::CallReport;
    use crate::id::{CallId, TurnId};
    use crate::raw::Raw;

    fn finished(outcome: CallOutcome, report: Value) -> EndedCallView {
        let detail = Some(Recorded::<CallReport>::from(Raw::from(report)));
        CallFinished { turn: TurnId("t".into()), call: CallId("c".into()), outcome, items: vec![], detail }.view()
    }

    #[test]
    fn a_command_runs_on_only_if_it_can_be_asked_for_again() {
        let ending = |report: Value| finished(CallOutcome::Completed, report).ending;
        assert_eq!(ending(json!({"aggregatedOutput": "x", "sessionId": 7})), CallEnding::RunsOn);
        assert_eq!(ending(json!({"aggregatedOutput": "x", "session": 7, "exitCode": 0})), CallEnding::Done);
        // Other programs do not record exit codes.
        assert_eq!(ending(json!({"aggregatedOutput": "x"})), CallEnding::Done);
        let exited = CallEnding::Exited { code: 3, stopped_by: Some("its memory".into()), sandbox_hint: None };
        assert_eq!(ending(json!({"exitCode": 3, "limit": "its memory"})), exited);
    }

    #[test]
    fn a_refused_call_tells_what_it_would_have_done_and_where() {
        let begun = json!({"type": "commandExecution", "command": "make", "environmentId": "nowhere"});
        let view = finished(CallOutcome::Failed, json!({"error": "no such environment", "begun": begun}));
        let action = CallAction::Command { command: "make".into(), is_awaited: false };
        assert_eq!(view.refused, Some(CallView { place: Some("nowhere".into()), action }));
        assert_eq!(view.ending, CallEnding::Failed(Some("no such environment".into())));
        let of_server = finished(CallOutcome::Failed, json!({"error": {"message": "quota"}}));
        assert_eq!((of_server.ending, of_server.error.as_deref()), (CallEnding::Failed(None), Some("quota")));
    }
}
