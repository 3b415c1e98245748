//! The process that goes on with turns that were left to it: a server of this home, at `run/app.sock`.
//!
//! If `outpost serve` or `outpost app-server` runs for the home, that is the owner. Otherwise one is started in the background; it ends
//! when no turn runs in it and no client is connected.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use outpost_runtime::Runtime;
use outpost_runtime::live::{LiveThread, ThreadActivity, ThreadEvent};
use outpost_store::PageRequest;
use outpost_thread::{Fact, Seq, ThreadId};
use outpost_wire::app::thread::{ThreadResume, ThreadResumeParams};
use serde_json::json;
use tokio::process::Command;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::ProcessContext;
use crate::home::Home;
use crate::notify::Notifier;
use crate::remote::RemoteServer;
use crate::store;
use crate::variables::own_program;

/// How long an owner may take to listen.
const START: Duration = Duration::from_secs(20);
/// How often it is looked at whether it listens, and whether it is still needed.
const LOOK: Duration = Duration::from_millis(100);
/// An owner without work and clients waits so long for more.
const IDLE: Duration = Duration::from_secs(2);

/// The owner of this home, started if there is none.
pub(crate) async fn of_home(own: &ProcessContext) -> anyhow::Result<RemoteServer> {
    if let Some(server) = RemoteServer::of_home(own).await {
        return Ok(server);
    }
    let seat = Home::from_environment().context("there is no home: set OUTPOST_HOME")?.seat(&own.variables)?;
    seat.make_run().context("there is no place for the socket of the process that goes on with the turn")?;
    let (socket, log) = (seat.run.join("app.sock"), seat.run.join("owner.log"));
    let told = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&log);
    let told = told.with_context(|| format!("cannot write {}", log.display()))?;
    let mut child = Command::new(own_program())
        .args(["app-server", "--listen", "off", "--until-idle"])
        .env_clear()
        .envs(own.variables.every())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(told)
        .process_group(0)
        .spawn()
        .context("the process that goes on with the turn cannot be started")?;
    let until = Instant::now() + START;
    loop {
        if let Ok(server) = RemoteServer::at(&socket).await {
            return Ok(server);
        }
        if let Ok(Some(status)) = child.try_wait() {
            let why = std::fs::read_to_string(&log).unwrap_or_default();
            // Two may have been started at once; the other one listens.
            if let Ok(server) = RemoteServer::at(&socket).await {
                return Ok(server);
            }
            bail!("the process that goes on with the turn ended ({status}): {}", why.lines().last().unwrap_or("without a word"));
        }
        if Instant::now() > until {
            bail!("the process that goes on with the turn does not listen; see {}", log.display());
        }
        sleep(LOOK).await;
    }
}

/// Has the owner go on with a thread that this process has given up.
pub(crate) async fn take_up(thread: ThreadId, own: &ProcessContext) -> anyhow::Result<()> {
    let params: ThreadResumeParams = serde_json::from_value(json!({"threadId": thread.to_string(), "excludeTurns": true}))?;
    of_home(own).await?.call::<ThreadResume>(&params).await?;
    Ok(())
}

/// Counts the clients that are connected.
#[derive(Clone, Default)]
pub(crate) struct Clients(Arc<AtomicUsize>);

impl Clients {
    /// One more, until the result is dropped.
    pub(crate) fn enter(&self) -> ClientGuard {
        self.0.fetch_add(1, Ordering::AcqRel);
        ClientGuard(self.0.clone())
    }
}

pub(crate) struct ClientGuard(Arc<AtomicUsize>);

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Notifies the user of what happens in turns, as `exec` would.
pub(crate) struct Notifying {
    notifier: Notifier,
    /// Who follows which thread.
    followed: HashMap<ThreadId, AbortHandle>,
    tasks: JoinSet<()>,
    over: CancellationToken,
    /// What happened before was not the work of this process.
    looked_at: u64,
}

impl Notifying {
    pub(crate) fn new(notifier: Notifier) -> Self {
        let (followed, tasks, over) = (HashMap::new(), JoinSet::new(), CancellationToken::new());
        Self { notifier, followed, tasks, over, looked_at: store::now() }
    }

    fn look(&mut self, runtime: &Runtime, live: &[LiveThread]) {
        let looked_at = std::mem::replace(&mut self.looked_at, store::now());
        self.followed.retain(|_, task| !task.is_finished());
        while self.tasks.try_join_next().is_some() {}
        for thread in live.iter().filter(|thread| thread.maker().is_none()) {
            self.followed.entry(thread.id()).or_insert_with(|| {
                let notifier = self.notifier.clone().of_thread(thread.id());
                let turns = TurnWatch { thread: thread.clone(), notifier, since: looked_at };
                self.tasks.spawn(turns.run(runtime.clone(), self.over.clone()))
            });
        }
    }

    /// Waits until everything that happened was told.
    pub(crate) async fn finish(mut self) {
        self.over.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// A thread of whose turns the user is notified.
struct TurnWatch {
    thread: LiveThread,
    notifier: Notifier,
    /// A turn may be over before it is followed. What is older was told by the process that drove the thread then.
    since: u64,
}

impl TurnWatch {
    async fn run(mut self, runtime: Runtime, over: CancellationToken) {
        let begun = last_turn(&runtime, self.thread.id()).await;
        drop(runtime);
        let mut follow = self.thread.follow(begun.saturating_sub(1));
        loop {
            let event: ThreadEvent = tokio::select! {
                // Everything that has happened, before the end.
                biased;
                followed = follow.next() => followed.into(),
                () = over.cancelled() => break,
            };
            if matches!(event, ThreadEvent::Status(ThreadActivity::Closed)) {
                break;
            }
            self.hear(&event);
        }
        self.notifier.settle().await;
    }

    fn hear(&mut self, event: &ThreadEvent) {
        let ThreadEvent::Entry(entry) = event else { return };
        let is_told = entry.at < self.since;
        match &entry.fact {
            Fact::TurnFinished(_) | Fact::ApprovalAsked(_) if is_told => {}
            Fact::ApprovalAsked(asked) => self.notifier.question(asked),
            _ => self.notifier.event(event),
        }
    }
}

/// The first entry of the current or last turn.
async fn last_turn(runtime: &Runtime, thread: ThreadId) -> Seq {
    let last = runtime.store_of(thread).await.page(thread, PageRequest { turns: 1, ..PageRequest::default() }).await;
    last.ok().and_then(|page| page.entries.first().map(|entry| entry.seq)).unwrap_or(1)
}

/// Waits until there is nothing to go on with.
pub(crate) async fn until_idle(runtime: &Runtime, clients: &Clients, notifying: &mut Notifying) {
    let mut idle_since = Instant::now();
    loop {
        let live: Vec<LiveThread> = runtime.loaded().into_iter().filter_map(|id| runtime.get(id)).collect();
        notifying.look(runtime, &live);
        let is_busy = live.iter().any(|thread| matches!(thread.status(), ThreadActivity::Active { .. }));
        if is_busy || clients.0.load(Ordering::Acquire) > 0 {
            idle_since = Instant::now();
        }
        if idle_since.elapsed() > IDLE {
            return;
        }
        sleep(LOOK).await;
    }
}
