//! How turns are run: who is asked, and what work may do.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Nothing;
use super::environment::{CapabilityRootParams, EnvironmentParams};
use super::thread::SandboxName;
use crate::app_method;

/// When the user is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum AskForApproval {
    Untrusted,
    OnRequest,
    Never,
    #[serde(rename = "granular")]
    Granular(GranularApproval),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GranularApproval {
    pub sandbox_approval: bool,
    pub rules: bool,
    pub mcp_elicitations: bool,
    #[serde(default = "yes")]
    pub request_permissions: bool,
    #[serde(default = "yes")]
    pub skill_approval: bool,
}

fn yes() -> bool {
    true
}

/// Who answers questions. Only users do here; the others are accepted and mean the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ApprovalsReviewer {
    #[default]
    User,
    AutoReview,
    GuardianSubagent,
}

/// What work may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum SandboxPolicy {
    DangerFullAccess,
    ReadOnly {
        #[serde(default)]
        network_access: bool,
    },
    WorkspaceWrite {
        #[serde(default)]
        writable_roots: Vec<String>,
        #[serde(default)]
        network_access: bool,
        #[serde(default)]
        exclude_tmpdir_env_var: bool,
        #[serde(default)]
        exclude_slash_tmp: bool,
    },
    ExternalSandbox {
        #[serde(default)]
        network_access: NetworkAccess,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum NetworkAccess {
    #[default]
    Restricted,
    Enabled,
}

/// A named set of permissions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ActivePermissionProfile {
    pub id: String,
    #[serde(default)]
    pub extends: Option<String>,
}

app_method!(
    /// Changes how later turns are run.
    ThreadSettingsUpdate = "thread/settings/update", ThreadSettingsUpdateParams => Nothing, experimental
);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadSettingsUpdateParams {
    pub thread_id: String,
    #[serde(default)]
    pub model: Option<String>,
    #[serde(default)]
    pub effort: Option<String>,
    #[serde(default)]
    pub approval_policy: Option<AskForApproval>,
    #[serde(default)]
    pub approvals_reviewer: Option<ApprovalsReviewer>,
    #[serde(default)]
    pub sandbox_policy: Option<SandboxPolicy>,
    #[serde(default)]
    pub permissions: Option<String>,
    #[serde(default)]
    pub cwd: Option<String>,
    #[serde(default)]
    pub collaboration_mode: Option<Value>,
    /// Ours: the thread's environments from now on.
    #[serde(default)]
    pub environments: Option<Vec<EnvironmentParams>>,
    /// Ours: the thread's capability roots from now on.
    #[serde(default)]
    pub selected_capability_roots: Option<Vec<CapabilityRootParams>>,
}

/// How turns of a thread are run now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadSettings {
    pub model: String,
    pub model_provider: String,
    pub effort: Option<String>,
    pub summary: Option<String>,
    pub approval_policy: AskForApproval,
    pub approvals_reviewer: ApprovalsReviewer,
    pub sandbox_policy: SandboxPolicy,
    pub active_permission_profile: Option<ActivePermissionProfile>,
    pub cwd: String,
    pub service_tier: Option<String>,
    pub personality: Option<String>,
    pub collaboration_mode: CollaborationMode,
    pub disabled_plugin_ids: Vec<String>,
    pub multi_agent_mode: MultiAgentMode,
}

/// When agents are made; there is one way here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum MultiAgentMode {
    #[default]
    ExplicitRequestOnly,
}

/// There is one mode here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CollaborationMode {
    pub mode: String,
    pub settings: CollaborationSettings,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CollaborationSettings {
    pub model: String,
    #[serde(default)]
    pub reasoning_effort: Option<String>,
    #[serde(default)]
    pub developer_instructions: Option<String>,
}

/// What start, resume and fork may say about how turns are run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overrides {
    pub model: Option<String>,
    pub model_provider: Option<String>,
    pub cwd: Option<String>,
    pub approval_policy: Option<AskForApproval>,
    pub approvals_reviewer: Option<ApprovalsReviewer>,
    pub sandbox: Option<SandboxName>,
    pub permissions: Option<String>,
    pub config: Option<Value>,
    pub base_instructions: Option<String>,
    pub developer_instructions: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_as_clients_know_them() {
        let text = |value: &AskForApproval| serde_json::to_string(value).unwrap();
        assert_eq!(text(&AskForApproval::OnRequest), "\"on-request\"");
        let own: AskForApproval =
            serde_json::from_str(r#"{"granular":{"mcp_elicitations":true,"rules":false,"sandbox_approval":true}}"#).unwrap();
        assert!(matches!(own, AskForApproval::Granular(own) if own.skill_approval && !own.rules));
        let error = serde_json::from_str::<AskForApproval>("\"sometimes\"").unwrap_err().to_string();
        assert!(error.starts_with("unknown variant `sometimes`, expected one of"), "{error}");
    }
}
