//! The model provider that threads ask by default: does it answer, and does it take the key?

use std::time::Duration;

use tokio::time::timeout;

use super::{Finding, Patient};
use crate::assembly::default_provider;
use crate::config::Config;

const PATIENCE: Duration = Duration::from_secs(10);

pub async fn findings(patient: &Patient<'_>) -> Vec<Finding> {
    let file = patient.home.as_ref().map(crate::home::Home::config);
    // What is wrong with the file itself is told elsewhere.
    let Ok(config) = Config::load(file.as_deref(), &patient.own.settings) else { return vec![] };
    let (name, note, model) = default_provider(&config, &patient.own.variables);
    let what = format!("provider {name}");
    let model = match model {
        Ok(model) => model,
        Err(error) => return vec![Finding::broken(what, error.to_string(), "see docs/agent.md, Providers")],
    };
    if let Some(note) = note {
        return vec![Finding::weak(what, note, "set OPENAI_API_KEY, or `model_provider` in config.toml, to talk to a model")];
    }
    let place = model.provider().base_url.clone();
    vec![match timeout(PATIENCE, model.reach()).await {
        Ok(Ok(None)) => Finding::good(what, "needs no network, and understands nothing"),
        Ok(Ok(Some(401 | 403))) => {
            let key = model.provider().env_key.clone().unwrap_or_else(|| "no variable".into());
            Finding::broken(what, format!("{place} answers and refuses the key"), format!("look at the key; it is taken from {key}"))
        }
        Ok(Ok(Some(status @ 500..))) => Finding::weak(what, format!("{place} answers with {status}"), "try again later"),
        // Not every server has a list of models.
        Ok(Ok(Some(_))) => Finding::good(what, format!("{place} answers")),
        Ok(Err(error)) => Finding::broken(what, error.to_string(), format!("is {place} right, and does the network let you through?")),
        Err(_) => {
            Finding::broken(what, format!("{place} does not answer within {} s", PATIENCE.as_secs()), "look at the network, and at proxies")
        }
    }]
}
