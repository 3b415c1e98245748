//! From what a person wrote to an environment.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use outpost_environment::{Carrier, CommandLine, Connector, Definition, Environment, EnvironmentOptions, Means};
use outpost_executor::{Executor, Lifetime};
use outpost_rpc::link::memory;
use outpost_rpc::{Link, PeerOptions};
use outpost_sandbox::Limits;
use outpost_wire::exec::environment::EnvironmentInfo;
use outpost_wire::exec::session::CallerContext;
use outpost_wire::{EnvironmentId, PathUri};

use crate::ProcessContext;
use crate::args::PlaceArguments;
use crate::commands::env;
use crate::commands::keeper::LocalKeeper;
use crate::confinement::{GRACE_RUNNING, configured_git, configured_home, configured_limits, configured_minimum, http_allow};
use crate::environments::{KnownEnvironments, refuse_if_off, token};
use crate::home::{Home, local_directories};
use crate::local::{ExecutorSettings, SandboxSettings, executor_config};
use crate::out::with_causes;

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
    /// This machine through its keeper. The executor is of this very process, and takes the keeper's place where there is none.
    pub(crate) fn kept(environment: Environment, executor: Executor) -> Self {
        Self { environment, executor: Some(executor) }
    }

    pub(crate) fn is_here(&self) -> bool {
        self.executor.is_some()
    }

    /// Connects, because a person asks for it, and tells what is there.
    pub(crate) async fn connect(&self) -> anyhow::Result<EnvironmentInfo> {
        Ok(self.environment.connect().await?)
    }

    /// Ends what was started there.
    pub(crate) async fn leave(self) {
        let _ = self.environment.end_unheard().await;
        if let Some(executor) = self.executor {
            executor.shut_down().await;
        }
    }
}

/// Nothing is connected yet.
pub(crate) async fn reach(place: &PlaceArguments, client: &'static str, own: &ProcessContext) -> anyhow::Result<Reached> {
    let caller = Caller { client, patience: Duration::from_secs(place.patience) };
    match (&place.via, place.environment()) {
        (Some(command), _) => via(command, caller, own),
        (None, Some(name)) => named(name, caller, own).await,
        (None, None) => here(caller, own),
    }
}

/// An environment by its name or its address.
pub(crate) async fn named(name: &str, caller: Caller, own: &ProcessContext) -> anyhow::Result<Reached> {
    if name == EnvironmentId::local().as_str() {
        return here(caller, own);
    }
    refuse_if_off(&own.variables)?;
    if name.contains("://") {
        let definition = Definition::url(name, token(name, &own.variables)?)?;
        return Ok(there(definition.connector(&Means::default()), caller, own));
    }
    let id = EnvironmentId::parse(name).context("an environment is given by its name, or as ws://HOST:PORT or unix:///PATH")?;
    let known = KnownEnvironments::load(own).await?;
    Ok(Reached { environment: known.handle(&id, caller.options(own))?, executor: None })
}

/// An environment behind a command.
pub(crate) fn via(command: &str, caller: Caller, own: &ProcessContext) -> anyhow::Result<Reached> {
    refuse_if_off(&own.variables)?;
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

/// What an executor of this machine is told by the configuration of its home.
pub(crate) fn local_settings(limits: Limits, settings: &[String]) -> anyhow::Result<ExecutorSettings> {
    let http_allow = http_allow(Vec::new(), settings)?;
    let (minimum, minimum_from) = configured_minimum(settings)?;
    Ok(ExecutorSettings {
        // A session of this machine in which nothing runs has nothing that a program would come back for.
        grace: Duration::from_secs(60),
        grace_running: Duration::from_secs(GRACE_RUNNING),
        spool: 64 << 20,
        peer: PeerOptions::default(),
        keeps_fates: false,
        listener: "this process".into(),
        http_allow,
        confinement: SandboxSettings {
            limits,
            minimum,
            minimum_from,
            git: configured_git(settings)?,
            home: configured_home(settings)?,
            ..SandboxSettings::default()
        },
    })
}

/// An executor of this very process, and the way to it.
pub(crate) fn local(limits: Limits, own: &ProcessContext) -> anyhow::Result<(Connector, Executor)> {
    let executor = own_executor(limits, own)?;
    let serving = executor.clone();
    let connector = Connector::new("this machine", move || std::future::ready(Ok(link_to(&serving))));
    Ok((connector, executor))
}

fn own_executor(limits: Limits, own: &ProcessContext) -> anyhow::Result<Executor> {
    Ok(Executor::new(executor_config(local_settings(limits, &own.settings)?, &own.variables)?))
}

fn link_to(executor: &Executor) -> Link {
    let (ours, theirs) = memory::pair();
    let executor = executor.clone();
    tokio::spawn(async move { executor.serve(theirs, Lifetime::Grace).await });
    ours
}

/// The way to this machine for programs that run threads: through the keeper of the home, so that commands outlive the program. Where
/// there can be no keeper, an executor of this very process takes its place.
pub(crate) fn kept_local(home: &Home, limits: Limits, own: &ProcessContext) -> anyhow::Result<(Connector, Executor)> {
    let executor = own_executor(limits, own)?;
    let keeper =
        LocalKeeper::of(home, own).inspect_err(|error| tracing::debug!("local commands are not kept: {}", with_causes(error))).ok();
    let (serving, keeper) = (executor.clone(), keeper.map(Arc::new));
    let connector = Connector::for_session("this machine", move |session| {
        let (executor, keeper, session) = (serving.clone(), keeper.clone(), session.map(str::to_owned));
        async move {
            let kept = match &keeper {
                Some(keeper) => keeper.reach(session.as_deref()).await,
                None => Err(anyhow::anyhow!("there is no place for a keeper")),
            };
            Ok(kept.unwrap_or_else(|error| {
                tracing::warn!("commands on this machine end with this program: {}", with_causes(&error));
                link_to(&executor)
            }))
        }
    });
    let here = std::env::current_dir().context("the current directory is gone")?;
    let caller = CallerContext {
        variables: own.variables.block_for_commands().into(),
        cwd: PathUri::from_native(&here)?,
        settings: own.settings.clone(),
        open_files: own.variables.open_files(),
    };
    Ok((connector.in_place_of(caller), executor))
}
