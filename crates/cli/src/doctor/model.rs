//! The model provider that threads ask by default: does it answer, does it take the key, and does it have the model?

use std::time::Duration;

use outpost_config::Config;
use outpost_runtime::model::{HistoryItem, ModelError, ModelHistory, ModelListing, ModelProvider, Prompt, ProviderError};
use serde_json::json;
use tokio::time::timeout;

use super::{Finding, Patient, not_looked_at};
use crate::assembly::{default_model, default_provider};

const PATIENCE: Duration = Duration::from_secs(10);
/// What a provider that is not built in has for a model.
const OFFLINE: &str = "offline";

pub(super) async fn findings(patient: &Patient<'_>) -> Vec<Finding> {
    let file = patient.home.as_ref().map(crate::home::Home::config);
    let Ok(config) = Config::read(file.as_deref(), &patient.own.settings) else { return not_looked_at("provider", "config.toml") };
    let (name, note, model) = default_provider(&config, &patient.own.variables);
    let what = format!("provider {name}");
    let model = match model {
        Ok(model) => model,
        Err(error @ ModelError::Provider(ProviderError::NoKey { .. })) => {
            return vec![Finding::broken(what, error.to_string(), "set the variable in the environment that outpost is started from")];
        }
        Err(error) => return vec![Finding::broken(what, error.to_string(), "see docs/agent.md, Providers")],
    };
    if let Some(note) = note {
        return vec![Finding::weak(what, note, "set OPENAI_API_KEY, or `model_provider` in config.toml, to talk to a model")];
    }
    let place = model.provider().place();
    let reached = match timeout(PATIENCE, model.reach()).await {
        Ok(reached) => reached,
        Err(_) => {
            let detail = format!("{place} does not answer within {} s", PATIENCE.as_secs());
            return vec![Finding::broken(what, detail, "look at the network, and at proxies")];
        }
    };
    let wanted = config.model.clone().or_else(|| Some(default_model(&name).to_owned()).filter(|model| model != OFFLINE));
    vec![match reached {
        Ok(None) => Finding::good(what, "needs no network; runs only the commands in a prompt"),
        Ok(Some(listing)) if listing.is_web_page => {
            let detail = format!("{place} answers with a web page (HTML, status {}) and not as a model provider does", listing.status);
            Finding::broken(
                what,
                detail,
                "`base_url` in config.toml leads to a site; most providers' ends in /v1, and a proxy may ask for a login",
            )
        }
        Ok(Some(ModelListing { status: 401 | 403, .. })) => {
            let key = model.provider().env_key.clone().unwrap_or_else(|| "no variable".into());
            Finding::broken(what, format!("{place} answers and refuses the key"), format!("look at the key; it is taken from {key}"))
        }
        Ok(Some(ModelListing { status: status @ 500.., .. })) => {
            Finding::weak(what, format!("{place} answers with {status}"), "try again later")
        }
        Ok(Some(listing)) => match wanted {
            None => Finding::weak(what, format!("{place} answers; no model is chosen"), "set `model` in config.toml, or say --model"),
            Some(name) if listing.lists(&name) => Finding::good(what, format!("{place} answers, and has the model `{name}`")),
            // Not every server has a list, and not every list has everything: the model itself is asked.
            Some(name) => asked(what, &place, &name, &listing, timeout(PATIENCE, ask(&model, &name)).await.ok()),
        },
        Err(error) if name == "ollama" => Finding::broken(what, error.to_string(), "`ollama serve` starts it on this machine"),
        Err(error @ ModelError::Provider(_)) => Finding::broken(what, error.to_string(), "see docs/agent.md, Providers"),
        Err(error) => Finding::broken(what, error.to_string(), format!("is {place} right, and does the network let you through?")),
    }]
}

/// Asks the model for a word.
async fn ask(model: &ModelProvider, name: &str) -> Result<(), ModelError> {
    let said = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Say: ok"}]});
    let history = ModelHistory::new(vec![HistoryItem::from(said)]);
    model.ask(&Prompt::plain(name, "Answer with one word.", history), &|_| {}).await.map(|_| ())
}

/// What the model's answer means; nothing if there was none in time.
fn asked(what: String, place: &str, name: &str, listing: &ModelListing, answer: Option<Result<(), ModelError>>) -> Finding {
    let some: Vec<&str> = listing.models.iter().take(8).map(String::as_str).collect();
    let known = if some.is_empty() { String::new() } else { format!("; it lists {} models: {}", listing.models.len(), some.join(", ")) };
    match answer {
        Some(Ok(())) => Finding::good(what, format!("{place} answers, and the model `{name}` does")),
        Some(Err(ModelError::Refused { status: 404, .. })) if listing.status == 404 => {
            let detail = format!("{place} answers with 404: neither a list of models nor the model `{name}` is there");
            Finding::broken(what, detail, "is `base_url` in config.toml right? Most providers' ends in /v1")
        }
        Some(Err(error @ ModelError::Refused { status: 400 | 404, .. })) => {
            let detail = format!("{place} answers, and does not have the model `{name}`: {error}");
            Finding::broken(what, detail, format!("set `model` in config.toml to one that it has{known}"))
        }
        Some(Err(error)) => Finding::broken(
            what,
            format!("{place} answers, and the model `{name}` does not: {error}"),
            format!("look at the provider's page for it{known}"),
        ),
        None => Finding::weak(
            what,
            format!("{place} answers, and the model `{name}` did not within {} s", PATIENCE.as_secs()),
            "it may still be loading; try again",
        ),
    }
}
