//! What is installed on this machine for all threads: skills in the homes, and plugins in ours.

use std::path::{Path, PathBuf};

use outpost_skill::{SkillHead, allows_implicit_invocation};
use outpost_wire::exec::discovery::{
    CapabilityFile, DiscoveredRoot, DiscoveryRoot, InstalledPlugin, InstalledResponse, InstalledSkill, PluginSkill, SkillFiles, SkillPolicy,
};
use outpost_wire::{Fault, PathUri};
use serde::Deserialize;

use crate::config::ExecutorConfig;
use crate::files::gate::FileGate;

const FEW_PLUGINS: usize = 64;

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Manifest {
    name: Option<String>,
    version: Option<String>,
    interface: Interface,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Interface {
    display_name: Option<String>,
}

/// Looks at all places, through the gate of the asking session; `extended` for clients of ours. It blocks.
pub(crate) fn look(config: &ExecutorConfig, gate: &FileGate, extended: bool) -> Result<InstalledResponse, Fault> {
    let mut found = InstalledResponse::default();
    for (id, path) in skill_folders(config) {
        let Some(root) = discover(gate, &path, extended, &mut found.warnings)? else { continue };
        let discovery_root = DiscoveryRoot { id: id.into(), path: root.path.clone() };
        for files in &root.skills {
            let Some((head, policy)) = read(files, &mut found.warnings) else { continue };
            found.skills.push(InstalledSkill {
                name: head.name,
                description: head.description,
                short_description: head.short_description,
                path: files.instructions.path.clone(),
                discovery_root: discovery_root.clone(),
                dependencies: None,
                policy,
            });
        }
    }
    for folder in plugin_folders(config) {
        let Some(root) = discover(gate, &folder, extended, &mut found.warnings)? else { continue };
        let plugin = plugin(root, &mut found.warnings);
        found.plugins.extend(plugin);
    }
    Ok(found)
}

/// A place that is looked at.
pub(crate) enum InstalledPlace {
    Root(PathBuf),
    /// Only the folders in it are.
    Folder(PathBuf),
}

impl InstalledPlace {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Root(path) | Self::Folder(path) => path,
        }
    }
}

/// All places. It blocks.
pub(crate) fn places(config: &ExecutorConfig) -> Vec<InstalledPlace> {
    let roots = skill_folders(config).into_iter().map(|(_, path)| path).chain(plugin_folders(config));
    let plugins = config.home.iter().map(|home| InstalledPlace::Folder(home.join("plugins")));
    roots.map(InstalledPlace::Root).chain(plugins).collect()
}

fn skill_folders(config: &ExecutorConfig) -> Vec<(&'static str, PathBuf)> {
    let ours = config.home.as_ref().map(|home| ("outpost-home-skills", home.join("skills")));
    let users = config.user_home().map(|home| ("user-agent-skills", home.join(".agents/skills")));
    ours.into_iter().chain(users).collect()
}

/// The folders in `plugins` of our home, by name.
fn plugin_folders(config: &ExecutorConfig) -> Vec<PathBuf> {
    let Some(folder) = config.home.as_ref().map(|home| home.join("plugins")) else { return Vec::new() };
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).take(FEW_PLUGINS).collect();
    folders.sort();
    folders
}

/// A place that is not there holds nothing; one that may not be looked at is told.
fn discover(gate: &FileGate, path: &Path, extended: bool, warnings: &mut Vec<String>) -> Result<Option<DiscoveredRoot>, Fault> {
    if !path.is_dir() {
        return Ok(None);
    }
    let found = match gate.discover(path, extended) {
        Ok(found) => found,
        Err(fault) => {
            let uri = PathUri::from_native(path).map(|uri| uri.to_string()).unwrap_or_default();
            warnings.push(format!("{uri} cannot be looked at: {}", fault.message));
            return Ok(None);
        }
    };
    warnings.extend(found.warnings.iter().cloned().chain(found.error.clone()));
    Ok(found.error.is_none().then_some(found))
}

fn read(files: &SkillFiles, warnings: &mut Vec<String>) -> Option<(SkillHead, Option<SkillPolicy>)> {
    let implicit = files.metadata.as_ref().and_then(|metadata: &CapabilityFile| allows_implicit_invocation(&metadata.contents));
    let policy = implicit.map(|allowed| SkillPolicy { allow_implicit_invocation: Some(allowed), products: Vec::new() });
    match SkillHead::read(&files.instructions.contents) {
        Ok(head) => Some((head, policy)),
        Err(error) => {
            warnings.push(format!("{} is not a skill: {error}", files.instructions.path));
            None
        }
    }
}

fn plugin(root: DiscoveredRoot, warnings: &mut Vec<String>) -> Option<InstalledPlugin> {
    let files = root.plugin?;
    let manifest: Manifest = serde_json::from_str(&files.manifest.contents).unwrap_or_default();
    let folder = root.path.split().map(|(_, name)| String::from_utf8_lossy(&name.0).into_owned());
    let id = manifest.name.or(folder).unwrap_or_default();
    let skill = |skill: &SkillFiles| {
        let (head, policy) = read(skill, warnings)?;
        Some(PluginSkill {
            name: format!("{id}:{}", head.name),
            description: head.description,
            short_description: head.short_description,
            path: skill.instructions.path.clone(),
            dependencies: None,
            policy,
        })
    };
    let skills = root.skills.iter().filter_map(skill).collect();
    let (display_name, version) = (manifest.interface.display_name, manifest.version);
    Some(InstalledPlugin { id, display_name, remote_plugin_id: None, version, root: root.path, files, skills })
}
