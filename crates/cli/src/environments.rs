//! The environments that this user has written down, and the way from a name to one of them.

use std::path::PathBuf;

use anyhow::{Context, bail};
use outpost_environment::{
    Configuration, Connector, Definition, Environment, EnvironmentOptions, Registry, RegistryError, RegistryOptions, Snapshot, Token,
    Variable, config,
};
use outpost_wire::EnvironmentId;

use crate::home::Home;
use crate::tokens;
use crate::variables::Variables;

/// What is configured, and where.
pub struct Known {
    pub configuration: Configuration,
    /// Nothing if there is no home.
    pub file: Option<PathBuf>,
    /// Whether the file is what counts.
    pub from_file: bool,
}

impl Known {
    pub fn load(own: &Variables) -> anyhow::Result<Self> {
        let file = Home::from_environment().map(|home| home.environments());
        let value = own.get("OUTPOST_EXEC_SERVER_URL").map(|value| value.to_string_lossy());
        let token = token(value.as_deref().unwrap_or_default(), own)?;
        let variable = Variable::parse(value.as_deref(), token)?;
        let from_file = variable == Variable::Unset;
        // A file that does not count need not be right.
        let snapshot = match &file {
            Some(file) if from_file => config::read(file)?.unwrap_or_else(Snapshot::local_only),
            _ => Snapshot::local_only(),
        };
        Ok(Self { configuration: Configuration::new(variable, snapshot), file, from_file })
    }

    /// Refuses if environments are switched off.
    pub fn snapshot(&self) -> anyhow::Result<&Snapshot> {
        match &self.configuration {
            Configuration::On(snapshot) => Ok(snapshot),
            Configuration::Off => Err(RegistryError::Off.into()),
        }
    }

    /// What a name stands for; one that is not known is told with those that are.
    pub fn definition(&self, id: &EnvironmentId) -> anyhow::Result<&Definition> {
        let snapshot = self.snapshot()?;
        match snapshot.entries.iter().find(|entry| entry.id == *id).map(|entry| &entry.definition) {
            Some(Ok(definition)) => Ok(definition),
            Some(Err(what)) => bail!("environment `{id}` cannot be used: {what}"),
            None => {
                let names: Vec<String> = snapshot.ids().iter().map(|id| format!("`{id}`")).collect();
                let names = if names.is_empty() { "there are none".to_owned() } else { format!("there are {}", names.join(", ")) };
                bail!("there is no environment `{id}`; {names}")
            }
        }
    }

    /// A handle of one environment; no other is connected for it.
    pub fn handle(&self, id: &EnvironmentId, options: EnvironmentOptions) -> anyhow::Result<Environment> {
        let definition = self.definition(id)?.clone();
        let registry = Registry::new(RegistryOptions { environment: options, local: None });
        registry.add(id.clone(), definition)?;
        registry.get(id).context("the environment is gone")
    }

    /// All of them.
    pub fn registry(&self, options: EnvironmentOptions, local: Connector) -> anyhow::Result<Registry> {
        Ok(Registry::configured(RegistryOptions { environment: options, local: Some(local) }, self.configuration.clone())?)
    }
}

/// The token for an address that is given by hand.
pub fn token(url: &str, own: &Variables) -> anyhow::Result<Token> {
    Ok(tokens::for_url(url, own)?.map_or(Token::None, Token::Bearer))
}
