//! The context window that a server really gives a model. Servers at home cut off silently what is longer than that.

use std::time::Duration;

use serde_json::{Value, json};

use super::exchange::ModelCall;

/// So long each question may take: the turn waits for it.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the server says, in tokens: llama.cpp, vLLM and Ollama can be asked, each in its own way.
pub(super) async fn context(call: &ModelCall<'_>, model: &str) -> Option<u64> {
    let root = call.provider.root();
    let get = async |path: &str| tokio::time::timeout(PATIENCE, call.get_json(&format!("{root}{path}"))).await.ok().flatten();
    if let Some(window) = get("/props").await.and_then(|props| props["default_generation_settings"]["n_ctx"].as_u64()) {
        return Some(window).filter(|window| *window > 0);
    }
    if let Some(window) = get("/v1/models").await.and_then(|list| of_vllm(&list, model)) {
        return Some(window);
    }
    if let Some(window) = get("/api/ps").await.and_then(|running| of_running(&running, model)) {
        return Some(window);
    }
    let body = json!({"model": model}).to_string();
    let shown = tokio::time::timeout(PATIENCE, call.post_to(&format!("{root}/api/show"), body)).await.ok().flatten()?;
    of_ollama(&shown)
}

fn of_vllm(list: &Value, model: &str) -> Option<u64> {
    list["data"].as_array()?.iter().find(|served| served["id"] == model)?["max_model_len"].as_u64()
}

/// A model that Ollama has loaded has the window that it was loaded with.
fn of_running(running: &Value, model: &str) -> Option<u64> {
    let is_model = |name: &Value| name.as_str().is_some_and(|name| name == model || name.strip_suffix(":latest") == Some(model));
    let models = running["models"].as_array()?.iter();
    models.into_iter().find(|served| is_model(&served["name"]) || is_model(&served["model"]))?["context_length"].as_u64()
}

/// One that is not loaded yet has the window that its file asks for, and at most the one that it was trained with.
fn of_ollama(shown: &Value) -> Option<u64> {
    let parameters = shown["parameters"].as_str().unwrap_or_default();
    let asked = parameters.lines().find_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse::<u64>().ok());
    let trained = shown["model_info"].as_object()?.iter().find(|(name, _)| name.ends_with(".context_length"))?.1.as_u64();
    asked.into_iter().chain(trained).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_says_it_in_its_own_way() {
        let list = json!({"data": [{"id": "a"}, {"id": "b", "max_model_len": 8192}]});
        assert_eq!((of_vllm(&list, "b"), of_vllm(&list, "a")), (Some(8192), None));
        let running = json!({"models": [{"name": "qwen3:latest", "context_length": 4096}]});
        assert_eq!((of_running(&running, "qwen3"), of_running(&running, "other")), (Some(4096), None));
        let shown =
            json!({"parameters": "stop \"x\"\nnum_ctx                        16384", "model_info": {"qwen3.context_length": 40960}});
        assert_eq!(of_ollama(&shown), Some(16384));
        assert_eq!(of_ollama(&json!({"model_info": {"qwen3.context_length": 40960}})), Some(40960));
    }
}
