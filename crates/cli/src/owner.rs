//! The process that goes on with turns that were left to it: a server of this home, at `run/app.sock`.
//!
//! If `outpost serve` or `outpost app-server` runs for the home, that is the owner. Otherwise one is started in the background; it ends
//! when no turn runs in it and no client is connected.

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use outpost_runtime::Runtime;
use outpost_runtime::live::{LiveThread, ThreadActivity, ThreadEvent};
use outpost_thread::{Fact, ThreadId};
use outpost_wire::app::thread::{ThreadResume, ThreadResumeParams};
use serde_json::json;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::ProcessContext;
use crate::home::Home;
use crate::notify::Notifier;
use crate::remote::RemoteServer;
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

/// Waits until there is nothing to go on with. Meanwhile the user is notified of what happens in turns, as `exec` would.
pub(crate) async fn until_idle(runtime: &Runtime, clients: &Clients, notifier: &Notifier) {
    let mut followed: HashSet<ThreadId> = HashSet::new();
    let mut idle_since = Instant::now();
    loop {
        let live: Vec<LiveThread> = runtime.loaded().into_iter().filter_map(|id| runtime.get(id)).collect();
        for thread in live.iter().filter(|thread| thread.maker().is_none()) {
            if followed.insert(thread.id()) {
                tokio::spawn(notify(thread.clone(), notifier.clone().of_thread(thread.id())));
            }
        }
        followed.retain(|id| live.iter().any(|thread| thread.id() == *id));
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

async fn notify(thread: LiveThread, mut notifier: Notifier) {
    let mut follow = thread.follow_from_now();
    loop {
        let event: ThreadEvent = follow.next().await.into();
        if matches!(event, ThreadEvent::Status(ThreadActivity::Closed)) {
            return;
        }
        notifier.event(&event);
        if let ThreadEvent::Entry(entry) = &event
            && let Fact::ApprovalAsked(asked) = &entry.fact
        {
            notifier.question(asked);
        }
    }
}
