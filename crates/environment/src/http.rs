//! HTTP requests that are made from an environment's place in the network.
//!
//! A request is made once. A body that is streamed ends with its connection: the rest is unknown.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use outpost_wire::exec::http::{BodyDeltaParams, HttpRequest, HttpRequestParams, RedirectPolicy, RequestHeader, ResponseHeader};
use thiserror::Error;
use tokio::sync::mpsc;

use crate::environment::{Environment, EnvironmentError};
use crate::session::SessionProcesses;

/// A request to be made there.
#[derive(Debug, Clone)]
pub struct HttpCall {
    pub method: String,
    pub url: String,
    pub headers: Vec<RequestHeader>,
    pub body: Option<Bytes>,
    /// For the whole exchange, body included.
    pub timeout: Option<Duration>,
    pub redirects: RedirectPolicy,
}

impl HttpCall {
    pub fn get(url: impl Into<String>) -> Self {
        Self { method: "GET".into(), url: url.into(), headers: Vec::new(), body: None, timeout: None, redirects: RedirectPolicy::Follow }
    }

    fn params(self, request_id: String, stream_response: bool) -> HttpRequestParams {
        HttpRequestParams {
            method: self.method,
            url: self.url,
            request_id,
            headers: self.headers,
            body_base64: self.body.map(Into::into),
            timeout_ms: self.timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            redirect_policy: self.redirects,
            stream_response,
        }
    }
}

/// An answer without its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpHead {
    pub status: u16,
    pub headers: Vec<ResponseHeader>,
}

/// The rest of a body will not come.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the body is incomplete: {0}")]
pub struct BodyError(pub String);

/// The body of an answer, piece by piece.
pub struct HttpBody {
    id: String,
    bodies: Arc<Bodies>,
    processes: Arc<SessionProcesses>,
    pieces: mpsc::UnboundedReceiver<Result<Bytes, BodyError>>,
}

impl Environment {
    /// An answer with its whole body.
    pub async fn http(&self, call: HttpCall) -> Result<(HttpHead, Bytes), EnvironmentError> {
        let id = self.shared().bodies.next_id();
        let answer = self.call_once::<HttpRequest>(&call.params(id, false)).await?;
        Ok((HttpHead { status: answer.status, headers: answer.headers }, answer.body_base64.0))
    }

    /// An answer whose body comes as it comes.
    pub async fn http_stream(&self, call: HttpCall) -> Result<(HttpHead, HttpBody), EnvironmentError> {
        // Connected first, so that the body cannot be lost with a connection that was never its own.
        let connected = self.shared().ready().await?;
        let (bodies, processes) = (self.shared().bodies.clone(), self.shared().processes.clone());
        let id = bodies.next_id();
        // Its first piece may overtake the head.
        let pieces = bodies.open(&id);
        let body = HttpBody { id: id.clone(), bodies, processes, pieces };
        let answer = self.shared().call_on::<HttpRequest>(&connected, &call.params(id, true)).await?;
        Ok((HttpHead { status: answer.status, headers: answer.headers }, body))
    }
}

impl HttpBody {
    /// The next piece; nothing after the last one.
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        let piece = self.pieces.recv().await;
        if let Some(Ok(bytes)) = &piece {
            self.processes.note_read(bytes.len());
        }
        piece
    }
}

impl Drop for HttpBody {
    fn drop(&mut self) {
        self.bodies.lock().remove(&self.id);
        // Unread data is no longer waited for.
        self.pieces.close();
        while let Ok(piece) = self.pieces.try_recv() {
            self.processes.note_read(piece.map_or(0, |bytes| bytes.len()));
        }
    }
}

/// The streamed bodies of one handle.
#[derive(Default)]
pub(crate) struct Bodies {
    open: Mutex<HashMap<String, Open>>,
    made: AtomicU64,
}

struct Open {
    sender: mpsc::UnboundedSender<Result<Bytes, BodyError>>,
    expected: u64,
}

impl Bodies {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_id(&self) -> String {
        format!("http-{}", self.made.fetch_add(1, Ordering::Relaxed))
    }

    fn open(&self, id: &str) -> mpsc::UnboundedReceiver<Result<Bytes, BodyError>> {
        let (sender, pieces) = mpsc::unbounded_channel();
        self.lock().insert(id.to_owned(), Open { sender, expected: 1 });
        pieces
    }

    /// Takes a piece; returns how many bytes now wait for their reader.
    pub(crate) fn push(&self, delta: BodyDeltaParams) -> usize {
        let mut bodies = self.lock();
        let Some(open) = bodies.get_mut(&delta.request_id) else { return 0 };
        let in_order = open.expected == delta.seq;
        open.expected += 1;
        let bytes = delta.delta_base64.0;
        let length = bytes.len();
        let failure = delta.error.or_else(|| (!in_order).then(|| format!("piece {} came out of order", delta.seq)));
        let is_over = delta.done || failure.is_some();
        let taken = match failure {
            Some(why) => open.sender.send(Err(BodyError(why))).map(|()| 0),
            None if length > 0 => open.sender.send(Ok(bytes)).map(|()| length),
            None => Ok(0),
        };
        if is_over {
            bodies.remove(&delta.request_id);
        }
        taken.unwrap_or(0)
    }

    /// The connection is gone, and every body with it.
    pub(crate) fn fail_all(&self, reason: &str) {
        for (_, open) in self.lock().drain() {
            let _ = open.sender.send(Err(BodyError(reason.to_owned())));
        }
    }
}
