//! Inputs that wait for a turn of their own.

use serde_json::Value;

use super::Nothing;
use super::turn::{Turn, UserInput};
use crate::{app_method, encode_with_serde};

app_method!(
    /// Waits until the running turn is over; without one it starts a turn at once.
    ThreadQueueAdd = "thread/queue/add", ThreadQueueAddParams => ThreadQueueSubmission, experimental
);
app_method!(ThreadQueueList = "thread/queue/list", ThreadQueueListParams => ThreadQueueListResponse, experimental);
app_method!(
    /// Says something else in the same place. The id stays.
    ThreadQueueUpdate = "thread/queue/update", ThreadQueueUpdateParams => ThreadQueueSubmission, experimental
);
app_method!(
    /// Takes it back, as if it had never been said.
    ThreadQueueDelete = "thread/queue/delete", ThreadQueueDeleteParams => ThreadQueueDeleteResponse, experimental
);
app_method!(
    /// All that waits must be named, each once.
    ThreadQueueReorder = "thread/queue/reorder", ThreadQueueReorderParams => Nothing, experimental
);
app_method!(
    /// Does not wait any longer: while a turn is running it is taken as steering, and the running one is answered.
    ThreadQueueStart = "thread/queue/start", ThreadQueueStartParams => ThreadQueueStartResponse, experimental
);

records! {
    ThreadQueueAddParams { thread_id: String, client_user_message_id: String, input: Vec<UserInput> }
    ThreadQueueSubmission { queued_submission: QueuedSubmission }
    /// What waits has the name under which the client said it.
    QueuedSubmission { id: String, client_user_message_id: String, input: Vec<Value> }
    ThreadQueueListParams { thread_id: String; cursor: Option<String>, limit: Option<u32> }
    ThreadQueueListResponse { data: Vec<QueuedSubmission>, next_cursor: Option<String> }
    ThreadQueueUpdateParams { thread_id: String, queued_submission_id: String, input: Vec<UserInput> }
    ThreadQueueDeleteParams { thread_id: String, queued_submission_id: String }
    ThreadQueueDeleteResponse { deleted: bool }
    ThreadQueueReorderParams { thread_id: String, queued_submission_ids: Vec<String> }
    ThreadQueueStartParams { thread_id: String; queued_submission_id: Option<String> }
    ThreadQueueStartResponse { turn: Turn }
    ThreadQueueChanged { thread_id: String }
}

encode_with_serde!(ThreadQueueSubmission, ThreadQueueListResponse, ThreadQueueDeleteResponse, ThreadQueueStartResponse);
