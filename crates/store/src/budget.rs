//! How much of a history belongs to one page, read backwards.

use crate::store::PageRequest;

const TURN_STARTED: &str = "turnStarted";
const TURN_FINISHED: &str = "turnFinished";

/// What a page may still hold.
pub(crate) struct Budget {
    turns: usize,
    bytes: usize,
    request: PageRequest,
}

impl Budget {
    pub(crate) fn new(request: PageRequest) -> Self {
        Self { turns: 0, bytes: 0, request }
    }

    /// Whether a line of this kind, read backwards, belongs to the page before.
    pub(crate) fn is_spent(&mut self, kind: &str, length: usize) -> bool {
        if self.bytes > 0 && self.bytes + length > self.request.bytes {
            return true;
        }
        // The end of the turn before: whatever stands between the two belongs to the later one.
        if kind == TURN_FINISHED && self.turns >= self.request.turns {
            return true;
        }
        self.turns += usize::from(kind == TURN_STARTED);
        self.bytes += length;
        false
    }
}
