//! `outpost thread fork | rename | archive | unarchive | rm | takeover`.

use std::process::ExitCode;

use anyhow::Context;
use outpost_store::{ClaimError, ClaimMode, FactsAside, ForkRequest, Lease, Need, Store, append_aside};
use outpost_thread::{Cut, ForkPoint, Marker, MetadataChanged, Outline, ThreadForked, ThreadId, TurnId};
use serde_json::json;
use uuid::Uuid;

use super::{Desk, confirm, print, print_json};
use crate::commands::FAILED;
use crate::store::now;
use crate::thread_args::{ForkArguments, NameArguments, RemoveArguments, RenameArguments};

impl Desk {
    pub(super) async fn fork(&self, arguments: ForkArguments) -> anyhow::Result<ExitCode> {
        let parent = self.find(&arguments.thread).await?;
        let point = match (arguments.before_message, arguments.after_turn, arguments.before_turn) {
            (Some(n), ..) => ForkPoint::BeforeUserMessage(n),
            (_, Some(turn), _) => ForkPoint::AfterTurn(TurnId::from(turn)),
            (_, _, Some(turn)) => ForkPoint::BeforeTurn(TurnId::from(turn)),
            _ => ForkPoint::Interrupted(Marker::User),
        };
        let cut = cut(&self.store, parent, &point).await?;
        let thread = ThreadId::new(Uuid::now_v7());
        let forked = ThreadForked { name: arguments.name, ..ThreadForked::new(thread, parent) };
        let ordinal = cut.ordinal;
        let lease = self.store.fork(ForkRequest { forked, cut, at: now() }).await?;
        self.store.release(lease).await;
        if self.json {
            print_json(&json!({"thread": thread, "parent": parent, "ordinal": ordinal}))?;
        } else {
            print(&format!("{thread}\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    pub(super) async fn rename(&self, arguments: RenameArguments) -> anyhow::Result<ExitCode> {
        let id = self.find(&arguments.thread).await?;
        let name = Some(arguments.name.trim().to_owned()).filter(|name| !name.is_empty());
        let is_cleared = name.is_none();
        let lease = self.store.claim(id, ClaimMode::IfFree).await?;
        let written = self.describe(&lease, MetadataChanged { name: Some(name), ..MetadataChanged::default() }).await;
        self.store.release(lease).await;
        written.with_context(|| format!("cannot change {id}"))?;
        self.tell(&[id], if is_cleared { "has no name any more" } else { "renamed" })
    }

    pub(super) async fn archive(&self, names: NameArguments, archived: bool) -> anyhow::Result<ExitCode> {
        let mut changed = Vec::new();
        for id in self.find_all(&names.threads).await? {
            let lease = self.store.claim(id, ClaimMode::IfFree).await?;
            let written = self.describe(&lease, MetadataChanged { archived: Some(archived), ..MetadataChanged::default() }).await;
            self.store.release(lease).await;
            written.with_context(|| format!("cannot change {id}"))?;
            changed.push(id);
        }
        self.tell(&changed, if archived { "archived" } else { "unarchived" })
    }

    async fn describe(&self, lease: &Lease, fact: MetadataChanged) -> anyhow::Result<()> {
        let last = self.store.head(lease.thread).await?.last;
        append_aside(&self.store, lease, FactsAside { last, at: now(), facts: vec![fact.into()], need: Need::Durable }).await?;
        Ok(())
    }

    pub(super) async fn rm(&self, arguments: RemoveArguments) -> anyhow::Result<ExitCode> {
        let ids = self.find_all(&arguments.threads).await?;
        let mode = if arguments.force { ClaimMode::TakeOver } else { ClaimMode::IfFree };
        let mut removed = Vec::new();
        for id in ids {
            let shown =
                self.store.summary(id).await?.map_or_else(|| id.to_string(), |thread| format!("{id} ({})", super::list::title(&thread)));
            if !arguments.yes && !confirm(&format!("Remove thread {shown} for good?"))? {
                print("nothing was removed\n")?;
                return Ok(ExitCode::from(FAILED));
            }
            self.store.delete(id, mode).await?;
            removed.push(id);
        }
        self.tell(&removed, "removed")
    }

    pub(super) async fn takeover(&self, names: NameArguments) -> anyhow::Result<ExitCode> {
        let mut taken = Vec::new();
        for id in self.find_all(&names.threads).await? {
            // The user is told who has it before it is taken.
            let before = match self.store.claim(id, ClaimMode::IfFree).await {
                Ok(lease) => {
                    self.store.release(lease).await;
                    None
                }
                Err(ClaimError::Held { holder, .. }) => {
                    let lease = self.store.claim(id, ClaimMode::TakeOver).await?;
                    self.store.release(lease).await;
                    Some(holder)
                }
                Err(error) => return Err(error.into()),
            };
            taken.push((id, before));
        }
        if self.json {
            let all: Vec<_> = taken.iter().map(|(id, holder)| json!({"thread": id, "takenFrom": holder})).collect();
            print_json(&json!(all))?;
        } else {
            for (id, holder) in taken {
                print(&match holder {
                    Some(holder) => format!("{id} was taken from {holder}; its next write fails\n"),
                    None => format!("{id} is free, no program writes it\n"),
                })?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn tell(&self, threads: &[ThreadId], what: &str) -> anyhow::Result<ExitCode> {
        if self.json {
            print_json(&json!({what: threads}))?;
        } else {
            for id in threads {
                print(&format!("{what} {id}\n"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Where a fork leaves its parent. Only cuts in the middle need to know the whole thread.
async fn cut(store: &Store, parent: ThreadId, point: &ForkPoint) -> anyhow::Result<Cut> {
    if let ForkPoint::Interrupted(marker) = point {
        return Ok(outpost_store::open(store, parent).await?.thread.cut_here(*marker));
    }
    let mut outline = Outline::default();
    let mut history = store.history(parent, 0).await?;
    while let Some(batch) = history.next().await? {
        batch.entries.iter().for_each(|entry| outline.apply(entry));
    }
    Ok(outline.cut(point)?)
}
