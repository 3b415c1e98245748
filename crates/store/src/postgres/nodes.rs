//! The programs that use one database: each has a row with a lease, and the leases of its threads end with it. A program that adopts
//! takes up threads of others of its kind that died.

use std::sync::Weak;
use std::time::Duration;

use outpost_thread::ThreadId;

use super::{PostgresStore, Shared, small, told};
use crate::lease::ClaimError;
use crate::local::lock;
use crate::orphan::OrphanedThread;
use crate::summary::ThreadSummary;

const BEAT: &str = "
    insert into outpost_nodes (instance, host, pid, adopts, expires, address, name)
    values ($1, $2, $3, $4, now() + make_interval(secs => $5), $6, $7)
    on conflict (instance) do update set expires = now() + make_interval(secs => $5), address = $6, name = $7";

/// Where other nodes, and clients, reach a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeAddress {
    /// What it is called; its host if it is not called anything.
    pub name: Option<String>,
    /// `ws://` or `wss://`.
    pub url: Option<String>,
}

/// Threads are renewed as well, and more slowly: programs of version 0.1.0 look only at these.
const RENEW: &str = "update outpost_threads set expires = now() + make_interval(secs => $1) where instance = $2 and id = any($3)";

/// Only whole trees of agents, by their roots. Each node begins elsewhere in the list.
const ORPHANS: &str = "
    select t.id, t.claims, t.host, t.summary
    from outpost_threads t join outpost_nodes n on n.instance = t.instance
    where t.work and t.parent is null and n.adopts and n.expires <= now()
    order by md5(t.id || $1) limit $2";

/// Rows of programs that ended long ago, and whose threads were all given back.
const SWEEP: &str = "
    delete from outpost_nodes n
    where n.expires < now() - interval '1 day' and not exists (select from outpost_threads t where t.instance = n.instance and t.work)";

impl PostgresStore {
    /// Says that this program is there, once.
    pub(super) async fn enter(&self) -> Result<(), String> {
        let enter = async {
            self.client().await?.execute(SWEEP, &[]).await.map_err(|error| told(&error))?;
            self.0.beat().await
        };
        self.0.entered.get_or_try_init(|| enter).await.copied()
    }

    /// The lease of this program is over: what it held is free at once.
    pub async fn leave(&self) {
        lock(&self.0.held).clear();
        if !self.0.entered.initialized() {
            return;
        }
        // Followers are not left waiting for what was written last.
        if let Err(error) = super::notes::flush(&self.0).await {
            tracing::debug!(error, "changes could not be told");
        }
        let mut is_over = self.0.is_over.lock().await;
        *is_over = true;
        let left = match self.client().await {
            Ok(client) => {
                let over = "update outpost_nodes set expires = now() where instance = $1";
                client.execute(over, &[&self.0.config.instance]).await.map_err(|error| told(&error))
            }
            Err(error) => Err(error),
        };
        if let Err(error) = left {
            tracing::warn!(error, "the lease of this program could not be given back; it will expire");
        }
    }

    /// Whether another program is there that would take up the threads of this one.
    pub async fn has_heirs(&self) -> bool {
        let asked = "select exists (select from outpost_nodes where adopts and expires > now() and instance <> $1)";
        if !self.0.config.adopts {
            return false;
        }
        let Ok(client) = self.client().await else { return false };
        client.query_one(asked, &[&self.0.config.instance]).await.is_ok_and(|row| row.get(0))
    }

    /// Threads with work to do whose node died.
    pub async fn orphans(&self, most: usize) -> Result<Vec<OrphanedThread>, ClaimError> {
        let client = self.client().await.map_err(ClaimError::Database)?;
        let failed = |error: tokio_postgres::Error| ClaimError::Database(told(&error));
        let statement = client.prepare_cached(ORPHANS).await.map_err(failed)?;
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let rows = client.query(&statement, &[&self.0.config.instance, &most]).await.map_err(failed)?;
        let orphan = |row: &tokio_postgres::Row| {
            let thread: ThreadId = row.get::<_, String>(0).parse().ok()?;
            let summary: Option<ThreadSummary> = serde_json::from_str(row.get(3)).ok();
            Some(OrphanedThread {
                thread,
                claims: small(row.get(1)),
                host: row.get::<_, Option<String>>(2).unwrap_or_default(),
                selection: summary.and_then(|summary| summary.selection),
            })
        };
        Ok(rows.iter().filter_map(orphan).collect())
    }

    pub fn host(&self) -> &str {
        &self.0.config.host
    }

    /// The name of this start of the program among the nodes.
    pub fn instance(&self) -> &str {
        &self.0.config.instance
    }

    /// Says where this node is reached.
    pub async fn announce(&self, address: NodeAddress) -> Result<(), String> {
        *lock(&self.0.node_address) = address;
        self.enter().await?;
        self.0.beat().await
    }

    /// The other nodes that live and have an address, by their instances.
    pub async fn nodes(&self) -> Result<Vec<(String, NodeAddress)>, String> {
        let text = "select instance, coalesce(name, host), address from outpost_nodes
                    where expires > now() and address is not null and instance <> $1 order by instance";
        let rows = self.client().await?.query(text, &[&self.0.config.instance]).await.map_err(|error| told(&error))?;
        Ok(rows.iter().map(|row| (row.get(0), NodeAddress { name: row.get(1), url: row.get(2) })).collect())
    }
}

impl Shared {
    async fn beat(&self) -> Result<(), String> {
        let (config, pid) = (&self.config, i64::from(std::process::id()));
        // A lease that was not renewed when it is over need not be renewed.
        let client = self.pool.get_for(config.node_lease).await?;
        let NodeAddress { name, url } = lock(&self.node_address).clone();
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
            [&config.instance, &config.host, &pid, &config.adopts, &config.node_lease.as_secs_f64(), &url, &name];
        client.execute(BEAT, &values).await.map(drop).map_err(|error| told(&error))
    }

    async fn renew_threads(&self) -> Result<(), String> {
        // Only what is held: a lease that could not be given back is to expire.
        let held: Vec<String> = lock(&self.held).keys().map(ToString::to_string).collect();
        if held.is_empty() {
            return Ok(());
        }
        let client = self.pool.get().await?;
        let seconds = self.config.lease.as_secs_f64();
        client.execute(RENEW, &[&seconds, &self.config.instance, &held]).await.map(drop).map_err(|error| told(&error))
    }
}

/// Renews the lease of this program, and those of its threads, until the store is gone.
pub(super) async fn renew(shared: Weak<Shared>) {
    let mut since_threads = Duration::ZERO;
    loop {
        let Some(pause) = shared.upgrade().map(|shared| shared.config.node_lease.min(shared.config.lease) / 3) else { return };
        tokio::time::sleep(pause).await;
        let Some(shared) = shared.upgrade() else { return };
        since_threads += pause;
        if !shared.entered.initialized() {
            continue;
        }
        let is_over = shared.is_over.lock().await;
        if *is_over {
            return;
        }
        let mut renewed = shared.beat().await;
        drop(is_over);
        let unreturned = std::mem::take(&mut *lock(&shared.unreturned));
        for lease in unreturned {
            PostgresStore(shared.clone()).release(lease).await;
        }
        if renewed.is_ok() && since_threads >= shared.config.lease / 3 {
            since_threads = Duration::ZERO;
            renewed = shared.renew_threads().await;
        }
        if let Err(error) = renewed {
            tracing::warn!(error, "leases could not be renewed");
        }
    }
}
