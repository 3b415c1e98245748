//! Entries as text for people: who said what, which calls were made and what came of them.

use std::collections::BTreeMap;

use outpost_runtime::tools::command_report::printed;
use outpost_store::words_of;
use outpost_thread::{
    CallAction, CallEnding, CallFinished, CallStarted, CallView, Entry, Fact, GeneratedImage, InputOrigin, Kept, Raw, TurnStatus,
    is_user_message,
};
use serde_json::Value;

/// One thing to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TranscriptPiece {
    Turn {
        id: String,
        at: u64,
    },
    User(String),
    Agent(String),
    /// A command, and where it ran.
    Command {
        environment: String,
        command: String,
    },
    /// Any other call: its name and parameters.
    Call {
        tool: String,
        parameters: String,
    },
    Output {
        text: String,
        outcome: String,
    },
    /// A picture that the model made, and where it is.
    Image(String),
    /// What stands here cannot be read.
    Missing(String),
    /// Something else worth a line.
    Note(String),
}

/// So many messages are shown again when a conversation is taken up, however long its last turn was.
pub(crate) const SHOWN_AGAIN: usize = 200;

/// The last of what was said, and how many messages stand before it. What was done is not shown again.
pub(crate) fn recent(mut pieces: Vec<TranscriptPiece>, most: usize) -> (usize, Vec<TranscriptPiece>) {
    let is_said = |piece: &TranscriptPiece| {
        matches!(piece, TranscriptPiece::User(_) | TranscriptPiece::Agent(_) | TranscriptPiece::Image(_) | TranscriptPiece::Missing(_))
    };
    pieces.retain(is_said);
    let earlier = pieces.len().saturating_sub(most);
    pieces.drain(..earlier);
    (earlier, pieces)
}

/// What there is to show of entries, in their order.
pub(crate) fn pieces(entries: &[Entry]) -> Vec<TranscriptPiece> {
    let mut pieces = Vec::new();
    // Inputs stand before the turn that takes them up; people read it the other way round.
    let mut waiting: Vec<TranscriptPiece> = Vec::new();
    let commands = commands(entries);
    for entry in entries {
        match &entry.fact {
            Fact::InputReceived(input) => {
                let items = if input.items.is_empty() { &input.content } else { &input.items };
                let said =
                    items.iter().filter(|item| input.items.is_empty() || input.origin != InputOrigin::History || is_user_message(item));
                let text = said.map(words_of).collect::<Vec<_>>().join("\n");
                waiting.push(TranscriptPiece::User(text.trim().to_owned()));
                if input.turn.is_some() || input.origin == InputOrigin::History {
                    pieces.append(&mut waiting);
                }
            }
            Fact::TurnStarted(turn) => {
                pieces.push(TranscriptPiece::Turn { id: turn.turn.to_string(), at: entry.at });
                pieces.append(&mut waiting);
            }
            Fact::ModelAnswered(answer) => pieces.extend(answer.items.iter().filter_map(|item| answered(item, &commands))),
            Fact::CallFinished(end) => pieces.push(output(end)),
            Fact::ContextCompacted(compacted) => {
                let kept = compacted.kept.iter().filter(|kept| matches!(kept, Kept::Item(_))).count();
                pieces.push(TranscriptPiece::Note(format!("the context was compacted to {kept} items")));
            }
            Fact::TurnFinished(end) => match end.status {
                TurnStatus::Completed => {}
                TurnStatus::Failed => pieces.push(TranscriptPiece::Note("the turn failed".to_owned())),
                TurnStatus::Interrupted => pieces.push(TranscriptPiece::Note("the turn was interrupted".to_owned())),
            },
            Fact::ThreadForked(fork) => {
                pieces.push(TranscriptPiece::Note(format!("forked from {} after entry {}", fork.parent, fork.base.ordinal)));
            }
            Fact::DamageNoted(noted) => {
                pieces.extend(noted.here(entry.ordinal).map(|range| TranscriptPiece::Missing(format!("missing here: {range}"))));
                if noted.continued {
                    let ranges: Vec<String> = noted.damage.iter().map(ToString::to_string).collect();
                    pieces.push(TranscriptPiece::Note(format!("the thread was continued without what is missing: {}", ranges.join("; "))));
                }
            }
            _ => {}
        }
    }
    pieces.append(&mut waiting);
    pieces
}

/// The commands of calls that were started, by their ids.
fn commands(entries: &[Entry]) -> BTreeMap<String, TranscriptPiece> {
    let started = entries.iter().filter_map(|entry| if let Fact::CallStarted(started) = &entry.fact { Some(started) } else { None });
    let command = |started: &CallStarted| {
        let CallView { place: Some(environment), action: CallAction::Command { command, .. } } = started.view() else { return None };
        Some((started.call.to_string(), TranscriptPiece::Command { environment, command }))
    };
    started.filter_map(|started| command(started)).collect()
}

/// What came of a call. Of a command, what the model is told besides its output is left out.
fn output(end: &CallFinished) -> TranscriptPiece {
    let view = end.view();
    let given = end.items.iter().map(words_of).collect::<Vec<_>>().join("\n");
    let is_command = view.output.is_some();
    // A command that was stopped with its turn told the model nothing; what it printed is kept for people.
    let text = if end.items.is_empty() { view.output.unwrap_or_default() } else { given };
    let shown = printed(&text).filter(|_| is_command).unwrap_or(&text);
    let outcome = match view.ending {
        CallEnding::Done => String::new(),
        CallEnding::Exited { code, .. } => format!("exit code {code}"),
        CallEnding::RunsOn => "running in the background".to_owned(),
        CallEnding::Failed(_) => "failed".to_owned(),
        CallEnding::Declined => "declined".to_owned(),
        CallEnding::Lost => "lost: its outcome is unknown".to_owned(),
        CallEnding::Stopped => "stopped".to_owned(),
    };
    TranscriptPiece::Output { text: shown.trim_end().to_owned(), outcome }
}

fn answered(item: &Raw, commands: &BTreeMap<String, TranscriptPiece>) -> Option<TranscriptPiece> {
    if let Some(image) = GeneratedImage::of(item) {
        return Some(TranscriptPiece::Image(image.to_string()));
    }
    let value: Value = item.read().ok()?;
    let member = |name: &str| value.get(name).and_then(Value::as_str);
    match member("type")? {
        "message" => Some(TranscriptPiece::Agent(words_of(item).trim().to_owned())),
        "reasoning" => {
            let text = words_of(item);
            (!text.trim().is_empty()).then(|| TranscriptPiece::Note(format!("thought: {}", text.trim())))
        }
        kind if kind.ends_with("_call") => {
            if let Some(command) = member("call_id").and_then(|id| commands.get(id)) {
                return Some(command.clone());
            }
            let tool = member("name").unwrap_or(kind).to_owned();
            let parameters = member("arguments").or_else(|| member("input")).map_or_else(|| words_of(item), str::to_owned);
            Some(TranscriptPiece::Call { tool, parameters })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_turn_the_last_messages_are_shown_again() {
        let output = || TranscriptPiece::Output { text: "x".into(), outcome: String::new() };
        let pieces: Vec<TranscriptPiece> = (0..5000).flat_map(|number| [TranscriptPiece::Agent(number.to_string()), output()]).collect();
        let (earlier, shown) = recent(pieces, SHOWN_AGAIN);
        assert_eq!((earlier, shown.len()), (5000 - SHOWN_AGAIN, SHOWN_AGAIN));
        assert_eq!(shown.last(), Some(&TranscriptPiece::Agent("4999".into())));
        assert_eq!(recent(vec![output()], 1), (0, vec![]));
    }
}
