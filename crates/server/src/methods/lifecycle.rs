//! Naming, archiving and removing threads, and no longer hearing of them.

use std::sync::Arc;

use outpost_runtime::run_uncancelled;
use outpost_store::{ClaimMode, FactsAside, Need, append_aside};
use outpost_thread::{InterruptReason, MetadataChanged, ThreadId};
use outpost_wire::Fault;
use outpost_wire::app::event::{ThreadArchived, ThreadDeleted, ThreadNameUpdated, ThreadUnarchived};
use outpost_wire::app::thread::{
    ThreadArchive, ThreadDelete, ThreadNameSet, ThreadNameSetParams, ThreadResponse, ThreadUnarchive, ThreadUnsubscribe,
    ThreadUnsubscribeResponse, UnsubscribeStatus,
};
use outpost_wire::app::{Nothing, ThreadParams};

use super::{reading, thread_id};
use crate::connection::ClientConnection;
use crate::fault;
use crate::projection::{self, ThreadFacts};
use crate::questions;
use crate::server::ServerShared;
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table
        .on::<ThreadArchive, _, _>(archive)
        .on::<ThreadUnarchive, _, _>(unarchive)
        .on::<ThreadDelete, _, _>(delete)
        .on::<ThreadNameSet, _, _>(set_name)
        .on::<ThreadUnsubscribe, _, _>(unsubscribe)
}

/// Writes a change of a thread's description, loaded or not.
pub(super) async fn describe(server: &ServerShared, id: ThreadId, change: MetadataChanged) -> Result<(), Fault> {
    if let Some(live) = server.runtime.get(id) {
        return live.change(vec![change.into()]).await.map_err(fault::command);
    }
    server.runtime.ended(id).await;
    let (store, at) = (server.runtime.store().clone(), (server.clock)());
    run_uncancelled(async move {
        let lease = store.claim(id, ClaimMode::IfFree).await.map_err(fault::claim)?;
        let written = async {
            let last = store.head(id).await.map_err(fault::read)?.last;
            let aside = FactsAside { last, at, facts: vec![change.into()], need: Need::Durable };
            append_aside(&store, &lease, aside).await.map_err(|error| fault::append(&error))
        };
        let written = written.await;
        store.release(lease).await;
        written.map(drop)
    })
    .await
}

/// Whether a thread that is stored is archived; nothing if it is not stored.
async fn is_archived(server: &ServerShared, id: ThreadId) -> Result<Option<bool>, Fault> {
    Ok(server.runtime.store().summary(id).await.map_err(fault::read).ok().flatten().map(|summary| summary.archived))
}

async fn archive(connection: Arc<ClientConnection>, params: ThreadParams) -> Result<Nothing, Fault> {
    let server = &connection.server;
    let id = thread_id(&params.thread_id)?;
    is_archived(server, id).await?.ok_or_else(|| fault::no_rollout(id))?;
    describe(server, id, MetadataChanged { archived: Some(true), ..MetadataChanged::default() }).await?;
    unload(server, id).await;
    server.broadcast(&ThreadArchived { thread_id: id.to_string() }.into());
    Ok(Nothing {})
}

/// Ends a thread and its agents here; nothing of them is lost.
async fn unload(server: &ServerShared, id: ThreadId) {
    let tree = server.runtime.subtree(id).await.unwrap_or_else(|_| vec![id]);
    for id in tree {
        server.runtime.unload(id, InterruptReason::Shutdown).await;
    }
}

async fn unarchive(connection: Arc<ClientConnection>, params: ThreadParams) -> Result<ThreadResponse, Fault> {
    let server = &connection.server;
    let id = thread_id(&params.thread_id)?;
    if is_archived(server, id).await? != Some(true) {
        return Err(fault::no_archived_rollout(id));
    }
    describe(server, id, MetadataChanged { archived: Some(false), ..MetadataChanged::default() }).await?;
    server.broadcast(&ThreadUnarchived { thread_id: id.to_string() }.into());
    let (state, status, store) = reading::state_of(server, id).await?;
    let shown = ThreadFacts { status, path: reading::path(&store, id), ..ThreadFacts::default() };
    Ok(ThreadResponse { thread: projection::thread(&state, shown, &server.defaults) })
}

async fn delete(connection: Arc<ClientConnection>, params: ThreadParams) -> Result<Nothing, Fault> {
    let server = &connection.server;
    let id = thread_id(&params.thread_id)?;
    let is_kept = is_archived(server, id).await?.is_some();
    if !is_kept && server.runtime.get(id).is_none() && !server.runtime.is_ephemeral(id).await {
        return Err(fault::no_rollout(id));
    }
    let store = server.runtime.store_of(id).await;
    unload(server, id).await;
    if is_kept || server.runtime.is_ephemeral(id).await {
        store.delete(id, ClaimMode::IfFree).await.map_err(fault::delete)?;
    }
    server.broadcast(&ThreadDeleted { thread_id: id.to_string() }.into());
    Ok(Nothing {})
}

async fn set_name(connection: Arc<ClientConnection>, params: ThreadNameSetParams) -> Result<Nothing, Fault> {
    let server = &connection.server;
    let id = thread_id(&params.thread_id)?;
    let name = params.name.trim().to_owned();
    if name.is_empty() {
        return Err(Fault::invalid_request("thread name must not be empty"));
    }
    describe(server, id, MetadataChanged { name: Some(Some(name.clone())), ..MetadataChanged::default() }).await?;
    server.broadcast(&ThreadNameUpdated { thread_id: id.to_string(), thread_name: Some(name) }.into());
    Ok(Nothing {})
}

async fn unsubscribe(connection: Arc<ClientConnection>, params: ThreadParams) -> Result<ThreadUnsubscribeResponse, Fault> {
    let id = thread_id(&params.thread_id)?;
    let ended = connection.unsubscribe(id);
    ended.iter().for_each(|thread| questions::settle(&connection.server, *thread));
    let status = if ended.contains(&id) {
        UnsubscribeStatus::Unsubscribed
    } else if connection.server.runtime.get(id).is_some() {
        UnsubscribeStatus::NotSubscribed
    } else {
        UnsubscribeStatus::NotLoaded
    };
    Ok(ThreadUnsubscribeResponse { status })
}
