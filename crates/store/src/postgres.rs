//! Threads in Postgres: several machines share them, one writes each at a time.
//!
//! An append is one statement that compares the ordinal and the lease's epoch and writes only if both are right, so that two
//! owners cannot both win. A lease has a time; its holder renews it, and any node may take an expired one. The leases of a
//! program's threads end with that of the program itself. The database's clock counts, not that of any machine.

mod address;
mod feed;
mod keys;
mod lease;
mod list;
mod listen;
mod many;
mod migrate;
mod nodes;
mod notes;
mod pool;
mod read;
mod shared;
mod tls;
mod write;

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use outpost_thread::ThreadId;
use outpost_wire::SharedError;
use rustls::RootCertStore;
use tokio::sync::{Notify, OnceCell, watch};
use tokio_util::task::AbortOnDropHandle;

use address::Address;
pub use feed::{ChangeFeed, ThreadChange};
pub use nodes::NodeAddress;
use notes::Notes;
use pool::{Checkout, Pool};
pub use read::PostgresHistory;
pub use shared::SharedRecord;

use crate::lease::Lease;
use crate::local::lock;
use crate::orphan::ThreadWork;
use crate::store::Redactor;
use crate::summary::ThreadSummary;

/// Everything that a store in Postgres needs to be told.
#[derive(Clone)]
pub struct PostgresConfig {
    /// `postgres://user@host/database`.
    pub url: String,
    /// Whom to trust where the address does not say it.
    pub trust: fn() -> RootCertStore,
    /// A name for this start of the program that no other start has.
    pub instance: String,
    pub host: String,
    /// How long the lease of a thread holds whose program is not known. It is renewed three times as often.
    pub lease: Duration,
    /// How long the lease of this program holds, and with it those of its threads. It is renewed three times as often.
    pub node_lease: Duration,
    /// Whether it takes up threads of others that died, and others take up its own.
    pub adopts: bool,
    pub connections: usize,
    /// How long the server works on one statement before it gives it up.
    pub statement: Duration,
    pub redactor: Option<Arc<dyn Redactor>>,
}

impl PostgresConfig {
    pub fn new(url: impl Into<String>, instance: impl Into<String>, host: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            trust: RootCertStore::empty,
            instance: instance.into(),
            host: host.into(),
            lease: Duration::from_secs(30),
            node_lease: Duration::from_secs(6),
            adopts: false,
            connections: 8,
            statement: Duration::from_secs(10),
            redactor: None,
        }
    }
}

/// How long a database may take to show that it is there.
const PING: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    #[error("this is not an address of a database: {0}; write postgres://user@host/database")]
    Url(#[source] SharedError),
    #[error("sslmode={0} is not known here; write sslmode=require or sslmode=disable, which do what they say and never fall back")]
    Mode(String),
    #[error("the database cannot be reached: {0}")]
    Connect(#[source] SharedError),
    #[error("the tables of this database cannot be prepared: {0}")]
    Migration(#[source] SharedError),
    #[error(
        "the tables of this database are of version {version}, made by a newer program; this one knows versions up to {known}: upgrade it"
    )]
    Newer { version: i64, known: i64 },
}

#[derive(Clone)]
pub struct PostgresStore(Arc<Shared>);

struct Shared {
    config: PostgresConfig,
    address: Address,
    pool: Pool,
    /// One connection for the lease of this program, which must not wait for anything else.
    own_pool: Pool,
    /// What lists show of the threads whose leases are held here: no other node can change it meanwhile.
    held: Mutex<HashMap<ThreadId, Held>>,
    /// Threads that others have taken meanwhile.
    taken: Mutex<Vec<ThreadId>>,
    is_taken: Notify,
    /// Told when a program has taken a thread by force, maybe one of these.
    takeovers: Arc<Notify>,
    /// Threads of this program that nothing here held when orphans were last looked for.
    unheld: Mutex<HashSet<ThreadId>>,
    /// Those that wait to be given back.
    returns: Mutex<Vec<Lease>>,
    /// Held by statements that lock the rows of many threads: two at once could wait for each other.
    row_locks: tokio::sync::Mutex<()>,
    /// Those that could not be given back yet.
    unreturned: Mutex<Vec<Lease>>,
    /// A program that only looks has no row among the nodes.
    entered: OnceCell<()>,
    /// Its lease is over for good. Held while the lease is renewed.
    is_over: tokio::sync::Mutex<bool>,
    /// What followers have to be told.
    notes: Notes,
    /// Where other nodes reach this one, once it is known.
    node_address: Mutex<NodeAddress>,
    /// Counts changes of what nodes share, once anything follows them.
    shared_changes: OnceLock<(Arc<watch::Sender<u64>>, AbortOnDropHandle<()>)>,
}

#[derive(Clone)]
struct Held {
    epoch: u64,
    summary: ThreadSummary,
    work: ThreadWork,
}

impl Held {
    /// A command whose end begins a turn is work, too.
    fn has_work(&self) -> bool {
        self.work.is_there || !self.summary.wakes.is_empty()
    }
}

impl PostgresStore {
    /// Connects, prepares the tables, and begins to renew leases.
    pub async fn open(config: PostgresConfig) -> Result<Self, PostgresError> {
        let address = Address::parse(&config.url, config.trust)?;
        let pool = Pool::new(address.clone(), &config)?;
        let own_pool = pool.aside(address.clone(), &config)?;
        let mut client = pool.get_for(pool::LONG).await.map_err(PostgresError::Connect)?;
        migrate::migrate(&mut client).await?;
        drop(client);
        let shared = Arc::new(Shared {
            config,
            address,
            pool,
            own_pool,
            held: Mutex::default(),
            taken: Mutex::default(),
            is_taken: Notify::new(),
            takeovers: Arc::new(Notify::new()),
            unheld: Mutex::default(),
            returns: Mutex::default(),
            row_locks: tokio::sync::Mutex::default(),
            unreturned: Mutex::default(),
            entered: OnceCell::new(),
            is_over: tokio::sync::Mutex::default(),
            notes: Notes::default(),
            node_address: Mutex::default(),
            shared_changes: OnceLock::new(),
        });
        tokio::spawn(nodes::live(Arc::downgrade(&shared)));
        tokio::spawn(nodes::renew(Arc::downgrade(&shared)));
        tokio::spawn(notes::send(Arc::downgrade(&shared)));
        let store = Self(shared);
        if store.0.config.adopts {
            store.enter().await.map_err(PostgresError::Connect)?;
        }
        Ok(store)
    }

    async fn client(&self) -> Result<Checkout, SharedError> {
        self.0.pool.get().await
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), SharedError> {
        let client = self.0.pool.get_for(PING).await?;
        client.simple_query("").await.map(drop).map_err(told)
    }

    fn hold(&self, thread: ThreadId, held: Held) {
        lock(&self.0.held).insert(thread, held);
    }

    fn lease_seconds(&self) -> f64 {
        self.0.config.lease.as_secs_f64()
    }
}

/// What the server said, or why it could not be asked.
fn said(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| chain(error), ToString::to_string)
}

/// The same, with the error behind it.
fn told(error: tokio_postgres::Error) -> SharedError {
    match error.as_db_error() {
        Some(answer) => SharedError::new(answer.clone()),
        None => unreached(error),
    }
}

/// Why there is no connection. The library puts the cause behind words of its own.
fn unreached(error: tokio_postgres::Error) -> SharedError {
    SharedError::worded(chain(&error), error)
}

/// An error with its causes, on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Ordinals, times and sizes are far below the limit of the database's numbers.
fn big(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn small(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The database's texts cannot hold this character.
fn plain(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
