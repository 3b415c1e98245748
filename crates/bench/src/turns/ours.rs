//! Our runtime as a program has it: a home on this disk, an executor in this process, a model behind HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, ensure};
use outpost_environment::{ConnectPolicy, Connector, Registry, RegistryOptions};
use outpost_runtime::config::RuntimeConfig;
use outpost_runtime::live::{LiveThread, NewInput, ThreadActivity};
use outpost_runtime::model::{WireApi, built_in};
use outpost_runtime::models::Models;
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::rules::CommandRules;
use outpost_runtime::{Runtime, RuntimeParts, StartThread};
use outpost_store::{Durability, MemoryStore, PostgresConfig, PostgresStore, Store};
use outpost_testkit::postgres::Database;
use outpost_testkit::{Bench, LinkKind};
use outpost_thread::ThreadId;
use outpost_wire::PathUri;
use outpost_wire::intent::{Attachment, EnvironmentId, Selection};
use tempfile::TempDir;
use uuid::Uuid;

use super::model::ModelProcess;
use crate::threads::{now, open_with};

pub(super) struct Ours {
    pub runtime: Runtime,
    pub store: Store,
    pub home: TempDir,
    work: TempDir,
}

impl Ours {
    pub(super) async fn new(outpost: &str, model: &ModelProcess, durability: Durability, sandbox: SandboxMode) -> anyhow::Result<Self> {
        let home = tempfile::tempdir()?;
        let store = open_with(home.path(), durability)?;
        Self::with(store, home, outpost, model, sandbox).await
    }

    /// The same with threads in a database, as a node has them that is alone there.
    pub(super) async fn in_database(outpost: &str, model: &ModelProcess, database: &Database) -> anyhow::Result<Self> {
        let config = PostgresConfig { adopts: true, ..PostgresConfig::new(database.url(), "bench", "here") };
        let store = Store::Postgres(PostgresStore::open(config).await?);
        Self::with(store, tempfile::tempdir()?, outpost, model, SandboxMode::DangerFullAccess).await
    }

    async fn with(store: Store, home: TempDir, outpost: &str, model: &ModelProcess, sandbox: SandboxMode) -> anyhow::Result<Self> {
        let work = tempfile::tempdir()?;
        let registry = Registry::new(RegistryOptions::default());
        let bench = Arc::new(Bench::new(LinkKind::Memory, outpost).await);
        let connector = Connector::new("one", move || {
            let bench = bench.clone();
            async move { Ok(bench.link().await) }
        });
        registry.attach(EnvironmentId::parse("one")?, connector, ConnectPolicy::Lazy)?;
        let mut providers = built_in();
        let mut provider = providers.get("ollama").context("no such provider")?.clone();
        (provider.base_url, provider.wire_api) = (model.strict_url(), WireApi::Responses);
        providers.insert("instant".into(), provider);
        let ids: Arc<dyn Fn() -> String + Send + Sync> = Arc::new(|| Uuid::now_v7().to_string());
        let config = RuntimeConfig {
            model: "instant".into(),
            model_provider: "instant".into(),
            sandbox,
            // Nothing is compacted here.
            context_windows: BTreeMap::from([("default".into(), u64::from(u32::MAX))]),
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::new(RuntimeParts {
            config,
            store: store.clone(),
            ephemeral: Store::Memory(MemoryStore::new(Arc::new(now), None)),
            registry,
            models: Models::new(providers, ("instant".into(), "instant".into()), Arc::new(|_| None), ids.clone()),
            rules: CommandRules::default(),
            clock: Arc::new(now),
            ids,
            thread_ids: Arc::new(|| ThreadId::new(Uuid::now_v7())),
        });
        Ok(Self { runtime, store, home, work })
    }

    /// A new thread with one environment.
    pub(super) async fn thread(&self) -> anyhow::Result<LiveThread> {
        let mut start = StartThread::new();
        let attachment = Attachment::new(EnvironmentId::parse("one")?, PathUri::from_native(self.work.path())?);
        start.created.selection = Some(Selection::new(vec![attachment])?);
        Ok(self.runtime.start(start).await?)
    }
}

/// One turn from its input to its end.
pub(super) async fn turn(thread: &LiveThread, text: &str) -> anyhow::Result<()> {
    thread.input(NewInput::text(text)).await?;
    let status = thread.settled().await;
    ensure!(status == ThreadActivity::Idle, "{status:?}");
    Ok(())
}
