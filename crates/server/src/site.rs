//! What `outpost serve` offers on its one listener, and who may have it.

use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use http::header::{self, HeaderValue};
use outpost_rpc::Link;
use outpost_rpc::auth::Auth;
use outpost_rpc::house::{House, Receiving, Reception, Visit, plain};

use crate::admission::Admission;
use crate::executors::Executors;
use crate::metrics::{self, Metrics};
use crate::tokens::{Scope, Tokens};

/// Where an executor dials in.
pub const JOIN: &str = "/executors/join";
/// Where others reach an executor that dialled in; its id follows.
pub const REACH: &str = "/executors/reach/";

/// Takes the links of clients of the app protocol.
pub type OnClient = Arc<dyn Fn(Link) + Send + Sync>;

/// Who is let in as a client.
pub enum Access {
    /// Everybody who can connect. Only for addresses that nobody else can reach.
    Open,
    /// Whoever shows a token that was handed out, or what this listener asks for besides.
    Tokens(Auth),
}

/// Everything that is behind the listener.
pub struct Site {
    pub access: Access,
    pub tokens: Tokens,
    pub admission: Arc<Admission>,
    pub executors: Arc<Executors>,
    pub on_client: OnClient,
    pub metrics: Metrics,
}

/// Somebody who showed who they are.
struct Pass {
    /// The digest of the token, where it is one that can be revoked.
    token: Option<String>,
}

/// Why somebody is not let in.
enum Refused {
    /// Nobody knows who it is.
    Stranger(String),
    /// It is known, and may not do that.
    Scope { has: Scope, wants: Scope },
}

impl From<Refused> for Reception {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Stranger(text) => Self::Stranger(plain(StatusCode::UNAUTHORIZED, text)),
            Refused::Scope { has, wants } => {
                Self::Answer(plain(StatusCode::FORBIDDEN, format!("this token is for {has}, not for {wants}")))
            }
        }
    }
}

impl Site {
    /// Whether the visitor may do what a client may, or what this scope is for.
    fn check(&self, visit: &Visit, scope: &Scope) -> Result<Pass, Refused> {
        let Access::Tokens(own) = &self.access else { return Ok(Pass { token: None }) };
        if let Some(token) = visit.bearer().and_then(|secret| self.tokens.find(secret)) {
            if token.scope == Scope::Client || token.scope == *scope {
                return Ok(Pass { token: Some(token.digest) });
            }
            return Err(Refused::Scope { has: token.scope, wants: scope.clone() });
        }
        let credentials = visit.headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        match own.check(credentials, SystemTime::now()) {
            Ok(()) => Ok(Pass { token: None }),
            Err(refusal) => Err(Refused::Stranger(refusal.to_string())),
        }
    }

    fn route(&self, visit: &Visit) -> Reception {
        let is_read = visit.is_read();
        match visit.path() {
            "/readyz" | "/healthz" if is_read => Reception::Answer(plain(StatusCode::OK, "")),
            JOIN if is_read => self.executors.join(visit),
            "/" if is_read => self.client(visit),
            "/metrics" if is_read => self.check(visit, &Scope::Metrics).map_or_else(Into::into, |_| self.measure()),
            path => match path.strip_prefix(REACH) {
                Some(id) if is_read => {
                    self.check(visit, &Scope::Client).map_or_else(Into::into, |pass| self.executors.reach(id, pass.token))
                }
                _ => Reception::Answer(plain(StatusCode::NOT_FOUND, "")),
            },
        }
    }

    fn measure(&self) -> Reception {
        Reception::Answer(match self.metrics.text() {
            Ok(text) => {
                let mut answer = plain(StatusCode::OK, text);
                answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
                answer
            }
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        })
    }

    fn client(&self, visit: &Visit) -> Reception {
        let pass = match self.check(visit, &Scope::Client) {
            Ok(pass) => pass,
            Err(refused) => return refused.into(),
        };
        let (on_client, admission) = (self.on_client.clone(), self.admission.clone());
        Reception::Link(Box::new(move |link| {
            if let Some(token) = pass.token {
                let place = admission.admit(&token, link.tx.clone());
                let sink = link.tx.clone();
                tokio::spawn(async move {
                    sink.closed().await;
                    drop(place);
                });
            }
            on_client(link);
        }))
    }
}

impl House for Site {
    fn receive(&self, visit: Visit) -> Receiving<'_> {
        Box::pin(async move { self.route(&visit) })
    }
}
