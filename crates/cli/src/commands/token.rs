//! `outpost token`.

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::Context;
use outpost_environment::FIRST_CONNECTION;
use outpost_server::people::ClientIdentity;
use outpost_server::tokens::{TokenPurpose, TokenStore};
use outpost_wire::EnvironmentId;
use serde_json::json;

use super::{FAILED, complain};
use crate::ProcessContext;
use crate::definitions::shared_records;
use crate::home::Home;
use crate::out::{print, say};
use crate::serve_args::{CreateToken, TokenCommand};
use crate::{store, tokens};

pub(crate) async fn run(command: TokenCommand, own: &ProcessContext) -> ExitCode {
    let done = match command {
        TokenCommand::Create(arguments) => create(arguments, own).await,
        TokenCommand::List { json } => list(json, own).await,
        TokenCommand::Revoke { name } => revoke(&name, own).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&error, FAILED),
    }
}

/// The tokens of this home, or of all nodes of its store.
async fn of(home: &Home, own: &ProcessContext) -> anyhow::Result<TokenStore> {
    Ok(match Box::pin(shared_records(home, own)).await? {
        Some(records) => TokenStore::shared(records, &home.tokens()),
        None => TokenStore::new(&home.tokens()),
    })
}

/// The same for a server, which brings in what its home has in files.
pub(crate) async fn of_server(home: &Home, own: &ProcessContext) -> anyhow::Result<TokenStore> {
    let tokens = of(home, own).await?;
    let count = Box::pin(tokens.import()).await?;
    if count > 0 {
        say(&format!("{count} tokens of {} were brought into the store, where tokens are from now on", home.tokens().display()));
    }
    Ok(tokens)
}

async fn ours(own: &ProcessContext) -> anyhow::Result<TokenStore> {
    of(&Home::from_environment().context("tokens need a home; set OUTPOST_HOME")?, own).await
}

async fn create(arguments: CreateToken, own: &ProcessContext) -> anyhow::Result<()> {
    let scope = match arguments.scope.executor {
        Some(id) => TokenPurpose::Executor { id: EnvironmentId::parse_own(&id).context("--executor")? },
        None if arguments.scope.metrics => TokenPurpose::Metrics,
        None => TokenPurpose::Client,
    };
    let secret = tokens::random()?;
    let person = ClientIdentity {
        name: arguments.name,
        role: arguments.role.unwrap_or_default(),
        environments: arguments.environment,
        threads: arguments.thread,
        is_node: false,
    };
    let person = Some(person).filter(|person| *person != ClientIdentity::default());
    let token = ours(own).await?.issue_to(&secret, scope, arguments.note, person, store::now()).await?;
    print(&format!("{secret}\n")).context("the token cannot be shown")?;
    say(&format!("this is token {} for {}; its secret is not shown again", token.name(), token.scope));
    Ok(())
}

async fn list(as_json: bool, own: &ProcessContext) -> anyhow::Result<()> {
    let tokens = ours(own).await?;
    let all = tokens.list().await?;
    let bound = async |scope: &TokenPurpose| match scope {
        TokenPurpose::Executor { id } => tokens.bound_to(id).await,
        TokenPurpose::Client | TokenPurpose::Metrics => Ok(None),
    };
    if as_json {
        let mut rows = Vec::new();
        for token in &all {
            let mut row = json!({"name": token.name(), "scope": token.scope, "createdAt": token.created_at});
            if let Some(note) = &token.note {
                row["note"] = json!(note);
            }
            if let Some(person) = &token.person {
                row["person"] = json!(person);
            }
            if let Some(identity) = bound(&token.scope).await? {
                row["boundTo"] = json!(identity);
            }
            rows.push(row);
        }
        return print(&format!("{}\n", serde_json::to_string_pretty(&rows)?));
    }
    let mut text = String::new();
    for token in &all {
        let waits = || matches!(token.scope, TokenPurpose::Executor { .. }).then(|| format!("  {FIRST_CONNECTION}"));
        let bound = bound(&token.scope).await?.map(|identity| format!("  joined by install {identity}")).or_else(waits).unwrap_or_default();
        let note = token.note.as_deref().map(|note| format!("  {note}")).unwrap_or_default();
        let person = token.person.as_ref().map(shown).unwrap_or_default();
        let _ = writeln!(text, "{}  {}{person}{bound}{note}", token.name(), token.scope);
    }
    print(&text)
}

/// Who has a token, and what it is limited to.
fn shown(person: &ClientIdentity) -> String {
    let mut text = format!("  {} ({})", person.name.as_deref().unwrap_or("unnamed"), person.role);
    for (what, names) in [
        ("environments", person.environments.iter().map(ToString::to_string).collect::<Vec<_>>()),
        ("threads", person.threads.iter().map(ToString::to_string).collect()),
    ] {
        if !names.is_empty() {
            let _ = write!(text, "  {what} {}", names.join(", "));
        }
    }
    text
}

async fn revoke(name: &str, own: &ProcessContext) -> anyhow::Result<()> {
    match ours(own).await?.revoke(name).await? {
        Some(token) => print(&format!("revoked {} for {}\n", token.name(), token.scope)),
        None => print(&format!("revoked {name}, which could not be read as a token\n")),
    }
}
