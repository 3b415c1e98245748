//! Threads beside each other: where they work, what they have spent, who holds them.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use outpost_thread::ThreadId;
use outpost_wire::Fault;
use outpost_wire::app::overview::{ThreadHolder, ThreadOverview, ThreadOverviewEntry, ThreadOverviewParams, ThreadOverviewResponse};

use super::reading::state_of;
use super::thread_id;
use crate::connection::ClientConnection;
use crate::projection;
use crate::server::ServerShared;
use crate::table::Table;

/// Clients ask again for more.
const MOST: usize = 100;
/// So many are read at the same time: a database is asked several times for each.
const AT_ONCE: usize = 4;

pub(super) fn register(table: Table) -> Table {
    table.on::<ThreadOverview, _, _>(overview)
}

async fn overview(connection: Arc<ClientConnection>, params: ThreadOverviewParams) -> Result<ThreadOverviewResponse, Fault> {
    if params.thread_ids.len() > MOST {
        return Err(Fault::invalid_request(format!("at most {MOST} threads are told of at once")));
    }
    let ids = params.thread_ids.iter().map(|text| thread_id(text)).collect::<Result<Vec<_>, Fault>>()?;
    let entries = stream::iter(ids).map(|id| entry(&connection.server, id)).buffered(AT_ONCE);
    // One that is gone, or that cannot be read, does not hide the others.
    let data = entries.filter_map(async |entry| entry.ok()).collect().await;
    Ok(ThreadOverviewResponse { data })
}

async fn entry(server: &ServerShared, id: ThreadId) -> Result<ThreadOverviewEntry, Fault> {
    let (state, status, store) = state_of(server, id).await?;
    let is_here = server.runtime.get(id).is_some();
    let holder = store.holder(id).await.ok().flatten();
    let summary = store.summary(id).await.ok().flatten();
    Ok(ThreadOverviewEntry {
        thread_id: id.to_string(),
        status: projection::status(status.as_ref()),
        environments: state.selection.as_ref().map(projection::environments).unwrap_or_default(),
        turn_id: state.turn.as_ref().map(|turn| turn.id.to_string()),
        turns: summary.as_ref().map_or(0, |summary| summary.turns),
        created_by: summary.and_then(|summary| summary.by),
        total_tokens: state.usage.total.total,
        holder: holder.map(|holder| ThreadHolder {
            host: holder.host,
            pid: holder.pid,
            node: holder.node,
            address: holder.address,
            is_here,
        }),
    })
}
