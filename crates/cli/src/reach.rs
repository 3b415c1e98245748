//! From what a person wrote to an environment.

use std::time::Duration;

use anyhow::Context;
use outpost_environment::{Carrier, CommandLine, Connector, Definition, Environment, EnvironmentOptions, Means};
use outpost_executor::{Executor, Lifetime};
use outpost_rpc::PeerOptions;
use outpost_rpc::link::memory;
use outpost_sandbox::Limits;
use outpost_wire::EnvironmentId;
use outpost_wire::exec::environment::EnvironmentInfo;

use crate::ProcessContext;
use crate::args::PlaceArguments;
use crate::commands::env;
use crate::confinement::{configured_git, configured_home, configured_limits, configured_minimum, http_allow};
use crate::environments::{KnownEnvironments, token};
use crate::home::local_directories;
use crate::local::{ExecutorSettings, SandboxSettings, executor_config};

/// An environment that is used by a verb.
pub(crate) struct Reached {
    pub environment: Environment,
    /// The executor of this very process, if that is where.
    executor: Option<Executor>,
}

/// Who wants to reach it, and how hard.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    /// How the executor is told who asks.
    pub client: &'static str,
    /// How long to try to get a lost connection back.
    pub patience: Duration,
}

impl Caller {
    pub(crate) fn options(self, own: &ProcessContext) -> EnvironmentOptions {
        EnvironmentOptions {
            client_name: self.client.into(),
            patience: self.patience,
            jitter_seed: u64::from(std::process::id()),
            means: means(own),
            ..EnvironmentOptions::default()
        }
    }
}

/// What routes through ssh, jobs and containers may use of this machine.
fn means(own: &ProcessContext) -> Means {
    Means { masters: local_directories().find(), carrier: Some(Carrier::new(env::carry)), open_files: own.variables.open_files() }
}

impl Reached {
    pub(crate) fn is_here(&self) -> bool {
        self.executor.is_some()
    }

    /// Connects, because a person asks for it, and tells what is there.
    pub(crate) async fn connect(&self) -> anyhow::Result<EnvironmentInfo> {
        Ok(self.environment.connect().await?)
    }

    /// Ends what was started there.
    pub(crate) async fn leave(self) {
        let _ = self.environment.end().await;
        if let Some(executor) = self.executor {
            executor.shut_down().await;
        }
    }
}

/// Nothing is connected yet.
pub(crate) fn reach(place: &PlaceArguments, client: &'static str, own: &ProcessContext) -> anyhow::Result<Reached> {
    let caller = Caller { client, patience: Duration::from_secs(place.patience) };
    match (&place.via, &place.environment) {
        (Some(command), _) => via(command, caller, own),
        (None, Some(name)) => named(name, caller, own),
        (None, None) => here(caller, own),
    }
}

/// An environment by its name or its address.
pub(crate) fn named(name: &str, caller: Caller, own: &ProcessContext) -> anyhow::Result<Reached> {
    if name == EnvironmentId::local().as_str() {
        return here(caller, own);
    }
    let known = KnownEnvironments::load(&own.variables)?;
    known.snapshot()?;
    if name.contains("://") {
        let definition = Definition::url(name, token(name, &own.variables)?)?;
        return Ok(there(definition.connector(&Means::default()), caller, own));
    }
    let id = EnvironmentId::parse(name).context("an environment is given by its name, or as ws://HOST:PORT or unix:///PATH")?;
    Ok(Reached { environment: known.handle(&id, caller.options(own))?, executor: None })
}

/// An environment behind a command.
pub(crate) fn via(command: &str, caller: Caller, own: &ProcessContext) -> anyhow::Result<Reached> {
    KnownEnvironments::load(&own.variables)?.snapshot()?;
    let line = CommandLine { open_files: own.variables.open_files(), ..CommandLine::shell(command) };
    Ok(there(Connector::program(line), caller, own))
}

fn there(connector: Connector, caller: Caller, own: &ProcessContext) -> Reached {
    Reached { environment: Environment::new(connector, caller.options(own)), executor: None }
}

/// This machine.
pub(crate) fn here(caller: Caller, own: &ProcessContext) -> anyhow::Result<Reached> {
    let (connector, executor) = local(configured_limits(&own.settings)?, own)?;
    Ok(Reached { environment: Environment::new(connector, caller.options(own)), executor: Some(executor) })
}

/// An executor of this very process, and the way to it.
pub(crate) fn local(limits: Limits, own: &ProcessContext) -> anyhow::Result<(Connector, Executor)> {
    let http_allow = http_allow(Vec::new(), &own.settings)?;
    let (minimum, minimum_from) = configured_minimum(&own.settings)?;
    let settings = ExecutorSettings {
        grace: Duration::from_secs(600),
        spool: 64 << 20,
        peer: PeerOptions::default(),
        keeps_fates: false,
        listener: "this process".into(),
        http_allow,
        confinement: SandboxSettings {
            limits,
            minimum,
            minimum_from,
            git: configured_git(&own.settings)?,
            home: configured_home(&own.settings)?,
            ..SandboxSettings::default()
        },
    };
    let executor = Executor::new(executor_config(settings, &own.variables)?);
    let serving = executor.clone();
    let connector = Connector::new("this machine", move || {
        let (ours, theirs) = memory::pair();
        let executor = serving.clone();
        tokio::spawn(async move { executor.serve(theirs, Lifetime::Grace).await });
        std::future::ready(Ok(ours))
    });
    Ok((connector, executor))
}
