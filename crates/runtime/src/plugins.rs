//! Plugins: a folder with a manifest that says what it brings along. Its skills are found like all others; its MCP servers are
//! handed on as they are declared, with where they are; its hooks are listed and not run.

use outpost_wire::PathUri;
use outpost_wire::exec::discovery::{InstalledPlugin, InstalledResponse, PluginFiles};
use outpost_wire::intent::EnvironmentId;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A plugin as a step sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plugin {
    /// As its manifest says, or else the name of its folder.
    pub name: String,
    pub display_name: Option<String>,
    pub version: Option<String>,
    /// The capability root that it is, or what its machine calls it where it is installed.
    pub root: String,
    /// It is no capability root of the thread, but installed on a machine that it works on.
    pub is_installed: bool,
    pub environment: EnvironmentId,
    pub directory: PathUri,
    pub mcp_servers: Vec<McpDeclaration>,
    /// The events for which it declares hooks. None of them is run.
    pub hooks: Vec<String>,
    pub warnings: Vec<String>,
}

/// An MCP server that a plugin declares. It belongs to the plugin's environment, whatever the declaration says.
#[derive(Debug, Clone, PartialEq)]
pub struct McpDeclaration {
    pub name: String,
    /// As it is written, except that `cwd` is a path that lies inside the plugin's folder.
    pub config: Map<String, Value>,
    pub root: String,
    pub environment: EnvironmentId,
    /// The plugin's folder.
    pub directory: PathUri,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Manifest {
    name: Option<String>,
    version: Option<String>,
    interface: Interface,
    mcp_servers: Option<Value>,
    hooks: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Interface {
    display_name: Option<String>,
}

impl Plugin {
    /// Reads what an executor found. What cannot be read is told and left out.
    pub fn read(root: &str, environment: &EnvironmentId, directory: &PathUri, files: &PluginFiles) -> Self {
        let mut warnings = Vec::new();
        let manifest: Manifest = match serde_json::from_str(&files.manifest.contents) {
            Ok(manifest) => manifest,
            Err(error) => {
                warnings.push(format!("{} cannot be read as a manifest: {error}", files.manifest.path.to_syntax()));
                Manifest::default()
            }
        };
        let folder = || directory.split().map_or_else(|| root.to_owned(), |(_, name)| String::from_utf8_lossy(&name.0).into_owned());
        let mut plugin = Self {
            name: manifest.name.filter(|name| !name.trim().is_empty()).unwrap_or_else(folder),
            display_name: manifest.interface.display_name,
            version: manifest.version,
            root: root.to_owned(),
            is_installed: false,
            environment: environment.clone(),
            directory: directory.clone(),
            mcp_servers: Vec::new(),
            hooks: Vec::new(),
            warnings,
        };
        match manifest.mcp_servers {
            Some(Value::Object(servers)) => plugin.declare(servers),
            _ => plugin.declare_file(files),
        }
        let hooks = match manifest.hooks {
            Some(Value::Object(hooks)) => Some(hooks),
            _ => files.hooks_config.as_ref().and_then(|file| serde_json::from_str(&file.contents).ok()),
        };
        plugin.hooks = hooks.map(events).unwrap_or_default();
        plugin
    }

    /// The plugins that are installed on the machine of an environment.
    pub fn installed(found: &InstalledResponse, environment: &EnvironmentId) -> Vec<Self> {
        let read =
            |plugin: &InstalledPlugin| Self { is_installed: true, ..Self::read(&plugin.id, environment, &plugin.root, &plugin.files) };
        found.plugins.iter().map(read).collect()
    }

    /// `.mcp.json`, which holds the servers or has a member that does.
    fn declare_file(&mut self, files: &PluginFiles) {
        let Some(file) = &files.mcp_config else { return };
        match serde_json::from_str::<Map<String, Value>>(&file.contents) {
            Ok(mut all) => match all.remove("mcpServers") {
                Some(Value::Object(servers)) => self.declare(servers),
                Some(_) => self.warnings.push(format!("`mcpServers` in {} is not an object", file.path.to_syntax())),
                None => self.declare(all),
            },
            Err(error) => self.warnings.push(format!("{} cannot be read: {error}", file.path.to_syntax())),
        }
    }

    fn declare(&mut self, servers: Map<String, Value>) {
        for (name, config) in servers {
            let Value::Object(mut config) = config else {
                self.warnings.push(format!("MCP server `{name}` of plugin `{}` is declared as something else than an object", self.name));
                continue;
            };
            match self.inside(config.get("cwd")) {
                Ok(Some(cwd)) => drop(config.insert("cwd".into(), cwd.to_syntax().into())),
                Ok(None) => {}
                Err(cwd) => {
                    self.warnings
                        .push(format!("MCP server `{name}` of plugin `{}` is left out: its cwd {cwd} leads out of the plugin", self.name));
                    continue;
                }
            }
            let (root, environment, directory) = (self.root.clone(), self.environment.clone(), self.directory.clone());
            self.mcp_servers.push(McpDeclaration { name, config, root, environment, directory });
        }
    }

    /// Where a server is to start, which must be inside the plugin's folder.
    fn inside(&self, cwd: Option<&Value>) -> Result<Option<PathUri>, String> {
        let Some(cwd) = cwd.filter(|cwd| !cwd.is_null()) else { return Ok(None) };
        let text = cwd.as_str().ok_or_else(|| cwd.to_string())?;
        let path = PathUri::parse_either(text).unwrap_or_else(|_| self.directory.join(text));
        // Paths are compared as they are spelled, so one that goes up may go anywhere.
        let goes_up = text.split(['/', '\\']).any(|part| part == "..");
        if path.is_within(&self.directory) && !goes_up { Ok(Some(path)) } else { Err(format!("`{text}`")) }
    }
}

/// The events that a hooks file speaks of.
fn events(hooks: Map<String, Value>) -> Vec<String> {
    match hooks.get("hooks") {
        Some(Value::Object(inner)) => inner.keys().cloned().collect(),
        _ => hooks.keys().filter(|key| *key != "description").cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use outpost_wire::exec::discovery::CapabilityFile;
    use serde_json::json;

    use super::*;

    fn file(path: &str, contents: impl ToString) -> CapabilityFile {
        CapabilityFile { path: PathUri::parse(&format!("file:///p/{path}")).unwrap(), contents: contents.to_string() }
    }

    fn plugin(manifest: impl ToString, mcp: Option<Value>) -> Plugin {
        let files = PluginFiles {
            manifest: file("plugin.json", manifest),
            mcp_config: mcp.map(|mcp| file(".mcp.json", mcp)),
            apps_config: None,
            hooks_config: Some(file("hooks/hooks.json", json!({"hooks": {"Stop": []}}))),
        };
        Plugin::read("r", &EnvironmentId::parse("box").unwrap(), &PathUri::parse("file:///p").unwrap(), &files)
    }

    #[test]
    fn servers_are_declared_inline_or_in_a_file_of_either_shape() {
        let inline = plugin(json!({"name": "n", "mcpServers": {"a": {"command": "x"}}}), Some(json!({"b": {}})));
        assert_eq!(inline.mcp_servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(), ["a"]);
        for shape in [json!({"mcpServers": {"b": {"url": "u"}}}), json!({"b": {"url": "u"}})] {
            let found = plugin(json!({"name": "n"}), Some(shape));
            assert_eq!((found.mcp_servers[0].name.as_str(), &found.mcp_servers[0].config["url"]), ("b", &json!("u")));
            assert_eq!(found.hooks, ["Stop"]);
        }
    }

    #[test]
    fn a_cwd_stays_inside_the_plugin() {
        let of = |cwd: Value| plugin(json!({"name": "n", "mcpServers": {"a": {"command": "x", "cwd": cwd}}}), None);
        assert_eq!(of(json!("./sub")).mcp_servers[0].config["cwd"], json!("/p/sub"));
        assert_eq!(of(json!("/p/deep/er")).mcp_servers[0].config["cwd"], json!("/p/deep/er"));
        for out in [json!("../x"), json!("/etc"), json!("sub/../../x"), json!(5)] {
            let found = of(out.clone());
            assert!(found.mcp_servers.is_empty() && found.warnings[0].contains("leads out of the plugin"), "{out} {:?}", found.warnings);
        }
    }

    #[test]
    fn a_manifest_that_is_no_json_leaves_a_plugin_named_after_its_folder() {
        let found = plugin("{oops", Some(json!({"b": {}})));
        assert_eq!((found.name.as_str(), found.mcp_servers.len()), ("p", 1));
        assert!(found.warnings[0].contains("cannot be read as a manifest"), "{:?}", found.warnings);
    }
}
