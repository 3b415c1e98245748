//! Where threads are: the home, a database, or only this program.

use std::borrow::Cow;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use outpost_config::{Config, DurabilitySetting, PostgresTable};
use outpost_runtime::secrets::Secrets;
use outpost_store::{CommitConfig, Durability, LocalConfig, LocalStore, MemoryStore, PostgresConfig, PostgresStore, Redactor, Store};
use uuid::Uuid;

use crate::assembly::NodeRole;
use crate::home::Home;

/// How long a holder on another machine is believed without a sign of life.
const LEASE_MS: u64 = 30_000;

/// Opens the store that is asked for, or else the one that the configuration names, to look at threads.
pub(crate) async fn open(asked: Option<&str>, settings: &[String]) -> anyhow::Result<Store> {
    let home = Home::from_environment().context("neither OUTPOST_HOME nor HOME is set: say where threads are")?;
    let mut config = crate::configuration::load(Some(&home.config()), settings)?;
    if let Some(asked) = asked {
        config.store = Some(asked.to_owned());
    }
    if config.store.as_deref() == Some("memory") {
        bail!("the store `memory` holds threads of one running program; there is nothing to see from here");
    }
    if config.store.as_deref().unwrap_or("local") == "local" {
        home.usable()?;
    }
    open_for(&config, &home, None, NodeRole::Single).await
}

/// Opens the store of a runtime. Secrets are taken out of everything that is stored.
pub(crate) async fn open_for(config: &Config, home: &Home, secrets: Option<Secrets>, role: NodeRole) -> anyhow::Result<Store> {
    let store = config.store.as_deref().unwrap_or("local");
    let (instance, host) = (Uuid::new_v4().to_string(), host());
    let redactor = secrets.map(|secrets| Arc::new(Redact(secrets)) as Arc<dyn Redactor>);
    if store.starts_with("postgres://") || store.starts_with("postgresql://") {
        let PostgresTable { connections, lease_seconds, statement_seconds } = config.postgres;
        let mut config = PostgresConfig::new(store, instance, host);
        let seconds = |number: NonZeroU32| Duration::from_secs(number.get().into());
        config.connections = connections.map_or(config.connections, NonZeroUsize::get);
        config.node_lease = lease_seconds.map_or(config.node_lease, seconds);
        config.statement = statement_seconds.map_or(config.statement, seconds);
        config.redactor = redactor;
        config.adopts = role == NodeRole::Server;
        config.trust = outpost_rpc::tls::roots;
        return Ok(Store::Postgres(PostgresStore::open(config).await?));
    }
    match store {
        "memory" => Ok(Store::Memory(MemoryStore::new(Arc::new(now), redactor))),
        "local" => Ok(Store::Local(LocalStore::open(LocalConfig {
            home: home.path().to_owned(),
            instance,
            host,
            clock: Arc::new(now),
            durability: durability(config),
            commit: CommitConfig::default(),
            lease_ms: LEASE_MS,
            redactor,
        })?)),
        other => bail!("`{other}` is not a store: use local, memory or postgres://USER@HOST/DATABASE"),
    }
}

/// The secrets of this program, as a store asks for them.
struct Redact(Secrets);

impl Redactor for Redact {
    fn redact(&self, text: &str) -> Option<String> {
        match self.0.redact(text) {
            Cow::Borrowed(_) => None,
            Cow::Owned(text) => Some(text),
        }
    }
}

fn durability(config: &Config) -> Durability {
    match config.durability {
        Some(DurabilitySetting::Stored) => Durability::Stored,
        Some(DurabilitySetting::Turn) => Durability::Turn,
        Some(DurabilitySetting::Effect) | None => Durability::Effect,
    }
}

/// Milliseconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().chars().take(128).collect()
}
