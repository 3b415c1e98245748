//! One request to a provider and the events of its answer.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use outpost_wire::envelope::TraceContext;
use reqwest::Response;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::retry::asked_in_words;
use super::sse::EventDecoder;
use super::{ModelError, ModelProgress, OnProgress, Provider, ProviderError, ProviderKey};

/// So much of an error's body is read.
const MAX_ERROR: usize = 64 << 10;

/// What a request needs besides its content.
pub struct ModelCall<'a> {
    pub provider: &'a Provider,
    pub key: Option<&'a ProviderKey>,
    pub http: &'a reqwest::Client,
    pub ids: &'a (dyn Fn() -> String + Send + Sync),
    pub trace: Option<&'a TraceContext>,
}

impl ModelCall<'_> {
    /// Posts a body; done when the head of a good answer is there.
    pub async fn post(&self, path: &str, body: impl Into<reqwest::Body>, progress: OnProgress<'_>) -> Result<Events, ModelError> {
        let request = self.http.post(self.provider.endpoint(path)?).headers(self.headers()?).body(body);
        let response = match timeout(self.provider.idle(), request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.unreachable(&error.without_url())),
            Err(_) => return Err(self.silent()),
        };
        if let Some(limits) = rate_limits(response.headers()) {
            progress(ModelProgress::RateLimits { limits });
        }
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let name = self.provider.name.clone();
        Ok(Events { response, decoder: EventDecoder::default(), idle: self.provider.idle(), provider: name, ended: false })
    }

    /// The status of a page.
    pub async fn get(&self, path: &str) -> Result<u16, ModelError> {
        let request = self.http.get(self.provider.endpoint(path)?).headers(self.headers()?);
        let response = request.send().await.map_err(|error| self.unreachable(&error.without_url()))?;
        Ok(response.status().as_u16())
    }

    fn headers(&self) -> Result<HeaderMap, ProviderError> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        let bad = |header: &str| ProviderError::BadHeader { provider: self.provider.name.clone(), header: header.to_owned() };
        if let Some(key) = self.key {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose())).map_err(|_| bad("authorization"))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
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
            headers.insert(HeaderName::try_from(name).map_err(|_| bad(name))?, value);
        }
        Ok(headers)
    }

    fn unreachable(&self, error: &dyn std::error::Error) -> ModelError {
        ModelError::Unreachable {
            provider: self.provider.name.clone(),
            reason: format!("{}: {}", self.provider.place(), first_cause(error)),
        }
    }

    fn silent(&self) -> ModelError {
        ModelError::Silent { provider: self.provider.name.clone(), after_ms: self.provider.stream_idle_timeout_ms }
    }

    /// What an answer that is not a good one says.
    async fn refusal(&self, mut response: Response) -> ModelError {
        let status = response.status().as_u16();
        let asked = retry_after(response.headers());
        let mut body = Vec::new();
        while let Ok(Ok(Some(chunk))) = timeout(self.provider.idle(), response.chunk()).await {
            body.extend_from_slice(&chunk[..chunk.len().min(MAX_ERROR - body.len())]);
            if body.len() >= MAX_ERROR {
                break;
            }
        }
        let told = ProviderMessage::from_body(&body);
        self.failure(status, told, asked)
    }

    /// An error that the provider told, be it instead of an answer or in the middle of one.
    pub fn failure(&self, status: u16, told: ProviderMessage, asked: Option<u64>) -> ModelError {
        let ProviderMessage { code, message } = told;
        let provider = self.provider.name.clone();
        match (code.as_str(), status) {
            ("context_length_exceeded", _) => ModelError::ContextExceeded { message },
            ("insufficient_quota" | "usage_not_included" | "invalid_prompt", _) => ModelError::Refused { provider, status, message },
            (_, 408 | 409 | 425 | 429 | 500..) => {
                let retry_after_ms = asked.or_else(|| asked_in_words(&message));
                ModelError::Busy { provider, status, message, retry_after_ms }
            }
            _ => ModelError::Refused { provider, status, message },
        }
    }

    pub fn nonsense(&self, reason: impl ToString) -> ModelError {
        ModelError::Nonsense { provider: self.provider.name.clone(), reason: reason.to_string() }
    }

    pub fn cut(&self, reason: impl ToString) -> ModelError {
        ModelError::Cut { provider: self.provider.name.clone(), reason: reason.to_string() }
    }
}

/// An error in the provider's own words.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ProviderMessage {
    pub code: String,
    pub message: String,
}

impl ProviderMessage {
    fn from_body(body: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Body {
            error: Value,
        }
        match serde_json::from_slice::<Body>(body) {
            Ok(body) => Self::from_value(&body.error),
            Err(_) => {
                let text = String::from_utf8_lossy(body);
                let mut message: String = text.trim().chars().take(500).collect();
                if message.is_empty() {
                    message = "without a word".into();
                }
                Self { code: String::new(), message }
            }
        }
    }

    /// From the value of an `error` member: an object, or the message itself.
    pub fn from_value(error: &Value) -> Self {
        let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
        let code = text("code").or_else(|| text("type")).unwrap_or_default();
        let message = text("message").or_else(|| error.as_str().map(str::to_owned)).unwrap_or_else(|| error.to_string());
        Self { code, message }
    }
}

/// The events of an answer, one by one.
pub struct Events {
    response: Response,
    decoder: EventDecoder,
    idle: std::time::Duration,
    provider: String,
    ended: bool,
}

impl Events {
    /// The data of the next event; nothing at the end of the stream. What counts as a sign of life is a whole event, so a
    /// line that never ends is silence.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ModelError> {
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
                    let reason = with_causes(&error.without_url());
                    return Err(ModelError::Cut { provider: self.provider.clone(), reason });
                }
            }
        }
    }
}

/// What it comes down to: the layers above say the same in more words.
fn first_cause(error: &dyn std::error::Error) -> String {
    let mut first = error;
    while let Some(cause) = first.source() {
        first = cause;
    }
    first.to_string()
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok().filter(|number| *number >= 0.0);
    number("retry-after-ms").or_else(|| number("retry-after").map(|seconds| seconds * 1000.0)).map(|ms| ms.min(1e9) as u64)
}

/// The headers in which providers tell how much of an allowance is left.
fn rate_limits(headers: &HeaderMap) -> Option<Value> {
    let limits: Map<String, Value> = headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str().strip_prefix("x-ratelimit-")?.to_owned(), value.to_str().ok()?.into())))
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
        assert_eq!(ProviderMessage::from_body(b"<html>bad gateway").message, "<html>bad gateway");
        assert_eq!(ProviderMessage::from_body(b"").message, "without a word");
    }

    #[test]
    fn waits_in_headers() {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", HeaderValue::from_static("2"));
        assert_eq!(retry_after(&headers), Some(2000));
        headers.insert("retry-after-ms", HeaderValue::from_static("15"));
        assert_eq!(retry_after(&headers), Some(15));
        headers.insert("x-ratelimit-remaining-tokens", HeaderValue::from_static("9"));
        assert_eq!(rate_limits(&headers), Some(serde_json::json!({"remaining-tokens": "9"})));
    }
}
