//! From what a person wrote to an environment.

use std::time::Duration;

use outpost_environment::{Connector, Environment, EnvironmentOptions, Target, Token};
use outpost_executor::{Executor, Lifetime};
use outpost_rpc::PeerOptions;
use outpost_rpc::link::memory;

use crate::args::PlaceArguments;
use crate::local::{ExecutorSettings, executor_config};

/// An environment that is used by a verb.
pub struct Reached {
    pub environment: Environment,
    /// The executor of this very process, if that is where.
    executor: Option<Executor>,
}

impl Reached {
    pub fn is_here(&self) -> bool {
        self.executor.is_some()
    }

    /// Ends what was started there.
    pub async fn leave(self) {
        let _ = self.environment.end().await;
        if let Some(executor) = self.executor {
            executor.shut_down().await;
        }
    }
}

/// Nothing is connected yet. `client` is how the executor is told who asks.
pub fn reach(place: &PlaceArguments, client: &str) -> anyhow::Result<Reached> {
    if let Some(command) = &place.via {
        return Ok(there(Connector::command(command), client, place.patience));
    }
    match &place.environment {
        Some(target) => named(target, client, place.patience),
        None => here(client),
    }
}

/// An environment by its address.
pub fn named(target: &str, client: &str, patience: u64) -> anyhow::Result<Reached> {
    let target: Target = target.parse()?;
    let token = std::env::var("OUTPOST_TOKEN").ok().filter(|token| !token.is_empty()).map_or(Token::None, Token::Bearer);
    Ok(there(Connector::target(target, token), client, patience))
}

pub fn there(connector: Connector, client: &str, patience: u64) -> Reached {
    Reached { environment: Environment::new(connector, options(client, patience)), executor: None }
}

/// This machine, through an executor of this very process.
pub fn here(client: &str) -> anyhow::Result<Reached> {
    let settings = ExecutorSettings {
        grace: Duration::from_secs(600),
        spool: 64 << 20,
        peer: PeerOptions::default(),
        keeps_fates: false,
        listener: "this process".into(),
    };
    let executor = Executor::new(executor_config(settings)?);
    let serving = executor.clone();
    let connector = Connector::new("this machine", move || {
        let (ours, theirs) = memory::pair();
        let executor = serving.clone();
        tokio::spawn(async move { executor.serve(theirs, Lifetime::Grace).await });
        std::future::ready(Ok(ours))
    });
    Ok(Reached { environment: Environment::new(connector, options(client, 0)), executor: Some(executor) })
}

fn options(client: &str, patience: u64) -> EnvironmentOptions {
    EnvironmentOptions {
        client_name: client.into(),
        patience: Duration::from_secs(patience),
        jitter_seed: u64::from(std::process::id()),
        ..EnvironmentOptions::default()
    }
}
