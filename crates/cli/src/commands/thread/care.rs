//! `outpost thread verify | repair`.

use std::process::ExitCode;

use outpost_store::ClaimMode;
use outpost_thread::{Ordinal, ThreadId};
use serde_json::json;

use super::{Desk, confirm, print, print_json, times};
use crate::commands::FAILED;
use crate::thread_args::{RepairArguments, VerifyArguments};

impl Desk {
    pub(super) async fn verify(&self, arguments: VerifyArguments) -> anyhow::Result<ExitCode> {
        let ids = if arguments.threads.is_empty() { self.store.threads().await? } else { self.find_all(&arguments.threads).await? };
        let mut reports = Vec::new();
        let mut bad = 0;
        for id in ids {
            let known = self.known(id).await;
            match self.store.verify(id, known).await {
                Ok(verdict) => {
                    let damage: Vec<String> = verdict.damage.iter().map(|(thread, damage)| say(id, *thread, damage)).collect();
                    bad += usize::from(!damage.is_empty());
                    let whole = format!("{id}  {} entries, {} bytes", verdict.entries, verdict.bytes);
                    if !self.json {
                        let given_up = verdict.given_up;
                        let verdict = match damage.is_empty() {
                            true if given_up > 0 => format!("whole, but a repair gave up {given_up} of its entries"),
                            true => "whole".to_owned(),
                            false => damage.join("\n    "),
                        };
                        print(&format!("{whole}: {verdict}\n"))?;
                    }
                    reports.push(json!({"thread": id, "entries": verdict.entries, "last": verdict.last, "bytes": verdict.bytes, "givenUp": verdict.given_up, "damage": damage}));
                }
                Err(error) => {
                    bad += 1;
                    if !self.json {
                        print(&format!("{id}: {error}\n"))?;
                    }
                    reports.push(json!({"thread": id, "error": error.to_string()}));
                }
            }
        }
        if self.json {
            print_json(&json!({"threads": reports, "damaged": bad}))?;
        } else {
            print(&format!("{}, {bad} damaged\n", times::counted(reports.len() as u64, "thread")))?;
        }
        Ok(if bad == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
    }

    /// The highest ordinal that the index has seen, which tells of an end that is missing without a trace.
    async fn known(&self, id: ThreadId) -> Option<Ordinal> {
        self.store.indexed_last(id).await
    }

    pub(super) async fn repair(&self, arguments: RepairArguments) -> anyhow::Result<ExitCode> {
        let id = self.find(&arguments.thread).await?;
        // Started first, so that it learns what the repair gives up.
        let known = self.known(id).await;
        let verdict = self.store.verify(id, known).await?;
        if verdict.is_whole() {
            if self.json {
                print_json(&json!({"thread": id, "repaired": false}))?;
            } else {
                print(&format!("{id} is whole, nothing is to be repaired\n"))?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        let damage: Vec<String> = verdict.damage.iter().map(|(thread, damage)| say(id, *thread, damage)).collect();
        if !arguments.yes && !confirm(&format!("{}\nRewrite thread {id} from what is whole?", damage.join("\n")))? {
            print("nothing was changed\n")?;
            return Ok(ExitCode::from(FAILED));
        }
        let mode = if arguments.force { ClaimMode::TakeOver } else { ClaimMode::IfFree };
        let repair = self.store.repair(id, mode).await?;
        let lost: Vec<String> = repair.damage.iter().map(ToString::to_string).collect();
        if self.json {
            print_json(&json!({"thread": id, "repaired": true, "givenUp": lost, "kept": repair.kept}))?;
        } else {
            print(&format!("{id} was repaired\n"))?;
            for lost in lost {
                print(&format!("given up: {lost}\n"))?;
            }
            if let Some(kept) = repair.kept {
                print(&format!("the file as it was: {}\n", kept.display()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A fork's past may be damaged in another thread's journal.
fn say(asked: ThreadId, thread: ThreadId, damage: &outpost_store::Damage) -> String {
    if asked == thread { damage.to_string() } else { format!("{damage} (in thread {thread}, whose past it shares)") }
}
