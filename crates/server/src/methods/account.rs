//! Accounts: there are none. Keys of providers are in variables, and there is no login.

use std::sync::Arc;

use outpost_wire::Fault;
use outpost_wire::app::account::{
    AccountLoginCancel, AccountLoginStart, AccountLogout, AccountRateLimitsRead, AccountRead, AccountReadParams, AccountReadResponse,
    GovCloudCheck, GovCloudResponse, LoginCancelParams, LoginCancelResponse, RateLimits, RateLimitsResponse,
};
use outpost_wire::app::{NoParams, Nothing};
use serde_json::Value;

use crate::connection::ClientConnection;
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table
        .on::<AccountRead, _, _>(read)
        .on::<AccountLoginStart, _, _>(login)
        .on::<AccountLoginCancel, _, _>(cancel)
        .on::<AccountLogout, _, _>(logout)
        .on::<AccountRateLimitsRead, _, _>(limits)
        .on::<GovCloudCheck, _, _>(gov_cloud)
}

async fn read(_connection: Arc<ClientConnection>, _params: AccountReadParams) -> Result<AccountReadResponse, Fault> {
    Ok(AccountReadResponse { account: None, requires_openai_auth: false })
}

async fn login(_connection: Arc<ClientConnection>, _params: Value) -> Result<Nothing, Fault> {
    let why =
        "there is no login here: set the variable that `env_key` of the model provider names, such as OPENAI_API_KEY, and start again";
    Err(Fault::invalid_request(why))
}

async fn cancel(_connection: Arc<ClientConnection>, _params: LoginCancelParams) -> Result<LoginCancelResponse, Fault> {
    Ok(LoginCancelResponse { status: "notFound".into() })
}

/// There is no login, so there is nothing to do.
async fn logout(_connection: Arc<ClientConnection>, _params: NoParams) -> Result<Nothing, Fault> {
    Ok(Nothing {})
}

async fn limits(_connection: Arc<ClientConnection>, _params: NoParams) -> Result<RateLimitsResponse, Fault> {
    let rate_limits = RateLimits { limit_id: None, limit_name: None, primary: None, secondary: None, credits: None, plan_type: None };
    Ok(RateLimitsResponse { rate_limits, rate_limits_by_limit_id: None, account_id: None })
}

async fn gov_cloud(_connection: Arc<ClientConnection>, _params: NoParams) -> Result<GovCloudResponse, Fault> {
    Ok(GovCloudResponse { is_gov_cloud: false, should_warn: false })
}
