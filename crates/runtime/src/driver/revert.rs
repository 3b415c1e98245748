//! Going on from an earlier place. Nothing is cut away: a fact says what does not count any more, and the context begins anew with
//! what the model had seen by then.

use outpost_store::Need;
use outpost_thread::{CompactReason, ContextCompacted, ForkPoint, Kept, Thread, TurnId, TurnsReverted, estimate};

use super::commands::Outcome;
use super::step::AnnouncedContext;
use super::{Driver, Stop};
use crate::live::CommandError;
use crate::runtime::outline;

impl Driver {
    pub(super) async fn revert(&mut self, before: TurnId) -> Outcome<()> {
        if self.thread.turn.is_some() {
            return Ok(Err(CommandError::Busy));
        }
        let Some(through) = self.place_before(&before).await? else { return Ok(Err(CommandError::UnknownTurn(before))) };
        let (kept, tokens) = self.context_at(through).await?;
        let compacted = ContextCompacted {
            turn: None,
            reason: CompactReason::Reverted,
            kept,
            tokens,
            context_generation: self.thread.context_generation + 1,
        };
        self.record(vec![TurnsReverted { before, through }.into(), compacted.into()], Need::Durable).await?;
        // It is read again from what is kept; what was told about the surroundings is told anew.
        self.model.context = None;
        self.model.told = AnnouncedContext::default();
        Ok(Ok(()))
    }

    /// The last entry before a turn and its input.
    async fn place_before(&self, turn: &TurnId) -> Result<Option<u64>, Stop> {
        let outline = outline(&self.journal.store, self.thread.id).await?;
        Ok(outline.cut(&ForkPoint::BeforeTurn(turn.clone())).ok().map(|cut| cut.ordinal))
    }

    /// What the model had seen after an entry, and how large that is.
    async fn context_at(&self, through: u64) -> Result<(Vec<Kept>, u64), Stop> {
        let mut then: Option<Thread> = None;
        let mut history = self.journal.store.history(self.thread.id, 0).await?;
        while let Some(batch) = history.next().await? {
            for entry in batch.entries.iter().filter(|entry| entry.ordinal <= through) {
                match &mut then {
                    // What does not fit behind damage counts as read.
                    Some(thread) => drop(thread.apply(entry)),
                    None => then = Thread::begin(entry).ok(),
                }
            }
        }
        let Some(mut then) = then else { return Ok(Default::default()) };
        then.id = self.thread.id;
        let context = outpost_store::context(&self.journal.store, &then).await?;
        let mut wanted: Vec<u64> = context.located().map(|(ordinal, _)| ordinal).collect();
        wanted.dedup();
        let tokens = estimate(context.items());
        Ok((context.kept(&self.journal.store.entries(self.thread.id, wanted).await?), tokens))
    }
}
