//! Accounts: there are none here, and clients want to be told so.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{app_method, encode_with_serde};

app_method!(AccountRead = "account/read", AccountReadParams => AccountReadResponse);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AccountReadParams {
    pub refresh_token: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AccountReadResponse {
    pub account: Option<Value>,
    pub requires_openai_auth: bool,
}

encode_with_serde!(AccountReadResponse);
