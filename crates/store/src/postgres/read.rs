//! Reading: heads, pages, histories, over the shared past of forks.

use std::collections::HashMap;

use outpost_thread::{Checkpoint, Entry, Fact, Ordinal, Raw, ThreadId, VERSION};
use outpost_wire::SharedError;
use tokio_postgres::{GenericClient, Row, ToStatement};

use super::pool::{Checkout, LONG};
use super::{PostgresStore, big, said, small, told};
use crate::budget::Budget;
use crate::damage::{Damage, DamageKind};
use crate::lease::ClaimMode;
use crate::store::{Batch, DeleteError, Page, PageRequest, ReadError, ThreadHead};
use crate::verify::{Repair, VerifyReport};

/// Rows that are fetched at once.
const ROWS: i64 = 256;

/// Entries of one thread, up to the last one that is shared; none for the thread's own.
#[derive(Debug, Clone)]
pub(super) struct RowSegment {
    pub thread: ThreadId,
    pub until: Option<Ordinal>,
}

#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{}", said(.0))]
    Query(#[from] tokio_postgres::Error),
}

impl From<QueryError> for ReadError {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Read(error) => error,
            QueryError::Query(error) => Self::Database(told(error)),
        }
    }
}

const LINEAGE: &str = "
    with recursive line (id, base, base_ordinal, until, depth) as (
      select id, base, base_ordinal, null::bigint, 0 from outpost_threads where id = $1
      union all
      select t.id, t.base, t.base_ordinal, line.base_ordinal, line.depth + 1
      from line join outpost_threads t on t.id = line.base where line.depth < 10000
    )
    select id, base, base_ordinal, until from line order by depth desc";

/// The segments of a thread, oldest first.
async fn lineage(client: &Checkout, thread: ThreadId) -> Result<Vec<RowSegment>, QueryError> {
    let statement = client.prepare_cached(LINEAGE).await?;
    lineage_by(&***client, &statement, thread).await
}

/// The same within a transaction.
pub(super) async fn lineage_within(transaction: &impl GenericClient, thread: ThreadId) -> Result<Vec<RowSegment>, QueryError> {
    lineage_by(transaction, LINEAGE, thread).await
}

async fn lineage_by<S: ToStatement + Sync + Send + ?Sized>(
    client: &impl GenericClient,
    statement: &S,
    thread: ThreadId,
) -> Result<Vec<RowSegment>, QueryError> {
    let rows = client.query(statement, &[&thread.to_string()]).await?;
    let oldest = rows.first().ok_or(ReadError::NotFound(thread))?;
    if let (Some(base), Some(ordinal)) = (oldest.get::<_, Option<String>>(1), oldest.get::<_, Option<i64>>(2)) {
        let base = base.parse().unwrap_or(thread);
        return Err(ReadError::Lineage { thread, base, ordinal: small(ordinal) }.into());
    }
    let segment = |row: &Row| RowSegment {
        thread: row.get::<_, String>(0).parse().unwrap_or(thread),
        until: row.get::<_, Option<i64>>(3).map(small),
    };
    Ok(rows.iter().map(segment).collect())
}

/// Of a row that begins with its ordinal, time, kind and data.
pub(super) fn entry(row: &Row) -> Entry {
    let (kind, data): (String, String) = (row.get(2), row.get(3));
    // What was written was JSON; what is not any more is carried as what it is.
    let data = Raw::parse(data.as_str()).unwrap_or_else(|_| Raw::from(serde_json::Value::String(data)));
    Entry { ordinal: small(row.get(0)), at: small(row.get(1)), fact: Fact::read(VERSION, &kind, data) }
}

impl PostgresStore {
    pub async fn head(&self, thread: ThreadId) -> Result<ThreadHead, ReadError> {
        let client = self.client().await.map_err(ReadError::Database)?;
        let failed = |error: tokio_postgres::Error| ReadError::Database(told(error));
        let id = thread.to_string();
        let statement = client.prepare_cached("select last, bytes from outpost_threads where id = $1").await.map_err(failed)?;
        let row = client.query_opt(&statement, &[&id]).await.map_err(failed)?;
        let row = row.ok_or(ReadError::NotFound(thread))?;
        let text = "select seq, at, kind, data from outpost_entries where thread = $1 order by seq limit 1";
        let statement = client.prepare_cached(text).await.map_err(failed)?;
        let first = client.query_opt(&statement, &[&id]).await.map_err(failed)?.as_ref().map(entry);
        let last = small(row.get(0));
        Ok(ThreadHead { thread, first, last, sum: String::new(), durable: last, bytes: small(row.get(1)), damage: Vec::new() })
    }

    pub async fn page(&self, thread: ThreadId, request: PageRequest) -> Result<Page, ReadError> {
        let client = self.client().await.map_err(ReadError::Database)?;
        let segments = lineage(&client, thread).await?;
        let mut budget = Budget::new(request);
        let mut entries = Vec::new();
        for segment in segments.iter().rev() {
            let mut before = [request.before, segment.until.map(|until| until + 1)].into_iter().flatten().min().map_or(i64::MAX, big);
            loop {
                let text = "select seq, at, kind, data from outpost_entries where thread = $1 and seq < $2 order by seq desc limit $3";
                let statement = client.prepare_cached(text).await.map_err(QueryError::from)?;
                let rows = client.query(&statement, &[&segment.thread.to_string(), &before, &ROWS]).await.map_err(QueryError::from)?;
                for row in &rows {
                    let (kind, data): (&str, &str) = (row.get(2), row.get(3));
                    if budget.is_spent(kind, data.len()) {
                        entries.reverse();
                        let before = entries.first().map(|entry: &Entry| entry.ordinal);
                        return Ok(Page { entries, damage: Vec::new(), before });
                    }
                    entries.push(entry(row));
                }
                match rows.last() {
                    Some(row) => before = row.get(0),
                    None => break,
                }
            }
        }
        entries.reverse();
        Ok(Page { entries, damage: Vec::new(), before: None })
    }

    pub(crate) async fn history(&self, thread: ThreadId, after: Ordinal) -> Result<PostgresHistory, ReadError> {
        let client = self.client().await.map_err(ReadError::Database)?;
        let mut segments = lineage(&client, thread).await?;
        segments.retain(|segment| segment.until.is_none_or(|until| until > after));
        segments.reverse();
        Ok(PostgresHistory { store: self.clone(), segments, after })
    }

    /// Single entries; those that are not there are left out.
    pub async fn entries(&self, thread: ThreadId, wanted: Vec<Ordinal>) -> Result<Vec<Entry>, ReadError> {
        let client = self.client().await.map_err(ReadError::Database)?;
        let mut found = HashMap::new();
        let mut first = 1;
        for segment in lineage(&client, thread).await? {
            let until = segment.until.unwrap_or(Ordinal::MAX);
            let here: Vec<i64> = wanted.iter().filter(|ordinal| (first..=until).contains(*ordinal)).map(|ordinal| big(*ordinal)).collect();
            first = until.saturating_add(1);
            if here.is_empty() {
                continue;
            }
            let text = "select seq, at, kind, data from outpost_entries where thread = $1 and seq = any($2)";
            let rows = client.query(text, &[&segment.thread.to_string(), &here]).await.map_err(QueryError::from)?;
            found.extend(rows.iter().map(entry).map(|entry| (entry.ordinal, entry)));
        }
        Ok(wanted.iter().filter_map(|ordinal| found.get(ordinal).cloned()).collect())
    }

    pub async fn threads(&self) -> Result<Vec<ThreadId>, ReadError> {
        let client = self.client().await.map_err(ReadError::Database)?;
        let rows = client.query("select id from outpost_threads where born", &[]).await.map_err(QueryError::from)?;
        Ok(rows.iter().filter_map(|row| row.get::<_, String>(0).parse().ok()).collect())
    }

    /// A database checks its own pages; what can be checked here is that no ordinal is missing.
    pub async fn verify(&self, thread: ThreadId, known: Option<Ordinal>) -> Result<VerifyReport, ReadError> {
        let client = self.0.pool.get_for(LONG).await.map_err(ReadError::Database)?;
        let segments = lineage(&client, thread).await?;
        let last = self.head(thread).await?.last;
        let mut verdict = VerifyReport { thread, entries: 0, last, bytes: 0, damage: Vec::new(), given_up: 0 };
        let mut expected = 1;
        for segment in &segments {
            let text = "select count(*), coalesce(min(seq), 0), coalesce(sum(octet_length(data)), 0)::bigint
                        from outpost_entries where thread = $1 and seq >= $2 and seq <= $3";
            let (from, until) = (expected, segment.until.unwrap_or(last));
            let row = client.query_one(text, &[&segment.thread.to_string(), &big(from), &big(until)]).await.map_err(QueryError::from)?;
            let (count, bytes) = (small(row.get(0)), small(row.get(2)));
            if count < (until + 1).saturating_sub(from) {
                let damage = Damage { from, to: until, offset: 0, bytes: 0, what: DamageKind::Missing };
                verdict.damage.push((segment.thread, damage));
            }
            verdict.entries += count;
            verdict.bytes += bytes;
            expected = until + 1;
        }
        if let Some(to) = known.filter(|known| *known > last) {
            verdict.damage.push((thread, Damage { from: last + 1, to, offset: 0, bytes: 0, what: DamageKind::CutOff }));
        }
        Ok(verdict)
    }

    /// The database repairs itself or asks its administrator; the lease is asked for all the same.
    pub async fn repair(&self, thread: ThreadId, mode: ClaimMode) -> Result<Repair, DeleteError> {
        let lease = self.claim(thread, mode).await?;
        self.release(lease).await;
        Ok(Repair { damage: Vec::new(), kept: None })
    }

    pub async fn put_checkpoint(&self, checkpoint: &Checkpoint) -> Result<(), ReadError> {
        let client = self.client().await.map_err(ReadError::Database)?;
        let content = checkpoint.encode().map_err(|error| ReadError::Database(SharedError::new(error)))?;
        let text = "insert into outpost_checkpoints (thread, seq, content) values ($1, $2, $3)
                    on conflict (thread) do update set seq = $2, content = $3";
        let (id, ordinal) = (checkpoint.thread.id.to_string(), big(checkpoint.ordinal));
        client.execute(text, &[&id, &ordinal, &content]).await.map_err(QueryError::from)?;
        Ok(())
    }

    pub async fn checkpoint(&self, thread: ThreadId) -> Option<Checkpoint> {
        let client = self.client().await.ok()?;
        let text =
            "select c.content from outpost_checkpoints c join outpost_threads t on t.id = c.thread where t.id = $1 and c.seq <= t.last";
        let statement = client.prepare_cached(text).await.ok()?;
        let content: Vec<u8> = client.query_opt(&statement, &[&thread.to_string()]).await.ok()??.get(0);
        Checkpoint::decode(&content).ok()
    }
}

/// A history that is read forwards.
pub struct PostgresHistory {
    store: PostgresStore,
    /// Newest first; the last one is read.
    segments: Vec<RowSegment>,
    after: Ordinal,
}

impl PostgresHistory {
    pub(crate) async fn next(&mut self) -> Result<Option<Batch>, ReadError> {
        let client = self.store.client().await.map_err(ReadError::Database)?;
        while let Some(segment) = self.segments.last() {
            let text = "select seq, at, kind, data from outpost_entries where thread = $1 and seq > $2 and seq <= $3 order by seq limit $4";
            let statement = client.prepare_cached(text).await.map_err(QueryError::from)?;
            let (after, until) = (big(self.after), segment.until.map_or(i64::MAX, big));
            let rows = client.query(&statement, &[&segment.thread.to_string(), &after, &until, &ROWS]).await.map_err(QueryError::from)?;
            let entries: Vec<Entry> = rows.iter().map(entry).collect();
            match entries.last() {
                Some(last) => {
                    self.after = last.ordinal;
                    return Ok(Some(Batch { entries, damage: Vec::new() }));
                }
                None => drop(self.segments.pop()),
            }
        }
        Ok(None)
    }
}
