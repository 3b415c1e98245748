//! Who can be asked, and how to get there.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

use super::quirk::{Quirk, Quirks};

/// One entry of the table `model_providers`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Provider {
    /// For people.
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub base_url: String,
    /// The variable that holds the key; without one no key is sent.
    #[serde(default)]
    pub env_key: Option<String>,
    #[serde(default)]
    pub wire_api: WireApi,
    #[serde(default)]
    pub http_headers: BTreeMap<String, String>,
    /// Headers whose values are taken from variables.
    #[serde(default)]
    pub env_http_headers: BTreeMap<String, String>,
    #[serde(default)]
    pub query_params: BTreeMap<String, String>,
    #[serde(default = "request_max_retries")]
    pub request_max_retries: u32,
    #[serde(default = "stream_max_retries")]
    pub stream_max_retries: u32,
    #[serde(default = "stream_idle_timeout_ms")]
    pub stream_idle_timeout_ms: u64,
    /// In what it differs from its wire.
    #[serde(default)]
    pub quirks: Quirks,
}

fn request_max_retries() -> u32 {
    4
}

fn stream_max_retries() -> u32 {
    5
}

fn stream_idle_timeout_ms() -> u64 {
    300_000
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireApi {
    #[default]
    Responses,
    Chat,
    Anthropic,
    Offline,
}

/// A provider's key. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ProviderKey(String);

impl ProviderKey {
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ProviderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProviderError {
    #[error("there is no model provider `{provider}`; there are: {known}")]
    Unknown { provider: String, known: String },
    #[error("the model provider `{provider}` needs a key: set the variable {variable}, or choose another provider with `model_provider`")]
    NoKey { provider: String, variable: String },
    #[error("the model provider `{provider}` has no usable base_url (`{url}`): it begins with http:// or https://")]
    BadUrl { provider: String, url: String },
    #[error("the model provider `{provider}` has a header that cannot be sent: `{header}`")]
    BadHeader { provider: String, header: String },
}

impl Provider {
    fn at(name: &str, base_url: &str, wire_api: WireApi) -> Self {
        Self {
            name: name.into(),
            base_url: base_url.into(),
            env_key: None,
            wire_api,
            http_headers: BTreeMap::new(),
            env_http_headers: BTreeMap::new(),
            query_params: BTreeMap::new(),
            request_max_retries: request_max_retries(),
            stream_max_retries: stream_max_retries(),
            stream_idle_timeout_ms: stream_idle_timeout_ms(),
            quirks: Quirks::default(),
        }
    }

    /// The key as the variables have it. A variable that is named and missing is an error, not a request without a key.
    pub fn key(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Option<ProviderKey>, ProviderError> {
        let Some(name) = &self.env_key else { return Ok(None) };
        let value = variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let missing = || ProviderError::NoKey { provider: self.name.clone(), variable: name.clone() };
        value.map(|value| Some(ProviderKey::new(value))).ok_or_else(missing)
    }

    /// Takes the values of [`Provider::env_http_headers`] from the variables; a header whose variable is missing is not sent.
    pub fn fill_headers(&mut self, variable: impl Fn(&str) -> Option<String>) {
        for (header, name) in std::mem::take(&mut self.env_http_headers) {
            if let Some(value) = variable(&name).filter(|value| !value.trim().is_empty()) {
                self.http_headers.insert(header, value);
            }
        }
    }

    pub(super) fn idle(&self) -> Duration {
        Duration::from_millis(self.stream_idle_timeout_ms.max(1))
    }

    /// Its address for people: without what may be a secret.
    pub fn place(&self) -> String {
        let Ok(mut url) = self.base_url.parse::<reqwest::Url>() else { return self.base_url.clone() };
        // Neither can fail with an address that has a host.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_query(None);
        url.to_string()
    }

    /// Whether its address can be one.
    pub fn check(&self) -> Result<(), ProviderError> {
        if self.wire_api == WireApi::Offline { Ok(()) } else { self.endpoint("").map(drop) }
    }

    /// The address that paths are added to. Clients of the Anthropic wire name it without its version, those of the others with it.
    fn versioned_url(&self) -> String {
        let base = self.base_url.trim_end_matches('/');
        let last = base.rsplit('/').next().unwrap_or_default();
        let is_version = last.strip_prefix('v').is_some_and(|number| !number.is_empty() && number.chars().all(|c| c.is_ascii_digit()));
        if self.wire_api == WireApi::Anthropic && !is_version { format!("{base}/v1") } else { base.to_owned() }
    }

    /// Its address without the version: where a server's own pages are.
    pub(super) fn root(&self) -> String {
        let base = self.versioned_url();
        base.rsplit_once("/v")
            .filter(|(_, rest)| rest.chars().all(|c| c.is_ascii_digit()))
            .map_or(base.clone(), |(root, _)| root.to_owned())
    }

    /// Whether its server is on this machine or on a network of the user's own.
    pub(super) fn is_near(&self) -> bool {
        let Some(host) = self.base_url.parse::<reqwest::Url>().ok().and_then(|url| url.host_str().map(str::to_owned)) else { return false };
        match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_private() || address.is_link_local(),
            Ok(IpAddr::V6(address)) => address.is_loopback() || address.is_unique_local(),
            Err(_) => !host.contains('.') || host.ends_with(".local") || host.ends_with(".lan") || host.ends_with(".internal"),
        }
    }

    pub(super) fn endpoint(&self, path: &str) -> Result<reqwest::Url, ProviderError> {
        let bad = || ProviderError::BadUrl { provider: self.name.clone(), url: self.base_url.clone() };
        let base: reqwest::Url = self.base_url.parse().map_err(|_| bad())?;
        if !matches!(base.scheme(), "http" | "https") {
            return Err(bad());
        }
        let mut url: reqwest::Url = format!("{}/{path}", self.versioned_url()).parse().map_err(|_| bad())?;
        if !self.query_params.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query_params);
        }
        Ok(url)
    }
}

/// The providers that need no configuration.
pub fn built_in() -> BTreeMap<String, Provider> {
    let mut openai = Provider::at("OpenAI", "https://api.openai.com/v1", WireApi::Responses);
    openai.env_key = Some("OPENAI_API_KEY".into());
    let mut anthropic = Provider::at("Anthropic", "https://api.anthropic.com/v1", WireApi::Anthropic);
    anthropic.env_key = Some("ANTHROPIC_API_KEY".into());
    let mut ollama = Provider::at("Ollama", "http://127.0.0.1:11434/v1", WireApi::Chat);
    // Many of its templates have no calls, and models write them all the same.
    ollama.quirks = Quirks::from([Quirk::TextCalls]);
    [("openai", openai), ("anthropic", anthropic), ("ollama", ollama), ("offline", Provider::at("offline", "", WireApi::Offline))]
        .map(|(id, provider)| (id.to_owned(), provider))
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_comes_from_the_named_variable_only() {
        let openai = &built_in()["openai"];
        let set = |name: &str| (name == "OPENAI_API_KEY").then(|| " sk-1 \n".to_owned());
        assert_eq!(openai.key(set), Ok(Some(ProviderKey::new("sk-1"))));
        let error = openai.key(|_| Some("  ".into())).unwrap_err();
        assert!(error.to_string().contains("OPENAI_API_KEY"), "{error}");
        assert_eq!(built_in()["ollama"].key(|_| None), Ok(None));
        assert_eq!(format!("{:?}", ProviderKey::new("sk-1")), "Key(…)");
    }

    #[test]
    fn an_endpoint_keeps_the_query_and_refuses_other_schemes() {
        let mut provider = built_in()["ollama"].clone();
        provider.query_params.insert("api-version".into(), "2".into());
        assert_eq!(provider.endpoint("chat/completions").unwrap().as_str(), "http://127.0.0.1:11434/v1/chat/completions?api-version=2");
        for url in ["", "ftp://x", "localhost:1", "http://"] {
            provider.base_url = url.into();
            assert!(provider.endpoint("x").is_err(), "{url}");
        }
    }

    #[test]
    fn the_anthropic_wire_needs_no_version_in_its_address() {
        let mut provider = built_in()["anthropic"].clone();
        for (base, endpoint) in [
            ("https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
            ("https://api.anthropic.com/v1/", "https://api.anthropic.com/v1/messages"),
            ("https://gateway.example/anthropic", "https://gateway.example/anthropic/v1/messages"),
        ] {
            provider.base_url = base.into();
            assert_eq!(provider.endpoint("messages").unwrap().as_str(), endpoint);
        }
    }

    #[test]
    fn servers_nearby_are_told_from_those_of_clouds() {
        let at = |url: &str| Provider { base_url: url.into(), ..built_in()["ollama"].clone() };
        for near in ["http://127.0.0.1:8080/v1", "http://10.0.0.7/v1", "http://[::1]:1/v1", "http://box:8080/v1", "http://gpu.local/v1"] {
            assert!(at(near).is_near(), "{near}");
        }
        for far in ["https://api.openai.com/v1", "https://8.8.8.8/v1", "nonsense"] {
            assert!(!at(far).is_near(), "{far}");
        }
        assert_eq!(at("http://box:8080/v1/").root(), "http://box:8080");
        assert_eq!(at("http://box:8080/vllm").root(), "http://box:8080/vllm");
    }

    #[test]
    fn headers_from_variables_are_filled_once() {
        let mut provider = built_in()["ollama"].clone();
        provider.env_http_headers = [("x-a".to_owned(), "A".to_owned()), ("x-b".to_owned(), "B".to_owned())].into();
        provider.fill_headers(|name| (name == "A").then(|| "1".into()));
        assert_eq!(provider.http_headers, [("x-a".to_owned(), "1".to_owned())].into());
    }
}
