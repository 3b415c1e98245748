//! Commands of a thread that outlived their calls: which there are, and ending them.

use std::sync::Arc;

use outpost_runtime::live::{BackgroundProcess, LiveThread};
use outpost_store::Store;
use outpost_thread::{CallStarted, Fact, ThreadId};
use outpost_wire::Fault;
use outpost_wire::app::thread::{
    BackgroundTerminal, BackgroundTerminalsClean, BackgroundTerminalsList, BackgroundTerminalsListParams, BackgroundTerminalsListResponse,
    BackgroundTerminalsTerminate, BackgroundTerminalsTerminateParams, BackgroundTerminalsTerminateResponse,
};
use outpost_wire::app::{Nothing, ThreadParams};

use super::loaded;
use crate::connection::ClientConnection;
use crate::fault;
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table
        .on::<BackgroundTerminalsList, _, _>(list)
        .on::<BackgroundTerminalsTerminate, _, _>(terminate)
        .on::<BackgroundTerminalsClean, _, _>(clean)
}

async fn list(connection: Arc<ClientConnection>, params: BackgroundTerminalsListParams) -> Result<BackgroundTerminalsListResponse, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    Ok(BackgroundTerminalsListResponse { data: of(&connection, &live).await?, next_cursor: None })
}

/// Those of one thread.
pub(super) async fn of(connection: &ClientConnection, live: &LiveThread) -> Result<Vec<BackgroundTerminal>, Fault> {
    let store = connection.server.runtime.store_of(live.id()).await;
    let mut data = Vec::new();
    for terminal in live.terminals().await.map_err(fault::command)? {
        let started = started(&store, live.id(), &terminal).await?;
        data.push(shown(&terminal, started));
    }
    Ok(data)
}

/// The journal knows what a command was.
async fn started(store: &Store, thread: ThreadId, terminal: &BackgroundProcess) -> Result<Option<CallStarted>, Fault> {
    let mut history = store.history(thread, terminal.asked_ordinal).await.map_err(fault::read)?;
    while let Some(batch) = history.next().await.map_err(fault::read)? {
        for entry in batch.entries {
            match entry.fact {
                Fact::CallStarted(fact) if fact.call == terminal.call => return Ok(Some(*fact)),
                _ => {}
            }
        }
    }
    Ok(None)
}

fn shown(terminal: &BackgroundProcess, started: Option<CallStarted>) -> BackgroundTerminal {
    let command = started.as_ref().and_then(CallStarted::command).unwrap_or_default();
    BackgroundTerminal {
        item_id: terminal.call.to_string(),
        process_id: terminal.session.to_string(),
        command: command.command,
        cwd: command.cwd,
        environment_id: started.and_then(|fact| fact.environment).map(|id| id.to_string()),
        os_pid: None,
        cpu_percent: None,
        rss_kb: None,
    }
}

async fn terminate(
    connection: Arc<ClientConnection>,
    params: BackgroundTerminalsTerminateParams,
) -> Result<BackgroundTerminalsTerminateResponse, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    let ended = match params.process_id.parse() {
        Ok(session) => live.terminate(Some(session)).await.map_err(fault::command)?,
        // A name that nothing has.
        Err(_) => 0,
    };
    Ok(BackgroundTerminalsTerminateResponse { terminated: ended > 0 })
}

async fn clean(connection: Arc<ClientConnection>, params: ThreadParams) -> Result<Nothing, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    live.terminate(None).await.map_err(fault::command)?;
    Ok(Nothing {})
}
