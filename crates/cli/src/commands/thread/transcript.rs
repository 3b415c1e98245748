//! Entries as text for people: who said what, which calls were made and what came of them.

use outpost_store::words_of;
use outpost_thread::{CallOutcome, Entry, Fact, InputOrigin, Kept, Raw, TurnStatus, is_user_message};
use serde_json::Value;

/// One thing to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Turn {
        id: String,
        at: u64,
    },
    User(String),
    Agent(String),
    /// Its name and parameters.
    Call {
        tool: String,
        parameters: String,
    },
    Output {
        text: String,
        outcome: &'static str,
    },
    /// Something else worth a line.
    Note(String),
}

/// What there is to show of entries, in their order.
pub fn pieces(entries: &[Entry]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    // Inputs stand before the turn that takes them up; people read it the other way round.
    let mut waiting: Vec<Piece> = Vec::new();
    for entry in entries {
        match &entry.fact {
            Fact::InputReceived(input) => {
                let items = if input.items.is_empty() { &input.content } else { &input.items };
                let said =
                    items.iter().filter(|item| input.items.is_empty() || input.origin != InputOrigin::History || is_user_message(item));
                let text = said.map(words_of).collect::<Vec<_>>().join("\n");
                waiting.push(Piece::User(text.trim().to_owned()));
                if input.turn.is_some() || input.origin == InputOrigin::History {
                    pieces.append(&mut waiting);
                }
            }
            Fact::TurnStarted(turn) => {
                pieces.push(Piece::Turn { id: turn.turn.to_string(), at: entry.at });
                pieces.append(&mut waiting);
            }
            Fact::ModelAnswered(answer) => pieces.extend(answer.items.iter().filter_map(answered)),
            Fact::CallFinished(end) => {
                let text = end.items.iter().map(words_of).collect::<Vec<_>>().join("\n");
                pieces.push(Piece::Output { text: text.trim_end().to_owned(), outcome: outcome(end.outcome) });
            }
            Fact::ContextCompacted(compacted) => {
                let kept = compacted.kept.iter().filter(|kept| matches!(kept, Kept::Item(_))).count();
                pieces.push(Piece::Note(format!("the context was compacted to {kept} items")));
            }
            Fact::TurnFinished(end) => match end.status {
                TurnStatus::Completed => {}
                TurnStatus::Failed => pieces.push(Piece::Note("the turn failed".to_owned())),
                TurnStatus::Interrupted => pieces.push(Piece::Note("the turn was interrupted".to_owned())),
            },
            Fact::ThreadForked(fork) => {
                pieces.push(Piece::Note(format!("forked from {} after entry {}", fork.parent, fork.base.ordinal)));
            }
            Fact::DamageNoted(noted) => {
                for range in &noted.damage {
                    pieces.push(Piece::Note(format!("entries {} to {} are gone: {}", range.from, range.to, range.what)));
                }
            }
            _ => {}
        }
    }
    pieces.append(&mut waiting);
    pieces
}

fn answered(item: &Raw) -> Option<Piece> {
    let value: Value = item.read().ok()?;
    let member = |name: &str| value.get(name).and_then(Value::as_str);
    match member("type")? {
        "message" => Some(Piece::Agent(words_of(item).trim().to_owned())),
        "reasoning" => {
            let text = words_of(item);
            (!text.trim().is_empty()).then(|| Piece::Note(format!("thought: {}", text.trim())))
        }
        kind if kind.ends_with("_call") => {
            let tool = member("name").unwrap_or(kind).to_owned();
            let parameters = member("arguments").or_else(|| member("input")).map_or_else(|| words_of(item), str::to_owned);
            Some(Piece::Call { tool, parameters })
        }
        _ => None,
    }
}

const fn outcome(outcome: CallOutcome) -> &'static str {
    match outcome {
        CallOutcome::Completed => "",
        CallOutcome::Failed => "failed",
        CallOutcome::Declined => "declined",
        CallOutcome::Lost => "lost: nobody knows what became of it",
        CallOutcome::Aborted => "stopped",
    }
}
