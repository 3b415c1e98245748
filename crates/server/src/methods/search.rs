//! Finding threads, and places in threads.

use std::collections::HashMap;
use std::sync::Arc;

use outpost_store::{Direction, ListCursor, ListOrder, ListQuery, ListScope, ThreadSummary, searchable};
use outpost_thread::Entry;
use outpost_wire::Fault;
use outpost_wire::app::SortDirection;
use outpost_wire::app::item::Item;
use outpost_wire::app::search::{
    TextRange, ThreadItemsRead, ThreadItemsReadParams, ThreadItemsReadResponse, ThreadSearch, ThreadSearchOccurrence,
    ThreadSearchOccurrences, ThreadSearchOccurrencesParams, ThreadSearchOccurrencesResponse, ThreadSearchParams, ThreadSearchResponse,
    ThreadSearchResult,
};
use outpost_wire::app::thread::{ThreadItemEntry, ThreadSortKey};
use serde_json::Value;

use super::{reading, thread_id};
use crate::connection::ClientConnection;
use crate::projection::{self, ThreadFacts};
use crate::server::ServerShared;
use crate::table::Table;
use crate::{excerpt, fault};

pub(super) fn register(table: Table) -> Table {
    table.on::<ThreadSearch, _, _>(threads).on::<ThreadSearchOccurrences, _, _>(occurrences).on::<ThreadItemsRead, _, _>(items)
}

async fn threads(connection: Arc<ClientConnection>, params: ThreadSearchParams) -> Result<ThreadSearchResponse, Fault> {
    let server = &connection.server;
    fault::search_term(&params.search_term)?;
    if params.search_term.trim().is_empty() {
        return Err(Fault::invalid_request("searchTerm must not be empty"));
    }
    let after = params.cursor.as_ref().map(|text| text.parse::<ListCursor>().map_err(|_| fault::cursor(text))).transpose()?;
    let kinds = params.source_kinds.unwrap_or_default();
    let wants_agents = kinds.iter().any(|kind| kind.starts_with("subAgent"));
    let query = ListQuery {
        shelf: if params.archived.unwrap_or(false) { ListScope::Archived } else { ListScope::Active },
        order: match params.sort_key {
            Some(ThreadSortKey::CreatedAt | ThreadSortKey::SectionPosition) => ListOrder::Created,
            Some(ThreadSortKey::UpdatedAt) => ListOrder::Updated,
            None | Some(ThreadSortKey::RecencyAt) => ListOrder::Recency,
        },
        direction: match params.sort_direction {
            None | Some(SortDirection::Desc) => Direction::NewestFirst,
            Some(SortDirection::Asc) => Direction::OldestFirst,
        },
        sources: reading::sources(&kinds),
        search: Some(params.search_term.clone()),
        limit: params.limit.unwrap_or(25).clamp(1, 100) as usize,
        after,
        ..ListQuery::default()
    };
    let store = server.runtime.store();
    let mut page = store.list(query).await.map_err(fault::read)?;
    page.threads.retain(|row| wants_agents || row.parent.is_none());
    let term = params.search_term.as_str();
    let unclear: Vec<_> = page.threads.iter().filter(|row| of_summary(row, term).is_none()).map(|row| row.id).collect();
    // A row without a snippet is better than no answer.
    let mentions = if unclear.is_empty() { HashMap::new() } else { store.mentions(&unclear, term).await.unwrap_or_default() };
    let data = page.threads.iter().map(|row| {
        let shown = ThreadFacts {
            status: server.runtime.get(row.id).map(|live| live.status()),
            path: reading::path(store, row.id),
            ..ThreadFacts::default()
        };
        let snippet = of_summary(row, term).or_else(|| of_entry(mentions.get(&row.id)?, term));
        let snippet = snippet.or_else(|| row.preview.clone()).unwrap_or_default();
        ThreadSearchResult { thread: projection::summary(row, shown, &server.defaults), snippet }
    });
    Ok(ThreadSearchResponse { data: data.collect(), next_cursor: page.next.map(|next| next.to_string()), backwards_cursor: None })
}

/// Where the name or the first words of a thread say what was searched for.
fn of_summary(row: &ThreadSummary, term: &str) -> Option<String> {
    let known = [row.name.as_deref(), row.preview.as_deref()];
    known.into_iter().flatten().find_map(|text| excerpt::first(text, term)).map(|found| found.text)
}

/// Where an entry says it, or at least one word of it: the words may be there, apart from each other.
fn of_entry(entry: &Entry, term: &str) -> Option<String> {
    let text = searchable(entry);
    let mut terms = std::iter::once(term).chain(term.split_whitespace());
    terms.find_map(|term| excerpt::first(&text, term)).map(|found| found.text)
}

/// The text of an item.
fn words(item: &Item) -> String {
    match item {
        Item::UserMessage { content, .. } => {
            content.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect::<Vec<_>>().join("\n")
        }
        Item::AgentMessage { text, .. } => text.clone(),
        _ => String::new(),
    }
}

async fn said(server: &ServerShared, text: &str) -> Result<Vec<ThreadItemEntry>, Fault> {
    let id = thread_id(text)?;
    let (state, _, store) = reading::state_of(server, id).await?;
    Ok(reading::past(server, &store, id, state.last).await?.turns.into_items())
}

async fn occurrences(
    connection: Arc<ClientConnection>,
    params: ThreadSearchOccurrencesParams,
) -> Result<ThreadSearchOccurrencesResponse, Fault> {
    fault::search_term(&params.search_term)?;
    if params.search_term.is_empty() {
        return Err(Fault::invalid_request("searchTerm must not be empty"));
    }
    let begin = params.cursor.as_deref().map(|text| text.parse::<usize>().map_err(|_| fault::cursor(text))).transpose()?.unwrap_or(0);
    let limit = params.limit.unwrap_or(50).clamp(1, 1000) as usize;
    let mut turns: Vec<String> = Vec::new();
    let mut all = Vec::new();
    for entry in said(&connection.server, &params.thread_id).await? {
        if turns.last() != Some(&entry.turn_id) {
            turns.push(entry.turn_id.clone());
        }
        for found in excerpt::all(&words(&entry.item), &params.search_term) {
            all.push(ThreadSearchOccurrence {
                turn_id: entry.turn_id.clone(),
                item_id: entry.item.id().to_owned(),
                snippet: found.text,
                snippet_match_range: TextRange { start: found.start, end: found.end },
                turn_cursor: (turns.len() - 1).to_string(),
            });
        }
    }
    let next_cursor = (all.len() > begin + limit).then(|| (begin + limit).to_string());
    Ok(ThreadSearchOccurrencesResponse { data: all.into_iter().skip(begin).take(limit).collect(), next_cursor })
}

async fn items(connection: Arc<ClientConnection>, params: ThreadItemsReadParams) -> Result<ThreadItemsReadResponse, Fault> {
    let mut data = said(&connection.server, &params.thread_id).await?;
    data.retain(|entry| entry.turn_id == params.turn_id && params.item_ids.iter().any(|id| id == entry.item.id()));
    Ok(ThreadItemsReadResponse { data })
}
