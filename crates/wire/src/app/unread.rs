//! How far a thread was read, for clients that show it.

use serde::{Deserialize, Serialize};

use crate::{app_method, encode_with_serde};

app_method!(
    /// Marks a thread as read or as unread. A client that has not seen its present state is refused.
    ThreadReadStateUpdate = "thread/readState/update", ThreadReadStateUpdateParams => ThreadReadStateUpdateResponse, experimental
);

records! {
    ThreadReadStateUpdateParams {
        thread_id: String,
        operation: ReadStateOperation,
        /// Of the read state that the client has seen.
        expected_revision: String
    }
    ThreadReadStateUpdateResponse { read_state: ThreadReadState }
    ThreadReadState {
        /// `null`: everything was read.
        first_unread: Option<UnreadPosition>,
        /// Another one after every mark and every turn.
        revision: String
    }
    ThreadReadStateChanged { thread_id: String, read_state: ThreadReadState }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ReadStateOperation {
    Read,
    Unread,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum UnreadPosition {
    ThreadStart,
    #[serde(rename_all = "camelCase")]
    Turn {
        turn_id: String,
    },
}

encode_with_serde!(ThreadReadStateUpdateResponse);
