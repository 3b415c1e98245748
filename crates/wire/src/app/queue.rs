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
    /// Refused: what waits is written down already and is not changed any more. So are the next two.
    ThreadQueueUpdate = "thread/queue/update", ThreadQueueUpdateParams => ThreadQueueSubmission, experimental
);
app_method!(ThreadQueueDelete = "thread/queue/delete", ThreadQueueDeleteParams => ThreadQueueDeleteResponse, experimental);
app_method!(ThreadQueueReorder = "thread/queue/reorder", ThreadQueueReorderParams => Nothing, experimental);
app_method!(
    /// Refused: what waits is started by itself as soon as no turn is running.
    ThreadQueueStart = "thread/queue/start", ThreadQueueStartParams => ThreadQueueStartResponse, experimental
);

records! {
    ThreadQueueAddParams { thread_id: String, client_user_message_id: String, input: Vec<UserInput> }
    ThreadQueueSubmission { queued_submission: QueuedSubmission }
    QueuedSubmission { id: String, client_user_message_id: String, input: Vec<Value> }
    ThreadQueueListParams { thread_id: String; cursor: Option<String>, limit: Option<u32> }
    ThreadQueueListResponse { data: Vec<QueuedSubmission>, next_cursor: Option<String> }
    ThreadQueueUpdateParams { thread_id: String, queued_submission_id: String, input: Vec<Value> }
    ThreadQueueDeleteParams { thread_id: String, queued_submission_id: String }
    ThreadQueueDeleteResponse { deleted: bool }
    ThreadQueueReorderParams { thread_id: String, queued_submission_ids: Vec<String> }
    ThreadQueueStartParams { thread_id: String; queued_submission_id: Option<String> }
    ThreadQueueStartResponse { turn: Turn }
    ThreadQueueChanged { thread_id: String }
}

encode_with_serde!(ThreadQueueSubmission, ThreadQueueListResponse, ThreadQueueDeleteResponse, ThreadQueueStartResponse);
