//! Streamable HTTP, spoken from an environment's place in the network.
//!
//! Every request is made by the executor. A token is a variable there: this program never sees it, and an executor that
//! cannot read variables for us is not sent anything instead.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http::{HeaderName, HeaderValue};
use outpost_environment::{BodyError, Environment, EnvironmentError, HttpBody, HttpCall, HttpHead};
use outpost_wire::SharedError;
use outpost_wire::exec::http::{RedirectPolicy, RequestHeader};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, SseError, StreamableHttpClient, StreamableHttpClientTransportConfig, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};
use thiserror::Error;

use crate::McpLimits;

/// A stream without a reader ends there after this time at the latest; one that is read is opened again.
const LONGEST_STREAM: Duration = Duration::from_secs(600);
/// So much of an answer that makes no sense is shown.
const SHOWN: usize = 256;

/// A server that is reached by streamable HTTP.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HttpServer {
    pub url: String,
    /// A variable of the executor that holds the token.
    pub bearer_token_env_var: Option<String>,
    pub headers: BTreeMap<String, String>,
    /// Headers whose values are variables of the executor.
    pub env_headers: BTreeMap<String, String>,
}

/// A server behind HTTP, before it is spoken to.
#[derive(Debug, Clone)]
pub struct EnvironmentHttp {
    url: String,
    headers: Vec<RequestHeader>,
    needs_variables: bool,
    longest: Longest,
}

/// How long requests may take there. The caller gives up earlier; this ends what would be left over, because the protocol cannot cancel a
/// request that an executor has made.
#[derive(Debug, Clone, Copy)]
struct Longest {
    start: Duration,
    call: Duration,
}

impl Longest {
    fn of(self, message: &ClientJsonRpcMessage) -> Duration {
        let JsonRpcMessage::Request(request) = message else { return self.call };
        match &request.request {
            ClientRequest::InitializeRequest(_) | ClientRequest::ListToolsRequest(_) => self.start,
            _ => self.call,
        }
    }
}

impl EnvironmentHttp {
    pub fn new(http: &HttpServer, startup_timeout: Duration, tool_timeout: Duration) -> Self {
        let fixed = http.headers.iter().map(|(name, value)| header(name, value, None));
        let read = http.env_headers.iter().map(|(name, variable)| header(name, "", Some(variable)));
        let bearer = http.bearer_token_env_var.iter().map(|variable| header("authorization", "Bearer ", Some(variable)));
        Self {
            url: http.url.clone(),
            headers: fixed.chain(read).chain(bearer).collect(),
            needs_variables: http.bearer_token_env_var.is_some() || !http.env_headers.is_empty(),
            longest: Longest { start: startup_timeout + Duration::from_secs(5), call: tool_timeout + Duration::from_secs(60) },
        }
    }

    /// Nothing takes the place of a variable that the executor cannot read.
    pub(crate) async fn check(&self, environment: &Environment) -> Result<(), SharedError> {
        if !self.needs_variables {
            return Ok(());
        }
        let info = environment.info().await.map_err(SharedError::new)?;
        if info.capabilities.http_header_env_vars {
            return Ok(());
        }
        let why =
            format!("the executor of `{}` cannot read a token from its variables, and none is sent from here instead", environment.name());
        Err(why.into())
    }

    pub(crate) fn transport(self, environment: Environment, limits: &McpLimits) -> StreamableHttpClientTransport<McpHttpClient> {
        let config = StreamableHttpClientTransportConfig::with_uri(self.url.clone()).max_sse_event_size(limits.message);
        let client = McpHttpClient { environment, headers: self.headers.into(), longest: self.longest, largest: limits.message };
        StreamableHttpClientTransport::with_client(client, config)
    }
}

fn header(name: &str, value: &str, variable: Option<&String>) -> RequestHeader {
    RequestHeader { name: name.to_owned(), value: value.to_owned(), value_env_var: variable.cloned() }
}

/// Makes requests in an environment.
#[derive(Clone)]
pub(crate) struct McpHttpClient {
    environment: Environment,
    headers: Arc<[RequestHeader]>,
    longest: Longest,
    largest: usize,
}

#[derive(Debug, Error)]
pub(crate) enum HttpError {
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("it sent an event of more than {0} bytes")]
    LongEvent(usize),
    #[error("redirected to {0}; set `url` to that address")]
    Moved(String),
}

/// Why a request of the protocol came to nothing.
pub(crate) type HttpFailure = StreamableHttpError<HttpError>;

fn wrong(reason: String) -> HttpFailure {
    StreamableHttpError::UnexpectedServerResponse(Cow::Owned(reason))
}

/// What differs between requests.
struct Ask {
    method: &'static str,
    session: Option<Arc<str>>,
    last_event: Option<String>,
    custom: HashMap<HeaderName, HeaderValue>,
    body: Option<Bytes>,
    timeout: Duration,
}

impl McpHttpClient {
    async fn send(&self, url: &str, ask: Ask) -> Result<(HttpHead, HttpBody), HttpFailure> {
        let mut headers = self.headers.to_vec();
        headers.push(header("accept", "application/json, text/event-stream", None));
        if ask.body.is_some() {
            headers.push(header("content-type", "application/json", None));
        }
        headers.extend(ask.session.map(|session| header("mcp-session-id", &session, None)));
        headers.extend(ask.last_event.map(|id| header("last-event-id", &id, None)));
        for (name, value) in ask.custom {
            let value = value.to_str().map_err(|_| wrong(format!("the header `{name}` is not text")))?;
            headers.push(header(name.as_str(), value, None));
        }
        let call = HttpCall {
            method: ask.method.into(),
            url: url.to_owned(),
            headers,
            body: ask.body,
            timeout: Some(ask.timeout),
            redirects: RedirectPolicy::Stop,
        };
        let (head, body) = self.environment.http_stream(call).await.map_err(|error| StreamableHttpError::Client(error.into()))?;
        if (300..400).contains(&head.status) {
            let to = value_of(&head, "location").unwrap_or("no address was given").to_owned();
            return Err(StreamableHttpError::Client(HttpError::Moved(to)));
        }
        if matches!(head.status, 401 | 403)
            && let Some(challenge) = value_of(&head, "www-authenticate")
        {
            return Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge.to_owned())));
        }
        Ok((head, body))
    }

    async fn whole(&self, mut body: HttpBody) -> Result<Bytes, HttpFailure> {
        let mut all = BytesMut::new();
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|error| StreamableHttpError::Client(HttpError::Body(error)))?;
            if all.len() + piece.len() > self.largest {
                return Err(wrong(format!("its answer has more than {} bytes", self.largest)));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }

    fn events(&self, body: HttpBody) -> BoxStream<'static, Result<Sse, SseError>> {
        let state = (body, Room { largest: self.largest, held: 0, last: 0 });
        let pieces = futures_util::stream::unfold(Some(state), |state| async move {
            let (mut body, mut room) = state?;
            let piece = match body.next().await? {
                Ok(piece) => piece,
                Err(error) => return Some((Err(HttpError::Body(error)), None)),
            };
            match room.take(&piece) {
                Ok(()) => Some((Ok(piece), Some((body, room)))),
                Err(error) => Some((Err(error), None)),
            }
        });
        SseStream::from_bytes_stream(pieces).boxed()
    }
}

/// How much of an event has come.
struct Room {
    largest: usize,
    held: usize,
    last: u8,
}

impl Room {
    /// An event ends with an empty line.
    fn take(&mut self, piece: &[u8]) -> Result<(), HttpError> {
        for byte in piece.iter().copied().filter(|byte| *byte != b'\r') {
            self.held = if byte == b'\n' && self.last == b'\n' { 0 } else { self.held + 1 };
            self.last = byte;
        }
        if self.held > self.largest { Err(HttpError::LongEvent(self.largest)) } else { Ok(()) }
    }
}

fn value_of<'a>(head: &'a HttpHead, name: &str) -> Option<&'a str> {
    head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value.as_str())
}

fn preview(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(SHOWN)]).trim().to_owned()
}

/// Whether a server that was started anew says that it does not know our session. Not all of them answer 404, as they should.
fn is_about_session(text: &str) -> bool {
    text.to_ascii_lowercase().contains("session")
}

impl StreamableHttpClient for McpHttpClient {
    type Error = HttpError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, HttpFailure> {
        let had_session = session_id.is_some();
        let asked = if let JsonRpcMessage::Request(request) = &message { Some(request.id.clone()) } else { None };
        let body = Bytes::from(serde_json::to_vec(&message)?);
        let ask = Ask {
            method: "POST",
            session: session_id,
            last_event: None,
            custom: custom_headers,
            body: Some(body),
            timeout: self.longest.of(&message),
        };
        let (head, body) = self.send(&uri, ask).await?;
        if matches!(head.status, 202 | 204) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if head.status == 404 && had_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let kind = value_of(&head, "content-type").unwrap_or_default().to_ascii_lowercase();
        let session = value_of(&head, "mcp-session-id").map(str::to_owned);
        if (200..300).contains(&head.status) && kind.starts_with("text/event-stream") {
            return Ok(StreamableHttpPostResponse::Sse(self.events(body), session));
        }
        let body = self.whole(body).await?;
        let mut read = serde_json::from_slice::<ServerJsonRpcMessage>(&body);
        // An error that names no request is the answer to this one: no other call would ever receive it.
        if let Ok(JsonRpcMessage::Error(error)) = &mut read
            && error.id.is_none()
        {
            if had_session && head.status == 400 && is_about_session(&error.error.message) {
                return Err(StreamableHttpError::SessionExpired);
            }
            error.id.clone_from(&asked);
        }
        if read.is_err() && had_session && head.status == 400 && is_about_session(&preview(&body)) {
            return Err(StreamableHttpError::SessionExpired);
        }
        match (head.status, read) {
            (200..300, Ok(answer)) => Ok(StreamableHttpPostResponse::Json(answer, session)),
            (200..300, Err(_)) if asked.is_none() => Ok(StreamableHttpPostResponse::Accepted),
            (200..300, Err(error)) => Err(wrong(format!("{error}: {}", preview(&body)))),
            // An error of the protocol is worth more than the status that it came with.
            (status, Ok(answer @ JsonRpcMessage::Error(_))) if !matches!(status, 401 | 403) => {
                Ok(StreamableHttpPostResponse::Json(answer, session))
            }
            (status, _) => Err(wrong(format!("HTTP {status}: {}", preview(&body)))),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), HttpFailure> {
        let ask = Ask {
            method: "DELETE",
            session: Some(session_id),
            last_event: None,
            custom: custom_headers,
            body: None,
            timeout: Duration::from_secs(5),
        };
        // Whether the server knows how to forget a session is its own business.
        self.send(&uri, ask).await.map(drop)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, HttpFailure> {
        let ask = Ask {
            method: "GET",
            session: session_id,
            last_event: last_event_id,
            custom: custom_headers,
            body: None,
            timeout: LONGEST_STREAM,
        };
        let (head, body) = self.send(&uri, ask).await?;
        let kind = value_of(&head, "content-type").map(str::to_ascii_lowercase);
        match head.status {
            405 => Err(StreamableHttpError::ServerDoesNotSupportSse),
            404 => Err(StreamableHttpError::SessionExpired),
            200..300 if kind.as_deref().is_some_and(|kind| kind.starts_with("text/event-stream")) => Ok(self.events(body)),
            200..300 => Err(StreamableHttpError::UnexpectedContentType(kind)),
            status => Err(wrong(format!("HTTP {status}"))),
        }
    }
}
