//! `outpost thread list`.

use std::fmt::Write;
use std::process::ExitCode;

use outpost_store::{Ancestry, Coverage, Direction, ListOrder, ListPage, ListQuery, ListScope, Store, ThreadSummary};
use rustix::termios::tcgetwinsize;
use serde_json::json;

use super::{Desk, print, print_json, times};
use crate::out::{on_line, print_shown};
use crate::store::now;
use crate::thread_args::{By, ThreadListArguments};

impl Desk {
    pub(super) async fn list(&self, arguments: ThreadListArguments) -> anyhow::Result<ExitCode> {
        let kin = match (&arguments.children_of, &arguments.below) {
            (Some(parent), _) => Some(Ancestry::ChildrenOf(self.find(parent).await?)),
            (None, Some(root)) => Some(Ancestry::DescendantsOf(self.find(root).await?)),
            (None, None) => None,
        };
        let query = ListQuery {
            shelf: match (arguments.all, arguments.archived) {
                (true, _) => ListScope::Both,
                (false, true) => ListScope::Archived,
                (false, false) => ListScope::Active,
            },
            order: match arguments.by {
                By::Updated => ListOrder::Updated,
                By::Created => ListOrder::Created,
                By::Recency => ListOrder::Recency,
            },
            direction: if arguments.reverse { Direction::OldestFirst } else { Direction::NewestFirst },
            sources: arguments.source.into_iter().map(source).collect(),
            cwds: arguments.cwd.iter().flat_map(|directory| spellings(directory)).collect(),
            kin,
            search: arguments.search,
            limit: arguments.limit as usize,
            after: arguments.after.as_deref().map(str::parse).transpose()?,
        };
        if let (Some(_), Store::Local(store)) = (&query.search, &self.store) {
            // This program asks once and ends; half an answer would be of no use.
            store.index()?.complete().await;
        }
        let is_search = query.search.is_some();
        let is_narrow =
            is_search || query.shelf == ListScope::Archived || !query.sources.is_empty() || !query.cwds.is_empty() || query.kin.is_some();
        let page = self.store.list(query).await?;
        if self.json {
            print_json(&json!({
                "threads": page.threads,
                "nextCursor": page.next.map(|next| next.to_string()),
                "search": page.coverage,
            }))?;
        } else {
            print_shown(&table(&page))?;
            if page.threads.is_empty() {
                let words = "no threads; `outpost exec PROMPT` starts one\n";
                print(if is_narrow { "no thread fits; `outpost thread list --all` shows all of them\n" } else { words })?;
            }
            if let (true, Coverage::Filling { done, total }) = (is_search, page.coverage) {
                print(&format!("words are still being read ({done} of {total} bytes): more may be found later\n"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn table(page: &ListPage) -> String {
    let mut text = String::new();
    let now = now();
    // On a terminal a thread is one line; elsewhere a program may look for words.
    let width = tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    for thread in &page.threads {
        let archived = if thread.archived { " (archived)" } else { "" };
        let marks = format!("{archived}{}", if thread.damaged { " (damaged)" } else { "" });
        let age = times::age(now, thread.updated_at);
        // Writing into a text cannot fail.
        let turns = times::counted(thread.turns, "turn");
        let line = format!("{}  {age:>6} ago  {turns:>9}  {}{marks}", thread.id, on_line(&title(thread)));
        let _ = match line.char_indices().nth(width.unwrap_or(usize::MAX)) {
            Some(_) => writeln!(text, "{}…", line.chars().take(width.unwrap_or(1) - 1).collect::<String>()),
            None => writeln!(text, "{line}"),
        };
    }
    if let Some(next) = page.next {
        let _ = writeln!(text, "there are more: --after {next}");
    }
    text
}

/// A thread's name or its first words, on one line.
pub(super) fn title(thread: &ThreadSummary) -> String {
    let text = thread.name.as_deref().or(thread.preview.as_deref()).unwrap_or("(no message)");
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let short: String = line.chars().take(72).collect();
    if short.len() < line.len() { format!("{short}…") } else { short }
}

/// A directory as it was typed, which may be one of another machine, and as this machine would write it down.
fn spellings(directory: &str) -> Vec<String> {
    let typed = if directory == "/" { directory } else { directory.trim_end_matches('/') };
    let here = std::fs::canonicalize(directory).or_else(|_| std::path::absolute(directory));
    let mut spellings = vec![typed.to_owned()];
    spellings.extend(here.ok().map(|path| path.to_string_lossy().into_owned()).filter(|path| path != typed));
    spellings
}

/// As journals spell it, however it was typed.
fn source(typed: String) -> String {
    if typed.eq_ignore_ascii_case("subagent") { "subAgent".to_owned() } else { typed }
}
