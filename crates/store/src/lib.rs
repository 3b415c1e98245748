//! Where threads are kept: journals, leases, blobs; on disk, in memory.
//!
//! Overview for callers:
//!
//! * [`Store`] is a closed set with one face. [`Store::create`] or [`Store::claim`] give a [`Lease`]; [`Store::append`] writes
//!   [`outpost_thread::Entry`]s whose ordinals follow the last one (that is the compare-and-set) and gives them back as they
//!   were stored; [`Store::page`] reads backwards, [`Store::history`] forwards. [`open`] puts a state together from a
//!   checkpoint and what came after it; [`context`] makes what the model sees, when a turn needs it.
//! * `journal.rs` is the format of a line, `reader.rs` reads files of them, `damage.rs` names what is wrong with them.
//! * `commit.rs` is what makes appends durable: one pre-written log that all threads of a program share.
//! * `local.rs` is a home on disk: `threads/YYYY/MM/DD/<id>.jsonl`, a `.lease` beside it, `blobs/`, `commit/`, `index/`.
//!   Everything below `index/` may be deleted at any time.
//! * A fork's own ordinals go on from its parent's, and its first entry names the prefix that it shares.
//!
//! This room must not know models, tools or network protocols.

mod adoption;
mod blob;
mod budget;
mod commit;
mod damage;
mod export;
mod import;
mod index;
mod journal;
mod lease;
mod list;
mod local;
mod memory;
mod open;
mod orphan;
mod postgres;
mod reader;
mod records;
mod redact;
mod store;
mod summary;
mod verify;
mod words;

pub use adoption::AdoptionKey;
pub use blob::{BlobError, Digest, NotADigest};
pub use commit::CommitConfig;
pub use damage::{Damage, DamageKind};
pub use export::{ExportError, ExportFileError, Exported, export, is_export};
pub use import::{BadLine, ClaudeError, ImportError, ImportOutcome, Imported, LineageError, Rollout, Rollouts, import_export};
pub use index::{Index, IndexConfig, IndexError};
pub use journal::{Header, HeaderError, JournalLine, LINE_LIMIT, NotASum, Sum, read as read_line, read_header};
pub use lease::{ClaimError, ClaimMode, Lease, LeaseHolder, LeaseRow, RowHolder};
pub use list::{Ancestry, Coverage, CursorError, Direction, ListCursor, ListOrder, ListPage, ListQuery, ListScope};
pub use local::{LocalConfig, LocalHistory, LocalStore, OpenError};
pub use memory::{MemoryHistory, MemoryStore};
pub use open::{FactsAside, Opened, append_aside, context, context_with, keep_checkpoint, open, open_fork, open_many, unnoted};
pub use orphan::{MOST_CLAIMS, OrphanAnswer, OrphanFate, OrphanedThread, PassedOrphans, ThreadTenure, ThreadWork};
pub use postgres::{ChangeFeed, NodeAddress, PostgresConfig, PostgresError, PostgresHistory, PostgresStore, SharedRecord, ThreadChange};
pub use reader::{Backward, Forward, JournalError, JournalStart, ReadOutcome, ReaderPosition, Tail, locate, start, tail};
pub use records::{RecordChanges, SharedRecords, SharedRecordsError};
pub use store::{
    AppendError, Appended, Batch, Clock, DeleteError, Durability, ForkRequest, ForkStoreError, HistoryReader, Need, Page, PageRequest,
    ReadError, Redactor, Store, StoreFuture, ThreadHead, ThreadStanding,
};
pub use summary::ThreadSummary;
pub use words::{of as words_of, searchable};
