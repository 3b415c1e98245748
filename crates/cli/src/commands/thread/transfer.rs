//! `outpost thread import | export`.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use futures_util::{StreamExt, stream};
use outpost_environment::TransferProgress;
use outpost_store::{ExportError, ImportError, ImportOutcome, Imported, ReadError, Rollouts, Store, export, import_export, is_export};
use outpost_thread::ThreadId;
use serde_json::{Value, json};

use super::list::title;
use super::transcript::{TranscriptPiece, pieces};
use super::{Desk, print, print_json, times};
use crate::commands::FAILED;
use crate::out::{UntrustedOutput, seen_enough};
use crate::progress::ProgressBar;
use crate::thread_args::{ExportArguments, ThreadImportArguments};

/// Each thread that was imported is on the disk before it is told of; those under way at the same time share the waiting.
const AT_ONCE: usize = 8;

impl Desk {
    pub(super) async fn import(&self, arguments: ThreadImportArguments) -> anyhow::Result<ExitCode> {
        let (mut reports, mut failures) = (Vec::new(), 0);
        for path in &arguments.paths {
            fs::metadata(path).with_context(|| format!("cannot import {}", path.display()))?;
            if path.is_file() && is_export(path) {
                let done = import_export(path, &self.store).await;
                failures += usize::from(done.is_err());
                reports.extend(self.report(path, done.map(|imported| vec![imported]))?);
                continue;
            }
            let rollouts = Rollouts::find(path).with_context(|| format!("cannot look through {}", path.display()))?;
            ensure!(
                !rollouts.found.is_empty(),
                "there is no rollout of Codex (rollout-….jsonl or .jsonl.zst) and no session of Claude Code (projects/…/….jsonl) below {}",
                path.display()
            );
            let size = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
            let progress = Arc::new(TransferProgress::of(rollouts.found.iter().map(|rollout| size(&rollout.path)).sum()));
            let label = format!("{} threads", rollouts.found.len());
            let bar = if self.is_quiet { None } else { ProgressBar::start(progress.clone(), label) };
            let imports = rollouts.found.iter().map(async |rollout| (rollout, rollouts.import(rollout, &self.store).await));
            let mut imports = stream::iter(imports).buffered(AT_ONCE);
            while let Some((rollout, done)) = imports.next().await {
                failures += usize::from(done.is_err());
                progress.add(size(&rollout.path));
                let report = || self.report(&rollout.path, done);
                reports.extend(match &bar {
                    Some(bar) => bar.aside(report)?,
                    None => report()?,
                });
            }
        }
        if self.json {
            print_json(&json!({"imported": reports, "failed": failures}))?;
        } else {
            print(&format!("{}, {failures} failed\n", times::counted(reports.len() as u64, "thread")))?;
        }
        Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
    }

    fn report(&self, path: &Path, done: Result<Vec<Imported>, ImportError>) -> anyhow::Result<Vec<Value>> {
        match done {
            Ok(imported) => imported.into_iter().map(|imported| self.report_one(path, imported)).collect(),
            Err(error) => {
                if !self.json {
                    print(&format!("failed: {error}\n"))?;
                }
                Ok(vec![json!({"path": path, "error": error.to_string()})])
            }
        }
    }

    fn report_one(&self, path: &Path, imported: Imported) -> anyhow::Result<Value> {
        let outcome = match imported.outcome {
            ImportOutcome::Created => "imported".to_owned(),
            ImportOutcome::Continued { added } => format!("{added} entries were added"),
            ImportOutcome::Unchanged => "was here already".to_owned(),
            ImportOutcome::Diverged => "was here already and has gone its own way; not changed".to_owned(),
        };
        let unreadable: Vec<String> =
            imported.unreadable.iter().map(|bad| format!("{}:{}: {}", bad.path.display(), bad.number, bad.reason)).collect();
        if !self.json {
            let mut text = format!("{}  {:>9}  {outcome}\n", imported.thread, times::counted(imported.turns, "turn"));
            if !imported.carried.is_empty() {
                let kinds: Vec<String> = imported.carried.iter().map(|(kind, count)| format!("{kind} ×{count}")).collect();
                let _ = writeln!(text, "    carried, not understood: {}", kinds.join(", "));
            }
            for bad in &unreadable {
                let _ = writeln!(text, "    not readable: {bad}");
            }
            print(&text)?;
        }
        Ok(json!({
            "path": path,
            "thread": imported.thread,
            "turns": imported.turns,
            "outcome": outcome,
            "carried": imported.carried,
            "unreadable": unreadable,
        }))
    }

    pub(super) async fn export(&self, arguments: ExportArguments) -> anyhow::Result<ExitCode> {
        let id = self.find(&arguments.thread).await?;
        let Some(path) = &arguments.output else {
            let is_terminal = std::io::stdout().is_terminal();
            let mut out = UntrustedOutput::new(std::io::stdout().lock(), is_terminal);
            let written = self.write(id, arguments.markdown, &mut out).await;
            // A connection to the store that broke is a failure; only a reader that left is none.
            written.and_then(|()| Ok(out.end()?)).map_err(|error| if is_of_store(&error) { error } else { seen_enough(error) })?;
            return Ok(ExitCode::SUCCESS);
        };
        // Threads hold secrets more often than people think, so other users may not read it; a half-written file is not left behind.
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("cannot make {}, and nothing is written over", path.display()))?;
        let mut out = BufWriter::new(file);
        let written = self.write(id, arguments.markdown, &mut out).await;
        let written = written.and_then(|()| Ok(out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?));
        if let Err(error) = written {
            let _ = fs::remove_file(path);
            return Err(error);
        }
        if self.json {
            print_json(&json!({"thread": id, "file": path}))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn write(&self, id: ThreadId, markdown: bool, out: &mut impl Write) -> anyhow::Result<()> {
        if !markdown {
            export(&self.store, id, out).await?;
            return Ok(());
        }
        write_markdown(&self.store, id, out).await
    }
}

/// Whether a thread could not be read, as opposed to written out.
fn is_of_store(error: &anyhow::Error) -> bool {
    error.is::<ReadError>() || matches!(error.downcast_ref(), Some(ExportError::Read(_)))
}

/// A conversation in a new file that only its owner may read.
pub(crate) async fn export_markdown(store: &Store, id: ThreadId, path: &Path) -> anyhow::Result<()> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    let file = file.with_context(|| format!("cannot make {}, and nothing is written over", path.display()))?;
    let mut out = BufWriter::new(file);
    let written = write_markdown(store, id, &mut out).await;
    if written.is_err() {
        let _ = fs::remove_file(path);
    }
    written
}

async fn write_markdown(store: &Store, id: ThreadId, out: &mut impl Write) -> anyhow::Result<()> {
    let summary = store.summary(id).await?.ok_or(ReadError::NotFound(id))?;
    writeln!(out, "# {}\n\nThread {id}, made {}.", title(&summary), times::utc(summary.created_at))?;
    let mut history = store.history(id, 0).await?;
    while let Some(batch) = history.next().await? {
        for piece in pieces(&batch.with_gaps()) {
            out.write_all(paragraph(&piece).as_bytes())?;
        }
    }
    out.flush()?;
    Ok(())
}

fn paragraph(piece: &TranscriptPiece) -> String {
    match piece {
        TranscriptPiece::Turn { id, at } => format!("\n## Turn {id}\n\n{}\n", times::utc(*at)),
        TranscriptPiece::User(said) => format!("\n**User**\n\n> {}\n", said.replace('\n', "\n> ")),
        TranscriptPiece::Agent(said) => format!("\n**Agent**\n\n{said}\n"),
        TranscriptPiece::Call { tool, parameters } => format!("\n**{tool}**\n\n{}\n", fenced(parameters)),
        TranscriptPiece::Command { environment, command } => format!("\n**{environment}**\n\n{}\n", fenced(&format!("$ {command}"))),
        TranscriptPiece::Output { text, outcome } if outcome.is_empty() => format!("\n{}\n", fenced(text)),
        TranscriptPiece::Output { text, outcome } => format!("\n{}\n\n*{outcome}*\n", fenced(text)),
        TranscriptPiece::Note(note) | TranscriptPiece::Image(note) | TranscriptPiece::Missing(note) => format!("\n*{note}*\n"),
    }
}

/// A block with a fence that is longer than any inside of it.
fn fenced(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}\n{}\n{fence}", text.trim_end())
}
