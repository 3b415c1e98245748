//! What clients can ask for, one file per topic. To add a method: declare its type and shapes in `outpost_wire::app`, write a
//! function here, and register it in its file's `register`.

mod account;
mod activity;
mod choices;
mod commands;
mod config;
mod dynamic_tools;
mod environments;
mod files;
mod finding;
mod goals;
mod journal;
mod lifecycle;
mod mcp;
mod models;
mod overview;
mod pages;
mod place;
mod queue;
pub(crate) mod reading;
mod revert;
mod review;
mod sample;
mod search;
mod session;
mod skills;
mod terminals;
mod threads;
mod turns;
mod unread;
mod unsupported;
mod work;

use std::sync::Arc;

use outpost_runtime::live::LiveThread;
use outpost_thread::ThreadId;
use outpost_wire::Fault;

use crate::connection::ClientConnection;
use crate::fault;
use crate::table::Table;

/// All methods.
pub(crate) fn table() -> Table {
    let table = session::register(Table::default());
    let table = threads::register(table);
    let table = reading::register(table);
    let table = lifecycle::register(table);
    let table = turns::register(table);
    let table = work::register(table);
    let table = terminals::register(table);
    let table = environments::register(table);
    let table = activity::register(table);
    let table = config::register(table);
    let table = models::register(table);
    let table = overview::register(table);
    let table = journal::register(table);
    let table = account::register(table);
    let table = files::register(table);
    let table = commands::register(table);
    let table = goals::register(table);
    let table = queue::register(table);
    let table = review::register(table);
    let table = skills::register(table);
    let table = mcp::register(table);
    let table = search::register(table);
    let table = finding::register(table);
    let table = sample::register(table);
    let table = revert::register(table);
    let table = unread::register(table);
    unsupported::register(table)
}

fn thread_id(text: &str) -> Result<ThreadId, Fault> {
    text.parse().map_err(|_| fault::thread_id(text))
}

/// A thread that must be loaded, or was until it was not in use any more.
async fn loaded(connection: &Arc<ClientConnection>, text: &str) -> Result<LiveThread, Fault> {
    let id = thread_id(text)?;
    let found = connection.server.runtime.get_again(id).await.map_err(fault::thread)?;
    found.ok_or_else(|| fault::thread_not_found(id))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    #[test]
    fn every_method_is_in_the_schema_and_no_other() {
        let schema: Value = serde_json::from_str(include_str!("../../../../schema/app.json")).unwrap();
        let described: BTreeSet<&str> = schema["methods"].as_object().unwrap().keys().map(String::as_str).collect();
        let table = super::table();
        let served: BTreeSet<&str> = table.names().iter().copied().collect();
        let missing: Vec<_> = served.symmetric_difference(&described).collect();
        assert!(missing.is_empty(), "add or remove these in outpost_wire::app::methods, then run `cargo xtask schema`: {missing:?}");
    }
}
