//! The state at the end of a turn, kept aside so that opening a thread does not mean reading all of it.
//!
//! Disposable: it names the entry after which it was made and that entry's checksum. If the journal does not have exactly
//! that entry, or a newer program made the checkpoint, it is ignored and the journal is folded from the beginning.

use serde::{Deserialize, Serialize};

use crate::id::Ordinal;
use crate::state::Thread;

/// Changes whenever [`Thread`] changes its shape; older checkpoints are then ignored.
const VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    version: u32,
    #[serde(rename = "seq")]
    pub ordinal: Ordinal,
    /// The checksum of that entry's line.
    pub sum: String,
    pub thread: Thread,
}

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("a turn is running: a checkpoint is made between turns")]
    TurnIsRunning,
    #[error("the checkpoint is of version {0}")]
    Version(u32),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl Checkpoint {
    /// Of a thread between turns, whose last line has this checksum.
    pub fn of(thread: &Thread, sum: String) -> Result<Self, CheckpointError> {
        if thread.turn.is_some() {
            return Err(CheckpointError::TurnIsRunning);
        }
        Ok(Self { version: VERSION, ordinal: thread.last, sum, thread: thread.clone() })
    }

    pub fn encode(&self) -> Result<Vec<u8>, CheckpointError> {
        Ok(serde_json::to_vec(self)?)
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, CheckpointError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_slice(bytes)?;
        if version != VERSION {
            return Err(CheckpointError::Version(version));
        }
        Ok(serde_json::from_slice(bytes)?)
    }
}
