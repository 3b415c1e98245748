//! Inputs that wait for a turn of their own. They are entries of the journal: added and listed, never changed.

use std::sync::Arc;

use outpost_runtime::live::{InputMode, NewInput};
use outpost_store::Store;
use outpost_thread::{Fact, InputOrigin, Raw, Seq, Thread as State};
use outpost_wire::Fault;
use outpost_wire::app::Nothing;
use outpost_wire::app::queue::{
    QueuedSubmission, ThreadQueueAdd, ThreadQueueAddParams, ThreadQueueChanged, ThreadQueueDelete, ThreadQueueDeleteParams,
    ThreadQueueDeleteResponse, ThreadQueueList, ThreadQueueListParams, ThreadQueueListResponse, ThreadQueueReorder,
    ThreadQueueReorderParams, ThreadQueueStart, ThreadQueueStartParams, ThreadQueueStartResponse, ThreadQueueSubmission, ThreadQueueUpdate,
    ThreadQueueUpdateParams,
};
use serde_json::Value;

use super::{loaded, reading, thread_id};
use crate::connection::Connection;
use crate::table::Table;
use crate::{fault, input};

pub fn register(table: Table) -> Table {
    table
        .on::<ThreadQueueAdd, _, _>(add)
        .on::<ThreadQueueList, _, _>(list)
        .on::<ThreadQueueUpdate, _, _>(update)
        .on::<ThreadQueueDelete, _, _>(delete)
        .on::<ThreadQueueReorder, _, _>(reorder)
        .on::<ThreadQueueStart, _, _>(start)
}

async fn add(connection: Arc<Connection>, params: ThreadQueueAddParams) -> Result<ThreadQueueSubmission, Fault> {
    let live = loaded(&connection, &params.thread_id)?;
    if params.input.is_empty() {
        return Err(Fault::invalid_request("input must not be empty"));
    }
    let key = params.client_user_message_id;
    let message = input::message(params.input, None).await?;
    let content = message.content.iter().filter_map(|part| part.read().ok()).collect();
    let new = NewInput {
        mode: InputMode::Queue,
        client_key: Some(key.clone()),
        content: message.content,
        items: message.items,
        ..NewInput::default()
    };
    live.input(new).await.map_err(fault::command)?;
    let state = live.snapshot().await.map_err(fault::command)?;
    let id = state.keys.iter().rev().find(|known| known.key == key).map(|known| known.input.to_string()).unwrap_or_default();
    let notice = ThreadQueueChanged { thread_id: params.thread_id }.into();
    connection.server.subscribers(live.id()).iter().for_each(|subscriber| subscriber.tell(&notice));
    Ok(ThreadQueueSubmission { queued_submission: QueuedSubmission { id, client_user_message_id: key, input: content } })
}

async fn list(connection: Arc<Connection>, params: ThreadQueueListParams) -> Result<ThreadQueueListResponse, Fault> {
    let (state, _, store) = reading::state_of(&connection.server, thread_id(&params.thread_id)?).await?;
    let begin = params.cursor.as_deref().map(|text| text.parse::<usize>().map_err(|_| fault::cursor(text))).transpose()?.unwrap_or(0);
    let limit = params.limit.unwrap_or(25).clamp(1, 1000) as usize;
    let mut data = waiting(&state, &store).await?;
    let next_cursor = (data.len() > begin + limit).then(|| (begin + limit).to_string());
    data = data.into_iter().skip(begin).take(limit).collect();
    Ok(ThreadQueueListResponse { data, next_cursor })
}

/// What the user said and no turn has taken up.
async fn waiting(state: &State, store: &Store) -> Result<Vec<QueuedSubmission>, Fault> {
    let queued: Vec<Seq> = state.queued.iter().filter(|input| input.origin == InputOrigin::User).map(|input| input.seq).collect();
    if queued.is_empty() {
        return Ok(vec![]);
    }
    let entries = store.entries(state.id, queued).await.map_err(fault::read)?;
    let submission = |fact: Fact| match fact {
        Fact::InputReceived(input) => Some(QueuedSubmission {
            id: input.input.to_string(),
            client_user_message_id: input.client_key.unwrap_or_default(),
            input: input.content.iter().filter_map(|part: &Raw| part.read::<Value>().ok()).collect(),
        }),
        _ => None,
    };
    Ok(entries.into_iter().filter_map(|entry| submission(entry.fact)).collect())
}

fn written_down() -> Fault {
    Fault::invalid_request("what waits is written down already and cannot be changed, moved or taken back; interrupt its turn instead")
}

async fn update(connection: Arc<Connection>, params: ThreadQueueUpdateParams) -> Result<ThreadQueueSubmission, Fault> {
    loaded(&connection, &params.thread_id)?;
    Err(written_down())
}

async fn delete(connection: Arc<Connection>, params: ThreadQueueDeleteParams) -> Result<ThreadQueueDeleteResponse, Fault> {
    loaded(&connection, &params.thread_id)?;
    Err(written_down())
}

async fn reorder(connection: Arc<Connection>, params: ThreadQueueReorderParams) -> Result<Nothing, Fault> {
    loaded(&connection, &params.thread_id)?;
    Err(written_down())
}

async fn start(connection: Arc<Connection>, params: ThreadQueueStartParams) -> Result<ThreadQueueStartResponse, Fault> {
    loaded(&connection, &params.thread_id)?;
    Err(Fault::invalid_request("what waits is started by itself as soon as no turn is running"))
}
