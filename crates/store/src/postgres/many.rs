//! Many threads at once: what an overview tells of them, in a number of statements that does not grow with theirs.

use std::collections::HashMap;

use outpost_thread::{Checkpoint, Entry, Ordinal, ThreadId};

use super::PostgresStore;
use super::lease::{HOLDERS, current};
use super::read::{QueryError, RowSegment, entry};
use super::{big, small};
use crate::store::{Batch, ReadError, ThreadStanding};

/// Rows that are fetched at once, of all threads together.
const ROWS: usize = 1024;

/// The segments of each thread, its own first.
const LINEAGES: &str = "
    with recursive line (root, id, base, base_ordinal, until, depth) as (
      select id, id, base, base_ordinal, null::bigint, 0 from outpost_threads where id = any($1)
      union all
      select line.root, t.id, t.base, t.base_ordinal, line.base_ordinal, line.depth + 1
      from line join outpost_threads t on t.id = line.base where line.depth < 10000
    )
    select root, id, base is null, until from line order by root, depth";

/// The newest state that was kept of each segment, or of what is shared of it.
const CHECKPOINTS: &str = "
    select s.n, c.content
    from unnest($1::text[], $2::bigint[]) with ordinality s (thread, until, n)
    join outpost_threads t on t.id = s.thread
    join outpost_checkpoints c on c.thread = s.thread and c.seq <= least(s.until, t.last)";

const NEXT: &str = "
    select e.seq, e.at, e.kind, e.data, s.n
    from unnest($1::text[], $2::bigint[], $3::bigint[]) with ordinality s (thread, after, until, n)
    cross join lateral (
      select seq, at, kind, data from outpost_entries
      where thread = s.thread and seq > s.after and seq <= s.until order by seq limit $4
    ) e
    order by s.n, e.seq";

/// Histories of many threads that are read forwards, beside each other.
pub(crate) struct PostgresHistories {
    store: PostgresStore,
    /// Those that are not at their end.
    readings: Vec<Reading>,
    checkpoints: Vec<(ThreadId, Option<Checkpoint>)>,
}

struct Reading {
    thread: ThreadId,
    /// Newest first; the last one is read.
    segments: Vec<RowSegment>,
    after: Ordinal,
}

impl PostgresStore {
    pub(crate) async fn standings(&self, threads: &[ThreadId]) -> Result<HashMap<ThreadId, ThreadStanding>, ReadError> {
        let client = self.client().await.map_err(ReadError::Database)?;
        let statement = client.prepare_cached(HOLDERS).await.map_err(QueryError::from)?;
        let rows = client.query(&statement, &[&texts(threads)]).await.map_err(QueryError::from)?;
        let standing = |row: &tokio_postgres::Row| {
            let (id, summary): (String, Option<String>) = (row.get(9), row.get(10));
            let summary = summary.and_then(|text| serde_json::from_str(&text).ok());
            Some((id.parse().ok()?, ThreadStanding { summary, holder: current(row) }))
        };
        Ok(rows.iter().filter_map(standing).collect())
    }

    /// The histories of these threads, each from the newest state that was kept of it or of what it shares. One that is not there, or
    /// whose past is not, is left out.
    pub(crate) async fn histories(&self, threads: &[ThreadId]) -> Result<PostgresHistories, ReadError> {
        let client = self.client().await.map_err(ReadError::Database)?;
        let statement = client.prepare_cached(LINEAGES).await.map_err(QueryError::from)?;
        let rows = client.query(&statement, &[&texts(threads)]).await.map_err(QueryError::from)?;
        let mut lineages: HashMap<ThreadId, Vec<RowSegment>> = HashMap::new();
        let mut whole: Vec<ThreadId> = Vec::new();
        for row in &rows {
            let (root, id): (String, String) = (row.get(0), row.get(1));
            let (Ok(root), Ok(thread)) = (root.parse(), id.parse()) else { continue };
            lineages.entry(root).or_default().push(RowSegment { thread, until: row.get::<_, Option<i64>>(3).map(small) });
            if row.get(2) {
                whole.push(root);
            }
        }
        let mut readings: Vec<Reading> = Vec::new();
        for thread in whole {
            readings.extend(lineages.remove(&thread).map(|segments| Reading { thread, segments, after: 0 }));
        }
        let segments = || readings.iter().flat_map(|reading| &reading.segments);
        let ids: Vec<String> = segments().map(|segment| segment.thread.to_string()).collect();
        let until: Vec<i64> = segments().map(|segment| segment.until.map_or(i64::MAX, big)).collect();
        let statement = client.prepare_cached(CHECKPOINTS).await.map_err(QueryError::from)?;
        let rows = client.query(&statement, &[&ids, &until]).await.map_err(QueryError::from)?;
        let mut kept: HashMap<usize, Vec<u8>> = rows.iter().map(|row| (place(row.get(0)), row.get(1))).collect();
        let mut checkpoints = Vec::new();
        let mut number = 0;
        for reading in &mut readings {
            let mut newest = None;
            for _ in &reading.segments {
                let found = kept.remove(&number);
                number += 1;
                // The nearest one counts, as where one thread is read.
                newest = newest.or_else(|| Checkpoint::decode(&found?).ok());
            }
            reading.after = newest.as_ref().map_or(0, |checkpoint| checkpoint.thread.last);
            reading.segments.retain(|segment| segment.until.is_none_or(|until| until > reading.after));
            checkpoints.push((reading.thread, newest));
        }
        drop(client);
        Ok(PostgresHistories { store: self.clone(), readings, checkpoints })
    }
}

impl PostgresHistories {
    /// Where each thread begins.
    pub(crate) fn take_checkpoints(&mut self) -> Vec<(ThreadId, Option<Checkpoint>)> {
        std::mem::take(&mut self.checkpoints)
    }

    /// The next pieces of those that have more; None when all are read.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<(ThreadId, Batch)>>, ReadError> {
        if self.readings.is_empty() {
            return Ok(None);
        }
        // What threads that were read leave is the share of the others.
        let most = (ROWS / self.readings.len()).max(1);
        let segments = || self.readings.iter().filter_map(|reading| reading.segments.last());
        let ids: Vec<String> = segments().map(|segment| segment.thread.to_string()).collect();
        let until: Vec<i64> = segments().map(|segment| segment.until.map_or(i64::MAX, big)).collect();
        let after: Vec<i64> = self.readings.iter().map(|reading| big(reading.after)).collect();
        let client = self.store.client().await.map_err(ReadError::Database)?;
        let statement = client.prepare_cached(NEXT).await.map_err(QueryError::from)?;
        let rows = client.query(&statement, &[&ids, &after, &until, &big(most as u64)]).await.map_err(QueryError::from)?;
        let mut read: Vec<Vec<Entry>> = self.readings.iter().map(|_| Vec::new()).collect();
        for row in &rows {
            if let Some(entries) = read.get_mut(place(row.get(4))) {
                entries.push(entry(row));
            }
        }
        let mut batches = Vec::new();
        for (reading, entries) in self.readings.iter_mut().zip(read) {
            if entries.len() < most {
                reading.segments.pop();
            }
            if let Some(last) = entries.last() {
                reading.after = last.ordinal;
                batches.push((reading.thread, Batch { entries, damage: Vec::new() }));
            }
        }
        self.readings.retain(|reading| !reading.segments.is_empty());
        Ok(Some(batches))
    }
}

fn texts(threads: &[ThreadId]) -> Vec<String> {
    threads.iter().map(ToString::to_string).collect()
}

/// Where in the arrays of a statement a row comes from: databases count from one.
fn place(number: i64) -> usize {
    usize::try_from(number - 1).unwrap_or(usize::MAX)
}
