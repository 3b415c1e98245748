//! What a thread is for, and what else is written down about it.

use serde::{Deserialize, Deserializer, Serialize};

use super::ThreadParams;
use super::thread::ThreadResponse;
use crate::{app_method, encode_with_serde};

app_method!(ThreadGoalGet = "thread/goal/get", ThreadParams => ThreadGoalResponse);
app_method!(
    /// Sets a goal, or changes what is named of it. It is kept with the thread; nothing works towards it by itself.
    ThreadGoalSet = "thread/goal/set", ThreadGoalSetParams => ThreadGoalSetResponse
);
app_method!(ThreadGoalClear = "thread/goal/clear", ThreadParams => ThreadGoalClearResponse);
app_method!(
    /// Corrects what is known of the repository that a thread works in.
    ThreadMetadataUpdate = "thread/metadata/update", ThreadMetadataUpdateParams => ThreadResponse
);

records! {
    ThreadGoalSetParams {
        thread_id: String;
        /// Needed for a new one.
        objective: Option<String>,
        status: Option<ThreadGoalStatus>,
        /// `null` takes it away.
        #[serde(deserialize_with = "given")]
        token_budget: Option<Option<u64>>
    }
    ThreadGoal {
        thread_id: String,
        objective: String,
        status: ThreadGoalStatus,
        token_budget: Option<u64>,
        /// By the thread since the goal was set.
        tokens_used: u64,
        time_used_seconds: u64,
        created_at: u64,
        updated_at: u64
    }
    ThreadGoalResponse { goal: Option<ThreadGoal> }
    ThreadGoalSetResponse { goal: ThreadGoal }
    ThreadGoalClearResponse { cleared: bool }
    ThreadGoalUpdated { thread_id: String, turn_id: Option<String>, goal: ThreadGoal }
    ThreadGoalCleared { thread_id: String }
    ThreadMetadataUpdateParams { thread_id: String; git_info: Option<GitInfoUpdate> }
    /// What is left out stays; `null` takes it away.
    GitInfoUpdate {
        ; #[serde(deserialize_with = "given")]
        sha: Option<Option<String>>,
        #[serde(deserialize_with = "given")]
        branch: Option<Option<String>>,
        #[serde(deserialize_with = "given")]
        origin_url: Option<Option<String>>
    }
}

/// Keeps a member that is `null` apart from one that is left out.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ThreadGoalStatus {
    #[default]
    Active,
    Paused,
    Blocked,
    UsageLimited,
    BudgetLimited,
    Complete,
}

encode_with_serde!(ThreadGoalResponse, ThreadGoalSetResponse, ThreadGoalClearResponse);
