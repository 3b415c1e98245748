//! `outpost env`.

mod add;
mod check;
mod import;
mod import_file;
mod list;
mod login;
mod remote;
mod ssh;
mod upgrade;
mod watch;

pub(crate) use ssh::carry;

use std::process::ExitCode;

use anyhow::Context;
use outpost_environment::config::edit;
use outpost_wire::EnvironmentId;

use super::failure;
use crate::ProcessContext;
use crate::definitions::DefinitionSource;
use crate::env_args::{EnvCommand, ImportFrom};
use crate::home::Home;
use crate::out::{self, say};
use crate::remote::RemoteServer;

pub(crate) async fn run(command: EnvCommand, own: &ProcessContext) -> ExitCode {
    let done = match command {
        EnvCommand::List(arguments) => match RemoteServer::named(own).await {
            Ok(Some(server)) => remote::list(&arguments, &server).await,
            Ok(None) => list::run(&arguments, own).await,
            Err(error) => Err(error),
        },
        EnvCommand::Add(arguments) => add::run(*arguments, own).await,
        EnvCommand::Remove { name } => remove(&name, own).await,
        EnvCommand::Check(arguments) => check::run(arguments, own).await,
        EnvCommand::Watch(arguments) => watch::run(arguments, own).await,
        EnvCommand::Import(arguments) => match arguments.from {
            ImportFrom::Ssh => import::run(arguments, own).await,
            ImportFrom::File => import_file::run(&arguments, own).await,
        },
        EnvCommand::Login(arguments) => login::run(&arguments, own).await,
        EnvCommand::Upgrade(arguments) => upgrade::run(&arguments, own).await,
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => failure(&error),
    }
}

async fn remove(name: &str, own: &ProcessContext) -> anyhow::Result<u8> {
    let id = EnvironmentId::parse_own(name)?;
    let home = Home::from_environment().context("there is neither OUTPOST_HOME nor HOME")?;
    let source = DefinitionSource::of(home, own).await?;
    let file = source.path();
    if matches!(source, DefinitionSource::File(_)) && !file.exists() {
        anyhow::bail!("there is no environment `{id}`: {} does not exist", file.display());
    }
    if matches!(source, DefinitionSource::Store(_)) {
        // A file that is not brought in yet is now: an empty text in its place would keep it out for ever.
        source.read().await?;
    }
    source.change(own, |text| edit::remove(text, &file, &id)).await?;
    say(&format!("removed `{id}` from {}", file.display()));
    Ok(0)
}

/// A line of what was asked for.
fn print(text: &str) -> anyhow::Result<()> {
    out::print(&format!("{text}\n"))
}

/// Rows under a heading, each column as wide as its widest text. What stands in them may have been written by others.
fn table(rows: &[Vec<String>]) -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| out::on_line(cell)).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(text, width)| format!("{text:width$}"));
        out::print_shown(&format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end()))?;
    }
    Ok(())
}
