//! Who may write a thread.

use outpost_thread::ThreadId;
use outpost_wire::SharedError;
use tokio_postgres::Row;

use super::migrate::KNOWN;
use super::pool::Checkout;
use super::shared::TELL_TAKEOVER;
use super::{Held, PostgresError, PostgresStore, big, small, told};
use crate::lease::{ClaimError, ClaimMode, Lease, LeaseHolder};
use crate::local::lock;
use crate::orphan::{OrphanedThread, ThreadTenure, ThreadWork, places};
use crate::summary::ThreadSummary;

const CREATE: &str = "
    insert into outpost_threads (id, first, last, epoch, instance, host, pid, since, expires, summary)
    values ($1, 1, 0, 1, $2, $3, $4, now(), now() + make_interval(secs => $5), $6)
    on conflict (id) do update
      set epoch = outpost_threads.epoch + 1, instance = $2, host = $3, pid = $4, since = now(), expires = now() + make_interval(secs => $5)
      where not outpost_threads.born and outpost_threads.last = 0
        and coalesce((select n.expires <= now() from outpost_nodes n where n.instance = outpost_threads.instance), outpost_threads.expires <= now())
    returning epoch";

/// A node that had the thread for minutes was not ended by it.
const CLAIM: &str = "
    update outpost_threads
    set epoch = epoch + 1, instance = $2, host = $3, pid = $4, since = now(), expires = now() + make_interval(secs => $5),
        claims = case when not $7 then 0
                      when (select n.expires - outpost_threads.since > interval '5 minutes' from outpost_nodes n where n.instance = outpost_threads.instance) then 1
                      else claims + 1 end
    where id = $1 and not exists (select from outpost_migrations where oldest > $9) and (not $7 or work) and ($6 or instance is null or (instance = $2 and $8)
      or coalesce((select n.expires <= now() from outpost_nodes n where n.instance = outpost_threads.instance), expires <= now()))
    returning epoch, summary, work,
      (select e.kind = 'inputReceived' from outpost_entries e
       where e.thread = outpost_threads.id and e.kind in ('inputReceived', 'turnStarted') order by e.seq desc limit 1)";

/// Those that never had input leave nothing behind. Their rows are locked before it is looked which ones had: an append that was given up on
/// may still be carried out, and a thread that begins with it would be neither removed nor free.
const GIVE_BACK: &str = "
    with given (id, epoch) as (select * from unnest($1::text[], $2::bigint[])),
         own as (select t.id, t.born from outpost_threads t join given g on t.id = g.id and t.epoch = g.epoch for update of t),
         gone as (delete from outpost_threads t using own where t.id = own.id and not own.born)
    update outpost_threads t set instance = null, expires = null from own where t.id = own.id and own.born";

/// The last holders of threads, whether their leases are over, what lists show of the threads, and whether nodes take them up once they are
/// free, as they look for it themselves.
pub(super) const HOLDERS: &str = "
    select t.instance, t.host, t.pid, (extract(epoch from t.since) * 1000)::bigint, (extract(epoch from now() - t.since) * 1000)::bigint,
           (extract(epoch from t.expires) * 1000)::bigint, t.instance is null or coalesce(n.expires <= now(), t.expires <= now(), true),
           n.name, n.address, t.id, case when t.born then t.summary end,
           coalesce(t.work and n.adopts, false), case when n.expires - t.since > interval '5 minutes' then 0 else t.claims end
    from outpost_threads t left join outpost_nodes n on n.instance = t.instance where t.id = any($1)";

impl PostgresStore {
    pub async fn create(&self, thread: ThreadId) -> Result<Lease, ClaimError> {
        self.enter().await.map_err(ClaimError::Database)?;
        let client = self.client().await.map_err(ClaimError::Database)?;
        let (config, pid, seconds) = (&self.0.config, i64::from(std::process::id()), self.lease_seconds());
        let summary = ThreadSummary::new(thread);
        let text = encode(&summary)?;
        let statement = client.prepare_cached(CREATE).await.map_err(failed)?;
        let made = client
            .query_opt(&statement, &[&thread.to_string(), &config.instance, &config.host, &pid, &seconds, &text])
            .await
            .map_err(failed)?;
        let epoch = small(made.ok_or(ClaimError::Exists(thread))?.get(0));
        self.hold(thread, Held { epoch, summary, work: ThreadWork::default() });
        Ok(Lease { thread, epoch })
    }

    pub async fn claim(&self, thread: ThreadId, mode: ClaimMode) -> Result<Lease, ClaimError> {
        self.enter().await.map_err(ClaimError::Database)?;
        let client = self.client().await.map_err(ClaimError::Database)?;
        let (config, pid, seconds) = (&self.0.config, i64::from(std::process::id()), self.lease_seconds());
        let statement = client.prepare_cached(CLAIM).await.map_err(failed)?;
        let (by_force, is_orphaned) = (mode == ClaimMode::TakeOver, mode == ClaimMode::Orphaned);
        // One that could not be given back is ours to take.
        let is_unheld = !lock(&self.0.held).contains_key(&thread);
        let claimed = client
            .query_opt(
                &statement,
                &[&thread.to_string(), &config.instance, &config.host, &pid, &seconds, &by_force, &is_orphaned, &is_unheld, &KNOWN],
            )
            .await
            .map_err(failed)?;
        let Some(row) = claimed else {
            let row = client.query_opt(HOLDERS, &[&vec![thread.to_string()]]).await.map_err(failed)?.ok_or(ClaimError::NotFound(thread))?;
            self.check_version(&client).await.map_err(ClaimError::Database)?;
            let age_ms = small(row.get::<_, Option<i64>>(4).unwrap_or(0));
            return Err(ClaimError::Held { thread, holder: Box::new(holder(&row)), age_ms });
        };
        let epoch = small(row.get(0));
        let summary = serde_json::from_str(row.get(1)).unwrap_or_else(|_| ThreadSummary::new(thread));
        self.hold(thread, Held { epoch, summary, work: ThreadWork::known(row.get(2), row.get::<_, Option<bool>>(3) == Some(true)) });
        if by_force && let Err(error) = client.execute(TELL_TAKEOVER, &[]).await {
            tracing::debug!(%thread, %error, "the program that had this thread is not told; it notices when it renews its leases");
        }
        Ok(Lease { thread, epoch })
    }

    pub async fn holder(&self, thread: ThreadId) -> Result<Option<LeaseHolder>, ClaimError> {
        Ok(current(&self.holder_row(thread).await?))
    }

    /// Who has a thread; if no program does, what decides which node goes on with it.
    pub async fn tenure(&self, thread: ThreadId) -> Result<ThreadTenure, ClaimError> {
        let row = self.holder_row(thread).await?;
        Ok(match current(&row) {
            Some(holder) => ThreadTenure::Held(Box::new(holder)),
            None => {
                let (host, selection) = places(row.get(10), row.get(1));
                ThreadTenure::Orphaned(Box::new(OrphanedThread {
                    thread,
                    has_work: row.get(11),
                    claims: small(row.get(12)),
                    host,
                    selection,
                }))
            }
        })
    }

    /// The row of [`HOLDERS`].
    async fn holder_row(&self, thread: ThreadId) -> Result<Row, ClaimError> {
        let client = self.client().await.map_err(ClaimError::Database)?;
        let statement = client.prepare_cached(HOLDERS).await.map_err(failed)?;
        client.query_opt(&statement, &[&vec![thread.to_string()]]).await.map_err(failed)?.ok_or(ClaimError::NotFound(thread))
    }

    /// Whether the tables are still those that this program may write.
    pub(super) async fn check_version(&self, client: &Checkout) -> Result<(), SharedError> {
        let text = "select max(version), max(oldest) from outpost_migrations";
        let row = client.query_one(text, &[]).await.map_err(told)?;
        let (version, oldest): (Option<i64>, Option<i64>) = (row.get(0), row.get(1));
        if oldest.is_some_and(|oldest| oldest > KNOWN) {
            return Err(SharedError::new(PostgresError::Newer { version: version.unwrap_or_default(), known: KNOWN }));
        }
        Ok(())
    }

    /// Holds it no longer, and leaves it to the node that takes it up when the lease of this program is over.
    pub fn hand_over(&self, lease: &Lease) {
        lock(&self.0.held).retain(|thread, held| *thread != lease.thread || held.epoch != lease.epoch);
    }

    /// Leaves a thread that cannot go on here now to whichever node takes it up next, if it has work to do.
    pub async fn give_up(&self, lease: Lease) {
        let has_work = lock(&self.0.held).get(&lease.thread).is_some_and(|held| held.epoch == lease.epoch && held.has_work());
        if self.0.config.adopts && has_work {
            self.hand_over(&lease);
        } else {
            self.release(lease).await;
        }
    }

    /// Begins to count anew how often the thread is taken up.
    pub async fn forget_claims(&self, lease: &Lease) {
        let text = "update outpost_threads set claims = 0 where id = $1 and epoch = $2";
        let forgotten = match self.client().await {
            Ok(client) => client.execute(text, &[&lease.thread.to_string(), &big(lease.epoch)]).await.map_err(told),
            Err(error) => Err(error),
        };
        if let Err(error) = forgotten {
            tracing::debug!(thread = %lease.thread, %error, "a thread that only waits counts as taken up once more");
        }
    }

    /// Leases that are given back at the same time, as when a node ends, go together: while one statement is out, the next ones gather.
    pub async fn release(&self, lease: Lease) {
        // Another task of this program may have taken it over since.
        lock(&self.0.held).retain(|thread, held| *thread != lease.thread || held.epoch != lease.epoch);
        lock(&self.0.returns).push(lease);
        let _turn = self.0.row_locks.lock().await;
        let leases = std::mem::take(&mut *lock(&self.0.returns));
        if leases.is_empty() {
            // The task before this one took it along.
            return;
        }
        if let Err(error) = self.give_back(&leases).await {
            let threads: Vec<String> = leases.iter().map(|lease| lease.thread.to_string()).collect();
            tracing::warn!(?threads, %error, "leases could not be given back; it is tried again");
            lock(&self.0.unreturned).extend(leases);
        }
    }

    async fn give_back(&self, leases: &[Lease]) -> Result<(), SharedError> {
        let client = self.client().await?;
        let ids: Vec<String> = leases.iter().map(|lease| lease.thread.to_string()).collect();
        let epochs: Vec<i64> = leases.iter().map(|lease| big(lease.epoch)).collect();
        let statement = client.prepare_cached(GIVE_BACK).await.map_err(told)?;
        client.execute(&statement, &[&ids, &epochs]).await.map(drop).map_err(told)
    }
}

/// Of a row of [`HOLDERS`], if its lease is not over.
pub(super) fn current(row: &Row) -> Option<LeaseHolder> {
    let is_over: bool = row.get(6);
    (!is_over).then(|| holder(row))
}

/// Of a row of [`HOLDERS`].
fn holder(row: &Row) -> LeaseHolder {
    LeaseHolder {
        instance: row.get::<_, Option<String>>(0).unwrap_or_default(),
        host: row.get::<_, Option<String>>(1).unwrap_or_default(),
        pid: row.get::<_, Option<i64>>(2).and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0),
        since: small(row.get::<_, Option<i64>>(3).unwrap_or(0)),
        renewed: small(row.get::<_, Option<i64>>(5).unwrap_or(0)),
        node: row.get(7),
        address: row.get(8),
    }
}

fn encode(summary: &ThreadSummary) -> Result<String, ClaimError> {
    serde_json::to_string(summary).map_err(|error| ClaimError::Database(SharedError::new(error)))
}

fn failed(error: tokio_postgres::Error) -> ClaimError {
    ClaimError::Database(told(error))
}
