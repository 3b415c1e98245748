//! The SQLite file: opening it, knowing whether it can be trusted, rows in and out.
//!
//! It must not know what a journal is. Whatever is wrong with the file is one error, [`IndexError::Unusable`], and the answer to
//! it is always the same: throw the file away and make it again.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use outpost_wire::SharedError;
use rusqlite::types::Value;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, params};

use crate::summary::ThreadSummary;
use outpost_thread::ThreadId;

/// Raised with every change of the schema or of what the rows hold.
pub(super) const VERSION: u32 = 3;
const SCHEMA: &str = include_str!("schema.sql");
/// Small pages, because an update writes whole pages: one turn touches about ten of them.
const PAGE_BYTES: u32 = 512;
/// Pages of the log after which they are moved into the file.
const CHECKPOINT_PAGES: u32 = 16_000;
/// Of the writer, in kibibytes when negative.
const CACHE: i32 = -8_000;
const BUSY: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// Missing, garbled, replaced or of another version.
    #[error("the index cannot be used: {0}")]
    Unusable(#[source] SharedError),
    #[error("the index cannot be reached: {0}")]
    Unreachable(#[source] SharedError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<rusqlite::Error> for IndexError {
    fn from(error: rusqlite::Error) -> Self {
        let code = error.sqlite_error_code();
        let error = SharedError::new(error);
        match code {
            // Another process holds it, the disk is full, or this process may not write: making it anew would not help.
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DiskFull
                | ErrorCode::OutOfMemory
                | ErrorCode::PermissionDenied
                | ErrorCode::OperationInterrupted,
            ) => Self::Unreachable(error),
            _ => Self::Unusable(error),
        }
    }
}

/// What the row of a thread was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DatabaseStamp {
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: i64,
}

/// A row of the table of threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ThreadRow {
    pub stamp: DatabaseStamp,
    pub worded: u64,
    /// The sum of the last line before `worded`; empty if there is none.
    pub chain: String,
    pub high_ordinal: u64,
    pub summary: ThreadSummary,
}

/// A connection, and the file that it was opened on.
pub(super) struct Database {
    pub connection: Connection,
    path: PathBuf,
    inode: u64,
}

impl Database {
    /// Opens the file for writing and makes it if it is not there. A file that is no index of this version is unusable.
    pub(super) fn open(path: &Path) -> Result<Self, IndexError> {
        // Made here and not by SQLite, so that other users cannot read it at any time.
        if let Err(error) = fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path) {
            return Err(if path.is_dir() { IndexError::Unusable("it is a folder".into()) } else { error.into() });
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "page_size", PAGE_BYTES)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.pragma_update(None, "cache_size", CACHE)?;
        let database = Self { connection, path: path.to_owned(), inode: fs::metadata(path)?.ino() };
        match database.version()? {
            VERSION => {}
            0 if database.is_empty()? => database.create()?,
            other => return Err(IndexError::Unusable(format!("it has version {other}, this program writes {VERSION}").into())),
        }
        Ok(database)
    }

    /// Opens an existing file of this version for reading.
    pub(super) fn open_read_only(path: &Path) -> Result<Self, IndexError> {
        // Readers of a log write their marks beside it, which a connection that may not write anything cannot do.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "query_only", true)?;
        let database = Self { connection, path: path.to_owned(), inode: fs::metadata(path)?.ino() };
        match database.version()? {
            VERSION => Ok(database),
            other => Err(IndexError::Unusable(format!("it has version {other}, this program reads {VERSION}").into())),
        }
    }

    pub(super) const fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether the path still leads to the file that was opened. One that was deleted would take writes for ever.
    pub(super) fn is_in_place(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|file| file.ino() == self.inode)
    }

    /// Looks at every page; slow on purpose.
    pub(super) fn check(&self) -> Result<(), IndexError> {
        let verdict: String = self.connection.query_row("pragma integrity_check(1)", [], |row| row.get(0))?;
        if verdict != "ok" {
            return Err(IndexError::Unusable(verdict.into()));
        }
        self.connection.execute("insert into words(words) values ('integrity-check')", [])?;
        Ok(())
    }

    fn version(&self) -> Result<u32, IndexError> {
        Ok(self.connection.query_row("pragma user_version", [], |row| row.get(0))?)
    }

    fn is_empty(&self) -> Result<bool, IndexError> {
        Ok(self.connection.query_row("select not exists (select 1 from sqlite_master)", [], |row| row.get(0))?)
    }

    fn create(&self) -> Result<(), IndexError> {
        // Two processes may want to make it at once; the second one finds it made.
        self.connection.execute_batch("begin immediate")?;
        let made = if self.is_empty()? { self.connection.execute_batch(SCHEMA) } else { Ok(()) };
        made.and_then(|()| self.connection.pragma_update(None, "user_version", VERSION))
            .and_then(|()| self.connection.execute_batch("commit"))
            .inspect_err(|_| drop(self.connection.execute_batch("rollback")))?;
        Ok(())
    }

    pub(super) fn find(&self, id: ThreadId) -> Result<Option<(i64, ThreadRow)>, IndexError> {
        let mut statement = self.connection.prepare_cached(&format!("select {ROW} from threads where id = ?1"))?;
        let found = statement.query_row([id.to_string()], |row| Ok(read(row))).optional()?;
        found.transpose()
    }

    /// Every row, for comparing with what is on the disk.
    pub(super) fn all(&self) -> Result<Vec<(i64, ThreadRow)>, IndexError> {
        let mut statement = self.connection.prepare(&format!("select {ROW} from threads"))?;
        let rows = statement.query_map([], |row| Ok(read(row)))?;
        rows.collect::<Result<Vec<_>, _>>()?.into_iter().collect()
    }

    /// Writes a row; an older one of the same thread keeps its key.
    pub(super) fn put(&self, row: &ThreadRow) -> Result<i64, IndexError> {
        let summary = &row.summary;
        let text = rest(summary)?;
        let mut statement = self.connection.prepare_cached(PUT)?;
        let key = statement.query_row(
            params![
                summary.id.to_string(),
                row.stamp.size,
                row.stamp.modified,
                row.worded,
                row.chain,
                row.high_ordinal,
                summary.created_at,
                summary.updated_at,
                summary.recency_at,
                summary.archived,
                summary.source,
                summary.cwd,
                summary.parent.map(|parent| parent.to_string()),
                summary.name,
                text,
                row_sum(row, &text),
            ],
            |row| row.get(0),
        )?;
        Ok(key)
    }

    /// Writes the row of a thread over the one that it has, which shows `stored`. A statement that may touch several rows, as
    /// [`Database::put`] might, would have the words that wait in memory written out at once; and an index over columns that
    /// have not changed need not be written.
    pub(super) fn update(&self, key: i64, stored: &ThreadSummary, row: &ThreadRow) -> Result<(), IndexError> {
        let summary = &row.summary;
        if described(stored) != described(summary) {
            let mut statement = self.connection.prepare_cached(DESCRIBE)?;
            let parent = summary.parent.map(|parent| parent.to_string());
            statement.execute(params![key, summary.created_at, summary.archived, summary.source, summary.cwd, parent, summary.name])?;
        }
        let text = rest(summary)?;
        let mut statement = self.connection.prepare_cached(UPDATE)?;
        statement.execute(params![
            key,
            row.stamp.size,
            row.stamp.modified,
            row.worded,
            row.chain,
            row.high_ordinal,
            summary.updated_at,
            summary.recency_at,
            text,
            row_sum(row, &text),
        ])?;
        Ok(())
    }

    pub(super) fn remove(&self, id: ThreadId) -> Result<(), IndexError> {
        let Some((key, _)) = self.find(id)? else { return Ok(()) };
        self.forget(key)?;
        self.connection.prepare_cached("delete from threads where key = ?1")?.execute([key])?;
        Ok(())
    }

    /// Drops turns and words of a thread, which will be read again.
    pub(super) fn forget(&self, key: i64) -> Result<(), IndexError> {
        self.connection.prepare_cached("delete from words where rowid between ?1 << 32 and (?1 + 1 << 32) - 1")?.execute([key])?;
        self.connection.prepare_cached("delete from turns where thread = ?1")?.execute([key])?;
        Ok(())
    }
}

pub(super) const ROW: &str = "key, size, modified, worded, chain, high_seq, source, cwd, parent, name, summary, sum";
const PUT: &str = "
    insert into threads (id, size, modified, worded, chain, high_seq, created_at, updated_at, recency_at, archived, source, cwd, parent, name,
      summary, sum)
    values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
    on conflict (id) do update set size = ?2, modified = ?3, worded = ?4, chain = ?5, high_seq = ?6, created_at = ?7, updated_at = ?8,
      recency_at = ?9, archived = ?10, source = ?11, cwd = ?12, parent = ?13, name = ?14, summary = ?15, sum = ?16
    returning key";

const UPDATE: &str = "
    update threads set size = ?2, modified = ?3, worded = ?4, chain = ?5, high_seq = ?6, updated_at = ?7, recency_at = ?8, summary = ?9, sum = ?10
    where key = ?1";
const DESCRIBE: &str = "update threads set created_at = ?2, archived = ?3, source = ?4, cwd = ?5, parent = ?6, name = ?7 where key = ?1";

/// What a turn does not change.
fn described(summary: &ThreadSummary) -> (u64, bool, Option<ThreadId>, [Option<&str>; 3]) {
    let words = [summary.source.as_deref(), summary.cwd.as_deref(), summary.name.as_deref()];
    (summary.created_at, summary.archived, summary.parent, words)
}

/// What of a summary does not stand in columns.
fn rest(summary: &ThreadSummary) -> Result<String, IndexError> {
    let rest = ThreadSummary { name: None, source: None, cwd: None, parent: None, ..summary.clone() };
    serde_json::to_string(&rest).map_err(|error| IndexError::Unreachable(SharedError::new(error)))
}

/// Reads the columns of [`ROW`]; a row whose sum is wrong makes the whole file untrustworthy.
pub(super) fn read(row: &Row<'_>) -> Result<(i64, ThreadRow), IndexError> {
    let text: String = row.get(10)?;
    let rest: ThreadSummary = serde_json::from_str(&text)
        .map_err(|error| IndexError::Unusable(SharedError::worded(format!("a row is garbled: {error}"), error)))?;
    let parent: Option<String> = row.get(8)?;
    let parent =
        parent.map(|id| id.parse()).transpose().map_err(|error| IndexError::Unusable(SharedError::worded("a row is garbled", error)))?;
    let found = ThreadRow {
        stamp: DatabaseStamp { size: row.get(1)?, modified: row.get(2)? },
        worded: row.get(3)?,
        chain: row.get(4)?,
        high_ordinal: row.get(5)?,
        summary: ThreadSummary { source: row.get(6)?, cwd: row.get(7)?, parent, name: row.get(9)?, ..rest },
    };
    if row.get::<_, Value>(11)? != Value::Integer(row_sum(&found, &text)) {
        return Err(IndexError::Unusable("a row has another sum than it should".into()));
    }
    Ok((row.get(0)?, found))
}

/// FNV-1a: against accidents, not against people.
fn row_sum(row: &ThreadRow, summary: &str) -> i64 {
    let numbers = [row.stamp.size, row.stamp.modified.cast_unsigned(), row.worded, row.high_ordinal];
    let texts = [&row.summary.source, &row.summary.cwd, &row.summary.name].into_iter().flatten().flat_map(|text| text.bytes());
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).chain(row.chain.bytes()).chain(summary.bytes()).chain(texts);
    bytes.fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)).cast_signed()
}

/// Throws the file away, with its log.
pub(super) fn discard(path: &Path) -> io::Result<()> {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let path = Path::new(&name);
        match if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) } {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

impl Database {
    pub(super) fn count_turns(&self, key: i64) -> Result<u64, IndexError> {
        let mut statement = self.connection.prepare_cached("select coalesce(max(number), 0) from turns where thread = ?1")?;
        Ok(statement.query_row([key], |row| row.get(0))?)
    }

    pub(super) fn put_turn(&self, key: i64, number: u64, ordinal: u64) -> Result<(), IndexError> {
        let mut statement = self.connection.prepare_cached("insert or replace into turns values (?1, ?2, ?3)")?;
        statement.execute(params![key, number, ordinal])?;
        Ok(())
    }

    pub(super) fn put_words(&self, key: i64, ordinal: u64, text: &str) -> Result<(), IndexError> {
        // Ordinals beyond four billion would need another key; they share the last one.
        let row = (key << 32) | i64::from(u32::try_from(ordinal).unwrap_or(u32::MAX));
        self.connection.prepare_cached("insert or replace into words (rowid, text) values (?1, ?2)")?.execute(params![row, text])?;
        Ok(())
    }

    /// Runs `work` in a transaction of its own.
    pub(super) fn transact<T, E: From<IndexError>>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let run = |text: &str| self.connection.execute_batch(text).map_err(|error| E::from(error.into()));
        run("begin immediate")?;
        match work() {
            Ok(done) => run("commit").map(|()| done),
            Err(error) => {
                // What failed is told; that undoing it may fail as well changes nothing.
                let _ = run("rollback");
                Err(error)
            }
        }
    }
}

impl super::scan::Ancestors for Database {
    fn at(&self, thread: ThreadId, ordinal: u64) -> Result<Option<ThreadSummary>, IndexError> {
        let Some((key, row)) = self.find(thread)? else { return Ok(None) };
        if ordinal >= row.summary.ordinal {
            return Ok(Some(row.summary));
        }
        let mut statement = self.connection.prepare_cached("select count(*) from turns where thread = ?1 and seq <= ?2")?;
        let turns: u64 = statement.query_row(params![key, ordinal], |row| row.get(0))?;
        Ok(Some(ThreadSummary { turns: turns.min(row.summary.turns), ..row.summary }))
    }
}
