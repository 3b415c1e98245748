//! A subscriber of a thread is subscribed to its agents, and to theirs: their events and their questions.
//!
//! An agent is told from its first entry on. Nothing waits for a client: its first events are sent beside everything else.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use outpost_runtime::feed::{FeedReader, Read};
use outpost_runtime::live::LiveThread;
use outpost_runtime::runtime::AgentStart;
use outpost_thread::ThreadId;
use outpost_wire::Fault;
use outpost_wire::app::event::ThreadStarted;

use crate::connection::ClientConnection;
use crate::methods::reading;
use crate::projection::{self, ThreadFacts};
use crate::server::ServerShared;
use crate::subscription::{SubscriptionReason, ThreadOpening};

/// Runs for as long as the server does.
pub(crate) async fn follow(server: Weak<ServerShared>, mut starts: FeedReader<AgentStart>) {
    loop {
        let read = starts.next().await;
        let Some(server) = server.upgrade() else { return };
        match read {
            Read::Event(start) => started(&server, &start).await,
            Read::Missed(count) => {
                tracing::debug!(count, "missed starts of agents; looking for them again");
                for connection in server.connections() {
                    for thread in connection.threads() {
                        join(&connection, thread).await;
                    }
                }
            }
            Read::End => return,
        }
    }
}

async fn started(server: &Arc<ServerShared>, start: &AgentStart) {
    let id = start.thread.id;
    let Some(live) = server.runtime.get(id) else { return };
    if start.is_new {
        let (ephemeral, store) = (server.runtime.is_ephemeral(id).await, server.runtime.store_of(id).await);
        let shown = ThreadFacts { status: Some(live.status()), ephemeral, path: reading::path(&store, id), turns: vec![], damage: vec![] };
        server.broadcast(&ThreadStarted { thread: projection::thread(&start.thread, shown, &server.defaults) }.into());
    }
    for connection in server.subscribers(start.maker) {
        let subscribed = subscribe(&connection, live.clone(), Some(start)).await;
        subscribed.unwrap_or_else(|fault| tracing::debug!(thread = %id, fault = fault.message, "a client does not hear of an agent"));
    }
}

/// Lets a client that hears of a thread hear of its agents that are loaded already, and of theirs.
pub(crate) async fn join(connection: &Arc<ClientConnection>, thread: ThreadId) {
    let mut makers = VecDeque::from([thread]);
    while let Some(maker) = makers.pop_front() {
        for live in connection.server.runtime.agents_of(maker) {
            makers.push_back(live.id());
            let id = live.id();
            let subscribed = subscribe(connection, live, None).await;
            subscribed.unwrap_or_else(|fault| tracing::debug!(thread = %id, fault = fault.message, "a client does not hear of an agent"));
        }
    }
}

/// Tells a client of an agent; with the moment at which it began, everything since then.
async fn subscribe(connection: &Arc<ClientConnection>, live: LiveThread, start: Option<&AgentStart>) -> Result<(), Fault> {
    let Some(maker) = live.maker().filter(|_| !connection.is_subscribed(live.id())) else { return Ok(()) };
    let opening = ThreadOpening::of(connection, live).await?;
    let first = match start {
        Some(start) => reading::told_since(&connection.server, &opening, &start.thread).await?,
        None => Vec::new(),
    };
    let begun = opening.begin(connection, SubscriptionReason::Maker(maker)).await;
    tokio::spawn(begun.tell(first));
    Ok(())
}
