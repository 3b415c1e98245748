//! The capabilities of one step: what its capability roots, its projects and this machine offer, through the handles that the
//! step froze.
//!
//! Roots are durable intent; whether they can be used is not. A root whose environment is not ready is left out of the step, with
//! the reason, and is looked at again in the next one. Nothing here edits the intent, and nothing here knows the registry.

mod view;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use outpost_environment::{
    CapabilityAccess, Discoveries, Environment, StepView, WantedFolder, gather_roots, resolve_selected_capability_roots,
};
use outpost_wire::PathUri;
use outpost_wire::exec::discovery::DiscoveredRoot;
use outpost_wire::fault::is_missing;
use outpost_wire::intent::{Attachment, CapabilityRoot, EnvironmentId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::mcp::declaration::declaration;
use crate::mcp::{DeclarationOrigin, Declared, McpLimits};
use crate::permissions::SandboxMode;
use crate::plugins::Plugin;
use crate::skills::host::{self, HostRoot};
use crate::skills::{Skill, SkillReader, SkillSource};

/// Everything that a step can use of roots, projects and this machine. Frozen with it.
#[derive(Debug, Clone, Default)]
pub struct StepCapabilities {
    /// Every root, in or out, in the order of the intent.
    pub roots: Vec<RootReport>,
    pub skills: Vec<Skill>,
    pub plugins: Vec<Plugin>,
    /// What is wrong with files that were found.
    pub warnings: Vec<CapabilityWarning>,
    /// Roots of which nothing was found where they should be, in words for the user.
    pub missing_roots: Vec<String>,
}

/// Why a root is in a step, or why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RootReport {
    pub id: String,
    pub environment_id: EnvironmentId,
    /// As that machine spells it.
    pub path: String,
    pub available: bool,
    /// Why it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How many skills it offers.
    #[serde(default)]
    pub skills: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapabilityWarning {
    pub environment: EnvironmentId,
    pub path: String,
    pub message: String,
}

/// What a look at capabilities needs.
pub(crate) struct CapabilityQuery<'a> {
    pub discoveries: &'a Discoveries,
    pub patience: Duration,
    pub mode: &'a SandboxMode,
    pub view: &'a StepView,
    pub roots: &'a [CapabilityRoot],
    /// This machine and its folders with skills, whether a thread works on it or not.
    pub host: Option<(Environment, Vec<HostRoot>)>,
}

/// Says what a step that works in a place will look at there.
pub(crate) fn foresee(handle: &Environment, attachment: &Attachment, mode: &SandboxMode) {
    let sandbox = mode.context_in(attachment, handle.narrowing());
    let wanted = |path: PathUri| WantedFolder { path, sandbox: sandbox.clone() };
    let folders: Vec<WantedFolder> =
        host::above(&attachment.cwd).into_iter().map(|directory| wanted(directory.join(host::FOLDER))).collect();
    Discoveries::foresee(handle, &wanted(attachment.cwd.clone()), &folders);
    crate::instructions::foresee(handle, attachment, sandbox.as_ref());
}

/// One folder, and what it is to us.
struct Folder {
    handle: Environment,
    environment: EnvironmentId,
    wanted: WantedFolder,
    role: Role,
    patience: Duration,
}

impl Folder {
    /// The way to its files.
    fn reader(&self) -> SkillReader {
        SkillReader { handle: self.handle.clone(), sandbox: self.wanted.sandbox.clone(), patience: self.patience }
    }
}

enum Role {
    /// The root at this place among the reports.
    Root(usize),
    /// A folder of a project. One above the workspace counts only if it is in the same repository.
    Project {
        cwd: PathUri,
        directory: PathUri,
        is_above: bool,
    },
    Host,
}

impl CapabilityQuery<'_> {
    pub(crate) async fn capture(&self) -> StepCapabilities {
        let roots = gather_roots(self.roots, self.view);
        let mut step = StepCapabilities::default();
        let mut folders = Vec::new();
        for resolved in resolve_selected_capability_roots(&roots, self.view) {
            let mut report = RootReport::of(&resolved.root);
            match resolved.access {
                CapabilityAccess::Available(handle) => folders.push(self.root_folder(handle, &resolved.root, step.roots.len())),
                CapabilityAccess::Unavailable { why } => report.reason = Some(why),
            }
            step.roots.push(report);
        }
        folders.extend(self.project_folders());
        folders.extend(self.host_folders());
        let (found, installed) = tokio::join!(self.look(&folders), self.installed());
        for (folder, found) in folders.iter().zip(found) {
            match (&folder.role, found) {
                (Role::Root(index), Err(why)) => {
                    let report = &mut step.roots[*index];
                    step.missing_roots.push(format!(
                        "the capability root `{}` is not used: {} in `{}`: {why}",
                        report.id, report.path, report.environment_id
                    ));
                    report.reason = Some(why);
                }
                (Role::Root(index), Ok(found)) => step.take_root(*index, folder, &found),
                // A project or a home without skills is the usual case.
                (_, Err(why)) if is_missing(&why) => {}
                (_, Err(message)) => {
                    let path = folder.wanted.path.to_syntax();
                    step.warnings.push(CapabilityWarning { environment: folder.environment.clone(), path, message });
                }
                (Role::Project { cwd, directory, is_above: true }, Ok(found)) if !found.skills.is_empty() => {
                    let top = self.repository(folder, cwd).await;
                    if top.is_some_and(|top| directory.is_within(&top)) {
                        step.take_folder(folder, &found, &SkillSource::Project);
                    }
                }
                (Role::Project { .. }, Ok(found)) => step.take_folder(folder, &found, &SkillSource::Project),
                (Role::Host, Ok(found)) => step.take_folder(folder, &found, &SkillSource::Host),
            }
        }
        for (skills, plugins) in installed {
            step.skills.extend(skills);
            step.take_installed(plugins);
        }
        step.tell_apart();
        step
    }

    fn root_folder(&self, handle: Environment, root: &CapabilityRoot, index: usize) -> Folder {
        let environment = root.environment_id().clone();
        // Where the thread does not work, the root itself is the place: it may be read, and nothing there is a workspace.
        let elsewhere = || Attachment::new(environment.clone(), root.path().clone()).with_roots([]);
        let selected = self.view.selected().find(|member| member.id == environment);
        let attachment = selected.and_then(|member| member.attachment.clone()).unwrap_or_else(elsewhere);
        let wanted = WantedFolder { path: root.path().clone(), sandbox: self.mode.context_in(&attachment, handle.narrowing()) };
        Folder { handle, environment, wanted, role: Role::Root(index), patience: self.patience }
    }

    /// Where projects keep skills: `.agents/skills` in the working directory and above it.
    fn project_folders(&self) -> Vec<Folder> {
        let mut folders = Vec::new();
        for place in self.view.workplaces() {
            let (attachment, environment) = (place.attachment, &place.attachment.environment_id);
            let sandbox = self.mode.context_in(attachment, place.handle.narrowing());
            for directory in host::above(&attachment.cwd) {
                let wanted = WantedFolder { path: directory.join(host::FOLDER), sandbox: sandbox.clone() };
                let is_above = directory != attachment.cwd && !attachment.workspace_roots.iter().any(|root| directory.is_within(root));
                let role = Role::Project { cwd: attachment.cwd.clone(), directory, is_above };
                folders.push(Folder {
                    handle: place.handle.clone(),
                    environment: environment.clone(),
                    wanted,
                    role,
                    patience: self.patience,
                });
            }
        }
        folders
    }

    fn host_folders(&self) -> Vec<Folder> {
        let Some((handle, roots)) = &self.host else { return Vec::new() };
        let folder = |root: &HostRoot| Folder {
            handle: handle.clone(),
            environment: EnvironmentId::local(),
            wanted: WantedFolder { path: root.path.clone(), sandbox: None },
            role: Role::Host,
            patience: self.patience,
        };
        roots.iter().map(folder).collect()
    }

    /// What machines that are worked on have installed. The skills in this machine's own homes are the host's.
    async fn installed(&self) -> Vec<(Vec<Skill>, Vec<Plugin>)> {
        let looks = self.view.workplaces().map(|place| async move {
            let environment = &place.attachment.environment_id;
            let wanted = WantedFolder {
                path: place.attachment.cwd.clone(),
                sandbox: self.mode.context_in(place.attachment, place.handle.narrowing()),
            };
            match self.discoveries.installed(place.handle, &wanted, self.patience).await {
                Ok(Some(found)) => {
                    let reader = SkillReader { handle: place.handle.clone(), sandbox: wanted.sandbox, patience: self.patience };
                    let skills = Skill::installed(&found, environment, &reader, !environment.is_local());
                    (skills, Plugin::installed(&found, environment))
                }
                Ok(None) => Default::default(),
                Err(error) => {
                    tracing::debug!(%error, "what is installed there is not known");
                    Default::default()
                }
            }
        });
        join_all(looks).await
    }

    async fn repository(&self, folder: &Folder, cwd: &PathUri) -> Option<PathUri> {
        let search = host::repository(&folder.handle, cwd, folder.wanted.sandbox.as_ref());
        tokio::time::timeout(self.patience, search).await.ok().flatten()
    }

    /// One question for each environment, all at once.
    async fn look(&self, folders: &[Folder]) -> Vec<Result<Arc<DiscoveredRoot>, String>> {
        let mut handles: Vec<&Environment> = Vec::new();
        for folder in folders {
            if handles.iter().all(|known| !known.is(&folder.handle)) {
                handles.push(&folder.handle);
            }
        }
        let questions = handles.iter().map(|handle| async {
            let wanted: Vec<WantedFolder> =
                folders.iter().filter(|folder| folder.handle.is(handle)).map(|folder| folder.wanted.clone()).collect();
            self.discoveries.look(handle, &wanted, self.patience).await
        });
        let mut answers: Vec<_> = join_all(questions).await.into_iter().map(|answer| answer.map(Vec::into_iter)).collect();
        let mut results = Vec::with_capacity(folders.len());
        for folder in folders {
            let at = handles.iter().position(|handle| handle.is(&folder.handle)).unwrap_or_default();
            results.push(match &mut answers[at] {
                Ok(found) => match found.next() {
                    Some(found) => found.error.clone().map_or(Ok(found), Err),
                    None => Err("nothing was told about it".into()),
                },
                Err(error) => Err(error.to_string()),
            });
        }
        results
    }
}

impl StepCapabilities {
    /// The MCP servers that plugins declare. The first of a name counts.
    pub fn servers(&self, limits: &McpLimits) -> Declared {
        let mut all = Declared::new();
        for server in self.plugins.iter().flat_map(|plugin| &plugin.mcp_servers) {
            let (root, environment, directory) = (server.root.clone(), server.environment.clone(), server.directory.clone());
            let origin = DeclarationOrigin::Plugin { root, environment, directory };
            let config = Value::Object(server.config.clone());
            all.entry(server.name.clone()).or_insert_with(|| declaration(&server.name, &config, &origin, limits));
        }
        all
    }

    fn take_root(&mut self, index: usize, folder: &Folder, found: &DiscoveredRoot) {
        let root = self.roots[index].id.clone();
        let reader = folder.reader();
        let plugin = found.plugin.as_ref().map(|files| Plugin::read(&root, &folder.environment, &found.path, files));
        let source = SkillSource::Root { root, directory: found.path.clone() };
        let (skills, mut warnings) = Skill::read_all(found, &folder.environment, &source, &reader);
        let report = &mut self.roots[index];
        report.available = true;
        report.skills = skills.len();
        report.plugin = plugin.as_ref().map(|plugin| plugin.name.clone());
        report.warnings = found.warnings.clone();
        report.warnings.extend(warnings.iter().map(|warning| format!("{}: {}", warning.path, warning.message)));
        report.warnings.extend(plugin.iter().flat_map(|plugin| plugin.warnings.iter().cloned()));
        self.skills.extend(skills);
        self.plugins.extend(plugin);
        self.warnings.append(&mut warnings);
    }

    fn take_installed(&mut self, plugins: Vec<Plugin>) {
        for plugin in plugins {
            let (environment, path) = (plugin.environment.clone(), plugin.directory.to_syntax());
            let warning =
                |message: &String| CapabilityWarning { environment: environment.clone(), path: path.clone(), message: message.clone() };
            self.warnings.extend(plugin.warnings.iter().map(warning));
            // One that is a capability root as well counts as that.
            let is_known = |known: &Plugin| (&known.environment, &known.directory) == (&plugin.environment, &plugin.directory);
            if !self.plugins.iter().any(is_known) {
                self.plugins.push(plugin);
            }
        }
    }

    fn take_folder(&mut self, folder: &Folder, found: &DiscoveredRoot, source: &SkillSource) {
        let reader = folder.reader();
        let (skills, mut warnings) = Skill::read_all(found, &folder.environment, source, &reader);
        self.skills.extend(skills);
        self.warnings.append(&mut warnings);
    }

    /// The same file by two ways counts once, by the first.
    fn tell_apart(&mut self) {
        let mut seen: Vec<(EnvironmentId, String)> = Vec::new();
        self.skills.retain(|skill| {
            let key = (skill.environment.clone(), skill.path.to_string());
            let is_new = !seen.contains(&key);
            seen.push(key);
            is_new
        });
    }

    /// The skills that an environment must have and does not, by name.
    pub(crate) fn lacking(&self, environment: &EnvironmentId, required: &[String]) -> Vec<String> {
        let has = |name: &&String| {
            self.skills.iter().any(|skill| {
                let own = skill.name.rsplit_once(':').map_or(skill.name.as_str(), |(_, own)| own);
                skill.environment == *environment && (skill.name == **name || own == name.as_str())
            })
        };
        required.iter().filter(|name| !has(name)).cloned().collect()
    }

    pub fn skill(&self, locator: &str) -> Option<&Skill> {
        self.skills.iter().find(|skill| skill.locator == locator)
    }
}

impl RootReport {
    fn of(root: &CapabilityRoot) -> Self {
        Self {
            id: root.id.clone(),
            environment_id: root.environment_id().clone(),
            path: root.path().to_syntax(),
            available: false,
            reason: None,
            skills: 0,
            plugin: None,
            warnings: Vec::new(),
        }
    }
}
