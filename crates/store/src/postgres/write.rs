//! Appending, forking, deleting.

use std::time::Duration;

use outpost_thread::{Entry, Fact, ForkBase, ThreadId, VERSION};
use outpost_wire::SharedError;

use tokio::time::{Instant, sleep};

use super::migrate::KNOWN;
use super::pool::{Checkout, LONG};
use super::read::lineage_within;
use super::{Held, PostgresStore, big, plain, small, told};
use crate::blob::{BlobError, Digest};
use crate::lease::{ClaimMode, Lease, LeaseHolder};
use crate::local::{lock, materializes};
use crate::orphan::ThreadWork;
use crate::store::{AppendError, Appended, DeleteError, ForkRequest, ForkStoreError, Need, ReadError};
use crate::summary::ThreadSummary;
use crate::words;

/// The database does not take more words of one entry than about a megabyte.
const WORDS: usize = 256 << 10;

/// One statement: the ordinal and the epoch are compared, the entries and words written, or nothing is done.
const APPEND: &str = "
    with moved as (
      update outpost_threads
      set last = $5, bytes = bytes + $6, born = born or $7, expires = now() + make_interval(secs => $8), created_at = $9, updated_at = $10,
          recency_at = $11, archived = $12, source = $13, cwd = $14, parent = $15, name = $16, summary = $17, work = $24,
          claims = case when $25 then 0 else claims end
      where id = $1 and epoch = $2 and instance = $3 and last = $4 and not exists (select from outpost_migrations where oldest > $26)
      returning id
    ), entries as (
      insert into outpost_entries (thread, seq, at, kind, data)
      select $1, e.seq, e.at, e.kind, e.data
      from unnest($18::bigint[], $19::bigint[], $20::text[], $21::text[]) as e (seq, at, kind, data) where exists (select from moved)
    ), words as (
      insert into outpost_words (thread, seq, words)
      select $1, w.seq, to_tsvector('simple', w.text)
      from unnest($22::bigint[], $23::text[]) as w (seq, text) where exists (select from moved)
    )
    select id from moved";

const FORK: &str = "
    insert into outpost_threads (id, first, last, base, base_ordinal, epoch, instance, host, pid, since, expires, summary)
    values ($1, $2, $3, $4, $3, 1, $5, $6, $7, now(), now() + make_interval(secs => $8), $9)
    on conflict (id) do nothing";

impl PostgresStore {
    /// A database that says that it has something has synced it, so that everything stored is durable.
    pub async fn append(&self, lease: &Lease, entries: Vec<Entry>, _need: Need) -> Result<Appended, AppendError> {
        let Some(first) = entries.first() else {
            let last = self.last(lease.thread).await?;
            return Ok(Appended { entries, last, durable: last });
        };
        let before = first.ordinal.saturating_sub(1);
        let mut expected = first.ordinal;
        for entry in &entries {
            if entry.ordinal != expected {
                return Err(AppendError::Conflict { expected, found: entry.ordinal });
            }
            expected = entry.end() + 1;
        }
        let held = lock(&self.0.held).get(&lease.thread).filter(|held| held.epoch == lease.epoch).cloned();
        let Some(mut held) = held else {
            return Err(self.refusal(&self.client().await.map_err(AppendError::Database)?, lease, before).await);
        };
        let stored = entries.iter().map(|entry| self.clean(entry)).collect::<Result<Vec<_>, _>>()?;
        for entry in &stored {
            held.summary.apply(entry);
            held.work.see(entry.fact.kind());
        }
        let batch = Batch::of(&stored)?;
        let last = held.summary.ordinal;
        let until = Instant::now() + PATIENCE;
        let mut is_doubtful = false;
        loop {
            let written = match self.client().await {
                Ok(client) => self.write(&client, lease, before, &held, &batch).await,
                Err(why) => Err(WriteFailure { error: AppendError::Database(why), may_pass: true }),
            };
            match written {
                Ok(true) => break,
                Ok(false) => {
                    let client = self.client().await.map_err(AppendError::Database)?;
                    let refusal = self.refusal(&client, lease, before).await;
                    // An earlier attempt was written, and its answer was lost: under this lease no other program writes.
                    if is_doubtful && matches!(refusal, AppendError::Conflict { expected, .. } if expected == last + 1) {
                        break;
                    }
                    if matches!(refusal, AppendError::LeaseLost { .. }) {
                        lock(&self.0.held).remove(&lease.thread);
                    }
                    return Err(refusal);
                }
                Err(WriteFailure { error, may_pass }) if may_pass && Instant::now() < until => {
                    tracing::warn!(thread = %lease.thread, %error, "the database is not there; trying again");
                    is_doubtful = true;
                    sleep(AGAIN).await;
                }
                Err(WriteFailure { error, .. }) => return Err(error),
            }
        }
        self.hold(lease.thread, held);
        self.0.notes.add(lease.thread, last);
        Ok(Appended { entries: stored, last, durable: last })
    }

    async fn write(&self, client: &Checkout, lease: &Lease, before: u64, held: &Held, batch: &Batch) -> Result<bool, WriteFailure> {
        let statement = client.prepare_cached(APPEND).await.map_err(WriteFailure::of)?;
        let summary = &held.summary;
        let text = serde_json::to_string(summary)
            .map_err(|error| WriteFailure { error: AppendError::Database(SharedError::new(error)), may_pass: false })?;
        let column = |text: &Option<String>| text.as_deref().map(plain);
        let moved = client
            .query_opt(
                &statement,
                &[
                    &lease.thread.to_string(),
                    &big(lease.epoch),
                    &self.0.config.instance,
                    &big(before),
                    &big(summary.ordinal),
                    &batch.bytes,
                    &batch.gives_birth,
                    &self.lease_seconds(),
                    &big(summary.created_at),
                    &big(summary.updated_at),
                    &big(summary.recency_at),
                    &summary.archived,
                    &column(&summary.source),
                    &column(&summary.cwd),
                    &summary.parent.map(|parent| parent.to_string()),
                    &column(&summary.name),
                    &text,
                    &batch.ordinals,
                    &batch.times,
                    &batch.kinds,
                    &batch.data,
                    &batch.worded,
                    &batch.words,
                    &held.has_work(),
                    &batch.is_progress,
                    &KNOWN,
                ],
            )
            .await
            .map_err(WriteFailure::of)?;
        Ok(moved.is_some())
    }

    /// Why nothing was written.
    async fn refusal(&self, client: &Checkout, lease: &Lease, before: u64) -> AppendError {
        if let Err(why) = self.check_version(client).await {
            return AppendError::Database(why);
        }
        let text = "select t.epoch, t.instance, t.host, t.pid, t.last, n.name, n.address
                    from outpost_threads t left join outpost_nodes n on n.instance = t.instance where t.id = $1";
        let row = match client.query_opt(text, &[&lease.thread.to_string()]).await {
            Ok(row) => row,
            Err(error) => return failed(error),
        };
        let lost = |holder: String| AppendError::LeaseLost { thread: lease.thread, holder };
        let Some(row) = row else { return lost("a program that removed the thread".into()) };
        let instance: Option<String> = row.get(1);
        if small(row.get(0)) != lease.epoch || instance.as_deref() != Some(self.0.config.instance.as_str()) {
            let Some(instance) = instance else { return lost("no program: it was given back".into()) };
            let pid = row.get::<_, Option<i64>>(3).and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
            let host = row.get::<_, Option<String>>(2).unwrap_or_default();
            let holder = LeaseHolder { instance, host, pid, since: 0, renewed: 0, node: row.get(5), address: row.get(6) };
            return lost(holder.to_string());
        }
        AppendError::Conflict { expected: small(row.get(4)) + 1, found: before + 1 }
    }

    async fn last(&self, thread: ThreadId) -> Result<u64, AppendError> {
        let client = self.client().await.map_err(AppendError::Database)?;
        let row = client.query_opt("select last from outpost_threads where id = $1", &[&thread.to_string()]).await.map_err(failed)?;
        Ok(row.map_or(0, |row| small(row.get(0))))
    }

    fn clean(&self, entry: &Entry) -> Result<Entry, AppendError> {
        let Some(redactor) = self.0.config.redactor.as_deref() else { return Ok(entry.clone()) };
        let kind = entry.fact.kind();
        let data = entry.fact.data().map_err(|error| AppendError::Unwritable { kind: kind.to_owned(), why: SharedError::new(error) })?;
        let clean = crate::redact::redact(redactor, &data);
        Ok(clean.map_or_else(|| entry.clone(), |data| Entry { fact: Fact::read(VERSION, kind, data), ..*entry }))
    }

    pub async fn fork(&self, request: ForkRequest) -> Result<Lease, ForkStoreError> {
        let ForkRequest { mut forked, cut, at } = request;
        let (thread, parent) = (forked.thread, forked.parent);
        let broken = |error: tokio_postgres::Error| ForkStoreError::Append(failed(error));
        self.enter().await.map_err(|why| ForkStoreError::Append(AppendError::Database(why)))?;
        let mut client = self.client().await.map_err(|why| ForkStoreError::Append(AppendError::Database(why)))?;
        let transaction = client.transaction().await.map_err(broken)?;
        let segments = lineage_within(&*transaction, parent).await?;
        let outside = ForkStoreError::OutOfRange { thread: parent, ordinal: cut.ordinal };
        let Some(segment) = segments.iter().find(|segment| segment.until.is_none_or(|until| cut.ordinal <= until)) else {
            return Err(outside);
        };
        // Locked until the child points to it, so that it cannot be deleted in between.
        let shared = "select t.summary from outpost_threads t join outpost_entries e on e.thread = t.id where t.id = $1 and e.seq = $2 for share of t";
        let found = transaction.query_opt(shared, &[&segment.thread.to_string(), &big(cut.ordinal)]).await.map_err(broken)?;
        if found.is_none() {
            return Err(outside);
        }
        let mut summary = inherited(&transaction, parent, &segments, cut.ordinal).await.map_err(broken)?;
        summary.id = thread;
        forked.base = ForkBase { thread: segment.thread, ordinal: cut.ordinal, sum: String::new() };
        let facts = std::iter::once(Fact::from(forked)).chain(cut.close.map(Fact::from));
        let entries: Vec<Entry> = facts.zip(cut.ordinal + 1..).map(|(fact, ordinal)| Entry { ordinal, at, fact }).collect();
        let (config, pid) = (&self.0.config, i64::from(std::process::id()));
        let text =
            serde_json::to_string(&summary).map_err(|error| ForkStoreError::Append(AppendError::Database(SharedError::new(error))))?;
        let made = transaction
            .execute(
                FORK,
                &[
                    &thread.to_string(),
                    &big(cut.ordinal + 1),
                    &big(cut.ordinal),
                    &segment.thread.to_string(),
                    &config.instance,
                    &config.host,
                    &pid,
                    &self.lease_seconds(),
                    &text,
                ],
            )
            .await
            .map_err(broken)?;
        if made == 0 {
            return Err(ForkStoreError::Exists(thread));
        }
        transaction.commit().await.map_err(broken)?;
        let lease = Lease { thread, epoch: 1 };
        self.hold(thread, Held { epoch: 1, summary, work: ThreadWork::default() });
        drop(client);
        self.append(&lease, entries, Need::Stored).await?;
        Ok(lease)
    }

    /// Removes a thread. Its forks first get what they share: all of it stays where it is for them, under their own id.
    pub async fn delete(&self, thread: ThreadId, mode: ClaimMode) -> Result<(), DeleteError> {
        let lease = self.claim(thread, mode).await?;
        let removed = self.remove(thread).await;
        if removed.is_err() {
            self.release(lease).await;
        } else {
            lock(&self.0.held).remove(&thread);
            self.0.notes.add(thread, 0);
        }
        removed.map_err(|why| DeleteError::Append(AppendError::Database(why)))
    }

    async fn remove(&self, thread: ThreadId) -> Result<(), SharedError> {
        let failed = told;
        let mut client = self.0.pool.get_for(LONG).await?;
        let transaction = client.transaction().await.map_err(failed)?;
        // A thread may be long.
        transaction.batch_execute("set local statement_timeout = 0").await.map_err(failed)?;
        let id = thread.to_string();
        for statement in [
            "select 1 from outpost_threads where id = $1 for update",
            "insert into outpost_entries (thread, seq, at, kind, data)
             select child.id, e.seq, e.at, e.kind, e.data
             from outpost_threads child join outpost_entries e on e.thread = $1 and e.seq <= child.base_ordinal where child.base = $1",
            "update outpost_threads child set base = parent.base, base_ordinal = parent.base_ordinal, first = parent.first
             from outpost_threads parent where child.base = $1 and parent.id = $1",
            "delete from outpost_threads where id = $1",
        ] {
            transaction.execute(statement, &[&id]).await.map_err(failed)?;
        }
        transaction.commit().await.map_err(failed)
    }

    pub async fn put_blob(&self, content: Vec<u8>) -> Result<Digest, AppendError> {
        let digest = Digest::of(&content);
        let client = self.client().await.map_err(AppendError::Database)?;
        let text = "insert into outpost_blobs (digest, content) values ($1, $2) on conflict (digest) do nothing";
        client.execute(text, &[&digest.to_string(), &content]).await.map_err(failed)?;
        Ok(digest)
    }

    pub async fn blob(&self, digest: Digest) -> Result<Vec<u8>, BlobError> {
        let client = self.client().await.map_err(BlobError::Database)?;
        let row = client.query_opt("select content from outpost_blobs where digest = $1", &[&digest.to_string()]).await;
        let content: Vec<u8> = row.map_err(|error| BlobError::Database(told(error)))?.ok_or(BlobError::NotFound(digest))?.get(0);
        if Digest::of(&content) == digest { Ok(content) } else { Err(BlobError::Altered(digest)) }
    }
}

/// What a fork shows in lists before it has anything of its own.
async fn inherited(
    transaction: &deadpool_postgres::Transaction<'_>,
    parent: ThreadId,
    segments: &[super::read::RowSegment],
    ordinal: u64,
) -> Result<ThreadSummary, tokio_postgres::Error> {
    let text = "select summary from outpost_threads where id = $1";
    let row = transaction.query_opt(text, &[&parent.to_string()]).await?;
    let mut summary: ThreadSummary =
        row.and_then(|row| serde_json::from_str(row.get(0)).ok()).unwrap_or_else(|| ThreadSummary::new(parent));
    let mut turns = 0;
    for segment in segments {
        let until = segment.until.map_or(ordinal, |until| until.min(ordinal));
        let text = "select count(*) from outpost_entries where thread = $1 and seq <= $2 and kind = 'turnFinished'";
        turns += small(transaction.query_one(text, &[&segment.thread.to_string(), &big(until)]).await?.get(0));
    }
    summary.turns = turns;
    summary.ordinal = ordinal;
    Ok(summary)
}

/// How long an append waits for a database that went away.
const PATIENCE: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(200);

/// Why a statement did not do its work, and whether it may later: a server that is restarted or handed over comes back.
struct WriteFailure {
    error: AppendError,
    may_pass: bool,
}

impl WriteFailure {
    fn of(error: tokio_postgres::Error) -> Self {
        // Connections, resources, an operator, a lost race, and a standby that is not yet a primary.
        let passes = |code: &str| ["08", "53", "57", "40"].iter().any(|class| code.starts_with(class)) || code == "25006";
        let may_pass = error.code().is_none_or(|code| passes(code.code()));
        Self { error: failed(error), may_pass }
    }
}

/// Entries as columns.
#[derive(Default)]
struct Batch {
    ordinals: Vec<i64>,
    times: Vec<i64>,
    kinds: Vec<String>,
    data: Vec<String>,
    worded: Vec<i64>,
    words: Vec<String>,
    bytes: i64,
    gives_birth: bool,
    is_progress: bool,
}

impl Batch {
    fn of(entries: &[Entry]) -> Result<Self, AppendError> {
        let mut batch = Self::default();
        for entry in entries {
            let kind = entry.fact.kind().to_owned();
            let data = entry.fact.data().map_err(|error| AppendError::Unwritable { kind: kind.clone(), why: SharedError::new(error) })?;
            batch.ordinals.push(big(entry.ordinal));
            batch.times.push(big(entry.at));
            batch.bytes = batch.bytes.saturating_add(big(data.get().len() as u64));
            batch.data.push(data.get().to_owned());
            batch.is_progress |= ThreadWork::is_progress(&kind);
            batch.kinds.push(kind);
            batch.gives_birth |= materializes(entry);
            let mut words = plain(&words::searchable(entry));
            if !words.trim().is_empty() {
                words.truncate(words.floor_char_boundary(WORDS));
                batch.worded.push(big(entry.ordinal));
                batch.words.push(words);
            }
        }
        Ok(batch)
    }
}

fn failed(error: tokio_postgres::Error) -> AppendError {
    AppendError::Database(told(error))
}

impl From<super::read::QueryError> for ForkStoreError {
    fn from(error: super::read::QueryError) -> Self {
        Self::Read(ReadError::from(error))
    }
}
