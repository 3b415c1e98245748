//! Connections to the database. One that does not answer in time is closed, so that connections that died without a word cost a
//! program one time-out and not its life.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{self, Metrics, Object, RecycleError, RecycleResult, Timeouts};
use deadpool_postgres::ClientWrapper;
use outpost_wire::SharedError;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::address::Address;
use super::migrate::KNOWN;
use super::{PostgresConfig, PostgresError, chain, unreached};
use crate::local::lock;

/// A connection that was not used for so long is tried before it is used.
const IDLE: Duration = Duration::from_secs(10);
/// How long a connection that is tried may take to answer.
const TRIAL: Duration = Duration::from_secs(2);
/// How much longer than the server's own limit an answer is waited for.
const SLACK: Duration = Duration::from_secs(2);
/// How long statements may take that work through all of a thread.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// Makes connections and tries them.
pub(super) struct Connections {
    address: Address,
    /// How long the server works on one statement.
    statement: Duration,
    suspicion: Arc<Mutex<Suspicion>>,
    suspects: SuspectUse,
}

/// What connections that did not answer say of the others.
#[derive(Default)]
struct Suspicion {
    /// When one last failed to answer: the database may have been slow, or those that are as old are dead, too.
    at: Option<Instant>,
    /// One that was tried because of that failed, too: those that are older than this are not used any more.
    confirmed: Option<Instant>,
}

/// What becomes of a connection that is as old as one that did not answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SuspectUse {
    /// It is tried before it is used: a database that was slow for a moment does not cost all connections.
    Tried,
    /// It is not waited for: a new one costs less, and the lease of a program is short.
    Dropped,
}

pub(super) struct Connection {
    client: ClientWrapper,
    /// What reads and writes the socket. Without it every statement that is out fails, and the connection is closed.
    task: AbortHandle,
    since: Instant,
}

/// A connection for a short while. If it is kept longer than allowed, the server does not answer, and it is closed.
pub(super) struct Checkout {
    connection: Object<Connections>,
    _limit: AbortOnDropHandle<()>,
}

pub(super) struct Pool {
    pool: managed::Pool<Connections>,
    limit: Duration,
    suspicion: Arc<Mutex<Suspicion>>,
}

impl Pool {
    pub(super) fn new(address: Address, config: &PostgresConfig) -> Result<Self, PostgresError> {
        let suspicion = Arc::default();
        let manager = Connections { address, statement: config.statement, suspicion, suspects: SuspectUse::Tried };
        Self::of(manager, config.connections)
    }

    /// One connection more for the lease, which is not lent to others. What is suspected of either counts for both.
    pub(super) fn aside(&self, address: Address, config: &PostgresConfig) -> Result<Self, PostgresError> {
        let suspicion = self.suspicion.clone();
        Self::of(Connections { address, statement: config.statement, suspicion, suspects: SuspectUse::Dropped }, 1)
    }

    fn of(manager: Connections, connections: usize) -> Result<Self, PostgresError> {
        let (limit, suspicion) = (manager.statement + SLACK, manager.suspicion.clone());
        let timeouts = Timeouts {
            wait: Some(Duration::from_secs(30)),
            create: Some(Duration::from_secs(10)),
            recycle: Some(TRIAL + Duration::from_secs(1)),
        };
        let pool = managed::Pool::builder(manager)
            .max_size(connections.max(1))
            .runtime(Runtime::Tokio1)
            .timeouts(timeouts)
            .build()
            .map_err(|error| PostgresError::Connect(SharedError::new(error)))?;
        Ok(Self { pool, limit, suspicion })
    }

    pub(super) async fn get(&self) -> Result<Checkout, SharedError> {
        self.get_for(self.limit).await
    }

    /// For work that may take longer than usual.
    pub(super) async fn get_for(&self, limit: Duration) -> Result<Checkout, SharedError> {
        let connection = self.pool.get().await.map_err(|error| match error {
            managed::PoolError::Backend(error) => unreached(error),
            other => SharedError::new(other),
        })?;
        let (task, suspicion) = (connection.task.clone(), self.suspicion.clone());
        let watch = tokio::spawn(async move {
            sleep(limit).await;
            tracing::warn!(seconds = limit.as_secs(), "the database does not answer; the connection is closed");
            lock(&suspicion).at = Some(Instant::now());
            task.abort();
        });
        Ok(Checkout { connection, _limit: AbortOnDropHandle::new(watch) })
    }
}

impl Deref for Checkout {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        &self.connection.client
    }
}

impl DerefMut for Checkout {
    fn deref_mut(&mut self) -> &mut ClientWrapper {
        &mut self.connection.client
    }
}

impl managed::Manager for Connections {
    type Type = Connection;
    type Error = tokio_postgres::Error;

    async fn create(&self) -> Result<Connection, tokio_postgres::Error> {
        let (client, connection) = self.address.config.connect(self.address.encryption.clone()).await?;
        let driving = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = chain(&error), "a connection to the database ended");
            }
        });
        let task = driving.abort_handle();
        let client = ClientWrapper::new(client, driving);
        let limit = self.statement.as_millis();
        let limits = format!("set statement_timeout = {limit}; set idle_in_transaction_session_timeout = {limit}");
        client.batch_execute(&format!("{limits}; set outpost.version = {KNOWN}")).await?;
        Ok(Connection { client, task, since: Instant::now() })
    }

    async fn recycle(&self, connection: &mut Connection, metrics: &Metrics) -> RecycleResult<tokio_postgres::Error> {
        if connection.client.is_closed() {
            return Err(RecycleError::message("the connection is closed"));
        }
        let suspected = lock(&self.suspicion).at.filter(|at| connection.since < *at);
        let is_confirmed = lock(&self.suspicion).confirmed.is_some_and(|at| connection.since < at);
        if is_confirmed || (suspected.is_some() && self.suspects == SuspectUse::Dropped) {
            return Err(RecycleError::message("another connection of that time does not answer"));
        }
        if suspected.is_some() || metrics.last_used() > IDLE {
            match timeout(TRIAL, connection.client.simple_query("")).await {
                Ok(answer) => drop(answer?),
                Err(_) => {
                    let mut suspicion = lock(&self.suspicion);
                    suspicion.at = Some(Instant::now());
                    // Two one after the other: trying each of the rest would take longer than work waits.
                    suspicion.confirmed = suspicion.confirmed.max(suspected);
                    return Err(RecycleError::message("the connection does not answer"));
                }
            }
            connection.since = Instant::now();
        }
        Ok(())
    }
}
