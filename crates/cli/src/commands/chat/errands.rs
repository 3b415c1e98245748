//! What the user asked of a thread, one after the other: a server may be away for long, and keys, signals and events do not wait for it.

use std::collections::VecDeque;

use futures_util::future::BoxFuture;
use outpost_runtime::live::{CommandError, LiveThread, NewInput};
use outpost_thread::InterruptReason;

use super::question::ApprovalAnswer;
use super::slash::{self, SlashOutcome};
use crate::agents::Agents;

/// What came of something that the thread or its server was asked.
pub(super) enum ErrandOutcome {
    /// A message or a command of the user's own.
    Sent(Result<(), CommandError>),
    Answered(Result<(), CommandError>),
    Interrupted(Result<(), CommandError>),
    Ran(SlashOutcome),
}

#[derive(Default)]
pub(super) struct Errands<'a>(VecDeque<BoxFuture<'a, ErrandOutcome>>);

impl<'a> Errands<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends what was typed, or runs it if it is a command.
    pub(super) fn submit(&mut self, text: &str, agents: &'a Agents, thread: LiveThread) {
        let trimmed = text.trim();
        if slash::is_command(trimmed) {
            let command = trimmed.to_owned();
            self.0.push_back(Box::pin(async move { ErrandOutcome::Ran(slash::run(&command, agents, &thread).await) }));
            return;
        }
        let (command, input) = (trimmed.strip_prefix('!').map(|command| command.trim().to_owned()), NewInput::text(text.trim_end()));
        let send = async move {
            ErrandOutcome::Sent(match command {
                Some(command) => thread.shell(command, None).await.map(drop),
                None => thread.input(input).await.map(drop),
            })
        };
        self.0.push_back(Box::pin(send));
    }

    pub(super) fn answer(&mut self, asker: LiveThread, answer: ApprovalAnswer) {
        let give = async move { ErrandOutcome::Answered(asker.answer(answer.approval, answer.decision, answer.detail).await) };
        self.0.push_back(Box::pin(give));
    }

    pub(super) fn interrupt(&mut self, thread: LiveThread) {
        self.0.push_back(Box::pin(interrupt(thread)));
    }

    /// Does the first errand, which is then no longer one; waits for ever without any. Can be given up at any time.
    pub(super) async fn next(&mut self) -> ErrandOutcome {
        let Some(errand) = self.0.front_mut() else { return std::future::pending().await };
        let outcome = errand.await;
        self.0.pop_front();
        outcome
    }
}

/// Stops the running turn.
pub(super) async fn interrupt(thread: LiveThread) -> ErrandOutcome {
    ErrandOutcome::Interrupted(thread.interrupt(None, InterruptReason::User).await)
}
