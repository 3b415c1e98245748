//! The sandbox that a request asks for. Members of the permission profile are snake_case on this wire.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::path::PathUri;
use crate::{encode_with_serde, notification};

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SandboxContext {
    pub permissions: Permissions,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<PathUri>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_roots: Option<Vec<PathUri>>,
    pub windows_sandbox_level: WindowsSandboxLevel,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows_sandbox_proxy_settings_mode: Option<ProxySettingsMode>,
    #[serde(default)]
    pub use_legacy_landlock: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_home_dir: Option<PathUri>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temporary_directories: Option<Vec<PathUri>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_override: Option<SandboxOverride>,
    /// Ours: devices to show besides the harmless ones: `nvidia`, `dri`, or paths below `/dev`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum WindowsSandboxLevel {
    Disabled,
    RestrictedToken,
    Elevated,
    Mxc,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ProxySettingsMode {
    Reconcile,
    Preserve,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum SandboxOverride {
    NoOverride,
    EscalatedSandboxWithRestrictions,
    BypassSandboxFirstAttempt,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Permissions {
    Disabled,
    External { network: Network },
    Managed { file_system: FileSystem, network: Network },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Network {
    Restricted,
    Enabled,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum FileSystem {
    Unrestricted,
    Restricted {
        entries: Vec<PolicyEntry>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        glob_scan_max_depth: Option<NonZeroU32>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PolicyEntry {
    pub path: EntryPath,
    pub access: Access,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_path_behavior: Option<MissingPath>,
    /// Ours: the entry was given on top, by a user who saw exactly this path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
}

/// An entry that was given on top of a policy. Its path is taken as it is written: what lies behind a link was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Grant {
    /// What cannot be given is refused.
    Required,
    /// What cannot be given is left out: a path that is gone, has become a link, or is above the operator's ceiling.
    Optional,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Access {
    Read,
    Write,
    #[serde(alias = "none")]
    Deny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum MissingPath {
    Skip,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum EntryPath {
    Path { path: PathUri },
    GlobPattern { pattern: String },
    Special { value: SpecialRoot },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum SpecialRoot {
    Root,
    Minimal,
    #[serde(alias = "current_working_directory")]
    ProjectRoots {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
    },
    Tmpdir,
    SlashTmp,
    Unknown {
        path: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
    },
}

impl SandboxContext {
    /// Whether file calls under this context run without any confinement.
    pub fn leaves_files_open(&self) -> bool {
        matches!(
            self.permissions,
            Permissions::Disabled | Permissions::External { .. } | Permissions::Managed { file_system: FileSystem::Unrestricted, .. }
        )
    }
}

/// A program outside took away something that a sandbox of the session held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SandboxLossParams {
    pub path: PathUri,
    pub held: Held,
    pub outcome: LossOutcome,
}

/// How something was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Held {
    Denied,
    ReadOnly,
    /// A directory on the way to something that is denied or read-only.
    Directory,
    /// A link on the way to it.
    Link,
    /// A place of the sandbox itself, such as a workspace root.
    Root,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum LossOutcome {
    /// It is held again.
    Restored,
    /// There is nothing at the path now.
    Missing,
    /// Commands that already run are not held there any more; those that are started next are.
    Open,
    /// Where nothing was, something is held now that a command that already runs could have made.
    Made,
}

encode_with_serde!(SandboxLossParams);

notification!(
    /// Ours, for clients that ask for `sandboxLosses`.
    SandboxLoss = "sandbox/loss", SandboxLossParams
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_profile_of_a_real_client_round_trips() {
        let text = r#"{"permissions":{"type":"managed","file_system":{"type":"restricted","entries":[
            {"path":{"type":"special","value":{"kind":"root"}},"access":"read"},
            {"path":{"type":"special","value":{"kind":"project_roots"}},"access":"write"},
            {"path":{"type":"special","value":{"kind":"project_roots","subpath":".git"}},"access":"read","missing_path_behavior":"skip"},
            {"path":{"type":"glob_pattern","pattern":"**/*.env"},"access":"none"},
            {"path":{"type":"path","path":"file:///secret"},"access":"deny"}]},"network":"restricted"},
            "cwd":"file:///w","workspaceRoots":["file:///w"],"windowsSandboxLevel":"disabled"}"#;
        let context: SandboxContext = serde_json::from_str(text).unwrap();
        assert!(!context.leaves_files_open());
        let again: SandboxContext = serde_json::from_str(&serde_json::to_string(&context).unwrap()).unwrap();
        assert_eq!(context, again);
    }

    #[test]
    fn the_level_is_required() {
        let error = serde_json::from_str::<SandboxContext>(r#"{"permissions":{"type":"disabled"}}"#).unwrap_err();
        assert!(error.to_string().starts_with("missing field `windowsSandboxLevel`"), "{error}");
    }
}
