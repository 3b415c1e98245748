//! The state of a connection, and which executor is at its other end. Read by all, written by the supervisor.

use std::sync::Arc;

use outpost_rpc::Peer;
use outpost_wire::SharedError;
use outpost_wire::exec::environment::EnvironmentInfo;
use tokio::time::Instant;

/// What a connection is up to.
#[derive(Debug, Clone)]
pub enum ConnectionState {
    /// Not asked for yet.
    Idle,
    Connecting,
    Ready(Arc<Connected>),
    /// It was there and is being got back.
    Recovering {
        reason: String,
        /// When the next attempt is made; nothing while one is under way.
        retry_at: Option<Instant>,
        /// Nothing is tried before the user has logged in.
        needs_login: bool,
    },
    Failed(Failure),
}

/// Why there is no connection, and whether there may be one later.
#[derive(Debug, Clone)]
pub struct Failure {
    pub kind: FailureKind,
    /// What was tried last, and what it failed with.
    pub reason: SharedError,
    /// What stands in the way, for those who advise people.
    pub obstacle: Obstacle,
    /// Before that, nothing is tried; nothing at all is tried by itself if it is not told.
    pub retry_at: Option<Instant>,
    /// The processes that were given up with the session, by name.
    pub lost: Arc<[String]>,
    /// Which attempt this was, so that who asks for another one does not take this for its outcome.
    pub(crate) attempt: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// No executor is there, or it does not answer.
    Unreachable,
    /// A session was there and could not be kept. Whatever ran in it is lost.
    SessionLost,
    /// Another client has resumed the session.
    TakenOver,
    /// Another executor than the one this handle is bound to answers. The handle is spent.
    OtherExecutor,
    /// The handle was replaced or removed before it was ready, and is spent.
    Retired,
    /// It was announced, and then could not be provided.
    Provisioning,
    /// The user has to log in first: with a password, a passphrase or a second factor.
    NeedsLogin,
}

/// What stands in the way of a connection, where that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Obstacle {
    #[default]
    Unknown,
    /// The other side wants a token, or another one.
    Token,
    /// The file that should hold the token cannot be used.
    TokenFile,
    /// The program is not there.
    NoProgram,
    /// The two versions are too far apart.
    Version,
    /// The executor has never dialled in.
    FirstConnection,
}

impl Failure {
    /// Whether asking again can help now.
    pub fn may_retry(&self, now: Instant) -> bool {
        self.retry_at.is_some_and(|at| at <= now)
    }

    /// Whether this handle will never work again.
    pub fn is_final(&self) -> bool {
        self.retry_at.is_none() && self.kind != FailureKind::NeedsLogin
    }
}

/// A connection that works.
#[derive(Debug)]
pub struct Connected {
    pub(crate) peer: PeerHandle,
    /// Counts the sessions of one handle. What was started in one is not in the next.
    pub(crate) session: u64,
    pub info: EnvironmentInfo,
    /// A question is answered at once: the executor is on this machine, or as good as.
    pub(crate) is_near: bool,
}

/// Only so that [`ConnectionState`] can be printed.
#[derive(Clone)]
pub(crate) struct PeerHandle(pub Peer);

impl std::fmt::Debug for PeerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Peer")
    }
}

/// Which executor is at the other end: an install, and one start of it. Executors of others tell neither.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ExecutorIdentity {
    pub executor_id: Option<String>,
    pub instance_id: Option<String>,
}

impl ExecutorIdentity {
    pub fn of(info: &EnvironmentInfo) -> Self {
        Self { executor_id: info.executor_id.clone(), instance_id: info.instance_id.clone() }
    }

    /// Whether it is certain that both are the same install. A restart does not matter.
    pub fn is_same_executor(&self, other: &Self) -> bool {
        self.executor_id.is_some() && self.executor_id == other.executor_id
    }
}
