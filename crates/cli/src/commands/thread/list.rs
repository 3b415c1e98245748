//! `outpost thread list`.

use std::fmt::Write;
use std::process::ExitCode;

use outpost_store::{Ancestry, Coverage, Direction, ListOrder, ListQuery, ListScope, Store, ThreadSummary};
use outpost_terminal::ink::{InkLine, width as columns_of};
use outpost_thread::ThreadId;
use outpost_wire::Selection;
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
            sources: arguments.source.into_iter().flat_map(source).collect(),
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
            let mut rows = Vec::new();
            for thread in &page.threads {
                rows.push((thread, self.store.holder(thread.id).await.ok().flatten().is_some()));
            }
            show_rows(&Listing { rows: &rows, next: page.next.map(|next| next.to_string()).as_deref(), is_narrow })?;
            if let (true, Coverage::Filling { done, total }) = (is_search, page.coverage) {
                print(&format!("words are still being read ({done} of {total} bytes): more may be found later\n"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Threads with whether a program works on them, and where the list goes on.
pub(super) struct Listing<'a> {
    pub rows: &'a [(&'a ThreadSummary, bool)],
    pub next: Option<&'a str>,
    /// Not all threads were asked for.
    pub is_narrow: bool,
}

pub(super) fn show_rows(listing: &Listing<'_>) -> anyhow::Result<()> {
    // On a terminal a thread is one line; elsewhere a program may look for words.
    let width = tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    let rows: Vec<Row> = listing.rows.iter().map(|(thread, is_held)| Row::of(thread, *is_held, width.is_some())).collect();
    print_shown(&table(&rows, width))?;
    if let Some(next) = listing.next {
        print(&format!("there are more: --after {next}\n"))?;
    }
    if rows.is_empty() {
        let words = "no threads; `outpost exec PROMPT` starts one\n";
        print(if listing.is_narrow { "no thread fits; `outpost thread list --all` shows all of them\n" } else { words })?;
    }
    Ok(())
}

/// A thread as a line of the table.
#[derive(Clone)]
struct Row {
    id: String,
    age: String,
    state: &'static str,
    environments: String,
    forked_from: String,
    /// The person who started it.
    by: Option<String>,
    title: String,
}

/// So much of an id is shown where there is no room for all of it: its end, because threads of one minute begin alike.
const SHORT: usize = 8;
/// Narrower than this, a thread has a short line: which one, how old, what it does, what it is about.
const WIDE: usize = 64;

impl Row {
    fn of(thread: &ThreadSummary, is_held: bool, is_short: bool) -> Self {
        let id = |id: &ThreadId| {
            let id = id.to_string();
            if is_short { short_id(&id).to_owned() } else { id }
        };
        let state = match (thread.damaged, thread.archived, is_held) {
            (true, ..) => "damaged",
            (_, true, _) => "archived",
            (_, _, true) => "in use",
            _ => "idle",
        };
        let places: Vec<String> =
            thread.selection.iter().flat_map(Selection::attachments).map(|place| place.environment_id.to_string()).collect();
        let environments = match places.as_slice() {
            [] => "-".to_owned(),
            [one] => one.clone(),
            [first, more @ ..] if is_short => format!("{first} +{}", more.len()),
            all => all.join(","),
        };
        Self {
            id: id(&thread.id),
            age: times::age(now(), thread.updated_at),
            state,
            environments,
            forked_from: thread.forked_from.as_ref().map_or_else(|| "-".to_owned(), id),
            by: thread.by.clone(),
            title: title(thread),
        }
    }

    fn cells(&self, heading: &[&str]) -> Vec<String> {
        let cell = |name: &&str| match *name {
            "ID" => on_line(&self.id),
            "AGE" => on_line(&self.age),
            "STATE" => self.state.to_owned(),
            "WHERE" => on_line(&self.environments),
            "FORK OF" => on_line(&self.forked_from),
            "BY" => on_line(self.by.as_deref().unwrap_or("-")),
            _ => on_line(&self.title),
        };
        heading.iter().map(cell).collect()
    }
}

/// Rows as a table that is no wider than so many columns; as wide as it needs to be where there is no screen.
fn table(rows: &[Row], width: Option<usize>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let is_wide = width.is_none_or(|width| width >= WIDE);
    let mut heading = if is_wide { vec!["ID", "AGE", "STATE", "WHERE", "FORK OF", "TITLE"] } else { vec!["ID", "AGE", "STATE", "TITLE"] };
    // Where no client has a name there is nothing to tell.
    if is_wide && rows.iter().any(|row| row.by.is_some()) {
        heading.insert(heading.len() - 1, "BY");
    }
    let mut lines = vec![heading.iter().map(|cell| (*cell).to_owned()).collect::<Vec<String>>()];
    lines.extend(rows.iter().map(|row| row.cells(&heading)));
    let most = |column: usize| lines.iter().map(|line| columns_of(&line[column])).max().unwrap_or_default();
    let last = heading.len() - 1;
    // A name of an environment may be long; the title has at least some room.
    let widths: Vec<usize> =
        (0..last).map(|column| if heading[column] == "WHERE" && width.is_some() { most(column).min(16) } else { most(column) }).collect();
    let taken: usize = widths.iter().map(|width| width + 2).sum();
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(taken).max(1));
    let mut text = String::new();
    for line in lines {
        for (cell, width) in line.iter().zip(&widths) {
            let cell = shortened(cell, *width);
            let blanks = (*width + 2).saturating_sub(columns_of(&cell));
            // Writing into a text cannot fail.
            let _ = write!(text, "{cell}{:blanks$}", "");
        }
        let _ = writeln!(text, "{}", shortened(&line[last], room));
    }
    text
}

/// At most so many columns of a screen, the last of which says that there is more.
fn shortened(text: &str, most: usize) -> String {
    if columns_of(text) <= most {
        return text.to_owned();
    }
    let kept = InkLine::plain(text).cut(most.saturating_sub(1));
    kept.0.iter().map(|span| span.text.as_str()).chain(std::iter::once("…")).collect()
}

/// The end of an id, by which a thread is found.
pub(crate) fn short_id(id: &str) -> &str {
    &id[id.len().saturating_sub(SHORT)..]
}

/// A thread's name or its first words, on one line.
pub(crate) fn title(thread: &ThreadSummary) -> String {
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

/// As journals spell it, however it was typed; imported ones have a spelling of their own.
fn source(typed: String) -> Vec<String> {
    if typed.eq_ignore_ascii_case("subagent") { vec!["subAgent".to_owned(), "subagent".to_owned()] } else { vec![typed] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_the_screen_that_there_is() {
        let row = |title: &str| Row {
            id: "0a1b2c3d".into(),
            age: "12 min".into(),
            state: "in use",
            environments: "a-machine-with-a-long-name +3".into(),
            forked_from: "4e5f6071".into(),
            by: None,
            title: title.into(),
        };
        let rows = [row("short"), row(&"long words ".repeat(20))];
        for width in [40, 63, 64, 80, 200] {
            let text = table(&rows, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            assert!(text.contains("0a1b2c3d") && text.contains("in use") && text.contains("12 min"), "{text}");
        }
        assert!(table(&rows, Some(80)).contains("4e5f6071") && table(&rows, Some(80)).contains("a-machine-with"));
        assert!(table(&rows, None).contains(&rows[1].title), "elsewhere nothing is cut");
        assert!(table(&[], Some(80)).is_empty());
        // Characters that take two columns, and names with them: the columns below stay where they are.
        let wide = Row { environments: "日本".into(), ..row(&"漢字の題名".repeat(20)) };
        for width in [40, 80] {
            let text = table(&[wide.clone(), row("short")], Some(width));
            let rows: Vec<&str> = text.lines().collect();
            assert!(rows.iter().all(|line| columns_of(line) <= width), "{width}:\n{text}");
            assert!(columns_of(rows[1]) >= width - 1 && rows[1].ends_with('…'), "all of the room is used:\n{text}");
            let titles = [("TITLE", rows[0]), ("漢字", rows[1]), ("short", rows[2])];
            let begins = titles.map(|(title, line)| line.find(title).map(|at| columns_of(&line[..at])));
            assert!(begins[0].is_some() && begins.iter().all(|begin| *begin == begins[0]), "{begins:?}:\n{text}");
        }
        // Who started a thread is told where anyone has a name.
        let named = [Row { by: Some("anna".into()), ..row("hers") }, row("unnamed")];
        let text = table(&named, None);
        assert!(text.lines().next().is_some_and(|line| line.contains("BY")), "{text}");
        assert!(text.contains("4e5f6071  anna  hers") && text.contains("4e5f6071  -     unnamed"), "{text}");
        assert!(!table(&rows, None).contains("BY") && !table(&named, Some(40)).contains("BY"));
    }
}
