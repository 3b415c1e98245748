//! The files that people write: can they be read, and does everything in them have an effect?

use std::path::Path;

use outpost_config::Config;

use super::{Finding, Patient};
use crate::assembly::rules;
use crate::definitions::DefinitionSource;
use crate::environments::KnownEnvironments;
use crate::out::with_causes;

pub(super) async fn findings(patient: &Patient<'_>) -> Vec<Finding> {
    let Some(home) = &patient.home else { return vec![] };
    let mut findings = vec![config(&home.config(), &patient.own.settings)];
    findings.push(match rules(home) {
        Ok(_) => Finding::good("rules.toml", state(&home.rules())),
        Err(error) => Finding::broken("rules.toml", with_causes(&error), "no agent starts before it is right; see docs/agent.md"),
    });
    findings.push(match KnownEnvironments::load(patient.own).await.map(|known| known.source) {
        Ok(None) => Finding::good("environments.toml", "OUTPOST_EXEC_SERVER_URL counts instead"),
        Ok(Some(DefinitionSource::Store(_))) => Finding::good("environments.toml", "environments are defined in the store"),
        Ok(Some(DefinitionSource::File(_))) => Finding::good("environments.toml", state(&home.environments())),
        Err(error) => {
            Finding::broken("environments.toml", with_causes(&error), "put that line right; docs/environments.md shows every key")
        }
    });
    findings
}

fn config(file: &Path, settings: &[String]) -> Finding {
    let loaded = Config::read(Some(file), settings).and_then(|config| config.sandbox().map(|mode| (config, mode)));
    let loaded = loaded.map_err(anyhow::Error::from);
    let unknown = Config::unknown_keys(file);
    match loaded {
        Err(error) => Finding::broken("config.toml", with_causes(&error), "put that right; docs/configuration.md lists every key"),
        Ok(_) if !unknown.is_empty() => Finding::weak(
            "config.toml",
            format!("not known, without effect: {}", unknown.join(", ")),
            "docs/configuration.md lists every key",
        ),
        Ok((_, mode)) if mode.is_full_access() => Finding::weak(
            "config.toml",
            "sandbox_mode is danger-full-access",
            "agents run without a sandbox; take it out unless that is meant",
        ),
        Ok(_) => Finding::good("config.toml", state(file)),
    }
}

fn state(file: &Path) -> &'static str {
    if file.exists() { "can be read" } else { "there is none; the defaults hold" }
}
