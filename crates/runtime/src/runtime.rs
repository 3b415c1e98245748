//! All threads of one program: which are loaded, how they are started, resumed, forked and ended.

mod capture;
mod manage;
mod open;
mod orphans;

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use outpost_environment::{Discoveries, Registry};
use outpost_store::{AdoptionKey, Clock, MemoryStore, Store};
use outpost_thread::{Raw, Thread, ThreadId};
use outpost_wire::SharedError;
use outpost_wire::calendar::UtcTime;
use outpost_wire::intent::EnvironmentId;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex as AsyncMutex, OnceCell, Semaphore};
use uuid::Uuid;

pub(crate) use manage::outline;
pub use manage::{ForkThread, ShutdownReport, StartThread, ThreadError};
pub(crate) use open::is_held;

use crate::agents::{AgentSlot, AgentTree};
use crate::config::RuntimeConfig;
use crate::counts::{Counted, Counts};
use crate::feed::{FeedLimits, FeedReader, ThreadFeed};
use crate::live::{LiveThread, ThreadActivity};
use crate::mcp::Mcp;
use crate::model::built_in;
use crate::models::{Models, VariableLookup};
use crate::resting::Resting;
use crate::rules::{CommandRule, CommandRules, RuleError};
use crate::skills::host::HostSkills;
use crate::tools::StepTools;

/// What a runtime is made of. Everything that has an effect on the world outside is passed in.
pub struct RuntimeParts {
    pub config: RuntimeConfig,
    pub store: Store,
    /// For threads that are not to be kept.
    pub ephemeral: Store,
    pub registry: Registry,
    pub models: Models,
    pub rules: CommandRules,
    pub clock: Clock,
    pub ids: Arc<dyn Fn() -> String + Send + Sync>,
    /// For threads, so that their order is that of their creation.
    pub thread_ids: Arc<dyn Fn() -> ThreadId + Send + Sync>,
}

impl RuntimeParts {
    /// What a program gets that embeds a runtime and leaves the rest open: the built-in providers with keys from `variables`, no
    /// command rules, random ids; threads that are not to be kept stay in memory.
    pub fn new(config: RuntimeConfig, store: Store, registry: Registry, clock: Clock, variables: VariableLookup) -> Self {
        let ids: Arc<dyn Fn() -> String + Send + Sync> = Arc::new(|| Uuid::now_v7().to_string());
        let asked = (config.model_provider.clone(), config.model.clone());
        Self {
            config,
            store,
            ephemeral: Store::Memory(MemoryStore::new(clock.clone(), None)),
            registry,
            models: Models::new(built_in(), asked, variables, ids.clone()),
            rules: CommandRules::default(),
            clock,
            ids,
            thread_ids: Arc::new(|| ThreadId::new(Uuid::now_v7())),
        }
    }
}

/// All threads of one program. Cheap to clone.
#[derive(Clone)]
pub struct Runtime(pub(crate) Arc<RuntimeShared>);

/// What a runtime does. It is compiled here, once: the bodies of async functions are otherwise compiled again in every crate that awaits
/// them.
pub type RuntimeFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Threads that are looked through for damage at the same time.
const CHECKS: usize = 2;

pub(crate) struct RuntimeShared {
    pub config: RuntimeConfig,
    pub store: Store,
    /// For threads that are not to be kept.
    pub ephemeral: Store,
    pub registry: Registry,
    pub mcp: Mcp,
    pub models: Models,
    rules: RuleBook,
    pub clock: Clock,
    pub ids: Arc<dyn Fn() -> String + Send + Sync>,
    pub thread_ids: Arc<dyn Fn() -> ThreadId + Send + Sync>,
    pub loaded: LoadedThreads,
    pub skills: KnownSkills,
    pub counts: Counts,
    /// By what the programs of the store claim each other's commands, once it was asked for.
    adoption: OnceCell<Option<AdoptionKey>>,
    /// That there is none was told.
    pub is_lack_of_key_told: AtomicBool,
}

/// What users decided about commands, for good.
struct RuleBook {
    current: Mutex<Arc<CommandRules>>,
    /// Who writes down what is decided while the program runs.
    keeper: Mutex<Option<RuleKeeper>>,
}

/// The threads of this program, and who hears of them.
pub(crate) struct LoadedThreads {
    slots: Mutex<HashMap<ThreadId, Arc<Slot>>>,
    pub resting: Arc<Resting>,
    trees: Mutex<HashMap<String, Weak<AgentTree>>>,
    created: ThreadFeed<ThreadId>,
    agent_starts: ThreadFeed<AgentStart>,
    /// Readers of whole threads that look for damage. Few at a time, so that others can use the disk.
    checking: Semaphore,
    /// A thread was left in the middle of its work: commands of it are asked for by the program that takes it up.
    pub is_work_left: AtomicBool,
}

/// What is known of skills, for all threads.
pub(crate) struct KnownSkills {
    /// What capability roots hold.
    pub discoveries: Discoveries,
    /// Those of this machine.
    pub host: HostSkills,
    /// Those that environments must have before a model is asked anything about them.
    required: Mutex<HashMap<EnvironmentId, Vec<String>>>,
}

/// An agent was loaded: its maker made it, or it is taken up again.
#[derive(Debug, Clone)]
pub struct AgentStart {
    /// As it was before it did anything.
    pub thread: Arc<Thread>,
    /// The thread that made it.
    pub maker: ThreadId,
    pub is_new: bool,
}

/// Writes down a rule that a user made by an answer, for later starts of the program; or says why it cannot.
pub type RuleKeeper = Arc<dyn Fn(&CommandRule) -> Result<(), SharedError> + Send + Sync>;

/// One thread's place. The loader holds the lock, so that two callers get the same one.
#[derive(Default)]
struct Slot {
    loading: AsyncMutex<()>,
    live: Mutex<Option<LiveThread>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does what must not stop half way, even if the caller is gone by then: a thread that was claimed is given back.
pub async fn run_uncancelled<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The program ends.
        Err(_) => std::future::pending().await,
    }
}

impl Runtime {
    pub fn new(parts: RuntimeParts) -> Self {
        let RuntimeParts { config, store, ephemeral, registry, models, rules, clock, ids, thread_ids } = parts;
        let mcp = Mcp::new(config.mcp.clone(), ids.clone());
        let host_skills = HostSkills::new(config.skill_choices.clone());
        let resting = Resting::new(config.most_resting);
        Self(Arc::new(RuntimeShared {
            config,
            store,
            ephemeral,
            registry,
            mcp,
            models,
            rules: RuleBook { current: Mutex::new(Arc::new(rules)), keeper: Mutex::default() },
            clock,
            ids,
            thread_ids,
            loaded: LoadedThreads {
                slots: Mutex::default(),
                resting,
                trees: Mutex::default(),
                created: ThreadFeed::new(FeedLimits::default()),
                agent_starts: ThreadFeed::new(FeedLimits::default()),
                checking: Semaphore::new(CHECKS),
                is_work_left: AtomicBool::new(false),
            },
            skills: KnownSkills { discoveries: Discoveries::default(), host: host_skills, required: Mutex::default() },
            counts: Counts::default(),
            adoption: OnceCell::new(),
            is_lack_of_key_told: AtomicBool::new(false),
        }))
    }

    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Where a thread is kept: those that are not to be kept are in a store of their own.
    pub fn store_of(&self, id: ThreadId) -> RuntimeFuture<'_, Store> {
        Box::pin(async move { self.0.store_of(id).await })
    }

    /// A name for something that has none yet.
    pub fn new_id(&self) -> String {
        (self.0.ids)()
    }

    /// Whether a thread is gone with this program.
    pub fn is_ephemeral(&self, id: ThreadId) -> RuntimeFuture<'_, bool> {
        Box::pin(async move { self.0.ephemeral.head(id).await.is_ok() })
    }

    pub fn models(&self) -> &Models {
        &self.0.models
    }

    /// Takes over other rules, from the next step on.
    pub fn set_rules(&self, rules: CommandRules) {
        *lock(&self.0.rules.current) = Arc::new(rules);
    }

    /// What has happened since the start.
    pub fn counts(&self) -> Counted {
        self.0.counts.now()
    }

    /// Who keeps rules that users make by their answers. Without one they hold as long as this program runs.
    pub fn keep_rules_with(&self, keeper: RuleKeeper) {
        *lock(&self.0.rules.keeper) = Some(keeper);
    }

    /// Says which skills an environment must have. A turn that works there fails before the model is asked if one is missing.
    pub fn require_skills(&self, environment: EnvironmentId, names: Vec<String>) {
        let mut required = lock(&self.0.skills.required);
        if names.is_empty() {
            required.remove(&environment);
        } else {
            required.insert(environment, names);
        }
    }

    pub fn config(&self) -> &RuntimeConfig {
        &self.0.config
    }

    /// A loaded thread that does not work for the runtime itself.
    pub fn get(&self, id: ThreadId) -> Option<LiveThread> {
        self.0.live(id).filter(|live| !live.internal)
    }

    /// The same; one that was unloaded because it was not in use is loaded again.
    pub fn get_again(&self, id: ThreadId) -> RuntimeFuture<'_, Result<Option<LiveThread>, ThreadError>> {
        Box::pin(async move {
            if let Some(live) = self.get(id) {
                return Ok(Some(live));
            }
            if !self.0.loaded.resting.was_unloaded(id) {
                return Ok(None);
            }
            self.resume(id).await.map(Some)
        })
    }

    /// Waits for the end of a thread that is just being unloaded: until then it cannot be claimed.
    pub fn ended(&self, id: ThreadId) -> RuntimeFuture<'_, ()> {
        Box::pin(async move {
            if let Some(ending) = self.0.in_slot(id).filter(LiveThread::is_closed) {
                ending.ended().await;
            }
        })
    }

    /// The loaded threads, by id. Those that work for the runtime itself are not among them.
    pub fn loaded(&self) -> Vec<ThreadId> {
        let mut ids: Vec<ThreadId> = self.0.all_live().into_iter().filter(|live| !live.internal).map(|live| live.id).collect();
        ids.sort();
        ids
    }

    /// Ids of threads as they come to be: those that are still remembered, and then every new one.
    pub fn created(&self) -> FeedReader<ThreadId> {
        self.0.loaded.created.replay()
    }

    /// Every agent that is loaded from now on.
    pub fn agent_starts(&self) -> FeedReader<AgentStart> {
        self.0.loaded.agent_starts.subscribe()
    }

    /// The loaded agents that a thread made; not those that they made.
    pub fn agents_of(&self, maker: ThreadId) -> Vec<LiveThread> {
        let mut agents: Vec<LiveThread> =
            self.0.all_live().into_iter().filter(|live| live.maker == Some(maker) && !live.internal).collect();
        agents.sort_by_key(LiveThread::id);
        agents
    }

    /// The same from a number on, as [`Cursor::position`] tells it: for those who have read before.
    pub fn created_from(&self, number: u64) -> FeedReader<ThreadId> {
        self.0.loaded.created.replay_from(number)
    }
}

/// How a thread's instructions are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Instructions {
    /// Instead of our own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// In addition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub developer: Option<String>,
}

/// The setting under which [`Instructions`] are kept that came after a thread's beginning; what they leave open stays as it was.
pub const LATER_INSTRUCTIONS: &str = "instructions";

const BASE: &str = include_str!("instructions/base.md");

impl RuntimeShared {
    /// By what the commands of threads of a store are claimed. Threads that are not kept have no such key.
    pub(crate) async fn adoption_key(&self, store: &Store) -> Result<Option<AdoptionKey>, SharedError> {
        if matches!(store, Store::Memory(_)) {
            return Ok(None);
        }
        self.adoption.get_or_try_init(|| self.store.adoption_key()).await.cloned()
    }

    pub(crate) fn live(&self, id: ThreadId) -> Option<LiveThread> {
        self.in_slot(id).filter(|live| !live.is_closed())
    }

    /// The same, also of one that is just ending.
    fn in_slot(&self, id: ThreadId) -> Option<LiveThread> {
        let slot = lock(&self.loaded.slots).get(&id).cloned()?;
        lock(&slot.live).clone()
    }

    pub(crate) fn all_live(&self) -> Vec<LiveThread> {
        let slots: Vec<Arc<Slot>> = lock(&self.loaded.slots).values().cloned().collect();
        slots.iter().filter_map(|slot| lock(&slot.live).clone()).filter(|live| !live.is_closed()).collect()
    }

    fn slot(&self, id: ThreadId) -> Arc<Slot> {
        lock(&self.loaded.slots).entry(id).or_default().clone()
    }

    pub(crate) fn status(&self, id: ThreadId) -> Option<ThreadActivity> {
        self.live(id).map(|live| live.status())
    }

    pub(crate) fn rules(&self) -> Arc<CommandRules> {
        lock(&self.rules.current).clone()
    }

    /// What a thread's model is told first.
    pub(crate) fn instructions(&self, thread: &Thread) -> Arc<str> {
        let own: Instructions = thread.instructions.as_ref().and_then(|raw: &Raw| raw.read().ok()).unwrap_or_default();
        let later =
            thread.settings.other.get(LATER_INSTRUCTIONS).and_then(|value| serde_json::from_value::<Instructions>(value.clone()).ok());
        let later = later.unwrap_or_default();
        let base = later.base.or(own.base).unwrap_or_else(|| BASE.to_owned());
        match later.developer.or(own.developer) {
            Some(developer) => format!("{}\n\n{developer}", base.trim_end()).into(),
            None => base.into(),
        }
    }

    /// What the ready environments of a step must have and lack, as a sentence.
    pub(crate) fn lacking_skills(&self, tools: &StepTools) -> Option<String> {
        let required = lock(&self.skills.required);
        tools.view.workplaces().find_map(|place| {
            let environment = &place.attachment.environment_id;
            let lacking = tools.capabilities.lacking(environment, required.get(environment)?);
            let names = lacking.join("`, `");
            (!lacking.is_empty()).then(|| format!("environment `{environment}` must have the skill `{names}` and does not"))
        })
    }

    /// The date, for the model.
    pub(crate) fn today(&self) -> String {
        UtcTime::of((self.clock)()).date()
    }

    /// The tree that a thread belongs to, by the session that all its agents share.
    fn tree(&self, thread: &Thread) -> Arc<AgentTree> {
        let session = thread.metadata.session.clone().unwrap_or_else(|| thread.id.to_string());
        let mut trees = lock(&self.loaded.trees);
        trees.retain(|_, tree| tree.strong_count() > 0);
        if let Some(tree) = trees.get(&session).and_then(Weak::upgrade) {
            return tree;
        }
        let tree = AgentTree::new(self.config.agents, thread.usage.total.total);
        trees.insert(session, Arc::downgrade(&tree));
        tree
    }

    /// The place of a thread in its tree. One that was in the middle of its work goes on, also where others took its place meanwhile.
    fn seat(&self, thread: &Thread) -> AgentSlot {
        let tree = self.tree(thread);
        if thread.metadata.parent.is_none() {
            return tree.root();
        }
        let mut seat = tree.resting();
        if thread.turn.is_some() {
            seat.work();
        }
        seat
    }

    /// Takes up a rule that a user made by an answer, and has it kept for other programs. Not to be kept is no reason to refuse it.
    pub(crate) fn amend(&self, rule: CommandRule) -> Result<(), RuleError> {
        let mut rules = lock(&self.rules.current);
        let mut amended = CommandRules::clone(&rules);
        amended.push(rule.clone())?;
        *rules = Arc::new(amended);
        drop(rules);
        let keeper = lock(&self.rules.keeper).clone();
        if let Some(Err(reason)) = keeper.map(|keep| keep(&rule)) {
            tracing::warn!(rule = rule.describe(), %reason, "a rule holds only as long as this program runs");
        }
        Ok(())
    }
}
