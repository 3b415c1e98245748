//! The owner of a connection: makes it, watches it, gets it back, and gives up when it must.
//!
//! There is one per handle, and none for an unused handle. It alone changes the handle's state.

use std::any::Any;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use outpost_rpc::peer::LinkEnd;
use outpost_rpc::{CallError, Close, LinkError, Peer, PeerOptions};
use outpost_wire::exec::calls::{CarriedAnswer, CarriedCall};
use outpost_wire::exec::environment::{Status, Unit};
use outpost_wire::exec::policy::SandboxLossParams;
use outpost_wire::exec::process::{Read, ReadParams};
use outpost_wire::exec::session::{Empty, SessionEnd};
use outpost_wire::{Method, SharedError, fault};
use tokio::sync::{Notify, broadcast, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::backoff::Backoff;
use crate::connector::{Connector, FIRST_CONNECTION, MonitoredLink, NoExecutor, Pulse};
use crate::environment::{ConnectPolicy, EnvironmentOptions, Observer};
use crate::first_start::{SentStart, StartSlot};
use crate::followed::{CarriedQuestion, FollowedCalls};
use crate::http::Bodies;
use crate::session::{Greeting, Opening, SessionListener, SessionProcesses, greet};
use crate::state::{Connected, ConnectionState, ExecutorIdentity, Failure, FailureKind, Obstacle, PeerHandle};
use crate::usage::CallCounter;
use crate::version;
use crate::watching::HandleWatches;

pub(crate) struct Supervisor {
    pub name: String,
    pub connector: Connector,
    pub options: EnvironmentOptions,
    pub state: watch::Sender<ConnectionState>,
    pub observer: Observer,
    pub processes: Arc<SessionProcesses>,
    pub bodies: Arc<Bodies>,
    pub watches: Arc<HandleWatches>,
    pub followed: Arc<FollowedCalls>,
    /// A process that is started with the connection.
    pub first_start: Arc<StartSlot>,
    /// False once an executor has shown that it takes no calls along with `initialize`.
    pub can_carry: AtomicBool,
    pub losses: broadcast::Sender<SandboxLossParams>,
    pub identity: Arc<Mutex<Option<ExecutorIdentity>>>,
    pub wanted: Arc<Notify>,
    pub stop: CancellationToken,
    /// The session of a previous run of this program, as long as it may still be there.
    pub left: Mutex<Option<String>>,
    pub use_count: Arc<CallCounter>,
}

/// A connection that lasted so long was a good one; the next attempt need not wait.
const STEADY: Duration = Duration::from_secs(5);

/// An executor that answers the first message so soon is near enough to be asked often.
const NEAR: Duration = Duration::from_millis(5);

/// Of so many processes what was missed is asked for in the first message, so much of each.
const READS_ALONG: usize = 16;
const READ_ALONG: usize = 256 << 10;

/// Whether trying again at once would most likely end in the same way.
fn session_was_short(end: &LinkEnd) -> bool {
    matches!(end, LinkEnd::Violated(_) | LinkEnd::Failed(LinkError::Protocol(_)))
}

/// Why an attempt failed.
enum Refused {
    /// No executor is there; worth waiting for only if one was.
    Absent(SharedError),
    /// It broke half-way; another attempt may work.
    ForNow(SharedError),
    /// It did not answer in time; another attempt may work.
    Silent(SharedError),
    ForGood(SharedError),
    /// Another executor is there than the one the handle is bound to.
    OtherExecutor(SharedError),
    /// Its provider failed.
    Unprovided(SharedError),
    /// The user has to log in first.
    Login(SharedError),
    /// For good, and it is known why.
    Barred(Obstacle, SharedError),
    /// No executor is there, and it is known why; worth waiting for only if one was.
    Lacks(Obstacle, SharedError),
}

/// How a session ended.
enum Over {
    Lost(Loss),
    /// It was stopped because it was unused for so long.
    Unused,
}

impl From<Loss> for Over {
    fn from(loss: Loss) -> Self {
        Self::Lost(loss)
    }
}

/// How staying with a connection ended.
enum Stayed {
    Ended(LinkEnd),
    Unused,
}

/// The time for the handshakes of a handle that has no session yet: one for all attempts, counted from the first link on.
#[derive(Default)]
struct FirstHandshake {
    deadline: Option<Instant>,
}

/// What is over, and why.
struct Loss {
    kind: FailureKind,
    reason: SharedError,
    obstacle: Obstacle,
}

impl Loss {
    fn new(kind: FailureKind, reason: impl Into<SharedError>) -> Self {
        Self { kind, reason: reason.into(), obstacle: Obstacle::Unknown }
    }
}

/// A connection that is through the handshake.
struct Conversation {
    peer: Peer,
    driver: AbortOnDropHandle<LinkEnd>,
    greeting: Greeting,
    pulse: Option<Pulse>,
    /// What was asked along with the greeting, and what came of it.
    told: Vec<(CarriedQuestion, CarriedAnswer)>,
    read: Vec<(String, CarriedAnswer)>,
    is_near: bool,
}

impl Supervisor {
    /// The first attempt is about to be made.
    pub(crate) fn begins(&self) {
        self.publish(ConnectionState::Connecting);
    }

    pub(crate) async fn run(self) {
        if self.stop.run_until_cancelled(self.serve()).await.is_none() {
            self.retired();
        }
    }

    /// The handle is no longer meant, and says so to its callers.
    pub(crate) fn retired(&self) {
        let reason = "it was replaced or removed before it was ready".to_owned();
        self.fail(Loss::new(FailureKind::Retired, reason), None, u64::MAX);
    }

    fn publish(&self, state: ConnectionState) {
        self.state.send_replace(state.clone());
        (self.observer)(&state);
    }

    fn fail(&self, loss: Loss, retry_at: Option<Instant>, attempt: u64) {
        let Loss { kind, reason, obstacle } = loss;
        let text = reason.to_string();
        self.bodies.fail_all(&text);
        let lost = self.processes.lose_all(&text).into();
        tracing::debug!(environment = self.name, reason = text, ?lost, "no connection");
        self.publish(ConnectionState::Failed(Failure { kind, reason, obstacle, retry_at, lost, attempt }));
    }

    /// One session after the other, each only when it is asked for.
    async fn serve(&self) {
        let mut retry = Backoff::new(self.options.retry, self.options.jitter_seed);
        for attempt in 1.. {
            if attempt > 1 {
                self.publish(ConnectionState::Connecting);
            }
            let mut was_there = false;
            let over = self.keep(attempt, &mut was_there).await;
            if was_there {
                retry.reset();
            }
            let loss = match over {
                Over::Lost(loss) => loss,
                Over::Unused => {
                    self.wanted.notified().await;
                    continue;
                }
            };
            if loss.kind == FailureKind::NeedsLogin {
                let _ = self.wanted.notified().now_or_never();
                self.fail(loss, None, attempt);
                self.logged_in().await;
                continue;
            }
            let is_final = matches!(loss.kind, FailureKind::OtherExecutor | FailureKind::Retired | FailureKind::Provisioning);
            // The caller that asked for this attempt has had it.
            let _ = self.wanted.notified().now_or_never();
            let retry_at = (!is_final).then(|| Instant::now() + retry.wait());
            self.fail(loss, retry_at, attempt);
            match retry_at {
                None => return,
                Some(at) if self.options.connect == ConnectPolicy::Eager => {
                    let arrival = async {
                        // One that is turned away again and again must not make us try without a pause.
                        sleep(self.options.retry.first).await;
                        self.connector.arrival().await;
                    };
                    tokio::select! {
                        () = sleep_until(at) => {}
                        () = self.wanted.notified() => {}
                        () = arrival => {}
                    }
                }
                Some(_) => self.wanted.notified().await,
            }
        }
    }

    /// Makes one session and keeps it over lost connections, until it cannot be kept.
    async fn keep(&self, number: u64, was_there: &mut bool) -> Over {
        let mut backoff = Backoff::new(self.options.recovery, self.options.jitter_seed);
        let mut session: Option<String> = None;
        let mut patience = self.options.connect_timeout;
        let mut first = FirstHandshake::default();
        // Since when no connection has brought anything but the handshake.
        let mut mute_since: Option<Instant> = None;
        loop {
            let started = Instant::now();
            let conversation = match self.left_behind(session.is_none(), &mut first).await {
                Some(conversation) => conversation,
                None => match self.reach(session.as_deref(), patience, &mut first, &mut backoff).await {
                    Ok(conversation) => conversation,
                    Err(loss) => return loss.into(),
                },
            };
            *was_there = true;
            if let Some(sessions) = &self.options.sessions {
                sessions.remember(&self.name, &conversation.greeting.session_id);
            }
            patience = conversation.greeting.grace.map_or(self.options.patience, |grace| grace.min(self.options.patience));
            let keeps_sessions = !self.connector.needs_keeper() || conversation.greeting.info.capabilities.session_takeover;
            session = Some(conversation.greeting.session_id.clone());
            let peer = conversation.peer.clone();
            let greeted = peer.received();
            let end = match self.stay(conversation, number).await {
                Stayed::Ended(end) => end,
                Stayed::Unused => {
                    if let Some(sessions) = &self.options.sessions {
                        sessions.forget(&self.name);
                    }
                    self.connector.stop().await;
                    return Over::Unused;
                }
            };
            if let LinkEnd::Failed(LinkError::Closed(close)) = &end
                && close.code == Close::TAKEN_OVER
            {
                if let Some(sessions) = &self.options.sessions {
                    sessions.forget(&self.name);
                }
                return Loss::new(FailureKind::TakenOver, "another client has taken the session over").into();
            }
            let reason = describe(&end);
            self.bodies.fail_all(&reason);
            if !keeps_sessions {
                let reason = format!("{reason}; what is behind this command keeps no sessions, so nothing can be recovered");
                return Loss::new(FailureKind::SessionLost, reason).into();
            }
            tracing::debug!(environment = self.name, reason, "connection lost");
            self.publish(ConnectionState::Recovering { reason: reason.clone(), retry_at: None, needs_login: false });
            let is_mute = peer.received() == greeted;
            drop(peer);
            if started.elapsed() > STEADY {
                backoff.reset();
            } else if is_mute || session_was_short(&end) {
                let since = *mute_since.get_or_insert(started);
                if is_mute && since.elapsed() > patience {
                    let reason = format!("it ends every connection right after the handshake: {reason}");
                    return Loss::new(FailureKind::SessionLost, reason).into();
                }
                self.pause(&mut backoff, reason).await;
            }
            if !is_mute || started.elapsed() > STEADY {
                mute_since = None;
            }
        }
    }

    /// The session of a previous run of this program, if it is still there. It is given up only when the executor says
    /// that it is over.
    async fn left_behind(&self, is_new: bool, first: &mut FirstHandshake) -> Option<Conversation> {
        let sessions = self.options.sessions.as_ref().filter(|_| is_new)?;
        let left = || self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let session = left().take().or_else(|| sessions.recall(&self.name))?;
        match self.connect(Some(&session), Some(first)).await {
            Ok(conversation) => return Some(conversation),
            Err(Refused::ForNow(_) | Refused::Absent(_) | Refused::Login(_)) => *left() = Some(session),
            Err(_) => tracing::debug!(environment = self.name, "the session of an earlier start is over"),
        }
        None
    }

    /// Waits until the user has logged in, or a caller asks for another attempt.
    async fn logged_in(&self) {
        let login = async {
            // What sleeps is woken only by name.
            if self.options.connect == ConnectPolicy::Manual {
                return std::future::pending().await;
            }
            self.connector.login().await;
        };
        tokio::select! {
            () = self.wanted.notified() => {}
            () = login => {}
        }
    }

    async fn pause(&self, backoff: &mut Backoff, reason: String) {
        let wait = backoff.wait();
        if matches!(&*self.state.borrow(), ConnectionState::Recovering { .. }) {
            self.publish(ConnectionState::Recovering { reason, retry_at: Some(Instant::now() + wait), needs_login: false });
        }
        sleep(wait).await;
    }

    /// Connects, trying as often as patience allows if there is a session to get back.
    async fn reach(
        &self,
        session: Option<&str>,
        patience: Duration,
        first: &mut FirstHandshake,
        backoff: &mut Backoff,
    ) -> Result<Conversation, Loss> {
        let until = Instant::now() + patience;
        let kind = if session.is_some() { FailureKind::SessionLost } else { FailureKind::Unreachable };
        let mut before = None;
        loop {
            let connecting = if session.is_none() { self.connect(session, Some(first)).await } else { self.connect(session, None).await };
            let deadline = first.deadline.filter(|_| session.is_none()).unwrap_or(until);
            let reason = match connecting {
                Ok(conversation) => return Ok(conversation),
                Err(Refused::ForGood(reason)) => return Err(Loss::new(kind, reason)),
                Err(Refused::Barred(obstacle, reason)) => return Err(Loss { kind, reason, obstacle }),
                Err(Refused::Lacks(obstacle, reason)) if session.is_none() => return Err(Loss { kind, reason, obstacle }),
                Err(Refused::OtherExecutor(reason)) => return Err(Loss::new(FailureKind::OtherExecutor, reason)),
                Err(Refused::Login(reason)) if session.is_none() || Instant::now() >= deadline => {
                    return Err(Loss::new(FailureKind::NeedsLogin, reason));
                }
                Err(Refused::Login(reason)) => {
                    // The session is kept there for a while.
                    tracing::debug!(environment = self.name, %reason, "the user has to log in");
                    self.publish(ConnectionState::Recovering { reason: reason.to_string(), retry_at: None, needs_login: true });
                    let _ = timeout_at(deadline, self.logged_in()).await;
                    continue;
                }
                Err(Refused::Unprovided(reason)) => return Err(Loss::new(FailureKind::Provisioning, reason)),
                Err(Refused::Absent(reason)) if session.is_none() => return Err(Loss::new(kind, reason)),
                // What an earlier attempt was told says more than that there was no time left for this one.
                Err(Refused::Silent(reason)) if session.is_none() => before.take().unwrap_or(reason),
                Err(Refused::ForNow(reason) | Refused::Silent(reason) | Refused::Absent(reason) | Refused::Lacks(_, reason)) => reason,
            };
            if Instant::now() >= deadline {
                return Err(Loss::new(kind, reason));
            }
            before = Some(reason.clone());
            tracing::debug!(environment = self.name, %reason, "cannot connect yet");
            let paused = timeout_at(deadline, self.pause(backoff, reason.to_string())).await;
            if paused.is_err() && session.is_none() {
                return Err(Loss::new(kind, reason));
            }
        }
    }

    async fn connect(&self, session: Option<&str>, first: Option<&mut FirstHandshake>) -> Result<Conversation, Refused> {
        self.connector.provided().await.map_err(Refused::Unprovided)?;
        // Whatever a connector is, one that panics must not leave those waiting who want the environment.
        let reached = async {
            let reached = AssertUnwindSafe(async { self.connector.connect(session).await }).catch_unwind().await;
            reached.unwrap_or_else(|panic| Err(LinkError::Protocol(format!("the connector panicked: {}", said_by(&*panic)).into())))
        };
        let MonitoredLink { link, pulse } = match timeout(self.options.connect_timeout, reached).await {
            Ok(Ok(line)) => line,
            // A proxy in front of an executor that is being restarted refuses, too.
            Ok(Err(error @ (LinkError::Protocol(_) | LinkError::Refused { .. } | LinkError::Credentials(_)))) if session.is_none() => {
                return Err(Refused::Barred(obstacle(&error), SharedError::new(error)));
            }
            Ok(Err(error)) if NoExecutor::of(&error).is_some() => return Err(missing(error, &self.name)),
            Ok(Err(LinkError::Io(error))) if is_cut(&error) => return Err(Refused::ForNow(SharedError::new(error))),
            Ok(Err(error)) => return Err(Refused::Absent(SharedError::new(error))),
            Err(_) if self.connector.waits_for_the_first() => {
                return Err(Refused::Lacks(Obstacle::FirstConnection, FIRST_CONNECTION.into()));
            }
            Err(_) => return Err(Refused::Absent(format!("no connection within {:?}", self.options.connect_timeout).into())),
        };
        let (peer, driver) = Peer::new(link, PeerOptions::default(), |_| {
            Arc::new(SessionListener {
                processes: self.processes.clone(),
                bodies: self.bodies.clone(),
                watches: self.watches.clone(),
                followed: self.followed.clone(),
                losses: self.losses.clone(),
            })
        });
        let mut driver = AbortOnDropHandle::new(tokio::spawn(driver));
        let now = Instant::now() + self.options.initialize_timeout;
        let deadline = first.map_or(now, |first| *first.deadline.get_or_insert(now));
        let can_carry = self.can_carry.load(Ordering::Acquire);
        let start = self.first_start.take().filter(|_| session.is_none() && can_carry);
        let reads = if can_carry && session.is_some() { self.reads() } else { Vec::new() };
        let questions = if can_carry { self.followed.carried() } else { Vec::new() };
        let calls = start.iter().map(SentStart::call).chain(reads.iter().map(|(_, call)| call.clone()));
        let calls: Vec<CarriedCall> = calls.chain(questions.iter().map(|question| question.call.clone())).collect();
        let has_calls = !calls.is_empty();
        let expected = self.identity.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(|bound| bound.executor_id.clone());
        let new_session = start.as_ref().map(|start| start.session_id.clone());
        let opening = Opening {
            client_name: self.options.client_name.clone(),
            resume: session.map(str::to_owned),
            caller: self.connector.caller().cloned(),
            expected,
            new_session: new_session.clone(),
            calls,
        };
        let asked = Instant::now();
        let greeted = if start.as_ref().is_some_and(|start| start.may_have_begun) {
            // The session may be there. If it is not, nothing was started, and the same link takes it from the beginning.
            let resumed = Opening { resume: new_session, new_session: None, ..opening.clone() };
            match timeout_at(deadline, greet(&peer, resumed)).await {
                Ok(Err(CallError::Fault(fault))) if fault.code == fault::INVALID_REQUEST => {
                    timeout_at(deadline, greet(&peer, opening)).await
                }
                other => other,
            }
        } else {
            timeout_at(deadline, greet(&peer, opening)).await
        };
        let is_near = self.connector.is_here() || asked.elapsed() < NEAR;
        let is_started = start.is_some();
        if let Some(again) = start.and_then(|start| start.settle(&greeted)) {
            self.first_start.put(again);
        }
        let mut greeting = match greeted {
            Ok(Ok(greeting)) if session.is_none_or(|id| id == greeting.session_id) => greeting,
            Ok(Ok(_)) => return Err(Refused::ForGood("the executor answered with another session than the one asked for".into())),
            Ok(Err(CallError::Fault(fault))) if fault.code == fault::SESSION_ATTACHED => return Err(Refused::ForNow(fault.message.into())),
            Ok(Err(CallError::Fault(fault))) if fault.code == fault::OTHER_EXECUTOR => {
                return Err(Refused::OtherExecutor(format!("another executor answers now: {}", fault.message).into()));
            }
            Ok(Err(CallError::Fault(fault))) if session.is_some() => {
                let hint = if self.connector.needs_keeper() { "; a command keeps its sessions only with `--keep`" } else { "" };
                return Err(Refused::ForGood(format!("the session could not be resumed: {}{hint}", fault.message).into()));
            }
            Ok(Err(CallError::Lost)) => {
                let end = timeout(Duration::from_secs(2), &mut driver).await;
                return Err(match end {
                    // A command that failed says so; asking it again would not help.
                    Ok(Ok(LinkEnd::Failed(LinkError::Io(error)))) if !is_cut(&error) => Refused::Absent(SharedError::new(error)),
                    Ok(Ok(end)) => Refused::ForNow(format!("{} during the handshake", describe(&end)).into()),
                    _ => Refused::ForNow("the connection was lost during the handshake".into()),
                });
            }
            Ok(Err(error)) => return Err(Refused::ForGood(SharedError::new(error))),
            Err(_) => {
                return Err(Refused::Silent(format!("no answer to the handshake within {:?}", self.options.initialize_timeout).into()));
            }
        };
        if greeting.info.capabilities.session_takeover
            && let Some(there) = &greeting.info.executor_version
            && let Some(refusal) = version::refusal(&self.options.version, there, &self.name)
        {
            let _ = timeout(Duration::from_secs(1), peer.call::<SessionEnd>(&Some(Empty {}))).await;
            return Err(Refused::Barred(Obstacle::Version, refusal.into()));
        }
        self.recognise(&peer, &greeting, session.is_some()).await?;
        let mut answers = greeting.answers.take().unwrap_or_default().into_iter();
        if has_calls && answers.len() == 0 {
            self.can_carry.store(false, Ordering::Release);
        }
        if is_started {
            answers.next();
        }
        let read = reads.into_iter().map(|(id, _)| id).zip(answers.by_ref()).collect();
        let told = questions.into_iter().zip(answers).collect();
        Ok(Conversation { peer, driver, greeting, pulse, told, read, is_near })
    }

    /// A handle is bound to the first executor that answers. One that cannot prove to be the same is another executor, unless
    /// it knows our session.
    async fn recognise(&self, peer: &Peer, greeting: &Greeting, is_resumed: bool) -> Result<(), Refused> {
        let identity = ExecutorIdentity::of(&greeting.info);
        let bound = self.identity.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_known = bound.as_ref().is_none_or(|bound| {
            bound.is_same_executor(&identity) || (is_resumed && bound.executor_id.is_none() && identity.executor_id.is_none())
        });
        if is_known {
            *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = Some(identity);
            return Ok(());
        }
        // It would keep the session for a while otherwise.
        if greeting.info.capabilities.session_end {
            let _ = timeout(Duration::from_secs(1), peer.call::<SessionEnd>(&Some(Empty {}))).await;
        }
        let name = |id: Option<&str>| id.map_or_else(|| "one that tells no identity".to_owned(), |id| format!("executor {id}"));
        let was = name(bound.as_ref().and_then(|bound| bound.executor_id.as_deref()));
        let told = format!("another executor answers now: {}, not {was}", name(identity.executor_id.as_deref()));
        Err(Refused::OtherExecutor(told.into()))
    }

    /// Stays with a connection until it ends.
    async fn stay(&self, conversation: Conversation, number: u64) -> Stayed {
        let Conversation { peer, mut driver, greeting, pulse, told, read, is_near } = conversation;
        let is_ours = greeting.info.capabilities.session_takeover;
        let idle_stop = self.options.idle_stop.filter(|_| is_ours);
        let connected = Connected { peer: PeerHandle(peer.clone()), session: number, info: greeting.info, is_near };
        let connected = Arc::new(connected);
        self.followed.adopt(&connected, told);
        let known: Vec<String> = read.into_iter().filter_map(|(id, answer)| self.take_read(&id, answer).then_some(id)).collect();
        self.publish(ConnectionState::Ready(connected));
        let reading = async {
            for id in self.processes.ids().iter().filter(|id| !known.contains(id)) {
                self.read_up(&peer, id).await;
            }
            loop {
                let id = self.processes.next_behind().await;
                self.read_up(&peer, &id).await;
            }
        };
        let unused = async {
            match idle_stop {
                Some(time) => self.use_count.idle_for(time, || !self.processes.ids().is_empty()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            end = &mut driver => Stayed::Ended(end.unwrap_or(LinkEnd::Closed(None))),
            () = reading => Stayed::Ended(LinkEnd::Closed(None)),
            // An executor of others may be silent for as long as one of its calls takes.
            silence = self.listen(&peer, pulse.as_ref()), if is_ours && pulse.is_some() => {
                Stayed::Ended(LinkEnd::Failed(LinkError::Silent(silence)))
            }
            () = unused => {
                // Callers wait from now on until it has been started again.
                let _ = self.wanted.notified().now_or_never();
                self.publish(ConnectionState::Idle);
                let _ = timeout(Duration::from_secs(2), peer.call::<SessionEnd>(&Some(Empty {}))).await;
                Stayed::Unused
            }
        }
    }

    /// Asks the other side again and again whether it is there; returns when it is not.
    async fn listen(&self, peer: &Peer, pulse: Option<&Pulse>) -> Duration {
        let heartbeat = self.options.heartbeat;
        loop {
            sleep(heartbeat.every).await;
            // Without a reader here nothing is received.
            self.processes.room().await;
            let (heard, queued) = (pulse.map(Pulse::count), peer.sink().queued());
            let answered = timeout(heartbeat.give_up_after, peer.call::<Status>(&Unit)).await.is_ok();
            // A large message takes its time in either direction, and nothing else gets through meanwhile.
            let moves = pulse.map(Pulse::count) != heard || peer.sink().queued() < queued;
            if !answered && !moves && self.processes.has_room() {
                return heartbeat.give_up_after;
            }
        }
    }

    /// The questions with which a connection begins that takes a session up: what was missed of its processes.
    fn reads(&self) -> Vec<(String, CarriedCall)> {
        let question = |id: String| {
            let inbox = self.processes.get(&id)?;
            let params =
                ReadParams { process_id: id.clone(), after_seq: Some(inbox.last_seq()), max_bytes: Some(READ_ALONG), wait_ms: None };
            let params = serde_json::value::to_raw_value(&params).ok()?;
            Some((id, CarriedCall { method: Read::NAME.to_owned(), params, follow: None }))
        };
        self.processes.ids().into_iter().take(READS_ALONG).filter_map(question).collect()
    }

    /// Takes what was missed of a process. False if it has to be asked for.
    fn take_read(&self, id: &str, answer: CarriedAnswer) -> bool {
        let Some(inbox) = self.processes.get(id) else { return true };
        let Some(answer) = answer.result.and_then(|result| serde_json::from_str(result.get()).ok()) else { return false };
        let (bytes, more) = inbox.catch_up(answer);
        self.processes.note_unread(bytes);
        !more
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
                // A process is put here before it is started; it may not have been started yet.
                Err(CallError::Fault(_)) if inbox.last_seq() == 0 => return,
                Err(CallError::Fault(fault)) => {
                    inbox.lose(fault.message);
                    self.processes.remove(id, &inbox);
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

/// What stands in the way of a link that is refused for good.
fn obstacle(error: &LinkError) -> Obstacle {
    match error {
        LinkError::Refused { status: 401, .. } => Obstacle::Token,
        LinkError::Credentials(_) => Obstacle::TokenFile,
        _ => Obstacle::Unknown,
    }
}

/// What a way that is known to lead nowhere means.
fn missing(error: LinkError, name: &str) -> Refused {
    match NoExecutor::of(&error) {
        Some(NoExecutor::NeedsLogin { said }) => Refused::Login(said.trim_end_matches('.').into()),
        Some(NoExecutor::NoProgram) => {
            Refused::Lacks(Obstacle::NoProgram, format!("there is no outpost there; type `outpost env upgrade {name}`").into())
        }
        Some(NoExecutor::Over { .. }) => Refused::ForGood(SharedError::new(error)),
        _ => Refused::Absent(SharedError::new(error)),
    }
}

/// What a panic says.
fn said_by(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it does not say why".into())
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
