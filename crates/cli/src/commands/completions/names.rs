//! Names for completions, from files and the index of threads alone: nothing is connected, started or made.

use outpost_config::Config;
use outpost_store::ListQuery;
use serde_json::Value;

use super::word::NameKind;
use crate::ProcessContext;
use crate::commands::thread::list::{short_id, title};
use crate::definitions::is_shared;
use crate::environments::KnownEnvironments;
use crate::home::Home;
use crate::{store, topics};

/// So many threads are offered, the newest first.
const THREADS: usize = 50;

/// Names that begin with what is typed, and what each is.
pub(super) async fn of(kind: NameKind, typed: &str, own: &ProcessContext) -> Vec<(String, String)> {
    let plain = |names: Vec<String>, end: &str| names.into_iter().map(|name| (format!("{name}{end}"), String::new())).collect::<Vec<_>>();
    let mut found = match kind {
        NameKind::Environment => plain(environments(own).await, ""),
        NameKind::EnvironmentPath if typed.is_empty() => Vec::new(),
        NameKind::EnvironmentPath => plain(environments(own).await, ":"),
        NameKind::Thread => threads(typed, own).await.unwrap_or_default(),
        NameKind::McpServer => plain(servers(own), ""),
        NameKind::ConfigKey => plain(Config::keys(), ""),
        NameKind::Setting => plain(Config::keys(), "="),
        NameKind::Topic => plain(topics::names().map(str::to_owned).collect(), ""),
    };
    found.retain(|(name, _)| name.starts_with(typed));
    found
}

/// Those of this home: a database that nodes share would have to be connected.
async fn environments(own: &ProcessContext) -> Vec<String> {
    if config(own).is_some_and(|config| is_shared(&config)) {
        return Vec::new();
    }
    let known = KnownEnvironments::load(own).await.ok();
    let ids = known.as_ref().and_then(|known| known.snapshot().ok()).map(|snapshot| snapshot.ids()).unwrap_or_default();
    ids.iter().map(ToString::to_string).collect()
}

fn config(own: &ProcessContext) -> Option<Config> {
    Config::read(Some(&Home::from_environment()?.config()), &own.settings).ok()
}

fn servers(own: &ProcessContext) -> Vec<String> {
    let servers = config(own).and_then(|config| config.mcp_servers);
    servers.as_ref().and_then(Value::as_object).map(|servers| servers.keys().cloned().collect()).unwrap_or_default()
}

/// Those of this home: a database or a server would have to be connected.
async fn threads(typed: &str, own: &ProcessContext) -> Option<Vec<(String, String)>> {
    let (home, config) = (Home::from_environment()?, config(own)?);
    let is_here = config.store.as_deref().is_none_or(|store| store == "local") && config.client.server.is_none_or(|url| url.is_empty());
    if !is_here || !home.path().join("threads").is_dir() {
        return None;
    }
    let store = store::open(None, &own.settings).await.ok()?;
    let listed = store.list(ListQuery { limit: THREADS, ..ListQuery::default() }).await.ok()?.threads;
    let name = |thread: &outpost_store::ThreadSummary| {
        let id = thread.id.to_string();
        // Who has typed the beginning of a whole id gets the rest of it.
        let id =
            if !typed.is_empty() && id.starts_with(typed) && !short_id(&id).starts_with(typed) { id } else { short_id(&id).to_owned() };
        (id, title(thread))
    };
    Some(listed.iter().map(name).collect())
}
