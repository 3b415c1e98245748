//! Going on from an earlier turn.

use std::sync::Arc;

use outpost_rpc::HandlerOutcome;
use outpost_runtime::live::CommandError;
use outpost_thread::{InterruptReason, TurnId};
use outpost_wire::Fault;
use outpost_wire::app::SortDirection;
use outpost_wire::app::thread::{ThreadRevert, ThreadRevertParams, ThreadRevertResponse};

use super::pages::{self, TurnPageRequest};
use super::turns::{attend, then_tell};
use super::{loaded, reading};
use crate::connection::ClientConnection;
use crate::fault;
use crate::projection::{self, ThreadFacts};
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table.on_call::<ThreadRevert, _, _>(revert)
}

async fn revert(connection: Arc<ClientConnection>, params: ThreadRevertParams) -> Result<HandlerOutcome<ThreadRevertResponse>, Fault> {
    let server = &connection.server;
    let live = loaded(&connection, &params.thread_id).await?;
    let hold = attend(&connection, &live).await?;
    let before = TurnId(params.before_turn_id);
    let mut done = live.revert(before.clone()).await;
    // What runs now would not count in any case.
    while let Err(CommandError::Busy) = done {
        live.interrupt(None, InterruptReason::User).await.or_else(|error| match error {
            CommandError::NoTurn => Ok(()),
            other => Err(fault::command(other)),
        })?;
        done = live.revert(before.clone()).await;
    }
    done.map_err(fault::command)?;
    let (state, status, store) = reading::state_of(server, live.id()).await?;
    let wanted = TurnPageRequest { place: None, limit: 1, direction: SortDirection::Desc };
    let turns = pages::page(server, &store, &state, &wanted).await?;
    let items = reading::past(server, &store, live.id(), state.last).await?.turns.into_items().len();
    let ephemeral = server.runtime.is_ephemeral(live.id()).await;
    let shown = ThreadFacts { status, ephemeral, path: reading::path(&store, live.id()), turns: vec![], damage: vec![] };
    let output = ThreadRevertResponse {
        thread: projection::thread(&state, shown, &server.defaults),
        turns_backwards_cursor: turns.back,
        items_backwards_cursor: (items > 0).then(|| items.to_string()),
    };
    Ok(then_tell(output, hold))
}
