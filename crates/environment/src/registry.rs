//! Which environments there are, how each stands, and the one place where ids become handles.
//!
//! Nothing here runs by itself: an unused handle costs a few kilobytes and no task. A caller that connects something,
//! be it by capturing a step, does so within a runtime. Whatever happens to a handle is told by its supervisor, written
//! down here and passed on as events.

mod configure;
mod entry;
mod feed;
mod observe;
mod provision;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outpost_rpc::CallError;
use outpost_wire::exec::environment::{EnvironmentInfo, Status as StatusMethod, Unit};
use outpost_wire::{Attachment, CapabilityRoot, EnvironmentId, PathUri, RootLocation, Selection};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::admission::EnvironmentAdmission;
use crate::connector::{Connector, JoinedLinks};
use crate::definition::Definition;
use crate::environment::{ConnectPolicy, Environment, EnvironmentError, EnvironmentOptions, HandleLabel};
use crate::pending::ReportError;
use crate::provider::{Nameless, SnapshotError, StartChoice};
use crate::selection::Catalogue;
use crate::state::{ConnectionState, ExecutorIdentity};
use crate::view::{Captured, StepView};

pub use entry::{EnvironmentOrigin, EnvironmentRow, EnvironmentState, FailureCause};
pub use feed::{RegistryChange, RegistryEvent, RegistryTransition, Watcher};

use entry::{Entries, Entry, Kind, Live, Recipe};
use feed::Feed;

/// How long asking an executor whether it is there may take.
const PROBE: Duration = Duration::from_secs(10);
/// How long an executor may take to tell about itself, connecting included.
const INFO: Duration = Duration::from_secs(30);

/// What a registry is made with. The rim decides; nothing is looked up.
#[derive(Clone, Default)]
pub struct RegistryOptions {
    /// For every environment, unless its definition says otherwise.
    pub environment: EnvironmentOptions,
    /// How this machine is reached: this room does not know what an executor is.
    pub local: Option<Connector>,
    /// What an administrator lets be an environment.
    pub admission: EnvironmentAdmission,
}

/// Cheap to clone; all clones are one registry.
#[derive(Clone)]
pub struct Registry(Arc<Shared>);

struct Shared {
    options: RegistryOptions,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    entries: Entries,
    /// What a thread gets that asks for nothing, in order.
    defaults: Vec<EnvironmentId>,
    /// How many of them a thread of the command line starts with.
    start: StartChoice,
    nameless: Vec<Nameless>,
    is_off: bool,
    generation: u64,
    /// Who last answered behind an id. Outlives handles, so that a replacement can be told apart.
    known: HashMap<EnvironmentId, ExecutorIdentity>,
    feed: Feed,
}

#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum RegistryError {
    #[error("environments are switched off by OUTPOST_EXEC_SERVER_URL=none")]
    Off,
    #[error("unknown environment id `{0}`")]
    Unknown(EnvironmentId),
    #[error("environment `local` is this machine and cannot be added, replaced or removed")]
    Local,
    #[error("environment `{0}` is provisioned at run time and cannot be defined in the configuration")]
    IsPending(EnvironmentId),
    #[error("environment `{0}` is defined already and cannot be announced as pending")]
    IsDefined(EnvironmentId),
    #[error("{0}")]
    Forbidden(String),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    Report(#[from] ReportError),
}

/// Why an executor could not tell about itself.
#[derive(Debug, Clone, Error)]
pub enum InfoError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error("environment `{id}` cannot be used: {reason}")]
    Unusable { id: EnvironmentId, reason: String },
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error("{0} did not tell about itself within {INFO:?}")]
    Slow(EnvironmentId),
}

impl Registry {
    /// With nothing in it.
    pub fn new(options: RegistryOptions) -> Self {
        Self(Arc::new(Shared { options, inside: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an environment, or gives one that there is a new handle. The default is never touched.
    pub fn add(&self, id: EnvironmentId, definition: Definition) -> Result<RegistryTransition, RegistryError> {
        self.0.options.admission.definition(&definition).map_err(RegistryError::Forbidden)?;
        let recipe = self.recipe(&definition);
        self.put(id, Kind::Defined(Box::new(definition)), recipe)
    }

    /// The same for one that must be there.
    pub fn replace(&self, id: EnvironmentId, definition: Definition) -> Result<(), RegistryError> {
        if self.lock().entries.get(&id).is_none() {
            return Err(RegistryError::Unknown(id));
        }
        self.add(id, definition).map(|_| ())
    }

    /// Adds an environment whose executors dial in; their links are handed in through the door.
    pub fn join(&self, id: EnvironmentId) -> Result<JoinedLinks, RegistryError> {
        if let Some(Kind::Joined(door)) = self.lock().entries.get(&id).map(|entry| &entry.kind) {
            return Ok(door.clone());
        }
        self.0.options.admission.source("join").map_err(RegistryError::Forbidden)?;
        let (connector, door) = Connector::joined("dials in");
        let options = EnvironmentOptions { connect: ConnectPolicy::Eager, ..self.0.options.environment.clone() };
        self.put(id, Kind::Joined(door.clone()), Recipe { connector, options })?;
        Ok(door)
    }

    /// Adds an environment that is reached in a way of the caller's own.
    pub fn attach(&self, id: EnvironmentId, connector: Connector, connect: ConnectPolicy) -> Result<RegistryTransition, RegistryError> {
        let options = EnvironmentOptions { connect, ..self.0.options.environment.clone() };
        self.put(id, Kind::Attached, Recipe { connector, options })
    }

    fn put(&self, id: EnvironmentId, kind: Kind, mut recipe: Recipe) -> Result<RegistryTransition, RegistryError> {
        let mut inside = self.lock();
        inside.check_open(&id)?;
        // Who replaces what is configured does not widen what may be done there.
        if let Some(live) =
            inside.entries.get(&id).filter(|entry| entry.origin == EnvironmentOrigin::Configured).and_then(|entry| entry.live.as_ref())
        {
            recipe.options.narrowing = live.recipe.options.narrowing.clone();
        }
        let origin = match inside.entries.get(&id) {
            Some(Entry { kind: Kind::Pending(_), .. }) => return Err(RegistryError::IsPending(id)),
            Some(entry) => entry.origin,
            None => EnvironmentOrigin::Added,
        };
        let entry = self.entry(&mut inside, id, kind, recipe);
        let mut after = After::default();
        let transition = inside.insert(Entry { origin, ..entry }, &mut after);
        drop(inside);
        after.finish();
        Ok(transition)
    }

    /// Forgets an environment. A thread that names it finds it missing; a step that holds its handle keeps it, except where the
    /// connection is a program of ours: that ends at once.
    pub fn remove(&self, id: &EnvironmentId) -> Result<(), RegistryError> {
        let mut inside = self.lock();
        inside.check_open(id)?;
        let entry = inside.entries.remove(id).ok_or_else(|| RegistryError::Unknown(id.clone()))?;
        inside.tell(id, entry.generation, EnvironmentState::Missing, RegistryTransition::Removed);
        drop(inside);
        entry.handle().into_iter().for_each(Environment::dismiss);
        Ok(())
    }

    fn recipe(&self, definition: &Definition) -> Recipe {
        let options = EnvironmentOptions {
            connect: definition.connect,
            connect_timeout: definition.connect_timeout,
            initialize_timeout: definition.initialize_timeout,
            idle_stop: definition.idle_stop,
            narrowing: definition.narrowing.and_required(&self.0.options.environment.narrowing),
            ..self.0.options.environment.clone()
        };
        Recipe { connector: definition.connector(&options.means), options }
    }

    /// A new handle, not yet connected to anything.
    fn entry(&self, inside: &mut Inside, id: EnvironmentId, kind: Kind, recipe: Recipe) -> Entry {
        inside.generation += 1;
        let generation = inside.generation;
        let observer = observe::observer(&self.0, id.clone(), generation);
        let label = HandleLabel { name: id.to_string(), id: Some(id.clone()), generation };
        let mut options = recipe.options.clone();
        // Environments that fail together must not come back in step.
        options.jitter_seed ^= generation.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let handle = Environment::observed(label, recipe.connector.clone(), options, observer);
        let live = Some(Live { handle, recipe });
        Entry { id, generation, standing: EnvironmentState::Idle, origin: EnvironmentOrigin::Added, kind, live, is_recognised: false }
    }

    /// Changes whenever something about an environment does: for those who wait until one stands otherwise.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.lock().feed.subscribe()
    }

    /// The handle behind an id, now. Not for use within a step: a step has its view.
    pub fn get(&self, id: &EnvironmentId) -> Option<Environment> {
        self.lock().entries.get(id).and_then(Entry::handle).cloned()
    }

    /// The handle behind an id, if it could not be reached and another attempt may help. One that is connected only when the user says
    /// so is left alone.
    pub fn unreached(&self, id: &EnvironmentId) -> Option<Environment> {
        self.lock().entries.get(id).and_then(Entry::unreached)
    }

    /// All environments, in order.
    pub fn list(&self) -> Vec<EnvironmentRow> {
        self.lock().entries.iter().map(Entry::status).collect()
    }

    /// One of them.
    pub fn status(&self, id: &EnvironmentId) -> Option<EnvironmentRow> {
        self.lock().entries.get(id).map(Entry::status)
    }

    /// Configured entries that are wrong and have no id to be listed under.
    pub fn nameless(&self) -> Vec<Nameless> {
        self.lock().nameless.clone()
    }

    /// How an environment stands. Nothing is started, and no executor is asked.
    pub fn standing(&self, id: &EnvironmentId) -> EnvironmentState {
        let inside = self.lock();
        match inside.entries.get(id) {
            Some(entry) => entry.standing.clone(),
            None if inside.is_off => EnvironmentState::Disabled,
            None => EnvironmentState::Missing,
        }
    }

    /// Waits for as long as an environment is being connected or got back, and tells how it stands then. Nothing is started.
    pub async fn settled(&self, id: &EnvironmentId) -> EnvironmentState {
        let mut watcher = self.watch();
        loop {
            let standing = self.standing(id);
            if !standing.is_under_way() {
                return standing;
            }
            watcher.next().await;
        }
    }

    /// How an environment stands, but a connection that is there is asked whether it still works. Nothing is started or recovered.
    pub async fn probe(&self, id: &EnvironmentId) -> EnvironmentState {
        let Some(ConnectionState::Ready(connected)) = self.get(id).map(|handle| handle.state()) else { return self.standing(id) };
        // Any answer shows that an executor is there.
        let reason = match timeout(PROBE, connected.peer.0.call::<StatusMethod>(&Unit)).await {
            Ok(Err(CallError::Lost)) => "the connection was lost".to_owned(),
            Err(_) => format!("no answer within {PROBE:?}"),
            Ok(_) => return EnvironmentState::Ready,
        };
        match self.standing(id) {
            EnvironmentState::Ready => EnvironmentState::Failed { cause: FailureCause::Connection, reason, retry_at: None },
            moved_on => moved_on,
        }
    }

    /// Connects on request and reports what is there.
    pub async fn info(&self, id: &EnvironmentId) -> Result<EnvironmentInfo, InfoError> {
        self.asked(id, Environment::connect).await
    }

    /// The same with what sandboxes hold there.
    pub async fn full_info(&self, id: &EnvironmentId) -> Result<EnvironmentInfo, InfoError> {
        self.asked(id, async |handle| {
            handle.connect().await?;
            handle.full_info().await
        })
        .await
    }

    async fn asked(
        &self,
        id: &EnvironmentId,
        ask: impl AsyncFnOnce(&Environment) -> Result<EnvironmentInfo, EnvironmentError>,
    ) -> Result<EnvironmentInfo, InfoError> {
        let Some(handle) = self.get(id) else {
            return Err(match self.standing(id) {
                EnvironmentState::Disabled => RegistryError::Off.into(),
                EnvironmentState::Failed { reason, .. } => InfoError::Unusable { id: id.clone(), reason },
                _ => RegistryError::Unknown(id.clone()).into(),
            });
        };
        let connected = async {
            let info = ask(&handle).await?;
            // The handle knows it a moment earlier than the registry; the next caller of the registry must hear the same.
            self.settled(id).await;
            Ok(info)
        };
        timeout(INFO, connected).await.map_err(|_| InfoError::Slow(id.clone()))?
    }

    /// News from now on, after how everything stands.
    pub fn watch(&self) -> Watcher {
        let told = self.lock().feed.subscribe();
        let (read, ready) = self.changes_after(None);
        Watcher { registry: self.clone(), told, ready, read }
    }

    /// What came after that number, or how everything stands.
    fn changes_after(&self, read: Option<u64>) -> (u64, VecDeque<RegistryChange>) {
        let inside = self.lock();
        let last = inside.feed.last();
        let changes = match read.and_then(|read| inside.feed.after(read)) {
            Some(changes) => changes.cloned().collect(),
            None => inside
                .entries
                .iter()
                .map(|entry| RegistryChange { sequence: last, event: entry.event(RegistryTransition::Replayed) })
                .collect(),
        };
        (last, changes)
    }

    /// What is selected without a choice: the default first, then the rest of the configuration, all at the same place.
    pub fn default_selection(&self, cwd: &PathUri, workspace_roots: &[PathUri]) -> Selection {
        let attach = |id: &EnvironmentId| Attachment::new(id.clone(), cwd.clone()).with_roots(workspace_roots.iter().cloned());
        Selection::new(self.lock().defaults.iter().map(attach).collect()).unwrap_or_default()
    }

    /// What a new thread of the command line gets that names nothing: the default alone, unless the configuration says `start = "all"`.
    pub fn start_selection(&self, cwd: &PathUri, workspace_roots: &[PathUri]) -> Selection {
        let all = Vec::from(self.default_selection(cwd, workspace_roots));
        let count = if self.lock().start == StartChoice::All { all.len() } else { 1 };
        Selection::new(all.into_iter().take(count).collect()).unwrap_or_default()
    }

    /// Which ids may be selected now.
    pub fn catalogue(&self) -> Catalogue {
        let inside = self.lock();
        Catalogue::new(inside.entries.iter().map(|entry| entry.id.clone()))
    }

    /// Asks for the connections that a thread with this selection and these roots will use, all at once, and waits for none. One that is
    /// connected only when the user says so is left alone, and so is this machine, which is not far.
    pub fn prepare(&self, selection: &Selection, roots: &[CapabilityRoot]) {
        let named = selection.attachments().iter().map(|attachment| &attachment.environment_id);
        let rooted = roots.iter().map(|root| match &root.location {
            RootLocation::Environment { environment_id, .. } => environment_id,
        });
        let inside = self.lock();
        let wanted: Vec<Environment> =
            named.chain(rooted).filter(|id| !id.is_local()).filter_map(|id| inside.entries.get(id)?.capture().1).collect();
        drop(inside);
        wanted.iter().for_each(Environment::want);
    }

    /// Freezes how the selected environments, and those that roots are in, stand at this moment. Those that sleep are
    /// asked to start; nothing is waited for.
    pub fn capture(&self, selection: &Selection, roots: &[CapabilityRoot]) -> StepView {
        self.capture_with(selection, roots, &[])
    }

    /// Like `capture`, with further environments that are reached although the thread does not work there.
    pub fn capture_with(&self, selection: &Selection, roots: &[CapabilityRoot], others: &[EnvironmentId]) -> StepView {
        let mut wanted = Vec::new();
        let inside = self.lock();
        let view = StepView::capture(selection, roots, others, |id| match inside.entries.get(id) {
            Some(entry) => {
                let (captured, handle) = entry.capture();
                wanted.extend(handle);
                (captured, entry.offered())
            }
            None if inside.is_off => (Captured::Disabled, Vec::new()),
            None => (Captured::Missing, Vec::new()),
        });
        drop(inside);
        wanted.iter().for_each(Environment::want);
        view
    }
}

/// What is left to do once the lock is released: handles tell the registry what becomes of them.
#[derive(Default)]
struct After {
    removed: Vec<Environment>,
    retired: Vec<Environment>,
    eager: Vec<Environment>,
}

impl After {
    fn finish(self) {
        self.removed.iter().for_each(Environment::dismiss);
        self.retired.iter().for_each(Environment::retire);
        self.eager.iter().for_each(Environment::want);
    }
}

impl Inside {
    fn check_open(&self, id: &EnvironmentId) -> Result<(), RegistryError> {
        if self.is_off {
            return Err(RegistryError::Off);
        }
        if id.is_local() { Err(RegistryError::Local) } else { Ok(()) }
    }

    fn tell(&mut self, id: &EnvironmentId, generation: u64, standing: EnvironmentState, transition: RegistryTransition) {
        self.feed.tell(RegistryEvent::Environment { id: id.clone(), generation, standing, transition });
    }

    fn insert(&mut self, entry: Entry, after: &mut After) -> RegistryTransition {
        after.eager.extend(entry.eager());
        let transition = if self.entries.get(&entry.id).is_some() { RegistryTransition::Replaced } else { RegistryTransition::Added };
        self.feed.tell(entry.event(transition));
        if let Some(old) = self.entries.insert(entry) {
            after.retired.extend(old.live.map(|live| live.handle));
        }
        transition
    }
}
