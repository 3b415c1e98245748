//! `outpost thread` against a server.

use std::process::ExitCode;

use anyhow::bail;
use outpost_store::{ListOrder, Store};
use outpost_thread::ThreadId;
use outpost_wire::app::ThreadParams;
use outpost_wire::app::thread::{
    OneOrMany, ThreadArchive, ThreadDelete, ThreadFork, ThreadForkParams, ThreadListParams, ThreadNameSet, ThreadNameSetParams,
    ThreadTakeover, ThreadUnarchive, ThreadVerify,
};
use serde_json::{Value, json};

use super::list::{Listing, show_rows};
use super::why::why_there;
use super::{Desk, confirm, print, print_json};
use crate::commands::FAILED;
use crate::remote::RemoteServer;
use crate::thread_args::{By, ForkArguments, ThreadCommand, ThreadListArguments};

pub(super) async fn run(server: RemoteServer, command: ThreadCommand, json: bool) -> anyhow::Result<ExitCode> {
    let desk = RemoteDesk { server, json };
    match command {
        ThreadCommand::List(arguments) => desk.list(arguments).await,
        ThreadCommand::Show(arguments) => desk.copied(&arguments.thread).await?.show(arguments).await,
        ThreadCommand::Export(arguments) => desk.copied(&arguments.thread).await?.export(arguments).await,
        ThreadCommand::Fork(arguments) => desk.fork(arguments).await,
        ThreadCommand::Rename(arguments) => {
            let id = desk.server.find(&arguments.thread).await?;
            let name = arguments.name.trim().to_owned();
            desk.server.call::<ThreadNameSet>(&ThreadNameSetParams { thread_id: id.to_string(), name: name.clone() }).await?;
            desk.tell(&[id], if name.is_empty() { "has no name any more" } else { "renamed" })
        }
        ThreadCommand::Archive(names) => {
            let ids = desk.find_all(&names.threads).await?;
            for id in &ids {
                desk.server.call::<ThreadArchive>(&named(*id)).await?;
            }
            desk.tell(&ids, "archived")
        }
        ThreadCommand::Unarchive(names) => {
            let ids = desk.find_all(&names.threads).await?;
            for id in &ids {
                desk.server.call::<ThreadUnarchive>(&named(*id)).await?;
            }
            desk.tell(&ids, "unarchived")
        }
        ThreadCommand::Takeover(names) => {
            let ids = desk.find_all(&names.threads).await?;
            for id in &ids {
                desk.server.call::<ThreadTakeover>(&named(*id)).await?;
            }
            desk.tell(&ids, "was taken over by the server")
        }
        ThreadCommand::Rm(arguments) => {
            if arguments.force {
                bail!("--force takes a thread from another program: stop its turn, or use `outpost thread takeover --server URL` first");
            }
            let ids = desk.find_all(&arguments.threads).await?;
            for id in &ids {
                if !arguments.yes && !confirm(&format!("Remove thread {id} of {} for good?", desk.server.address()))? {
                    print("nothing was removed\n")?;
                    return Ok(ExitCode::from(FAILED));
                }
                desk.server.call::<ThreadDelete>(&named(*id)).await?;
            }
            desk.tell(&ids, "removed")
        }
        ThreadCommand::Verify(arguments) => desk.verify(&arguments.threads).await,
        ThreadCommand::Why(name) => why_there(&desk.server, &name.thread, desk.json).await,
        ThreadCommand::Repair(_) | ThreadCommand::Import(_) => {
            bail!("this reads or writes files of the server's home: run it on the server's machine, without --server")
        }
    }
}

fn named(id: ThreadId) -> ThreadParams {
    ThreadParams { thread_id: id.to_string() }
}

struct RemoteDesk {
    server: RemoteServer,
    json: bool,
}

impl RemoteDesk {
    async fn find_all(&self, names: &[String]) -> anyhow::Result<Vec<ThreadId>> {
        let mut found = Vec::new();
        for name in names {
            found.push(self.server.find(name).await?);
        }
        Ok(found)
    }

    /// A desk with nothing on it but a copy of this thread.
    async fn copied(&self, name: &str) -> anyhow::Result<Desk> {
        let id = self.server.find(name).await?;
        Ok(Desk { store: Store::Memory(self.server.copy(id).await?), json: self.json, is_quiet: true })
    }

    async fn list(&self, arguments: ThreadListArguments) -> anyhow::Result<ExitCode> {
        let kin = |name: Option<String>| async move {
            match name {
                Some(name) => self.server.find(&name).await.map(|id| Some(id.to_string())),
                None => Ok(None),
            }
        };
        let order = match arguments.by {
            By::Updated => ListOrder::Updated,
            By::Created => ListOrder::Created,
            By::Recency => ListOrder::Recency,
        };
        if arguments.all {
            bail!("a server lists threads or archived threads: leave --all out, or ask again with --archived");
        }
        let params = ThreadListParams {
            cursor: arguments.after,
            limit: Some(arguments.limit),
            archived: Some(arguments.archived),
            source_kinds: Some(arguments.source).filter(|sources| !sources.is_empty()),
            cwd: Some(arguments.cwd).filter(|cwds| !cwds.is_empty()).map(OneOrMany::Many),
            search_term: arguments.search,
            parent_thread_id: kin(arguments.children_of).await?,
            ancestor_thread_id: kin(arguments.below).await?,
            ..crate::remote::list_params(order, arguments.reverse)
        };
        let page = self.server.threads(&params).await?;
        if self.json {
            let threads: Vec<_> = page.rows.iter().map(|row| &row.summary).collect();
            print_json(&json!({"threads": threads, "nextCursor": page.next}))?;
            return Ok(ExitCode::SUCCESS);
        }
        let rows: Vec<_> = page.rows.iter().map(|row| (&row.summary, row.is_loaded)).collect();
        show_rows(&Listing { rows: &rows, next: page.next.as_deref(), is_narrow: true })?;
        Ok(ExitCode::SUCCESS)
    }

    async fn fork(&self, arguments: ForkArguments) -> anyhow::Result<ExitCode> {
        let parent = self.server.find(&arguments.thread).await?;
        if arguments.before_message.is_some() {
            bail!("a server forks at turns: use --after-turn or --before-turn; `outpost thread show` names them");
        }
        let params: ThreadForkParams = serde_json::from_value(json!({
            "threadId": parent.to_string(), "lastTurnId": arguments.after_turn, "beforeTurnId": arguments.before_turn, "excludeTurns": true,
        }))?;
        let fork = self.server.call::<ThreadFork>(&params).await?;
        let id = fork.thread.id;
        if let Some(name) = arguments.name {
            self.server.call::<ThreadNameSet>(&ThreadNameSetParams { thread_id: id.clone(), name }).await?;
        }
        match self.json {
            true => print_json(&json!({"thread": id, "parent": parent, "ordinal": fork.ordinal}))?,
            false => print(&format!("{id}\n"))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn verify(&self, names: &[String]) -> anyhow::Result<ExitCode> {
        if names.is_empty() {
            bail!("name the threads to be read; all of them are read on the server's machine, without --server");
        }
        let mut is_whole = true;
        let mut rows: Vec<Value> = Vec::new();
        for id in self.find_all(names).await? {
            let verdict = self.server.call::<ThreadVerify>(&named(id)).await?;
            is_whole &= verdict.whole;
            if !self.json {
                let words = if verdict.whole { "whole" } else { "damaged" };
                print(&format!("{id} {words}: {} entries, {} bytes\n", verdict.entries, verdict.bytes))?;
            }
            rows.push(json!({"thread": id, "whole": verdict.whole, "entries": verdict.entries, "bytes": verdict.bytes}));
        }
        if self.json {
            print_json(&Value::from(rows))?;
        }
        Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
    }

    fn tell(&self, ids: &[ThreadId], what: &str) -> anyhow::Result<ExitCode> {
        match self.json {
            true => print_json(&json!(ids))?,
            false => ids.iter().try_for_each(|id| print(&format!("{id} {what}\n")))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
