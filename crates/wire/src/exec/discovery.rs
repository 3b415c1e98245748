//! Capability discovery and what an executor's own configuration says: the executor walks and reads, the client decides.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::policy::SandboxContext;
use crate::path::PathUri;
use crate::{encode_with_serde, method};

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoverParams {
    pub roots: Vec<DiscoverRoot>,
}

/// A folder that is to be looked at.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoverRoot {
    /// Opaque to the executor.
    pub id: String,
    pub path: PathUri,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
    /// Ours: the digest of what the client knows, or an empty text. Only who says this is told digests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_digest: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoverResponse {
    pub roots: Vec<DiscoveredRoot>,
}

/// What a folder offers. Whatever is wrong with it concerns no other folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoveredRoot {
    pub id: String,
    pub path: PathUri,
    #[serde(default)]
    pub plugin: Option<PluginFiles>,
    #[serde(default)]
    pub skills: Vec<SkillFiles>,
    /// The nearest manifest above each skill, each once.
    #[serde(default)]
    pub namespace_manifests: Vec<CapabilityFile>,
    #[serde(default)]
    pub warnings: Vec<String>,
    #[serde(default)]
    pub error: Option<String>,
    /// Ours: of everything above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Ours: it is what the client knows, and therefore left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
}

impl DiscoveredRoot {
    /// A folder of which nothing is known.
    pub fn empty(id: impl Into<String>, path: PathUri) -> Self {
        Self {
            id: id.into(),
            path,
            plugin: None,
            skills: Vec::new(),
            namespace_manifests: Vec::new(),
            warnings: Vec::new(),
            error: None,
            digest: None,
            unchanged: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginFiles {
    pub manifest: CapabilityFile,
    #[serde(default)]
    pub mcp_config: Option<CapabilityFile>,
    #[serde(default)]
    pub apps_config: Option<CapabilityFile>,
    /// Ours, for clients that ask for digests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks_config: Option<CapabilityFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SkillFiles {
    pub instructions: CapabilityFile,
    #[serde(default)]
    pub metadata: Option<CapabilityFile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CapabilityFile {
    pub path: PathUri,
    /// As it is; reading it is the client's business.
    pub contents: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InstalledParams {
    pub cwd: PathUri,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxContext>,
    /// Ours, as for folders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_digest: Option<String>,
}

/// What is installed on the executor's machine for all its users.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InstalledResponse {
    #[serde(default)]
    pub plugins: Vec<InstalledPlugin>,
    #[serde(default)]
    pub skills: Vec<InstalledSkill>,
    #[serde(default)]
    pub warnings: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unchanged: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InstalledPlugin {
    pub id: String,
    #[serde(default)]
    pub display_name: Option<String>,
    #[serde(default)]
    pub remote_plugin_id: Option<String>,
    #[serde(default)]
    pub version: Option<String>,
    pub root: PathUri,
    pub files: PluginFiles,
    #[serde(default)]
    pub skills: Vec<PluginSkill>,
}

/// A skill of an installed plugin; its name begins with the plugin's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PluginSkill {
    pub name: String,
    pub description: String,
    #[serde(default)]
    pub short_description: Option<String>,
    pub path: PathUri,
    #[serde(default)]
    pub dependencies: Option<Value>,
    #[serde(default)]
    pub policy: Option<SkillPolicy>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InstalledSkill {
    pub name: String,
    pub description: String,
    #[serde(default)]
    pub short_description: Option<String>,
    pub path: PathUri,
    pub discovery_root: DiscoveryRoot,
    #[serde(default)]
    pub dependencies: Option<Value>,
    #[serde(default)]
    pub policy: Option<SkillPolicy>,
}

/// Which of the executor's own folders a skill was found in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiscoveryRoot {
    pub id: String,
    pub path: PathUri,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SkillPolicy {
    #[serde(default)]
    pub allow_implicit_invocation: Option<bool>,
    #[serde(default)]
    pub products: Vec<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadConfigParams {
    pub cwd: PathUri,
    /// Each is a path of literal TOML keys.
    pub config_paths: Vec<Vec<String>>,
    pub requirements_paths: Vec<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReadConfigResponse {
    #[serde(default)]
    pub user_home_dir: Option<PathUri>,
    /// The home of the program that answers.
    #[serde(default)]
    pub codex_home_dir: Option<PathUri>,
    #[serde(default)]
    pub hostname: Option<String>,
    pub config: ConfigLayers,
    pub requirements: ConfigLayers,
}

/// From the lowest precedence to the highest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigLayers {
    pub layers: Vec<ConfigLayer>,
    pub cloud_insertion_index: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigLayer {
    /// For people: `user (PATH)`, `project (PATH)`.
    pub source: String,
    pub base_dir: PathUri,
    /// Only what was asked for.
    pub toml: String,
}

encode_with_serde!(DiscoverResponse, InstalledResponse, ReadConfigResponse);

method!(Discover = "capabilityRoots/discoverV1", DiscoverParams => DiscoverResponse);
method!(DiscoverInstalled = "capabilities/discoverV2", InstalledParams => InstalledResponse);
method!(ReadConfig = "environmentConfig/read", ReadConfigParams => ReadConfigResponse);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_folder_has_the_shape_of_the_wire_unless_digests_are_asked_for() {
        let path = PathUri::parse("file:///r").unwrap();
        let mut root = DiscoveredRoot::empty("a", path);
        let plain =
            json!({"id": "a", "path": "file:///r", "plugin": null, "skills": [], "namespaceManifests": [], "warnings": [], "error": null});
        assert_eq!(serde_json::to_value(&root).unwrap(), plain);
        (root.digest, root.unchanged) = (Some("d".into()), true);
        let told = serde_json::to_value(&root).unwrap();
        assert_eq!((&told["digest"], &told["unchanged"]), (&json!("d"), &json!(true)));
        assert_eq!(serde_json::from_value::<DiscoveredRoot>(told).unwrap(), root);
    }

    #[test]
    fn a_plugin_of_a_foreign_executor_is_read() {
        let text = r#"{"plugins":[{"id":"plug@mk","displayName":"Plug","remotePluginId":null,"version":"1.0.0","root":"file:///p",
            "files":{"manifest":{"path":"file:///p/.codex-plugin/plugin.json","contents":"{}"},"mcpConfig":null,"appsConfig":null},
            "skills":[{"name":"plug:ps","description":"d","shortDescription":null,"path":"file:///p/s/SKILL.md","dependencies":null,
            "policy":{"allowImplicitInvocation":false,"products":[]}}]}],"skills":[],"warnings":[]}"#;
        let read: InstalledResponse = serde_json::from_str(text).unwrap();
        assert_eq!(read.plugins[0].skills[0].policy.as_ref().unwrap().allow_implicit_invocation, Some(false));
        assert_eq!(serde_json::to_value(&read).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    }
}
