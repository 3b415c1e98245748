//! Reading threads: one, lists of them, their turns, their items, whether they are whole, and why they worked where they did.

use std::sync::Arc;

use outpost_runtime::live::ThreadActivity;
use outpost_store::{Ancestry, Damage, Direction, ListCursor, ListOrder, ListQuery, ListScope, ReadError, Store, ThreadSummary};
use outpost_thread::{DamagedRange, Fact, Ordinal, Thread as State, ThreadId, TurnId};
use outpost_wire::Fault;
use outpost_wire::app::thread::{
    InitialTurnsPage, StepEnvironment, StepSeen, ThreadDamage, ThreadItemEntry, ThreadItemsList, ThreadItemsListParams,
    ThreadItemsListResponse, ThreadList, ThreadListParams, ThreadListResponse, ThreadLoadedList, ThreadLoadedListParams,
    ThreadLoadedListResponse, ThreadRead, ThreadReadParams, ThreadReadResponse, ThreadSortKey, ThreadTurnsList, ThreadTurnsListParams,
    ThreadTurnsListResponse, ThreadVerify, ThreadVerifyResponse, ThreadWhy, ThreadWhyParams, ThreadWhyResponse,
};
use outpost_wire::app::turn::{ItemsView, Turn};
use outpost_wire::app::{SortDirection, ThreadParams};
use serde_json::Value;

use super::pages::{self, PageCursor, TurnPageRequest};
use super::{thread_id, unread};
use crate::connection::ClientConnection;
use crate::fault;
use crate::projection::{self, ClientMessage, Projector, ThreadFacts, Turns};
use crate::server::ServerShared;
use crate::subscription::{self, ThreadOpening};
use crate::table::Table;

/// Rows of a page, if the client does not say.
const PAGE: u32 = 25;
const LARGEST_PAGE: u32 = 1000;

pub(crate) fn register(table: Table) -> Table {
    table
        .on::<ThreadRead, _, _>(read)
        .on::<ThreadList, _, _>(list)
        .on::<ThreadLoadedList, _, _>(loaded_list)
        .on::<ThreadTurnsList, _, _>(turns_list)
        .on::<ThreadItemsList, _, _>(items_list)
        .on::<ThreadVerify, _, _>(verify)
        .on::<ThreadWhy, _, _>(why)
}

/// The journal of a thread, where there is a file.
pub(crate) fn path(store: &Store, id: ThreadId) -> Option<String> {
    match store {
        Store::Local(store) => store.journal(id).map(|path| path.display().to_string()),
        Store::Memory(_) | Store::Postgres(_) => None,
    }
}

/// All turns of a thread, and what of it cannot be read.
#[derive(Default)]
pub(crate) struct ReadTurns {
    pub turns: Turns,
    pub damage: Vec<DamagedRange>,
}

/// Everything that was told of a thread up to an entry.
pub(crate) async fn past(server: &ServerShared, store: &Store, id: ThreadId, until: Ordinal) -> Result<ReadTurns, Fault> {
    let mut projector = Projector::new(id, server.defaults.clone()).without_diffs();
    let mut past = ReadTurns::default();
    let mut history = match store.history(id, 0).await {
        // Nothing is written down before the first input.
        Err(ReadError::NotFound(_)) => return Ok(past),
        other => other.map_err(fault::read)?,
    };
    while let Some(batch) = history.next().await.map_err(fault::read)? {
        past.damage.extend(batch.damage.iter().filter(|damage| damage.loses_entries()).map(Damage::range));
        for entry in batch.with_gaps().iter().filter(|entry| entry.ordinal <= until) {
            past.turns.take(projector.entry(entry));
        }
    }
    Ok(past)
}

/// What is told of a thread since a moment that its state is known of.
pub(crate) async fn told_since(
    server: &ServerShared,
    opening: &ThreadOpening,
    then: &outpost_thread::Thread,
) -> Result<Vec<ClientMessage>, Fault> {
    let recent = subscription::recent(&opening.store, then).await.map_err(fault::read)?;
    let mut projector = Projector::at(then, &recent, server.defaults.clone());
    let mut out = Vec::new();
    let mut history = opening.store.history(then.id, then.last).await.map_err(fault::read)?;
    while let Some(batch) = history.next().await.map_err(fault::read)? {
        for entry in batch.entries.iter().filter(|entry| entry.ordinal <= opening.state.last) {
            out.extend(projector.entry(entry).into_iter().filter(|told| matches!(told, ClientMessage::Notice(_))));
        }
    }
    Ok(out)
}

/// What was told after an entry, as it was told then; only what is still being asked is not told again here.
pub(crate) async fn told_after(server: &ServerShared, opening: &ThreadOpening, after: Ordinal) -> Result<Vec<ClientMessage>, Fault> {
    let id = opening.state.id;
    let mut projector = Projector::new(id, server.defaults.clone());
    let mut out = Vec::new();
    let mut history = match opening.store.history(id, 0).await {
        Err(ReadError::NotFound(_)) => return Ok(out),
        other => other.map_err(fault::read)?,
    };
    while let Some(batch) = history.next().await.map_err(fault::read)? {
        for entry in batch.with_gaps().iter().filter(|entry| entry.ordinal <= opening.state.last) {
            let told = projector.entry(entry);
            if entry.ordinal > after {
                out.extend(told.into_iter().filter(|told| matches!(told, ClientMessage::Notice(_))));
            }
        }
    }
    Ok(out)
}

/// The page that comes with a resumed thread.
pub(crate) fn first_page(turns: Vec<Turn>, wanted: &InitialTurnsPage) -> Vec<Turn> {
    let request = Slice { cursor: None, limit: wanted.limit, direction: wanted.sort_direction.unwrap_or(SortDirection::Desc) };
    let page = request.of(turns).map(|page| page.data).unwrap_or_default();
    page.into_iter().map(|turn| viewed(turn, wanted.items_view)).collect()
}

fn viewed(turn: Turn, view: Option<ItemsView>) -> Turn {
    match view.unwrap_or_default() {
        ItemsView::Full => turn,
        ItemsView::Summary => projection::only_last_message(turn),
        ItemsView::NotLoaded => projection::without_items(turn),
    }
}

/// A thread as it stands: from its driver if it is loaded, else from the store.
pub(crate) async fn state_of(server: &ServerShared, id: ThreadId) -> Result<(State, Option<ThreadActivity>, Store), Fault> {
    if let Some(live) = server.runtime.get(id)
        && let Ok(state) = live.snapshot().await
    {
        return Ok((state, Some(live.status()), server.runtime.store_of(id).await));
    }
    let store = server.runtime.store().clone();
    match outpost_store::open(&store, id).await {
        Ok(opened) => Ok((opened.thread, None, store)),
        Err(ReadError::NotFound(_)) => Err(fault::thread_not_loaded(id)),
        Err(error) => Err(fault::read(error)),
    }
}

async fn read(connection: Arc<ClientConnection>, params: ThreadReadParams) -> Result<ThreadReadResponse, Fault> {
    let server = &connection.server;
    let id = thread_id(&params.thread_id)?;
    let (state, status, store) = state_of(server, id).await?;
    let ephemeral = server.runtime.is_ephemeral(id).await;
    if params.include_turns && ephemeral {
        return Err(Fault::invalid_request("ephemeral threads do not support includeTurns"));
    }
    let past = if params.include_turns { past(server, &store, id, state.last).await? } else { ReadTurns::default() };
    let (turns, mut damage) = (past.turns.into_turns(), past.damage);
    let is_marked = async || matches!(store.summary(id).await, Ok(Some(ThreadSummary { damaged: true, .. })));
    if !params.include_turns && state.damage.is_empty() && is_marked().await {
        // Only who reads all of it can say what is missing.
        let verdict = store.verify(id, None).await.map_err(fault::read)?;
        damage = verdict.damage.iter().filter(|(_, damage)| damage.loses_entries()).map(|(_, damage)| damage.range()).collect();
    }
    let shown = ThreadFacts { status, ephemeral, path: path(&store, id), turns, damage };
    let asks = connection.client().is_some_and(|client| client.experimental);
    let read_state = if asks { unread::read_state(&store, &state).await? } else { None };
    Ok(ThreadReadResponse { thread: projection::thread(&state, shown, &server.defaults), read_state })
}

async fn list(connection: Arc<ClientConnection>, params: ThreadListParams) -> Result<ThreadListResponse, Fault> {
    let server = &connection.server;
    params.search_term.as_deref().map(fault::search_term).transpose()?;
    let after = match &params.cursor {
        Some(text) => Some(text.parse::<ListCursor>().map_err(|_| fault::cursor(text))?),
        None => None,
    };
    let kin = match (&params.parent_thread_id, &params.ancestor_thread_id) {
        (Some(parent), _) => Some(Ancestry::ChildrenOf(thread_id(parent)?)),
        (None, Some(ancestor)) => Some(Ancestry::DescendantsOf(thread_id(ancestor)?)),
        (None, None) => None,
    };
    let kinds = params.source_kinds.unwrap_or_default();
    let wants_agents = kin.is_some() || kinds.iter().any(|kind| kind.starts_with("subAgent"));
    let query = ListQuery {
        shelf: if params.archived.unwrap_or(false) { ListScope::Archived } else { ListScope::Active },
        order: match params.sort_key {
            None | Some(ThreadSortKey::CreatedAt | ThreadSortKey::SectionPosition) => ListOrder::Created,
            Some(ThreadSortKey::UpdatedAt) => ListOrder::Updated,
            Some(ThreadSortKey::RecencyAt) => ListOrder::Recency,
        },
        direction: match params.sort_direction {
            None | Some(SortDirection::Desc) => Direction::NewestFirst,
            Some(SortDirection::Asc) => Direction::OldestFirst,
        },
        sources: sources(&kinds),
        cwds: params.cwd.map(Into::into).unwrap_or_default(),
        kin,
        search: params.search_term.filter(|term| !term.trim().is_empty()),
        limit: params.limit.unwrap_or(PAGE).clamp(1, LARGEST_PAGE) as usize,
        after,
    };
    let store = server.runtime.store();
    let mut page = store.list(query).await.map_err(fault::read)?;
    if let Some(wanted) = params.originators.filter(|wanted| !wanted.is_empty()) {
        page.threads = made_by(store, page.threads, &wanted).await;
    }
    let providers = params.model_providers.unwrap_or_default();
    let excluded = params.excluded_thread_ids.unwrap_or_default();
    let shown = |row: &ThreadSummary| {
        let status = server.runtime.get(row.id).map(|live| live.status());
        projection::summary(row, ThreadFacts { status, path: path(store, row.id), ..ThreadFacts::default() }, &server.defaults)
    };
    let data = page
        .threads
        .iter()
        .filter(|row| wants_agents || row.parent.is_none())
        .filter(|row| !excluded.contains(&row.id.to_string()))
        .map(shown)
        .filter(|thread| providers.is_empty() || providers.contains(&thread.model_provider))
        .collect();
    Ok(ThreadListResponse { data, next_cursor: page.next.map(|next| next.to_string()), backwards_cursor: None })
}

/// Those of a page that these programs made. The list does not say who made a thread; its first entry does.
async fn made_by(store: &Store, rows: Vec<ThreadSummary>, wanted: &[String]) -> Vec<ThreadSummary> {
    let mut kept = Vec::new();
    for row in rows {
        let first = store.head(row.id).await.ok().and_then(|head| head.first);
        let originator = first.and_then(|entry| match entry.fact {
            Fact::ThreadCreated(fact) => fact.originator,
            Fact::ThreadForked(fact) => fact.originator,
            _ => None,
        });
        if originator.is_some_and(|own| wanted.contains(&own)) {
            kept.push(row);
        }
    }
    kept
}

/// Kinds of sources as lists keep them: as one word.
pub(crate) fn sources(kinds: &[String]) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for kind in kinds {
        let word = if kind.starts_with("subAgent") { "subAgent" } else { kind.as_str() };
        // To clients of this protocol, threads of an editor and of this server are the same thing.
        let more: &[&str] = match word {
            "vscode" => &["vscode", "appServer"],
            other => &[other],
        };
        words.extend(more.iter().map(|word| (*word).to_owned()));
    }
    words
}

async fn loaded_list(connection: Arc<ClientConnection>, params: ThreadLoadedListParams) -> Result<ThreadLoadedListResponse, Fault> {
    let after =
        params.cursor.as_deref().map(thread_id).transpose().map_err(|_| fault::cursor(params.cursor.as_deref().unwrap_or_default()))?;
    let mut ids = connection.server.runtime.loaded();
    ids.retain(|id| after.is_none_or(|after| *id > after));
    let limit = params.limit.map_or(usize::MAX, |limit| limit.max(1) as usize);
    let has_more = ids.len() > limit;
    ids.truncate(limit);
    let next_cursor = ids.last().filter(|_| has_more).map(ToString::to_string);
    Ok(ThreadLoadedListResponse { data: ids.iter().map(ToString::to_string).collect(), next_cursor })
}

/// A page of a list that is at hand. Cursors are places between its rows, counted from the beginning.
struct Slice {
    cursor: Option<usize>,
    limit: Option<u32>,
    direction: SortDirection,
}

struct Sliced<T> {
    data: Vec<T>,
    next: Option<String>,
    back: Option<String>,
}

impl Slice {
    fn read(cursor: Option<&str>, limit: Option<u32>, direction: SortDirection) -> Result<Self, Fault> {
        let cursor = cursor.map(|text| text.parse().map_err(|_| fault::cursor(text))).transpose()?;
        Ok(Self { cursor, limit, direction })
    }

    fn of<T>(&self, mut rows: Vec<T>) -> Result<Sliced<T>, Fault> {
        let limit = self.limit.unwrap_or(PAGE).clamp(1, LARGEST_PAGE) as usize;
        let total = rows.len();
        let (begin, end) = match self.direction {
            SortDirection::Asc => {
                let begin = self.cursor.unwrap_or(0).min(total);
                (begin, total.min(begin + limit))
            }
            SortDirection::Desc => {
                let end = self.cursor.unwrap_or(total).min(total);
                (end.saturating_sub(limit), end)
            }
        };
        rows.truncate(end);
        let mut data = rows.split_off(begin);
        let (next, back) = match self.direction {
            SortDirection::Asc => (end, begin),
            SortDirection::Desc => {
                data.reverse();
                (begin, end)
            }
        };
        let has_more = match self.direction {
            SortDirection::Asc => end < total,
            SortDirection::Desc => begin > 0,
        };
        Ok(Sliced { data, next: has_more.then(|| next.to_string()), back: (total > 0).then(|| back.to_string()) })
    }
}

/// A thread whose past can be read.
async fn materialized(server: &ServerShared, id: ThreadId) -> Result<(State, Store), Fault> {
    let (state, _, store) = state_of(server, id).await?;
    if state.user_messages == 0 && state.turns == 0 && state.turn.is_none() {
        return Err(fault::not_materialized(id));
    }
    Ok((state, store))
}

async fn turns_list(connection: Arc<ClientConnection>, params: ThreadTurnsListParams) -> Result<ThreadTurnsListResponse, Fault> {
    let id = thread_id(&params.thread_id)?;
    let place = params.cursor.as_deref().map(|text| text.parse::<PageCursor>().map_err(|_| fault::cursor(text))).transpose()?;
    let limit = params.limit.unwrap_or(PAGE).clamp(1, LARGEST_PAGE) as usize;
    let wanted = TurnPageRequest { place, limit, direction: params.sort_direction.unwrap_or(SortDirection::Desc) };
    let (state, store) = materialized(&connection.server, id).await?;
    let page = pages::page(&connection.server, &store, &state, &wanted).await?;
    let data = page.turns.into_iter().map(|turn| viewed(turn, Some(params.items_view.unwrap_or(ItemsView::Summary)))).collect();
    Ok(ThreadTurnsListResponse { data, next_cursor: page.next, backwards_cursor: page.back })
}

async fn items_list(connection: Arc<ClientConnection>, params: ThreadItemsListParams) -> Result<ThreadItemsListResponse, Fault> {
    let id = thread_id(&params.thread_id)?;
    let cursor = match &params.cursor {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => return Err(fault::cursor(&other.to_string())),
    };
    let slice = Slice::read(cursor.as_deref(), params.limit, params.sort_direction.unwrap_or(SortDirection::Asc))?;
    let (state, store) = materialized(&connection.server, id).await?;
    let mut all: Vec<ThreadItemEntry> = past(&connection.server, &store, id, state.last).await?.turns.into_items();
    if let Some(turn) = &params.turn_id {
        all.retain(|entry| entry.turn_id == *turn);
    }
    let page = slice.of(all)?;
    Ok(ThreadItemsListResponse { data: page.data, next_cursor: page.next, backwards_cursor: page.back })
}

async fn verify(connection: Arc<ClientConnection>, params: ThreadParams) -> Result<ThreadVerifyResponse, Fault> {
    let id = thread_id(&params.thread_id)?;
    let store = connection.server.runtime.store();
    let verdict = store.verify(id, store.indexed_last(id).await).await.map_err(fault::read)?;
    let whole = verdict.is_whole();
    let damage = verdict.damage.iter().map(|(thread, damage)| {
        let range = damage.range();
        ThreadDamage { thread_id: thread.to_string(), from: range.from, to: range.to, what: range.what }
    });
    Ok(ThreadVerifyResponse {
        whole,
        entries: verdict.entries,
        ordinal: verdict.last,
        bytes: verdict.bytes,
        damage: damage.collect(),
        given_up: verdict.given_up,
    })
}

async fn why(connection: Arc<ClientConnection>, params: ThreadWhyParams) -> Result<ThreadWhyResponse, Fault> {
    let id = thread_id(&params.thread_id)?;
    let (state, _, store) = state_of(&connection.server, id).await?;
    let wanted = params.turn_id.map(TurnId);
    let (mut turn, mut own, mut steps) = (None, None, Vec::new());
    let mut history = store.history(id, 0).await.map_err(fault::read)?;
    while let Some(batch) = history.next().await.map_err(fault::read)? {
        for entry in &batch.entries {
            match &entry.fact {
                Fact::TurnStarted(fact) if wanted.as_ref().is_none_or(|wanted| *wanted == fact.turn) => {
                    turn = Some(fact.turn.clone());
                    own = fact.selection.clone();
                    steps.clear();
                }
                Fact::StepCaptured(fact) if Some(&fact.turn) == turn.as_ref() => steps.push(StepSeen {
                    step: fact.step,
                    ordinal: entry.ordinal,
                    environments: fact.environments.iter().map(seen).collect(),
                    detail: fact.detail.as_ref().and_then(|detail| detail.read().ok()),
                }),
                _ => {}
            }
        }
    }
    if let (Some(wanted), None) = (&wanted, &turn) {
        return Err(Fault::invalid_request(format!("turn not found: {wanted}")));
    }
    let capabilities = match params.capabilities {
        true => Some((&connection.server.runtime.why(id).await.map_err(fault::thread)?).into()),
        false => None,
    };
    Ok(ThreadWhyResponse {
        capabilities,
        turn_id: turn.map(|turn| turn.to_string()),
        turn_environments: own.as_ref().map(projection::environments),
        environments: state.selection.as_ref().map(projection::environments),
        steps,
    })
}

fn seen(environment: &outpost_thread::StepEnvironment) -> StepEnvironment {
    StepEnvironment {
        environment_id: environment.shown(),
        state: environment.state.clone(),
        generation: environment.generation,
        executor_id: environment.executor.clone(),
    }
}
