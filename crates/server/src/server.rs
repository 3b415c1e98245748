//! What all clients share: the runtime, the facts about this program, the table of methods, and who is connected.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use outpost_rpc::Link;
use outpost_runtime::Runtime;
use outpost_store::Clock;
use outpost_thread::ThreadId;
use outpost_wire::PathUri;
use outpost_wire::SharedError;
use outpost_wire::app::config::ConfigRequirements;
use outpost_wire::app::event::Notice;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

use crate::agents;
use crate::configuration::UserConfiguration;
use crate::connection::{self, ClientConnection};
use crate::methods;
use crate::news;
use crate::people::ClientIdentity;
use crate::projection::Defaults;
use crate::questions::ClientQuestions;
use crate::table::Table;

/// What a server is made of.
pub struct ServerParts {
    pub runtime: Runtime,
    pub facts: Facts,
    pub clock: Clock,
}

/// What clients are told about this program, and where paths begin.
#[derive(Debug, Clone)]
pub struct Facts {
    pub home: PathBuf,
    /// Relative directories of clients are below this one.
    pub cwd: PathUri,
    pub version: String,
    /// `config.toml` and what was put over it, as JSON; without secrets.
    pub config: Value,
    /// Whether a text would do as `config.toml`, and if not, why.
    pub check_config: fn(&str) -> Result<(), SharedError>,
    /// What the administrator of this machine requires, if anything.
    pub requirements: Option<ConfigRequirements>,
}

/// All clients of one runtime. Cheap to clone.
#[derive(Clone)]
pub struct Server(pub(crate) Arc<ServerShared>);

pub(crate) struct ServerShared {
    pub runtime: Runtime,
    pub facts: Facts,
    pub clock: Clock,
    pub table: Table,
    pub defaults: Arc<Defaults>,
    pub questions: ClientQuestions,
    pub configuration: UserConfiguration,
    connections: Mutex<HashMap<u64, Weak<ClientConnection>>>,
    next_connection: AtomicU64,
    news: OnceLock<AbortOnDropHandle<()>>,
    skill_news: OnceLock<AbortOnDropHandle<()>>,
    agent_news: OnceLock<AbortOnDropHandle<()>>,
}

impl Server {
    pub fn new(parts: ServerParts) -> Self {
        let ServerParts { runtime, facts, clock } = parts;
        let defaults = Arc::new(Defaults::of(runtime.config(), &facts));
        let configuration = UserConfiguration::new(&facts);
        Self(Arc::new(ServerShared {
            configuration,
            runtime,
            facts,
            clock,
            table: methods::table(),
            defaults,
            questions: ClientQuestions::default(),
            connections: Mutex::default(),
            next_connection: AtomicU64::new(1),
            news: OnceLock::new(),
            skill_news: OnceLock::new(),
            agent_news: OnceLock::new(),
        }))
    }

    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        self.0.connections().len()
    }

    /// Ends the connections of all clients, after what was said on them: those that come back find the next server.
    pub fn close(&self) {
        for connection in self.0.connections() {
            connection.retire();
        }
    }

    /// Serves one client until its link ends.
    pub async fn serve(&self, link: Link) {
        self.serve_as(link, ClientIdentity::default()).await;
    }

    /// The same for a client that is known.
    pub async fn serve_as(&self, link: Link, identity: ClientIdentity) {
        connection::serve(self.0.clone(), link, identity).await;
    }
}

impl ServerShared {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Weak<ClientConnection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with the first client; before that there is no receiver.
    pub(crate) fn follow_environments(self: &Arc<Self>) {
        self.news.get_or_init(|| {
            let following = news::follow(Arc::downgrade(self), self.runtime.registry().clone());
            AbortOnDropHandle::new(tokio::spawn(following))
        });
    }

    /// Begins with the first client, too.
    pub(crate) fn follow_agents(self: &Arc<Self>) {
        self.agent_news.get_or_init(|| {
            let following = agents::follow(Arc::downgrade(self), self.runtime.agent_starts());
            AbortOnDropHandle::new(tokio::spawn(following))
        });
    }

    /// Begins when a client first says who it is.
    pub(crate) fn follow_skills(self: &Arc<Self>) {
        self.skill_news.get_or_init(|| {
            let following = news::follow_skills(Arc::downgrade(self), self.runtime.skill_changes());
            AbortOnDropHandle::new(tokio::spawn(following))
        });
    }

    pub(crate) fn next_connection(&self) -> u64 {
        self.next_connection.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn enter(&self, connection: &Arc<ClientConnection>) {
        self.lock().insert(connection.id, Arc::downgrade(connection));
    }

    pub(crate) fn leave(&self, id: u64) {
        self.lock().remove(&id);
    }

    pub(crate) fn connections(&self) -> Vec<Arc<ClientConnection>> {
        self.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Those who hear of a thread.
    pub(crate) fn subscribers(&self, thread: ThreadId) -> Vec<Arc<ClientConnection>> {
        self.connections().into_iter().filter(|connection| connection.is_subscribed(thread)).collect()
    }

    /// Sends to all clients whose tokens are not limited to single threads or environments.
    pub(crate) fn broadcast(&self, notice: &Notice) {
        for connection in self.connections().into_iter().filter(|connection| !connection.identity.is_limited()) {
            connection.tell(notice);
        }
    }
}
