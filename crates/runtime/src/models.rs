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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::model::built_in;

    /// The answers at each path: the last one is given for good, those before it once.
    type Answers = Arc<Mutex<BTreeMap<&'static str, Vec<(u16, &'static str)>>>>;

    /// A server of pages, which keeps what it was asked.
    struct Pages {
        base_url: String,
        pages: Answers,
        asked: Arc<Mutex<Vec<String>>>,
    }

    impl Pages {
        fn start(pages: &[(&'static str, &[(u16, &'static str)])]) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
            let pages = Arc::new(Mutex::new(pages.iter().map(|(path, answers)| (*path, answers.to_vec())).collect()));
            let server = Self { base_url, pages, asked: Arc::default() };
            let (pages, asked) = (server.pages.clone(), server.asked.clone());
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    Self::answer(stream.unwrap(), &pages, &asked);
                }
            });
            server
        }

        fn answer(stream: TcpStream, pages: &Answers, asked: &Mutex<Vec<String>>) {
            let mut stream = BufReader::new(stream);
            let (mut path, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                let line = line.trim().to_ascii_lowercase();
                if path.is_empty() {
                    path = line.split(' ').nth(1).unwrap().to_owned();
                } else if let Some(told) = line.strip_prefix("content-length:") {
                    length = told.trim().parse().unwrap();
                } else if line.is_empty() {
                    break;
                }
            }
            stream.read_exact(&mut vec![0; length]).unwrap();
            let (status, body) = match pages.lock().unwrap().get_mut(path.as_str()) {
                Some(answers) if answers.len() > 1 => answers.remove(0),
                Some(answers) => answers[0],
                None => (404, ""),
            };
            asked.lock().unwrap().push(path);
            let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            stream.get_mut().write_all(format!("{head}{body}").as_bytes()).unwrap();
        }

        /// The paths that were asked for since the last look, in order of their names.
        fn asked(&self) -> Vec<String> {
            let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
            asked.sort();
            asked
        }

        fn models(&self) -> Models {
            let mut provider = built_in().remove("ollama").unwrap();
            provider.base_url.clone_from(&self.base_url);
            let default = ("near".to_owned(), "qwen3".to_owned());
            Models::new([("near".to_owned(), provider)].into(), default, Arc::new(|_| None), Arc::new(String::new))
        }
    }

    async fn window(models: &Models) -> Option<u64> {
        models.served_context("near", &models.get(None).unwrap(), "qwen3").await
    }

    #[tokio::test]
    async fn what_ollama_serves_is_known_as_soon_as_the_model_is_loaded() {
        let loaded = r#"{"models": [{"name": "qwen3:latest", "context_length": 4096}]}"#;
        let server = Pages::start(&[
            ("/v1/models", &[(200, r#"{"data": [{"id": "qwen3:latest"}]}"#)]),
            ("/api/ps", &[(200, r#"{"models": []}"#), (200, loaded)]),
            ("/api/show", &[(200, r#"{"parameters": "top_k 20", "model_info": {"qwen3.context_length": 40960}}"#)]),
        ]);
        let models = server.models();
        assert_eq!((window(&models).await, models.known_context("near", "qwen3")), (None, None));
        assert_eq!(server.asked(), ["/api/ps", "/api/show", "/props", "/v1/models"]);
        assert_eq!(window(&models).await, Some(4096));
        assert_eq!(server.asked(), ["/api/ps"], "what the server does not say is not asked again");
        assert_eq!((window(&models).await, models.known_context("near", "qwen3")), (Some(4096), Some(4096)));
        assert!(server.asked().is_empty(), "what is known is not asked again");
    }

    #[tokio::test]
    async fn a_server_that_loads_its_model_is_asked_again() {
        let loading = (503, r#"{"error": {"message": "Loading model"}}"#);
        let props = (200, r#"{"default_generation_settings": {"n_ctx": 8192}}"#);
        let server = Pages::start(&[("/props", &[loading, loading, props]), ("/api/ps", &[loading, (404, "")])]);
        let models = server.models();
        assert_eq!((window(&models).await, window(&models).await, window(&models).await), (None, None, Some(8192)));
        assert_eq!(server.asked(), ["/api/ps", "/api/ps", "/api/show", "/props", "/props", "/props", "/v1/models"]);
    }

    #[tokio::test]
    async fn a_server_that_does_not_say_it_is_asked_once() {
        let server = Pages::start(&[("/v1/models", &[(200, r#"{"data": [{"id": "qwen3"}]}"#)]), ("/props", &[(200, "<html>")])]);
        let models = server.models();
        assert_eq!((window(&models).await, window(&models).await), (None, None));
        assert_eq!(server.asked().len(), 4);
    }
}
