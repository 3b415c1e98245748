//! Turns: starting, steering, stopping.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Nothing;
use super::environment::EnvironmentParams;
use super::event::PlanStep;
use super::item::TimedItem;
use super::settings::{ApprovalsReviewer, AskForApproval, SandboxPolicy};
use crate::{app_method, encode_with_serde};

app_method!(
    /// Begins a turn. While one is running it is taken as steering, and the running one is answered.
    TurnStart = "turn/start", TurnStartParams => TurnStartResponse,
    experimental [
        "environments", "permissions", "runtimeWorkspaceRoots", "collaborationMode", "additionalContext",
        "responsesapiClientMetadata", "responsesapiClientMetadataPatch", "multiAgentMode", "cyberAccessProgram", "environmentsScope",
    ]
);
app_method!(
    /// Says something to the running turn.
    TurnSteer = "turn/steer", TurnSteerParams => TurnSteerResponse,
    experimental ["additionalContext", "responsesapiClientMetadata", "responsesapiClientMetadataPatch"]
);
app_method!(
    /// Stops a turn. One that is over already is no error.
    TurnInterrupt = "turn/interrupt", TurnInterruptParams => Nothing
);
app_method!(
    /// Changes how the rest of a running turn is run, from its next step on. Later turns run as before.
    TurnSettingsUpdate = "turn/settings/update", TurnSettingsUpdateParams => TurnSettingsUpdateResponse, experimental
);

/// What is not known here is refused: a change that silently has no effect would be worse.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnSettingsUpdateParams {
    pub thread_id: String,
    pub turn_id: String,
    #[serde(default)]
    pub approvals_reviewer: Option<ApprovalsReviewer>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub effort: Option<String>,
    /// Always refused: how much is summed up is the provider's choice.
    #[serde(default)]
    pub summary: Option<String>,
    /// Always refused: there are no tiers.
    #[serde(default)]
    pub service_tier: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnSettingsUpdateResponse {
    pub status: TurnSettingsUpdateStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TurnSettingsUpdateStatus {
    Applied,
    /// That turn is not running.
    TargetUnavailable,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnStartParams {
    pub thread_id: String,
    pub input: Vec<UserInput>,
    #[serde(default)]
    pub cwd: Option<String>,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub effort: Option<String>,
    #[serde(default)]
    pub summary: Option<Value>,
    #[serde(default)]
    pub approval_policy: Option<AskForApproval>,
    #[serde(default)]
    pub approvals_reviewer: Option<ApprovalsReviewer>,
    #[serde(default)]
    pub sandbox_policy: Option<SandboxPolicy>,
    #[serde(default)]
    pub permissions: Option<String>,
    #[serde(default)]
    pub output_schema: Option<Value>,
    /// The same key again is the same message, not a second one.
    #[serde(default)]
    pub client_user_message_id: Option<String>,
    /// For this turn only, unless `environmentsScope` says otherwise.
    #[serde(default)]
    pub environments: Option<Vec<EnvironmentParams>>,
    /// Ours.
    #[serde(default)]
    pub environments_scope: Option<EnvironmentsScope>,
    #[serde(default)]
    pub runtime_workspace_roots: Option<Vec<String>>,
    #[serde(default)]
    pub additional_context: Option<BTreeMap<String, AdditionalContext>>,
}

/// For how long environments that come with a turn count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum EnvironmentsScope {
    #[default]
    Turn,
    Thread,
}

/// What a client wants the model to know besides what the user said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AdditionalContext {
    pub kind: ContextKind,
    pub value: String,
    #[serde(default)]
    pub name: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ContextKind {
    Untrusted,
    Application,
}

/// A part of what a user says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum UserInput {
    Text {
        text: String,
        #[serde(default, rename = "text_elements")]
        text_elements: Option<Vec<Value>>,
    },
    Image {
        #[serde(default)]
        url: Option<String>,
        #[serde(default)]
        file_id: Option<String>,
        #[serde(default)]
        detail: Option<String>,
    },
    LocalImage {
        path: String,
        #[serde(default)]
        detail: Option<String>,
    },
    Audio {
        url: String,
    },
    LocalAudio {
        path: String,
    },
    Skill {
        name: String,
        path: String,
    },
    Mention {
        name: String,
        path: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnStartResponse {
    pub turn: Turn,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnSteerParams {
    pub thread_id: String,
    pub expected_turn_id: String,
    pub input: Vec<UserInput>,
    #[serde(default)]
    pub client_user_message_id: Option<String>,
    #[serde(default)]
    pub additional_context: Option<BTreeMap<String, AdditionalContext>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnSteerResponse {
    pub turn_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnInterruptParams {
    pub thread_id: String,
    pub turn_id: String,
}

/// A turn. Times are in seconds since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Turn {
    pub id: String,
    pub items: Vec<TimedItem>,
    #[serde(default)]
    pub items_view: ItemsView,
    pub status: TurnStatus,
    #[serde(default)]
    pub error: Option<TurnError>,
    #[serde(default)]
    pub started_at: Option<u64>,
    #[serde(default)]
    pub completed_at: Option<u64>,
    #[serde(default)]
    pub duration_ms: Option<u64>,
    #[serde(default)]
    pub root_turn_id: Option<String>,
    /// Ours: the last plan that the agent wrote in this turn. Absent if it wrote none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<TurnPlan>,
}

/// A plan as `turn/plan/updated` told it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnPlan {
    pub explanation: Option<String>,
    pub plan: Vec<PlanStep>,
}

/// How much of its items a turn shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ItemsView {
    NotLoaded,
    /// Only the last message of the agent.
    Summary,
    #[default]
    Full,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum TurnStatus {
    InProgress,
    Completed,
    Interrupted,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TurnError {
    pub message: String,
    /// A word, or a word with an HTTP status.
    #[serde(default)]
    pub codex_error_info: Option<Value>,
    #[serde(default)]
    pub additional_details: Option<String>,
    #[serde(default)]
    pub misalignment: Option<Value>,
}

encode_with_serde!(TurnStartResponse, TurnSteerResponse, TurnSettingsUpdateResponse);
