//! What clients can ask for, one file per topic. To add a method: declare its type and shapes in `outpost_wire::app`, write a
//! function here, and register it in its file's `register`.

mod account;
mod choices;
mod commands;
mod config;
mod environments;
mod files;
mod goals;
mod lists;
mod mcp;
mod models;
mod place;
mod queue;
mod reading;
mod search;
mod session;
mod shelf;
mod skills;
mod threads;
mod turns;
mod work;

use std::sync::Arc;

use outpost_runtime::live::LiveThread;
use outpost_thread::ThreadId;
use outpost_wire::Fault;

use crate::connection::Connection;
use crate::fault;
use crate::table::Table;

/// All methods.
pub fn table() -> Table {
    let table = session::register(Table::default());
    let table = threads::register(table);
    let table = reading::register(table);
    let table = shelf::register(table);
    let table = turns::register(table);
    let table = work::register(table);
    let table = environments::register(table);
    let table = config::register(table);
    let table = models::register(table);
    let table = account::register(table);
    let table = files::register(table);
    let table = commands::register(table);
    let table = goals::register(table);
    let table = queue::register(table);
    let table = skills::register(table);
    let table = mcp::register(table);
    let table = search::register(table);
    lists::register(table)
}

fn thread_id(text: &str) -> Result<ThreadId, Fault> {
    text.parse().map_err(|_| fault::thread_id(text))
}

/// A thread that must be loaded.
fn loaded(connection: &Arc<Connection>, text: &str) -> Result<LiveThread, Fault> {
    let id = thread_id(text)?;
    connection.server.runtime.get(id).ok_or_else(|| fault::thread_not_found(id))
}
