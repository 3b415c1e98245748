//! The environments that this user has written down, and the way from a name to one of them.

use anyhow::{Context, anyhow, bail};
use outpost_config::Config;
use outpost_environment::config::ConfigWatch;
use outpost_environment::{
    ActiveConfiguration, ConfigurationSnapshot, ConnectionWay, Connector, Definition, Environment, EnvironmentError, EnvironmentOptions,
    Obstacle, Registry, RegistryError, RegistryOptions, Token, Variable, config,
};
use outpost_wire::EnvironmentId;
use tokio_util::task::AbortOnDropHandle;

use crate::ProcessContext;
use crate::definitions::{DefinitionSource, is_shared};
use crate::home::Home;
use crate::lock::Lock;
use crate::tokens;
use crate::topics::nearest;
use crate::variables::VisibleVariables;

/// What is configured, and where.
pub(crate) struct KnownEnvironments {
    pub configuration: ActiveConfiguration,
    /// Nothing if there is no home, or if a variable counts.
    pub source: Option<DefinitionSource>,
}

impl KnownEnvironments {
    pub(crate) async fn load(own: &ProcessContext) -> anyhow::Result<Self> {
        Box::pin(Self::read(own)).await
    }

    async fn read(own: &ProcessContext) -> anyhow::Result<Self> {
        let variable = variable(&own.variables)?;
        // A file that does not count need not be right.
        let home = Home::from_environment().filter(|_| variable == Variable::Unset);
        let source = match home {
            Some(home) => Some(DefinitionSource::of(home, own).await?),
            None => None,
        };
        let snapshot = match &source {
            Some(source) => source.read().await?,
            None => ConfigurationSnapshot::local_only(),
        };
        Ok(Self { configuration: ActiveConfiguration::new(variable, snapshot), source })
    }

    /// What may be changed; refuses where a variable counts.
    pub(crate) fn changeable(&self) -> anyhow::Result<&DefinitionSource> {
        self.snapshot()?;
        let is_set = "OUTPOST_EXEC_SERVER_URL is set, so environments.toml has no effect; unset it first";
        self.source.as_ref().context(if Home::from_environment().is_some() { is_set } else { "there is neither OUTPOST_HOME nor HOME" })
    }

    /// Refuses if environments are switched off.
    pub(crate) fn snapshot(&self) -> anyhow::Result<&ConfigurationSnapshot> {
        match &self.configuration {
            ActiveConfiguration::On(snapshot) => Ok(snapshot),
            ActiveConfiguration::Off => Err(RegistryError::Off.into()),
        }
    }

    /// What a name stands for; one that is not known is told with those that are.
    pub(crate) fn definition(&self, id: &EnvironmentId) -> anyhow::Result<&Definition> {
        let snapshot = self.snapshot()?;
        match snapshot.entries.iter().find(|entry| entry.id == *id).map(|entry| &entry.definition) {
            Some(Ok(definition)) => Ok(definition),
            Some(Err(what)) => bail!("environment `{id}` cannot be used: {what}"),
            None => Err(unknown(id, &snapshot.ids())),
        }
    }

    /// A handle of one environment; no other is connected for it.
    pub(crate) fn handle(&self, id: &EnvironmentId, options: EnvironmentOptions) -> anyhow::Result<Environment> {
        let definition = self.definition(id)?.clone();
        let registry = Registry::new(RegistryOptions { environment: options, ..RegistryOptions::default() });
        registry.add(id.clone(), definition)?;
        registry.get(id).context("the environment is gone")
    }

    /// Takes over every change of the definitions for as long as the task is kept, if it is they that count.
    pub(crate) fn follow(&self, watch: Option<ConfigWatch>, registry: &Registry) -> Option<AbortOnDropHandle<()>> {
        let source = self.source.clone()?;
        Some(AbortOnDropHandle::new(tokio::spawn(source.follow(watch, registry.clone()))))
    }

    /// All of them.
    pub(crate) fn registry(&self, options: EnvironmentOptions, local: Connector) -> anyhow::Result<Registry> {
        let admission = Lock::read()?.admission();
        Ok(Registry::configured(RegistryOptions { environment: options, local: Some(local), admission }, self.configuration.clone())?)
    }
}

/// What the variables say that stand in the place of definitions.
fn variable(own: &VisibleVariables) -> anyhow::Result<Variable> {
    // Programs that start Codex set the second one. Ours counts before it, also where it switches everything off.
    let set = ["OUTPOST_EXEC_SERVER_URL", "CODEX_EXEC_SERVER_URL"].into_iter().find_map(|name| {
        let value = own.get(name)?.to_string_lossy();
        (!value.trim().is_empty()).then_some((name, value))
    });
    let (name, value) = set.map_or(("OUTPOST_EXEC_SERVER_URL", None), |(name, value)| (name, Some(value)));
    let token = token(value.as_deref().unwrap_or_default(), own)?;
    Variable::parse(value.as_deref(), token).map_err(|error| anyhow::anyhow!("{name}: {}", error.0))
}

/// Refuses if environments are switched off; nothing is read for it.
pub(crate) fn refuse_if_off(own: &VisibleVariables) -> anyhow::Result<()> {
    if variable(own)? == Variable::Off { Err(RegistryError::Off.into()) } else { Ok(()) }
}

/// Hears changes of the file from now on. Begun before the file is read, so that no change between the two is missed.
pub(crate) fn watch() -> Option<ConfigWatch> {
    let home = Home::from_environment()?;
    home.make().ok()?;
    ConfigWatch::new(&home.environments()).inspect_err(|error| tracing::warn!(%error, "its changes take effect at the next start")).ok()
}

/// An unknown name, reported with the known ones.
pub(crate) fn unknown(id: &EnvironmentId, known: &[EnvironmentId]) -> anyhow::Error {
    let ids = known;
    let names = known.iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ");
    let known = match known {
        [] => "there are none".to_owned(),
        [_] => format!("there is only {names}"),
        _ => format!("there are {names}"),
    };
    let nearest =
        nearest(id.as_str(), ids.iter().map(EnvironmentId::as_str)).map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
    anyhow!("there is no environment `{id}`; {nearest}{known}. `outpost env add {id} --ssh USER@HOST` adds a machine")
}

/// What stands in the way of an environment that could not be reached.
pub(crate) fn obstacle(error: &anyhow::Error) -> Obstacle {
    match error.downcast_ref::<EnvironmentError>() {
        Some(EnvironmentError::Unreachable { obstacle, .. }) => *obstacle,
        _ => Obstacle::Unknown,
    }
}

/// What to look at when an environment does not answer, for what stands in the way.
pub(crate) fn advice(name: &str, obstacle: Obstacle) -> Option<String> {
    match obstacle {
        Obstacle::Token => {
            return Some("it asks for a token: pass it in OUTPOST_TOKEN, or name a `token_file` in environments.toml".to_owned());
        }
        // The way there works; what to type is told already.
        Obstacle::NoProgram | Obstacle::Version => return None,
        Obstacle::FirstConnection => {
            return Some(format!("start `outpost executor --join` with the id `{name}` and its token on that machine"));
        }
        Obstacle::TokenFile | Obstacle::Unknown => {}
    }
    let home = Home::from_environment()?;
    // What a store says of it is not read for the sake of a hint.
    if Config::read(Some(&home.config()), &[]).is_ok_and(|config| is_shared(&config)) {
        return None;
    }
    let snapshot = config::read(&home.environments()).ok()??;
    let definition = snapshot.entries.iter().find(|entry| entry.id.as_str() == name)?.definition.as_ref().ok()?;
    match &definition.way {
        // What is wrong with the file is told already.
        ConnectionWay::Listening { .. } if obstacle == Obstacle::TokenFile => None,
        ConnectionWay::Listening { target, .. } => {
            Some(format!("`{name}` is {target} in environments.toml; does an executor listen there, and does the network let you through?"))
        }
        ConnectionWay::Ssh(ssh) => Some(format!("`{name}` is behind ssh; does `ssh {} true` work without a password?", ssh.destination)),
        ConnectionWay::Inside(route) => Some(format!("`{name}` is {route}; does it run, and may you enter it?")),
        ConnectionWay::Program(line) => Some(format!("`{name}` is behind a command; does `{line}` start an executor?")),
    }
}

/// The token for an address that is given by hand.
pub(crate) fn token(url: &str, own: &VisibleVariables) -> anyhow::Result<Token> {
    Ok(tokens::for_url(url, own)?.map_or(Token::None, Token::Bearer))
}
