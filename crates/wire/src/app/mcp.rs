//! MCP servers, as clients list and use them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{NoParams, Nothing};
use crate::{app_method, encode_with_serde};

app_method!(McpServerStatusList = "mcpServerStatus/list", McpServerStatusListParams => McpServerStatusListResponse);
app_method!(McpServerToolCall = "mcpServer/tool/call", McpServerToolCallParams => McpServerToolCallResponse);
app_method!(McpServerResourceRead = "mcpServer/resource/read", McpServerResourceReadParams => McpServerResourceReadResponse);
app_method!(
    /// Always refused: there is no login to a server here, a token is named in its configuration.
    McpServerOauthLogin = "mcpServer/oauth/login", McpServerOauthLoginParams => McpServerOauthLoginResponse
);
app_method!(McpServerReload = "config/mcpServer/reload", NoParams => Nothing, bare);

records! {
    McpServerStatusListParams {
        ; cursor: Option<String>, limit: Option<u32>, detail: Option<String>, server_name: Option<String>, thread_id: Option<String>
    }
    McpServerStatusListResponse { data: Vec<McpServerStatus>, next_cursor: Option<String> }
    McpServerStatus {
        name: String,
        /// Tools by name, as the server describes them.
        tools: BTreeMap<String, Value>,
        resources: Vec<Value>,
        resource_templates: Vec<Value>,
        /// `unsupported`, `notLoggedIn`, `bearerToken` or `oAuth`.
        auth_status: String,
        /// `notStarted`, `starting`, `connected`, `failed` or `disabled`.
        runtime_status: Option<String>,
        server_info: Option<Value>,
        server_capabilities: Option<Value>,
        tools_error: Option<String>,
        /// Ours: where it runs.
        environment_id: Option<String>
    }
    McpServerToolCallParams {
        thread_id: String, server: String, tool: String;
        arguments: Option<Value>,
        #[serde(rename = "_meta")]
        meta: Option<Value>
    }
    McpServerToolCallResponse {
        content: Vec<Value>,
        structured_content: Option<Value>,
        is_error: Option<bool>,
        #[serde(rename = "_meta")]
        meta: Option<Value>
    }
    McpServerOauthLoginParams {
        name: String;
        thread_id: Option<String>,
        client_registration: Option<String>,
        scopes: Option<Vec<String>>,
        timeout_secs: Option<u64>
    }
    McpServerOauthLoginResponse { authorization_url: String, login_id: String }
    McpServerResourceReadParams { server: String, uri: String; thread_id: Option<String> }
    McpServerResourceReadResponse { contents: Vec<Value> }
}

encode_with_serde!(McpServerStatusListResponse, McpServerToolCallResponse, McpServerResourceReadResponse, McpServerOauthLoginResponse);
