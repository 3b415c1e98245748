//! The journal of a thread as it is stored, for clients that fold it themselves, and answers by the ids that stand in it.

use std::sync::Arc;

use outpost_store::ReadError;
use outpost_thread::{ApprovalId, Decision, Raw};
use outpost_wire::Fault;
use outpost_wire::app::Nothing;
use outpost_wire::app::journal::{
    ThreadApprovalAnswer, ThreadApprovalAnswerParams, ThreadEntriesList, ThreadEntriesListParams, ThreadEntriesListResponse,
};
use serde_json::Value;

use super::{loaded, thread_id};
use crate::connection::ClientConnection;
use crate::fault;
use crate::projection::journal_entry;
use crate::table::Table;

/// So many entries are answered with unless the client asks for fewer.
const MOST: u32 = 1000;

pub(super) fn register(table: Table) -> Table {
    table.on::<ThreadEntriesList, _, _>(list).on::<ThreadApprovalAnswer, _, _>(answer)
}

async fn list(connection: Arc<ClientConnection>, params: ThreadEntriesListParams) -> Result<ThreadEntriesListResponse, Fault> {
    let id = thread_id(&params.thread_id)?;
    let store = connection.server.runtime.store_of(id).await;
    let most = params.limit.unwrap_or(MOST).clamp(1, MOST) as usize;
    let mut history = match store.history(id, params.after.unwrap_or_default()).await {
        // Nothing is written down before the first input.
        Err(ReadError::NotFound(_)) if connection.server.runtime.get(id).is_some() => {
            return Ok(ThreadEntriesListResponse { data: Vec::new(), next_after: None });
        }
        other => other.map_err(fault::read)?,
    };
    let mut entries = Vec::new();
    while entries.len() <= most {
        let Some(batch) = history.next().await.map_err(fault::read)? else { break };
        entries.extend(batch.with_gaps());
    }
    let has_more = entries.len() > most;
    entries.truncate(most);
    let next_after = entries.last().filter(|_| has_more).map(|last| last.end());
    Ok(ThreadEntriesListResponse { data: entries.iter().map(journal_entry).collect(), next_after })
}

async fn answer(connection: Arc<ClientConnection>, params: ThreadApprovalAnswerParams) -> Result<Nothing, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    let decision = serde_json::from_value::<Decision>(Value::from(params.decision.as_str()));
    let decision = decision.map_err(|_| Fault::invalid_request(format!("`{}` is not a decision", params.decision)))?;
    live.answer_by(ApprovalId(params.approval_id), decision, params.detail.map(Raw::from), connection.identity.name.clone())
        .await
        .map_err(fault::command)?;
    Ok(Nothing {})
}
