//! Inputs that wait for a turn of their own. They are entries of the journal, and so is every change of them.
//!
//! Whatever waits is taken up by itself when no turn is running any more. Clients name it as they said it: by its
//! `clientUserMessageId`, which stays when the text is changed.

use std::sync::Arc;

use outpost_rpc::HandlerOutcome;
use outpost_runtime::live::{InputMode, LiveThread, NewInput, QueueChange, QueueChangeResult};
use outpost_store::Store;
use outpost_thread::{Fact, InputId, InputOrigin, Ordinal, QueuedInput, Raw, Thread as State};
use outpost_wire::Fault;
use outpost_wire::app::Nothing;
use outpost_wire::app::queue::{
    QueuedSubmission, ThreadQueueAdd, ThreadQueueAddParams, ThreadQueueDelete, ThreadQueueDeleteParams, ThreadQueueDeleteResponse,
    ThreadQueueList, ThreadQueueListParams, ThreadQueueListResponse, ThreadQueueReorder, ThreadQueueReorderParams, ThreadQueueStart,
    ThreadQueueStartParams, ThreadQueueStartResponse, ThreadQueueSubmission, ThreadQueueUpdate, ThreadQueueUpdateParams,
};
use serde_json::Value;

use super::turns::{attend, begun, then_tell};
use super::{loaded, reading, thread_id};
use crate::connection::ClientConnection;
use crate::table::Table;
use crate::{fault, input};

pub(super) fn register(table: Table) -> Table {
    table
        .on::<ThreadQueueAdd, _, _>(add)
        .on::<ThreadQueueList, _, _>(list)
        .on::<ThreadQueueUpdate, _, _>(update)
        .on::<ThreadQueueDelete, _, _>(delete)
        .on::<ThreadQueueReorder, _, _>(reorder)
        .on_call::<ThreadQueueStart, _, _>(start)
}

/// What clients call an input.
fn name_of(input: &QueuedInput) -> String {
    input.client_key.clone().unwrap_or_else(|| input.id.to_string())
}

/// The user's inputs that wait now, under the names that clients have for them.
async fn named(live: &LiveThread) -> Result<Vec<(String, InputId)>, Fault> {
    let state = live.snapshot().await.map_err(fault::command)?;
    let of_user = state.queued.iter().filter(|input| input.origin == InputOrigin::User);
    Ok(of_user.map(|input| (name_of(input), input.id.clone())).collect())
}

async fn find(live: &LiveThread, name: &str) -> Result<Option<InputId>, Fault> {
    Ok(named(live).await?.into_iter().find(|(own, _)| own == name).map(|(_, id)| id))
}

fn unknown(name: &str) -> Fault {
    Fault::invalid_request(format!("no queued submission `{name}`: it was taken up or deleted, or never there"))
}

async fn add(connection: Arc<ClientConnection>, params: ThreadQueueAddParams) -> Result<ThreadQueueSubmission, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    if params.input.is_empty() {
        return Err(Fault::invalid_request("input must not be empty"));
    }
    if params.client_user_message_id.is_empty() {
        return Err(Fault::invalid_request("clientUserMessageId must not be empty"));
    }
    let key = params.client_user_message_id;
    let message = input::message(params.input, None).await?;
    let content = message.content.iter().filter_map(|part| part.read().ok()).collect();
    let new = NewInput {
        by: connection.identity.name.clone(),
        mode: InputMode::Queue,
        client_key: Some(key.clone()),
        content: message.content,
        items: message.items,
        ..NewInput::default()
    };
    live.input(new).await.map_err(fault::command)?;
    Ok(ThreadQueueSubmission { queued_submission: QueuedSubmission { id: key.clone(), client_user_message_id: key, input: content } })
}

async fn list(connection: Arc<ClientConnection>, params: ThreadQueueListParams) -> Result<ThreadQueueListResponse, Fault> {
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
    let queued: Vec<Ordinal> = state.queued.iter().filter(|input| input.origin == InputOrigin::User).map(|input| input.ordinal).collect();
    if queued.is_empty() {
        return Ok(vec![]);
    }
    let entries = store.entries(state.id, queued).await.map_err(fault::read)?;
    let submission = |fact: Fact| match fact {
        Fact::InputReceived(input) => Some(QueuedSubmission {
            id: input.client_key.clone().unwrap_or_else(|| input.input.to_string()),
            client_user_message_id: input.client_key.unwrap_or_default(),
            input: input.content.iter().filter_map(|part: &Raw| part.read::<Value>().ok()).collect(),
        }),
        _ => None,
    };
    Ok(entries.into_iter().filter_map(|entry| submission(entry.fact)).collect())
}

async fn update(connection: Arc<ClientConnection>, params: ThreadQueueUpdateParams) -> Result<ThreadQueueSubmission, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    if params.input.is_empty() {
        return Err(Fault::invalid_request("input must not be empty"));
    }
    let name = params.queued_submission_id;
    let input = find(&live, &name).await?.ok_or_else(|| unknown(&name))?;
    let message = input::message(params.input, None).await?;
    let content = message.content.iter().filter_map(|part| part.read().ok()).collect();
    let change = QueueChange::Replace { input, content: message.content, items: message.items };
    match live.queue(change).await.map_err(fault::command)? {
        QueueChangeResult::Unknown => Err(unknown(&name)),
        _ => {
            let queued_submission = QueuedSubmission { id: name.clone(), client_user_message_id: name, input: content };
            Ok(ThreadQueueSubmission { queued_submission })
        }
    }
}

/// One that is gone already is no error: that is what was wanted.
async fn delete(connection: Arc<ClientConnection>, params: ThreadQueueDeleteParams) -> Result<ThreadQueueDeleteResponse, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    let Some(input) = find(&live, &params.queued_submission_id).await? else {
        return Ok(ThreadQueueDeleteResponse { deleted: false });
    };
    let done = live.queue(QueueChange::Remove(input)).await.map_err(fault::command)?;
    Ok(ThreadQueueDeleteResponse { deleted: done == QueueChangeResult::Done })
}

async fn reorder(connection: Arc<ClientConnection>, params: ThreadQueueReorderParams) -> Result<Nothing, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    let known = named(&live).await?;
    let id = |name: &String| known.iter().find(|(own, _)| own == name).map(|(_, id)| id.clone()).ok_or_else(|| unknown(name));
    let order = params.queued_submission_ids.iter().map(id).collect::<Result<Vec<_>, Fault>>()?;
    live.queue(QueueChange::Order(order)).await.map_err(fault::command)?;
    Ok(Nothing {})
}

async fn start(
    connection: Arc<ClientConnection>,
    params: ThreadQueueStartParams,
) -> Result<HandlerOutcome<ThreadQueueStartResponse>, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    let input = match &params.queued_submission_id {
        Some(name) => Some(find(&live, name).await?.ok_or_else(|| unknown(name))?),
        None => None,
    };
    let hold = attend(&connection, &live).await?;
    match live.queue(QueueChange::Start(input)).await.map_err(fault::command)? {
        QueueChangeResult::Taken(turn) => Ok(then_tell(ThreadQueueStartResponse { turn: begun(&turn) }, hold)),
        _ => Err(match params.queued_submission_id {
            Some(name) => unknown(&name),
            None => Fault::invalid_request("nothing is queued"),
        }),
    }
}
