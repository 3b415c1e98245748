//! `outpost env add`.

use std::path::Path;

use anyhow::{Context, bail};
use outpost_environment::Definition;
use outpost_environment::config::edit::{self, EditedMember, NewEntry};
use outpost_wire::EnvironmentId;

use super::ssh::{self, attended};
use super::{check, say};
use crate::ProcessContext;
use crate::env_args::AddArguments;
use crate::environments::KnownEnvironments;
use crate::home::Home;

pub(super) async fn run(arguments: AddArguments, own: &ProcessContext) -> anyhow::Result<u8> {
    let known = KnownEnvironments::load(own).await?;
    let source = known.changeable()?;
    let file = source.path();
    let entry = entry(&arguments)?;
    // Everything that can be wrong here is reported before anything is connected.
    Home::from_environment().context("there is neither OUTPOST_HOME nor HOME")?.usable()?;
    let text = source.text().await?;
    edit::add(&text, &file, &entry).with_context(|| format!("{} is unchanged", file.display()))?;
    let definition = definition(&entry, &file)?;
    if let Some(route) = definition.route()
        && !arguments.offline
    {
        let transport = attended(route);
        ssh::bring(&transport, arguments.binary.as_deref(), own).await?;
        if !definition.setup.commands.is_empty() {
            say(&format!("setting up {}", transport.name()));
            transport.set_up(&definition.setup).await?;
        }
    }
    source.change(own, |text| edit::add(text, &file, &entry)).await?;
    say(&format!("added `{}` to {}", entry.id, file.display()));
    if definition.route().is_none() || arguments.offline {
        say(&format!("`outpost env check {}` tells whether it works", entry.id));
        return Ok(0);
    }
    let found = check::check(entry.id.as_str(), own).await;
    say(&found.sentence());
    Ok(found.code)
}

/// What the entry means, read as it will be from the file.
fn definition(entry: &NewEntry, file: &Path) -> anyhow::Result<Definition> {
    let alone = edit::add("", file, entry)?;
    let snapshot = outpost_environment::config::parse(&alone, file)?;
    match snapshot.entries.into_iter().next().map(|entry| entry.definition) {
        Some(Ok(definition)) => Ok(definition),
        Some(Err(what)) => bail!(what),
        None => bail!("the new entry of environments.toml is invalid"),
    }
}

fn entry(arguments: &AddArguments) -> anyhow::Result<NewEntry> {
    let id = EnvironmentId::parse_own(&arguments.name)?;
    let way = &arguments.way;
    let mut members = Vec::new();
    let mut text = |key: &'static str, value: Option<&String>| {
        if let Some(value) = value {
            members.push((key, EditedMember::Text(value.clone())));
        }
    };
    text("ssh", way.ssh.as_ref());
    text("slurm", way.slurm.as_ref());
    text("docker", way.docker.as_ref());
    text("podman", way.podman.as_ref());
    let folder = way.devcontainer.as_ref().map(|folder| match &way.ssh {
        Some(_) => Ok(folder.clone()),
        None => written(Path::new(folder)),
    });
    text("devcontainer", folder.transpose()?.as_ref());
    text("engine", arguments.engine.as_ref());
    text("kubectl", way.kubectl.as_ref());
    text("namespace", arguments.namespace.as_ref());
    text("container", arguments.container.as_ref());
    text("user", arguments.user.as_ref());
    text("url", way.url.as_ref());
    text("idle_stop", arguments.idle_stop.as_ref());
    let policy = &arguments.policy;
    text("sandbox", policy.sandbox.as_ref());
    text("network", policy.network.as_ref());
    text("approval_policy", policy.approval_policy.as_ref());
    if let Some(command) = &way.via {
        if command.trim().is_empty() {
            bail!("the command of --via is empty");
        }
        members.push(("program", EditedMember::Text("/bin/sh".into())));
        members.push(("args", EditedMember::Texts(vec!["-c".into(), command.clone()])));
    }
    let lists = [
        ("args", &arguments.ssh_args),
        ("run_args", &arguments.run_args),
        ("setup", &arguments.setup),
        ("labels", &arguments.labels),
        ("writable_roots", &policy.writable_roots),
        ("devices", &policy.devices),
    ];
    for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        members.push((key, EditedMember::Texts(list.clone())));
    }
    if let Some(seconds) = arguments.setup_timeout {
        members.push(("setup_timeout_sec", EditedMember::Number(seconds)));
    }
    if let Some(file) = &arguments.token_file {
        members.push(("token_file", EditedMember::Text(written(file)?)));
    }
    if let Some(connect) = arguments.connect {
        members.push(("connect", EditedMember::Text(connect.name().into())));
    }
    Ok(NewEntry { id, members })
}

/// A path as it can be written down.
fn written(path: &Path) -> anyhow::Result<String> {
    let path = std::path::absolute(path).with_context(|| format!("{} has no absolute path", path.display()))?;
    // `.` and `..` would not be found again by programs that compare.
    let path = path.canonicalize().unwrap_or(path);
    path.to_str().map(str::to_owned).with_context(|| format!("{} cannot be written down: it is not UTF-8", path.display()))
}
