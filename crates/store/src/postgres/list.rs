//! Lists and searches in Postgres: the same questions as to the index of a home.

use std::collections::HashMap;

use outpost_thread::{Entry, ThreadId};
use tokio_postgres::types::ToSql;

use super::read::{QueryError, entry};
use super::{PostgresStore, big};
use crate::list::{Ancestry, Coverage, ListPage, ListQuery, ListScope};
use crate::store::ReadError;
use crate::summary::ThreadSummary;

/// The words of each thread are read from its beginning, and only as far as the first entry that has all of them.
const MENTIONS: &str = "
    select e.seq, e.at, e.kind, e.data, e.thread
    from unnest($2::text[]) wanted (id)
    cross join lateral (select thread, seq from outpost_words
                        where thread = wanted.id and words @@ to_tsquery('simple', $1) order by seq limit 1) first
    join outpost_entries e on e.thread = first.thread and e.seq = first.seq";

impl PostgresStore {
    pub async fn list(&self, query: ListQuery) -> Result<ListPage, ReadError> {
        let client = self.client().await.map_err(ReadError::Database)?;
        let (text, values) = select(&query);
        let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
        let rows = client.query(&text, &values).await.map_err(QueryError::from)?;
        let threads = rows.iter().filter_map(|row| serde_json::from_str(row.get(0)).ok()).collect();
        Ok(ListPage::cut(threads, &query, Coverage::Complete))
    }

    pub async fn mentions(&self, threads: &[ThreadId], search: &str) -> Result<HashMap<ThreadId, Entry>, ReadError> {
        let client = self.client().await.map_err(ReadError::Database)?;
        let statement = client.prepare_cached(MENTIONS).await.map_err(QueryError::from)?;
        let ids: Vec<String> = threads.iter().map(ToString::to_string).collect();
        let rows = client.query(&statement, &[&words(search), &ids]).await.map_err(QueryError::from)?;
        Ok(rows.iter().filter_map(|row| Some((row.get::<_, &str>(4).parse().ok()?, entry(row)))).collect())
    }

    pub async fn summary(&self, thread: ThreadId) -> Result<Option<ThreadSummary>, ReadError> {
        let client = self.client().await.map_err(ReadError::Database)?;
        let text = "select summary from outpost_threads where id = $1 and born";
        let statement = client.prepare_cached(text).await.map_err(QueryError::from)?;
        let row = client.query_opt(&statement, &[&thread.to_string()]).await.map_err(QueryError::from)?;
        Ok(row.and_then(|row| serde_json::from_str(row.get(0)).ok()))
    }
}

/// So many places where words stand are all looked at.
const FEW: usize = 5_000;

type Values = Vec<Box<dyn ToSql + Sync + Send>>;

fn select(query: &ListQuery) -> (String, Values) {
    let mut clauses = vec!["born".to_owned()];
    let mut values: Values = Vec::new();
    let mut value = |value: Box<dyn ToSql + Sync + Send>| {
        values.push(value);
        format!("${}", values.len())
    };
    match query.shelf {
        ListScope::Active => clauses.push("not archived".to_owned()),
        ListScope::Archived => clauses.push("archived".to_owned()),
        ListScope::Both => {}
    }
    for (column, wanted) in [("source", &query.sources), ("cwd", &query.cwds)] {
        if !wanted.is_empty() {
            clauses.push(format!("{column} = any({})", value(Box::new(wanted.clone()))));
        }
    }
    match query.kin {
        Some(Ancestry::ChildrenOf(parent)) => clauses.push(format!("parent = {}", value(Box::new(parent.to_string())))),
        Some(Ancestry::DescendantsOf(root)) => clauses.push(format!(
            "id in (with recursive kin (id) as (select id from outpost_threads where parent = {}
             union select t.id from outpost_threads t join kin on t.parent = kin.id) select id from kin)",
            value(Box::new(root.to_string()))
        )),
        None => {}
    }
    let column = query.order.column();
    let (sign, direction) = query.direction.words();
    if let Some(after) = query.after {
        let (at, id) = (value(Box::new(big(after.at))), value(Box::new(after.id.to_string())));
        clauses.push(format!("({column}, id) {sign} ({at}, {id})"));
    }
    let limit = value(Box::new(big(query.limit as u64).saturating_add(1)));
    let page = |found: &str| {
        let condition = clauses.iter().map(String::as_str).chain((!found.is_empty()).then_some(found)).collect::<Vec<_>>().join(" and ");
        format!(
            "select summary, id, {column} from outpost_threads where {condition} order by {column} {direction}, id {direction} limit {limit}"
        )
    };
    let text = match &query.search {
        None => page(""),
        Some(search) => {
            let part = format!("%{}%", search.trim().replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_"));
            let words = value(Box::new(words(search)));
            let (grams, part) = (value(Box::new(grams(search.trim()))), value(Box::new(part.replace('\0', ""))));
            let by_name = page(&format!(
                "id in (select thread from outpost_names where outpost_grams(name) @> {grams}::text[] and name ilike {part})"
            ));
            // Few places are looked up. Many are not even counted: the list is read in its order until the page is full, which is soon then.
            let few = page(&format!("id in (select thread from places) and (select count(*) from places) <= {FEW}"));
            let many = page(&format!(
                "(select count(*) from places) > {FEW}
                 and exists (select from outpost_words w where w.thread = outpost_threads.id and w.words @@ to_tsquery('simple', {words}))"
            ));
            format!(
                "with places as materialized (select thread from outpost_words where words @@ to_tsquery('simple', {words}) limit {FEW} + 1)
                 select summary from (({few}) union ({many}) union ({by_name})) found order by {column} {direction}, id {direction} limit {limit}"
            )
        }
    };
    (text, values)
}

/// Parts that every name has which has the text: those of three characters, or the whole of a shorter text. Only ASCII is folded in the
/// index, so that other parts are left to the comparison that follows.
fn grams(search: &str) -> Vec<String> {
    let folded: Vec<char> = search.to_ascii_lowercase().replace('\0', "").chars().collect();
    let size = folded.len().clamp(1, 3);
    let parts = folded.windows(size).filter(|part| part.iter().all(char::is_ascii));
    parts.map(|part| part.iter().collect()).collect()
}

/// All words must occur, and the last may be the beginning of one. Everything is quoted: a user's text is no query language.
fn words(search: &str) -> String {
    let quote = |word: &str| format!("'{}'", word.replace('\0', "").replace('\\', "\\\\").replace('\'', "''"));
    let quoted: Vec<String> = search.split_whitespace().map(quote).collect();
    if quoted.is_empty() { "''".to_owned() } else { format!("{}:*", quoted.join(" & ")) }
}
