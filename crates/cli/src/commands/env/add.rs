//! `outpost env add`.

use anyhow::{Context, bail};
use outpost_environment::config::edit::{self, Member, NewEntry};
use outpost_wire::EnvironmentId;

use super::{change, check, say, ssh};
use crate::Process;
use crate::args::AddArguments;
use crate::environments::Known;
use crate::home::Home;

pub async fn run(arguments: AddArguments, own: &Process) -> anyhow::Result<u8> {
    let known = Known::load(&own.variables)?;
    known.snapshot()?;
    if !known.from_file {
        bail!("OUTPOST_EXEC_SERVER_URL is set, so environments.toml has no effect; unset it first");
    }
    let home = Home::from_environment().context("there is neither OUTPOST_HOME nor HOME")?;
    let file = home.environments();
    let entry = entry(&arguments)?;
    // Everything that can be wrong here is told before anybody goes anywhere.
    home.usable()?;
    let text = match std::fs::read_to_string(&file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        other => other.with_context(|| format!("cannot read {}", file.display()))?,
    };
    edit::add(&text, &file, &entry).with_context(|| format!("{} is unchanged", file.display()))?;
    if let Some(destination) = &arguments.way.ssh {
        ssh::bring(destination, &arguments).await?;
    }
    change(&home, |text| edit::add(text, &file, &entry)).with_context(|| format!("{} is unchanged", file.display()))?;
    say(&format!("added `{}` to {}", entry.id, file.display()));
    if arguments.way.ssh.is_none() {
        say(&format!("`outpost env check {}` tells whether it works", entry.id));
        return Ok(0);
    }
    let found = check::check(entry.id.as_str(), own).await;
    say(&found.sentence());
    Ok(found.code)
}

fn entry(arguments: &AddArguments) -> anyhow::Result<NewEntry> {
    let id = EnvironmentId::parse_own(&arguments.name)?;
    let mut members = Vec::new();
    if let Some(destination) = &arguments.way.ssh {
        members.push(("ssh", Member::Text(destination.clone())));
        if !arguments.ssh_args.is_empty() {
            members.push(("args", Member::Texts(arguments.ssh_args.clone())));
        }
    } else if let Some(command) = &arguments.way.via {
        if command.trim().is_empty() {
            bail!("the command of --via is empty");
        }
        members.push(("program", Member::Text("/bin/sh".into())));
        members.push(("args", Member::Texts(vec!["-c".into(), command.clone()])));
    } else if let Some(url) = &arguments.way.url {
        members.push(("url", Member::Text(url.clone())));
    }
    if let Some(file) = &arguments.token_file {
        let path = std::path::absolute(file).context("the token's file has no absolute path")?;
        let path = path.to_str().with_context(|| format!("{} cannot be written down: it is not UTF-8", path.display()))?;
        members.push(("token_file", Member::Text(path.into())));
    }
    if let Some(connect) = arguments.connect {
        members.push(("connect", Member::Text(connect.name().into())));
    }
    Ok(NewEntry { id, members })
}
