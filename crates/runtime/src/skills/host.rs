//! Skills of the machine that runs the threads: in the homes of its user, in folders of its administrator, and wherever clients say.
//! They are looked at through the local executor like all others, each time they are needed, so a change is seen at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use outpost_environment::{Environment, WantedFolder};
use outpost_wire::PathUri;
use outpost_wire::exec::discovery::DiscoveredRoot;
use outpost_wire::exec::files::{Canonicalize, CanonicalizeParams, ReadFile, ReadFileParams};
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::fault::is_missing;
use outpost_wire::intent::EnvironmentId;
use serde::Serialize;
use tokio::sync::watch;

use super::choice::{SkillChoice, is_wanted};
use super::{Skill, SkillReader, SkillSource};
use crate::runtime::{Runtime, RuntimeShared};

/// So many directories above a working directory are looked at.
const MAX_ABOVE: usize = 16;

/// Whom a skill is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HostSkillScope {
    User,
    Repo,
    System,
    Admin,
}

/// A folder of this machine that holds skills.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoot {
    pub scope: HostSkillScope,
    pub path: PathUri,
}

/// The folders that a client has added, and who wants to be told of changes.
#[derive(Default)]
pub(crate) struct HostSkills {
    extra: Mutex<Vec<PathUri>>,
    /// Which skills are wanted and which are not.
    pub(super) choices: Mutex<Vec<SkillChoice>>,
    /// Other folders were added, or other skills are wanted.
    pub(super) changed: watch::Sender<()>,
    changes: Mutex<Option<watch::Sender<u64>>>,
}

impl HostSkills {
    pub(crate) fn new(choices: Vec<SkillChoice>) -> Self {
        Self { choices: Mutex::new(choices), ..Self::default() }
    }

    /// The list of skills has changed.
    pub(super) fn tell_change(&self) {
        self.changed.send_replace(());
        if let Some(changes) = lock(&self.changes).as_ref() {
            changes.send_modify(|count| *count += 1);
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The skills that work in a directory of this machine can use, as clients are told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillList {
    pub cwd: String,
    pub skills: Vec<ListedSkill>,
    pub errors: Vec<SkillProblem>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedSkill {
    pub name: String,
    pub description: String,
    pub short_description: Option<String>,
    pub path: String,
    pub scope: HostSkillScope,
    pub enabled: bool,
    pub plugin_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillProblem {
    pub path: String,
    pub message: String,
}

impl Runtime {
    /// Folders of this machine that a client adds; they replace those that were added before.
    pub fn set_extra_skill_roots(&self, roots: Vec<PathUri>) {
        *self.0.skills.host.extra.lock().unwrap_or_else(PoisonError::into_inner) = roots;
        self.0.skills.host.changed.send_replace(());
    }

    /// The skills for work in directories of this machine. Nothing is remembered beyond what is still true, so there is nothing to
    /// be reloaded.
    pub async fn list_skills(&self, cwds: &[PathUri]) -> Vec<SkillList> {
        let mut lists = Vec::new();
        for cwd in cwds {
            lists.push(self.0.list_skills(cwd).await);
        }
        lists
    }

    /// Counts the changes of the host's skills from now on. They are watched as long as this is held.
    pub fn skill_changes(&self) -> watch::Receiver<u64> {
        let mut changes = self.0.skills.host.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = changes.as_ref().filter(|sender| !sender.is_closed()) {
            return sender.subscribe();
        }
        let (sender, receiver) = watch::channel(0);
        *changes = Some(sender.clone());
        tokio::spawn(super::watch::watch_host(Arc::downgrade(&self.0), sender));
        receiver
    }
}

impl RuntimeShared {
    /// This machine, if there is an executor on it and it works.
    pub(crate) async fn host(&self) -> Option<Environment> {
        let handle = self.registry.get(&EnvironmentId::local())?;
        match tokio::time::timeout(self.config.discovery_patience, handle.info()).await {
            Ok(Ok(_)) => {
                // Whatever its user has just changed counts.
                handle.settle_followed().await;
                Some(handle)
            }
            _ => None,
        }
    }

    /// The folders of this machine, those of the configuration first.
    pub(crate) fn host_roots(&self) -> Vec<HostRoot> {
        let extra = self.skills.host.extra.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let extra = extra.into_iter().map(|path| HostRoot { scope: HostSkillScope::User, path });
        self.config.host_skills.iter().cloned().chain(extra).collect()
    }

    /// What folders of this machine hold. They are the user's own, so nothing confines the look.
    pub(super) async fn look_at_host(&self, roots: &[HostRoot]) -> Vec<(HostRoot, Environment, Arc<DiscoveredRoot>)> {
        let Some(handle) = self.host().await else { return Vec::new() };
        let wanted: Vec<WantedFolder> = roots.iter().map(|root| WantedFolder { path: root.path.clone(), sandbox: None }).collect();
        match self.skills.discoveries.look(&handle, &wanted, self.config.discovery_patience).await {
            Ok(found) => roots.iter().cloned().zip(found).map(|(root, found)| (root, handle.clone(), found)).collect(),
            Err(error) => {
                tracing::warn!(%error, "the skills of this machine cannot be looked at");
                Vec::new()
            }
        }
    }

    async fn list_skills(&self, cwd: &PathUri) -> SkillList {
        let mut list = SkillList { cwd: cwd.to_syntax(), skills: Vec::new(), errors: Vec::new() };
        let mut roots = Vec::new();
        if let Some(handle) = self.host().await {
            let top = repository(&handle, cwd, None).await.unwrap_or_else(|| cwd.clone());
            let within = above(cwd).into_iter().filter(|directory| directory.is_within(&top));
            roots.extend(within.map(|directory| HostRoot { scope: HostSkillScope::Repo, path: directory.join(FOLDER) }));
        }
        roots.extend(self.host_roots());
        for (root, handle, found) in self.look_at_host(&roots).await {
            let problem = found.error.iter().filter(|error| !is_missing(error)).chain(&found.warnings);
            list.errors.extend(problem.map(|message| SkillProblem { path: root.path.to_syntax(), message: message.clone() }));
            let reader = SkillReader { handle, sandbox: None, patience: self.config.discovery_patience };
            let (skills, warnings) = Skill::read_all(&found, &EnvironmentId::local(), &SkillSource::Host, &reader);
            list.errors.extend(warnings.into_iter().map(|warning| SkillProblem { path: warning.path, message: warning.message }));
            let choices = lock(&self.skills.host.choices).clone();
            for skill in skills {
                let path = skill.path.to_syntax();
                if list.skills.iter().all(|known| known.path != path) {
                    let enabled = is_wanted(&choices, &skill.name, &skill.environment, &path);
                    list.skills.push(ListedSkill { enabled, ..skill.listed(root.scope, path) });
                }
            }
        }
        list
    }
}

impl Skill {
    fn listed(self, scope: HostSkillScope, path: String) -> ListedSkill {
        let plugin_id = self.name.split_once(':').map(|(plugin, _)| plugin.to_owned());
        let Self { name, description, short_description, .. } = self;
        ListedSkill { name, description, short_description, path, scope, enabled: true, plugin_id }
    }
}

/// Where projects keep skills.
pub(crate) const FOLDER: &str = ".agents/skills";

/// A directory and those above it, the innermost first. The root of all does not count: no project is there.
pub(crate) fn above(cwd: &PathUri) -> Vec<PathUri> {
    let parent = |directory: &PathUri| directory.split().map(|(parent, _)| parent).filter(|parent| parent.split().is_some());
    std::iter::successors(Some(cwd.clone()), parent).take(MAX_ABOVE).collect()
}

/// The repository that a directory is in, if it is in one.
pub(crate) async fn repository(handle: &Environment, cwd: &PathUri, sandbox: Option<&SandboxContext>) -> Option<PathUri> {
    // A worktree has a file there. An empty folder is no repository: a sandbox puts one where nothing may be made.
    let is_repository = async |directory: &PathUri| {
        let (git, sandbox) = (directory.join(".git"), || sandbox.cloned());
        let file = ReadFileParams { path: git.clone(), follow_symlinks: None, sandbox: sandbox() };
        let head = CanonicalizeParams { path: git.join("HEAD"), sandbox: sandbox() };
        let (file, head) = tokio::join!(handle.followed::<ReadFile>(&file), handle.followed::<Canonicalize>(&head));
        file.is_ok() || head.is_ok()
    };
    let directories = above(cwd);
    let found = join_all(directories.iter().map(is_repository)).await;
    directories.into_iter().zip(found).find(|(_, is_repository)| *is_repository).map(|(directory, _)| directory)
}
