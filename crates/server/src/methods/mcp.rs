//! MCP servers for clients: how they stand, calls of their tools, their resources, and reading their configuration again.

use std::sync::Arc;

use outpost_runtime::mcp::McpError;
use outpost_runtime::mcp::refresh::{ClientToolCall, McpRequestError, RefreshMode, ServerStatus, StatusDetail};
use outpost_thread::ThreadId;
use outpost_wire::Fault;
use outpost_wire::app::mcp::{
    McpServerOauthLogin, McpServerOauthLoginParams, McpServerOauthLoginResponse, McpServerReload, McpServerResourceRead,
    McpServerResourceReadParams, McpServerResourceReadResponse, McpServerStatus, McpServerStatusList, McpServerStatusListParams,
    McpServerStatusListResponse, McpServerToolCall, McpServerToolCallParams, McpServerToolCallResponse,
};
use outpost_wire::app::{NoParams, Nothing};
use serde_json::{Map, Value};

use super::loaded;
use crate::connection::ClientConnection;
use crate::fault;
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table
        .on::<McpServerStatusList, _, _>(list)
        .on::<McpServerToolCall, _, _>(call)
        .on::<McpServerResourceRead, _, _>(read)
        .on::<McpServerReload, _, _>(reload)
        .on::<McpServerOauthLogin, _, _>(log_in)
}

/// A thread that must be loaded, if one is named.
async fn named(connection: &Arc<ClientConnection>, thread: Option<&str>) -> Result<Option<ThreadId>, Fault> {
    match thread {
        Some(thread) => Ok(Some(loaded(connection, thread).await?.id())),
        None => Ok(None),
    }
}

fn refused(error: McpRequestError) -> Fault {
    match error {
        McpRequestError::Thread(error) => fault::thread(error),
        // An unknown name is the client's error; everything else is the server's.
        McpRequestError::Server(error @ (McpError::Unknown { .. } | McpError::NoTool { .. })) => Fault::invalid_request(error),
        McpRequestError::Server(error) => Fault::internal(error),
        McpRequestError::Config(why) => Fault::internal(why),
    }
}

/// The page begins after the server that the cursor names.
async fn list(connection: Arc<ClientConnection>, params: McpServerStatusListParams) -> Result<McpServerStatusListResponse, Fault> {
    let thread = named(&connection, params.thread_id.as_deref()).await?;
    let detail = match params.detail.as_deref() {
        Some("toolsAndAuthOnly") => StatusDetail::ToolsOnly,
        _ => StatusDetail::Full,
    };
    let mut all = connection.server.runtime.mcp_status(thread, detail).await.map_err(refused)?;
    if let Some(name) = &params.server_name {
        all.retain(|server| server.name == *name);
    }
    if let Some(cursor) = &params.cursor {
        all.retain(|server| server.name > *cursor);
    }
    let limit = params.limit.map_or(usize::MAX, |limit| limit.max(1) as usize);
    let is_more = all.len() > limit;
    all.truncate(limit);
    let next_cursor = if is_more { all.last().map(|server| server.name.clone()) } else { None };
    Ok(McpServerStatusListResponse { data: all.into_iter().map(status).collect(), next_cursor })
}

fn status(server: ServerStatus) -> McpServerStatus {
    let runtime_status = if server.state == "ready" { "connected".to_owned() } else { server.state };
    McpServerStatus {
        name: server.name,
        tools: server.tools,
        resources: server.resources,
        resource_templates: server.resource_templates,
        auth_status: server.auth_status,
        runtime_status: Some(runtime_status),
        server_info: server.server_info,
        server_capabilities: None,
        tools_error: server.error,
        environment_id: server.environment_id,
    }
}

fn object(what: &str, value: Option<Value>) -> Result<Option<Map<String, Value>>, Fault> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(members)) => Ok(Some(members)),
        Some(_) => Err(fault::invalid(format!("`{what}` is an object"))),
    }
}

/// Nothing here goes through a browser: what a server wants to be shown is named where the server is.
async fn log_in(connection: Arc<ClientConnection>, params: McpServerOauthLoginParams) -> Result<McpServerOauthLoginResponse, Fault> {
    let name = &params.name;
    let thread = named(&connection, params.thread_id.as_deref()).await?;
    let known = connection.server.runtime.mcp_status(thread, StatusDetail::ToolsOnly).await.map_err(refused)?;
    if known.iter().all(|server| server.name != *name) {
        return Err(Fault::invalid_request(format!("No MCP server named '{name}' found.")));
    }
    Err(Fault::invalid_request(format!(
        "there is no login for MCP servers here; put a token into a variable of the executor and name it in \
         `mcp_servers.{name}.bearer_token_env_var` of config.toml"
    )))
}

async fn call(connection: Arc<ClientConnection>, params: McpServerToolCallParams) -> Result<McpServerToolCallResponse, Fault> {
    let thread = loaded(&connection, &params.thread_id).await?.id();
    let (arguments, meta) = (object("arguments", params.arguments)?, object("_meta", params.meta)?);
    let call = ClientToolCall { server: params.server, tool: params.tool, arguments, meta };
    let result = connection.server.runtime.mcp_call(thread, call).await.map_err(refused)?;
    Ok(McpServerToolCallResponse {
        content: result.content,
        structured_content: result.structured,
        is_error: Some(result.is_error),
        meta: result.meta,
    })
}

async fn read(connection: Arc<ClientConnection>, params: McpServerResourceReadParams) -> Result<McpServerResourceReadResponse, Fault> {
    let thread = named(&connection, params.thread_id.as_deref()).await?;
    let contents = connection.server.runtime.mcp_read(thread, &params.server, &params.uri).await.map_err(refused)?;
    Ok(McpServerResourceReadResponse { contents })
}

async fn reload(connection: Arc<ClientConnection>, _params: NoParams) -> Result<Nothing, Fault> {
    let refreshed = connection.server.runtime.mcp_refresh(RefreshMode::Strict).await;
    refreshed.map(|_| Nothing {}).map_err(Fault::invalid_request)
}
