//! The configuration, as clients may read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    pub origins: BTreeMap<String, Value>,
    pub layers: Option<Vec<Value>>,
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

encode_with_serde!(ConfigReadResponse, PermissionProfileListResponse);
