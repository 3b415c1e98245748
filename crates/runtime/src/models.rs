//! The table of model providers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use outpost_thread::Settings;
use outpost_wire::SharedError;

use crate::model::{ModelError, ModelProvider, Provider, ProviderError, ServedWindow, http_client};

/// How a variable of the program's own environment is read.
pub type VariableLookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

pub struct Models {
    providers: BTreeMap<String, Provider>,
    default_provider: String,
    default_model: String,
    variables: VariableLookup,
    ids: Arc<dyn Fn() -> String + Send + Sync>,
    /// Made on first use, because most threads of a test or a demo never leave the machine.
    http: OnceLock<reqwest::Client>,
    /// Context windows as servers told them, by provider and model, and what they may still tell.
    served: Mutex<BTreeMap<(String, String), ServedWindow>>,
}

impl Models {
    pub fn new(
        providers: BTreeMap<String, Provider>,
        (provider, model): (String, String),
        variables: VariableLookup,
        ids: Arc<dyn Fn() -> String + Send + Sync>,
    ) -> Self {
        Self {
            providers,
            default_provider: provider,
            default_model: model,
            variables,
            ids,
            http: OnceLock::new(),
            served: Mutex::default(),
        }
    }

    pub fn providers(&self) -> &BTreeMap<String, Provider> {
        &self.providers
    }

    pub fn default_provider(&self) -> &str {
        &self.default_provider
    }

    /// The model that a thread asks.
    pub fn model_name(&self, settings: &Settings) -> String {
        settings.model.clone().unwrap_or_else(|| self.default_model.clone())
    }

    /// The provider that a thread asks, by the id under which it is configured.
    pub fn provider_id(&self, settings: &Settings) -> String {
        settings.model_provider.clone().unwrap_or_else(|| self.default_provider.clone())
    }

    /// The context window that a provider's server really gives a model, if it says so. It is asked until it has said it: before a model
    /// is loaded no server knows. A server that has no such answers is asked once.
    pub async fn served_context(&self, provider: &str, model: &ModelProvider, name: &str) -> Option<u64> {
        let known = self.served_window(provider, name);
        if !known.is_open() {
            return known.tokens();
        }
        let told = model.served_window(name, known).await;
        let mut served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = served.entry((provider.to_owned(), name.to_owned())).or_default();
        // Another thread may have heard it meanwhile.
        if kept.tokens().is_none() {
            *kept = told;
        }
        kept.tokens()
    }

    /// The same, as far as the server has said it.
    pub(crate) fn known_context(&self, provider: &str, name: &str) -> Option<u64> {
        self.served_window(provider, name).tokens()
    }

    fn served_window(&self, provider: &str, name: &str) -> ServedWindow {
        let served = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        served.get(&(provider.to_owned(), name.to_owned())).cloned().unwrap_or_default()
    }

    /// A provider that can be asked, or what is missing.
    pub fn get(&self, id: Option<&str>) -> Result<ModelProvider, ModelError> {
        let id = id.unwrap_or(&self.default_provider);
        let Some(provider) = self.providers.get(id) else {
            let known = self.providers.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(ProviderError::Unknown { provider: id.to_owned(), known }.into());
        };
        let mut provider = provider.clone();
        if provider.name.is_empty() {
            provider.name = id.to_owned();
        }
        provider.check()?;
        let key = provider.key(&*self.variables)?;
        provider.fill_headers(&*self.variables);
        let http = match self.http.get() {
            Some(http) => http.clone(),
            None => {
                let made = http_client()
                    .map_err(|error| ModelError::Unreachable { provider: provider.name.clone(), reason: SharedError::new(error) })?;
                self.http.get_or_init(|| made).clone()
            }
        };
        Ok(ModelProvider::new(provider, key, http, self.ids.clone()))
    }
}
