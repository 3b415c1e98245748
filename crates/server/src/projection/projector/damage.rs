//! What is told of entries that cannot be read, and of turns that lost their beginning or their end with them.

use outpost_thread::{DamageNoted, DamagedRange, Entry, Fact, ThreadId, TurnId, TurnKind};
use outpost_wire::app::event;
use outpost_wire::app::turn::{ItemsView, Turn, TurnError, TurnStatus as Shown};

use super::{Open, Projector};
use crate::projection::{ClientMessage, items};

/// What a client that opens a damaged thread is told.
pub fn warning<'a>(thread: ThreadId, damage: impl IntoIterator<Item = &'a DamagedRange>) -> String {
    let ranges: Vec<String> = damage.into_iter().map(ToString::to_string).collect();
    format!(
        "a part of thread {thread} cannot be read ({}); the rest is whole, and the next turn goes on without it; \
         `outpost thread verify {thread}` says more",
        ranges.join("; ")
    )
}

impl Projector {
    /// An item stands in the place of what is missing. Between turns it gets a turn of its own.
    pub(super) fn damage_noted(&mut self, fact: &DamageNoted, entry: &Entry, out: &mut Vec<ClientMessage>) {
        for range in fact.here(entry.ordinal) {
            self.is_torn = true;
            let item = items::missing(range);
            if let Some(turn) = self.turn.as_ref().map(|turn| turn.id.clone()) {
                self.whole(&turn, item, entry.at, out);
                continue;
            }
            let turn = TurnId(format!("missing_{}", range.from));
            out.push(self.turn_notice(&turn, entry.at, None));
            // Whether a turn took them up is not known; they were said.
            let mut waiting: Vec<_> = self.inputs.drain().map(|(_, waiting)| waiting).collect();
            waiting.sort_by_key(|waiting| waiting.ordinal);
            for waiting in waiting {
                self.whole(&turn, items::user_message(&waiting.said), entry.at, out);
            }
            self.whole(&turn, item, entry.at, out);
            out.push(self.turn_notice(&turn, entry.at, Some((Shown::Failed, Some(format!("a part of this thread is missing ({range})"))))));
        }
        if self.is_live && !fact.continued {
            let message = warning(self.id, &fact.damage);
            out.push(event::Warning { thread_id: Some(self.name.clone()), message }.into());
        }
    }

    /// Behind damage: the beginning of the turn that an entry belongs to may be lost, and so may the end of the one before.
    pub(super) fn mend(&mut self, entry: &Entry, out: &mut Vec<ClientMessage>) {
        let (turn, begins) = match &entry.fact {
            Fact::TurnStarted(fact) => (&fact.turn, true),
            Fact::StepCaptured(fact) => (&fact.turn, false),
            Fact::ModelAsked(fact) => (&fact.turn, false),
            Fact::ModelAnswered(fact) => (&fact.turn, false),
            Fact::CallStarted(fact) => (&fact.turn, false),
            Fact::TurnFinished(fact) => match &fact.turn {
                Some(turn) => (turn, false),
                None => return,
            },
            _ => return,
        };
        if self.turn.as_ref().is_some_and(|open| open.id == *turn) {
            return;
        }
        if let Some(open) = self.turn.take() {
            out.push(self.turn_notice(&open.id, entry.at, Some((Shown::Interrupted, None))));
        }
        if !begins {
            let (id, at) = (turn.clone(), entry.at);
            out.push(self.turn_notice(&id, at, None));
            self.turn = Some(Open { id, started_at: at, asked_at: at, last_message: None, kind: TurnKind::Regular });
        }
    }

    /// That a turn begins, or how it ended.
    fn turn_notice(&self, id: &TurnId, at: u64, end: Option<(Shown, Option<String>)>) -> ClientMessage {
        let is_over = end.is_some();
        let (status, message) = end.unwrap_or((Shown::InProgress, None));
        let error = message.map(|message| TurnError {
            message,
            codex_error_info: Some("other".into()),
            additional_details: None,
            misalignment: None,
        });
        let turn = Turn {
            id: id.to_string(),
            items: vec![],
            items_view: if is_over { ItemsView::Summary } else { ItemsView::NotLoaded },
            status,
            error,
            started_at: Some(at / 1000),
            completed_at: is_over.then_some(at / 1000),
            duration_ms: is_over.then_some(0),
            root_turn_id: None,
            plan: None,
        };
        let thread_id = self.name.clone();
        if is_over {
            event::TurnCompleted { thread_id, turn, ordinal: None }.into()
        } else {
            event::TurnStarted { thread_id, turn, ordinal: None }.into()
        }
    }
}
