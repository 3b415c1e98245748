//! The journal of a thread as it is stored, for clients of the same program: what they show is then what a local run shows, and what is
//! approved is judged by the whole question.

use serde_json::Value;

use super::Nothing;
use crate::{app_method, encode_with_serde};

app_method!(
    /// Ours: entries of a thread's journal, oldest first. A thread that is not stored yet has none.
    ThreadEntriesList = "thread/entries/list", ThreadEntriesListParams => ThreadEntriesListResponse, experimental
);
app_method!(
    /// Ours: answers a question by the id that it has in the journal, with everything that an answer can say.
    ThreadApprovalAnswer = "thread/approval/answer", ThreadApprovalAnswerParams => Nothing, experimental
);

/// The member of `capabilities.extensions` that asks for `thread/entry`.
pub const ENTRIES: &str = "outpost/entries";

records! {
    ThreadEntriesListParams {
        thread_id: String;
        /// Only those after this ordinal.
        after: Option<u64>,
        /// About so many at most.
        limit: Option<u32>
    }
    ThreadEntriesListResponse {
        data: Vec<JournalEntry>,
        /// Where to go on with `after`; nothing at the end.
        next_after: Option<u64>
    }
    JournalEntry {
        ordinal: u64,
        /// In milliseconds since 1970.
        at_ms: u64,
        /// Of the journal's format.
        version: u32,
        kind: String,
        data: Value
    }
    /// Sent before the notifications that follow from the entry, to clients that ask for it with `capabilities.extensions`.
    ThreadEntry { thread_id: String, entry: JournalEntry }
    ThreadApprovalAnswerParams {
        thread_id: String,
        approval_id: String,
        /// `approved`, `approvedForThread`, `denied` or `aborted`.
        decision: String;
        detail: Option<Value>
    }
}

encode_with_serde!(ThreadEntriesListResponse);
