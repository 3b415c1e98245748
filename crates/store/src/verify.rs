//! Looks at everything that a thread consists of, and says exactly what is wrong with it.

use outpost_thread::{Ordinal, ThreadId};

use crate::damage::Damage;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyReport {
    pub thread: ThreadId,
    /// Whole entries, shared ones included.
    pub entries: u64,
    pub last: Ordinal,
    pub bytes: u64,
    /// With the thread whose journal has it: a fork's past lies in the journals of others.
    pub damage: Vec<(ThreadId, Damage)>,
    /// Ordinals that an earlier repair has given up.
    pub given_up: u64,
}

impl VerifyReport {
    /// Everything is as it was written. A torn end is what every crash may leave, but it is told.
    pub fn is_whole(&self) -> bool {
        self.damage.is_empty()
    }
}

/// What a repair did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// What could not be saved.
    pub damage: Vec<Damage>,
    /// The journal as it was before, if anything had to be changed.
    pub kept: Option<std::path::PathBuf>,
}
