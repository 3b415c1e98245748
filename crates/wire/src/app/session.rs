//! The handshake.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{app_method, encode_with_serde};

app_method!(
    /// Must come first, and once.
    Initialize = "initialize", InitializeParams => InitializeResponse
);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InitializeParams {
    pub client_info: ClientInfo,
    #[serde(default)]
    pub capabilities: Option<ClientCapabilities>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClientInfo {
    /// Must be usable as the value of an HTTP header.
    pub name: String,
    pub version: String,
    #[serde(default)]
    pub title: Option<String>,
}

/// What a client can and wants. A missing one is no.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClientCapabilities {
    /// It may use what is not settled yet.
    pub experimental_api: bool,
    /// It does not want to hear these.
    pub opt_out_notification_methods: Option<Vec<String>>,
    pub extensions: Option<Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InitializeResponse {
    /// `<client>/<version> (<os>; <arch>) outpost (<client>; <client's version>)`.
    pub user_agent: String,
    /// The home of this server; the name is the protocol's.
    pub codex_home: String,
    pub platform_family: String,
    pub platform_os: String,
    pub server_info: ServerInfo,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServerInfo {
    pub name: String,
    /// The version of the protocol that is spoken; clients decide by it what they may send.
    pub version: String,
    /// The version of the program.
    pub program_version: String,
}

encode_with_serde!(InitializeResponse);
