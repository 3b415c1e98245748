//! Where threads are: the home, or a database.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use outpost_store::{CommitConfig, Durability, LocalConfig, LocalStore, PostgresConfig, PostgresStore, Store};
use uuid::Uuid;

use crate::home::Home;

/// How long a holder on another machine is believed without a sign of life.
const LEASE_MS: u64 = 30_000;

/// What the configuration says about threads.
struct Choice {
    store: String,
    durability: Durability,
}

/// Opens the store that is asked for, or else the one that the configuration names.
pub async fn open(asked: Option<&str>) -> anyhow::Result<Store> {
    let home = Home::from_environment().context("neither OUTPOST_HOME nor HOME is set: say where threads are")?;
    let choice = configured(home.path())?;
    let store = asked.unwrap_or(&choice.store);
    let (instance, host) = (Uuid::new_v4().to_string(), host());
    if store.starts_with("postgres://") || store.starts_with("postgresql://") {
        return Ok(Store::Postgres(PostgresStore::open(PostgresConfig::new(store, instance, host)).await?));
    }
    match store {
        "local" => {}
        "memory" => bail!("the store `memory` holds threads of one running program; there is nothing to see from here"),
        other => bail!("`{other}` is no store: use local or postgres://USER@HOST/DATABASE"),
    }
    let config = LocalConfig {
        home: home.path().to_owned(),
        instance,
        host,
        clock: Arc::new(now),
        durability: choice.durability,
        commit: CommitConfig::default(),
        lease_ms: LEASE_MS,
        redactor: None,
    };
    Ok(Store::Local(LocalStore::open(config)?))
}

/// Milliseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// The two keys of config.toml that matter here; whoever needs the others reads them elsewhere.
fn configured(home: &Path) -> anyhow::Result<Choice> {
    let path = home.join("config.toml");
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let table: toml::Table = text.parse().with_context(|| format!("{} is no TOML", path.display()))?;
    let word = |key: &str, default: &str| match table.get(key) {
        None => Ok(default.to_owned()),
        Some(toml::Value::String(word)) => Ok(word.clone()),
        Some(_) => bail!("`{key}` in {} must be a text", path.display()),
    };
    let durability = match word("durability", "effect")?.as_str() {
        "effect" => Durability::Effect,
        "turn" => Durability::Turn,
        "stored" => Durability::Stored,
        other => bail!("`durability` in {} is `{other}`: use effect, turn or stored", path.display()),
    };
    Ok(Choice { store: word("store", "local")?, durability })
}

fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.chars().take(128).collect() }
}
