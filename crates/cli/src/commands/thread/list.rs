//! `outpost thread list`.

use std::fmt::Write;
use std::process::ExitCode;

use outpost_store::{Coverage, Direction, Kin, ListPage, ListQuery, Order, Shelf, Store, Summary};
use serde_json::json;

use super::{Desk, print, print_json, times};
use crate::store::now;
use crate::thread_args::{By, ListArguments};

impl Desk {
    pub async fn list(&self, arguments: ListArguments) -> anyhow::Result<ExitCode> {
        let kin = match (&arguments.children_of, &arguments.below) {
            (Some(parent), _) => Some(Kin::ChildrenOf(self.find(parent).await?)),
            (None, Some(root)) => Some(Kin::DescendantsOf(self.find(root).await?)),
            (None, None) => None,
        };
        let query = ListQuery {
            shelf: match (arguments.all, arguments.archived) {
                (true, _) => Shelf::Both,
                (false, true) => Shelf::Archived,
                (false, false) => Shelf::Active,
            },
            order: match arguments.by {
                By::Updated => Order::Updated,
                By::Created => Order::Created,
                By::Recency => Order::Recency,
            },
            direction: if arguments.reverse { Direction::OldestFirst } else { Direction::NewestFirst },
            sources: arguments.source,
            cwds: arguments.cwd,
            kin,
            search: arguments.search,
            limit: arguments.limit as usize,
            after: arguments.after.as_deref().map(str::parse).transpose()?,
        };
        let is_search = query.search.is_some();
        if let (true, Store::Local(store)) = (is_search, &self.store) {
            // This program asks once and ends; half an answer would be of no use.
            store.index()?.complete().await;
        }
        let page = self.store.list(query).await?;
        if self.json {
            print_json(&json!({
                "threads": page.threads,
                "nextCursor": page.next.map(|next| next.to_string()),
                "search": page.coverage,
            }))?;
        } else {
            print(&table(&page, is_search))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn table(page: &ListPage, is_search: bool) -> String {
    let mut text = String::new();
    let now = now();
    for thread in &page.threads {
        let marks = if thread.archived { " (archived)" } else { "" };
        let age = times::age(now, thread.updated_at);
        // Writing into a text cannot fail.
        let _ = writeln!(text, "{}  {age:>6}  {:>4} turns  {}{marks}", thread.id, thread.turns, title(thread));
    }
    if page.threads.is_empty() {
        text.push_str("no threads\n");
    }
    if let Some(next) = page.next {
        let _ = writeln!(text, "there are more: --after {next}");
    }
    if let (true, Coverage::Filling { done, total }) = (is_search, page.coverage) {
        let _ = writeln!(text, "words are still being read ({done} of {total} bytes): more may be found later");
    }
    text
}

/// A thread's name or its first words, on one line.
pub fn title(thread: &Summary) -> String {
    let text = thread.name.as_deref().or(thread.preview.as_deref()).unwrap_or("(no message)");
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let short: String = line.chars().take(72).collect();
    if short.len() < line.len() { format!("{short}…") } else { short }
}
