//! What a sub-agent is given of its parent's history: what was said, not what was done.

use serde::Deserialize;

use crate::context::is_user_message;
use crate::raw::Raw;

/// How much of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InheritedHistory {
    All,
    /// The last turns only, each beginning with a message of a user or of another agent. What came before the first one
    /// is left out even if there are fewer.
    LastTurns(usize),
}

#[derive(Deserialize)]
struct Said<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    role: std::borrow::Cow<'a, str>,
    #[serde(borrow, default)]
    phase: Option<std::borrow::Cow<'a, str>>,
}

/// The messages of these model items that a sub-agent may see: those of users, developers and systems, and final answers. Calls,
/// their results, reasoning and comments on the way are the parent's own.
pub fn inherited(items: &[Raw], how: InheritedHistory) -> Vec<Raw> {
    let from = match how {
        InheritedHistory::All => 0,
        InheritedHistory::LastTurns(0) => items.len(),
        InheritedHistory::LastTurns(count) => {
            let begins: Vec<usize> = (0..items.len()).filter(|index| is_user_message(&items[*index])).collect();
            begins.get(begins.len().saturating_sub(count)).copied().unwrap_or(items.len())
        }
    };
    items[from..].iter().filter(|item| is_said(item)).cloned().collect()
}

fn is_said(item: &Raw) -> bool {
    let Ok(item) = serde_json::from_str::<Said<'_>>(item.get()) else { return false };
    item.kind == "message"
        && match item.role.as_ref() {
            "system" | "developer" | "user" => true,
            "assistant" => item.phase.is_none_or(|phase| phase == "final_answer"),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(role: &str, text: &str) -> Raw {
        Raw::from(json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}))
    }

    fn history() -> Vec<Raw> {
        vec![
            message("developer", "startup"),
            message("user", "<environment_context>"),
            message("user", "one"),
            Raw::from(json!({"type": "function_call", "call_id": "c"})),
            Raw::from(json!({"type": "function_call_output", "call_id": "c"})),
            Raw::from(json!({"type": "message", "role": "assistant", "phase": "commentary", "content": []})),
            message("assistant", "first answer"),
            message("user", "two"),
            Raw::from(json!({"type": "reasoning"})),
            message("assistant", "second answer"),
        ]
    }

    #[test]
    fn only_what_was_said_is_inherited() {
        let all = history();
        let kept = |indexes: &[usize]| indexes.iter().map(|index| all[*index].clone()).collect::<Vec<_>>();
        assert_eq!(inherited(&all, InheritedHistory::All), kept(&[0, 1, 2, 6, 7, 9]));
        assert_eq!(inherited(&all, InheritedHistory::LastTurns(1)), kept(&[7, 9]));
        assert_eq!(inherited(&all, InheritedHistory::LastTurns(2)), kept(&[2, 6, 7, 9]));
        assert_eq!(inherited(&all, InheritedHistory::LastTurns(9)), kept(&[2, 6, 7, 9]), "the beginning is left out all the same");
        assert_eq!(inherited(&all, InheritedHistory::LastTurns(0)), []);
        assert_eq!(inherited(&all[..2], InheritedHistory::LastTurns(3)), []);
    }
}
