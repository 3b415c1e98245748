//! The configuration, as it counts now.

use std::collections::BTreeMap;
use std::sync::Arc;

use outpost_wire::Fault;
use outpost_wire::app::config::{ConfigRead, ConfigReadParams, ConfigReadResponse};
use outpost_wire::app::config::{PermissionProfile, PermissionProfileList, PermissionProfileListParams, PermissionProfileListResponse};

use super::choices::PROFILES;
use crate::connection::Connection;
use crate::table::Table;

pub fn register(table: Table) -> Table {
    table.on::<ConfigRead, _, _>(read).on::<PermissionProfileList, _, _>(profiles)
}

async fn read(connection: Arc<Connection>, _params: ConfigReadParams) -> Result<ConfigReadResponse, Fault> {
    Ok(ConfigReadResponse { config: connection.server.facts.config.clone(), origins: BTreeMap::new(), layers: None })
}

async fn profiles(_connection: Arc<Connection>, _params: PermissionProfileListParams) -> Result<PermissionProfileListResponse, Fault> {
    let profile = |(id, _): &(&str, &str)| PermissionProfile { id: (*id).to_owned(), description: None, allowed: true };
    Ok(PermissionProfileListResponse { data: PROFILES.iter().map(profile).collect(), next_cursor: None })
}
