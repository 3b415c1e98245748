//! What to do now. Every state has exactly one answer, and performing it adds facts that lead to another state.
//!
//! Nothing here knows what is running at this moment in this program: a call that was started and has no end is a call to
//! reattach to, and a driver that is already attached simply waits.

use crate::call::{Approval, Call, CallState};
use crate::compact::CompactReason;
use crate::id::TurnId;
use crate::input::QueuedInput;
use crate::state::Thread;
use crate::turn::{Turn, TurnKind, TurnStatus};

#[derive(Debug, Clone, PartialEq)]
pub enum NextAction {
    /// Nothing to do until input arrives.
    Idle,
    /// Inputs wait for a turn of their own: write `turnStarted` with them.
    StartTurn { inputs: Vec<QueuedInput> },
    /// Capture step `step` and ask the model. Also after a crash in the middle of an answer: what was said in part is kept.
    AskModel { turn: TurnId, step: u32 },
    /// These calls were asked for, or were answered with a no: run them, ask about them, or end them as declined.
    Decide { turn: TurnId, calls: Vec<Call> },
    /// These calls were approved: write `callStarted`, then run them.
    RunCalls { turn: TurnId, calls: Vec<Call> },
    /// These calls were started and have not ended. A driver that does not run them adopts them by process id or ends them as lost.
    /// The approvals wait meanwhile.
    ReattachCalls { turn: TurnId, calls: Vec<Call>, approvals: Vec<Approval> },
    /// Only questions are open.
    AwaitAnswer { turn: TurnId, approvals: Vec<Approval> },
    /// Make the context smaller before going on.
    Compact { turn: TurnId, reason: CompactReason },
    /// Nothing is left to do in this turn.
    FinishTurn { turn: TurnId, status: TurnStatus },
}

impl Thread {
    /// What to do now.
    pub fn next(&self) -> NextAction {
        match &self.turn {
            Some(turn) => self.within(turn),
            None if self.queued.is_empty() => NextAction::Idle,
            None => NextAction::StartTurn { inputs: self.queued.iter().cloned().collect() },
        }
    }

    /// Whether the turn is over once the model has answered without a call.
    pub fn ends_with_answer(&self) -> bool {
        let is_done = |turn: &Turn| {
            let is_plain = matches!(turn.kind, TurnKind::Regular | TurnKind::Review) && !turn.stopped && !turn.follow_up;
            is_plain && turn.approvals.is_empty() && turn.calls.iter().all(|call| call.state == CallState::Finished)
        };
        self.steering.is_empty() && self.turn.as_ref().is_some_and(is_done)
    }

    fn within(&self, turn: &Turn) -> NextAction {
        let id = || turn.id.clone();
        let calls = |wanted: fn(&CallState) -> bool| turn.calls.iter().filter(|call| wanted(&call.state)).cloned().collect::<Vec<_>>();
        let undecided = calls(|state| match state {
            CallState::Requested => true,
            CallState::Answered(decision) => !decision.permits(),
            _ => false,
        });
        if !undecided.is_empty() {
            return NextAction::Decide { turn: id(), calls: undecided };
        }
        let approved = calls(|state| matches!(state, CallState::Answered(decision) if decision.permits()));
        if !approved.is_empty() && !turn.stopped {
            return NextAction::RunCalls { turn: id(), calls: approved };
        }
        let started = calls(|state| *state == CallState::Started);
        if !started.is_empty() {
            return NextAction::ReattachCalls { turn: id(), calls: started, approvals: turn.approvals.clone() };
        }
        if turn.stopped {
            return NextAction::FinishTurn { turn: id(), status: TurnStatus::Interrupted };
        }
        if !turn.approvals.is_empty() {
            return NextAction::AwaitAnswer { turn: id(), approvals: turn.approvals.clone() };
        }
        match turn.kind {
            TurnKind::Compact if turn.compacted_before.is_none() => NextAction::Compact { turn: id(), reason: CompactReason::Asked },
            TurnKind::Compact => NextAction::FinishTurn { turn: id(), status: TurnStatus::Completed },
            // Its only call is started together with the turn; if that was cut off, it never ran.
            TurnKind::Shell if turn.calls.is_empty() => NextAction::FinishTurn { turn: id(), status: TurnStatus::Interrupted },
            TurnKind::Shell => NextAction::FinishTurn { turn: id(), status: TurnStatus::Completed },
            TurnKind::Regular | TurnKind::Review => self.ask_or_finish(turn),
        }
    }

    fn ask_or_finish(&self, turn: &Turn) -> NextAction {
        let step = turn.next_step();
        if turn.answered && !turn.follow_up && self.steering.is_empty() {
            return NextAction::FinishTurn { turn: turn.id.clone(), status: TurnStatus::Completed };
        }
        let is_full = self.settings.compact_at.is_some_and(|limit| self.usage.active >= limit);
        // Once a step is captured it is asked as it is, also again after a crash.
        if is_full && turn.step != Some(step) && turn.compacted_before != Some(step) {
            return NextAction::Compact { turn: turn.id.clone(), reason: CompactReason::Full };
        }
        NextAction::AskModel { turn: turn.id.clone(), step }
    }
}
