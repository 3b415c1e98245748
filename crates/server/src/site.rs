//! What `outpost serve` offers on its one listener, and who may have it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{self, HeaderValue};
use http::{Method, StatusCode};
use outpost_listener::auth::Auth;
use outpost_listener::http_service::{HttpOutcome, HttpRequest, HttpService, Receiving, plain};
use outpost_rpc::Link;
use outpost_store::Store;

use crate::admission::{BrowserAdmission, Pass};
use crate::executors::Executors;
use crate::forward;
use crate::metrics::{self, Metrics};
use crate::people::{ClientIdentity, Role};
use crate::tokens::{TokenError, TokenPurpose, TokenStore};
use crate::web::{self, Sessions};

/// Where an executor dials in.
pub const JOIN: &str = "/executors/join";
/// Where others reach an executor that dialled in; its id follows.
pub const REACH: &str = "/executors/reach/";

/// Takes the links of clients of the app protocol.
pub type OnClient = Arc<dyn Fn(Link, ClientIdentity) + Send + Sync>;

/// Who is let in as a client.
pub enum ClientAccess {
    /// Every client that can connect. Only for addresses that other users cannot reach.
    Open,
    /// Clients with an issued token, or with the credential that this listener asks for besides.
    Tokens(Auth),
}

/// Everything that is behind the listener.
pub struct Site {
    pub access: ClientAccess,
    pub tokens: TokenStore,
    pub admission: Arc<BrowserAdmission>,
    pub executors: Arc<Executors>,
    pub on_client: OnClient,
    pub metrics: Metrics,
    pub sessions: Sessions,
    /// Whether browsers reach us through TLS, be it ours or a proxy's.
    pub is_private: bool,
    /// Without it nothing can be served.
    pub store: Store,
    /// By which other nodes of the store are known.
    pub node_secret: Option<String>,
}

/// Why a client is not let in.
enum Refused {
    /// It is not authenticated.
    Unauthenticated(String),
    /// Whether it may come in is not known now.
    Unknown(TokenError),
    /// It is known, and may not do that.
    Scope { has: TokenPurpose, wants: TokenPurpose },
}

impl From<Refused> for HttpOutcome {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Unauthenticated(text) => Self::Unauthenticated(plain(StatusCode::UNAUTHORIZED, text)),
            Refused::Unknown(error) => {
                tracing::warn!(%error, "a token cannot be checked");
                Self::Answer(plain(StatusCode::SERVICE_UNAVAILABLE, "the store of the tokens does not answer; try again"))
            }
            Refused::Scope { has, wants } => {
                Self::Answer(plain(StatusCode::FORBIDDEN, format!("this token is for {has}, not for {wants}")))
            }
        }
    }
}

impl Site {
    /// Whether the visitor may do what a client may, or what this scope is for.
    async fn check(&self, visit: &HttpRequest, scope: &TokenPurpose) -> Result<Pass, Refused> {
        if let Some(identity) = self.node(visit) {
            return Ok(Pass { identity: Some(identity), ..Pass::default() });
        }
        let ClientAccess::Tokens(_) = &self.access else { return Ok(Pass::default()) };
        if let Some(pass) = self.sessions.find(visit) {
            let is_good = match &pass.token {
                Some(token) => self.tokens.is_good(token).await,
                None => true,
            };
            if is_good {
                return Ok(pass);
            }
        }
        let credentials = visit.headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        self.identify(visit.bearer(), credentials, scope).await
    }

    /// Who another node says that its client is.
    fn node(&self, visit: &HttpRequest) -> Option<ClientIdentity> {
        forward::identify(visit.bearer()?, self.node_secret.as_deref()?)
    }

    /// Who a client is that was let in.
    async fn identity(&self, pass: &Pass) -> Result<ClientIdentity, Refused> {
        match (&pass.identity, &pass.token) {
            (Some(identity), _) => Ok(identity.clone()),
            // It may have been revoked since it was checked.
            (None, Some(token)) => {
                let person = self.tokens.person(token).await.map_err(Refused::Unknown)?;
                person.ok_or_else(|| Refused::Unauthenticated("token revoked or expired; ask for a new one".into()))
            }
            (None, None) => Ok(ClientIdentity::default()),
        }
    }

    /// A client that reaches an executor runs commands there.
    async fn reach(&self, id: &str, pass: Pass) -> HttpOutcome {
        let identity = match self.identity(&pass).await {
            Ok(identity) => identity,
            Err(refused) => return refused.into(),
        };
        let is_limited = !identity.threads.is_empty()
            || (!identity.environments.is_empty() && !identity.environments.iter().any(|own| own.as_str() == id));
        if identity.role < Role::Operator || is_limited {
            return HttpOutcome::Answer(plain(StatusCode::FORBIDDEN, "this token is not for running commands there"));
        }
        self.executors.reach(id, pass)
    }

    /// Who has this secret.
    async fn identify(&self, secret: Option<&str>, credentials: Option<&[u8]>, scope: &TokenPurpose) -> Result<Pass, Refused> {
        let ClientAccess::Tokens(own) = &self.access else { return Ok(Pass::default()) };
        // The credential of this listener is known without the store.
        if own.check(credentials, SystemTime::now()).is_ok() {
            return Ok(Pass::default());
        }
        let token = match secret {
            Some(secret) => self.tokens.find(secret).await.map_err(Refused::Unknown)?,
            None => None,
        };
        if let Some(token) = token {
            if token.scope == TokenPurpose::Client || token.scope == *scope {
                return Ok(Pass::token(&token.digest));
            }
            return Err(Refused::Scope { has: token.scope, wants: scope.clone() });
        }
        match own.check(credentials, SystemTime::now()) {
            Ok(()) => Ok(Pass::default()),
            Err(refusal) => Err(Refused::Unauthenticated(refusal.to_string())),
        }
    }

    async fn route(&self, visit: &HttpRequest) -> HttpOutcome {
        let is_read = visit.is_read();
        match visit.path() {
            "/healthz" if is_read => HttpOutcome::Answer(plain(StatusCode::OK, "")),
            JOIN if is_read => self.executors.join(visit).await,
            "/" if is_read && visit.wants_websocket() => self.client(visit).await,
            "/session" if is_read => {
                let is_open = matches!(self.access, ClientAccess::Open);
                HttpOutcome::Answer(web::session(self.check(visit, &TokenPurpose::Client).await.is_ok(), is_open))
            }
            "/login" if visit.method == Method::POST => self.log_in(visit).await,
            "/logout" if visit.method == Method::POST => self.log_out(visit),
            "/metrics" if is_read => self.check(visit, &TokenPurpose::Metrics).await.map_or_else(Into::into, |_| self.measure()),
            path => match path.strip_prefix(REACH) {
                Some(id) if is_read => match self.check(visit, &TokenPurpose::Client).await {
                    Ok(pass) => self.reach(id, pass).await,
                    Err(refused) => refused.into(),
                },
                _ => match web::file(path).filter(|_| is_read) {
                    Some(file) => HttpOutcome::Answer(file),
                    None => HttpOutcome::Answer(plain(StatusCode::NOT_FOUND, "")),
                },
            },
        }
    }

    /// A browser posts a client's token in a form, and gets a cookie for it.
    async fn log_in(&self, visit: &HttpRequest) -> HttpOutcome {
        let secret = web::form(&visit.body, "token").map(str::trim).filter(|secret| !secret.is_empty());
        let bearer = secret.map(|secret| format!("Bearer {secret}"));
        match self.identify(secret, bearer.as_ref().map(String::as_bytes), &TokenPurpose::Client).await {
            Ok(pass) => match self.sessions.begin(pass.token, secret.and_then(|secret| self.good_for(secret)), self.is_private) {
                Some(cookie) => HttpOutcome::Answer(web::redirect("/", Some(&cookie))),
                None => HttpOutcome::Answer(plain(StatusCode::INTERNAL_SERVER_ERROR, "this machine gives no random numbers")),
            },
            Err(refused @ Refused::Unknown(_)) => refused.into(),
            Err(_) => HttpOutcome::Unauthenticated(web::redirect("/#wrong", None)),
        }
    }

    /// For how long a token is good that says so itself.
    fn good_for(&self, secret: &str) -> Option<Duration> {
        let ClientAccess::Tokens(own) = &self.access else { return None };
        Some(own.until(secret)?.duration_since(SystemTime::now()).unwrap_or_default())
    }

    /// Ends a session and everything that was opened by it.
    fn log_out(&self, visit: &HttpRequest) -> HttpOutcome {
        if let Some(cookie) = self.sessions.end(visit) {
            self.admission.end_session(&cookie);
        }
        HttpOutcome::Answer(web::redirect("/", Some(&web::no_cookie())))
    }

    fn measure(&self) -> HttpOutcome {
        HttpOutcome::Answer(match self.metrics.text() {
            Ok(text) => {
                let mut answer = plain(StatusCode::OK, text);
                answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
                answer
            }
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        })
    }

    async fn client(&self, visit: &HttpRequest) -> HttpOutcome {
        let known = async {
            let pass = self.check(visit, &TokenPurpose::Client).await?;
            Ok::<_, Refused>((self.identity(&pass).await?, pass))
        };
        let (identity, pass) = match known.await {
            Ok(known) => known,
            Err(refused) => return refused.into(),
        };
        let (on_client, admission) = (self.on_client.clone(), self.admission.clone());
        HttpOutcome::Link(Box::new(move |link| {
            if !pass.is_for_ever() {
                let place = admission.admit(pass, link.tx.clone());
                let sink = link.tx.clone();
                tokio::spawn(async move {
                    sink.closed().await;
                    drop(place);
                });
            }
            on_client(link, identity);
        }))
    }
}

impl HttpService for Site {
    fn receive(&self, visit: HttpRequest) -> Receiving<'_> {
        Box::pin(async move {
            if visit.path() == "/readyz" && visit.is_read() {
                return HttpOutcome::Answer(match self.store.ping().await {
                    Ok(()) => plain(StatusCode::OK, ""),
                    Err(why) => {
                        tracing::warn!(%why, "not ready: the store does not answer");
                        plain(StatusCode::SERVICE_UNAVAILABLE, "the store does not answer")
                    }
                });
            }
            self.route(&visit).await
        })
    }
}
