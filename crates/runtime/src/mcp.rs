//! MCP servers: what is declared, which of them run, and what a step may use of them.
//!
//! A server lives in an environment. One that speaks over standard input and output is started there as any other process,
//! under the sandbox of the thread that uses it; one that speaks HTTP is reached from that environment's place in the network. Servers
//! are shared: threads that declare the same server in the same place use one process.
//!
//! Who speaks the protocol: the crate `mcp`. Here a server is a `dyn McpConnection`.

pub mod binding;
mod credentials;
pub mod declaration;
pub mod layers;
pub(crate) mod machine;
pub mod pool;
pub(crate) mod project;
pub mod refresh;
pub mod requirements;
pub mod told;
pub(crate) mod watching;
pub(crate) mod withheld;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use outpost_mcp::{Elicitation, ElicitationAnswer, McpError, McpLimits, ServerListing, ServerTool, ToolResult};
use outpost_thread::ThreadId;
use outpost_wire::SharedError;
use serde::Serialize;
use tokio::sync::watch;

pub use self::binding::{Binding, BoundServer, BoundTool};
pub use self::declaration::{DeclarationError, DeclarationOrigin, ServerDeclaration};
pub use self::layers::{SESSION_LAYER, ServerLayer};
pub use self::pool::{Pool, ServerState};
use self::project::Projects;
pub use self::requirements::Requirements;
use self::watching::Watching;
use self::withheld::Withheld;
use crate::secrets::Secrets;

/// What lies in files of this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Configured {
    /// Or why they cannot be read.
    pub servers: Result<ServerLayer, SharedError>,
    /// What its administrator requires of all servers, whether or not the others can be read.
    pub requirements: Requirements,
}

impl Default for Configured {
    fn default() -> Self {
        Ok(ServerLayer::default()).into()
    }
}

impl From<Result<ServerLayer, SharedError>> for Configured {
    fn from(servers: Result<ServerLayer, SharedError>) -> Self {
        Self { servers, requirements: Requirements::default() }
    }
}

/// Reads the layers of configuration that are kept in files, for a thread that works in this directory, and hears when they change.
/// The runtime itself reads no files of its own machine.
#[derive(Clone)]
pub struct LayerSource {
    read: Arc<Reading>,
    changes: Arc<Hearing>,
}

type Reading = dyn Fn(Option<&str>) -> Configured + Send + Sync;
type Hearing = dyn Fn() -> Option<watch::Receiver<u64>> + Send + Sync;

impl LayerSource {
    pub fn new(read: impl Fn(Option<&str>) -> Configured + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), changes: Arc::new(|| None) }
    }

    /// With a way to hear of changes. It is asked for once, when the first thread takes a step; each new number is a change.
    #[must_use]
    pub fn with_changes(self, changes: impl Fn() -> Option<watch::Receiver<u64>> + Send + Sync + 'static) -> Self {
        Self { changes: Arc::new(changes), ..self }
    }
}

/// Nothing is configured.
impl Default for LayerSource {
    fn default() -> Self {
        Self::new(|_| Configured::default())
    }
}

impl std::fmt::Debug for LayerSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Source")
    }
}

/// What a program decides about MCP servers.
#[derive(Debug, Clone, Default)]
pub struct McpConfig {
    pub source: LayerSource,
    pub limits: McpLimits,
    /// What is never logged or stored; secrets that clients give for servers are added.
    pub secrets: Secrets,
}

/// Declarations that come with something else, such as a plugin; asked for at every step.
pub type Declared = BTreeMap<String, Result<ServerDeclaration, DeclarationError>>;

/// What happens with the servers of a thread, as its clients are told.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum McpEvent {
    /// A server of this thread stands differently than before.
    Startup { server: String, state: String, error: Option<String> },
    /// Something that declares servers cannot be used.
    Warning { message: String },
    /// A call tells how far it is.
    Progress { call: String, progress: f64, total: Option<f64>, message: Option<String> },
}

/// Everything about MCP servers that the threads of one program share.
pub(crate) struct Mcp {
    pub pool: Pool,
    source: LayerSource,
    threads: Mutex<BTreeMap<ThreadId, Arc<ThreadLayers>>>,
    pub projects: Projects,
    pub watching: Watching,
    pub withheld: Withheld,
    pub refreshing: tokio::sync::Mutex<()>,
    told: LastRead,
}

/// The layer of files that was read last, so that what is wrong with it is said once and not for every thread.
#[derive(Default)]
struct LastRead(Mutex<ServerLayer>);

impl LastRead {
    fn as_new(&self, layer: &ServerLayer) {
        let mut last = lock(&self.0);
        if *last != *layer {
            layer.tell_unknown_keys();
            last.clone_from(layer);
        }
    }
}

/// The layers of a thread that are kept in files, as they were last read.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadLayers {
    pub files: ServerLayer,
    pub requirements: Requirements,
    /// Why they could not be read, if they could not.
    pub problem: Option<SharedError>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mcp {
    pub(crate) fn new(McpConfig { source, limits, secrets }: McpConfig, ids: Arc<dyn Fn() -> String + Send + Sync>) -> Self {
        Self {
            withheld: Withheld::new(ids.clone(), secrets),
            watching: Watching::default(),
            pool: Pool::new(limits, ids),
            source,
            threads: Mutex::default(),
            projects: Projects::default(),
            refreshing: tokio::sync::Mutex::default(),
            told: LastRead::default(),
        }
    }

    /// The layers of a thread; read when they are first asked for and again only by a refresh.
    pub(crate) fn layers(&self, thread: ThreadId, cwd: Option<&str>) -> Arc<ThreadLayers> {
        if let Some(known) = lock(&self.threads).get(&thread) {
            return known.clone();
        }
        let Configured { servers, requirements } = self.read(cwd);
        let (files, problem) = match servers {
            Ok(files) => {
                self.told.as_new(&files);
                (files, None)
            }
            Err(problem) => (ServerLayer::default(), Some(problem)),
        };
        let read = ThreadLayers { files, requirements, problem };
        lock(&self.threads).entry(thread).or_insert_with(|| Arc::new(read)).clone()
    }

    pub(crate) fn read(&self, cwd: Option<&str>) -> Configured {
        (self.source.read)(cwd)
    }

    /// Hears of changes of what lies in files.
    fn changes(&self) -> Option<watch::Receiver<u64>> {
        (self.source.changes)()
    }

    /// Whether the layers of a thread were ever asked for.
    pub(crate) fn knows(&self, thread: ThreadId) -> bool {
        lock(&self.threads).contains_key(&thread)
    }

    pub(crate) fn set_layers(&self, thread: ThreadId, files: ServerLayer, requirements: Requirements) {
        self.told.as_new(&files);
        lock(&self.threads).insert(thread, Arc::new(ThreadLayers { files, requirements, problem: None }));
    }

    /// What is required counts also for a thread that otherwise stays as it is.
    pub(crate) fn set_requirements(&self, thread: ThreadId, requirements: Requirements) {
        if let Some(known) = lock(&self.threads).get_mut(&thread) {
            *known = Arc::new(ThreadLayers { requirements, ..ThreadLayers::clone(known) });
        }
    }

    pub(crate) fn forget(&self, thread: ThreadId) {
        lock(&self.threads).remove(&thread);
        self.projects.forget(thread);
        self.watching.release(thread);
    }
}
