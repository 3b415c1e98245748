//! Questions to the index: pages of threads, kin, words.

use outpost_thread::{Ordinal, ThreadId};
use rusqlite::types::Value;
use rusqlite::{OptionalExtension, params, params_from_iter};

use super::database::{self, Database, IndexError, ROW};
use crate::list::{Ancestry, ListQuery, ListScope};
use crate::summary::ThreadSummary;

impl Database {
    /// One row more than asked for, if there are so many.
    pub(super) fn list(&self, query: &ListQuery) -> Result<Vec<ThreadSummary>, IndexError> {
        let (text, values) = select(query);
        let mut statement = self.connection.prepare_cached(&text)?;
        let rows = statement.query_map(params_from_iter(values), |row| Ok(database::read(row)))?;
        let rows: Vec<_> = rows.collect::<Result<_, _>>()?;
        rows.into_iter().map(|row| row.map(|(_, row)| row.summary)).collect()
    }
}

impl Database {
    /// Where turn `number` begins, counted from 1.
    pub(super) fn turn_start(&self, id: ThreadId, number: u64) -> Result<Option<Ordinal>, IndexError> {
        let text = "select seq from turns where thread = (select key from threads where id = ?1) and number = ?2";
        let mut statement = self.connection.prepare_cached(text)?;
        Ok(statement.query_row(params![id.to_string(), number], |row| row.get(0)).optional()?)
    }

    /// The first entry of a thread in which the words of a search stand.
    pub(super) fn mention(&self, id: ThreadId, search: &str) -> Result<Option<Ordinal>, IndexError> {
        let key = self.connection.prepare_cached("select key from threads where id = ?1")?.query_row([id.to_string()], |row| row.get(0));
        let Some(key) = key.optional()? else { return Ok(None) };
        let key: i64 = key;
        let text = "select rowid - ?2 from words where words match ?1 and rowid between ?2 and ?3 order by rowid limit 1";
        let mut statement = self.connection.prepare_cached(text)?;
        Ok(statement.query_row(params![words(search), key << 32, ((key + 1) << 32) - 1], |row| row.get(0)).optional()?)
    }
}

/// The statement and its values. The text depends only on which filters are given, so that few statements are prepared.
fn select(query: &ListQuery) -> (String, Vec<Value>) {
    let mut clauses = Vec::new();
    let mut values = Vec::new();
    let mut with = "";
    match query.shelf {
        ListScope::Active => clauses.push("archived = 0".to_owned()),
        ListScope::Archived => clauses.push("archived = 1".to_owned()),
        ListScope::Both => {}
    }
    for (column, wanted) in [("source", &query.sources), ("cwd", &query.cwds)] {
        if !wanted.is_empty() {
            clauses.push(format!("{column} in ({})", vec!["?"; wanted.len()].join(", ")));
            values.extend(wanted.iter().cloned().map(Value::Text));
        }
    }
    match query.kin {
        Some(Ancestry::ChildrenOf(parent)) => {
            clauses.push("parent = ?".to_owned());
            values.push(Value::Text(parent.to_string()));
        }
        Some(Ancestry::DescendantsOf(root)) => {
            // `union` without `all` ends even if the rows form a cycle.
            with = "with recursive kin(id) as (select id from threads where parent = ? union select threads.id from threads join kin on threads.parent = kin.id) ";
            values.insert(0, Value::Text(root.to_string()));
            clauses.push("id in (select id from kin)".to_owned());
        }
        None => {}
    }
    if let Some(search) = &query.search {
        clauses.push(
            "(key in (select rowid >> 32 from words where words match ?) or key in (select key from threads where name is not null and name like ? escape '\\'))".to_owned(),
        );
        values.push(Value::Text(words(search)));
        values.push(Value::Text(format!("%{}%", search.trim().replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_"))));
    }
    let column = query.order.column();
    let (sign, direction) = query.direction.words();
    if let Some(after) = query.after {
        clauses.push(format!("({column}, id) {sign} (?, ?)"));
        values.push(Value::Integer(after.at.cast_signed()));
        values.push(Value::Text(after.id.to_string()));
    }
    let condition = if clauses.is_empty() { "true".to_owned() } else { clauses.join(" and ") };
    values.push(Value::Integer(i64::try_from(query.limit).unwrap_or(i64::MAX).saturating_add(1)));
    (format!("{with}select {ROW} from threads where {condition} order by {column} {direction}, id {direction} limit ?"), values)
}

/// All words must occur, and the last may be the beginning of one. Everything is quoted: a user's text is no query language.
fn words(search: &str) -> String {
    let quoted: Vec<String> = search.split_whitespace().map(|word| format!("\"{}\"", word.replace('"', "\"\""))).collect();
    if quoted.is_empty() { "\"\"".to_owned() } else { format!("{}*", quoted.join(" ")) }
}
