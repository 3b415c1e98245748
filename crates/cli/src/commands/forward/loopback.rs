//! Whose loopback is meant, and how a port of it is connected with.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use outpost_environment::{Environment, EnvironmentError, RemoteProcess};
use outpost_store::{PageRequest, Store};
use outpost_thread::{Fact, ThreadId};
use outpost_wire::exec::adoption::AdoptableProcess;
use outpost_wire::exec::process::PortConnection;
use uuid::Uuid;

use crate::ProcessContext;
use crate::args::PlaceArguments;
use crate::commands::thread;
use crate::forward_args::ForwardArguments;
use crate::store;

/// So many commands of a thread are named to the executor, the newest first.
const NAMED: usize = 64;
/// They are read from the end of the journal, so much at once.
const TURNS: usize = 16;
const BYTES: usize = 1 << 20;
/// The journal is not looked at again within this: a browser tries again and again.
const FRESH: Duration = Duration::from_secs(1);

/// Where ports are connected with.
pub(super) enum Loopback {
    /// That of the machine.
    Machine,
    /// The one that the commands of a thread see.
    Thread(ThreadCommands),
}

/// The commands of a thread in one environment.
pub(super) struct ThreadCommands {
    store: Store,
    thread: ThreadId,
    environment: String,
    known: Mutex<Arc<Vec<AdoptableProcess>>>,
    /// When the journal was looked at last. Held by the one who does.
    looked: tokio::sync::Mutex<Option<Instant>>,
}

impl Loopback {
    pub(super) async fn find(arguments: &ForwardArguments, place: &PlaceArguments, own: &ProcessContext) -> anyhow::Result<Self> {
        if !arguments.is_of_thread() {
            return Ok(Self::Machine);
        }
        let store = store::open(None, &own.settings).await?;
        let thread = match &arguments.thread {
            Some(name) => thread::find(&store, name).await?,
            None => thread::last(&store).await?,
        };
        let environment = place.environment.clone().context("--thread needs the name of an environment")?;
        let commands = ThreadCommands { store, thread, environment, known: Mutex::default(), looked: tokio::sync::Mutex::default() };
        commands.look().await?;
        if commands.known().is_empty() {
            bail!("thread {thread} has run no command in `{}`, so it has no sandbox there", commands.environment);
        }
        Ok(Self::Thread(commands))
    }

    /// Where else a server may be that is not found.
    pub(super) fn hint(&self) -> &'static str {
        match self {
            Self::Machine => " (--thread reaches what the agent of a thread started in its sandbox)",
            Self::Thread(_) => " inside the sandbox of the thread",
        }
    }

    pub(super) async fn connect(&self, environment: &Environment, port: u16) -> anyhow::Result<RemoteProcess> {
        // Also after it was given up: the user who connects asks for it.
        environment.connect().await?;
        let Self::Thread(commands) = self else {
            return Ok(connect(environment, port, Vec::new()).await?);
        };
        let known = commands.known();
        match connect(environment, port, known.to_vec()).await {
            // The thread may have gone on meanwhile, in another session.
            Err(error @ EnvironmentError::Fault(_)) => {
                commands.look().await?;
                let now = commands.known();
                if now == known {
                    return Err(error.into());
                }
                Ok(connect(environment, port, now.to_vec()).await?)
            }
            other => Ok(other?),
        }
    }
}

async fn connect(environment: &Environment, port: u16, beside: Vec<AdoptableProcess>) -> Result<RemoteProcess, EnvironmentError> {
    environment.connect_port(format!("forward-{}", Uuid::new_v4()), PortConnection { port, pull: true, beside }).await
}

impl ThreadCommands {
    fn known(&self) -> Arc<Vec<AdoptableProcess>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads in the thread's journal which commands it has run there, unless that was done just now.
    async fn look(&self) -> anyhow::Result<()> {
        let mut looked = self.looked.lock().await;
        if looked.is_some_and(|at| at.elapsed() < FRESH) {
            return Ok(());
        }
        let commands = self.newest().await?;
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(commands);
        *looked = Some(Instant::now());
        Ok(())
    }

    /// From the end of the journal, and no more of it than needed.
    async fn newest(&self) -> anyhow::Result<Vec<AdoptableProcess>> {
        let key = self.store.adoption_key().await.map_err(anyhow::Error::msg)?.context("this store keeps no commands")?;
        let id = key.id();
        let mut commands = Vec::new();
        let mut request = PageRequest { before: None, turns: TURNS, bytes: BYTES };
        loop {
            let page = self.store.page(self.thread, request).await?;
            let named = page.entries.iter().rev().filter_map(|entry| match &entry.fact {
                Fact::CallStarted(started) if started.adoption_key.as_deref() == Some(id.as_str()) => {
                    let is_there = started.environment.as_ref().is_some_and(|environment| environment.as_str() == self.environment);
                    started.process.clone().filter(|_| is_there)
                }
                _ => None,
            });
            let room = NAMED - commands.len();
            commands.extend(named.take(room).map(|process_id| AdoptableProcess { secret: key.secret(&process_id), process_id }));
            // Further back as far as there is something, and never on the spot.
            match page.before.filter(|before| request.before.is_none_or(|at| *before < at)) {
                Some(before) if commands.len() < NAMED => request.before = Some(before),
                _ => return Ok(commands),
            }
        }
    }
}
