//! The configuration, as clients may read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::NoParams;
use crate::{app_method, encode_with_serde};

app_method!(ConfigRead = "config/read", ConfigReadParams => ConfigReadResponse);
app_method!(PermissionProfileList = "permissionProfile/list", PermissionProfileListParams => PermissionProfileListResponse);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigReadParams {
    pub cwd: Option<String>,
    pub include_layers: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigReadResponse {
    /// Keys as in `config.toml`.
    pub config: Value,
    /// Where each value comes from, by its key with dots.
    pub origins: BTreeMap<String, ConfigOrigin>,
    /// If asked for.
    pub layers: Option<Vec<ConfigLayer>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PermissionProfileListParams {
    pub cursor: Option<String>,
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PermissionProfileListResponse {
    pub data: Vec<PermissionProfile>,
    pub next_cursor: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PermissionProfile {
    /// `:read-only`, `:workspace`, `:danger-full-access`.
    pub id: String,
    pub description: Option<String>,
    pub allowed: bool,
}

app_method!(
    /// Writes one value into `config.toml`.
    ConfigValueWrite = "config/value/write", ConfigValueWriteParams => ConfigWriteResponse
);
app_method!(
    /// Writes several values, all or none.
    ConfigBatchWrite = "config/batchWrite", ConfigBatchWriteParams => ConfigWriteResponse
);
app_method!(ConfigRequirementsRead = "configRequirements/read", NoParams => ConfigRequirementsResponse, bare);

records! {
    ConfigValueWriteParams {
        /// With dots; parts may be quoted as in TOML.
        key_path: String,
        /// `null` takes the key away.
        value: Value,
        merge_strategy: MergeStrategy;
        /// Only `config.toml` of the home can be written.
        file_path: Option<String>,
        /// What `config/read` or the last write said; another one is refused.
        expected_version: Option<String>
    }
    ConfigBatchWriteParams {
        edits: Vec<ConfigEdit>;
        file_path: Option<String>,
        expected_version: Option<String>,
        reload_user_config: bool
    }
    ConfigEdit { key_path: String, value: Value, merge_strategy: MergeStrategy }
    ConfigWriteResponse {
        status: ConfigWriteStatus,
        version: String,
        file_path: String,
        overridden_metadata: Option<OverriddenMetadata>
    }
    /// A setting of the command line stands over what was written.
    OverriddenMetadata { message: String, overriding_layer: ConfigOrigin, effective_value: Value }
    /// What the administrator's `requirements.toml` says that no configuration loosens; `null` without one.
    ConfigRequirementsResponse { requirements: Option<ConfigRequirements> }
    NetworkRequirement { enabled: bool }
    /// One of the places that the configuration is put together from; a later one counts more.
    ConfigLayer { name: ConfigLayerSource, version: String, config: Value, disabled_reason: Option<String> }
    ConfigOrigin { name: ConfigLayerSource, version: String }
}

/// What is not required is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigRequirements {
    /// Clients know the granular policy as an object; it has no name here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_approval_policies: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_sandbox_modes: Option<Vec<String>>,
    /// Ours: the sources that an environment may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_sources: Option<Vec<String>>,
    /// Ours: where it is written.
    pub file: String,
    /// Ours: whether there may be work on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkRequirement>,
    /// Ours: the level below which sandboxes are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_minimum: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum MergeStrategy {
    Replace,
    /// Tables keep what is not named.
    Upsert,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ConfigWriteStatus {
    Ok,
    OkOverridden,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ConfigLayerSource {
    /// `config.toml` of the home.
    User { file: String },
    /// `-c` of the command line.
    SessionFlags,
}

encode_with_serde!(ConfigReadResponse, PermissionProfileListResponse, ConfigWriteResponse, ConfigRequirementsResponse);
