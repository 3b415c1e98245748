//! Git in sandboxes: the gitdir of every repository in or above a writable root is seen as a private layer, in which everything works;
//! after each command what was committed there is carried over to the repository itself, and nothing else.
//!
//! See docs/decisions/0020-git-in-a-layer.md.

mod card;
mod find;
mod gitdir;
mod index;
mod layer;
mod lfs;
mod names;
mod recent;
mod repository;
mod run;
mod stamp;
mod stash;
mod sync;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use outpost_sandbox::policy::{DecisionReason, PathAccess, PathRule, PathRules, Policy, RuleOrigin};
use outpost_sandbox::remove_tree;
use sha2::{Digest, Sha256};

use self::find::Found;
use self::recent::Recent;
use self::repository::Repository;
use self::run::Inside;
use self::stamp::GitStamp;
use self::sync::Comparing;
use self::tree::Tree;
use crate::session::ExecutorSession;

/// So long are layers kept of sessions that never came back.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// So many policies with their layers are remembered: file calls come with the same one again and again.
const REMEMBERED: usize = 8;
/// After a command that took so long, a look at a large working tree is not noticed.
const LONG: Duration = Duration::from_millis(300);

/// What sandboxed code may do with repositories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GitMode {
    /// Everything, in a layer; what it commits is carried over.
    #[default]
    Commit,
    /// Read them.
    ReadOnly,
    /// Everything, in the repository itself. Programs outside run what it puts there.
    Full,
}

impl FromStr for GitMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "commit" => Ok(Self::Commit),
            "read-only" => Ok(Self::ReadOnly),
            "full" => Ok(Self::Full),
            other => Err(format!("git is one of commit, read-only and full, not `{other}`")),
        }
    }
}

/// How an executor treats repositories.
#[derive(Debug, Clone, Default)]
pub struct GitSettings {
    pub mode: GitMode,
    /// A directory of ours for layers; without it, repositories can only be read.
    pub directory: Option<PathBuf>,
}

impl GitSettings {
    /// Removes what sessions left that never came back.
    pub fn clean_up(&self) {
        let entries = self.directory.iter().flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten());
        for entry in entries {
            let modified = entry.metadata().and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::now());
            if modified.elapsed().is_ok_and(|age| age > KEPT) {
                let _ = remove_tree(&entry.path());
            }
            // What something that was still running kept from being removed.
            for left in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
                let is_old =
                    GitStamp::of(&left.path()).is_some_and(|stamp| stamp.is_older_than(SystemTime::now() - Duration::from_secs(3600)));
                if is_old && !left.path().join("known").exists() {
                    let _ = remove_tree(&left.path());
                }
            }
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The repositories of one session.
#[derive(Default)]
pub(crate) struct Git {
    session: String,
    settings: GitSettings,
    program: OnceLock<Option<PathBuf>>,
    /// Where programs are looked for, and the home of the user.
    path: Option<OsString>,
    home: Option<PathBuf>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    roots: Recent<Root>,
    /// By gitdir, with the directory that it was. One that is forgotten finds its layer again.
    repositories: Recent<(Option<FileIdentity>, Arc<Repository>)>,
    /// Those that can only be read, which is told when that is found.
    refused: Recent<()>,
    untold: Vec<String>,
    /// Working trees, by their roots.
    trees: Recent<Arc<Mutex<Tree>>>,
    /// Policies with their layers, the newest last.
    layered: Vec<Arc<Layered>>,
}

/// A policy with its layers, and by what it is seen that it would be another one by now.
struct Layered {
    policy: Arc<PathRules>,
    /// The `.git` of every root, and every gitdir that is elsewhere.
    stamps: Vec<(Option<GitStamp>, PathBuf)>,
    layered: Policy,
}

impl Layered {
    fn is_current(&self) -> bool {
        self.stamps.iter().all(|(stamp, path)| GitStamp::of(path) == *stamp)
    }
}

/// What a command uses for as long as it runs.
#[derive(Default)]
pub(crate) struct RepositoryInUse {
    _repositories: Vec<Arc<Repository>>,
    _trees: Vec<Arc<Mutex<Tree>>>,
}

/// Which file something is, whatever is in it: device and inode.
type FileIdentity = (u64, u64);

/// A writable root: what was at its top, and the gitdirs that belong to it.
struct Root {
    top: Option<FileIdentity>,
    found: Arc<Found>,
}

impl Git {
    /// `variables` are those of the executor's user.
    pub(crate) fn new(session: &str, settings: GitSettings, variables: &BTreeMap<OsString, OsString>) -> Self {
        let path = variables.get(OsStr::new("PATH")).cloned();
        let home = variables.get(OsStr::new("HOME")).map(PathBuf::from);
        Self { session: session.to_owned(), settings, path, home, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn program(&self) -> Option<&Path> {
        self.program.get_or_init(|| card::program(self.path.as_deref())).as_deref()
    }

    /// A policy with layers for the repositories in its writable roots. `ceiling` is what the operator allows, always the same. Makes layers
    /// that are not there yet. For a policy that was seen before, nothing is looked at but what would make it another one.
    pub(crate) fn layered(&self, policy: Policy, ceiling: &Policy) -> Policy {
        let Policy::Confined(rules) = &policy else { return policy };
        let known = self.lock().layered.iter().find(|known| Arc::ptr_eq(&known.policy, rules)).cloned();
        if let Some(known) = known.filter(|known| known.is_current()) {
            return known.layered.clone();
        }
        // A repository in a cache of the home is in that cache's layer anyway.
        let is_written = |rule: &&PathRule| rule.access == PathAccess::Write && rule.origin != RuleOrigin::Home && is_workspace(&rule.path);
        let roots: Vec<&Path> = rules.iter().filter(is_written).map(|rule| rule.path.as_path()).collect();
        // Each is looked at before something is made of it, so that no change is missed in between.
        let began = SystemTime::now();
        let stamped = |path: PathBuf| (GitStamp::of(&path), path);
        let mut stamps: Vec<_> = roots.iter().map(|root| stamped(root.join(".git"))).collect();
        let found: Vec<Arc<Found>> = roots.iter().map(|root| self.found(root)).collect();
        let gitdirs: BTreeSet<&Path> = found.iter().flat_map(|found| &found.gitdirs).map(PathBuf::as_path).collect();
        let elsewhere: Vec<_> = gitdirs.iter().filter(|gitdir| !stamps.iter().any(|(_, known)| known == *gitdir)).collect();
        stamps.extend(elsewhere.into_iter().map(|gitdir| stamped(gitdir.to_path_buf())).collect::<Vec<_>>());
        let pointers = found.iter().flat_map(|found| &found.pointers);
        let layered = self.with_layers(rules, (&gitdirs, pointers), ceiling);
        // What has just changed may change once more without another time.
        let is_settled = stamps.iter().all(|(stamp, _)| stamp.is_none_or(|stamp| stamp.is_older_than(began)));
        let is_whole = is_settled && self.layers_of(&layered).iter().all(|repository| repository.is_seen_whole());
        let mut state = self.lock();
        state.layered.retain(|known| !Arc::ptr_eq(&known.policy, rules));
        if is_whole {
            let forgotten = (state.layered.len() + 1).saturating_sub(REMEMBERED);
            state.layered.drain(..forgotten);
            state.layered.push(Arc::new(Layered { policy: rules.clone(), stamps, layered: layered.clone() }));
        }
        layered
    }

    fn with_layers<'a>(
        &self,
        rules: &PathRules,
        (gitdirs, pointers): (&BTreeSet<&Path>, impl Iterator<Item = &'a PathBuf>),
        ceiling: &Policy,
    ) -> Policy {
        let is_allowed = |gitdir: &Path| ceiling.rules().is_none_or(|ceiling| ceiling.access(gitdir).access == PathAccess::Write);
        let mut layered = PathRules::clone(rules);
        if self.settings.mode != GitMode::Full {
            layered = pointers.cloned().fold(layered, PathRules::protecting);
        }
        let is_meant =
            |gitdir: &Path| gitdir.exists() || gitdir.parent().is_some_and(|root| rules.workspaces().iter().any(|about| about == root));
        for gitdir in gitdirs.iter().copied() {
            if !is_free(&layered, gitdir) || !is_meant(gitdir) {
                continue;
            }
            layered = match self.settings.mode {
                GitMode::Commit if is_allowed(gitdir) => match self.repository(gitdir) {
                    Some(repository) => {
                        let layered = repository.substitutes().into_iter().fold(layered, PathRules::substituting);
                        // Git works only in a tree that belongs to the user who runs it.
                        match gitdir.parent().filter(|tree| gitdir.ends_with(".git") && layered.access(tree).access == PathAccess::Read) {
                            Some(tree) => layered.also_about(tree.to_owned()),
                            None => layered,
                        }
                    }
                    None => layered.protecting(gitdir.to_owned()),
                },
                GitMode::Full if is_allowed(gitdir) => layered.unprotecting(gitdir),
                _ => layered.protecting(gitdir.to_owned()),
            };
        }
        Policy::Confined(Arc::new(layered))
    }

    /// The gitdirs of a root. Nested ones are looked for once; a program outside that makes more of them is not waited for.
    fn found(&self, root: &Path) -> Arc<Found> {
        let top = GitStamp::of(&root.join(".git")).map(|stamp| stamp.identity());
        let mut state = self.lock();
        match state.roots.get(root) {
            Some(known) if known.top == top => known.found.clone(),
            _ => {
                let found = Arc::new(find::repositories(root));
                state.roots.insert(root.to_owned(), Root { top, found: found.clone() }, |_| false);
                found
            }
        }
    }

    fn repository(&self, gitdir: &Path) -> Option<Arc<Repository>> {
        let mut state = self.lock();
        let now = GitStamp::of(gitdir).map(|stamp| stamp.identity());
        if let Some((was, known)) = state.repositories.get(gitdir) {
            // One that the user made anew is another repository.
            if was.is_none() || now.is_none() || *was == now {
                *was = was.or(now);
                return Some(known.clone());
            }
            state.repositories.remove(gitdir);
        }
        if state.refused.get(gitdir).is_some() {
            return None;
        }
        let made = match (self.program(), &self.settings.directory) {
            (None, _) => Err("git is not installed on this machine".to_owned()),
            (_, None) => Err("there is no directory for its layer".to_owned()),
            (Some(_), Some(directory)) => {
                let digest = Sha256::digest(gitdir.as_os_str().as_encoded_bytes());
                let name: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
                let name = format!("{name}-{}", now.map_or(0, |(_, inode)| inode));
                Repository::open(gitdir, directory.join(label(&self.session)).join(name)).map_err(|refused| refused.to_string())
            }
        };
        match made {
            Ok(repository) => {
                let repository = Arc::new(repository);
                state.repositories.insert(gitdir.to_owned(), (now, repository.clone()), |(_, known)| Arc::strong_count(known) > 1);
                Some(repository)
            }
            Err(why) => {
                // Where there is no repository, there is nothing to say.
                if find::is_repository(gitdir) {
                    state.untold.push(format!("git: {} can only be read in the sandbox: {why}", gitdir.display()));
                }
                state.refused.insert(gitdir.to_owned(), (), |()| false);
                None
            }
        }
    }

    fn layers_of(&self, policy: &Policy) -> Vec<Arc<Repository>> {
        let Policy::Confined(rules) = policy else { return Vec::new() };
        let gitdirs = rules.substitutes().iter().filter(|substitute| substitute.access == PathAccess::Write);
        gitdirs.filter_map(|substitute| self.repository(&substitute.path)).collect()
    }

    /// Carries over what the user changed, before a command. Returns what there is to say, and what the command holds until it ends.
    pub(crate) async fn before(&self, session: &Arc<ExecutorSession>, policy: &Policy) -> (Vec<String>, RepositoryInUse) {
        let mut notices = std::mem::take(&mut self.lock().untold);
        let repositories = self.layers_of(policy);
        for repository in &repositories {
            if !repository.known.lock().await.outside.are_current() {
                notices.extend(self.compare(session, policy, repository).await);
            }
        }
        (notices, RepositoryInUse { _repositories: repositories, _trees: self.know_trees(policy).await })
    }

    /// Looks at working trees before the first command changes them.
    async fn know_trees(&self, policy: &Policy) -> Vec<Arc<Mutex<Tree>>> {
        let mut trees = Vec::new();
        for root in working_trees(policy) {
            if let Some(known) = self.lock().trees.get(&root) {
                trees.push(known.clone());
                continue;
            }
            let mut settings = Vec::new();
            if let Some(program) = self.program() {
                settings = run::user_settings(program, self.home.as_deref(), &root).await;
            }
            let looked_at = root.clone();
            if let Ok(tree) = tokio::task::spawn_blocking(move || Tree::new(&looked_at, &settings)).await {
                let mut state = self.lock();
                // Another command may have looked meanwhile, and have begun before this look.
                let known = state.trees.get(&root).cloned();
                let tree = known.unwrap_or_else(|| {
                    let tree = Arc::new(Mutex::new(tree));
                    state.trees.insert(root, tree.clone(), |tree| Arc::strong_count(tree) > 1);
                    tree
                });
                trees.push(tree);
            }
        }
        trees
    }

    /// Looks for what git outside would run. After a short command in a large tree that is told with the next one.
    async fn look_at_trees(&self, policy: &Policy, took: Duration) -> Vec<String> {
        let mut notices = Vec::new();
        for root in working_trees(policy) {
            let Some(tree) = self.lock().trees.get(&root).cloned() else { continue };
            let lock = |tree: &Mutex<Tree>, root: &Path| tree.lock().unwrap_or_else(PoisonError::into_inner).look_again(root);
            if tree.lock().unwrap_or_else(PoisonError::into_inner).is_small() {
                notices.extend(lock(&tree, &root));
                continue;
            }
            let state = self.state.clone();
            let looking = tokio::task::spawn_blocking(move || {
                let found = lock(&tree, &root);
                found.iter().for_each(|notice| tracing::warn!("{notice}"));
                state.lock().unwrap_or_else(PoisonError::into_inner).untold.extend(found);
            });
            if took > LONG {
                let _ = looking.await;
                notices.append(&mut self.lock().untold);
            }
        }
        notices
    }

    /// Carries over what a command changed that took so long. Returns what there is to say.
    pub(crate) async fn after(&self, session: &Arc<ExecutorSession>, policy: &Policy, took: Duration) -> Vec<String> {
        let mut notices = self.look_at_trees(policy, took).await;
        for repository in self.layers_of(policy) {
            if !repository.known.lock().await.inside.are_current() {
                notices.extend(self.compare(session, policy, &repository).await);
            }
        }
        notices
    }

    async fn compare(&self, session: &Arc<ExecutorSession>, policy: &Policy, repository: &Repository) -> Vec<String> {
        let Some(program) = self.program() else { return Vec::new() };
        let inside = Inside { session, policy, program };
        Comparing { repository, inside, label: &label(&self.session), notices: Vec::new(), is_incomplete: false }.run().await
    }

    /// Removes the layers of a session that has ended, unless something is in them that was never committed.
    pub(crate) fn leave(&self) {
        *self.lock() = State::default();
        let Some(directory) = self.settings.directory.as_ref().map(|directory| directory.join(label(&self.session))) else { return };
        for own in fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if !repository::has_unfinished_work(&own) {
                // Without it the rest is not taken for a layer.
                let _ = fs::remove_file(own.join("known"));
                let _ = remove_tree(&own);
            }
        }
        let _ = fs::remove_dir(directory);
    }
}

/// A session's name where only few letters are allowed.
fn label(session: &str) -> String {
    let plain: String = session.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
    if plain.is_empty() { "session".to_owned() } else { plain }
}

/// The roots of the working trees that a policy lets be written.
fn working_trees(policy: &Policy) -> Vec<PathBuf> {
    let Policy::Confined(rules) = policy else { return Vec::new() };
    let is_about = |root: &Path| rules.workspaces().iter().any(|about| about.starts_with(root) || root.starts_with(about));
    rules.writable_roots().map(|rule| rule.path.clone()).filter(|path| is_workspace(path) && is_about(path)).collect()
}

/// Whether a writable place is a workspace.
fn is_workspace(path: &Path) -> bool {
    path != Path::new("/") && path != Path::new("/tmp") && path.is_dir()
}

/// Whether a layer may take the place of a gitdir: no rule of a request or of the operator speaks of it, or of anything in it.
fn is_free(rules: &PathRules, gitdir: &Path) -> bool {
    let decision = rules.access(gitdir);
    let is_asked = matches!(decision.reason, DecisionReason::Rule(rule) if rule.path == gitdir && rule.origin != RuleOrigin::Protected);
    decision.access != PathAccess::Deny && !is_asked && rules.below(gitdir).all(|rule| rule.origin == RuleOrigin::Protected)
}

#[cfg(test)]
mod tests {
    use outpost_sandbox::policy::NetworkRule;

    use super::*;

    #[test]
    fn a_policy_is_given_layers_anew_only_when_a_gitdir_changed() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        let work = root.join("work");
        fs::create_dir(&work).unwrap();
        let rule = PathRule { path: work.clone(), access: PathAccess::Write, origin: RuleOrigin::Request };
        let rules = PathRules::new([rule], Vec::new(), NetworkRule::Restricted).about(vec![work.clone()]);
        let policy = Policy::Confined(Arc::new(rules));
        let settings = GitSettings { mode: GitMode::ReadOnly, ..GitSettings::default() };
        let git = Git::new("session", settings, &BTreeMap::new());
        let layered = || git.layered(policy.clone(), &Policy::Open);
        let same = |one: &Policy, other: &Policy| Arc::ptr_eq(one.rules().unwrap(), other.rules().unwrap());
        assert!(same(&layered(), &layered()));
        let before = layered();
        // A directory above the workspace is none of its gitdirs, and a repository in the workspace is.
        fs::create_dir(root.join("other")).unwrap();
        assert!(same(&before, &layered()));
        fs::create_dir(work.join(".git")).unwrap();
        let after = layered();
        assert!(!same(&before, &after));
        // So soon after a change nothing is remembered.
        std::thread::sleep(Duration::from_millis(100));
        let settled = layered();
        assert!(same(&settled, &layered()));
        fs::create_dir(work.join(".git/objects")).unwrap();
        assert!(!same(&settled, &layered()));
    }

    #[test]
    fn repositories_are_looked_for_in_workspaces_and_not_in_caches_of_the_home() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().canonicalize().unwrap().join(name);
        for name in ["work/inner", "cache/inner"] {
            for part in ["objects", "refs"] {
                fs::create_dir_all(place(name).join(".git").join(part)).unwrap();
            }
            fs::write(place(name).join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
        }
        let rule = |name: &str, origin| PathRule { path: place(name), access: PathAccess::Write, origin };
        let rules =
            PathRules::new([rule("work", RuleOrigin::Request), rule("cache", RuleOrigin::Home)], Vec::new(), NetworkRule::Restricted);
        let settings = GitSettings { mode: GitMode::ReadOnly, ..GitSettings::default() };
        let git = Git::new("session", settings, &BTreeMap::new());
        let layered = git.layered(Policy::Confined(Arc::new(rules)), &Policy::Open);
        let access = |name: &str| layered.rules().unwrap().access(&place(name)).access;
        assert_eq!((access("work/inner/.git"), access("cache/inner/.git")), (PathAccess::Read, PathAccess::Write));
        assert!(git.lock().roots.get(&place("cache")).is_none());
    }
}
