//! What there is not, told truly, and how the server itself is.

use std::sync::Arc;

use outpost_wire::Fault;
use outpost_wire::app::NoParams;
use outpost_wire::app::lists::{
    CollaborationModeList, CollaborationModeListResponse, CollaborationModeMask, DiagnosedProcess, ExperimentalFeatureList,
    ExperimentalFeatureListResponse, Gauge, HooksList, HooksListEntry, HooksListParams, HooksListResponse, ModelProviderCapabilities,
    ModelProviderCapabilitiesRead, PageParams, PluginInstalled, PluginInstalledResponse, PluginList, PluginListParams, PluginListResponse,
    ServerDiagnostics, ServerDiagnosticsRead,
};

use crate::connection::Connection;
use crate::table::Table;

pub fn register(table: Table) -> Table {
    table
        .on::<ModelProviderCapabilitiesRead, _, _>(capabilities)
        .on::<CollaborationModeList, _, _>(modes)
        .on::<HooksList, _, _>(hooks)
        .on::<ExperimentalFeatureList, _, _>(features)
        .on::<PluginList, _, _>(plugins)
        .on::<PluginInstalled, _, _>(installed)
        .on::<ServerDiagnosticsRead, _, _>(diagnostics)
}

/// All tools run here; providers are asked for none of their own.
async fn capabilities(_connection: Arc<Connection>, _params: NoParams) -> Result<ModelProviderCapabilities, Fault> {
    Ok(ModelProviderCapabilities { image_generation: false, web_search: false })
}

/// There is one mode.
async fn modes(_connection: Arc<Connection>, _params: NoParams) -> Result<CollaborationModeListResponse, Fault> {
    let usual = CollaborationModeMask { name: "Default".into(), mode: Some("default".into()), model: None, reasoning_effort: None };
    Ok(CollaborationModeListResponse { data: vec![usual] })
}

async fn hooks(connection: Arc<Connection>, params: HooksListParams) -> Result<HooksListResponse, Fault> {
    let entry = |cwd| HooksListEntry { cwd, hooks: vec![], warnings: vec![], errors: vec![] };
    Ok(HooksListResponse { data: places(&connection, params.cwds).into_iter().map(entry).collect() })
}

/// The directories that a client asks about; the server's own if it names none.
pub fn places(connection: &Connection, given: Vec<String>) -> Vec<String> {
    if given.is_empty() { vec![connection.server.facts.cwd.to_syntax()] } else { given }
}

async fn features(_connection: Arc<Connection>, _params: PageParams) -> Result<ExperimentalFeatureListResponse, Fault> {
    Ok(ExperimentalFeatureListResponse { data: vec![], next_cursor: None })
}

async fn plugins(_connection: Arc<Connection>, _params: PluginListParams) -> Result<PluginListResponse, Fault> {
    Ok(PluginListResponse { marketplaces: vec![], marketplace_load_errors: vec![], featured_plugin_ids: vec![] })
}

async fn installed(_connection: Arc<Connection>, _params: PluginListParams) -> Result<PluginInstalledResponse, Fault> {
    Ok(PluginInstalledResponse { marketplaces: vec![], marketplace_load_errors: vec![] })
}

async fn diagnostics(connection: Arc<Connection>, _params: NoParams) -> Result<ServerDiagnostics, Fault> {
    let server = &connection.server;
    let gauge = |name: &str, value: usize| Gauge { name: name.into(), value: value as u64 };
    let gauges = vec![
        gauge("connections", server.connections().len()),
        gauge("loadedThreads", server.runtime.loaded().len()),
        gauge("environments", server.runtime.registry().list().len()),
    ];
    let process = DiagnosedProcess { id: std::process::id(), resident_memory_bytes: resident().await, physical_footprint_bytes: None };
    Ok(ServerDiagnostics { process, gauges })
}

/// As the system counts it; nothing where it does not tell.
async fn resident() -> Option<u64> {
    let status = tokio::fs::read_to_string("/proc/self/status").await.ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}
