//! The handshake.

use std::sync::Arc;

use outpost_wire::Fault;
use outpost_wire::app::journal;
use outpost_wire::app::session::{Initialize, InitializeParams, InitializeResponse, ServerInfo};

use crate::connection::{ClientConnection, ConnectedClient};
use crate::fault;
use crate::table::Table;

/// The version of the protocol that is spoken here. Clients decide by it what they may send.
const PROTOCOL: &str = "0.166.0";

pub(super) fn register(table: Table) -> Table {
    table.on::<Initialize, _, _>(initialize)
}

async fn initialize(connection: Arc<ClientConnection>, params: InitializeParams) -> Result<InitializeResponse, Fault> {
    if connection.client().is_some() {
        return Err(fault::already_initialized());
    }
    let client = params.client_info;
    if http::HeaderValue::from_str(&client.name).is_err() {
        let name = client.name.escape_debug();
        return Err(Fault::invalid_request(format!("Invalid clientInfo.name: '{name}'. Must be a valid HTTP header value.")));
    }
    let capabilities = params.capabilities.unwrap_or_default();
    let hears_entries = capabilities.extensions.as_ref().is_some_and(|extensions| extensions[journal::ENTRIES] == true);
    connection.introduce(ConnectedClient {
        hears_entries: hears_entries && capabilities.experimental_api,
        name: client.name.clone(),
        experimental: capabilities.experimental_api,
        opted_out: capabilities.opt_out_notification_methods.unwrap_or_default().into_iter().collect(),
    })?;
    connection.server.follow_skills();
    let facts = &connection.server.facts;
    let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
    Ok(InitializeResponse {
        user_agent: format!("{}/{PROTOCOL} ({os}; {arch}) outpost/{} ({}; {})", client.name, facts.version, client.name, client.version),
        codex_home: facts.home.display().to_string(),
        platform_family: std::env::consts::FAMILY.into(),
        platform_os: os.into(),
        server_info: ServerInfo { name: "outpost".into(), version: PROTOCOL.into(), program_version: facts.version.clone() },
    })
}
