//! Goals and the description of threads. A goal is kept with its thread, as a label in its journal.

use std::sync::Arc;

use outpost_thread::{MetadataChanged, Raw, Thread as State, ThreadId};
use outpost_wire::Fault;
use outpost_wire::app::ThreadParams;
use outpost_wire::app::goals::{
    GitInfoUpdate, ThreadGoal, ThreadGoalClear, ThreadGoalClearResponse, ThreadGoalCleared, ThreadGoalGet, ThreadGoalResponse,
    ThreadGoalSet, ThreadGoalSetParams, ThreadGoalSetResponse, ThreadGoalStatus, ThreadGoalUpdated, ThreadMetadataUpdate,
    ThreadMetadataUpdateParams,
};
use outpost_wire::app::thread::ThreadResponse;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::lifecycle::describe;
use super::{reading, thread_id};
use crate::connection::ClientConnection;
use crate::projection::{self, ThreadFacts};
use crate::server::ServerShared;
use crate::table::Table;

const LABEL: &str = "goal";

pub(super) fn register(table: Table) -> Table {
    table
        .on::<ThreadGoalGet, _, _>(get)
        .on::<ThreadGoalSet, _, _>(set)
        .on::<ThreadGoalClear, _, _>(clear)
        .on::<ThreadMetadataUpdate, _, _>(update)
}

/// As it is kept.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    objective: String,
    status: ThreadGoalStatus,
    token_budget: Option<u64>,
    created_at: u64,
    updated_at: u64,
    /// What the thread had used when the goal was set.
    tokens_before: u64,
}

fn kept(state: &State) -> Option<Kept> {
    state.metadata.labels.get(LABEL).and_then(|label| serde_json::from_value(label.clone()).ok())
}

fn shown(state: &State, kept: Kept, now: u64) -> ThreadGoal {
    ThreadGoal {
        thread_id: state.id.to_string(),
        tokens_used: state.usage.total.total.saturating_sub(kept.tokens_before),
        time_used_seconds: now.saturating_sub(kept.created_at) / 1000,
        created_at: kept.created_at / 1000,
        updated_at: kept.updated_at / 1000,
        objective: kept.objective,
        status: kept.status,
        token_budget: kept.token_budget,
    }
}

async fn get(connection: Arc<ClientConnection>, params: ThreadParams) -> Result<ThreadGoalResponse, Fault> {
    let server = &connection.server;
    let (state, _, _) = reading::state_of(server, thread_id(&params.thread_id)?).await?;
    Ok(ThreadGoalResponse { goal: kept(&state).map(|kept| shown(&state, kept, (server.clock)())) })
}

async fn set(connection: Arc<ClientConnection>, params: ThreadGoalSetParams) -> Result<ThreadGoalSetResponse, Fault> {
    let server = &connection.server;
    let id = thread_id(&params.thread_id)?;
    let (state, _, _) = reading::state_of(server, id).await?;
    let now = (server.clock)();
    let objective = params.objective.filter(|objective| !objective.trim().is_empty());
    let mut goal = match (kept(&state), objective) {
        (Some(goal), None) => goal,
        (Some(goal), Some(objective)) => Kept { objective, ..goal },
        (None, Some(objective)) => Kept {
            objective,
            status: ThreadGoalStatus::Active,
            token_budget: None,
            created_at: now,
            updated_at: now,
            tokens_before: state.usage.total.total,
        },
        (None, None) => return Err(Fault::invalid_request("the thread has no goal yet: a new one needs an `objective`")),
    };
    goal.status = params.status.unwrap_or(goal.status);
    goal.token_budget = params.token_budget.unwrap_or(goal.token_budget);
    goal.updated_at = now;
    label(server, id, serde_json::to_value(&goal).unwrap_or_default()).await?;
    let goal = shown(&state, goal, now);
    let notice = ThreadGoalUpdated { thread_id: id.to_string(), turn_id: None, goal: goal.clone() }.into();
    server.subscribers(id).iter().for_each(|subscriber| subscriber.tell(&notice));
    Ok(ThreadGoalSetResponse { goal })
}

async fn clear(connection: Arc<ClientConnection>, params: ThreadParams) -> Result<ThreadGoalClearResponse, Fault> {
    let server = &connection.server;
    let id = thread_id(&params.thread_id)?;
    let (state, _, _) = reading::state_of(server, id).await?;
    if kept(&state).is_none() {
        return Ok(ThreadGoalClearResponse { cleared: false });
    }
    label(server, id, Value::Null).await?;
    let notice = ThreadGoalCleared { thread_id: id.to_string() }.into();
    server.subscribers(id).iter().for_each(|subscriber| subscriber.tell(&notice));
    Ok(ThreadGoalClearResponse { cleared: true })
}

async fn label(server: &ServerShared, id: ThreadId, value: Value) -> Result<(), Fault> {
    let change = MetadataChanged { labels: [(LABEL.to_owned(), value)].into(), ..MetadataChanged::default() };
    describe(server, id, change).await
}

async fn update(connection: Arc<ClientConnection>, params: ThreadMetadataUpdateParams) -> Result<ThreadResponse, Fault> {
    let server = &connection.server;
    let id = thread_id(&params.thread_id)?;
    let (state, _, _) = reading::state_of(server, id).await?;
    if let Some(update) = params.git_info {
        let git = repository(state.metadata.git.as_ref(), update);
        describe(server, id, MetadataChanged { git: Some(git.map(Raw::from)), ..MetadataChanged::default() }).await?;
    }
    let (state, status, store) = reading::state_of(server, id).await?;
    let shown = ThreadFacts { status, path: reading::path(&store, id), ..ThreadFacts::default() };
    Ok(ThreadResponse { thread: projection::thread(&state, shown, &server.defaults) })
}

/// What is known of a repository after a change; nothing if nothing is left.
fn repository(known: Option<&Raw>, update: GitInfoUpdate) -> Option<Value> {
    let mut known: Map<String, Value> = known.and_then(|known| known.read().ok()).unwrap_or_default();
    for (name, change) in [("sha", update.sha), ("branch", update.branch), ("originUrl", update.origin_url)] {
        match change {
            Some(Some(value)) => {
                known.insert(name.into(), value.into());
            }
            Some(None) => {
                known.remove(name);
            }
            None => {}
        }
    }
    (!known.is_empty()).then_some(Value::Object(known))
}
