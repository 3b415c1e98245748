//! Threads beside each other: where they work, what they have spent, who holds them.

use std::collections::HashMap;
use std::sync::Arc;

use outpost_runtime::live::ThreadActivity;
use outpost_store::ThreadStanding;
use outpost_thread::{Thread as State, ThreadId};
use outpost_wire::Fault;
use outpost_wire::app::overview::{ThreadHolder, ThreadOverview, ThreadOverviewEntry, ThreadOverviewParams, ThreadOverviewResponse};

use super::thread_id;
use crate::connection::ClientConnection;
use crate::fault;
use crate::projection;
use crate::server::ServerShared;
use crate::table::Table;

/// Clients ask again for more.
const MOST: usize = 100;

pub(super) fn register(table: Table) -> Table {
    table.on::<ThreadOverview, _, _>(overview)
}

async fn overview(connection: Arc<ClientConnection>, params: ThreadOverviewParams) -> Result<ThreadOverviewResponse, Fault> {
    if params.thread_ids.len() > MOST {
        return Err(Fault::invalid_request(format!("at most {MOST} threads are told of at once")));
    }
    let ids = params.thread_ids.iter().map(|text| thread_id(text)).collect::<Result<Vec<_>, Fault>>()?;
    let known = known(&connection.server, &ids).await?;
    // One that is gone, or that cannot be read, does not hide the others.
    Ok(ThreadOverviewResponse { data: ids.iter().filter_map(|id| known.get(id)).map(entry).collect() })
}

/// What is known of one thread.
struct Known {
    state: State,
    /// Of one that is loaded here.
    activity: Option<ThreadActivity>,
    standing: ThreadStanding,
}

/// Threads that are loaded here tell how they stand; for all others together the store is asked, in a few statements where it is a database.
async fn known(server: &ServerShared, ids: &[ThreadId]) -> Result<HashMap<ThreadId, Known>, Fault> {
    let mut loaded = HashMap::new();
    let mut ephemeral = HashMap::new();
    for id in ids {
        if let Some(live) = server.runtime.get(*id)
            && let Ok(state) = live.snapshot().await
        {
            loaded.insert(*id, (state, live.status()));
        }
        if server.runtime.is_ephemeral(*id).await {
            ephemeral.extend(server.runtime.store_of(*id).await.standings(&[*id]).await.map_err(fault::read)?);
        }
    }
    let store = server.runtime.store();
    let stored: Vec<ThreadId> = ids.iter().copied().filter(|id| !ephemeral.contains_key(id)).collect();
    let mut standings = store.standings(&stored).await.map_err(fault::read)?;
    standings.extend(ephemeral);
    let unloaded: Vec<ThreadId> = stored.into_iter().filter(|id| !loaded.contains_key(id)).collect();
    let opened = outpost_store::open_many(store, &unloaded).await.map_err(fault::read)?;
    let states = loaded.into_iter().map(|(id, (state, activity))| (id, state, Some(activity)));
    let states = states.chain(opened.into_iter().map(|(id, opened)| (id, opened.thread, None)));
    Ok(states.map(|(id, state, activity)| (id, Known { state, activity, standing: standings.remove(&id).unwrap_or_default() })).collect())
}

fn entry(Known { state, activity, standing }: &Known) -> ThreadOverviewEntry {
    ThreadOverviewEntry {
        thread_id: state.id.to_string(),
        status: projection::status(activity.as_ref()),
        environments: state.selection.as_ref().map(projection::environments).unwrap_or_default(),
        turn_id: state.turn.as_ref().map(|turn| turn.id.to_string()),
        turns: standing.summary.as_ref().map_or(0, |summary| summary.turns),
        created_by: standing.summary.as_ref().and_then(|summary| summary.by.clone()),
        total_tokens: state.usage.total.total,
        holder: standing.holder.clone().map(|holder| ThreadHolder {
            host: holder.host,
            pid: holder.pid,
            node: holder.node,
            address: holder.address,
            is_here: activity.is_some(),
        }),
    }
}
