//! What a command looked like when its call ended, for the model and for clients.

use outpost_thread::{CallId, CallOutcome, CallReport};

use super::output::{HeadTail, SHOWN_LATER_TOKENS};
use super::processes::{ProcessEnd, RunningCommand};
use super::{CallEnd, ResultType};
use crate::denial;

/// What the report of a command that was started begins with: how long it has run. A refusal begins otherwise.
pub(crate) const TIME: &str = "Time: ";
/// The line below it, of a command that has ended.
pub(crate) const EXIT_CODE: &str = "Exit code: ";
/// The same of one that has not.
pub(crate) const STILL_RUNNING: &str = "Still running";
/// What stands before the number under which a command goes on, in whatever the model is told of it.
pub(crate) const SESSION_ID: &str = "session id";
/// The line before what the command printed.
const OUTPUT: &str = "\nOutput:\n";

/// What a command printed, of the report that the model got.
pub fn printed(report: &str) -> Option<&str> {
    report.split_once(OUTPUT).map(|(_, printed)| printed)
}

/// A report without its first line, which differs every time. Nothing for a text that is not a report of a command.
pub(crate) fn without_time(report: &str) -> Option<&str> {
    report.strip_prefix(TIME)?.split_once('\n').map(|(_, rest)| rest)
}

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
        (Some(ProcessEnd::Exited { denied: true, limit: None, .. }), Some(around)) => Some(denial::notice(&shown.text, around)),
        _ => None,
    };
    let state = match &end {
        Some(ProcessEnd::Exited { code, limit: Some(limit), .. }) => format!("{EXIT_CODE}{code}\nIt was stopped by {limit}."),
        Some(ProcessEnd::Exited { code, denied: false, .. }) => format!("{EXIT_CODE}{code}"),
        Some(ProcessEnd::Exited { code, .. }) => {
            let generic = "The sandbox probably kept it from something it needs.";
            format!("{EXIT_CODE}{code}\n{}", hint.as_ref().map_or(generic, |hint| hint.model.as_str()))
        }
        Some(ProcessEnd::Lost(reason)) => format!("Lost: its outcome is unknown ({reason})"),
        None => format!("{STILL_RUNNING}, {SESSION_ID}: {session}"),
    };
    let (exit_code, denied, limit, notices) = match &end {
        Some(ProcessEnd::Exited { code, denied, limit, notices }) => (Some(*code), *denied, limit.as_ref(), &notices[..]),
        _ => (None, false, None, &[][..]),
    };
    let notes: String = notices.iter().map(|notice| format!("\nNote: {notice}")).collect();
    let text = format!("{TIME}{seconds:.3} s\n{state}{notes}\nTokens: {}{OUTPUT}{}", shown.original_tokens, shown.text);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_report_are_found_again() {
        let report = format!("{TIME}0.100 s\n{EXIT_CODE}0\nTokens: 2{OUTPUT}one\nOutput:\ntwo");
        assert_eq!(printed(&report), Some("one\nOutput:\ntwo"));
        assert_eq!(without_time(&report).map(|rest| rest.starts_with(EXIT_CODE)), Some(true));
        assert_eq!((printed("no such directory"), without_time("no such directory")), (None, None));
    }
}
