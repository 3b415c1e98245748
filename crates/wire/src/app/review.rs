//! Reviews: a turn that looks at changes and changes nothing.

use serde::{Deserialize, Serialize};

use super::turn::Turn;
use crate::{app_method, encode_with_serde};

app_method!(
    /// Starts a turn that reviews changes, in the thread that is named.
    ReviewStart = "review/start", ReviewStartParams => ReviewStartResponse
);

records! {
    ReviewStartParams { thread_id: String, target: ReviewTarget; delivery: Option<ReviewDelivery> }
    ReviewStartResponse { turn: Turn, review_thread_id: String }
}

/// What is to be reviewed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ReviewTarget {
    UncommittedChanges,
    BaseBranch {
        branch: String,
    },
    Commit {
        sha: String,
        #[serde(default)]
        title: Option<String>,
    },
    Custom {
        instructions: String,
    },
}

/// Where the review takes place; there is only one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ReviewDelivery {
    Inline,
}

encode_with_serde!(ReviewStartResponse);
