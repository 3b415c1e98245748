//! The process that goes on with turns that were left to it: a server of this home, at `run/app.sock`.
//!
//! If `outpost serve` or `outpost app-server` runs for the home, that is the owner. Otherwise one is started in the background; it ends
//! when no turn runs in it, none of its threads waits for the end of a command to begin one, and no client is connected.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use outpost_runtime::Runtime;
use outpost_runtime::live::{LiveThread, ThreadActivity};
use outpost_thread::ThreadId;
use outpost_wire::app::thread::{ThreadResume, ThreadResumeParams};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::ProcessContext;
use crate::home::Home;
use crate::notify::turns::Notifying;
use crate::remote::RemoteServer;
use crate::variables::own_program;

/// How long an owner may take to listen.
const START: Duration = Duration::from_secs(20);
/// How often it is looked at whether it listens, and whether it is still needed.
pub(crate) const LOOK: Duration = Duration::from_millis(100);
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
            bail!("the process that goes on with the turn ended ({status}): {}", why.lines().last().unwrap_or("it said nothing"));
        }
        if Instant::now() > until {
            bail!("the process that goes on with the turn does not listen; see {}", log.display());
        }
        sleep(LOOK).await;
    }
}

/// Has the owner go on with a thread that this process has given up.
pub(crate) async fn take_up(thread: ThreadId, own: &ProcessContext) -> anyhow::Result<()> {
    let params = ThreadResumeParams { thread_id: thread.to_string(), exclude_turns: true, ..ThreadResumeParams::default() };
    of_home(own).await?.call::<ThreadResume>(&params).await?;
    Ok(())
}

/// Has the owner begin the turns that ends of commands are to begin in a thread that this process has given up.
pub(crate) async fn take_up_wakes(thread: ThreadId, own: &ProcessContext) -> anyhow::Result<()> {
    if !own.settings.is_empty() {
        bail!("-c is for turns of this program; write the setting into config.toml");
    }
    take_up(thread, own).await
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

/// Whether the end of a command is to begin a turn in one of them.
async fn any_awaits_a_command(live: &[LiveThread]) -> bool {
    for thread in live {
        if thread.snapshot().await.is_ok_and(|state| !state.wakes.is_empty()) {
            return true;
        }
    }
    false
}

/// Waits until there is nothing to go on with.
pub(crate) async fn until_idle(runtime: &Runtime, clients: &Clients, notifying: &mut Notifying) {
    let mut idle_since = Instant::now();
    loop {
        let live = loaded(runtime);
        notifying.look(runtime, &live);
        let is_busy = live.iter().any(|thread| matches!(thread.status(), ThreadActivity::Active { .. }));
        if is_busy || clients.0.load(Ordering::Acquire) > 0 {
            idle_since = Instant::now();
        }
        if idle_since.elapsed() > IDLE {
            if !any_awaits_a_command(&live).await {
                return;
            }
            idle_since = Instant::now();
        }
        sleep(LOOK).await;
    }
}

/// The threads that this process drives.
pub(crate) fn loaded(runtime: &Runtime) -> Vec<LiveThread> {
    runtime.loaded().into_iter().filter_map(|id| runtime.get(id)).collect()
}
