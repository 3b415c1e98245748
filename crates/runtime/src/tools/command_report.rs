//! What a command looked like when its call ended, for the model and for clients.

use outpost_thread::{CallId, CallOutcome, CallReport};

use super::output::{HeadTail, SHOWN_LATER_TOKENS};
use super::processes::{ProcessEnd, RunningCommand};
use super::{CallEnd, ResultType};
use crate::denial;

/// What the model and clients are told of a command.
pub(super) fn report(
    result: ResultType,
    call: &CallId,
    running: &RunningCommand,
    end: Option<ProcessEnd>,
    session: u64,
    output_tokens: usize,
) -> CallEnd {
    let shown = running.take(output_tokens);
    let seconds = running.since_start().as_secs_f64();
    let hint = match (&end, running.around()) {
        (Some(ProcessEnd::Exited { denied: true, limit: None, .. }), Some(around)) => Some(denial::told(&shown.text, around)),
        _ => None,
    };
    let state = match &end {
        Some(ProcessEnd::Exited { code, limit: Some(limit), .. }) => format!("Exit code: {code}\nIt was stopped by {limit}."),
        Some(ProcessEnd::Exited { code, denied: false, .. }) => format!("Exit code: {code}"),
        Some(ProcessEnd::Exited { code, .. }) => {
            let generic = "The sandbox probably kept it from something it needs.";
            format!("Exit code: {code}\n{}", hint.as_ref().map_or(generic, |hint| hint.model.as_str()))
        }
        Some(ProcessEnd::Lost(reason)) => format!("Lost: its outcome is unknown ({reason})"),
        None => format!("Still running, session id: {session}"),
    };
    let (exit_code, denied, limit, notices) = match &end {
        Some(ProcessEnd::Exited { code, denied, limit, notices }) => (Some(*code), *denied, limit.as_ref(), &notices[..]),
        _ => (None, false, None, &[][..]),
    };
    let notes: String = notices.iter().map(|notice| format!("\nNote: {notice}")).collect();
    let text = format!("Time: {seconds:.3} s\n{state}{notes}\nTokens: {}\nOutput:\n{}", shown.original_tokens, shown.text);
    let mut later = HeadTail::default();
    later.push(shown.text.as_bytes());
    let report = CallReport {
        exit_code,
        duration_ms: Some((seconds * 1000.0) as u64),
        aggregated_output: Some(later.show(SHOWN_LATER_TOKENS).text),
        session: Some(session),
        session_id: end.is_none().then_some(session),
        sandbox_denied: Some(denied),
        output_bytes: Some(running.taken()),
        limit: limit.map(ToString::to_string),
        sandbox_hint: hint.map(|hint| hint.user),
        notices: notices.to_vec(),
        ..CallReport::default()
    };
    let outcome = match end {
        Some(ProcessEnd::Lost(_)) => CallOutcome::Lost,
        _ => CallOutcome::Completed,
    };
    CallEnd { outcome, items: vec![result.item(call, text)], report: Some(report.into()), facts: vec![] }
}
