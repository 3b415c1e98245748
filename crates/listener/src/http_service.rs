//! What is behind a door: the places that can be asked for, and what becomes of a connection.
//!
//! The door keeps out browsers that were not invited and names that are not ours. Who may do what is the house's business.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::{Method, Response, StatusCode, Uri};
use outpost_rpc::link::Link;

use crate::access::ConnectionAddresses;
use crate::auth::Auth;

/// A request that passed the checks common to all connections.
pub struct HttpRequest {
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    /// Only of a POST; anything larger than a form was refused.
    pub body: Bytes,
    pub ends: Option<ConnectionAddresses>,
}

impl HttpRequest {
    pub fn path(&self) -> &str {
        self.uri.path()
    }

    pub fn is_read(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD)
    }

    /// One value of the query, as it stands there: nothing that we ask for needs to be escaped.
    pub fn query(&self, name: &str) -> Option<&str> {
        let pairs = self.uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
    }

    pub fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The token in the `Authorization` header.
    pub fn bearer(&self) -> Option<&str> {
        let (scheme, token) = self.header(header::AUTHORIZATION)?.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
    }

    pub fn cookie(&self, name: &str) -> Option<&str> {
        let all = self.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('=')).find(|(key, _)| *key == name).map(|(_, v)| v)
    }

    pub fn wants_websocket(&self) -> bool {
        self.headers.contains_key(header::UPGRADE)
    }
}

/// What a visitor gets.
pub enum HttpOutcome {
    Answer(Response<String>),
    /// The credentials are wrong or missing. Repeated failures from one address are answered with increasing delay.
    Unauthenticated(Response<String>),
    /// A websocket, and who takes it.
    Link(OnLink),
}

pub type OnLink = Box<dyn FnOnce(Link) + Send>;
pub type Receiving<'a> = Pin<Box<dyn Future<Output = HttpOutcome> + Send + 'a>>;

pub trait HttpService: Send + Sync + 'static {
    fn receive(&self, visit: HttpRequest) -> Receiving<'_>;
}

/// An answer in plain text.
pub fn plain(status: StatusCode, text: impl Into<String>) -> Response<String> {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    response
}

/// A house with one room: websockets at `/`, all for the same taker.
pub struct WebsocketOnly {
    pub auth: Auth,
    /// Liveness paths.
    pub ready: &'static [&'static str],
    pub on_link: Arc<dyn Fn(Link) + Send + Sync>,
}

impl HttpService for WebsocketOnly {
    fn receive(&self, visit: HttpRequest) -> Receiving<'_> {
        Box::pin(std::future::ready(match visit.path() {
            path if !visit.is_read() && (path == "/" || self.ready.contains(&path)) => {
                HttpOutcome::Answer(plain(StatusCode::METHOD_NOT_ALLOWED, ""))
            }
            path if self.ready.contains(&path) => HttpOutcome::Answer(plain(StatusCode::OK, "")),
            "/" => {
                let credentials = visit.headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
                match self.auth.check(credentials, SystemTime::now()) {
                    Err(refusal) => HttpOutcome::Unauthenticated(plain(StatusCode::UNAUTHORIZED, refusal.to_string())),
                    Ok(()) => {
                        let on_link = self.on_link.clone();
                        HttpOutcome::Link(Box::new(move |link| on_link(link)))
                    }
                }
            }
            _ => HttpOutcome::Answer(plain(StatusCode::NOT_FOUND, "")),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(uri: &str, headers: &[(header::HeaderName, &str)]) -> HttpRequest {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        HttpRequest { method: Method::GET, uri: uri.parse().unwrap(), headers, body: Bytes::new(), ends: None }
    }

    #[test]
    fn what_a_visit_says() {
        let visit = visit(
            "/executors/join?id=gpu&live=1,2&id=other&empty=",
            &[(header::AUTHORIZATION, "bEARER  secret "), (header::COOKIE, "a=b; outpost=x=y")],
        );
        assert_eq!((visit.path(), visit.query("id"), visit.query("live")), ("/executors/join", Some("gpu"), Some("1,2")));
        assert_eq!((visit.query("empty"), visit.query("none")), (Some(""), None));
        assert_eq!(visit.bearer(), Some("secret"));
        assert_eq!((visit.cookie("outpost"), visit.cookie("b")), (Some("x=y"), None));
        assert!(!visit.wants_websocket());
    }

    #[test]
    fn what_is_no_bearer_is_none() {
        for text in ["Basic abc", "Bearer", "Bearer ", ""] {
            assert_eq!(visit("/", &[(header::AUTHORIZATION, text)]).bearer(), None, "{text}");
        }
    }
}
