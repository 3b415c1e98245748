//! What there is and, more often, what there is not: clients want to be told either.

use std::collections::BTreeMap;

use serde_json::Value;

use super::files::AbsolutePath;
use super::{NoParams, Nothing};
use crate::{app_method, encode_with_serde};

app_method!(ModelProviderCapabilitiesRead = "modelProvider/capabilities/read", NoParams => ModelProviderCapabilities, bare);
app_method!(CollaborationModeList = "collaborationMode/list", NoParams => CollaborationModeListResponse, experimental);
app_method!(HooksList = "hooks/list", HooksListParams => HooksListResponse);
app_method!(ExperimentalFeatureList = "experimentalFeature/list", PageParams => ExperimentalFeatureListResponse);
app_method!(PluginList = "plugin/list", PluginListParams => PluginListResponse);
app_method!(PluginInstalled = "plugin/installed", PluginListParams => PluginInstalledResponse);
app_method!(
    /// There are no features to switch, so none is ever switched: the answer names those that were.
    ExperimentalFeatureEnablementSet = "experimentalFeature/enablement/set", FeatureEnablement => FeatureEnablement
);
app_method!(
    /// Connectors of a vendor's own cloud: there are none.
    AppList = "app/list", AppListParams => AppListResponse
);
app_method!(
    /// Always refused: plugins come from no marketplace, they are used where they are, as capability roots.
    PluginRead = "plugin/read", PluginParams => PluginReadResponse
);
app_method!(
    /// Always refused, for the same reason.
    PluginInstall = "plugin/install", PluginParams => PluginInstallResponse
);
app_method!(
    /// Always refused, for the same reason.
    PluginUninstall = "plugin/uninstall", PluginUninstallParams => Nothing
);
app_method!(ServerDiagnosticsRead = "server/diagnostics", NoParams => ServerDiagnostics, experimental);

records! {
    /// Tools that a provider would run itself.
    ModelProviderCapabilities { image_generation: bool, web_search: bool }
    CollaborationModeListResponse { data: Vec<CollaborationModeMask> }
    HooksListParams { ; cwds: Vec<String>, thread_id: Option<String> }
    HooksListResponse { data: Vec<HooksListEntry> }
    HooksListEntry { cwd: String, hooks: Vec<Value>, warnings: Vec<String>, errors: Vec<Value> }
    PageParams { ; cursor: Option<String>, limit: Option<u32>, thread_id: Option<String> }
    ExperimentalFeatureListResponse { data: Vec<Value>, next_cursor: Option<String> }
    FeatureEnablement { enablement: BTreeMap<String, bool> }
    AppListParams { ; cursor: Option<String>, limit: Option<u32>, thread_id: Option<String>, force_refetch: bool }
    AppListResponse { data: Vec<Value>, next_cursor: Option<String> }
    PluginParams {
        plugin_name: String;
        marketplace_path: Option<AbsolutePath>,
        remote_marketplace_name: Option<String>,
        install_attempt_id: Option<String>
    }
    PluginReadResponse { plugin: Value }
    PluginInstallResponse { auth_policy: String, apps_needing_auth: Vec<Value> }
    PluginUninstallParams { plugin_id: String }
    PluginListParams { ; cwds: Option<Vec<AbsolutePath>> }
    PluginListResponse { marketplaces: Vec<Value>, marketplace_load_errors: Vec<Value>, featured_plugin_ids: Vec<String> }
    PluginInstalledResponse { marketplaces: Vec<Value>, marketplace_load_errors: Vec<Value> }
    ServerDiagnostics { process: DiagnosedProcess, gauges: Vec<Gauge> }
    DiagnosedProcess { id: u32, resident_memory_bytes: Option<u64>, physical_footprint_bytes: Option<u64> }
    Gauge { name: String, value: u64 }
}

/// Members are spelled as everywhere else in this protocol's modes.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CollaborationModeMask {
    pub name: String,
    pub mode: Option<String>,
    pub model: Option<String>,
    pub reasoning_effort: Option<String>,
}

encode_with_serde!(
    ModelProviderCapabilities,
    CollaborationModeListResponse,
    HooksListResponse,
    ExperimentalFeatureListResponse,
    FeatureEnablement,
    AppListResponse,
    PluginReadResponse,
    PluginInstallResponse,
    PluginListResponse,
    PluginInstalledResponse,
    ServerDiagnostics,
);
