//! Counters since the start of the program, for monitoring.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use outpost_thread::{Fact, TokenTotals, TurnStatus};

/// Counts facts where they are stored, and nowhere else.
#[derive(Debug, Default)]
pub struct Counts(Mutex<Counted>);

#[derive(Debug, Clone, Default)]
pub struct Counted {
    /// Batches of entries that were stored.
    pub appends: u64,
    /// Stored entries by their kind.
    pub entries: BTreeMap<String, u64>,
    pub turns_completed: u64,
    pub turns_failed: u64,
    pub turns_interrupted: u64,
    pub tokens: TokenTotals,
}

impl Counts {
    pub(crate) fn note<'a>(&self, facts: impl Iterator<Item = &'a Fact>) {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counted.appends += 1;
        for fact in facts {
            match counted.entries.get_mut(fact.kind()) {
                Some(count) => *count += 1,
                None => drop(counted.entries.insert(fact.kind().to_owned(), 1)),
            }
            match fact {
                Fact::TurnFinished(finished) => match finished.status {
                    TurnStatus::Completed => counted.turns_completed += 1,
                    TurnStatus::Failed => counted.turns_failed += 1,
                    TurnStatus::Interrupted => counted.turns_interrupted += 1,
                },
                Fact::ModelAnswered(answered) => counted.tokens = counted.tokens.plus(answered.usage.unwrap_or_default()),
                _ => {}
            }
        }
    }

    pub fn now(&self) -> Counted {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
