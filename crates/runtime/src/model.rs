//! Models: what they are asked and what they answer, whatever the wire in between.
//!
//! The language of this room is that of the Responses API, because it is the richest: history is a list of items, and an
//! item is kept exactly as it was received. Other wires translate to and from it at their edge.

mod anthropic;
mod chat;
mod exchange;
pub mod facts;
mod foreign;
mod history;
mod name;
mod offline;
mod picture_load;
pub mod price;
mod provider;
mod provider_words;
mod quirk;
mod responses;
mod retry;
mod schema;
mod served;
mod sse;
mod text_calls;

use std::borrow::Cow;
use std::sync::Arc;

use outpost_thread::Raw;
use outpost_wire::SharedError;
use outpost_wire::envelope::TraceContext;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

pub use facts::{ModelFacts, ModelOverrides};
pub use history::{ModelHistory, WrittenSoFar};
pub use provider::{Provider, ProviderError, ProviderKey, WireApi, built_in};
pub use quirk::{Quirk, Quirks};
pub(crate) use served::ServedWindow;

use crate::model::retry::Tries;

/// The model of the provider `offline`, which stands for none at all others.
pub const NO_MODEL: &str = "offline";

/// One item of history, as it was received.
pub type HistoryItem = Raw;

/// Everything that a model is shown in one step.
#[derive(Debug, Clone)]
pub struct Prompt {
    pub model: String,
    pub instructions: Arc<str>,
    pub history: ModelHistory,
    pub tools: Arc<[ToolSpec]>,
    /// What the final answer must look like, as a JSON schema.
    pub output_schema: Option<Arc<Value>>,
    pub effort: Option<String>,
    /// How soon and at which price the provider answers, in its own word.
    pub service_tier: Option<String>,
    /// What is known of the model.
    pub facts: Arc<ModelFacts>,
    /// Requests with the same key share what the provider has cached of their common beginning.
    pub cache_key: String,
    /// What of a distributed trace it belongs to.
    pub trace: Option<TraceContext>,
}

impl Prompt {
    /// A request without tools, for an answer in plain words.
    pub fn plain(model: impl Into<String>, instructions: impl Into<Arc<str>>, history: ModelHistory) -> Self {
        Self {
            model: model.into(),
            instructions: instructions.into(),
            history,
            tools: [].into(),
            output_schema: None,
            effort: None,
            service_tier: None,
            facts: Arc::default(),
            cache_key: String::new(),
            trace: None,
        }
    }

    /// The same without what the model thought in earlier answers; nothing if there is no such thing in it.
    fn without_thoughts(&self) -> Option<Self> {
        let items = self.history.items();
        let spoken: Vec<_> = items.iter().filter(|item| !is_thought(item)).cloned().collect();
        if spoken.len() == items.len() && !self.facts.binds_thoughts {
            return None;
        }
        let facts = ModelFacts { binds_thoughts: false, ..ModelFacts::clone(&self.facts) };
        Some(Self { history: ModelHistory::new(spoken), facts: facts.into(), ..self.clone() })
    }
}

/// Whether an item is something that the model thought, which only its provider can read.
fn is_thought(item: &HistoryItem) -> bool {
    #[derive(Deserialize)]
    struct Kind {
        #[serde(rename = "type", default)]
        kind: String,
    }
    serde_json::from_str::<Kind>(item.get()).is_ok_and(|item| item.kind == "reasoning")
}

/// A tool as the model is told about it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    pub input: ToolInput,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ToolInput {
    /// An object that follows a JSON schema.
    Object(Value),
    /// Plain text that follows a grammar in Lark's notation.
    Text { grammar: String },
}

/// What a model answered.
#[derive(Debug, Clone, Default)]
pub struct ModelResponse {
    pub items: Vec<HistoryItem>,
    pub usage: ModelUsage,
    pub stop: StopReason,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum StopReason {
    /// The model was done, or waits for the results of its calls.
    #[default]
    Complete,
    /// It reached the limit of its length.
    Truncated,
    /// The model or its provider did not want to answer.
    Refused,
    /// The provider wants to be asked again with what there is.
    Paused,
    /// It ends with a call that the model wrote as text, which is not read at this provider.
    TextCall,
    /// It is a call that the model wrote as text and that cannot be read, at a provider where such calls are.
    UnreadableCall,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelUsage {
    pub input_tokens: u64,
    pub cached_input_tokens: u64,
    /// The part of the input that the provider put into its cache.
    pub cache_write_tokens: u64,
    pub output_tokens: u64,
    pub reasoning_tokens: u64,
    pub total_tokens: u64,
}

/// What can be shown while a model answers. None of it is promised: an attempt that fails takes back what it told.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelProgress {
    ItemStarted {
        item: Value,
    },
    TextDelta {
        item_id: String,
        delta: String,
    },
    ReasoningDelta {
        item_id: String,
        part: ReasoningPart,
        delta: String,
    },
    ItemFinished {
        item: Value,
    },
    /// The attempt failed and is made again; what it told is void.
    Retrying {
        attempt: u32,
        of: u32,
        reason: String,
    },
    RateLimits {
        limits: Value,
    },
    /// Something about the answer that the user should know.
    Notice {
        text: String,
    },
}

/// Which piece of a thought: a paragraph of its summary, or of the thought itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReasoningPart {
    Summary(u32),
    Content(u32),
}

/// Where progress goes. It must not wait.
pub type OnProgress<'a> = &'a (dyn Fn(ModelProgress) + Send + Sync);

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ModelError {
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error("{provider} cannot be reached: {reason}")]
    Unreachable {
        provider: String,
        #[source]
        reason: SharedError,
    },
    #[error("{provider} refused the request: HTTP {status}: {message}")]
    Refused { provider: String, status: u16, message: String },
    #[error("{provider} refused what the model thought earlier: {message}")]
    ThoughtsRefused { provider: String, message: String },
    #[error("{provider} is overloaded: HTTP {status}: {message}")]
    Busy { provider: String, status: u16, message: String, retry_after_ms: Option<u64> },
    #[error("the conversation no longer fits the model's context window: {message}")]
    ContextExceeded { message: String },
    #[error("the answer of {provider} broke off: {reason}")]
    Cut {
        provider: String,
        #[source]
        reason: SharedError,
    },
    #[error("{provider} was silent for {after_ms} ms in the middle of an answer")]
    Silent { provider: String, after_ms: u64 },
    #[error("{provider} sent an invalid answer: {reason}")]
    Nonsense {
        provider: String,
        #[source]
        reason: SharedError,
    },
    #[error("{provider} sent no event stream but {found}; check its `base_url` ({place}) and the proxy variables")]
    NotAStream { provider: String, place: String, found: String },
}

impl ModelError {
    /// In one word, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Provider(_) => "provider",
            Self::Unreachable { .. } => "unreachable",
            Self::Refused { .. } | Self::ThoughtsRefused { .. } => "refused",
            Self::Busy { .. } => "busy",
            Self::ContextExceeded { .. } => "contextExceeded",
            Self::Cut { .. } => "cut",
            Self::Silent { .. } => "silent",
            Self::Nonsense { .. } => "nonsense",
            Self::NotAStream { .. } => "notAStream",
        }
    }

    /// The status of the answer, where there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } | Self::Busy { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// The models that a provider says it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelListing {
    /// The status with which it answers; not every server has a list.
    pub status: u16,
    pub models: Vec<String>,
    /// It answers with a page for people: what is asked is no API.
    pub is_web_page: bool,
}

impl ModelListing {
    /// Whether a model is in a list that there is.
    pub fn lists(&self, model: &str) -> bool {
        !self.models.is_empty() && self.may_have(model)
    }

    /// Whether a model is in the list; also where there is no list.
    pub fn may_have(&self, model: &str) -> bool {
        let is_it = |listed: &String| listed == model || listed.strip_suffix(":latest") == Some(model);
        self.models.is_empty() || self.models.iter().any(is_it)
    }
}

/// A model provider that can be asked.
#[derive(Clone)]
pub struct ModelProvider {
    provider: Arc<Provider>,
    key: Option<ProviderKey>,
    http: reqwest::Client,
    ids: Arc<dyn Fn() -> String + Send + Sync>,
}

impl ModelProvider {
    /// `ids` makes names for items and calls where a wire leaves them without.
    pub fn new(provider: Provider, key: Option<ProviderKey>, http: reqwest::Client, ids: Arc<dyn Fn() -> String + Send + Sync>) -> Self {
        Self { provider: Arc::new(provider), key, http, ids }
    }

    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    /// Asks until there is an answer or no hope. Dropping the future ends the request.
    pub async fn ask(&self, prompt: &Prompt, progress: OnProgress<'_>) -> Result<ModelResponse, ModelError> {
        let mut tries = Tries::new(&self.provider, &(self.ids)());
        let mut prompt = match prompt.history.with_fewer_pictures() {
            Some(history) if prompt.facts.vision => Cow::Owned(Prompt { history, ..prompt.clone() }),
            _ => Cow::Borrowed(prompt),
        };
        loop {
            let attempt = match self.provider.wire_api {
                WireApi::Offline => Ok(offline::answer(&prompt, &*self.ids, progress)),
                WireApi::Responses => responses::ask(&self.call(prompt.trace.as_ref()), &prompt, progress).await,
                WireApi::Chat => chat::ask(&self.call(prompt.trace.as_ref()), &prompt, progress).await,
                WireApi::Anthropic => anthropic::ask(&self.call(prompt.trace.as_ref()), &prompt, progress).await,
            };
            let error = match attempt {
                Ok(mut answer) => {
                    if self.provider.quirks.has(Quirk::TextCalls) {
                        text_calls::apply(&mut answer, &prompt.tools, &*self.ids, progress);
                        if prompt.output_schema.is_none() {
                            text_calls::mark_unreadable(&mut answer);
                        }
                    } else if prompt.output_schema.is_none() {
                        text_calls::point_out(&mut answer, &prompt.tools, progress);
                    }
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if matches!(error, ModelError::ThoughtsRefused { .. })
                && let Some(without) = prompt.without_thoughts()
            {
                // The same request would be refused for ever.
                prompt = Cow::Owned(without);
                progress(ModelProgress::Retrying { attempt: 1, of: 1, reason: format!("{error}; going on without it") });
                continue;
            }
            let Some(again) = tries.after(&error) else { return Err(error) };
            tracing::debug!(provider = self.provider.name, %error, "asking the model again");
            progress(ModelProgress::Retrying { attempt: again.attempt, of: again.of, reason: error.to_string() });
            tokio::time::sleep(again.wait).await;
        }
    }

    /// Whether the provider answers at all: its list of models. Nothing for one that needs no network.
    pub async fn reach(&self) -> Result<Option<ModelListing>, ModelError> {
        match self.provider.wire_api {
            WireApi::Offline => Ok(None),
            WireApi::Responses | WireApi::Chat | WireApi::Anthropic => self.call(None).list().await.map(Some),
        }
    }

    /// The context window that the server really gives a model, after what is known of it. Only servers nearby are asked: those of
    /// clouds are in the table.
    pub(crate) async fn served_window(&self, model: &str, known: ServedWindow) -> ServedWindow {
        if self.provider.wire_api == WireApi::Offline || !self.provider.is_near() {
            return ServedWindow::UNTOLD;
        }
        known.ask(&self.call(None), model).await
    }

    /// The body of the request with which a prompt would be sent on a wire; nothing where nothing is sent.
    pub fn body(wire: WireApi, prompt: &Prompt) -> serde_json::Result<Option<Value>> {
        match wire {
            WireApi::Offline => Ok(None),
            WireApi::Responses => responses::body(prompt, &Quirks::default())?.read().map(Some),
            WireApi::Chat => Ok(Some(chat::request(prompt, &Quirks::default()))),
            WireApi::Anthropic => Ok(Some(anthropic::request(prompt, &Quirks::default()))),
        }
    }

    fn call<'a>(&'a self, trace: Option<&'a TraceContext>) -> exchange::ModelCall<'a> {
        exchange::ModelCall { provider: &self.provider, key: self.key.as_ref(), http: &self.http, ids: &*self.ids, trace, beta: None }
    }
}

/// The client for all requests to models of one program. Reads the machine's certificates, so it blocks for some
/// milliseconds. Proxies are taken from the usual variables.
pub fn http_client() -> Result<reqwest::Client, HttpClientError> {
    let tls = outpost_rpc::tls::client(&["h2", "http/1.1"]).map_err(|error| HttpClientError(SharedError::new(error)))?;
    let client = reqwest::Client::builder().tls_backend_preconfigured(tls).redirect(reqwest::redirect::Policy::none()).build();
    client.map_err(|error| HttpClientError(SharedError::new(error)))
}

#[derive(Debug, Error)]
#[error("no HTTP client can be made: {0}")]
pub struct HttpClientError(#[source] SharedError);
