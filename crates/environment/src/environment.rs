//! A place with processes and files, and the connection to it.
//!
//! A handle is bound to the executor that first answered it. It comes back to that one after any number of lost
//! connections and restarts, and to no other: a call through a handle cannot end up on another machine.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outpost_rpc::CallError;
use outpost_wire::exec::environment::{EnvironmentInfo, Info, Unit};
use outpost_wire::exec::policy::SandboxLossParams;
use outpost_wire::exec::process::List;
use outpost_wire::exec::session::{Empty, SessionEnd};
use outpost_wire::{Encode, EnvironmentId, Fault, Method, SharedError};
use thiserror::Error;
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::backoff::Waits;
use crate::connector::{Connector, Means};
use crate::files::Files;
use crate::first_start::StartSlot;
use crate::followed::FollowedCalls;
use crate::http::Bodies;
use crate::narrowing::Narrowing;
use crate::session::SessionProcesses;
use crate::session_store::SessionMemory;
use crate::state::{Connected, ConnectionState, ExecutorIdentity, Failure, FailureKind, Obstacle};
use crate::supervisor::Supervisor;
use crate::usage::CallCounter;
use crate::watching::HandleWatches;

/// The longest wait for a session to close.
const GOODBYE: Duration = Duration::from_secs(2);
/// How often, how long and how far apart a program that ends looks whether anything still runs.
const LAST_LOOKS: u32 = 5;
const LAST_LOOK: Duration = Duration::from_secs(5);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// When a connection is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ConnectPolicy {
    /// As soon as it is known, and again by itself when it failed.
    Eager,
    /// When it is first used.
    #[default]
    Lazy,
    /// Only when the user says so: a machine that sleeps is not woken unasked.
    Manual,
}

/// How patient an environment is with its connection.
#[derive(Debug, Clone)]
pub struct EnvironmentOptions {
    /// How the executor is told who we are.
    pub client_name: String,
    pub connect: ConnectPolicy,
    pub connect_timeout: Duration,
    pub initialize_timeout: Duration,
    /// How long to try to get a lost connection back before everything there is given up. An executor that keeps
    /// sessions for less is believed.
    pub patience: Duration,
    /// Waits between attempts to get a lost connection back.
    pub recovery: Waits,
    /// Waits after a failure, before which nothing is tried again.
    pub retry: Waits,
    /// How often a link that cannot tell by itself is asked whether the other side is there, and how long that may take.
    pub heartbeat: Heartbeat,
    /// Makes the waits of this client unlike those of others.
    pub jitter_seed: u64,
    /// Where the session is remembered for the next start of this program. Without it a session dies with its program.
    pub sessions: Option<Arc<SessionMemory>>,
    /// How long it may be unused before it is stopped.
    pub idle_stop: Option<Duration>,
    /// What its entry leaves of the policy of the threads that work there.
    pub narrowing: Narrowing,
    /// What routes through ssh, jobs and containers may use.
    pub means: Means,
    /// The version of this program; executors that are too far from it are refused.
    pub version: String,
}

#[derive(Debug, Clone, Copy)]
pub struct Heartbeat {
    pub every: Duration,
    pub give_up_after: Duration,
}

impl Default for EnvironmentOptions {
    fn default() -> Self {
        Self {
            client_name: "outpost".into(),
            connect: ConnectPolicy::Lazy,
            connect_timeout: Duration::from_secs(10),
            initialize_timeout: Duration::from_secs(10),
            patience: Duration::from_secs(600),
            recovery: Waits { first: Duration::from_millis(100), longest: Duration::from_secs(5) },
            retry: Waits { first: Duration::from_secs(1), longest: Duration::from_secs(60) },
            heartbeat: Heartbeat { every: Duration::from_secs(10), give_up_after: Duration::from_secs(30) },
            jitter_seed: 0,
            sessions: None,
            idle_stop: None,
            narrowing: Narrowing::default(),
            means: Means::default(),
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }
}

/// Hears every change of a handle's state, in order.
pub(crate) type Observer = Arc<dyn Fn(&ConnectionState) + Send + Sync>;

/// Which handle this is.
#[derive(Debug, Clone)]
pub(crate) struct HandleLabel {
    /// What people call it: its id where it has one.
    pub name: String,
    pub id: Option<EnvironmentId>,
    pub generation: u64,
}

#[derive(Debug, Clone, Error)]
pub enum EnvironmentError {
    #[error("{name} is unreachable: {reason}")]
    Unreachable {
        name: String,
        #[source]
        reason: SharedError,
        obstacle: Obstacle,
    },
    #[error("connection to {name} lost permanently: {reason}")]
    Gone {
        name: String,
        #[source]
        reason: SharedError,
    },
    #[error("{name} needs a login: {reason}; type `outpost env login {name}`")]
    NeedsLogin {
        name: String,
        #[source]
        reason: SharedError,
    },
    #[error("{name} is connected only when asked for; use `outpost env check {name}` or connect it first")]
    NotAsked { name: String },
    /// The connection was lost while the call was out; whether it was carried out is not known.
    #[error("the connection to {name} was lost during `{method}`; it may or may not have happened")]
    Unknown { name: String, method: &'static str },
    /// The session that the process was in is over.
    #[error("process {id} in {name} is lost: its session is over")]
    Lost { name: String, id: String },
    #[error("{}", .0.message)]
    Fault(Fault),
    #[error("a process with the id {id} is already followed here")]
    IdInUse { id: String },
    #[error("{name} sent an invalid answer: {reason}")]
    Nonsense {
        name: String,
        #[source]
        reason: SharedError,
    },
}

/// Whether a call may be carried out twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// It comes to the same; ask again after a lost connection.
    Harmless,
    /// A lost connection leaves its outcome unknown.
    Never,
}

/// So many losses of sandboxes wait for a listener; beyond that it learns how many there were.
const LOSSES: usize = 64;

/// Cheap to clone; all clones are one handle and share one connection, which ends with the last of them.
#[derive(Clone)]
pub struct Environment(Arc<EnvironmentShared>);

pub(crate) struct EnvironmentShared {
    label: HandleLabel,
    narrowing: Narrowing,
    policy: ConnectPolicy,
    /// The connection is a program that was started for it.
    is_program: bool,
    state: watch::Receiver<ConnectionState>,
    wanted: Arc<Notify>,
    /// Until the first use there is no task.
    idle: Mutex<Option<Supervisor>>,
    identity: Arc<Mutex<Option<ExecutorIdentity>>>,
    pub processes: Arc<SessionProcesses>,
    pub bodies: Arc<Bodies>,
    pub watches: Arc<HandleWatches>,
    pub followed: Arc<FollowedCalls>,
    pub first_start: Arc<StartSlot>,
    losses: broadcast::Sender<SandboxLossParams>,
    use_count: Arc<CallCounter>,
    /// What stops it, and when, if this program has ended.
    leave: Option<(Connector, Duration)>,
    stop: CancellationToken,
    _stop: DropGuard,
}

impl Environment {
    /// Nothing is connected until something is asked for.
    pub fn new(connector: Connector, options: EnvironmentOptions) -> Self {
        let label = HandleLabel { name: connector.name().to_owned(), id: None, generation: 0 };
        Self::observed(label, connector, options, Arc::new(|_| {}))
    }

    pub(crate) fn observed(label: HandleLabel, connector: Connector, options: EnvironmentOptions, observer: Observer) -> Self {
        let (sender, state) = watch::channel(ConnectionState::Idle);
        let (wanted, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let (processes, identity) = (Arc::new(SessionProcesses::default()), Arc::new(Mutex::new(None)));
        let (bodies, watches) = (Arc::new(Bodies::default()), Arc::new(HandleWatches::default()));
        let (followed, first_start) = (Arc::new(FollowedCalls::default()), Arc::new(StartSlot::default()));
        let losses = broadcast::Sender::new(LOSSES);
        let (policy, is_program) = (options.connect, connector.needs_keeper());
        let use_count = Arc::new(CallCounter::default());
        let leave = options.idle_stop.map(|idle| (connector.clone(), idle));
        let narrowing = options.narrowing.clone();
        let supervisor = Supervisor {
            name: label.name.clone(),
            connector,
            options,
            state: sender,
            observer,
            processes: processes.clone(),
            bodies: bodies.clone(),
            watches: watches.clone(),
            followed: followed.clone(),
            first_start: first_start.clone(),
            can_carry: AtomicBool::new(true),
            losses: losses.clone(),
            identity: identity.clone(),
            wanted: wanted.clone(),
            stop: stop.clone(),
            left: Mutex::default(),
            use_count: use_count.clone(),
        };
        let idle = Mutex::new(Some(supervisor));
        Self(Arc::new(EnvironmentShared {
            label,
            narrowing,
            policy,
            is_program,
            state,
            wanted,
            idle,
            identity,
            processes,
            bodies,
            watches,
            followed,
            first_start,
            losses,
            use_count,
            leave,
            stop: stop.clone(),
            _stop: stop.drop_guard(),
        }))
    }

    /// What programs outside take away, from now on, from the sandboxes of the session that all clones share.
    pub fn losses(&self) -> broadcast::Receiver<SandboxLossParams> {
        self.0.losses.subscribe()
    }

    /// Its id where it has one, else the address that it is reached by.
    pub fn name(&self) -> &str {
        &self.0.label.name
    }

    /// What its entry leaves of the policy of the threads that work there.
    pub fn narrowing(&self) -> &Narrowing {
        &self.0.narrowing
    }

    /// Its id, if a registry made it.
    pub fn id(&self) -> Option<&EnvironmentId> {
        self.0.label.id.as_ref()
    }

    /// Which of the registry's handles this is; higher is newer.
    pub fn generation(&self) -> u64 {
        self.0.label.generation
    }

    /// The executor that this handle is bound to, as it last answered; nothing before it first did.
    pub fn identity(&self) -> Option<ExecutorIdentity> {
        self.0.identity.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether both are the very same handle.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The state now and every change of it.
    pub fn watch(&self) -> watch::Receiver<ConnectionState> {
        self.0.state.clone()
    }

    /// The state now.
    pub fn state(&self) -> ConnectionState {
        self.0.state.borrow().clone()
    }

    pub(crate) fn shared(&self) -> &Arc<EnvironmentShared> {
        &self.0
    }

    /// Asks for a connection and does not wait for it. Neither a manual environment nor one that failed a moment ago is
    /// disturbed by this.
    pub fn want(&self) {
        let allowed = match &*self.0.state.borrow() {
            ConnectionState::Idle => self.0.policy != ConnectPolicy::Manual,
            ConnectionState::Failed(failure) => failure.may_retry(Instant::now()) && self.0.policy != ConnectPolicy::Manual,
            ConnectionState::Connecting | ConnectionState::Ready(_) | ConnectionState::Recovering { .. } => false,
        };
        if allowed {
            self.0.wake();
        }
    }

    /// Connects on request: at once, whatever the policy and the last failure are.
    pub async fn connect(&self) -> Result<EnvironmentInfo, EnvironmentError> {
        let seen = match &*self.0.state.borrow() {
            ConnectionState::Failed(failure) if failure.is_final() => return Err(self.0.failed(failure)),
            ConnectionState::Failed(failure) => Some(failure.attempt),
            ConnectionState::Idle => Some(0),
            ConnectionState::Connecting | ConnectionState::Ready(_) | ConnectionState::Recovering { .. } => None,
        };
        if seen.is_some() {
            self.0.wake();
        }
        Ok(self.0.settled(seen.unwrap_or(0)).await?.info.clone())
    }

    /// Connects if need be and tells what is there.
    pub async fn info(&self) -> Result<EnvironmentInfo, EnvironmentError> {
        Ok(self.0.ready().await?.info.clone())
    }

    /// The same, asked for anew: executors of ours try only then what sandboxes hold there.
    pub async fn full_info(&self) -> Result<EnvironmentInfo, EnvironmentError> {
        match self.call_again::<Info>(&Unit).await {
            // An executor of others need not have the method.
            Err(EnvironmentError::Fault(_)) => self.info().await,
            told => told,
        }
    }

    pub fn files(&self) -> Files<'_> {
        Files::new(self)
    }

    /// Any method of the wire that has no door of its own here.
    pub async fn call<M: Method>(&self, params: &M::Params, repeat: Repeat) -> Result<M::Output, EnvironmentError> {
        match repeat {
            Repeat::Harmless => self.call_again::<M>(params).await,
            Repeat::Never => self.call_once::<M>(params).await,
        }
    }

    /// Ends the session there, and everything in it, if the executor can do that.
    pub async fn end(&self) -> Result<(), EnvironmentError> {
        // A connection is not made only to close a session; the session's grace ends it then.
        let ConnectionState::Ready(connected) = self.state() else { return Ok(()) };
        if connected.info.capabilities.session_end {
            let ended = timeout(GOODBYE, connected.peer.0.call::<SessionEnd>(&Some(Empty {}))).await;
            self.0.leave.iter().for_each(|(connector, idle)| connector.stop_later(*idle));
            if let Ok(Err(CallError::Fault(fault))) = ended {
                return Err(EnvironmentError::Fault(fault));
            }
        }
        Ok(())
    }

    /// The same for a program that ends now: it is said, and no answer is waited for. A connection through a program is waited for,
    /// because what is said would end with it.
    pub async fn end_unheard(&self) -> Result<(), EnvironmentError> {
        let ConnectionState::Ready(connected) = self.state() else { return Ok(()) };
        if self.0.is_program || !connected.info.capabilities.session_end {
            return self.end().await;
        }
        let peer = connected.peer.0.clone();
        let ending = peer.call::<SessionEnd>(&Some(Empty {}));
        // The request is queued by the first look at the call.
        if futures_util::FutureExt::now_or_never(ending).is_none() {
            let _ = timeout(GOODBYE, peer.sink().flushed()).await;
        }
        self.0.leave.iter().for_each(|(connector, idle)| connector.stop_later(*idle));
        Ok(())
    }

    /// The same, unless something is there that another program may ask for: what still runs, and the result of what a previous run of this
    /// program left behind in the session, whose thread another node may be about to take up. True if the session is over.
    pub async fn end_if_idle(&self) -> Result<bool, EnvironmentError> {
        let ConnectionState::Ready(connected) = self.state() else { return Ok(false) };
        if !connected.info.capabilities.process_list || !connected.info.capabilities.session_end {
            return Ok(false);
        }
        // What was just told to end is gone a moment later, also on a busy machine; a session that is left for its sake would stay.
        for _ in 0..LAST_LOOKS {
            match timeout(LAST_LOOK, connected.peer.0.call::<List>(&Unit)).await {
                Ok(Ok(listed)) if listed.processes.iter().any(|process| !self.0.processes.knew(&process.process_id)) => return Ok(false),
                Ok(Ok(listed)) if listed.processes.iter().all(|process| process.exited) => return self.end().await.map(|()| true),
                Ok(Ok(_)) => sleep(BETWEEN_LOOKS).await,
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Ends a start that has not come to its end. A connection that works is left to those who hold the handle.
    pub(crate) fn retire(&self) {
        let unfinished =
            matches!(&*self.0.state.borrow(), ConnectionState::Idle | ConnectionState::Connecting | ConnectionState::Failed(_));
        if !unfinished {
            return;
        }
        self.0.stop.cancel();
        // A supervisor that runs sees that by itself; one that never ran must still say so.
        let idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = idle {
            supervisor.retired();
        }
    }

    /// Ends the handle because its environment was removed. A program that was started for it is ended, whatever it did before and
    /// all holders of the handle: nothing else could be asked to end it. Any other connection is left to those who hold it.
    pub(crate) fn dismiss(&self) {
        if !self.0.is_program || !matches!(&*self.0.state.borrow(), ConnectionState::Ready(_) | ConnectionState::Recovering { .. }) {
            return self.retire();
        }
        let stop = self.0.stop.clone();
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return stop.cancel() };
        let leaving = self.clone();
        runtime.spawn(async move {
            // A keeper on the other side would hold the session otherwise until its grace is over.
            let _ = timeout(GOODBYE, leaving.end()).await;
            stop.cancel();
        });
    }

    /// One attempt; a lost connection leaves its outcome unknown.
    pub(crate) async fn call_once<M: Method>(&self, params: &M::Params) -> Result<M::Output, EnvironmentError> {
        let connected = self.0.ready().await?;
        self.0.call_on::<M>(&connected, params).await
    }

    /// Asks again after a lost connection. Only for calls that may be carried out twice.
    pub(crate) async fn call_again<M: Method>(&self, params: &M::Params) -> Result<M::Output, EnvironmentError> {
        loop {
            match self.call_once::<M>(params).await {
                Err(EnvironmentError::Unknown { .. }) => {}
                other => return other,
            }
        }
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Environment({} #{})", self.0.label.name, self.0.label.generation)
    }
}

impl EnvironmentShared {
    fn wake(&self) {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = idle {
            // Before anything else happens, so that the caller does not find it idle.
            supervisor.begins();
            tokio::spawn(supervisor.run());
        }
        self.wanted.notify_one();
    }

    /// Waits until the connection works; asks for it if that was not done. All callers share one attempt. After a failure
    /// callers fail at once until it is time for the next attempt.
    pub(crate) async fn ready(&self) -> Result<Arc<Connected>, EnvironmentError> {
        let seen = match &*self.state.borrow() {
            ConnectionState::Ready(connected) => return Ok(connected.clone()),
            ConnectionState::Idle if self.policy == ConnectPolicy::Manual => {
                return Err(EnvironmentError::NotAsked { name: self.label.name.clone() });
            }
            ConnectionState::Failed(failure) if !failure.may_retry(Instant::now()) || self.policy == ConnectPolicy::Manual => {
                return Err(self.failed(failure));
            }
            ConnectionState::Failed(failure) => Some(failure.attempt),
            ConnectionState::Idle => Some(0),
            ConnectionState::Connecting | ConnectionState::Recovering { .. } => None,
        };
        if seen.is_some() {
            self.wake();
        }
        self.settled(seen.unwrap_or(0)).await
    }

    /// Waits until the connection works, but only as long as the session is that one.
    pub(crate) async fn ready_in(&self, session: u64, process: &str) -> Result<Arc<Connected>, EnvironmentError> {
        let connected = self.ready().await?;
        if connected.session == session {
            return Ok(connected);
        }
        Err(EnvironmentError::Lost { name: self.label.name.clone(), id: process.to_owned() })
    }

    /// Waits for the outcome of an attempt after the one that was seen.
    async fn settled(&self, seen: u64) -> Result<Arc<Connected>, EnvironmentError> {
        let mut state = self.state.clone();
        let is_settled = |state: &ConnectionState| match state {
            ConnectionState::Ready(_) => true,
            ConnectionState::Failed(failure) => failure.attempt > seen || failure.is_final(),
            _ => false,
        };
        match state.wait_for(is_settled).await.as_deref() {
            Ok(ConnectionState::Ready(connected)) => Ok(connected.clone()),
            Ok(ConnectionState::Failed(failure)) => Err(self.failed(failure)),
            _ => Err(EnvironmentError::Gone { name: self.label.name.clone(), reason: "it was dropped".into() }),
        }
    }

    fn failed(&self, failure: &Failure) -> EnvironmentError {
        let (name, reason) = (self.label.name.clone(), failure.reason.clone());
        match failure.kind {
            FailureKind::Unreachable | FailureKind::SessionLost => {
                EnvironmentError::Unreachable { name, reason, obstacle: failure.obstacle }
            }
            FailureKind::NeedsLogin => EnvironmentError::NeedsLogin { name, reason },
            FailureKind::TakenOver | FailureKind::OtherExecutor | FailureKind::Retired | FailureKind::Provisioning => {
                EnvironmentError::Gone { name, reason }
            }
        }
    }

    pub(crate) async fn call_on<M: Method>(&self, connected: &Arc<Connected>, params: &M::Params) -> Result<M::Output, EnvironmentError> {
        let _used = self.use_count.begin();
        self.judge::<M>(connected, connected.peer.0.call::<M>(params).await).await
    }

    /// The same with parameters that carry bulk bytes.
    pub(crate) async fn call_bulk_on<M: Method<Params: Encode>>(
        &self,
        connected: &Arc<Connected>,
        params: &M::Params,
    ) -> Result<M::Output, EnvironmentError> {
        let _used = self.use_count.begin();
        self.judge::<M>(connected, connected.peer.0.call_bulk::<M>(params).await).await
    }

    async fn judge<M: Method>(
        &self,
        connected: &Arc<Connected>,
        answer: Result<M::Output, CallError>,
    ) -> Result<M::Output, EnvironmentError> {
        let name = || self.label.name.clone();
        match answer {
            Ok(output) => Ok(output),
            Err(CallError::Fault(fault)) => Err(EnvironmentError::Fault(fault)),
            Err(CallError::Nonsense { why, .. }) => Err(EnvironmentError::Nonsense { name: name(), reason: why }),
            Err(CallError::Lost) => {
                self.moved_on(connected).await;
                Err(EnvironmentError::Unknown { name: name(), method: M::NAME })
            }
        }
    }

    /// Waits until the state is no longer that of a connection that is known to be dead.
    async fn moved_on(&self, dead: &Arc<Connected>) {
        let mut state = self.state.clone();
        let _ = state.wait_for(|state| !matches!(state, ConnectionState::Ready(current) if Arc::ptr_eq(current, dead))).await;
    }
}
