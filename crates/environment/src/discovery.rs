//! What folders in environments hold, as their executors tell it: told once, and then only when it changes.
//!
//! What is known is kept by environment, executor, folder and sandbox, so a fresh handle to the same executor is not told it
//! again. An executor of ours follows what it told and says when that changes, so it is asked only then; an older one is asked each time
//! whether it is still true, which costs it a walk and us a few bytes; one that tells no digests is taken at its word for a short while.
//! A failure is never kept: the next look asks again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use outpost_wire::exec::discovery::{
    Discover, DiscoverInstalled, DiscoverParams, DiscoverResponse, DiscoverRoot, DiscoveredRoot, InstalledParams, InstalledResponse,
};
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::intent::EnvironmentId;
use outpost_wire::{PathUri, SharedError};
use thiserror::Error;
use tokio::sync::broadcast;
use tokio::time::{Instant, timeout};

use crate::environment::{Environment, EnvironmentError, Repeat};
use crate::state::ConnectionState;

/// The most folders of one request.
const AT_ONCE: usize = 128;
/// So many folders are remembered.
const REMEMBERED: usize = 256;
/// So long is an executor taken at its word that tells no digests.
const CURRENT: Duration = Duration::from_secs(5);
/// How many changes may wait for a listener; beyond, it only learns that there were more.
const CHANGES: usize = 256;

/// A folder whose content is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedFolder {
    pub path: PathUri,
    pub sandbox: Option<SandboxContext>,
}

/// Why an executor told nothing about folders.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum DiscoveryError {
    #[error("environment `{name}` was lost while it was looked at: {reason}")]
    Lost {
        name: String,
        #[source]
        reason: SharedError,
    },
    #[error("environment `{name}` did not tell within {} seconds what is there", .patience.as_secs())]
    Slow { name: String, patience: Duration },
    #[error("the executor of environment `{name}` cannot look for capabilities")]
    Unable { name: String },
    #[error("the executor of environment `{name}` cannot look for capabilities inside a sandbox, and without one it must not")]
    Unconfined { name: String },
    #[error("the executor of environment `{name}` gave an answer that does not fit the question: {reason}")]
    Nonsense {
        name: String,
        #[source]
        reason: SharedError,
    },
}

impl DiscoveryError {
    /// A fault is an answer of the executor; without any answer the connection is gone.
    fn of(name: String, error: EnvironmentError) -> Self {
        match error {
            EnvironmentError::Fault(_) => Self::Nonsense { name, reason: SharedError::new(error) },
            error => Self::Lost { name, reason: SharedError::new(error) },
        }
    }
}

/// What is known of folders. Shared by all who look.
pub struct Discoveries {
    known: Mutex<HashMap<Key, Known<DiscoveredRoot>>>,
    installed: Mutex<HashMap<Key, Known<InstalledResponse>>>,
    told: AtomicU64,
    changes: broadcast::Sender<ChangedFolder>,
}

/// A folder whose content differs from what was last reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedFolder {
    pub environment: EnvironmentId,
    /// None for what is installed on the machine.
    pub path: Option<PathUri>,
}

impl Default for Discoveries {
    fn default() -> Self {
        let (known, installed, told) = Default::default();
        Self { known, installed, told, changes: broadcast::Sender::new(CHANGES) }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    environment: String,
    executor: Executor,
    path: PathUri,
    sandbox: Option<SandboxContext>,
}

/// Which executor it was. One without an identity counts as the same only as long as the handle is the same.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Executor {
    Install(String),
    Handle(u64),
}

struct Known<T> {
    digest: Option<String>,
    found: Arc<T>,
    since: Instant,
    /// The answer that it was taken from, where the executor follows that.
    source: Option<Weak<DiscoverResponse>>,
}

impl<T> Clone for Known<T> {
    fn clone(&self) -> Self {
        Self { digest: self.digest.clone(), found: self.found.clone(), since: self.since, source: self.source.clone() }
    }
}

/// Keeps something, and forgets the oldest where there is too much.
fn remember<T>(all: &mut HashMap<Key, Known<T>>, key: &Key, known: Known<T>) {
    if all.len() >= REMEMBERED
        && let Some(oldest) = all.iter().min_by_key(|(_, known)| known.since).map(|(key, _)| key.clone())
    {
        all.remove(&oldest);
    }
    all.insert(key.clone(), known);
}

impl Discoveries {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Known<DiscoveredRoot>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often a folder was told as a whole, rather than known already.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// Changes of folders that are known already, from now on. They are noticed by the next look, and not before.
    pub fn changes(&self) -> broadcast::Receiver<ChangedFolder> {
        self.changes.subscribe()
    }

    fn tell_change(&self, handle: &Environment, path: Option<PathUri>) {
        if let Some(environment) = handle.id().cloned() {
            // There may be no listener.
            let _ = self.changes.send(ChangedFolder { environment, path });
        }
    }

    /// What these folders hold, in their order, through exactly this handle. Nothing waits for a connection here: a handle that
    /// is not ready now is lost.
    pub async fn look(
        &self,
        handle: &Environment,
        wanted: &[WantedFolder],
        patience: Duration,
    ) -> Result<Vec<Arc<DiscoveredRoot>>, DiscoveryError> {
        let name = || handle.name().to_owned();
        let ConnectionState::Ready(connected) = handle.state() else {
            return Err(DiscoveryError::Lost { name: name(), reason: "the connection is gone".into() });
        };
        let capabilities = &connected.info.capabilities;
        let wanted: Vec<WantedFolder> = wanted.iter().map(WantedFolder::as_asked).collect();
        if !capabilities.capability_discovery_sandbox && wanted.iter().any(|wanted| wanted.sandbox.is_some()) {
            return Err(DiscoveryError::Unconfined { name: name() });
        }
        let keys: Vec<Key> = wanted.iter().map(|wanted| Key::of(handle, wanted)).collect();
        if capabilities.call_follow {
            let looks = wanted.iter().zip(&keys).map(|(wanted, key)| self.look_followed(handle, wanted, key, patience));
            return join_all(looks).await.into_iter().collect();
        }
        let known: Vec<Option<Known<DiscoveredRoot>>> = {
            let all = self.lock();
            keys.iter().map(|key| all.get(key).cloned()).collect()
        };
        let tells_digests = capabilities.capability_digests;
        let is_current = |known: &Known<DiscoveredRoot>| !tells_digests && known.found.error.is_none() && known.since.elapsed() < CURRENT;
        let mut found: Vec<Option<Arc<DiscoveredRoot>>> =
            known.iter().map(|known| known.as_ref().filter(|known| is_current(known)).map(|known| known.found.clone())).collect();
        let open: Vec<usize> = (0..wanted.len()).filter(|index| found[*index].is_none()).collect();
        for part in open.chunks(AT_ONCE) {
            let digest = |index: usize| known[index].as_ref().and_then(|known| known.digest.clone()).unwrap_or_default();
            let roots = part.iter().map(|&index| DiscoverRoot {
                id: index.to_string(),
                path: wanted[index].path.clone(),
                sandbox: wanted[index].sandbox.clone(),
                known_digest: tells_digests.then(|| digest(index)),
            });
            let params = DiscoverParams { roots: roots.collect() };
            let told = ask(handle, &params, patience).await?;
            for (&index, root) in part.iter().zip(told) {
                let before = known[index].as_ref();
                if before.is_some_and(|before| !root.unchanged && !is_same(&before.found, &root)) {
                    self.tell_change(handle, Some(wanted[index].path.clone()));
                }
                found[index] = Some(self.keep(&keys[index], before, root));
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// What one folder holds, asked for only if that may have changed.
    async fn look_followed(
        &self,
        handle: &Environment,
        wanted: &WantedFolder,
        key: &Key,
        patience: Duration,
    ) -> Result<Arc<DiscoveredRoot>, DiscoveryError> {
        let name = || handle.name().to_owned();
        let params = wanted.question();
        let answer = match timeout(patience, handle.followed::<Discover>(&params)).await {
            Err(_) => return Err(DiscoveryError::Slow { name: name(), patience }),
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(DiscoveryError::of(name(), error)),
        };
        let [root] = &answer.roots[..] else {
            return Err(DiscoveryError::Nonsense { name: name(), reason: "it is about other folders".into() });
        };
        if root.path != wanted.path {
            return Err(DiscoveryError::Nonsense { name: name(), reason: "it is about other folders".into() });
        }
        let before = self.lock().get(key).cloned();
        let is_source = |known: &Weak<DiscoverResponse>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(&answer));
        if let Some(before) = before.as_ref().filter(|before| before.source.as_ref().is_some_and(is_source)) {
            return Ok(before.found.clone());
        }
        let source = Some(Arc::downgrade(&answer));
        let found = match before {
            Some(before) if is_same(&before.found, root) => before.found,
            before => {
                self.told.fetch_add(1, Ordering::Relaxed);
                if before.is_some() {
                    self.tell_change(handle, Some(wanted.path.clone()));
                }
                Arc::new(root.clone())
            }
        };
        remember(&mut self.lock(), key, Known { digest: root.digest.clone(), found: found.clone(), since: Instant::now(), source });
        Ok(found)
    }

    /// What is installed on the machine of an environment for all its users. `None` if its executor cannot tell.
    pub async fn installed(
        &self,
        handle: &Environment,
        place: &WantedFolder,
        patience: Duration,
    ) -> Result<Option<Arc<InstalledResponse>>, DiscoveryError> {
        let ConnectionState::Ready(connected) = handle.state() else { return Ok(None) };
        let capabilities = &connected.info.capabilities;
        let place = place.as_asked();
        if !capabilities.capability_discovery_v2 || (place.sandbox.is_some() && !capabilities.capability_discovery_sandbox) {
            return Ok(None);
        }
        let key = Key::of(handle, &place);
        let known = self.installed.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known.as_ref().filter(|known| !capabilities.capability_digests && known.since.elapsed() < CURRENT) {
            return Ok(Some(known.found.clone()));
        }
        if capabilities.call_follow {
            return self.installed_followed(handle, &place, (&key, known), patience).await.map(Some);
        }
        let digest = || known.as_ref().and_then(|known| known.digest.clone()).unwrap_or_default();
        let known_digest = capabilities.capability_digests.then(digest);
        let params = InstalledParams { cwd: place.path.clone(), sandbox: place.sandbox.clone(), known_digest };
        let name = || handle.name().to_owned();
        let told = match timeout(patience, handle.call::<DiscoverInstalled>(&params, Repeat::Never)).await {
            Err(_) => return Err(DiscoveryError::Slow { name: name(), patience }),
            Ok(Err(error)) => return Err(DiscoveryError::of(name(), error)),
            Ok(Ok(told)) => told,
        };
        if told.unchanged
            && let Some(known) = known
        {
            return Ok(Some(known.found));
        }
        let (digest, found) = (told.digest.clone(), Arc::new(told));
        if known.is_some_and(|known| known.found != found) {
            self.tell_change(handle, None);
        }
        let mut all = self.installed.lock().unwrap_or_else(PoisonError::into_inner);
        remember(&mut all, &key, Known { digest, found: found.clone(), since: Instant::now(), source: None });
        Ok(Some(found))
    }

    async fn installed_followed(
        &self,
        handle: &Environment,
        place: &WantedFolder,
        (key, known): (&Key, Option<Known<InstalledResponse>>),
        patience: Duration,
    ) -> Result<Arc<InstalledResponse>, DiscoveryError> {
        let name = || handle.name().to_owned();
        let found = match timeout(patience, handle.followed::<DiscoverInstalled>(&place.installed_question())).await {
            Err(_) => return Err(DiscoveryError::Slow { name: name(), patience }),
            Ok(Err(error)) => return Err(DiscoveryError::of(name(), error)),
            Ok(Ok(found)) => found,
        };
        match known {
            Some(known) if Arc::ptr_eq(&known.found, &found) => return Ok(found),
            Some(known) if known.found != found => self.tell_change(handle, None),
            _ => {}
        }
        let mut all = self.installed.lock().unwrap_or_else(PoisonError::into_inner);
        remember(&mut all, key, Known { digest: found.digest.clone(), found: found.clone(), since: Instant::now(), source: None });
        Ok(found)
    }

    /// Says that these folders, and what is installed there, will be looked at: a connection that is not there yet brings them along.
    pub fn foresee(handle: &Environment, place: &WantedFolder, folders: &[WantedFolder]) {
        handle.foresee::<DiscoverInstalled>(&place.as_asked().installed_question());
        folders.iter().for_each(|wanted| handle.foresee::<Discover>(&wanted.as_asked().question()));
    }

    fn keep(&self, key: &Key, before: Option<&Known<DiscoveredRoot>>, told: DiscoveredRoot) -> Arc<DiscoveredRoot> {
        if told.unchanged
            && let Some(before) = before
        {
            return before.found.clone();
        }
        self.told.fetch_add(1, Ordering::Relaxed);
        let digest = told.digest.clone();
        let found = Arc::new(told);
        remember(&mut self.lock(), key, Known { digest, found: found.clone(), since: Instant::now(), source: None });
        found
    }
}

/// Whether two answers say the same of a folder.
fn is_same(one: &DiscoveredRoot, other: &DiscoveredRoot) -> bool {
    let DiscoveredRoot { plugin, skills, namespace_manifests, warnings, error, .. } = one;
    (plugin, skills, namespace_manifests, warnings, error)
        == (&other.plugin, &other.skills, &other.namespace_manifests, &other.warnings, &other.error)
}

impl WantedFolder {
    /// A sandbox that leaves files alone is none.
    fn as_asked(&self) -> Self {
        let sandbox = self.sandbox.clone().filter(|sandbox| !sandbox.leaves_files_open());
        Self { path: self.path.clone(), sandbox }
    }
}

impl WantedFolder {
    /// An empty digest asks for everything that our own clients are told.
    fn question(&self) -> DiscoverParams {
        let known_digest = Some(String::new());
        DiscoverParams {
            roots: vec![DiscoverRoot { id: "0".into(), path: self.path.clone(), sandbox: self.sandbox.clone(), known_digest }],
        }
    }

    fn installed_question(&self) -> InstalledParams {
        InstalledParams { cwd: self.path.clone(), sandbox: self.sandbox.clone(), known_digest: Some(String::new()) }
    }
}

impl Key {
    fn of(handle: &Environment, wanted: &WantedFolder) -> Self {
        let executor = match handle.identity().and_then(|identity| identity.executor_id) {
            Some(install) => Executor::Install(install),
            None => Executor::Handle(handle.generation()),
        };
        Self { environment: handle.name().to_owned(), executor, path: wanted.path.clone(), sandbox: wanted.sandbox.clone() }
    }
}

/// Asks once. The answer must be about what was asked, in its order.
async fn ask(handle: &Environment, params: &DiscoverParams, patience: Duration) -> Result<Vec<DiscoveredRoot>, DiscoveryError> {
    let name = || handle.name().to_owned();
    let answer = match timeout(patience, handle.call::<Discover>(params, Repeat::Never)).await {
        Err(_) => return Err(DiscoveryError::Slow { name: name(), patience }),
        Ok(Ok(answer)) => answer.roots,
        Ok(Err(EnvironmentError::Fault(fault))) if fault.code == outpost_wire::fault::METHOD_NOT_FOUND => {
            return Err(DiscoveryError::Unable { name: name() });
        }
        Ok(Err(error)) => return Err(DiscoveryError::of(name(), error)),
    };
    let fits = answer.len() == params.roots.len()
        && answer.iter().zip(&params.roots).all(|(told, asked)| told.id == asked.id && told.path == asked.path);
    if fits { Ok(answer) } else { Err(DiscoveryError::Nonsense { name: name(), reason: "it is about other folders".into() }) }
}
