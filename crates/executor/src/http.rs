//! HTTP from this machine: the clients that make requests, and bodies that are pushed piece by piece.
//!
//! Nothing here is logged: urls, headers and bodies are the client's secrets.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use outpost_rpc::{Peer, link};
use outpost_wire::Fault;
use outpost_wire::exec::http::{BodyDelta, BodyDeltaParams, RedirectPolicy};
use reqwest::header::HeaderMap;
use reqwest::{Client, Method, Response, Url, redirect};
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::OnceCell;

use crate::fault;

/// The most bytes of a body that one delta carries.
const MAX_DELTA: usize = 1 << 20;
/// No delta is sent while more than this waits to be sent: the rest stays with the server that it comes from.
const PUSH_ROOM: usize = 256 << 10;
/// A body in one piece must fit a message, as base64 and with its headers.
const MAX_BODY: usize = (link::MAX_MESSAGE - (1 << 20)) / 4 * 3;

/// A request to be made.
pub struct Exchange {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Option<Bytes>,
    pub timeout: Option<Duration>,
    pub redirects: RedirectPolicy,
}

/// The clients of one executor, with their connections. Most executors never make a request, so each is built when it is
/// first needed. What to do about redirects is fixed for a client, hence two.
#[derive(Default)]
pub struct HttpClients {
    following: OnceCell<Client>,
    stopping: OnceCell<Client>,
}

impl HttpClients {
    /// Sends a request; done when the head of the answer is there.
    pub async fn send(&self, exchange: Exchange) -> Result<Response, Fault> {
        let mut request = self.client(exchange.redirects).await?.request(exchange.method, exchange.url).headers(exchange.headers);
        if let Some(body) = exchange.body {
            request = request.body(body);
        }
        if let Some(timeout) = exchange.timeout {
            request = request.timeout(timeout);
        }
        request.send().await.map_err(|error| fault::http_failed(&error))
    }

    async fn client(&self, redirects: RedirectPolicy) -> Result<&Client, Fault> {
        let (cell, policy) = match redirects {
            RedirectPolicy::Follow => (&self.following, redirect::Policy::default()),
            RedirectPolicy::Stop => (&self.stopping, redirect::Policy::none()),
        };
        cell.get_or_try_init(|| async {
            // The machine's certificates are read from its disk.
            let built = tokio::task::spawn_blocking(|| build(policy)).await;
            built.map_err(|error| Fault::internal(error.to_string()))?
        })
        .await
    }
}

fn build(redirects: redirect::Policy) -> Result<Client, Fault> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut tls = versions.map_err(|error| fault::http_failed(&error))?.with_root_certificates(roots()).with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Client::builder().tls_backend_preconfigured(tls).redirect(redirects).build().map_err(|error| fault::http_failed(&error))
}

/// Whom this machine trusts; where it says nothing, as in many containers, whom browsers trust.
fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}

/// A whole body, in one piece.
pub async fn read_body(mut response: Response) -> Result<Vec<u8>, Fault> {
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
pub struct BodyStreams(Arc<Mutex<HashSet<String>>>);

impl BodyStreams {
    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an id until the stream is over or dropped.
    pub fn claim(&self, request_id: &str, peer: &Peer) -> Result<BodyStream, Fault> {
        if !self.lock().insert(request_id.to_owned()) {
            return Err(fault::stream_active(request_id));
        }
        Ok(BodyStream { active: Some(self.clone()), peer: peer.clone(), request_id: request_id.to_owned(), seq: 0 })
    }
}

/// A body on its way to the client.
pub struct BodyStream {
    /// Where the id is taken; nowhere any more once the end was told.
    active: Option<BodyStreams>,
    peer: Peer,
    request_id: String,
    seq: u64,
}

impl BodyStream {
    /// Pushes the body until its end, as fast as the client takes it.
    pub async fn push(mut self, mut response: Response) {
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
        // Under the lock: whoever gets the id next must come after the end of this stream, and whoever has seen the end
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
