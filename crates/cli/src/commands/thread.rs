//! `outpost thread`: one function per verb; what they share is here.

mod care;
mod change;
pub(crate) mod list;
mod remote;
mod show;
pub(crate) mod times;
pub(crate) mod transcript;
pub(crate) mod transfer;
pub(crate) mod why;

use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::{Context, bail};
use outpost_store::{ListQuery, ListScope, Store};
use outpost_thread::ThreadId;
use outpost_wire::shown::{Form, Untrusted};

use super::{FAILED, complain};
use crate::ProcessContext;
use crate::out::print;
use crate::remote::RemoteServer;
use crate::store;
use crate::thread_args::{ThreadArguments, ThreadCommand};

/// So many characters of an id are enough to look for it.
const SHORTEST: usize = 3;

/// A store, and how to print.
struct Desk {
    store: Store,
    json: bool,
    /// No progress is shown.
    is_quiet: bool,
}

pub(crate) async fn run(arguments: ThreadArguments, own: &ProcessContext) -> ExitCode {
    match dispatch(arguments, own).await {
        Ok(code) => code,
        Err(error) => complain(&error, FAILED),
    }
}

async fn dispatch(arguments: ThreadArguments, own: &ProcessContext) -> anyhow::Result<ExitCode> {
    if arguments.store.is_none()
        && let Some(server) = RemoteServer::named(own).await?
    {
        return remote::run(server, arguments.command, arguments.json).await;
    }
    // This one looks at environments, too, and so opens more than a store.
    if let ThreadCommand::Why(name) = &arguments.command {
        return why::why(&name.thread, arguments.store, arguments.json, own).await;
    }
    let desk =
        Desk { store: store::open(arguments.store.as_deref(), &own.settings).await?, json: arguments.json, is_quiet: own.is_quiet() };
    match arguments.command {
        ThreadCommand::List(arguments) => desk.list(arguments).await,
        ThreadCommand::Show(arguments) => desk.show(arguments).await,
        ThreadCommand::Fork(arguments) => desk.fork(arguments).await,
        ThreadCommand::Rename(arguments) => desk.rename(arguments).await,
        ThreadCommand::Archive(names) => desk.archive(names, true).await,
        ThreadCommand::Unarchive(names) => desk.archive(names, false).await,
        ThreadCommand::Rm(arguments) => desk.rm(arguments).await,
        ThreadCommand::Verify(arguments) => desk.verify(arguments).await,
        ThreadCommand::Repair(arguments) => desk.repair(arguments).await,
        ThreadCommand::Import(arguments) => desk.import(arguments).await,
        ThreadCommand::Export(arguments) => desk.export(arguments).await,
        ThreadCommand::Takeover(names) => desk.takeover(names).await,
        ThreadCommand::Why(_) => Ok(ExitCode::SUCCESS),
    }
}

impl Desk {
    async fn find(&self, name: &str) -> anyhow::Result<ThreadId> {
        find(&self.store, name).await
    }

    async fn find_all(&self, names: &[String]) -> anyhow::Result<Vec<ThreadId>> {
        let mut found = Vec::new();
        for name in names {
            found.push(self.find(name).await?);
        }
        Ok(found)
    }
}

/// The thread that a user means: its id, a unique beginning or end of it, or its name.
pub(crate) async fn find(store: &Store, name: &str) -> anyhow::Result<ThreadId> {
    if let Ok(id) = name.parse::<ThreadId>() {
        return Ok(id);
    }
    let query = ListQuery { shelf: ListScope::Both, search: Some(name.to_owned()), limit: 100, ..ListQuery::default() };
    let listed = store.list(query).await?.threads;
    let mut found: Vec<ThreadId> = listed.iter().filter(|thread| thread.name.as_deref() == Some(name)).map(|thread| thread.id).collect();
    if found.is_empty() && name.len() >= SHORTEST {
        let part = name.to_ascii_lowercase();
        found = store.threads().await?;
        found.retain(|id| id.to_string().starts_with(&part) || id.to_string().ends_with(&part));
    }
    match found.as_slice() {
        [one] => Ok(*one),
        [] => bail!("there is no thread `{name}`; `outpost thread list --all` shows those that are there"),
        several => {
            let ids: Vec<String> = several.iter().take(5).map(ToString::to_string).collect();
            bail!("`{name}` could be {} threads: {}{}", several.len(), ids.join(", "), if several.len() > 5 { ", …" } else { "" })
        }
    }
}

/// The thread that changed last; those of agents are not meant.
pub(crate) async fn last(store: &Store) -> anyhow::Result<ThreadId> {
    let page = store.list(ListQuery { limit: 50, ..ListQuery::default() }).await?;
    let last = page.threads.iter().find(|thread| thread.parent.is_none());
    last.map(|thread| thread.id).context("there is no thread yet")
}

fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    print(&format!("{value:#}\n"))
}

/// Asks on a terminal; elsewhere `--yes` is needed.
fn confirm(question: &str) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("{question} not a terminal: pass --yes to confirm");
    }
    let mut out = std::io::stderr().lock();
    let question = if out.is_terminal() { Untrusted::from(question).show(Form::Text) } else { question.to_owned() };
    write!(out, "{question} [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("no answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
