//! HTTP from this machine: the clients that make requests, and bodies that are pushed piece by piece.
//!
//! Nothing here is logged: urls, headers and bodies are the client's secrets.

mod guard;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use outpost_rpc::{Peer, link};
use outpost_wire::Fault;
use outpost_wire::exec::http::{BodyDelta, BodyDeltaParams, RedirectPolicy};
use reqwest::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, LOCATION, PROXY_AUTHORIZATION,
    TRANSFER_ENCODING, WWW_AUTHENTICATE,
};
use reqwest::{Client, Method, Response, Url, redirect};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::fault;

use guard::Denied;
pub(crate) use guard::HttpGuard;
pub use guard::{HttpTarget, HttpTargetError};

/// The most bytes of a body that one delta carries.
const MAX_DELTA: usize = 1 << 20;
/// No delta is sent while more than this waits to be sent: the rest stays with the server that it comes from.
const PUSH_ROOM: usize = 256 << 10;
/// A body in one piece must fit a message, as base64 and with its headers.
const MAX_BODY: usize = (link::MAX_MESSAGE - (1 << 20)) / 4 * 3;

/// A request to be made.
#[derive(Clone)]
pub(crate) struct Exchange {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Option<Bytes>,
    pub timeout: Option<Duration>,
    pub redirects: RedirectPolicy,
}

/// So many redirects are followed.
const MAX_REDIRECTS: usize = 10;
/// So many bytes of an unwanted answer are read rather than opening another connection.
const NOT_WORTH_A_CONNECTION: usize = 16 << 10;
/// Headers that are meant for one server only, besides those that were filled from variables.
const FOR_ONE_SERVER: [HeaderName; 4] = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION, WWW_AUTHENTICATE];
/// Headers that describe a body.
const OF_A_BODY: [HeaderName; 4] = [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_ENCODING, TRANSFER_ENCODING];

/// What makes the requests of one executor, with its connections. Most executors never make one, so the client is built
/// when it is first needed.
#[derive(Default)]
pub(crate) struct HttpClients {
    guard: HttpGuard,
    client: OnceCell<Client>,
}

impl HttpClients {
    pub(crate) fn new(guard: HttpGuard) -> Self {
        Self { guard, client: OnceCell::new() }
    }

    /// Sends a request; done when the head of the answer is there. Redirects are followed here, because each is a new
    /// target that must be looked at, and because only this place knows which headers are secrets.
    pub(crate) async fn send(&self, mut exchange: Exchange) -> Result<Response, Fault> {
        let deadline = exchange.timeout.map(|timeout| Instant::now() + timeout);
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send_once(&exchange, deadline).await?;
            match exchange.redirected(&response) {
                Some(next) => exchange = next,
                None => return Ok(response),
            }
            finish(response).await;
        }
        Err(fault::http_failed(&format!("more than {MAX_REDIRECTS} redirects")))
    }

    async fn send_once(&self, exchange: &Exchange, deadline: Option<Instant>) -> Result<Response, Fault> {
        self.guard.check_url(&exchange.url).map_err(|denied| fault::http_denied(&denied))?;
        let mut request = self.client().await?.request(exchange.method.clone(), exchange.url.clone()).headers(exchange.headers.clone());
        if let Some(body) = &exchange.body {
            request = request.body(body.clone());
        }
        if let Some(deadline) = deadline {
            request = request.timeout(deadline.saturating_duration_since(Instant::now()));
        }
        request.send().await.map_err(|error| match Denied::among(&error) {
            Some(denied) => fault::http_denied(&denied),
            None => fault::http_failed(&error),
        })
    }

    async fn client(&self) -> Result<&Client, Fault> {
        let guard = self.guard.clone();
        self.client
            .get_or_try_init(|| async {
                // The machine's certificates are read from its disk.
                let built = tokio::task::spawn_blocking(|| build(guard)).await;
                built.map_err(Fault::internal)?
            })
            .await
    }
}

/// Reads what is left of an answer that no client wants, if it is little: its connection can then be used again.
async fn finish(mut response: Response) {
    let mut left = NOT_WORTH_A_CONNECTION;
    while let Ok(Some(chunk)) = response.chunk().await {
        match left.checked_sub(chunk.len()) {
            Some(less) => left = less,
            None => return,
        }
    }
}

impl Exchange {
    /// The request that an answer asks for, if it does and redirects are followed.
    fn redirected(&self, response: &Response) -> Option<Self> {
        let status = response.status();
        let is_redirect = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
        if self.redirects == RedirectPolicy::Stop || !is_redirect {
            return None;
        }
        let location = response.headers().get(LOCATION)?.to_str().ok()?;
        let url = self.url.join(location).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
        let mut next = Self { url, ..self.clone() };
        let keeps_method = matches!(status.as_u16(), 307 | 308) || matches!(self.method, Method::GET | Method::HEAD);
        if !keeps_method {
            (next.method, next.body) = (Method::GET, None);
            OF_A_BODY.iter().for_each(|name| drop(next.headers.remove(name)));
        }
        if next.url.origin() != self.url.origin() {
            FOR_ONE_SERVER.iter().for_each(|name| drop(next.headers.remove(name)));
            let secret: Vec<_> = next.headers.iter().filter(|(_, value)| value.is_sensitive()).map(|(name, _)| name.clone()).collect();
            secret.iter().for_each(|name| drop(next.headers.remove(name)));
        }
        Some(next)
    }
}

fn build(guard: HttpGuard) -> Result<Client, Fault> {
    let tls = outpost_rpc::tls::client(&["h2", "http/1.1"]).map_err(|error| fault::http_failed(&error))?;
    // A proxy would resolve names itself, and this executor would not know to what.
    let client =
        Client::builder().tls_backend_preconfigured(tls).redirect(redirect::Policy::none()).no_proxy().dns_resolver(Arc::new(guard));
    client.build().map_err(|error| fault::http_failed(&error))
}

/// A whole body, in one piece.
pub(crate) async fn read_body(mut response: Response) -> Result<Vec<u8>, Fault> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| fault::http_body(&error.without_url()))? {
        if body.len() + chunk.len() > MAX_BODY {
            return Err(fault::http_body(&format!("it has more than {MAX_BODY} bytes; use streamResponse")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The bodies that are being streamed over one connection, by the ids that the client chose.
#[derive(Clone, Default)]
pub(crate) struct BodyStreams(Arc<Mutex<HashSet<String>>>);

impl BodyStreams {
    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an id until the stream is over or dropped.
    pub(crate) fn claim(&self, request_id: &str, peer: &Peer) -> Result<BodyStream, Fault> {
        if !self.lock().insert(request_id.to_owned()) {
            return Err(fault::stream_active(request_id));
        }
        Ok(BodyStream { active: Some(self.clone()), peer: peer.clone(), request_id: request_id.to_owned(), seq: 0 })
    }
}

/// A body on its way to the client.
pub(crate) struct BodyStream {
    /// Where the id is taken; nowhere any more once the end was told.
    active: Option<BodyStreams>,
    peer: Peer,
    request_id: String,
    seq: u64,
}

impl BodyStream {
    /// Pushes the body until its end, as fast as the client takes it.
    pub(crate) async fn push(mut self, mut response: Response) {
        loop {
            match response.chunk().await {
                Ok(Some(mut chunk)) => {
                    while !chunk.is_empty() {
                        self.peer.sink().room(PUSH_ROOM).await;
                        let delta = chunk.split_to(chunk.len().min(MAX_DELTA));
                        let delta = self.delta(delta);
                        if !self.peer.notify::<BodyDelta>(&delta) {
                            return;
                        }
                    }
                }
                Ok(None) => return self.end(None),
                Err(error) => return self.end(Some(error.without_url().to_string())),
            }
        }
    }

    fn delta(&mut self, bytes: Bytes) -> BodyDeltaParams {
        self.seq += 1;
        BodyDeltaParams { request_id: self.request_id.clone(), seq: self.seq, delta_base64: bytes.into(), done: false, error: None }
    }

    fn end(mut self, error: Option<String>) {
        let last = BodyDeltaParams { done: true, error, ..self.delta(Bytes::new()) };
        let Some(active) = self.active.take() else { return };
        // Under the lock: a request that gets the id next must come after the end of this stream, and a client that has seen the end
        // must get the id.
        let mut active = active.lock();
        self.peer.notify::<BodyDelta>(&last);
        active.remove(&self.request_id);
    }
}

impl Drop for BodyStream {
    fn drop(&mut self) {
        if let Some(active) = &self.active {
            active.lock().remove(&self.request_id);
        }
    }
}
