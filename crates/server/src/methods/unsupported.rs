//! What there is not, told truly, and how the server itself is.

use std::collections::BTreeMap;
use std::sync::Arc;

use outpost_wire::Fault;
use outpost_wire::app::lists::{
    AppList, AppListParams, AppListResponse, CollaborationModeList, CollaborationModeListResponse, CollaborationModeMask, DiagnosedProcess,
    ExperimentalFeatureEnablementSet, ExperimentalFeatureList, ExperimentalFeatureListResponse, FeatureEnablement, Gauge, HooksList,
    HooksListEntry, HooksListParams, HooksListResponse, ModelProviderCapabilities, ModelProviderCapabilitiesRead, PageParams,
    PluginInstall, PluginInstallResponse, PluginInstalled, PluginInstalledResponse, PluginList, PluginListParams, PluginListResponse,
    PluginParams, PluginRead, PluginReadResponse, PluginUninstall, PluginUninstallParams, ServerDiagnostics, ServerDiagnosticsRead,
};
use outpost_wire::app::{NoParams, Nothing};

use crate::connection::ClientConnection;
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table
        .on::<ModelProviderCapabilitiesRead, _, _>(capabilities)
        .on::<CollaborationModeList, _, _>(modes)
        .on::<HooksList, _, _>(hooks)
        .on::<ExperimentalFeatureList, _, _>(features)
        .on::<PluginList, _, _>(plugins)
        .on::<PluginInstalled, _, _>(installed)
        .on::<ServerDiagnosticsRead, _, _>(diagnostics)
        .on::<ExperimentalFeatureEnablementSet, _, _>(set_features)
        .on::<AppList, _, _>(apps)
        .on::<PluginRead, _, _>(read_plugin)
        .on::<PluginInstall, _, _>(install_plugin)
        .on::<PluginUninstall, _, _>(uninstall_plugin)
}

/// All tools run here. A provider is asked for none of its own but pictures, if configuration says so of the model.
async fn capabilities(connection: Arc<ClientConnection>, _params: NoParams) -> Result<ModelProviderCapabilities, Fault> {
    let config = connection.server.runtime.config();
    Ok(ModelProviderCapabilities { image_generation: config.facts(&config.model).image_generation, web_search: false })
}

/// There is one mode.
async fn modes(_connection: Arc<ClientConnection>, _params: NoParams) -> Result<CollaborationModeListResponse, Fault> {
    let usual = CollaborationModeMask { name: "Default".into(), mode: Some("default".into()), model: None, reasoning_effort: None };
    Ok(CollaborationModeListResponse { data: vec![usual] })
}

async fn hooks(connection: Arc<ClientConnection>, params: HooksListParams) -> Result<HooksListResponse, Fault> {
    let entry = |cwd| HooksListEntry { cwd, hooks: vec![], warnings: vec![], errors: vec![] };
    Ok(HooksListResponse { data: places(&connection, params.cwds).into_iter().map(entry).collect() })
}

/// The directories that a client asks about; the server's own if it names none.
pub(super) fn places(connection: &ClientConnection, given: Vec<String>) -> Vec<String> {
    if given.is_empty() { vec![connection.server.facts.cwd.to_syntax()] } else { given }
}

async fn features(_connection: Arc<ClientConnection>, _params: PageParams) -> Result<ExperimentalFeatureListResponse, Fault> {
    Ok(ExperimentalFeatureListResponse { data: vec![], next_cursor: None })
}

/// None of those that are named is known, so none was set. Clients name whatever they know of; that is no mistake.
async fn set_features(_connection: Arc<ClientConnection>, _params: FeatureEnablement) -> Result<FeatureEnablement, Fault> {
    Ok(FeatureEnablement { enablement: BTreeMap::new() })
}

async fn apps(_connection: Arc<ClientConnection>, _params: AppListParams) -> Result<AppListResponse, Fault> {
    Ok(AppListResponse { data: vec![], next_cursor: None })
}

/// What to do instead of getting a plugin from somewhere.
fn no_marketplace(what: &str) -> Fault {
    Fault::invalid_request(format!(
        "{what}: there is no marketplace here, plugins are used where they are; name the plugin's folder in `selectedCapabilityRoots` of \
         thread/start, or with `outpost exec --root ENV:PATH`"
    ))
}

async fn read_plugin(_connection: Arc<ClientConnection>, params: PluginParams) -> Result<PluginReadResponse, Fault> {
    Err(no_marketplace(&format!("plugin `{}` cannot be read", params.plugin_name)))
}

async fn install_plugin(_connection: Arc<ClientConnection>, params: PluginParams) -> Result<PluginInstallResponse, Fault> {
    Err(no_marketplace(&format!("plugin `{}` cannot be installed", params.plugin_name)))
}

async fn uninstall_plugin(_connection: Arc<ClientConnection>, params: PluginUninstallParams) -> Result<Nothing, Fault> {
    Err(no_marketplace(&format!("plugin `{}` is not installed", params.plugin_id)))
}

async fn plugins(_connection: Arc<ClientConnection>, _params: PluginListParams) -> Result<PluginListResponse, Fault> {
    Ok(PluginListResponse { marketplaces: vec![], marketplace_load_errors: vec![], featured_plugin_ids: vec![] })
}

async fn installed(_connection: Arc<ClientConnection>, _params: PluginListParams) -> Result<PluginInstalledResponse, Fault> {
    Ok(PluginInstalledResponse { marketplaces: vec![], marketplace_load_errors: vec![] })
}

async fn diagnostics(connection: Arc<ClientConnection>, _params: NoParams) -> Result<ServerDiagnostics, Fault> {
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
