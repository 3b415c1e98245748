//! Asking the model something aside.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Nothing;
use crate::{app_method, encode_with_serde};

app_method!(
    /// Asks the model something with all that it knows of a thread; the thread knows nothing of it.
    ThreadSample = "thread/sample", ThreadSampleParams => ThreadSampleResponse, experimental
);
app_method!(
    /// Gives up such a question, which is then answered with an error. One that is answered is no error.
    ThreadSampleCancel = "thread/sample/cancel", ThreadSampleCancelParams => Nothing, experimental
);

records! {
    ThreadSampleParams {
        thread_id: String,
        /// The last turn that the client has seen the end of.
        expected_turn_id: String,
        prompt: String;
        effort: Option<String>,
        thread_source: Option<String>,
        turn_trigger: Option<String>,
        responsesapi_client_metadata: Option<BTreeMap<String, String>>,
        disable_mcp: bool
    }
    ThreadSampleResponse {
        source_turn_id: String,
        response_id: String,
        /// `null` if the model said nothing.
        text: Option<String>,
        input_tokens: Option<u64>,
        cached_input_tokens: Option<u64>,
        output_tokens: Option<u64>
    }
    ThreadSampleCancelParams {
        /// The `id` of the request with which it was asked.
        request_id: Value
    }
}

encode_with_serde!(ThreadSampleResponse);
