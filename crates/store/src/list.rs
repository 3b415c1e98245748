//! Asking for threads: what to show, in which order, where to go on. Every store answers the same questions the same way.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use outpost_thread::{Entry, ThreadId};
use serde::Serialize;

use crate::summary::ThreadSummary;
use crate::words;

/// By which time a list is ordered; threads with equal times are ordered by their ids.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ListOrder {
    /// When it was made.
    Created,
    /// When something was last written to it.
    #[default]
    Updated,
    /// When its last turn began; output does not move it.
    Recency,
}

impl ListOrder {
    /// The column that has this time, in either database.
    pub(crate) fn column(self) -> &'static str {
        match self {
            Self::Created => "created_at",
            Self::Updated => "updated_at",
            Self::Recency => "recency_at",
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Direction {
    #[default]
    NewestFirst,
    OldestFirst,
}

impl Direction {
    /// How what comes after a row compares to it, and the word for the order.
    pub(crate) fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::NewestFirst => ("<", "desc"),
            Self::OldestFirst => (">", "asc"),
        }
    }
}

/// Whom a thread must descend from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ancestry {
    ChildrenOf(ThreadId),
    DescendantsOf(ThreadId),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ListScope {
    #[default]
    Active,
    Archived,
    Both,
}

/// What to list. The default is a page of active threads, the one that changed last at the top.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListQuery {
    pub shelf: ListScope,
    pub order: ListOrder,
    pub direction: Direction,
    /// Only these sources; none means all.
    pub sources: Vec<String>,
    /// Only threads that work in one of these directories; none means all.
    pub cwds: Vec<String>,
    pub kin: Option<Ancestry>,
    /// Words that all occur in one message of the thread, or a part of its name; the last word may be the beginning of one.
    pub search: Option<String>,
    pub limit: usize,
    /// Where the page before ended.
    pub after: Option<ListCursor>,
}

impl Default for ListQuery {
    fn default() -> Self {
        Self {
            shelf: ListScope::default(),
            order: ListOrder::default(),
            direction: Direction::default(),
            sources: Vec::new(),
            cwds: Vec::new(),
            kin: None,
            search: None,
            limit: 25,
            after: None,
        }
    }
}

/// The place between two threads of a list. It names both the time and the id, so that threads with equal times are neither
/// skipped nor shown twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListCursor {
    pub at: u64,
    pub id: ThreadId,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a cursor: use the one that the page before came with")]
pub struct CursorError(String);

impl ListCursor {
    pub fn behind(summary: &ThreadSummary, order: ListOrder) -> Self {
        Self { at: summary.time(order), id: summary.id }
    }
}

impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.at, self.id)
    }
}

impl FromStr for ListCursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let wrong = || CursorError(text.to_owned());
        let (at, id) = text.split_once('.').ok_or_else(wrong)?;
        Ok(Self { at: at.parse().map_err(|_| wrong())?, id: id.parse().map_err(|_| wrong())? })
    }
}

/// How far the words of all threads are known to a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Coverage {
    Complete,
    /// Search finds only what was read so far.
    Filling {
        done: u64,
        total: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPage {
    pub threads: Vec<ThreadSummary>,
    /// Where the next page begins, if there is one.
    pub next: Option<ListCursor>,
    pub coverage: Coverage,
}

/// Whether all words occur in an entry, the last one possibly as the beginning of a longer one.
pub(crate) fn matches(search: &str, entry: &Entry) -> bool {
    let text = words::searchable(entry).to_lowercase();
    let present: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let search = search.to_lowercase();
    let wanted: Vec<&str> = search.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    match wanted.split_last() {
        Some((last, others)) => others.iter().all(|word| present.contains(word)) && present.iter().any(|word| word.starts_with(last)),
        None => false,
    }
}

/// The answer from all threads, each with whether the words of a search occur in it.
pub(crate) fn select(threads: Vec<(ThreadSummary, bool)>, query: &ListQuery) -> ListPage {
    let parents: HashMap<ThreadId, ThreadId> = threads.iter().filter_map(|(thread, _)| Some((thread.id, thread.parent?))).collect();
    let descends = |thread: ThreadId, root: ThreadId| {
        // Bounded, so that a circle does not turn for ever.
        let up = std::iter::successors(parents.get(&thread), |parent| parents.get(parent));
        up.take(parents.len() + 1).any(|parent| *parent == root)
    };
    let is_wanted = |(thread, is_found): &(ThreadSummary, bool)| {
        let is_named =
            |search: &String| thread.name.as_ref().is_some_and(|name| name.to_lowercase().contains(&search.trim().to_lowercase()));
        let one_of =
            |wanted: &[String], value: &Option<String>| wanted.is_empty() || value.as_ref().is_some_and(|value| wanted.contains(value));
        (query.shelf == ListScope::Both || (query.shelf == ListScope::Archived) == thread.archived)
            && one_of(&query.sources, &thread.source)
            && one_of(&query.cwds, &thread.cwd)
            && query.kin.is_none_or(|kin| match kin {
                Ancestry::ChildrenOf(parent) => thread.parent == Some(parent),
                Ancestry::DescendantsOf(root) => descends(thread.id, root),
            })
            && query.search.as_ref().is_none_or(|search| *is_found || is_named(search))
    };
    let mut wanted: Vec<ThreadSummary> = threads.into_iter().filter(is_wanted).map(|(thread, _)| thread).collect();
    let place = |thread: &ThreadSummary| (thread.time(query.order), thread.id);
    wanted.sort_unstable_by_key(place);
    if query.direction == Direction::NewestFirst {
        wanted.reverse();
    }
    wanted.retain(|thread| match (query.after, query.direction) {
        (None, _) => true,
        (Some(after), Direction::NewestFirst) => place(thread) < (after.at, after.id),
        (Some(after), Direction::OldestFirst) => place(thread) > (after.at, after.id),
    });
    ListPage::cut(wanted, query, Coverage::Complete)
}

impl ListPage {
    /// Of one row more than was asked for: the surplus tells that there is a next page.
    pub fn cut(mut threads: Vec<ThreadSummary>, query: &ListQuery, coverage: Coverage) -> Self {
        let has_more = threads.len() > query.limit;
        threads.truncate(query.limit);
        let next = threads.last().filter(|_| has_more).map(|last| ListCursor::behind(last, query.order));
        Self { threads, next, coverage }
    }
}
