//! MCP servers for clients. None are known to the server itself yet.

use std::sync::Arc;

use outpost_wire::Fault;
use outpost_wire::app::mcp::{
    McpServerReload, McpServerResourceRead, McpServerResourceReadParams, McpServerResourceReadResponse, McpServerStatusList,
    McpServerStatusListParams, McpServerStatusListResponse, McpServerToolCall, McpServerToolCallParams, McpServerToolCallResponse,
};
use outpost_wire::app::{NoParams, Nothing};

use super::loaded;
use crate::connection::Connection;
use crate::table::Table;

pub fn register(table: Table) -> Table {
    table
        .on::<McpServerStatusList, _, _>(list)
        .on::<McpServerToolCall, _, _>(call)
        .on::<McpServerResourceRead, _, _>(read)
        .on::<McpServerReload, _, _>(reload)
}

fn unknown(server: &str) -> Fault {
    Fault::invalid_request(format!("there is no MCP server `{server}`"))
}

async fn list(_connection: Arc<Connection>, _params: McpServerStatusListParams) -> Result<McpServerStatusListResponse, Fault> {
    Ok(McpServerStatusListResponse { data: vec![], next_cursor: None })
}

async fn call(connection: Arc<Connection>, params: McpServerToolCallParams) -> Result<McpServerToolCallResponse, Fault> {
    loaded(&connection, &params.thread_id)?;
    Err(unknown(&params.server))
}

async fn read(connection: Arc<Connection>, params: McpServerResourceReadParams) -> Result<McpServerResourceReadResponse, Fault> {
    if let Some(thread) = &params.thread_id {
        loaded(&connection, thread)?;
    }
    Err(unknown(&params.server))
}

async fn reload(_connection: Arc<Connection>, _params: NoParams) -> Result<Nothing, Fault> {
    Ok(Nothing {})
}
