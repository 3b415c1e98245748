//! The programs that use one database: each has a row with a lease, and the leases of its threads end with it. A program that adopts
//! takes up threads of others of its kind that died.

use std::collections::{HashMap, HashSet};
use std::sync::Weak;
use std::time::Duration;

use outpost_thread::ThreadId;
use outpost_wire::SharedError;
use tokio::time::{Instant, sleep};

use super::{PING, PostgresStore, Shared, small, told};
use crate::lease::{ClaimError, Lease};
use crate::local::lock;
use crate::orphan::{OrphanFate, OrphanedThread, PassedOrphans, places};

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
const RENEW: &str =
    "update outpost_threads set expires = now() + make_interval(secs => $1) where instance = $2 and id = any($3) returning id";

/// So soon a lease is tried again that could not be renewed.
const AGAIN: Duration = Duration::from_millis(200);

/// Whole trees of agents by their roots; an agent by itself where the thread that made it has nothing to do. Each node begins elsewhere in
/// the list, and looks only at what it has not passed over. A thread whose claim was carried out while the answer was lost is this program's,
/// and no driver has it; what a driver has is no orphan here, also while the lease of this program could not be renewed.
const ORPHANS: &str = "
    select t.id, case when n.expires - t.since > interval '5 minutes' then 0 else t.claims end, t.host, t.summary, t.instance = $1, t.epoch
    from outpost_threads t join outpost_nodes n on n.instance = t.instance
    where t.work and n.adopts and case when t.instance = $1 then t.id <> all($3) else n.expires <= now() end
      and (t.parent is null or not exists (select from outpost_threads p where p.id = t.parent and p.work))
      and not exists (select from unnest($4::text[]) passed where passed = t.id || ' ' || t.epoch)
    order by md5(t.id || $1) limit $2";

/// So many of them are read with one statement.
const AT_A_TIME: i64 = 64;

/// A program that ends because it was told to was not ended by its threads: how often they were taken up is counted anew.
const LEAVE: &str = "
    with own as (update outpost_nodes set expires = now() where instance = $1 returning instance)
    update outpost_threads t set claims = 0 from own where t.instance = own.instance and t.work and t.claims > 0";

/// Rows of programs that ended long ago, and whose threads were all given back.
const SWEEP: &str = "
    delete from outpost_nodes n
    where n.expires < now() - interval '1 day' and not exists (select from outpost_threads t where t.instance = n.instance and t.work)";

impl PostgresStore {
    /// Says that this program is there, once.
    pub(super) async fn enter(&self) -> Result<(), SharedError> {
        let enter = async {
            self.client().await?.execute(SWEEP, &[]).await.map_err(told)?;
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
        match tokio::time::timeout(PING, super::notes::flush(&self.0)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "changes could not be told"),
            Err(_) => tracing::debug!("the database does not answer, and changes could not be told"),
        }
        let mut is_over = self.0.is_over.lock().await;
        *is_over = true;
        let left = async {
            let client = self.0.own_pool.get_for(PING).await?;
            client.execute(LEAVE, &[&self.0.config.instance]).await.map(drop).map_err(told)
        };
        match tokio::time::timeout(PING, left).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the lease of this program could not be given back; it will expire"),
            Err(_) => tracing::warn!("the database does not answer, and the lease of this program could not be given back; it will expire"),
        }
    }

    /// Whether another program may be there that would take up the threads of this one. A database that does not answer cannot be told either
    /// that their turns were interrupted: they are left to the node that reaches it first.
    pub async fn has_heirs(&self) -> bool {
        if !self.0.config.adopts {
            return false;
        }
        let asked = async {
            let client = self.0.own_pool.get_for(PING).await?;
            let text = "select exists (select from outpost_nodes where adopts and expires > now() and instance <> $1)";
            client.query_one(text, &[&self.0.config.instance]).await.map(|row| row.get(0)).map_err(told)
        };
        match tokio::time::timeout(PING, asked).await {
            Ok(Ok(has_heirs)) => has_heirs,
            Ok(Err(_)) | Err(_) => true,
        }
    }

    /// Threads with work to do whose node died, and what becomes of each here: at most so many that are taken up, and those that are not
    /// and were not passed over before.
    pub async fn orphans(&self, most: usize, passed: &mut PassedOrphans) -> Result<Vec<(OrphanedThread, OrphanFate)>, ClaimError> {
        let client = self.client().await.map_err(ClaimError::Database)?;
        let failed = |error: tokio_postgres::Error| ClaimError::Database(told(error));
        let statement = client.prepare_cached(ORPHANS).await.map_err(failed)?;
        let held: Vec<String> = lock(&self.0.held).keys().map(ToString::to_string).collect();
        let (mut seen, mut unheld, mut orphans, mut ours) = (passed.names(), HashSet::new(), Vec::new(), 0);
        let mut own_parked = Vec::new();
        loop {
            let rows = client.query(&statement, &[&self.0.config.instance, &AT_A_TIME, &held, &seen]).await.map_err(failed)?;
            for row in &rows {
                if ours == most {
                    break;
                }
                let (id, epoch): (String, i64) = (row.get(0), row.get(5));
                seen.push(format!("{id} {epoch}"));
                let Ok(thread) = id.parse::<ThreadId>() else { continue };
                let is_own: bool = row.get(4);
                // One that is just being claimed or given back looks the same for a moment.
                if is_own && unheld.insert(thread) && !lock(&self.0.unheld).contains(&thread) {
                    continue;
                }
                let (host, selection) = places(row.get(3), row.get(2));
                let orphan = OrphanedThread { thread, has_work: true, claims: small(row.get(1)), host, selection };
                let fate = orphan.fate(self.host());
                if is_own && fate == OrphanFate::Parked {
                    own_parked.push(Lease { thread, epoch: small(epoch) });
                }
                match fate {
                    OrphanFate::TakeUp => ours += 1,
                    OrphanFate::Idle | OrphanFate::Elsewhere | OrphanFate::Parked => passed.pass(thread, small(epoch)),
                }
                orphans.push((orphan, fate));
            }
            if ours == most || i64::try_from(rows.len()).is_ok_and(|found| found < AT_A_TIME) {
                break;
            }
        }
        *lock(&self.0.unheld) = unheld;
        // The lease of this program goes on: a user who tries such a thread once more would find it held.
        for lease in own_parked {
            self.release(lease).await;
        }
        Ok(orphans)
    }

    /// Waits until others have taken threads that are held here: a thread in which nothing is written does not notice by itself. Told for
    /// as long as they are held.
    pub async fn taken_threads(&self) -> Vec<ThreadId> {
        loop {
            self.0.is_taken.notified().await;
            let taken = std::mem::take(&mut *lock(&self.0.taken));
            if !taken.is_empty() {
                return taken;
            }
        }
    }

    pub fn host(&self) -> &str {
        &self.0.config.host
    }

    /// How long the lease of a node holds.
    pub fn node_lease(&self) -> Duration {
        self.0.config.node_lease
    }

    /// The name of this start of the program among the nodes.
    pub fn instance(&self) -> &str {
        &self.0.config.instance
    }

    /// Says where this node is reached.
    pub async fn announce(&self, address: NodeAddress) -> Result<(), SharedError> {
        *lock(&self.0.node_address) = address;
        self.enter().await?;
        self.0.beat().await
    }

    /// The other nodes that live and have an address, by their instances.
    pub async fn nodes(&self) -> Result<Vec<(String, NodeAddress)>, SharedError> {
        let text = "select instance, coalesce(name, host), address from outpost_nodes
                    where expires > now() and address is not null and instance <> $1 order by instance";
        let rows = self.client().await?.query(text, &[&self.0.config.instance]).await.map_err(told)?;
        Ok(rows.iter().map(|row| (row.get(0), NodeAddress { name: row.get(1), url: row.get(2) })).collect())
    }
}

impl Shared {
    async fn beat(&self) -> Result<(), SharedError> {
        let (config, pid) = (&self.config, i64::from(std::process::id()));
        // A connection that died without a word is noticed early enough for another one to renew the lease.
        let client = self.own_pool.get_for(config.node_lease / 3).await?;
        let NodeAddress { name, url } = lock(&self.node_address).clone();
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
            [&config.instance, &config.host, &pid, &config.adopts, &config.node_lease.as_secs_f64(), &url, &name];
        client.execute(BEAT, &values).await.map(drop).map_err(told)
    }

    async fn renew_threads(&self) -> Result<(), SharedError> {
        // Only what is held: a lease that could not be given back is to expire.
        let held: HashMap<ThreadId, u64> = lock(&self.held).iter().map(|(thread, held)| (*thread, held.epoch)).collect();
        if held.is_empty() {
            return Ok(());
        }
        let _turn = self.row_locks.lock().await;
        let client = self.pool.get().await?;
        let (seconds, ids) = (self.config.lease.as_secs_f64(), held.keys().map(ToString::to_string).collect::<Vec<_>>());
        let renewed = client.query(RENEW, &[&seconds, &self.config.instance, &ids]).await.map_err(told)?;
        let renewed: HashSet<String> = renewed.iter().map(|row| row.get(0)).collect();
        // What was given back or claimed anew meanwhile is not lost.
        let is_held = |thread: &ThreadId, epoch: u64| lock(&self.held).get(thread).is_some_and(|held| held.epoch == epoch);
        let lost = held.into_iter().filter(|(thread, epoch)| !renewed.contains(&thread.to_string()) && is_held(thread, *epoch));
        let lost: Vec<ThreadId> = lost.map(|(thread, _)| thread).collect();
        if !lost.is_empty() {
            lock(&self.taken).extend(lost);
            self.is_taken.notify_one();
        }
        Ok(())
    }
}

/// Renews the lease of this program until the store is gone. Nothing else is waited for meanwhile: what hangs must not end the lease.
pub(super) async fn live(shared: Weak<Shared>) {
    let (mut last, mut is_late) = (Instant::now(), false);
    loop {
        let Some(lease) = shared.upgrade().map(|shared| shared.config.node_lease) else { return };
        sleep(if is_late { AGAIN.min(lease / 3) } else { lease / 3 }).await;
        let Some(shared) = shared.upgrade() else { return };
        if !shared.entered.initialized() {
            continue;
        }
        let is_over = shared.is_over.lock().await;
        if *is_over {
            return;
        }
        match shared.beat().await {
            Ok(()) => {
                // Others may have taken threads while this program was not seen to live.
                if last.elapsed() >= lease {
                    shared.takeovers.notify_one();
                }
                (last, is_late) = (Instant::now(), false);
            }
            Err(error) if is_late => tracing::debug!(%error, "the lease of this program could not be renewed"),
            Err(error) => {
                is_late = true;
                tracing::warn!(%error, "the lease of this program could not be renewed; it is tried again");
            }
        }
    }
}

/// Renews the leases of threads until the store is gone, and gives back what could not be given back before. They are looked at at once when
/// another program has taken a thread by force.
pub(super) async fn renew(shared: Weak<Shared>) {
    let mut threads = Instant::now();
    loop {
        let Some((pause, taken)) =
            shared.upgrade().map(|shared| (shared.config.node_lease.min(shared.config.lease) / 3, shared.takeovers.clone()))
        else {
            return;
        };
        let is_told = tokio::time::timeout(pause, taken.notified()).await.is_ok();
        let Some(shared) = shared.upgrade() else { return };
        if !shared.entered.initialized() {
            continue;
        }
        if *shared.is_over.lock().await {
            return;
        }
        let unreturned = std::mem::take(&mut *lock(&shared.unreturned));
        for lease in unreturned {
            PostgresStore(shared.clone()).release(lease).await;
        }
        if is_told || threads.elapsed() >= shared.config.lease / 3 {
            match shared.renew_threads().await {
                Ok(()) => threads = Instant::now(),
                Err(error) => tracing::warn!(%error, "the leases of threads could not be renewed"),
            }
        }
    }
}
