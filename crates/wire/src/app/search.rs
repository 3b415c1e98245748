//! Finding: threads by what was said in them, places in a thread, files by a few letters of their names.

use serde::{Deserialize, Serialize};

use super::thread::{Thread, ThreadItemEntry, ThreadSortKey};
use super::{Nothing, SortDirection};
use crate::{app_method, encode_with_serde};

app_method!(
    /// Threads in which all of the words were said.
    ThreadSearch = "thread/search", ThreadSearchParams => ThreadSearchResponse, experimental
);
app_method!(
    /// Where in a thread a text was said, whatever its case.
    ThreadSearchOccurrences = "thread/searchOccurrences", ThreadSearchOccurrencesParams => ThreadSearchOccurrencesResponse, experimental
);
app_method!(
    /// Items of a turn by their ids.
    ThreadItemsRead = "thread/items/read", ThreadItemsReadParams => ThreadItemsReadResponse, experimental
);
app_method!(
    /// Files and directories whose paths have all letters of the query, in order. Hidden directories are not entered.
    FuzzyFileSearch = "fuzzyFileSearch", FuzzyFileSearchParams => FuzzyFileSearchResponse, experimental ["environmentId"]
);
app_method!(
    /// Begins a search that is refined with every key that is pressed. The files are looked at once, when it begins. A session
    /// of the same name ends.
    FuzzySessionStart = "fuzzyFileSearch/sessionStart", FuzzySessionStartParams => Nothing, experimental
);
app_method!(
    /// What is looked for now; the files are told in `fuzzyFileSearch/sessionUpdated`.
    FuzzySessionUpdate = "fuzzyFileSearch/sessionUpdate", FuzzySessionUpdateParams => Nothing, experimental
);
app_method!(FuzzySessionStop = "fuzzyFileSearch/sessionStop", FuzzySessionStopParams => Nothing, experimental);

records! {
    FuzzySessionStartParams {
        session_id: String,
        roots: Vec<String>;
        /// Ours: where; left out it is this machine.
        environment_id: Option<String>
    }
    FuzzySessionUpdateParams { session_id: String, query: String }
    FuzzySessionStopParams { session_id: String }
    /// The files that fit best now, the best one first.
    FuzzySessionUpdated { session_id: String, query: String, files: Vec<FoundFile> }
    /// All files were looked at for the query that was told last.
    FuzzySessionCompleted { session_id: String }
    ThreadSearchParams {
        search_term: String;
        cursor: Option<String>,
        limit: Option<u32>,
        archived: Option<bool>,
        sort_key: Option<ThreadSortKey>,
        sort_direction: Option<SortDirection>,
        source_kinds: Option<Vec<String>>
    }
    ThreadSearchResponse { data: Vec<ThreadSearchResult>, next_cursor: Option<String>, backwards_cursor: Option<String> }
    ThreadSearchResult { thread: Thread, snippet: String }
    ThreadSearchOccurrencesParams { thread_id: String, search_term: String; cursor: Option<String>, limit: Option<u32> }
    ThreadSearchOccurrencesResponse { data: Vec<ThreadSearchOccurrence>, next_cursor: Option<String> }
    ThreadSearchOccurrence {
        turn_id: String,
        item_id: String,
        snippet: String,
        /// In the snippet, in UTF-16 units.
        snippet_match_range: TextRange,
        /// For `thread/turns/list`, oldest first: the page begins with this turn.
        turn_cursor: String
    }
    TextRange { start: u32, end: u32 }
    ThreadItemsReadParams { thread_id: String, turn_id: String, item_ids: Vec<String> }
    ThreadItemsReadResponse { data: Vec<ThreadItemEntry> }
    FuzzyFileSearchParams {
        query: String,
        roots: Vec<String>;
        cancellation_token: Option<String>,
        /// Ours: where; left out it is this machine.
        environment_id: Option<String>
    }
    FuzzyFileSearchResponse { files: Vec<FoundFile> }
}

/// The only shape of this protocol whose members are not in camel case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FoundFile {
    pub root: String,
    /// Below the root.
    pub path: String,
    pub file_name: String,
    pub match_type: MatchType,
    /// Higher is better.
    pub score: u32,
    /// Which characters of the path matched.
    pub indices: Option<Vec<u32>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum MatchType {
    File,
    Directory,
}

encode_with_serde!(ThreadSearchResponse, ThreadSearchOccurrencesResponse, ThreadItemsReadResponse, FuzzyFileSearchResponse);
