//! Accounts: there are none here, and clients want to be told so.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{NoParams, Nothing};
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

app_method!(AccountLoginStart = "account/login/start", Value => Nothing);
app_method!(AccountLoginCancel = "account/login/cancel", LoginCancelParams => LoginCancelResponse);
app_method!(AccountLogout = "account/logout", NoParams => Nothing, bare);
app_method!(AccountRateLimitsRead = "account/rateLimits/read", NoParams => RateLimitsResponse, bare);
app_method!(
    /// About an account that there is not.
    GovCloudCheck = "account/bedrock/checkGovCloudRequirements", NoParams => GovCloudResponse, experimental
);

records! {
    LoginCancelParams { login_id: String }
    /// `status` is always `notFound`: no login can be in progress.
    LoginCancelResponse { status: String }
    /// No provider tells its limits here.
    RateLimitsResponse { rate_limits: RateLimits, rate_limits_by_limit_id: Option<Value>, account_id: Option<String> }
    RateLimits { limit_id: Option<String>, limit_name: Option<String>, primary: Option<Value>, secondary: Option<Value>, credits: Option<Value>, plan_type: Option<String> }
    GovCloudResponse { is_gov_cloud: bool, should_warn: bool }
}

encode_with_serde!(AccountReadResponse, LoginCancelResponse, RateLimitsResponse, GovCloudResponse);
