//! Inputs that wait for a turn of their own: said differently, taken back, moved, taken up at once.

use outpost_store::Need;
use outpost_thread::{
    Fact, InputId, InputOrigin, InputReceived, QueueChanged as Requeued, QueuedInput, Raw, TurnId, TurnKind, TurnStarted,
};

use super::commands::Outcome;
use super::{Driver, Stop};
use crate::live::{CommandError, QueueChange, QueueChangeResult};

impl Driver {
    pub(super) async fn queue(&mut self, change: QueueChange) -> Outcome<QueueChangeResult> {
        match change {
            QueueChange::Remove(id) => match self.waiting(&id) {
                None => Ok(Ok(QueueChangeResult::Unknown)),
                Some(_) => self.requeue(self.queue_without(&id)).await,
            },
            QueueChange::Order(wanted) => match self.ordered(&wanted) {
                Some(queue) => self.requeue(queue).await,
                None => Ok(Err(CommandError::Invalid("every input that waits must be named, and each of them once".into()))),
            },
            QueueChange::Replace { input, content, items } => self.replace(&input, content, items).await,
            QueueChange::Start(id) => self.take_up(id).await,
        }
    }

    /// One of the user's that waits.
    fn waiting(&self, id: &InputId) -> Option<QueuedInput> {
        self.thread.queued.iter().find(|input| input.id == *id && input.origin == InputOrigin::User).cloned()
    }

    fn queue_without(&self, id: &InputId) -> Vec<InputId> {
        self.thread.queued.iter().map(|input| input.id.clone()).filter(|own| own != id).collect()
    }

    /// The queue with the user's inputs in this order; what others said keeps its place.
    fn ordered(&self, wanted: &[InputId]) -> Option<Vec<InputId>> {
        let is_users = |input: &&QueuedInput| input.origin == InputOrigin::User;
        let mut known: Vec<&InputId> = self.thread.queued.iter().filter(is_users).map(|input| &input.id).collect();
        let mut named: Vec<&InputId> = wanted.iter().collect();
        known.sort();
        named.sort();
        if known != named {
            return None;
        }
        let mut next = wanted.iter();
        let mut place = |input: &QueuedInput| if input.origin == InputOrigin::User { next.next().cloned() } else { Some(input.id.clone()) };
        self.thread.queued.iter().map(&mut place).collect()
    }

    async fn requeue(&mut self, queue: Vec<InputId>) -> Outcome<QueueChangeResult> {
        self.record(vec![Requeued { queue }.into()], Need::Stored).await?;
        Ok(Ok(QueueChangeResult::Done))
    }

    async fn replace(&mut self, id: &InputId, content: Vec<Raw>, items: Vec<Raw>) -> Outcome<QueueChangeResult> {
        let Some(old) = self.waiting(id) else { return Ok(Ok(QueueChangeResult::Unknown)) };
        let input = InputId((self.shared.ids)());
        let queue = self.thread.queued.iter().map(|own| if own.id == *id { input.clone() } else { own.id.clone() }).collect();
        // It keeps the name under which it is known.
        let client_key = old.client_key.or_else(|| Some(id.to_string()));
        let said = InputReceived { input, turn: None, origin: InputOrigin::User, client_key, by: None, content, items };
        self.record(vec![said.into(), Requeued { queue }.into()], Need::Stored).await?;
        Ok(Ok(QueueChangeResult::Done))
    }

    async fn take_up(&mut self, id: Option<InputId>) -> Outcome<QueueChangeResult> {
        let first = || self.thread.queued.iter().find(|input| input.origin == InputOrigin::User).cloned();
        let Some(input) = id.map_or_else(first, |id| self.waiting(&id)) else { return Ok(Ok(QueueChangeResult::Unknown)) };
        let Some((turn, kind)) = self.thread.turn.as_ref().map(|turn| (turn.id.clone(), turn.kind)) else {
            let turn = TurnId((self.shared.ids)());
            self.begin_turn(vec![TurnStarted::new(turn.clone(), vec![input.id]).into()]).await?;
            return Ok(Ok(QueueChangeResult::Taken(turn)));
        };
        if !matches!(kind, TurnKind::Regular | TurnKind::Review) {
            return Ok(Err(CommandError::NotSteerable));
        }
        let Some(said) = self.said(&input).await? else {
            return Ok(Err(CommandError::Invalid("what waits cannot be read any more".into())));
        };
        let queue = self.queue_without(&input.id);
        let steering = InputReceived { input: InputId((self.shared.ids)()), turn: Some(turn.clone()), ..said };
        self.record(vec![Requeued { queue }.into(), steering.into()], Need::Stored).await?;
        Ok(Ok(QueueChangeResult::Taken(turn)))
    }

    async fn said(&self, input: &QueuedInput) -> Result<Option<InputReceived>, Stop> {
        Ok(self
            .entry_at(input.ordinal)
            .await?
            .and_then(|entry| if let Fact::InputReceived(said) = entry.fact { Some(*said) } else { None }))
    }
}
