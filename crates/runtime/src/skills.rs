//! Skills: instructions for particular kinds of work, kept in files named SKILL.md. The model is told which there are; what they
//! say is read when it is needed, through the environment that they are in.

pub mod choice;
pub mod host;
pub mod listing;
mod mention;
mod watch;

use std::time::Duration;

use outpost_environment::{Environment, EnvironmentError, Repeat};
use outpost_skill::{SkillHead, allows_implicit_invocation};
use outpost_wire::PathUri;
use outpost_wire::exec::discovery::{CapabilityFile, DiscoveredRoot, InstalledResponse, SkillPolicy};
use outpost_wire::exec::files::{ReadFile, ReadFileParams};
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::intent::EnvironmentId;
use serde::Deserialize;
use thiserror::Error;
use tokio::time::timeout;

use crate::capabilities::CapabilityWarning;

pub(crate) use mention::mentioned;

/// The most of a file of a skill that a model is shown.
const LARGEST: usize = 64 << 10;

/// A skill as a step sees it.
#[derive(Debug, Clone)]
pub struct Skill {
    /// Begins with the plugin's name if it belongs to one.
    pub name: String,
    pub description: String,
    pub short_description: Option<String>,
    /// What the model calls it by; no two skills of a step share one.
    pub locator: String,
    pub environment: EnvironmentId,
    pub path: PathUri,
    pub source: SkillSource,
    /// Whether the model is told of it, or only gets it when the user names it.
    pub is_listed: bool,
    pub(crate) reader: SkillReader,
}

/// Where a skill was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SkillSource {
    /// In a capability root.
    Root { root: String, directory: PathUri },
    /// In `.agents/skills` of a project.
    Project,
    /// In a home on the machine of an environment; `root` is what its executor calls that place.
    Installed { root: String },
    /// In a home on the machine that runs the threads.
    Host,
}

/// The way to a skill's files: exactly the handle that its step froze.
#[derive(Debug, Clone)]
pub(crate) struct SkillReader {
    pub handle: Environment,
    pub sandbox: Option<SandboxContext>,
    /// How long a file may take.
    pub patience: Duration,
}

#[derive(Debug, Error)]
pub enum SkillReadError {
    #[error("`{0}` is not a path inside the folder of the skill")]
    Outside(String),
    #[error("{path} cannot be read: {error}")]
    Unreadable {
        path: String,
        #[source]
        error: EnvironmentError,
    },
    #[error("{path} cannot be read: environment `{environment}` did not answer within {} seconds", .patience.as_secs_f32())]
    Slow { path: String, environment: EnvironmentId, patience: Duration },
    #[error("{0} is not text")]
    NotText(String),
}

impl Skill {
    /// The skills that a folder holds, and what is wrong with those that are none.
    pub(crate) fn read_all(
        found: &DiscoveredRoot,
        environment: &EnvironmentId,
        source: &SkillSource,
        reader: &SkillReader,
    ) -> (Vec<Self>, Vec<CapabilityWarning>) {
        let (mut skills, mut warnings) = (Vec::new(), Vec::new());
        for files in &found.skills {
            let path = files.instructions.path.clone();
            let head = match SkillHead::read(&files.instructions.contents) {
                Ok(head) => head,
                Err(error) => {
                    let (path, message) = (path.to_syntax(), error.to_string());
                    warnings.push(CapabilityWarning { environment: environment.clone(), path, message });
                    continue;
                }
            };
            let name = match namespace(&found.namespace_manifests, &path) {
                Some(namespace) => format!("{namespace}:{}", head.name),
                None => head.name,
            };
            let implicit = files.metadata.as_ref().and_then(|metadata| allows_implicit_invocation(&metadata.contents));
            skills.push(Self {
                name,
                description: head.description,
                short_description: head.short_description,
                locator: locator(source, environment, &path),
                environment: environment.clone(),
                path,
                source: source.clone(),
                is_listed: implicit.unwrap_or(true),
                reader: reader.clone(),
            });
        }
        (skills, warnings)
    }

    /// The skills that are installed on the machine of an environment, those in its homes only if they are wanted; its executor has
    /// read their heads.
    pub(crate) fn installed(found: &InstalledResponse, environment: &EnvironmentId, reader: &SkillReader, homes: bool) -> Vec<Self> {
        let make = |head: SkillHead, path: &PathUri, policy: Option<&SkillPolicy>, root: &str| {
            let source = SkillSource::Installed { root: root.to_owned() };
            Self {
                name: head.name,
                description: head.description,
                short_description: head.short_description,
                locator: locator(&source, environment, path),
                environment: environment.clone(),
                path: path.clone(),
                source,
                is_listed: policy.and_then(|policy| policy.allow_implicit_invocation).unwrap_or(true),
                reader: reader.clone(),
            }
        };
        let mut skills = Vec::new();
        for skill in found.skills.iter().filter(|_| homes) {
            let (name, description, short_description) = (skill.name.clone(), skill.description.clone(), skill.short_description.clone());
            let head = SkillHead { name, description, short_description };
            skills.push(make(head, &skill.path, skill.policy.as_ref(), &skill.discovery_root.id));
        }
        for (plugin, skill) in found.plugins.iter().flat_map(|plugin| plugin.skills.iter().map(move |skill| (plugin, skill))) {
            let (name, description, short_description) = (skill.name.clone(), skill.description.clone(), skill.short_description.clone());
            let head = SkillHead { name, description, short_description };
            skills.push(make(head, &skill.path, skill.policy.as_ref(), &plugin.id));
        }
        skills
    }

    /// What the skill says, or another file in its folder.
    pub async fn read(&self, file: Option<&str>) -> Result<String, SkillReadError> {
        let path = match file {
            None => self.path.clone(),
            Some(file) => self.beside(file).ok_or_else(|| SkillReadError::Outside(file.to_owned()))?,
        };
        let params = ReadFileParams { path: path.clone(), follow_symlinks: None, sandbox: self.reader.sandbox.clone() };
        let patience = self.reader.patience;
        let read = timeout(patience, self.reader.handle.call::<ReadFile>(&params, Repeat::Harmless)).await;
        let slow = |_| SkillReadError::Slow { path: path.to_syntax(), environment: self.environment.clone(), patience };
        let bytes = read.map_err(slow)?.map_err(|error| SkillReadError::Unreadable { path: path.to_syntax(), error })?.data_base64.0;
        let text = std::str::from_utf8(&bytes).map_err(|_| SkillReadError::NotText(path.to_syntax()))?;
        if text.len() <= LARGEST {
            return Ok(text.to_owned());
        }
        let cut = (0..=LARGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        Ok(format!("{}\n[{} of {} bytes are shown]", &text[..cut], cut, text.len()))
    }

    /// What the model is told when the user names it.
    pub(crate) async fn told_when_named(&self) -> String {
        let (name, path) = (&self.name, &self.locator);
        match self.read(None).await {
            Ok(text) => format!("<skill>\n<name>{name}</name>\n<path>{path}</path>\n{}\n</skill>", text.trim_end()),
            Err(error) => format!("<skill>\n<name>{name}</name>\n<path>{path}</path>\nIt cannot be used now: {error}\n</skill>"),
        }
    }

    /// A file in the skill's own folder, never above it.
    fn beside(&self, file: &str) -> Option<PathUri> {
        let is_inside =
            !file.is_empty() && !file.starts_with(['/', '\\']) && !file.contains(':') && file.split(['/', '\\']).all(|part| part != "..");
        let (folder, _) = self.path.split()?;
        is_inside.then(|| folder.join(file)).filter(|path| path.is_within(&folder))
    }
}

/// What tells skills of the same name apart.
fn locator(source: &SkillSource, environment: &EnvironmentId, path: &PathUri) -> String {
    match source {
        SkillSource::Root { root, directory } => {
            let (directory, path) = (directory.to_string(), path.to_string());
            let below = path.strip_prefix(directory.trim_end_matches('/')).unwrap_or(&path).trim_start_matches('/');
            format!("skill://{root}/{below}")
        }
        SkillSource::Project | SkillSource::Installed { .. } | SkillSource::Host => {
            format!("skill://{environment}@{}", path.to_string().trim_start_matches("file://"))
        }
    }
}

/// The name of the plugin whose manifest is nearest above a skill.
fn namespace(manifests: &[CapabilityFile], skill: &PathUri) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        name: String,
    }
    let owner = |manifest: &CapabilityFile| {
        let (folder, _) = manifest.path.split()?;
        let is_hidden = folder.split().is_some_and(|(_, name)| name.0.starts_with(b"."));
        if is_hidden { folder.split().map(|(owner, _)| owner) } else { Some(folder) }
    };
    let nearest = manifests
        .iter()
        .filter_map(|manifest| Some((owner(manifest)?, manifest)))
        .filter(|(owner, _)| skill.is_within(owner))
        .max_by_key(|(owner, _)| owner.to_string().len())?;
    let named: Named = serde_json::from_str(&nearest.1.contents).ok()?;
    Some(named.name).filter(|name| !name.trim().is_empty())
}
