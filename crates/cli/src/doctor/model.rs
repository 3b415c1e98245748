//! The model provider that threads ask by default: does it answer, and does it take the key?

use std::time::Duration;

use outpost_runtime::model::{ModelError, ModelListing, ProviderError};
use tokio::time::timeout;

use super::{Finding, Patient, not_looked_at};
use crate::assembly::default_provider;
use crate::config::Config;

const PATIENCE: Duration = Duration::from_secs(10);

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
    vec![match timeout(PATIENCE, model.reach()).await {
        Ok(Ok(None)) => Finding::good(what, "needs no network, and understands nothing"),
        Ok(Ok(Some(ModelListing { status: 401 | 403, .. }))) => {
            let key = model.provider().env_key.clone().unwrap_or_else(|| "no variable".into());
            Finding::broken(what, format!("{place} answers and refuses the key"), format!("look at the key; it is taken from {key}"))
        }
        Ok(Ok(Some(ModelListing { status: status @ 500.., .. }))) => {
            Finding::weak(what, format!("{place} answers with {status}"), "try again later")
        }
        Ok(Ok(Some(listing))) if config.model.as_deref().is_some_and(|model| !listing.may_have(model)) => {
            let note = format!("{place} answers, and does not list the model `{}`", config.model.as_deref().unwrap_or_default());
            let some: Vec<&str> = listing.models.iter().take(8).map(String::as_str).collect();
            Finding::weak(what, note, format!("it lists {} models: {}", listing.models.len(), some.join(", ")))
        }
        // Not every server has a list of models.
        Ok(Ok(Some(_))) => Finding::good(what, format!("{place} answers")),
        Ok(Err(error)) if name == "ollama" => Finding::broken(what, error.to_string(), "`ollama serve` starts it on this machine"),
        Ok(Err(error @ ModelError::Provider(_))) => Finding::broken(what, error.to_string(), "see docs/agent.md, Providers"),
        Ok(Err(error)) => Finding::broken(what, error.to_string(), format!("is {place} right, and does the network let you through?")),
        Err(_) => {
            Finding::broken(what, format!("{place} does not answer within {} s", PATIENCE.as_secs()), "look at the network, and at proxies")
        }
    }]
}
