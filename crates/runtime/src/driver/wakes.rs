//! Commands whose end begins a turn: followed wherever they run, also after a restart, and told to the model exactly once.
//!
//! The wake-up and the end of it are entries of the thread. The input that begins the turn is written together with the end, so a program
//! that is killed before has told nothing, and one that is killed after has nothing left to tell. The input has a key, by which one that
//! was killed between the two is known.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use outpost_store::Need;
use outpost_thread::{Fact, InputId, InputOrigin, InputReceived, Raw, WAKE_KEY, WakeEnded, WakeSet};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Driver, Stop};
use crate::tools::CallRuntime;
use crate::tools::command_report::SESSION_ID;
use crate::tools::former::{FormerCommand, FoundCommand, SearchAround, find_again};
use crate::tools::left::LeftCommands;
use crate::tools::processes::{ProcessEnd, RunningCommand};

/// As much of its output as any command may show.
const OUTPUT_TOKENS: usize = 10_000;

/// What the driver knows of them.
#[derive(Default)]
pub(super) struct Wakes {
    followed: HashSet<u64>,
    followers: JoinSet<EndedCommand>,
    /// Those that have ended and whose turn has not begun.
    ended: Vec<EndedCommand>,
}

struct EndedCommand {
    session: u64,
    /// Why it is lost, if it is.
    command: Result<Arc<RunningCommand>, String>,
}

impl Wakes {
    pub(super) fn are_followed(&self) -> bool {
        !self.followers.is_empty()
    }

    /// Whether the turn of one that has ended waits for its place among the agents at work.
    pub(super) fn wait_for_place(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Waits until one of them has ended.
    pub(super) async fn ended(&mut self) {
        if let Some(Ok(ended)) = self.followers.join_next().await {
            self.ended.push(ended);
        }
    }
}

impl Driver {
    /// Follows those that are not followed yet: they were set just now, or by a previous run of the thread.
    pub(super) async fn follow_wakes(&mut self) {
        // A place that is withheld is not searched: its node has the command, and its end is not known here.
        let is_withheld = |wake: &WakeSet| self.shared.is_withheld(&self.thread, &wake.environment);
        let is_new = |wake: &&WakeSet| !self.wakes.followed.contains(&wake.session) && !is_withheld(wake);
        let new: Vec<WakeSet> = self.thread.wakes.iter().filter(is_new).cloned().collect();
        if new.is_empty() {
            return;
        }
        self.own_processes().await;
        for wake in new {
            let session = wake.session;
            self.wakes.followed.insert(session);
            if let Some(command) = self.processes.get(session) {
                self.wakes.followers.spawn(async move {
                    command.wait(Duration::MAX).await;
                    EndedCommand { session, command: Ok(command) }
                });
                continue;
            }
            let (shared, thread) = (self.shared.clone(), self.thread.clone());
            let left = LeftCommands {
                registry: shared.registry.clone(),
                store: self.journal.store.clone(),
                processes: self.processes.clone(),
                thread: thread.clone(),
            };
            self.wakes.followers.spawn(async move {
                let WakeSet { environment, process, adoption_key: key, executor, .. } = wake;
                let former = FormerCommand { session, environment, process, key, executor };
                let cancel = CancellationToken::new();
                let runtime = CallRuntime::new(shared);
                let around = SearchAround { runtime: &runtime, thread: &thread, cancel: &cancel };
                let command = match find_again(&around, &former, &left.processes).await {
                    Ok(FoundCommand::Followed(command)) => Ok(command),
                    Ok(FoundCommand::Process(process)) => {
                        let earlier = left.earlier(session).await;
                        let (detail, shown) = earlier.map(|earlier| (earlier.detail, earlier.shown)).unwrap_or_default();
                        let command = left.processes.follow_after(wake.call, process, detail, shown);
                        // One more than are kept is followed here all the same.
                        drop(left.processes.keep(session, command.clone()));
                        Ok(command)
                    }
                    // A call of the running turn may have found it first.
                    Err(reason) => left.processes.get(session).ok_or(reason),
                };
                if let Ok(command) = &command {
                    command.wait(Duration::MAX).await;
                }
                EndedCommand { session, command }
            });
        }
    }

    /// Begins a turn with what has ended, unless the model was told of it in another way.
    pub(super) async fn wake(&mut self) -> Result<(), Stop> {
        // One that was told in another way begins no turn, and needs no place among the agents at work.
        let is_awaited = |ended: &EndedCommand| self.thread.wakes.iter().any(|wake| wake.session == ended.session);
        let has_new = self.wakes.ended.iter().any(is_awaited);
        if self.wakes.ended.is_empty() || (has_new && !self.seat.work()) {
            return Ok(());
        }
        let mut facts = Vec::new();
        for EndedCommand { session, command } in std::mem::take(&mut self.wakes.ended) {
            self.wakes.followed.remove(&session);
            if self.thread.wakes.iter().all(|wake| wake.session != session) {
                continue;
            }
            let text = told(session, &command);
            self.processes.forget(session);
            let key = format!("{WAKE_KEY}{session}");
            // The program was killed after it had written the first of the two.
            if self.thread.keyed(&key).is_some() {
                facts.push(WakeEnded { session }.into());
                continue;
            }
            let received = InputReceived {
                input: InputId((self.shared.ids)()),
                turn: None,
                origin: InputOrigin::Agent,
                client_key: Some(key),
                by: None,
                content: vec![Raw::from(json!({"type": "text", "text": text}))],
                items: Vec::new(),
            };
            facts.extend([received.into(), WakeEnded { session }.into()]);
        }
        self.record(facts, Need::BeforeEffect).await?;
        if self.thread.turn.is_none() && self.thread.queued.is_empty() {
            self.seat.rest();
        }
        Ok(())
    }

    /// No turn begins with the end of such a command, or of any.
    pub(super) async fn forget_wakes(&mut self, session: Option<u64>) -> Result<(), Stop> {
        let over = self.thread.wakes.iter().map(|wake| wake.session).filter(|own| session.is_none_or(|session| session == *own));
        let facts: Vec<Fact> = over.map(|session| WakeEnded { session }.into()).collect();
        self.record(facts, Need::Stored).await
    }
}

/// What the model is told of a command that has ended.
fn told(session: u64, command: &Result<Arc<RunningCommand>, String>) -> String {
    let (name, state, output) = match command {
        Ok(command) => {
            let state = match command.end() {
                Some(ProcessEnd::Exited { code, limit: Some(limit), .. }) => format!("Exit code: {code}\nIt was stopped by {limit}."),
                Some(ProcessEnd::Exited { code, .. }) => format!("Exit code: {code}"),
                Some(ProcessEnd::Lost(reason)) => format!("Lost: its outcome is unknown ({reason})"),
                None => "Its outcome is unknown".to_owned(),
            };
            (
                format!(" `{}`", command.detail.command),
                state,
                format!("\nOutput since it was last shown:\n{}", command.take(OUTPUT_TOKENS).text),
            )
        }
        Err(reason) => (String::new(), format!("Lost: its outcome is unknown ({reason})"), String::new()),
    };
    format!("The command{name} with the {SESSION_ID} {session}, which was started with wake, has ended.\n{state}{output}")
}
