//! Nobody logs in here: providers are configured with keys.

use std::sync::Arc;

use outpost_wire::Fault;
use outpost_wire::app::account::{AccountRead, AccountReadParams, AccountReadResponse};

use crate::connection::Connection;
use crate::table::Table;

pub fn register(table: Table) -> Table {
    table.on::<AccountRead, _, _>(read)
}

async fn read(_connection: Arc<Connection>, _params: AccountReadParams) -> Result<AccountReadResponse, Fault> {
    Ok(AccountReadResponse { account: None, requires_openai_auth: false })
}
