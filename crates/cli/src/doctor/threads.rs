//! Where threads are kept: can they be read, and are the newest of them whole?

use std::time::Duration;

use outpost_config::Config;
use outpost_store::{ListQuery, ListScope, Store};
use tokio::time::timeout;

use super::{Finding, Patient, not_looked_at};
use crate::assembly::NodeRole;
use crate::home::Home;
use crate::out::with_causes;
use crate::store;

/// So many threads are looked at byte by byte; `outpost thread verify` looks at all of them.
const NEWEST: usize = 20;
const PATIENCE: Duration = Duration::from_secs(15);

pub(super) async fn findings(patient: &Patient<'_>) -> Vec<Finding> {
    let Some(home) = &patient.home else { return vec![] };
    let Ok(config) = Config::read(Some(&home.config()), &patient.own.settings) else { return not_looked_at("store", "config.toml") };
    let kept = if config.store.as_deref().is_some_and(|store| store.starts_with("postgres")) { "Postgres" } else { "the home" };
    if config.store.is_none() && !home.path().join("threads").exists() {
        return vec![Finding::good("store", "in the home; there is no thread yet")];
    }
    match timeout(PATIENCE, look(&config, home, kept)).await {
        Ok(Ok(findings)) => findings,
        Ok(Err(error)) => {
            let to_do = if kept == "Postgres" {
                "is `store` in config.toml right, does the database run, and does it let you in? See docs/postgres.md"
            } else {
                "threads cannot be read or written before this is put right"
            };
            vec![Finding::broken("store", format!("{kept}: {}", with_causes(&error)), to_do)]
        }
        Err(_) => vec![Finding::weak(
            "store",
            format!("{kept}: not done within {} s", PATIENCE.as_secs()),
            "`outpost thread verify` takes its time",
        )],
    }
}

async fn look(config: &Config, home: &Home, kept: &str) -> anyhow::Result<Vec<Finding>> {
    let store: Store = store::open_for(config, home, None, NodeRole::Single).await?;
    let count = store.threads().await?.len();
    let page = store.list(ListQuery { shelf: ListScope::Both, limit: NEWEST, ..ListQuery::default() }).await?;
    let mut findings = vec![Finding::good("store", format!("in {kept}, {count} thread{}", if count == 1 { "" } else { "s" }))];
    let mut whole = 0;
    for thread in &page.threads {
        let verdict = store.verify(thread.id, Some(thread.ordinal)).await;
        match verdict {
            Ok(verdict) if verdict.is_whole() => whole += 1,
            Ok(verdict) => {
                let (_, damage) = &verdict.damage[0];
                let to_do = format!("`outpost thread verify {0}` tells more, `outpost thread repair {0}` saves what is whole", thread.id);
                findings.push(Finding::broken(format!("thread {}", thread.id), damage.to_string(), to_do));
            }
            Err(error) => {
                let to_do = "`outpost thread verify` tells more; take it from a backup if it is gone";
                findings.push(Finding::broken(format!("thread {}", thread.id), error.to_string(), to_do));
            }
        }
    }
    findings.insert(1, Finding::good("newest threads", format!("{whole} of {} whole", page.threads.len())));
    Ok(findings)
}
