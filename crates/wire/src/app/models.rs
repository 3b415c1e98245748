//! The models that are configured.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{app_method, encode_with_serde};

app_method!(ModelList = "model/list", ModelListParams => ModelListResponse);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelListParams {
    pub cursor: Option<String>,
    pub limit: Option<u32>,
    pub include_hidden: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ModelListResponse {
    pub data: Vec<Model>,
    pub next_cursor: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Model {
    pub id: String,
    pub model: String,
    pub display_name: String,
    pub description: String,
    pub hidden: bool,
    pub is_default: bool,
    pub default_reasoning_effort: String,
    pub supported_reasoning_efforts: Vec<ReasoningEffort>,
    pub input_modalities: Vec<String>,
    pub supports_personality: bool,
    pub upgrade: Option<String>,
    pub service_tiers: Vec<String>,
    pub default_service_tier: Option<String>,
    pub additional_speed_tiers: Vec<String>,
    pub availability_nux: Option<Value>,
    pub available_access_programs: Option<Value>,
    pub model_specialty: Option<String>,
    pub multi_agent_version: Option<Value>,
    pub upgrade_info: Option<Value>,
    /// Ours: who serves it.
    pub model_provider: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReasoningEffort {
    pub reasoning_effort: String,
    pub description: String,
}

encode_with_serde!(ModelListResponse);
