//! How far a thread was read. That is kept with the thread, as a label that only this room understands.

use std::collections::BTreeMap;
use std::sync::Arc;

use outpost_store::Store;
use outpost_thread::{Fact, MetadataChanged, Ordinal, Thread as State};
use outpost_wire::Fault;
use outpost_wire::app::unread::{
    ReadStateOperation, ThreadReadState, ThreadReadStateChanged, ThreadReadStateUpdate, ThreadReadStateUpdateParams,
    ThreadReadStateUpdateResponse, UnreadPosition,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{lifecycle, reading, thread_id};
use crate::connection::ClientConnection;
use crate::fault;
use crate::table::Table;

/// The label.
const LABEL: &str = "outpost.read";

pub(super) fn register(table: Table) -> Table {
    table.on::<ThreadReadStateUpdate, _, _>(update)
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Mark {
    /// How many marks there have been.
    number: u64,
    /// The last entry that was read.
    through: Ordinal,
    /// The user wants to read all of it again.
    is_unread: bool,
}

impl Mark {
    fn of(state: &State) -> Self {
        state.metadata.labels.get(LABEL).and_then(|label| serde_json::from_value(label.clone()).ok()).unwrap_or_default()
    }
}

/// Nothing for a thread in which nothing has happened yet.
pub(super) async fn read_state(store: &Store, state: &State) -> Result<Option<ThreadReadState>, Fault> {
    if state.turns == 0 {
        return Ok(None);
    }
    let mark = Mark::of(state);
    let first_unread = if mark.is_unread { Some(UnreadPosition::ThreadStart) } else { first_after(store, state, mark.through).await? };
    Ok(Some(ThreadReadState { first_unread, revision: format!("{}.{}", mark.number, state.turns) }))
}

/// The first turn that ended after an entry.
async fn first_after(store: &Store, state: &State, through: Ordinal) -> Result<Option<UnreadPosition>, Fault> {
    if through >= state.last {
        return Ok(None);
    }
    let mut history = store.history(state.id, through).await.map_err(fault::read)?;
    while let Some(batch) = history.next().await.map_err(fault::read)? {
        for entry in batch.entries.iter().filter(|entry| entry.ordinal > through && entry.ordinal <= state.last) {
            if let Fact::TurnFinished(end) = &entry.fact
                && let Some(turn) = &end.turn
            {
                return Ok(Some(UnreadPosition::Turn { turn_id: turn.to_string() }));
            }
        }
    }
    Ok(None)
}

async fn update(connection: Arc<ClientConnection>, params: ThreadReadStateUpdateParams) -> Result<ThreadReadStateUpdateResponse, Fault> {
    let server = &connection.server;
    let id = thread_id(&params.thread_id)?;
    let (state, _, store) = reading::state_of(server, id).await?;
    let now = read_state(&store, &state).await?.ok_or_else(|| Fault::invalid_request("thread read state unavailable"))?;
    if now.revision != params.expected_revision {
        let data = json!({"reason": "readStateConflict", "readState": now});
        return Err(Fault { data: Some(data), ..Fault::invalid_request("read state changed") });
    }
    let before = Mark::of(&state);
    let number = before.number + 1;
    let mark = match params.operation {
        ReadStateOperation::Read => Mark { number, through: state.last, is_unread: false },
        ReadStateOperation::Unread => Mark { number, through: before.through, is_unread: true },
    };
    let labels = BTreeMap::from([(LABEL.to_owned(), json!(mark))]);
    lifecycle::describe(server, id, MetadataChanged { labels, ..MetadataChanged::default() }).await?;
    let (state, _, store) = reading::state_of(server, id).await?;
    let read_state = read_state(&store, &state).await?.ok_or_else(|| Fault::invalid_request("thread read state unavailable"))?;
    server.broadcast(&ThreadReadStateChanged { thread_id: params.thread_id, read_state: read_state.clone() }.into());
    Ok(ThreadReadStateUpdateResponse { read_state })
}
