//! One request to a provider and the events of its answer.

use std::error::Error;
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use outpost_wire::SharedError;
use outpost_wire::envelope::TraceContext;
use reqwest::Response;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::anthropic;
use super::foreign::{Beginning, page};
use super::provider_words::{asked_in_words, is_about_thoughts, is_too_long};
use super::quirk::Quirk;
use super::sse::EventDecoder;
use super::{ModelError, ModelListing, ModelProgress, OnProgress, Provider, ProviderError, ProviderKey, WireApi};

/// So much of an error's body is read.
const MAX_ERROR: usize = 64 << 10;

const BETA: HeaderName = HeaderName::from_static("anthropic-beta");

/// What a request needs besides its content.
#[derive(Clone, Copy)]
pub(super) struct ModelCall<'a> {
    pub provider: &'a Provider,
    pub key: Option<&'a ProviderKey>,
    pub http: &'a reqwest::Client,
    pub ids: &'a (dyn Fn() -> String + Send + Sync),
    pub trace: Option<&'a TraceContext>,
    /// A part of the provider's API that its version does not have yet.
    pub beta: Option<&'static str>,
}

impl ModelCall<'_> {
    /// Posts a body; done when a stream of events has begun.
    pub(super) async fn post(&self, path: &str, body: impl Into<reqwest::Body>, progress: OnProgress<'_>) -> Result<Events, ModelError> {
        let response = self.send(path, body).await?;
        if let Some(limits) = rate_limits(response.headers()) {
            progress(ModelProgress::RateLimits { limits });
        }
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let name = self.provider.name.clone();
        let mut events = Events { response, decoder: EventDecoder::default(), idle: self.provider.idle(), provider: name, ended: false };
        self.look_at_beginning(&mut events).await?;
        Ok(events)
    }

    async fn send(&self, path: &str, body: impl Into<reqwest::Body>) -> Result<Response, ModelError> {
        let request = self.http.post(self.provider.endpoint(path)?).headers(self.headers()?).body(body);
        match timeout(self.provider.idle(), request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.unreachable(error)),
            Err(_) => Err(self.silent()),
        }
    }

    /// Reads until it is clear that events come. What is something else would be the same when it is asked for again.
    async fn look_at_beginning(&self, events: &mut Events) -> Result<(), ModelError> {
        let encoding = events.response.headers().get(header::CONTENT_ENCODING).and_then(|encoding| encoding.to_str().ok());
        if let Some(encoding) = encoding.filter(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
            return Err(self.not_a_stream(&format!("a body compressed with {encoding}, which was not asked for")));
        }
        let mut body = Vec::new();
        loop {
            let found = match Beginning::of(&body) {
                Beginning::Unknown if body.len() < MAX_ERROR && !events.ended => {
                    match timeout(self.provider.idle(), events.response.chunk()).await {
                        Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
                        Ok(Ok(None)) => events.ended = true,
                        Ok(Err(error)) => return Err(self.cut(broken_off(error))),
                        Err(_) => return Err(self.silent()),
                    }
                    continue;
                }
                Beginning::Unknown | Beginning::Events => {
                    events.decoder.push(&body);
                    return Ok(());
                }
                Beginning::Compressed(encoding) => format!("a body compressed with {encoding}, which was not asked for"),
                Beginning::Binary => "bytes that are no text: a proxy may have compressed them".to_owned(),
                Beginning::Page => page(&self.rest(body, &mut events.response).await),
                Beginning::Text => {
                    let text = String::from_utf8_lossy(&body).into_owned();
                    format!("the text `{}`", text.trim_start().lines().next().unwrap_or_default().chars().take(80).collect::<String>())
                }
                Beginning::Json => {
                    let body = self.rest(body, &mut events.response).await;
                    // Gateways answer with an error of their own after they have promised a good answer.
                    if let Ok(Value::Object(document)) = serde_json::from_slice::<Value>(&body)
                        && let Some(error) = document.get("error").filter(|error| !error.is_null())
                    {
                        return Err(self.failure(status(error).unwrap_or(200), ProviderMessage::from_value(error), None));
                    }
                    "a JSON document: it may not be able to stream".to_owned()
                }
            };
            return Err(self.not_a_stream(&found));
        }
    }

    /// The rest of a body that is of interest only for its words.
    async fn rest(&self, mut body: Vec<u8>, response: &mut Response) -> Vec<u8> {
        while body.len() < MAX_ERROR
            && let Ok(Ok(Some(chunk))) = timeout(self.provider.idle(), response.chunk()).await
        {
            body.extend_from_slice(&chunk[..chunk.len().min(MAX_ERROR - body.len())]);
        }
        body
    }

    fn not_a_stream(&self, found: &str) -> ModelError {
        let (provider, place) = (self.provider.name.clone(), self.provider.place());
        ModelError::NotAStream { provider, place, found: found.to_owned() }
    }

    /// The provider's list of models. Both kinds of API have it at the same place and in the same shape.
    pub(super) async fn list(&self) -> Result<ModelListing, ModelError> {
        let request = self.http.get(self.provider.endpoint("models")?).headers(self.headers()?);
        let response = request.send().await.map_err(|error| self.unreachable(error))?;
        let status = response.status().as_u16();
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_web_page = kind.trim_start().to_ascii_lowercase().starts_with("text/html");
        let body = if status == 200 { response.bytes().await.unwrap_or_default() } else { Bytes::new() };
        let list: Value = serde_json::from_slice(&body).unwrap_or_default();
        let models = list["data"].as_array().into_iter().flatten().filter_map(|model| model["id"].as_str().map(str::to_owned));
        Ok(ModelListing { status, models: models.collect(), is_web_page })
    }

    /// The JSON document at an address of the same server that is no part of its wire.
    pub(super) async fn get_json(&self, url: &str) -> ServerPage {
        self.page(self.http.get(url)).await
    }

    /// What the same server answers to a body at such an address.
    pub(super) async fn post_to(&self, url: &str, body: String) -> ServerPage {
        self.page(self.http.post(url).body(body)).await
    }

    async fn page(&self, request: reqwest::RequestBuilder) -> ServerPage {
        let Ok(headers) = self.headers() else { return ServerPage::Missing };
        let Ok(response) = request.headers(headers).send().await else { return ServerPage::Unavailable };
        match response.status().as_u16() {
            200..300 => match response.bytes().await {
                Ok(body) => serde_json::from_slice(&body).map_or(ServerPage::Missing, ServerPage::Document),
                Err(_) => ServerPage::Unavailable,
            },
            408 | 425 | 429 | 502..=504 => ServerPage::Unavailable,
            _ => ServerPage::Missing,
        }
    }

    fn headers(&self) -> Result<HeaderMap, ProviderError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        let bad = |header: &str| ProviderError::BadHeader { provider: self.provider.name.clone(), header: header.to_owned() };
        let is_anthropic = self.provider.wire_api == WireApi::Anthropic;
        if is_anthropic {
            headers.insert("anthropic-version", HeaderValue::from_static(anthropic::VERSION));
            self.beta.into_iter().for_each(|beta| drop(headers.insert(BETA, HeaderValue::from_static(beta))));
        }
        if let Some(key) = self.key {
            let (name, value) = if is_anthropic && !self.provider.quirks.has(Quirk::BearerKey) {
                (HeaderName::from_static("x-api-key"), key.expose().to_owned())
            } else {
                (header::AUTHORIZATION, format!("Bearer {}", key.expose()))
            };
            let mut value = HeaderValue::from_str(&value).map_err(|_| bad(name.as_str()))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        // A trace that makes no sense is no reason not to ask.
        if let Some(trace) = self.trace
            && let Some(parent) = trace.parent().and_then(|parent| HeaderValue::from_str(parent).ok())
        {
            headers.insert("traceparent", parent);
            let state = trace.tracestate.as_deref().and_then(|state| HeaderValue::from_str(state).ok());
            state.into_iter().for_each(|state| drop(headers.insert("tracestate", state)));
        }
        for (name, value) in &self.provider.http_headers {
            let mut value = HeaderValue::from_str(value).map_err(|_| bad(name))?;
            value.set_sensitive(true);
            let name = HeaderName::try_from(name).map_err(|_| bad(name))?;
            // What the user tries of the provider's API is tried besides what we do.
            if name == BETA {
                headers.append(name, value);
            } else {
                headers.insert(name, value);
            }
        }
        Ok(headers)
    }

    fn unreachable(&self, error: reqwest::Error) -> ModelError {
        let error = error.without_url();
        let reason = format!("{}: {}", self.provider.place(), first_cause(&error));
        ModelError::Unreachable { provider: self.provider.name.clone(), reason: SharedError::worded(reason, error) }
    }

    fn silent(&self) -> ModelError {
        ModelError::Silent { provider: self.provider.name.clone(), after_ms: self.provider.stream_idle_timeout_ms }
    }

    /// What an answer that is not a good one says.
    async fn refusal(&self, mut response: Response) -> ModelError {
        let status = response.status().as_u16();
        let asked = retry_after(response.headers());
        let target = response.headers().get(header::LOCATION).and_then(|target| target.to_str().ok()).map(str::to_owned);
        let body = self.rest(Vec::new(), &mut response).await;
        let mut told = ProviderMessage::from_body(&body);
        if let Some(target) = target.filter(|_| (300..400).contains(&status)) {
            // What stands behind the question mark may be secret.
            let target = target.split(['?', '#']).next().unwrap_or_default();
            told.message = format!("redirected to {target}: a sign-in page, or the `base_url` is another one");
        }
        self.failure(status, told, asked)
    }

    /// An error that the provider told, be it instead of an answer or in the middle of one.
    pub(super) fn failure(&self, status: u16, told: ProviderMessage, asked: Option<u64>) -> ModelError {
        let ProviderMessage { code, message } = told;
        let provider = self.provider.name.clone();
        match (code.as_str(), status) {
            // Also a body that is too large for the provider or a proxy before it: what is summed up is smaller.
            (_, 413) => ModelError::ContextExceeded { message },
            _ if is_too_long(&code, &message) => ModelError::ContextExceeded { message },
            _ if is_about_thoughts(&code, &message) => ModelError::ThoughtsRefused { provider, message },
            ("insufficient_quota" | "usage_not_included" | "invalid_prompt", _) => ModelError::Refused { provider, status, message },
            (_, 408 | 409 | 425 | 429 | 500..) => {
                let retry_after_ms = asked.or_else(|| asked_in_words(&message));
                ModelError::Busy { provider, status, message, retry_after_ms }
            }
            _ => ModelError::Refused { provider, status, message },
        }
    }

    pub(super) fn nonsense(&self, reason: impl Into<Box<dyn Error + Send + Sync>>) -> ModelError {
        ModelError::Nonsense { provider: self.provider.name.clone(), reason: SharedError::new(reason) }
    }

    /// An answer or an event that cannot be read.
    pub(super) fn not_json(&self, what: &str, error: serde_json::Error) -> ModelError {
        let reason = SharedError::worded(format!("{what} is not JSON: {error}"), error);
        ModelError::Nonsense { provider: self.provider.name.clone(), reason }
    }

    pub(super) fn cut(&self, reason: impl Into<SharedError>) -> ModelError {
        ModelError::Cut { provider: self.provider.name.clone(), reason: reason.into() }
    }
}

/// The status that gateways put into an error, as a number or as text, once the real one is gone.
pub(super) fn status(error: &Value) -> Option<u16> {
    let code = &error["code"];
    let number = code.as_u64().and_then(|code| u16::try_from(code).ok()).or_else(|| code.as_str()?.parse().ok());
    number.filter(|code| (400..600).contains(code))
}

/// An error in the provider's own words.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ProviderMessage {
    pub code: String,
    pub message: String,
}

impl ProviderMessage {
    fn from_body(body: &[u8]) -> Self {
        // Gateways without an `error` have a `detail`, or the members of an error at the top.
        #[derive(Deserialize)]
        struct Body {
            #[serde(default)]
            error: Value,
            #[serde(default)]
            detail: Value,
            #[serde(default)]
            message: Value,
        }
        match serde_json::from_slice::<Body>(body) {
            Ok(Body { error, .. }) if !error.is_null() => Self::from_value(&error),
            Ok(Body { detail, .. }) if !detail.is_null() => Self::from_value(&detail),
            Ok(Body { message: Value::String(message), .. }) => Self { code: String::new(), message },
            Ok(_) => Self { code: String::new(), message: String::from_utf8_lossy(body).trim().chars().take(500).collect() },
            Err(_) if Beginning::of(body) == Beginning::Page => Self { code: String::new(), message: page(body) },
            Err(_) => {
                let text = String::from_utf8_lossy(body);
                let mut message: String = text.trim().chars().take(500).collect();
                if message.is_empty() {
                    message = "the body of the answer is empty".into();
                }
                Self { code: String::new(), message }
            }
        }
    }

    /// From the value of an `error` member: an object, or the message itself.
    pub(super) fn from_value(error: &Value) -> Self {
        let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
        let code = text("code").or_else(|| text("type")).unwrap_or_default();
        let message = text("message").or_else(|| error.as_str().map(str::to_owned)).unwrap_or_else(|| error.to_string());
        Self { code, message }
    }
}

/// What a server has at an address of its own.
#[derive(Debug)]
pub(super) enum ServerPage {
    Document(Value),
    /// It may have it later: it is loading its model, is busy or cannot be reached.
    Unavailable,
    /// It does not have it, and will not.
    Missing,
}

/// The events of an answer, one by one.
pub(super) struct Events {
    response: Response,
    decoder: EventDecoder,
    idle: std::time::Duration,
    provider: String,
    ended: bool,
}

impl Events {
    /// The data of the next event; nothing at the end of the stream. What counts as a sign of life is a whole event, so a
    /// line that never ends is silence.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, ModelError> {
        let (idle, provider) = (self.idle, self.provider.clone());
        let after_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        timeout(idle, self.read()).await.unwrap_or(Err(ModelError::Silent { provider, after_ms }))
    }

    async fn read(&mut self) -> Result<Option<Bytes>, ModelError> {
        loop {
            match self.decoder.next() {
                Ok(Some(event)) => return Ok(Some(event)),
                Ok(None) if self.ended => return Ok(None),
                Ok(None) => {}
                Err(_) => {
                    let reason = "an event without an end".into();
                    return Err(ModelError::Nonsense { provider: self.provider.clone(), reason });
                }
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.decoder.push(&chunk),
                Ok(None) => {
                    self.ended = true;
                    return Ok(self.decoder.last());
                }
                Err(error) => {
                    let reason = broken_off(error);
                    return Err(ModelError::Cut { provider: self.provider.clone(), reason });
                }
            }
        }
    }
}

/// What it comes down to: the layers above say the same in more words.
fn first_cause(error: &dyn Error) -> String {
    let mut first = error;
    while let Some(cause) = first.source() {
        first = cause;
    }
    first.to_string()
}

/// Why an answer broke off. The library puts the cause behind words of its own.
fn broken_off(error: reqwest::Error) -> SharedError {
    let error = error.without_url();
    SharedError::worded(with_causes(&error), error)
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// How long a provider asks to wait, in milliseconds: as a number, or as the date to wait for.
fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |name: &str| text(name)?.parse::<f64>().ok().filter(|number| *number >= 0.0);
    let in_numbers = number("retry-after-ms").or_else(|| number("retry-after").map(|seconds| seconds * 1000.0));
    in_numbers.map(|ms| ms.min(1e9) as u64).or_else(|| {
        let now = SystemTime::now();
        // The date of the answer tells how far its clock is from ours.
        let then = text("date").and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
        let until = httpdate::parse_http_date(text("retry-after")?).ok()?;
        u64::try_from(until.duration_since(then).unwrap_or_default().as_millis()).ok()
    })
}

/// The headers in which providers tell how much of an allowance is left.
fn rate_limits(headers: &HeaderMap) -> Option<Value> {
    let limits: Map<String, Value> = headers
        .iter()
        .filter_map(|(name, value)| {
            let name = name.as_str();
            let limit = name.strip_prefix("x-ratelimit-").or_else(|| name.strip_prefix("anthropic-ratelimit-"))?;
            Some((limit.to_owned(), value.to_str().ok()?.into()))
        })
        .collect();
    (!limits.is_empty()).then_some(Value::Object(limits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_every_shape_are_understood() {
        let told = ProviderMessage::from_body(br#"{"error":{"message":"no such model","code":"model_not_found"}}"#);
        assert_eq!(told, ProviderMessage { code: "model_not_found".into(), message: "no such model".into() });
        assert_eq!(ProviderMessage::from_body(br#"{"error":"plain"}"#).message, "plain");
        assert_eq!(ProviderMessage::from_body(br#"{"detail":"no such model"}"#).message, "no such model");
        assert_eq!(ProviderMessage::from_body(br#"{"object":"error","message":"too long","code":400}"#).message, "too long");
        assert_eq!(ProviderMessage::from_body(br#"{"why":"so"}"#).message, r#"{"why":"so"}"#);
        assert_eq!(ProviderMessage::from_body(b"bad gateway").message, "bad gateway");
        assert_eq!(ProviderMessage::from_body(b"<html><title>Down</title>").message, "a web page with the title `Down`");
        assert_eq!(ProviderMessage::from_body(b"").message, "the body of the answer is empty");
    }

    #[test]
    fn waits_in_headers() {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", HeaderValue::from_static("Wed, 21 Oct 2026 07:28:30 GMT"));
        headers.insert("date", HeaderValue::from_static("Wed, 21 Oct 2026 07:28:00 GMT"));
        assert_eq!(retry_after(&headers), Some(30_000));
        headers.insert("retry-after", HeaderValue::from_static("2"));
        assert_eq!(retry_after(&headers), Some(2000));
        headers.insert("retry-after-ms", HeaderValue::from_static("15"));
        assert_eq!(retry_after(&headers), Some(15));
        headers.insert("x-ratelimit-remaining-tokens", HeaderValue::from_static("9"));
        assert_eq!(rate_limits(&headers), Some(serde_json::json!({"remaining-tokens": "9"})));
    }
}
