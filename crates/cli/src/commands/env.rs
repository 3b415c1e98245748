//! `outpost env`.

mod add;
mod check;
mod import;
mod list;
mod login;
mod remote;
mod ssh;
mod upgrade;
mod watch;

pub(crate) use ssh::carry;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use outpost_environment::config::edit;
use outpost_executor::locks::Locks;
use outpost_wire::EnvironmentId;
use uuid::Uuid;

use super::failure;
use crate::ProcessContext;
use crate::env_args::EnvCommand;
use crate::home::Home;
use crate::out::{self, say};
use crate::remote::RemoteServer;

pub(crate) async fn run(command: EnvCommand, own: &ProcessContext) -> ExitCode {
    let done = match command {
        EnvCommand::List(arguments) => match RemoteServer::named(own).await {
            Ok(Some(server)) => remote::list(&arguments, &server).await,
            Ok(None) => list::run(&arguments, own),
            Err(error) => Err(error),
        },
        EnvCommand::Add(arguments) => add::run(*arguments, own).await,
        EnvCommand::Remove { name } => remove(&name, own),
        EnvCommand::Check(arguments) => check::run(arguments, own).await,
        EnvCommand::Watch(arguments) => watch::run(arguments, own).await,
        EnvCommand::Import(arguments) => import::run(arguments, own).await,
        EnvCommand::Login(arguments) => login::run(&arguments, own).await,
        EnvCommand::Upgrade(arguments) => upgrade::run(&arguments, own).await,
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => failure(&error),
    }
}

fn remove(name: &str, own: &ProcessContext) -> anyhow::Result<u8> {
    let id = EnvironmentId::parse_own(name)?;
    let home = Home::from_environment().context("there is neither OUTPOST_HOME nor HOME")?;
    let file = home.environments();
    if !file.exists() {
        anyhow::bail!("there is no environment `{id}`: {} does not exist", file.display());
    }
    change(&home, own, |text| edit::remove(text, &file, &id)).with_context(|| format!("{} is unchanged", file.display()))?;
    say(&format!("removed `{id}` from {}", file.display()));
    Ok(0)
}

/// Changes `environments.toml` in one step, one at a time.
fn change(home: &Home, own: &ProcessContext, edit: impl FnOnce(&str) -> Result<String, edit::EditError>) -> anyhow::Result<()> {
    home.usable()?;
    let directory = home.path();
    let lock = File::open(directory).with_context(|| format!("cannot open {}", directory.display()))?;
    let _lock = lock_home(lock, home, own).with_context(|| format!("cannot lock {}", directory.display()))?;
    // What a link leads to is changed, not the link.
    let file = home.environments();
    let file = fs::canonicalize(&file).unwrap_or(file);
    let (text, mode) = match fs::read_to_string(&file) {
        Ok(text) => (text, fs::metadata(&file)?.permissions().mode() & 0o777),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => (String::new(), 0o600),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", file.display())),
    };
    replace(&file, &edit(&text)?, mode).with_context(|| format!("cannot write {}", file.display()))
}

/// On a home that is on a network, the lock may be one of this machine only.
fn lock_home(directory: File, home: &Home, own: &ProcessContext) -> anyhow::Result<File> {
    let locks = Locks::new(Some(home.seat(&own.variables)?.run.join("locks")));
    Ok(locks.lock(directory, "environments")?)
}

fn replace(path: &Path, text: &str, mode: u32) -> std::io::Result<()> {
    let aside = path.with_extension(format!("{}.part", Uuid::new_v4().simple()));
    let mut file = File::options().write(true).create_new(true).mode(mode).open(&aside)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written
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
