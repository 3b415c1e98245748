//! `outpost thread show`.

use std::fmt::Write;
use std::process::ExitCode;

use outpost_store::{Damage, Page, PageRequest, ReadError, ThreadSummary};
use outpost_thread::{Entry, ThreadId};
use serde_json::{Value, json};

use super::list::title;
use super::transcript::{TranscriptPiece, pieces};
use super::{Desk, print_json, times};
use crate::out::{self, on_line, on_line_exactly, on_lines, own_mark, print_shown};
use crate::thread_args::ShowArguments;

/// Lines of an output that are shown.
const LINES: usize = 8;

impl Desk {
    pub(super) async fn show(&self, arguments: ShowArguments) -> anyhow::Result<ExitCode> {
        let id = self.find(&arguments.thread).await?;
        let request = PageRequest {
            before: arguments.before,
            turns: if arguments.all { usize::MAX } else { arguments.turns as usize },
            bytes: usize::MAX,
        };
        let page = self.store.page(id, request).await?;
        let summary = self.store.summary(id).await?.ok_or(ReadError::NotFound(id))?;
        if self.json {
            print_json(&as_json(&summary, &page))?;
        } else {
            print_shown(&as_text(&summary, id, &page, arguments.full))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn as_json(summary: &ThreadSummary, page: &Page) -> Value {
    let entry = |entry: &Entry| {
        let data = entry.fact.data().ok().and_then(|data| data.read::<Value>().ok());
        json!({"seq": entry.ordinal, "at": entry.at, "kind": entry.fact.kind(), "data": data})
    };
    json!({
        "thread": summary,
        "entries": page.entries.iter().map(entry).collect::<Vec<_>>(),
        "before": page.before,
        "damage": page.damage.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn as_text(summary: &ThreadSummary, id: ThreadId, page: &Page, full: bool) -> String {
    let mut text = String::new();
    // Writing into a text cannot fail, here and below.
    let own = own_mark();
    let _ = writeln!(text, "{own}{id}  {}", on_line(&title(summary)));
    let turns = times::counted(summary.turns, "turn");
    let _ = writeln!(text, "{own}made {}, changed {}, {turns}", times::utc(summary.created_at), times::utc(summary.updated_at));
    let model = summary.model.as_ref().map(|model| summary.provider.as_ref().map_or_else(|| model.clone(), |by| format!("{model} ({by})")));
    let facts = [
        ("source", summary.source.clone()),
        ("directory", summary.cwd.clone()),
        ("model", model),
        ("forked from", summary.forked_from.map(|id| id.to_string())),
        ("sub-agent of", summary.parent.map(|id| id.to_string())),
    ];
    for (what, value) in facts {
        if let Some(value) = value {
            let _ = writeln!(text, "{own}{what}: {}", on_line_exactly(&value));
        }
    }
    if let Some(before) = page.before {
        let _ = writeln!(text, "{own}… earlier turns: --before {before}");
    }
    for damage in &page.damage {
        let _ = writeln!(text, "{own}damaged: {}", on_line(&damage_line(damage)));
    }
    for piece in pieces(&page.clone().with_gaps()) {
        let _ = match piece {
            TranscriptPiece::Turn { id, at } => writeln!(text, "\n{own}── turn {}, {}", on_line_exactly(&id), times::utc(at)),
            TranscriptPiece::User(said) => writeln!(text, "> {}", on_lines(&said).replace('\n', "\n> ")),
            TranscriptPiece::Agent(said) => writeln!(text, "{}", on_lines(&said)),
            TranscriptPiece::Command { environment, command } => {
                writeln!(text, "{own}[{}] $ {}", on_line_exactly(&environment), out::on_lines_exactly(&command))
            }
            TranscriptPiece::Call { tool, parameters } => {
                writeln!(text, "{own}{} {}", on_line_exactly(&tool), out::on_lines_exactly(parameters.trim()))
            }
            TranscriptPiece::Output { text: output, outcome } => writeln!(text, "{}", indented(&on_lines(&output), &outcome, full)),
            TranscriptPiece::Note(note) | TranscriptPiece::Image(note) | TranscriptPiece::Missing(note) => {
                writeln!(text, "{own}({})", on_lines(&note))
            }
        };
    }
    text
}

fn damage_line(damage: &Damage) -> String {
    format!("{damage}; `outpost thread verify` tells more")
}

fn indented(output: &str, outcome: &str, full: bool) -> String {
    let shown = if full { usize::MAX } else { LINES };
    let mut lines: Vec<String> = output.lines().take(shown).map(|line| format!("  {line}")).collect();
    let more = output.lines().count().saturating_sub(lines.len());
    if more > 0 {
        lines.push(format!("  … {more} more lines; --full shows them"));
    }
    if !outcome.is_empty() {
        lines.push(format!("  ({outcome})"));
    }
    lines.join("\n")
}
