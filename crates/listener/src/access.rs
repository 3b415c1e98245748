//! The door of a listener: from a new connection to a link, or to a refusal.
//!
//! In this order: no browser that was not invited, no name that is not ours, no credential that is wrong.

use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{Method, Request, Response, StatusCode};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use outpost_rpc::link::Link;
use outpost_rpc::link::ws::{self, Socket};
use outpost_wire::SharedError;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::auth::Auth;
use crate::http_service::{HttpOutcome, HttpRequest, HttpService, OnLink, WebsocketOnly, plain};
use crate::unauthenticated::{Failures, UnauthenticatedConnections, UnauthenticatedLimits, UnauthenticatedSlot};

/// How long a request may be, in bytes.
const MAX_REQUEST: usize = 16 << 10;
/// How long the body of a POST may be, in bytes.
const MAX_FORM: usize = 4 << 10;

/// Who is let in.
#[derive(Clone)]
pub struct WebsocketAccess {
    pub auth: Auth,
    /// Pages that may connect from a browser.
    pub origins: Vec<WebOrigin>,
    /// Names besides loopback and the listener's own address by which it may be called.
    pub hosts: Vec<HostName>,
    /// Balancers in front of this listener: what they forward comes from whom they name.
    pub proxies: Vec<IpAddr>,
    pub unauthenticated: UnauthenticatedLimits,
    /// Where it answers that it serves.
    pub ready: &'static [&'static str],
}

impl From<Auth> for WebsocketAccess {
    fn from(auth: Auth) -> Self {
        let (origins, hosts, proxies) = (Vec::new(), Vec::new(), Vec::new());
        Self { auth, origins, hosts, proxies, unauthenticated: UnauthenticatedLimits::default(), ready: &["/readyz"] }
    }
}

/// Who may knock at all, whatever they want.
#[derive(Clone, Default)]
pub struct AccessRules {
    pub origins: Vec<WebOrigin>,
    pub hosts: Vec<HostName>,
    pub proxies: Vec<IpAddr>,
    pub unauthenticated: UnauthenticatedLimits,
    /// Whether pages that came from here may connect: their origin is the name by which we are called.
    pub own_pages: bool,
}

/// `SCHEME://HOST[:PORT]`, as browsers send it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebOrigin(String);

/// A host without its port, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostName(String);

#[derive(Debug, Error, PartialEq, Eq)]
pub enum NameError {
    #[error("`{0}` is not an origin; write it as a browser sends it, such as https://example.com or http://localhost:3000")]
    Origin(String),
    #[error("`{0}` is not a host; write a name or an address without scheme and port")]
    Host(String),
}

impl FromStr for WebOrigin {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = || NameError::Origin(text.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let is_plain = !scheme.is_empty() && !rest.contains(['/', '@', '?', '#']);
        if !is_plain || Authority::from_str(rest).is_err() {
            return Err(wrong());
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl FromStr for HostName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let wrong = || NameError::Host(text.to_owned());
        let bare = text.parse::<IpAddr>().is_ok();
        let authority = if bare { None } else { Some(Authority::from_str(text).map_err(|_| wrong())?) };
        if authority.is_some_and(|authority| authority.as_str() != authority.host()) {
            return Err(wrong());
        }
        Ok(Self(normal(text)))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names are the same whatever their case, with or without the brackets of an address or the dot at the end.
fn normal(host: &str) -> String {
    host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase()
}

/// A connected peer.
pub struct Visitor {
    pub name: String,
    pub stream: Socket,
    pub ends: Option<ConnectionAddresses>,
}

/// Both addresses of a connection over a network.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionAddresses {
    pub theirs: IpAddr,
    pub ours: IpAddr,
}

/// One per listener.
pub struct ListenerAccess {
    threshold: AccessRules,
    unauthenticated: Arc<UnauthenticatedConnections>,
    failures: Failures,
    house: Arc<dyn HttpService>,
}

impl ListenerAccess {
    /// To a house with one room.
    pub fn new(rules: WebsocketAccess, on_link: impl Fn(Link) + Send + Sync + 'static) -> Arc<Self> {
        let WebsocketAccess { auth, origins, hosts, proxies, unauthenticated, ready } = rules;
        let threshold = AccessRules { origins, hosts, proxies, unauthenticated, own_pages: false };
        Self::to(threshold, Arc::new(WebsocketOnly { auth, ready, on_link: Arc::new(on_link) }))
    }

    pub fn to(threshold: AccessRules, house: Arc<dyn HttpService>) -> Arc<Self> {
        let (unauthenticated, failures) =
            (UnauthenticatedConnections::new(threshold.unauthenticated), Failures::new(threshold.unauthenticated));
        Arc::new(Self { threshold, unauthenticated, failures, house })
    }

    /// Reserves a slot for a new unauthenticated connection.
    pub fn admit(&self, ends: Option<ConnectionAddresses>) -> UnauthenticatedSlot {
        self.unauthenticated.admit(ends.map(|ends| ends.theirs).filter(|address| !self.is_proxy(*address)))
    }

    fn is_proxy(&self, address: IpAddr) -> bool {
        self.threshold.proxies.iter().any(|proxy| proxy.to_canonical() == address.to_canonical())
    }

    /// Who is at the other end: behind a balancer that is trusted, whom it names last.
    fn sender(&self, headers: &HeaderMap, ends: ConnectionAddresses) -> IpAddr {
        if !self.is_proxy(ends.theirs) {
            return ends.theirs;
        }
        let values: Vec<&str> = headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok()).collect();
        let named = values.iter().flat_map(|value| value.split(',')).filter_map(|text| text.trim().parse::<IpAddr>().ok());
        named.filter(|address| !self.is_proxy(*address)).last().unwrap_or(ends.theirs)
    }

    /// Talks to a visitor until it is clear who it is.
    pub async fn welcome(&self, visitor: Visitor, slot: UnauthenticatedSlot) {
        let Visitor { name, stream, ends } = visitor;
        let talk = async {
            match stream {
                Socket::Tcp(stream) => self.talk_http(stream, ends, Socket::Tcp).await,
                Socket::Unix(stream) => self.talk_http(stream, ends, Socket::Unix).await,
            }
        };
        let talked = tokio::select! {
            talked = talk => talked,
            () = slot.over() => Err("the client did not authenticate in time".into()),
        };
        drop(slot);
        match talked {
            Ok(Some(upgraded)) => (upgraded.on_link)(ws::accept(upgraded.socket, upgraded.early, name)),
            Ok(None) => {}
            Err(error) => tracing::debug!(name, %error, "a connection came to nothing"),
        }
    }

    /// Answers HTTP requests until one of them is an upgrade.
    async fn talk_http<S>(
        &self,
        stream: S,
        ends: Option<ConnectionAddresses>,
        socket: fn(S) -> Socket,
    ) -> Result<Option<Upgraded>, SharedError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let upgrade: Mutex<Option<(OnUpgrade, OnLink)>> = Mutex::default();
        let service = service_fn(async |mut request: Request<Incoming>| {
            let upgraded = hyper::upgrade::on(&mut request);
            Ok::<_, Infallible>(match self.answer(request, ends).await {
                Answer::Plain(response) => response,
                Answer::Upgrade(response, on_link) => {
                    upgrade.lock().unwrap_or_else(PoisonError::into_inner).replace((upgraded, on_link));
                    response
                }
            })
        });
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.threshold.unauthenticated.patience)
            .max_buf_size(MAX_REQUEST)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
            .await
            .map_err(SharedError::new)?;
        let upgraded = upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((upgraded, on_link)) = upgraded else { return Ok(None) };
        let upgraded = upgraded.await.map_err(SharedError::new)?;
        let parts = upgraded.downcast::<TokioIo<S>>().map_err(|_| SharedError::from("the stream was lost in the upgrade"))?;
        Ok(Some(Upgraded { socket: socket(parts.io.into_inner()), early: parts.read_buf, on_link }))
    }

    async fn answer(&self, request: Request<Incoming>, ends: Option<ConnectionAddresses>) -> Answer {
        if let Err(why) = self.check_host(&request, ends) {
            // A page that was not invited learns nothing, not even that.
            return Answer::Plain(plain(StatusCode::FORBIDDEN, if self.invites(request.headers()) { why } else { String::new() }));
        }
        if !self.invites(request.headers()) {
            return Answer::Plain(plain(StatusCode::FORBIDDEN, ""));
        }
        let (parts, body) = request.into_parts();
        let body = if parts.method == Method::POST { collect(body).await } else { Ok(Bytes::new()) };
        let body = match body {
            Ok(body) => body,
            Err(status) => return Answer::Plain(plain(status, "")),
        };
        let upgrade = upgrade(&parts.headers);
        let sender = ends.map(|ends| self.sender(&parts.headers, ends));
        let visit = HttpRequest { method: parts.method, uri: parts.uri, headers: parts.headers, body, ends };
        match self.house.receive(visit).await {
            HttpOutcome::Answer(response) => Answer::Plain(response),
            HttpOutcome::Unauthenticated(response) => {
                if let Some(sender) = sender {
                    tokio::time::sleep(self.failures.note(sender, Instant::now())).await;
                }
                Answer::Plain(response)
            }
            HttpOutcome::Link(on_link) => match upgrade {
                Ok(response) => Answer::Upgrade(response, on_link),
                Err(why) => Answer::Plain(plain(StatusCode::BAD_REQUEST, why)),
            },
        }
    }

    /// Programs name no origin, browsers always do: a page has no business here unless its origin was allowed.
    fn invites(&self, headers: &HeaderMap) -> bool {
        let own = headers.get(header::HOST).filter(|_| self.threshold.own_pages).and_then(|host| host.to_str().ok());
        let is_own = |value: &str| {
            let authority = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://"));
            own.zip(authority).is_some_and(|(own, authority)| own.eq_ignore_ascii_case(authority))
        };
        let is_allowed = |value: &str| self.threshold.origins.iter().any(|one| one.0.eq_ignore_ascii_case(value));
        headers.get_all(header::ORIGIN).iter().all(|value| value.to_str().is_ok_and(|value| is_own(value) || is_allowed(value)))
    }

    /// A page whose name was made to lead here (DNS rebinding) still calls us by that name.
    fn check_host(&self, request: &Request<Incoming>, ends: Option<ConnectionAddresses>) -> Result<(), String> {
        let Some(ends) = ends else { return Ok(()) };
        let named = request.headers().get_all(header::HOST).iter().map(HeaderValue::as_bytes);
        let in_url = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        for host in named.chain(in_url) {
            let host = String::from_utf8_lossy(host);
            let known = Authority::from_str(&host).is_ok_and(|authority| !host.contains('@') && self.is_ours(authority.host(), ends.ours));
            if !known {
                return Err(format!("this listener is not called `{host}`; --allow-host NAME lets it be called so"));
            }
        }
        Ok(())
    }

    fn is_ours(&self, host: &str, ours: IpAddr) -> bool {
        let host = normal(host);
        let is_address = |address: IpAddr| address.to_canonical().is_loopback() || address.to_canonical() == ours.to_canonical();
        host == "localhost" || host.parse().is_ok_and(is_address) || self.threshold.hosts.iter().any(|name| name.0 == host)
    }
}

struct Upgraded {
    socket: Socket,
    /// Bytes that came together with the upgrade.
    early: Bytes,
    on_link: OnLink,
}

enum Answer {
    Plain(Response<String>),
    Upgrade(Response<String>, OnLink),
}

/// A body that is no longer than a form may be.
async fn collect(mut body: Incoming) -> Result<Bytes, StatusCode> {
    let mut all = BytesMut::new();
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame.map_err(|_| StatusCode::BAD_REQUEST)?.into_data() else { continue };
        if all.len() + data.len() > MAX_FORM {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        all.extend_from_slice(&data);
    }
    Ok(all.freeze())
}

/// The answer to a request for a websocket, or why it is none.
fn upgrade(headers: &HeaderMap) -> Result<Response<String>, &'static str> {
    let names = |name: HeaderName, wanted: &str| {
        let values = headers.get_all(name);
        let mut words = values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        words.any(|word| word.trim().eq_ignore_ascii_case(wanted))
    };
    if !names(header::CONNECTION, "upgrade") {
        return Err("Connection header did not include 'upgrade'");
    }
    if !names(header::UPGRADE, "websocket") {
        return Err("the Upgrade header does not ask for a websocket");
    }
    if !names(header::SEC_WEBSOCKET_VERSION, "13") {
        return Err("only version 13 of the websocket protocol is spoken here");
    }
    let key = headers.get(header::SEC_WEBSOCKET_KEY).ok_or("there is no Sec-WebSocket-Key header")?;
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let accept = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).map_err(|_| "the key cannot be used")?;
    let answers = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::SEC_WEBSOCKET_ACCEPT, accept),
    ];
    response.headers_mut().extend(answers);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door(hosts: &[&str]) -> Arc<ListenerAccess> {
        let hosts = hosts.iter().map(|host| host.parse().unwrap()).collect();
        ListenerAccess::new(WebsocketAccess { hosts, ..WebsocketAccess::from(Auth::Open) }, |_| {})
    }

    #[test]
    fn a_listener_knows_its_names() {
        let door = door(&["Box.Example.", "2001:db8::5"]);
        let is_ours = |host: &str| door.is_ours(host, "10.0.0.5".parse().unwrap());
        for host in
            ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "[::1]", "10.0.0.5", "[::ffff:10.0.0.5]", "box.example", "[2001:db8::5]"]
        {
            assert!(is_ours(host), "{host}");
        }
        for host in ["", "example.com", "localhost.example.com", "127.0.0.1.nip.io", "10.0.0.6", "0.0.0.0", "[::]", "0x7f000001"] {
            assert!(!is_ours(host), "{host}");
        }
    }

    #[test]
    fn who_is_behind_a_balancer_is_whom_it_names() {
        let proxies = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        let door = ListenerAccess::new(WebsocketAccess { proxies, ..WebsocketAccess::from(Auth::Open) }, |_| {});
        let sender = |theirs: &str, named: &[&str]| {
            let mut headers = HeaderMap::new();
            for named in named {
                headers.append("x-forwarded-for", HeaderValue::from_str(named).unwrap());
            }
            door.sender(&headers, ConnectionAddresses { theirs: theirs.parse().unwrap(), ours: "10.0.0.9".parse().unwrap() }).to_string()
        };
        assert_eq!(sender("192.0.2.7", &["198.51.100.1"]), "192.0.2.7", "only a trusted proxy may name the client");
        assert_eq!(sender("10.0.0.1", &["203.0.113.5, 198.51.100.1", "10.0.0.2"]), "198.51.100.1");
        assert_eq!(sender("10.0.0.1", &["nonsense"]), "10.0.0.1");
    }

    #[test]
    fn names_are_checked_when_they_are_given() {
        for text in ["https://example.com", "http://localhost:3000", "chrome-extension://abc"] {
            assert!(text.parse::<WebOrigin>().is_ok(), "{text}");
        }
        for text in ["null", "*", "", "example.com", "https://", "https://a/b", "https://a@b"] {
            assert_eq!(text.parse::<WebOrigin>(), Err(NameError::Origin(text.into())));
        }
        for text in ["", "http://x", "x:80", "a b", "u@x"] {
            assert_eq!(text.parse::<HostName>(), Err(NameError::Host(text.into())));
        }
    }
}
