//! Questions aside, and giving them up.

use std::sync::Arc;

use outpost_rpc::HandlerOutcome;
use outpost_runtime::live::{CommandError, Sample};
use outpost_wire::Fault;
use outpost_wire::app::sample::{ThreadSample, ThreadSampleCancel, ThreadSampleCancelParams, ThreadSampleParams, ThreadSampleResponse};
use outpost_wire::app::turn::TurnStatus;
use outpost_wire::app::{Nothing, SortDirection};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::pages::{self, TurnPageRequest};
use super::{loaded, reading};
use crate::connection::ClientConnection;
use crate::fault;
use crate::table::{Sent, Table};

/// A question may have so many bytes.
const LARGEST: usize = 4000;

pub(super) fn register(table: Table) -> Table {
    table.on_request::<ThreadSample, _, _>(ask).on::<ThreadSampleCancel, _, _>(give_up)
}

async fn ask(
    connection: Arc<ClientConnection>,
    sent: Sent,
    params: ThreadSampleParams,
) -> Result<HandlerOutcome<ThreadSampleResponse>, Fault> {
    let server = &connection.server;
    let live = loaded(&connection, &params.thread_id).await?;
    if params.prompt.trim().is_empty() || params.prompt.len() > LARGEST {
        return Err(Fault::invalid_request(format!("the prompt must have between 1 and {LARGEST} bytes")));
    }
    let (state, _, store) = reading::state_of(server, live.id()).await?;
    let wanted = TurnPageRequest { place: None, limit: 1, direction: SortDirection::Desc };
    let last = pages::page(server, &store, &state, &wanted).await?.turns.pop();
    if !last.is_some_and(|turn| turn.id == params.expected_turn_id && turn.status != TurnStatus::InProgress) {
        return Err(Fault::invalid_request("expectedTurnId must name the latest finished turn of a thread in which none is running"));
    }
    let given_up = CancellationToken::new();
    let name = connection.belongings.samples.take(&json!(sent.id).to_string(), given_up.clone());
    let name = name.ok_or_else(|| Fault::invalid_request("another request with this id is under way"))?;
    let sampled = given_up.run_until_cancelled(live.sample(Sample { prompt: params.prompt, effort: params.effort })).await;
    drop(name);
    let sampled = sampled.ok_or_else(|| Fault::internal("the question was given up"))?;
    let sampled = sampled.map_err(|error| match error {
        CommandError::Invalid(why) => Fault::internal(why.to_string()),
        other => fault::command(other),
    })?;
    let answer = ThreadSampleResponse {
        source_turn_id: params.expected_turn_id,
        response_id: server.runtime.new_id(),
        text: sampled.text,
        input_tokens: Some(sampled.usage.input_tokens),
        cached_input_tokens: Some(sampled.usage.cached_input_tokens),
        output_tokens: Some(sampled.usage.output_tokens),
    };
    Ok(answer.into())
}

async fn give_up(connection: Arc<ClientConnection>, params: ThreadSampleCancelParams) -> Result<Nothing, Fault> {
    if let Some(sample) = connection.belongings.samples.remove(&params.request_id.to_string()) {
        sample.cancel();
    }
    Ok(Nothing {})
}
