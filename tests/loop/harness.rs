//! A runtime with everything real but the model.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{ConnectPolicy, Connector, EnvironmentOptions, Narrowing, Registry, RegistryOptions};
use outpost_runtime::config::{RuntimeConfig, StepPatience};
use outpost_runtime::feed::Read;
use outpost_runtime::live::{LiveThread, NewInput, ThreadActivity, ThreadEvent};
use outpost_runtime::model::{ModelOverrides, Quirks, WireApi, built_in};
use outpost_runtime::models::Models;
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::rules::CommandRules;
use outpost_runtime::{Runtime, RuntimeParts, StartThread};
use outpost_store::{CommitConfig, Durability, LocalConfig, LocalStore, MemoryStore, Store};
use outpost_testkit::model::{Reply, ScriptedModel};
use outpost_testkit::{Bench, LinkKind};
use outpost_thread::{ApprovalAsked, CallFinished, CallOutcome, Entry, Fact, Raw, ThreadId, TurnFinished, TurnStatus};
use outpost_wire::PathUri;
use outpost_wire::intent::{Attachment, EnvironmentId, Selection};
use serde_json::Value;
use tempfile::TempDir;
use uuid::Uuid;

pub(crate) const OUTPOST: &str = env!("CARGO_BIN_EXE_outpost");

/// Environments `one`, `two`, … of the given kinds, each with a directory of its own.
pub(crate) struct Harness {
    pub runtime: Runtime,
    pub model: ScriptedModel,
    store: Store,
    config: RuntimeConfig,
    places: Vec<Place>,
}

struct Place {
    id: EnvironmentId,
    work: TempDir,
    bench: Arc<Bench>,
}

const NAMES: [&str; 4] = ["one", "two", "three", "four"];

/// What a harness is made of.
pub(crate) struct Setup {
    pub kinds: Vec<LinkKind>,
    pub store: Store,
    pub config: RuntimeConfig,
    pub rules: CommandRules,
    pub replies: Vec<Reply>,
    /// What the entries of all environments say.
    pub narrowing: Narrowing,
}

impl Setup {
    pub(crate) fn new(kinds: &[LinkKind], replies: Vec<Reply>) -> Self {
        let config = RuntimeConfig {
            model: "scripted".into(),
            model_provider: "scripted".into(),
            models: [("scripted".to_owned(), ModelOverrides::default())].into(),
            sandbox: SandboxMode::DangerFullAccess,
            patience: StepPatience { primary: Duration::from_secs(60), others: Duration::from_secs(60) },
            ..RuntimeConfig::default()
        };
        Self { kinds: kinds.to_vec(), store: memory(), config, rules: CommandRules::default(), replies, narrowing: Narrowing::default() }
    }
}

pub(crate) fn memory() -> Store {
    Store::Memory(MemoryStore::new(clock(), None))
}

pub(crate) fn clock() -> outpost_store::Clock {
    Arc::new(|| std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64)
}

impl Harness {
    /// One environment in memory.
    pub(crate) async fn local(replies: Vec<Reply>) -> Self {
        Self::new(Setup::new(&[LinkKind::Memory], replies)).await
    }

    pub(crate) async fn new(setup: Setup) -> Self {
        let model = ScriptedModel::with(setup.replies).await;
        let environment = EnvironmentOptions { narrowing: setup.narrowing.clone(), ..EnvironmentOptions::default() };
        let registry = Registry::new(RegistryOptions { environment, ..RegistryOptions::default() });
        let mut places = Vec::new();
        for (name, kind) in NAMES.iter().zip(&setup.kinds) {
            let bench = Arc::new(Bench::new(*kind, OUTPOST).await);
            let id = EnvironmentId::parse(name).unwrap();
            registry.attach(id.clone(), connector(name, bench.clone()), ConnectPolicy::Lazy).unwrap();
            places.push(Place { id, work: tempfile::tempdir().unwrap(), bench });
        }
        let runtime = Runtime::new(parts(setup.config.clone(), setup.store.clone(), registry, &model, setup.rules));
        Self { runtime, model, store: setup.store, config: setup.config, places }
    }

    /// Another program on the same store and the same executors.
    pub(crate) async fn restarted(&self) -> Runtime {
        self.restarted_on(self.store.clone())
    }

    /// Another program on the same store and executors, configured in another way.
    pub(crate) fn restarted_as(&self, config: RuntimeConfig, rules: CommandRules) -> Runtime {
        let registry = Registry::new(RegistryOptions::default());
        for place in &self.places {
            registry.attach(place.id.clone(), connector(place.id.as_str(), place.bench.clone()), ConnectPolicy::Lazy).unwrap();
        }
        Runtime::new(parts(config, self.store.clone(), registry, &self.model, rules))
    }

    pub(crate) fn config(&self) -> RuntimeConfig {
        self.config.clone()
    }

    /// Another program on the same executors, and on another store.
    pub(crate) fn restarted_on(&self, store: Store) -> Runtime {
        let registry = Registry::new(RegistryOptions::default());
        for place in &self.places {
            registry.attach(place.id.clone(), connector(place.id.as_str(), place.bench.clone()), ConnectPolicy::Lazy).unwrap();
        }
        Runtime::new(parts(self.config.clone(), store, registry, &self.model, CommandRules::default()))
    }

    /// Gives an environment a new handle to the same executor, and waits until it is ready.
    pub(crate) async fn replace(&self, index: usize) {
        let place = &self.places[index];
        self.runtime.registry().attach(place.id.clone(), connector(place.id.as_str(), place.bench.clone()), ConnectPolicy::Lazy).unwrap();
        self.runtime.registry().info(&place.id).await.unwrap();
    }

    /// The way to the executor of an environment, for another id.
    pub(crate) fn way(&self, index: usize) -> Connector {
        let place = &self.places[index];
        connector(place.id.as_str(), place.bench.clone())
    }

    /// An environment of any id, with the directory of one of ours.
    pub(crate) fn attachment(&self, id: &str, index: usize) -> Attachment {
        Attachment::new(EnvironmentId::parse(id).unwrap(), PathUri::from_native(self.places[index].work.path()).unwrap())
    }

    /// A thread in these places.
    pub(crate) async fn start_in(&self, attachments: Vec<Attachment>) -> LiveThread {
        let mut start = StartThread::new();
        start.created.selection = Some(Selection::new(attachments).unwrap());
        self.runtime.start(start).await.unwrap()
    }

    /// The executor of an environment.
    #[allow(dead_code, reason = "shared with the tests of MCP servers")]
    pub(crate) fn bench(&self, index: usize) -> &Bench {
        &self.places[index].bench
    }

    /// The directory of an environment.
    pub(crate) fn work(&self, index: usize) -> &Path {
        self.places[index].work.path()
    }

    /// These environments, in this order.
    pub(crate) fn select(&self, indices: &[usize]) -> Selection {
        let attach = |index: &usize| {
            let place = &self.places[*index];
            Attachment::new(place.id.clone(), PathUri::from_native(place.work.path()).unwrap())
        };
        Selection::new(indices.iter().map(attach).collect()).unwrap()
    }

    pub(crate) async fn start(&self, indices: &[usize]) -> LiveThread {
        let mut start = StartThread::new();
        start.created.selection = Some(self.select(indices));
        self.runtime.start(start).await.unwrap()
    }

    /// Everything that was stored of a thread.
    pub(crate) async fn entries(&self, id: ThreadId) -> Vec<Entry> {
        self.runtime.store().history(id, 0).await.unwrap().rest().await.unwrap().entries
    }

    /// The outputs of all calls, as the model was told them.
    pub(crate) async fn outputs(&self, id: ThreadId) -> Vec<(CallOutcome, String)> {
        let finished = |entry: Entry| match entry.fact {
            Fact::CallFinished(finished) => Some((finished.outcome, told(&finished))),
            _ => None,
        };
        self.entries(id).await.into_iter().filter_map(finished).collect()
    }

    pub(crate) async fn turn_ends(&self, id: ThreadId) -> Vec<TurnFinished> {
        let finished = |entry: Entry| if let Fact::TurnFinished(finished) = entry.fact { Some(*finished) } else { None };
        self.entries(id).await.into_iter().filter_map(finished).collect()
    }
}

pub(crate) fn told(finished: &CallFinished) -> String {
    let text = |item: &Raw| {
        let item: Value = item.read().unwrap();
        item["output"].as_str().map_or_else(|| item["output"].to_string(), str::to_owned)
    };
    finished.items.iter().map(text).collect()
}

pub(crate) fn connector(name: &str, bench: Arc<Bench>) -> Connector {
    Connector::new(name, move || {
        let bench = bench.clone();
        async move { Ok(bench.link().await) }
    })
}

pub(crate) fn parts(config: RuntimeConfig, store: Store, registry: Registry, model: &ScriptedModel, rules: CommandRules) -> RuntimeParts {
    let ids: Arc<dyn Fn() -> String + Send + Sync> = Arc::new(|| Uuid::new_v4().to_string());
    let mut providers: BTreeMap<_, _> = built_in();
    for (name, wire_api) in [("scripted", WireApi::Responses), ("chat", WireApi::Chat), ("claude", WireApi::Anthropic)] {
        let mut provider = providers["ollama"].clone();
        provider.base_url = model.base_url();
        provider.wire_api = wire_api;
        provider.stream_idle_timeout_ms = 2_000;
        provider.request_max_retries = 1;
        provider.stream_max_retries = 1;
        providers.insert(name.into(), provider.clone());
        // The same without quirks.
        provider.quirks = Quirks::default();
        providers.insert(format!("strict{}", if name == "scripted" { String::new() } else { format!("-{name}") }), provider);
    }
    let models = Models::new(providers, (config.model_provider.clone(), config.model.clone()), Arc::new(|_| None), ids.clone());
    RuntimeParts {
        config,
        store,
        ephemeral: memory(),
        registry,
        models,
        rules,
        clock: clock(),
        ids,
        thread_ids: Arc::new(|| ThreadId::new(Uuid::now_v7())),
    }
}

/// Says something and waits until the thread is idle again.
pub(crate) async fn turn(thread: &LiveThread, text: &str) -> ThreadActivity {
    thread.input(NewInput::text(text)).await.unwrap();
    settled(thread).await
}

pub(crate) async fn settled(thread: &LiveThread) -> ThreadActivity {
    tokio::time::timeout(Duration::from_secs(120), thread.settled()).await.expect("the turn does not end")
}

/// The next fact that is wanted.
pub(crate) async fn next_fact<T>(
    cursor: &mut outpost_runtime::feed::FeedReader<ThreadEvent>,
    mut wanted: impl FnMut(&Fact) -> Option<T>,
) -> T {
    let find = async {
        loop {
            match cursor.next().await {
                Read::Event(ThreadEvent::Entry(entry)) => {
                    if let Some(found) = wanted(&entry.fact) {
                        return found;
                    }
                }
                Read::End => panic!("the thread ended"),
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), find).await.expect("it does not happen")
}

pub(crate) fn is_completed(end: &TurnFinished) -> bool {
    end.status == TurnStatus::Completed
}

/// A question, for [`next_fact`].
#[allow(dead_code, reason = "shared with the tests of MCP servers")]
pub(crate) fn asked(fact: &Fact) -> Option<Box<ApprovalAsked>> {
    if let Fact::ApprovalAsked(asked) = fact { Some(asked.clone()) } else { None }
}

/// A home on disk.
#[allow(dead_code, reason = "shared with the tests of MCP servers")]
pub(crate) fn on_disk(home: &Path) -> LocalStore {
    let config = LocalConfig {
        home: home.to_owned(),
        instance: "test".into(),
        host: "test".into(),
        clock: clock(),
        durability: Durability::Stored,
        commit: CommitConfig::default(),
        lease_ms: 30_000,
        redactor: None,
    };
    LocalStore::open(config).unwrap()
}
