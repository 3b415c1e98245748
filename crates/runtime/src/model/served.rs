//! The context window that a server really gives a model. Servers at home cut off silently what is longer than that.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::exchange::{ModelCall, ServerPage};

/// So long each question may take: the turn waits for it. All are asked at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// A server that left a question unanswered for so long is left in peace for this time.
const PAUSE: Duration = Duration::from_secs(60);

/// What is known of the window that a server gives a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServedWindow {
    /// A loaded model has it, or its file asks for it.
    Known(u64),
    /// The server may say it later. Where no question is left it never will.
    Open { questions: Vec<WindowQuestion>, not_before: Option<Instant> },
}

/// A question that servers of one kind answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowQuestion {
    /// llama.cpp's, which refuses it while it loads the model.
    Properties,
    /// vLLM's.
    List,
    /// Ollama's, about the models that it has loaded.
    Running,
    /// Ollama's, about the file of a model.
    File,
}

impl WindowQuestion {
    /// In the order in which answers count: what is loaded says more than what a file asks for.
    const ALL: [Self; 4] = [Self::Properties, Self::List, Self::Running, Self::File];
}

/// What came of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WindowAnswer {
    Tokens(u64),
    Later,
    Never,
    Silence,
}

impl Default for ServedWindow {
    /// No question was answered yet.
    fn default() -> Self {
        Self::Open { questions: WindowQuestion::ALL.to_vec(), not_before: None }
    }
}

impl ServedWindow {
    /// The window of a server that is not asked.
    pub(crate) const UNTOLD: Self = Self::Open { questions: Vec::new(), not_before: None };

    pub(crate) fn tokens(&self) -> Option<u64> {
        if let Self::Known(tokens) = self { Some(*tokens) } else { None }
    }

    /// Whether a server is to be asked now.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::Known(_) => false,
            Self::Open { questions, not_before } => !questions.is_empty() && not_before.is_none_or(|then| Instant::now() >= then),
        }
    }

    /// Asks the server what is still open.
    pub(super) async fn ask(self, call: &ModelCall<'_>, model: &str) -> Self {
        let Self::Open { questions, .. } = &self else { return self };
        let asked = questions.iter().map(|question| question.put(call, model));
        let answers = futures_util::future::join_all(asked).await;
        Self::of(questions.iter().copied().zip(answers))
    }

    fn of(answers: impl Iterator<Item = (WindowQuestion, WindowAnswer)>) -> Self {
        let (mut questions, mut not_before) = (Vec::new(), None);
        for (question, answer) in answers {
            match answer {
                WindowAnswer::Tokens(tokens) => return Self::Known(tokens),
                WindowAnswer::Later => questions.push(question),
                WindowAnswer::Never => {}
                WindowAnswer::Silence => {
                    questions.push(question);
                    not_before = Some(Instant::now() + PAUSE);
                }
            }
        }
        Self::Open { questions, not_before }
    }
}

impl WindowQuestion {
    async fn put(self, call: &ModelCall<'_>, model: &str) -> WindowAnswer {
        let root = call.provider.root();
        let page = async {
            match self {
                Self::Properties => call.get_json(&format!("{root}/props")).await,
                Self::List => call.get_json(&format!("{root}/v1/models")).await,
                Self::Running => call.get_json(&format!("{root}/api/ps")).await,
                Self::File => call.post_to(&format!("{root}/api/show"), json!({"model": model}).to_string()).await,
            }
        };
        match timeout(PATIENCE, page).await {
            Ok(ServerPage::Document(page)) => self.read(&page, model),
            Ok(ServerPage::Unavailable) => WindowAnswer::Later,
            Ok(ServerPage::Missing) => WindowAnswer::Never,
            Err(_) => WindowAnswer::Silence,
        }
    }

    fn read(self, page: &Value, model: &str) -> WindowAnswer {
        let told = match self {
            Self::Properties => page["default_generation_settings"]["n_ctx"].as_u64(),
            Self::List => of_vllm(page, model),
            Self::Running => match of_running(page, model) {
                Ok(window) => window,
                // Ollama loads it when it is asked.
                Err(NotLoaded) => return WindowAnswer::Later,
            },
            Self::File => of_file(page),
        };
        told.filter(|window| *window > 0).map_or(WindowAnswer::Never, WindowAnswer::Tokens)
    }
}

fn of_vllm(list: &Value, model: &str) -> Option<u64> {
    list["data"].as_array()?.iter().find(|served| served["id"] == model)?["max_model_len"].as_u64()
}

struct NotLoaded;

/// A model that Ollama has loaded has the window that it was loaded with; versions that do not tell it tell nothing.
fn of_running(running: &Value, model: &str) -> Result<Option<u64>, NotLoaded> {
    let Some(models) = running["models"].as_array() else { return Ok(None) };
    let is_model = |name: &Value| name.as_str().is_some_and(|name| name == model || name.strip_suffix(":latest") == Some(model));
    let loaded = models.iter().find(|served| is_model(&served["name"]) || is_model(&served["model"])).ok_or(NotLoaded)?;
    Ok(loaded["context_length"].as_u64())
}

/// The window that a model's file asks for. What the model was trained with says nothing: Ollama loads it with a default of its own.
fn of_file(shown: &Value) -> Option<u64> {
    let parameters = shown["parameters"].as_str().unwrap_or_default();
    parameters.lines().find_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse::<u64>().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use WindowQuestion::{File, List, Properties, Running};

    #[test]
    fn each_server_says_it_in_its_own_way() {
        let props = json!({"default_generation_settings": {"n_ctx": 4096}});
        assert_eq!(Properties.read(&props, "any"), WindowAnswer::Tokens(4096));
        let list = json!({"data": [{"id": "a"}, {"id": "b", "max_model_len": 8192}]});
        assert_eq!((List.read(&list, "b"), List.read(&list, "a")), (WindowAnswer::Tokens(8192), WindowAnswer::Never));
        let running = json!({"models": [{"name": "qwen3:latest", "context_length": 4096}, {"name": "old:latest"}]});
        assert_eq!(Running.read(&running, "qwen3"), WindowAnswer::Tokens(4096));
        assert_eq!((Running.read(&running, "other"), Running.read(&running, "old")), (WindowAnswer::Later, WindowAnswer::Never));
        assert_eq!(Running.read(&json!({"what": "is this"}), "qwen3"), WindowAnswer::Never);
    }

    #[test]
    fn the_length_that_a_model_was_trained_with_is_not_what_it_is_served_with() {
        let trained = json!({"qwen3.context_length": 40960});
        let shown = json!({"parameters": "stop \"x\"\nnum_ctx                        16384", "model_info": trained});
        assert_eq!(File.read(&shown, "qwen3"), WindowAnswer::Tokens(16384));
        assert_eq!(File.read(&json!({"model_info": trained}), "qwen3"), WindowAnswer::Never);
    }

    #[test]
    fn what_a_loaded_model_has_counts_before_what_its_file_asks_for() {
        let answers = [(Running, WindowAnswer::Tokens(4096)), (File, WindowAnswer::Tokens(16384))];
        assert_eq!(ServedWindow::of(answers.into_iter()), ServedWindow::Known(4096));
    }

    #[test]
    fn only_what_may_be_said_later_is_asked_again() {
        let answers = [(Properties, WindowAnswer::Never), (Running, WindowAnswer::Later), (File, WindowAnswer::Never)];
        let open = ServedWindow::of(answers.into_iter());
        assert_eq!(open, ServedWindow::Open { questions: vec![Running], not_before: None });
        assert!(open.is_open() && !ServedWindow::UNTOLD.is_open());
        let silent = ServedWindow::of([(Properties, WindowAnswer::Silence), (Running, WindowAnswer::Later)].into_iter());
        assert!(!silent.is_open() && silent != ServedWindow::UNTOLD, "a silent server is asked again, but not at once");
    }
}
