//! `outpost env upgrade`: brings the version of this program to environments.

use anyhow::bail;
use outpost_environment::route::Route;
use outpost_wire::EnvironmentId;

use super::ssh::{attended, bring};
use super::{check, say};
use crate::ProcessContext;
use crate::commands::FAILED;
use crate::env_args::UpgradeArguments;
use crate::environments::KnownEnvironments;
use crate::out::with_causes;

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(super) async fn run(arguments: &UpgradeArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    let known = KnownEnvironments::load(own).await?;
    let ids: Vec<EnvironmentId> = match arguments.all {
        true => known.snapshot()?.entries.iter().map(|entry| entry.id.clone()).collect(),
        false => arguments.names.iter().map(|name| EnvironmentId::parse_own(name)).collect::<Result<_, _>>()?,
    };
    let mut routes: Vec<(EnvironmentId, Route)> = Vec::new();
    for id in ids {
        let definition = known.definition(&id);
        match definition.map(|definition| (definition.route(), definition.to_string())) {
            Ok((Some(route), _)) => routes.push((id, route)),
            Ok((None, address)) if arguments.all => say(&format!("`{id}` is {address}; it is upgraded there")),
            Ok((None, address)) => bail!("`{id}` is {address}; a program can be copied only behind ssh, into containers and jobs"),
            // One that is wrong is no reason to leave the others as they are.
            Err(error) if arguments.all => say(&with_causes(&error)),
            Err(error) => return Err(error),
        }
    }
    if routes.is_empty() {
        say("there is nothing to upgrade");
    }
    let mut worst = 0;
    for (id, route) in routes {
        let code = match one(&id, route, arguments, own).await {
            Ok(code) => code,
            Err(error) => {
                say(&format!("`{id}` was not upgraded: {}", with_causes(&error)));
                FAILED
            }
        };
        worst = worst.max(code);
    }
    Ok(worst)
}

async fn one(id: &EnvironmentId, route: Route, arguments: &UpgradeArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    let transport = attended(route);
    bring(&transport, arguments.binary.as_deref(), own).await?;
    if arguments.now {
        let (ended, said) = transport.run_program("__end-keeper").await?;
        if !ended {
            bail!("the keeper there did not end: {said}");
        }
    }
    let found = check::check(id.as_str(), own).await;
    say(&found.sentence());
    match found.version() {
        Some(version) if version != VERSION => {
            say(&format!(
                "a keeper of {version} still serves there and goes when its sessions end; `outpost env upgrade {id} --now` ends both"
            ));
            Ok(found.code)
        }
        // One that is too old refuses even to be asked.
        None if found.is_too_far() => {
            say(&format!("a keeper of an older version still serves there; `outpost env upgrade {id} --now` ends it and what runs in it"));
            Ok(found.code)
        }
        _ => Ok(found.code),
    }
}
