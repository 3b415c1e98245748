//! Executors that dial in, and how others reach them through here.
//!
//! An executor keeps one link more out than is in use. An unused link waits in the registry; the environment of
//! that id takes one, and so does every client that reaches the executor from elsewhere. Sessions are the executor's business:
//! whichever link they are resumed on, they are the same. See docs/decisions/0013-executors-that-dial-in.md.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;
use outpost_environment::{EnvironmentOrigin, JoinedLinks, Registry, RegistryError};
use outpost_listener::http_service::{HttpOutcome, HttpRequest, plain};
use outpost_rpc::link::Liveness;
use outpost_rpc::{Close, FrameSink, Link};
use outpost_wire::EnvironmentId;
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

use crate::admission::{AdmissionSlot, BrowserAdmission, Pass};
use crate::relay;
use crate::tokens::{BindError, Issued, TokenError, TokenPurpose, TokenStore};

/// How patient this room is.
#[derive(Debug, Clone, Copy)]
pub struct JoinLimits {
    /// An executor that was not heard for so long is gone: it asks for a sign of life every ten seconds itself.
    pub silence: Duration,
    /// How long a client that wants to reach an executor waits for its next link.
    pub patience: Duration,
}

impl Default for JoinLimits {
    fn default() -> Self {
        Self { silence: Duration::from_secs(45), patience: Duration::from_secs(5) }
    }
}

/// What an executor says of itself when it dials in.
#[derive(Debug, Clone)]
struct Hello {
    id: EnvironmentId,
    /// The install: stays the same for ever.
    identity: String,
    /// One start of it.
    instance: String,
    /// Numbers the links of one start.
    link: u64,
    /// Its links that it still has. Those of which it knows nothing any more are dead, however they look from here.
    live: Vec<u64>,
}

#[derive(Debug, Error)]
pub(crate) enum JoinError {
    #[error("missing or invalid token; an executor shows one that `outpost token create --executor ID` made here")]
    Token,
    #[error("this token is for {scope}, not for joining as `{id}`")]
    Scope { scope: TokenPurpose, id: EnvironmentId },
    #[error("`{0}` is missing from the address, or makes no sense")]
    Said(&'static str),
    #[error("environment `{0}` is defined in environments.toml; join under another id, or remove it there")]
    Configured(EnvironmentId),
    #[error("another start of the executor `{0}` is connected; stop it first, or give it up to {1:?} if its machine went away")]
    Doubled(EnvironmentId, Duration),
    #[error("the token cannot be checked now: {0}")]
    Store(TokenError),
    #[error(transparent)]
    Bound(#[from] BindError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

impl JoinError {
    fn reception(&self) -> HttpOutcome {
        let status = match self {
            Self::Token => return HttpOutcome::Unauthenticated(plain(StatusCode::UNAUTHORIZED, self.to_string())),
            Self::Scope { .. } => StatusCode::FORBIDDEN,
            Self::Said(_) => StatusCode::BAD_REQUEST,
            Self::Configured(_) | Self::Doubled(..) | Self::Bound(BindError::Other { .. }) | Self::Registry(_) => StatusCode::CONFLICT,
            Self::Bound(BindError::Token(TokenError::Store(_))) | Self::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Bound(BindError::Token(_)) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        HttpOutcome::Answer(plain(status, self.to_string()))
    }
}

/// All executors that dial in here.
pub struct Executors {
    registry: Registry,
    tokens: TokenStore,
    admission: Arc<BrowserAdmission>,
    limits: JoinLimits,
    joined: Mutex<HashMap<EnvironmentId, Joined>>,
    /// Ids that a token is out for.
    expected: Mutex<Vec<EnvironmentId>>,
    joins: AtomicU64,
    refusals: AtomicU64,
}

/// The links of one executor.
#[derive(Default)]
struct Joined {
    instance: String,
    links: HashMap<u64, Held>,
}

struct Held {
    sink: FrameSink,
    liveness: Liveness,
}

impl Executors {
    pub fn new(registry: Registry, tokens: TokenStore, admission: Arc<BrowserAdmission>, limits: JoinLimits) -> Arc<Self> {
        Arc::new(Self {
            registry,
            tokens,
            admission,
            limits,
            joined: Mutex::default(),
            expected: Mutex::default(),
            joins: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<EnvironmentId, Joined>> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the registry in step with the tokens for as long as this future is polled: an executor that may dial in is an
    /// environment, whether it has come or not, and one that may not is none any more.
    pub async fn follow_tokens(&self) {
        let mut changes = self.tokens.changes();
        loop {
            match self.tokens.list().await {
                Ok(all) => self.expect(all.into_iter().filter_map(|token| token.scope.executor())).await,
                Err(error) => tracing::warn!(%error, "the tokens of executors cannot be read"),
            }
            changes.next().await;
        }
    }

    async fn expect(&self, ids: impl Iterator<Item = EnvironmentId>) {
        let mut expected: Vec<EnvironmentId> = Vec::new();
        for id in ids {
            if !expected.contains(&id) {
                expected.push(id);
            }
        }
        let mut known = std::mem::replace(&mut *self.expected.lock().unwrap_or_else(PoisonError::into_inner), expected.clone());
        for id in &expected {
            match self.door(id) {
                Ok(door) => self.recognise(id, &door).await,
                Err(_) if known.contains(id) => {}
                Err(error) => tracing::warn!(%id, %error, "an executor with this id cannot join"),
            }
        }
        // Some come and lose their token between two looks.
        known.extend(self.lock().keys().cloned());
        for id in known.iter().filter(|id| !expected.contains(id)) {
            self.forget(id);
        }
    }

    /// Asks at each look until it is known: it may join at another node first, and the store may not answer now.
    async fn recognise(&self, id: &EnvironmentId, door: &JoinedLinks) {
        if door.is_known() {
            return;
        }
        match self.tokens.bound_to(id).await {
            Ok(Some(_)) => door.know(),
            Ok(None) => {}
            Err(error) => tracing::debug!(%id, %error, "whether an executor has joined before is not known now"),
        }
    }

    /// Ids that a token is out for.
    pub(crate) fn expected(&self) -> Vec<EnvironmentId> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where links for an id are handed in. What is configured is never replaced.
    pub(crate) fn door(&self, id: &EnvironmentId) -> Result<JoinedLinks, JoinError> {
        if self.registry.status(id).is_some_and(|status| status.origin == EnvironmentOrigin::Configured) {
            return Err(JoinError::Configured(id.clone()));
        }
        Ok(self.registry.join(id.clone())?)
    }

    /// No token leads to this id any more.
    fn forget(&self, id: &EnvironmentId) {
        if let Some(joined) = self.lock().remove(id) {
            for held in joined.links.into_values() {
                held.sink.close(Close::new(crate::admission::POLICY, "the token was revoked"));
            }
        }
        let is_ours = self.registry.status(id).is_some_and(|status| status.origin == EnvironmentOrigin::Added);
        if is_ours && let Err(error) = self.registry.remove(id) {
            tracing::debug!(%id, %error, "an environment was gone already");
        }
    }

    /// An executor wants to join: `/executors/join`.
    pub async fn join(self: &Arc<Self>, visit: &HttpRequest) -> HttpOutcome {
        let (hello, token) = match self.check(visit).await {
            Ok(checked) => checked,
            Err(error) => {
                self.refusals.fetch_add(1, Ordering::Relaxed);
                tracing::info!(reason = %error, "an executor was not let in");
                return error.reception();
            }
        };
        let executors = self.clone();
        HttpOutcome::Link(Box::new(move |link| executors.take_in(hello, token, link)))
    }

    async fn check(&self, visit: &HttpRequest) -> Result<(Hello, Issued), JoinError> {
        let secret = visit.bearer().ok_or(JoinError::Token)?;
        let token = self.tokens.find(secret).await.map_err(JoinError::Store)?.ok_or(JoinError::Token)?;
        let hello = Hello::read(visit)?;
        if token.scope != (TokenPurpose::Executor { id: hello.id.clone() }) {
            return Err(JoinError::Scope { scope: token.scope, id: hello.id });
        }
        self.door(&hello.id)?;
        self.tokens.bind(&hello.id, &hello.identity).await?;
        self.check_alone(&hello)?;
        Ok((hello, token))
    }

    /// Of two starts of one install the first one stays: what runs there would be lost otherwise.
    fn check_alone(&self, hello: &Hello) -> Result<(), JoinError> {
        let joined = self.lock();
        let Some(other) = joined.get(&hello.id).filter(|joined| joined.instance != hello.instance) else { return Ok(()) };
        if other.links.values().any(|held| held.is_there(self.limits.silence)) {
            return Err(JoinError::Doubled(hello.id.clone(), self.limits.silence));
        }
        Ok(())
    }

    /// A link of an executor that was let in.
    fn take_in(self: &Arc<Self>, hello: Hello, token: Issued, link: Link) {
        // A connection with a token is authenticated.
        link.gate.open();
        let (sink, liveness) = (link.tx.clone(), link.liveness.clone());
        let place = self.admission.admit(Pass::token(&token.digest), sink.clone());
        for dead in self.note(&hello, Held { sink: sink.clone(), liveness: liveness.clone() }) {
            dead.close(Close::new(Close::NORMAL, "the executor does not know this link any more"));
        }
        let handed = self.door(&hello.id).map(|door| door.hand_in(link));
        if let Err(error) = &handed {
            sink.close(Close::new(crate::admission::POLICY, error.to_string()));
        }
        self.joins.fetch_add(1, Ordering::Relaxed);
        tracing::info!(id = %hello.id, link = hello.link, "an executor dialled in");
        tokio::spawn(self.clone().watch(hello, place, Held { sink, liveness }));
    }

    /// Puts a link among the others of its executor; returns those that are dead.
    fn note(&self, hello: &Hello, held: Held) -> Vec<FrameSink> {
        let mut all = self.lock();
        let joined = all.entry(hello.id.clone()).or_default();
        let is_other_start = joined.instance != hello.instance;
        joined.instance.clone_from(&hello.instance);
        let is_dead = |number: &u64| is_other_start || (*number != hello.link && !hello.live.contains(number));
        let dead = joined.links.extract_if(|number, _| is_dead(number)).map(|(_, held)| held.sink).collect();
        joined.links.insert(hello.link, held);
        dead
    }

    /// Stays with a link until it ends, and ends it when nothing is heard of it.
    async fn watch(self: Arc<Self>, hello: Hello, place: AdmissionSlot, held: Held) {
        let mut queued = 0;
        loop {
            tokio::select! {
                () = held.sink.closed() => break,
                () = sleep(self.limits.silence / 4) => {}
            }
            // A large message takes its time, and nothing else gets through meanwhile.
            let moves = held.sink.queued() < queued;
            queued = held.sink.queued();
            if !moves && !held.is_there(self.limits.silence) {
                held.sink.close(Close::new(Close::NORMAL, "nothing was heard"));
            }
        }
        drop(place);
        if let Some(joined) = self.lock().get_mut(&hello.id)
            && joined.instance == hello.instance
        {
            joined.links.remove(&hello.link);
        }
        tracing::info!(id = %hello.id, link = hello.link, "a link of an executor ended");
    }

    /// A client wants to talk to an executor: `/executors/reach/ID`.
    pub fn reach(self: &Arc<Self>, id: &str, pass: Pass) -> HttpOutcome {
        let answer = |status: StatusCode, text: String| HttpOutcome::Answer(plain(status, text));
        let Ok(id) = EnvironmentId::parse(id) else { return answer(StatusCode::NOT_FOUND, format!("`{id}` is not an executor id")) };
        if !self.lock().contains_key(&id) {
            return answer(StatusCode::NOT_FOUND, format!("no executor with the id `{id}` has joined here"));
        }
        if self.lock().get(&id).is_none_or(|joined| joined.links.is_empty()) {
            return answer(StatusCode::SERVICE_UNAVAILABLE, format!("the executor `{id}` is not connected now"));
        }
        let door = match self.door(&id) {
            Ok(door) => door,
            Err(error) => return error.reception(),
        };
        let executors = self.clone();
        HttpOutcome::Link(Box::new(move |client| {
            tokio::spawn(executors.pass_on(id, door, client, pass));
        }))
    }

    async fn pass_on(self: Arc<Self>, id: EnvironmentId, door: JoinedLinks, client: Link, pass: Pass) {
        client.gate.open();
        let _place = self.admission.admit(pass, client.tx.clone());
        match timeout(self.limits.patience, door.take()).await {
            Ok(executor) => relay::relay(client, executor).await,
            Err(_) => client.tx.close(Close::new(relay::TRY_AGAIN, format!("the executor `{id}` has no link to spare now"))),
        }
    }

    /// How many links were taken in, and how many were not, since the start.
    pub fn counts(&self) -> (u64, u64) {
        (self.joins.load(Ordering::Relaxed), self.refusals.load(Ordering::Relaxed))
    }

    /// How many links each executor has here, for the metrics.
    pub fn links(&self) -> Vec<(EnvironmentId, usize)> {
        self.lock().iter().map(|(id, joined)| (id.clone(), joined.links.len())).collect()
    }
}

impl Held {
    fn is_there(&self, silence: Duration) -> bool {
        let earliest = Instant::now().checked_sub(silence);
        !self.sink.is_closed() && earliest.is_none_or(|earliest| self.liveness.is_later_than(earliest))
    }
}

impl Hello {
    fn read(visit: &HttpRequest) -> Result<Self, JoinError> {
        let said = |name: &'static str| {
            let fits = |value: &&str| !value.is_empty() && value.len() <= 128 && value.bytes().all(|byte| byte.is_ascii_graphic());
            visit.query(name).filter(fits).ok_or(JoinError::Said(name))
        };
        let number = |text: &str, name| text.parse::<u64>().map_err(|_| JoinError::Said(name));
        let live = visit.query("live").unwrap_or_default().split(',').filter(|text| !text.is_empty());
        Ok(Self {
            id: EnvironmentId::parse_own(said("id")?).map_err(|_| JoinError::Said("id"))?,
            identity: said("executor")?.to_owned(),
            instance: said("instance")?.to_owned(),
            link: number(said("link")?, "link")?,
            live: live.map(|text| number(text, "live")).collect::<Result<_, _>>()?,
        })
    }
}
