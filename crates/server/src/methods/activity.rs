//! What threads do in one environment: for people who look at a machine and not at a thread.

use std::sync::Arc;

use outpost_store::{Direction, ListOrder, ListQuery, ListScope};
use outpost_thread::ThreadId;
use outpost_wire::Fault;
use outpost_wire::app::SortDirection;
use outpost_wire::app::environment::{
    EnvironmentActivity, EnvironmentActivityParams, EnvironmentActivityResponse, EnvironmentCommand, EnvironmentProcess,
};
use outpost_wire::app::item::{Item, TimedItem};

use super::pages::{self, TurnPageRequest};
use super::reading::state_of;
use super::terminals;
use crate::connection::ClientConnection;
use crate::fault;
use crate::server::ServerShared;
use crate::table::Table;

/// Commands that are told of, if the client does not say.
const COMMANDS: u32 = 30;
const MOST_COMMANDS: u32 = 200;
/// So many threads are looked at, and so many of their last turns: a page is to show what happened lately, not to search all journals.
const THREADS: usize = 25;
const TURNS: usize = 3;

pub(super) fn register(table: Table) -> Table {
    table.on::<EnvironmentActivity, _, _>(activity)
}

async fn activity(connection: Arc<ClientConnection>, params: EnvironmentActivityParams) -> Result<EnvironmentActivityResponse, Fault> {
    let server = &connection.server;
    let place = params.environment_id.as_str();
    let mut processes = Vec::new();
    for live in server.runtime.loaded().into_iter().filter_map(|id| server.runtime.get(id)) {
        if !connection.identity.sees(server, live.id()).await? {
            continue;
        }
        // A thread that is just being unloaded has none.
        let running = terminals::of(&connection, &live).await.unwrap_or_default();
        processes.extend(running.into_iter().filter(|one| one.environment_id.as_deref() == Some(place)).map(|one| EnvironmentProcess {
            thread_id: live.id().to_string(),
            process_id: one.process_id,
            command: one.command,
            cwd: one.cwd,
        }));
    }
    let query = ListQuery {
        shelf: ListScope::Active,
        order: ListOrder::Recency,
        direction: Direction::NewestFirst,
        sources: Vec::new(),
        cwds: Vec::new(),
        kin: None,
        search: None,
        limit: THREADS,
        after: None,
    };
    let mut commands = Vec::new();
    for row in server.runtime.store().list(query).await.map_err(fault::read)?.threads {
        if !connection.identity.sees(server, row.id).await? {
            continue;
        }
        // One that cannot be read does not hide the others.
        commands.extend(lately(server, row.id, place).await.unwrap_or_default());
    }
    commands.sort_by_key(|command| std::cmp::Reverse(command.started_at_ms));
    commands.truncate(params.limit.unwrap_or(COMMANDS).clamp(1, MOST_COMMANDS) as usize);
    Ok(EnvironmentActivityResponse { processes, commands })
}

/// The commands of a thread's last turns that ran there.
async fn lately(server: &ServerShared, id: ThreadId, place: &str) -> Result<Vec<EnvironmentCommand>, Fault> {
    let (state, _, store) = state_of(server, id).await?;
    let wanted = TurnPageRequest { place: None, limit: TURNS, direction: SortDirection::Desc };
    let turns = pages::page(server, &store, &state, &wanted).await?.turns;
    Ok(turns.into_iter().flat_map(|turn| turn.items).filter_map(|item| command(id, item, place)).collect())
}

fn command(thread: ThreadId, item: TimedItem, place: &str) -> Option<EnvironmentCommand> {
    match item.item {
        Item::CommandExecution { id, command, cwd, environment_id, status, exit_code, duration_ms, .. }
            if environment_id.as_deref() == Some(place) =>
        {
            Some(EnvironmentCommand {
                thread_id: thread.to_string(),
                item_id: id,
                command,
                cwd,
                status,
                exit_code,
                started_at_ms: item.started_at_ms,
                duration_ms,
            })
        }
        _ => None,
    }
}
