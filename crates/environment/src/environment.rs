//! A place with processes and files, and the connection to it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use outpost_rpc::peer::LinkEnd;
use outpost_rpc::{CallError, Close, Link, LinkError, Peer, PeerOptions};
use outpost_wire::exec::environment::EnvironmentInfo;
use outpost_wire::exec::process::{Read, ReadParams};
use outpost_wire::exec::session::{Empty, SessionEnd};
use outpost_wire::{Fault, Method, fault};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use crate::backoff::Backoff;
use crate::connector::Connector;
use crate::files::Files;
use crate::session::{Greeting, Listener, Processes, greet};

/// How patient an environment is with its connection.
#[derive(Debug, Clone)]
pub struct EnvironmentOptions {
    /// How the executor is told who we are.
    pub client_name: String,
    pub connect_timeout: Duration,
    pub initialize_timeout: Duration,
    /// How long to try to get a lost connection back before everything there is given up.
    pub patience: Duration,
    /// Makes the waits of this client unlike those of others.
    pub jitter_seed: u64,
}

impl Default for EnvironmentOptions {
    fn default() -> Self {
        Self {
            client_name: "outpost".into(),
            connect_timeout: Duration::from_secs(10),
            initialize_timeout: Duration::from_secs(10),
            patience: Duration::from_secs(600),
            jitter_seed: 0,
        }
    }
}

/// What a connection is up to.
#[derive(Debug, Clone)]
pub enum State {
    /// Nobody has asked for it yet.
    Idle,
    Connecting,
    Ready(Arc<Connected>),
    /// It was there and is being got back.
    Recovering {
        reason: String,
    },
    /// It will not come back.
    Failed {
        reason: String,
        unreachable: bool,
    },
}

/// A connection that works.
#[derive(Debug)]
pub struct Connected {
    peer: PeerHandle,
    pub info: EnvironmentInfo,
}

/// Only so that [`State`] can be printed.
#[derive(Clone)]
struct PeerHandle(Peer);

impl std::fmt::Debug for PeerHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Peer")
    }
}

#[derive(Debug, Clone, Error)]
pub enum EnvironmentError {
    #[error("{name} is unreachable: {reason}")]
    Unreachable { name: String, reason: String },
    #[error("the connection to {name} is gone for good: {reason}")]
    Gone { name: String, reason: String },
    /// The connection was lost while the call was out; whether it was carried out is not known.
    #[error("the connection to {name} was lost during `{method}`; it may or may not have happened")]
    Unknown { name: String, method: &'static str },
    #[error("{}", .0.message)]
    Fault(Fault),
    #[error("a process with the id {id} is already followed here")]
    IdInUse { id: String },
    #[error("{name} answers nonsense: {reason}")]
    Nonsense { name: String, reason: String },
}

/// Cheap to clone; all clones share one connection, which is made on first use and ends with the last of them.
#[derive(Clone)]
pub struct Environment(Arc<Shared>);

pub(crate) struct Shared {
    name: String,
    state: watch::Receiver<State>,
    wanted: Arc<tokio::sync::Notify>,
    pub processes: Arc<Processes>,
    _stop: DropGuard,
}

impl Environment {
    /// Nothing is connected until something is asked for.
    pub fn new(connector: Connector, options: EnvironmentOptions) -> Self {
        let (sender, state) = watch::channel(State::Idle);
        let (wanted, stop) = (Arc::new(tokio::sync::Notify::new()), CancellationToken::new());
        let processes = Arc::new(Processes::default());
        let name = connector.name().to_owned();
        let supervisor = Supervisor { connector, options, state: sender, processes: processes.clone() };
        let (asked, stopped) = (wanted.clone(), stop.clone());
        tokio::spawn(async move {
            stopped
                .run_until_cancelled(async {
                    asked.notified().await;
                    supervisor.run().await;
                })
                .await;
        });
        Self(Arc::new(Shared { name, state, wanted, processes, _stop: stop.drop_guard() }))
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The state now and every change of it.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.0.state.clone()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0
    }

    /// Connects if need be and tells what is there.
    pub async fn info(&self) -> Result<EnvironmentInfo, EnvironmentError> {
        Ok(self.0.ready().await?.info.clone())
    }

    pub fn files(&self) -> Files<'_> {
        Files::new(self)
    }

    /// Ends the session there, and everything in it, if the executor can do that.
    pub async fn end(&self) -> Result<(), EnvironmentError> {
        // Nobody waits for a connection only to say good-bye; the session's grace ends it then.
        let State::Ready(connected) = self.0.state.borrow().clone() else { return Ok(()) };
        if connected.info.capabilities.session_end {
            let ended = timeout(Duration::from_secs(2), connected.peer.0.call::<SessionEnd>(&Some(Empty {}))).await;
            if let Ok(Err(CallError::Fault(fault))) = ended {
                return Err(EnvironmentError::Fault(fault));
            }
        }
        Ok(())
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

impl Shared {
    /// Waits until the connection works; asks for it if nobody has.
    pub async fn ready(&self) -> Result<Arc<Connected>, EnvironmentError> {
        self.wanted.notify_one();
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| matches!(state, State::Ready(_) | State::Failed { .. })).await;
        let name = self.name.clone();
        match settled.as_deref() {
            Ok(State::Ready(connected)) => Ok(connected.clone()),
            Ok(State::Failed { reason, unreachable: true }) => Err(EnvironmentError::Unreachable { name, reason: reason.clone() }),
            Ok(State::Failed { reason, .. }) => Err(EnvironmentError::Gone { name, reason: reason.clone() }),
            _ => Err(EnvironmentError::Gone { name, reason: "it was dropped".into() }),
        }
    }

    pub async fn call_on<M: Method>(&self, connected: &Arc<Connected>, params: &M::Params) -> Result<M::Output, EnvironmentError> {
        let name = || self.name.clone();
        match connected.peer.0.call::<M>(params).await {
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
        let _ = state.wait_for(|state| !matches!(state, State::Ready(current) if Arc::ptr_eq(current, dead))).await;
    }
}

/// Owns the connection: makes it, watches it, gets it back.
struct Supervisor {
    connector: Connector,
    options: EnvironmentOptions,
    state: watch::Sender<State>,
    processes: Arc<Processes>,
}

/// A connection that lasted so long was a good one; the next attempt need not wait.
const STEADY: Duration = Duration::from_secs(5);

/// Whether trying again at once would most likely end in the same way.
fn session_was_short(end: &LinkEnd) -> bool {
    matches!(end, LinkEnd::Violated(_) | LinkEnd::Failed(LinkError::Protocol(_)))
}

/// Why an attempt failed.
enum Refused {
    /// Nobody is there; worth waiting for only if somebody was.
    Absent(String),
    /// It broke half-way; another attempt may work.
    ForNow(String),
    ForGood(String),
}

impl Supervisor {
    async fn run(&self) {
        self.state.send_replace(State::Connecting);
        let mut session: Option<String> = None;
        let mut backoff = Backoff::new(self.options.jitter_seed);
        loop {
            let started = Instant::now();
            let reason = match self.attempt(session.take(), &mut backoff).await {
                Ok((session_id, end)) => {
                    if started.elapsed() > STEADY {
                        backoff = Backoff::new(self.options.jitter_seed);
                    } else if session_was_short(&end) {
                        sleep(backoff.wait()).await;
                    }
                    session = Some(session_id);
                    match end {
                        LinkEnd::Failed(LinkError::Closed(close)) if close.code == Close::TAKEN_OVER => {
                            return self.fail("another client has taken the session over".into(), false);
                        }
                        end => describe(&end),
                    }
                }
                Err(reason) => return self.fail(reason, true),
            };
            tracing::debug!(environment = self.connector.name(), reason, "connection lost");
            self.state.send_replace(State::Recovering { reason });
        }
    }

    fn fail(&self, reason: String, unreachable: bool) {
        self.processes.lose_all(&reason);
        self.state.send_replace(State::Failed { reason, unreachable });
    }

    /// Connects, trying as often as patience allows if there is a session to get back, and stays until the link ends.
    async fn attempt(&self, session: Option<String>, backoff: &mut Backoff) -> Result<(String, LinkEnd), String> {
        let patience = if session.is_some() { self.options.patience } else { self.options.connect_timeout };
        let deadline = Instant::now() + patience;
        loop {
            match self.connect(session.clone()).await {
                Ok((peer, driver, greeting)) => return Ok(self.stay(peer, driver, greeting).await),
                Err(Refused::ForGood(reason)) => return Err(reason),
                Err(Refused::Absent(reason)) if session.is_none() => return Err(reason),
                Err(Refused::ForNow(reason) | Refused::Absent(reason)) if Instant::now() >= deadline => return Err(reason),
                Err(Refused::ForNow(reason) | Refused::Absent(reason)) => {
                    tracing::debug!(environment = self.connector.name(), reason, "cannot reconnect yet");
                    sleep(backoff.wait()).await;
                }
            }
        }
    }

    async fn connect(&self, session: Option<String>) -> Result<(Peer, AbortOnDropHandle<LinkEnd>, Greeting), Refused> {
        let link: Link = match timeout(self.options.connect_timeout, self.connector.connect()).await {
            Ok(Ok(link)) => link,
            // A proxy in front of an executor that is being restarted refuses, too.
            Ok(Err(error @ LinkError::Protocol(_))) if session.is_none() => return Err(Refused::ForGood(error.to_string())),
            Ok(Err(LinkError::Io(error))) if is_cut(&error) => return Err(Refused::ForNow(error.to_string())),
            Ok(Err(error)) => return Err(Refused::Absent(error.to_string())),
            Err(_) => return Err(Refused::Absent(format!("no connection within {:?}", self.options.connect_timeout))),
        };
        let (peer, driver) = Peer::new(link, PeerOptions::default(), |_| Arc::new(Listener { processes: self.processes.clone() }));
        let mut driver = AbortOnDropHandle::new(tokio::spawn(driver));
        let resuming = session.clone();
        let deadline = Instant::now() + self.options.initialize_timeout;
        match timeout_at(deadline, greet(&peer, &self.options.client_name, session)).await {
            Ok(Ok(greeting)) if resuming.as_ref().is_none_or(|id| *id == greeting.session_id) => Ok((peer, driver, greeting)),
            Ok(Ok(_)) => Err(Refused::ForGood("the executor answered with another session than the one asked for".into())),
            Ok(Err(CallError::Fault(fault))) if fault.code == fault::SESSION_ATTACHED => Err(Refused::ForNow(fault.message)),
            Ok(Err(CallError::Fault(fault))) if resuming.is_some() => {
                Err(Refused::ForGood(format!("the session could not be resumed: {}", fault.message)))
            }
            Ok(Err(CallError::Lost)) => {
                let end = timeout(Duration::from_secs(2), &mut driver).await;
                Err(match end {
                    // A command that failed says so; asking it again would not help.
                    Ok(Ok(LinkEnd::Failed(LinkError::Io(error)))) if !is_cut(&error) => Refused::Absent(error.to_string()),
                    Ok(Ok(end)) => Refused::ForNow(format!("{} during the handshake", describe(&end))),
                    _ => Refused::ForNow("the connection was lost during the handshake".into()),
                })
            }
            Ok(Err(error)) => Err(Refused::ForGood(error.to_string())),
            Err(_) => Err(Refused::ForNow(format!("no answer to the handshake within {:?}", self.options.initialize_timeout))),
        }
    }

    /// Stays with a connection until it ends.
    async fn stay(&self, peer: Peer, mut driver: AbortOnDropHandle<LinkEnd>, greeting: Greeting) -> (String, LinkEnd) {
        self.state.send_replace(State::Ready(Arc::new(Connected { peer: PeerHandle(peer.clone()), info: greeting.info })));
        let reading = async {
            for id in self.processes.ids() {
                self.read_up(&peer, &id).await;
            }
            loop {
                let id = self.processes.next_behind().await;
                self.read_up(&peer, &id).await;
            }
        };
        let end = tokio::select! {
            end = &mut driver => end.unwrap_or(LinkEnd::Closed(None)),
            () = reading => LinkEnd::Closed(None),
        };
        (greeting.session_id, end)
    }

    /// Reads what was missed of one process.
    async fn read_up(&self, peer: &Peer, id: &str) {
        let Some(inbox) = self.processes.get(id) else { return };
        loop {
            self.processes.room().await;
            let params =
                ReadParams { process_id: id.to_owned(), after_seq: Some(inbox.last_seq()), max_bytes: Some(1 << 20), wait_ms: None };
            match peer.call::<Read>(&params).await {
                Ok(answer) => {
                    let (bytes, more) = inbox.catch_up(answer);
                    self.processes.note_unread(bytes);
                    if !more {
                        return;
                    }
                }
                // Whoever starts a process puts it here first; it may not have been started yet.
                Err(CallError::Fault(_)) if inbox.last_seq() == 0 => return,
                Err(CallError::Fault(fault)) => {
                    inbox.lose(fault.message);
                    self.processes.remove(id);
                    return;
                }
                Err(CallError::Nonsense { why, .. }) => {
                    inbox.lose(format!("its output cannot be understood: {why}"));
                    return;
                }
                Err(CallError::Lost) => return,
            }
        }
    }
}

/// Whether a connection was there and broke.
fn is_cut(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
    )
}

fn describe(end: &LinkEnd) -> String {
    match end {
        LinkEnd::Closed(_) => "the other side closed the connection".into(),
        LinkEnd::Failed(error) => error.to_string(),
        LinkEnd::Violated(violation) => format!("the executor broke the protocol: {violation}"),
    }
}
