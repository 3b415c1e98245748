//! What the machine of an environment says about MCP servers in its own configuration: those that it declares, and which may be
//! used there at all.
//!
//! It is looked at in every step, so what is written there counts from the next step on. An executor that cannot tell declares nothing
//! and requires nothing.

use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{ConnectionState, Environment};
use outpost_wire::PathUri;
use outpost_wire::SharedError;
use outpost_wire::exec::discovery::{ConfigLayers, ReadConfig, ReadConfigParams, ReadConfigResponse};
use outpost_wire::intent::EnvironmentId;
use serde_json::Value;

use super::declaration::{DeclarationOrigin, declaration};
use super::layers::ServerLayer;
use super::requirements::Requirements;
use super::{Declared, McpLimits};

/// The key that is asked for, of the configuration and of the requirements.
const KEY: &str = "mcp_servers";

/// A machine that servers may be on.
pub(crate) struct Machine<'a> {
    pub environment: &'a EnvironmentId,
    pub handle: &'a Environment,
    /// Where the thread works on it.
    pub cwd: &'a PathUri,
}

/// What it says.
#[derive(Default)]
pub(crate) struct Said {
    pub declared: Declared,
    pub requirements: Requirements,
    /// What of it cannot be used.
    pub problem: Option<String>,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MachineQuery {
    Everything,
    /// The thread does not work there; what it declares is for threads that do.
    Requirements,
}

impl Machine<'_> {
    /// Says that everything will be asked for.
    pub(crate) fn foresee(&self) {
        let key = || vec![vec![KEY.to_owned()]];
        for (config_paths, requirements_paths) in [(vec![], key()), (key(), vec![])] {
            self.handle.foresee::<ReadConfig>(&ReadConfigParams { cwd: self.cwd.clone(), config_paths, requirements_paths });
        }
    }

    pub(super) async fn ask(&self, what: MachineQuery, limits: &McpLimits) -> Said {
        let can = matches!(self.handle.state(), ConnectionState::Ready(connected) if connected.info.capabilities.environment_config_read);
        if !can {
            return Said::default();
        }
        let key = || vec![vec![KEY.to_owned()]];
        // Two questions: a configuration that is broken must not hide what is required.
        let requirements = self.read(vec![], key(), limits.declarations);
        let (requirements, config) = match what {
            MachineQuery::Everything => {
                let (requirements, config) = tokio::join!(requirements, self.read(key(), vec![], limits.declarations));
                (requirements, Some(config))
            }
            MachineQuery::Requirements => (requirements.await, None),
        };
        let mut said = Said::default();
        match requirements {
            Ok(read) => said.requirements = self.requirements(&read.requirements),
            Err(why) => said.requirements.add_unreadable(format!("environment `{}`", self.environment), why),
        }
        match config.map(|config| config.and_then(|read| self.declared(&read.config, limits))) {
            None => {}
            Some(Ok(declared)) => said.declared = declared,
            Some(Err(why)) => {
                said.problem = Some(format!("the MCP servers that environment `{}` declares cannot be read: {why}", self.environment));
            }
        }
        said
    }

    async fn read(
        &self,
        config_paths: Vec<Vec<String>>,
        requirements_paths: Vec<Vec<String>>,
        within: Duration,
    ) -> Result<Arc<ReadConfigResponse>, SharedError> {
        let params = ReadConfigParams { cwd: self.cwd.clone(), config_paths, requirements_paths };
        match tokio::time::timeout(within, self.handle.followed::<ReadConfig>(&params)).await {
            Ok(answer) => answer.map_err(SharedError::new),
            Err(_) => Err(format!("it did not answer within {} s", within.as_secs()).into()),
        }
    }

    /// The layers as one, the highest on top.
    fn declared(&self, layers: &ConfigLayers, limits: &McpLimits) -> Result<Declared, SharedError> {
        let mut whole = ServerLayer::default();
        for layer in &layers.layers {
            let table = table(&layer.toml).map_err(|error| SharedError::worded(format!("{}: {error}", layer.source), error))?;
            whole = whole.over(&ServerLayer::of(table.get(KEY))?).0;
        }
        let origin = DeclarationOrigin::Machine { environment: self.environment.clone() };
        Ok(whole.0.iter().map(|(name, value)| (name.clone(), declaration(name, value, &origin, limits))).collect())
    }

    fn requirements(&self, layers: &ConfigLayers) -> Requirements {
        let mut requirements = Requirements::default();
        for layer in &layers.layers {
            let source = format!("{} of environment `{}`", layer.source, self.environment);
            match table(&layer.toml) {
                Ok(table) => requirements.add(source, table.get(KEY)),
                Err(error) => requirements.add_unreadable(source, error),
            }
        }
        requirements
    }
}

fn table(text: &str) -> Result<Value, SharedError> {
    toml::from_str(text).map_err(|error: toml::de::Error| SharedError::worded(error.message(), error.clone()))
}
