//! MCP servers: what is declared, which of them run, and what a step may use of them.
//!
//! A server lives in an environment. One that speaks over standard input and output is started there as any other process,
//! under the sandbox of the thread that uses it; one that speaks HTTP is reached from that environment's place in the network. Servers
//! are shared: threads that declare the same server in the same place use one process.
//!
//! The library that speaks the protocol is known to `client.rs` and `http.rs` only.

pub mod binding;
pub(crate) mod client;
mod credentials;
pub mod declaration;
pub(crate) mod elicitation;
mod http;
pub mod layers;
pub(crate) mod machine;
pub mod offer;
pub mod pool;
pub(crate) mod project;
pub mod refresh;
pub mod requirements;
mod stdio;
pub mod told;
pub(crate) mod watching;
pub(crate) mod withheld;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outpost_thread::ThreadId;
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;

pub use self::binding::{Binding, BoundServer, BoundTool};
pub use self::declaration::{DeclarationError, DeclarationOrigin, ServerDeclaration};
pub use self::elicitation::{Elicitation, ElicitationAnswer};
pub use self::layers::{SESSION_LAYER, ServerLayer};
pub use self::offer::{ServerListing, ServerTool, ToolResult};
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
    pub servers: Result<ServerLayer, String>,
    /// What its administrator requires of all servers, whether or not the others can be read.
    pub requirements: Requirements,
}

impl Default for Configured {
    fn default() -> Self {
        Ok(ServerLayer::default()).into()
    }
}

impl From<Result<ServerLayer, String>> for Configured {
    fn from(servers: Result<ServerLayer, String>) -> Self {
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

/// How patient the client is, and how much it puts up with.
#[derive(Debug, Clone)]
pub struct McpLimits {
    /// How long a step waits for servers that are starting and are not required.
    pub patience: Duration,
    /// How long an unused server is kept.
    pub grace: Duration,
    /// How long a server that could not be started is left alone.
    pub retry: Duration,
    /// How long one that ended soon after its start is left alone.
    pub fallen: Duration,
    /// For servers that say nothing else.
    pub startup_timeout: Duration,
    pub tool_timeout: Duration,
    /// The most tools, resources or templates of one server, and the most pages in which they may come.
    pub catalogue: usize,
    pub pages: usize,
    /// The most bytes of all that one server lists.
    pub listed: usize,
    /// The largest tool that is offered to the model, and the most of all tools of one server: each request carries them.
    pub tool: usize,
    pub tools: usize,
    /// The longest line, or event, of a server.
    pub message: usize,
    /// So much that is no message is put up with on a server's standard output.
    pub rubbish: usize,
    /// So many messages of one server are put up with in a second.
    pub messages: usize,
    /// How long an executor may take to tell what its machine declares.
    pub declarations: Duration,
    /// Changes of what servers depend on are collected for so long before they are acted upon.
    pub settle: Duration,
}

impl Default for McpLimits {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(2),
            grace: Duration::from_secs(60),
            retry: Duration::from_secs(30),
            fallen: Duration::from_secs(2),
            startup_timeout: Duration::from_secs(30),
            tool_timeout: Duration::from_secs(300),
            catalogue: 2048,
            pages: 100,
            listed: 32 << 20,
            tool: 64 << 10,
            tools: 512 << 10,
            message: 16 << 20,
            rubbish: 1 << 20,
            messages: 10_000,
            declarations: Duration::from_secs(10),
            settle: Duration::from_millis(300),
        }
    }
}

/// What went wrong with a server.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum McpError {
    #[error("MCP server `{server}` could not be started: {reason}")]
    Start { server: String, reason: String },
    #[error("MCP server `{server}` did not answer within {seconds} s{said}")]
    StartTimeout { server: String, seconds: u64, said: String },
    #[error("MCP server `{server}` has ended: {reason}")]
    Ended { server: String, reason: String },
    #[error("`{tool}` of MCP server `{server}` did not answer within {seconds} s; it may still have its effect")]
    CallTimeout { server: String, tool: String, seconds: u64 },
    #[error("`{tool}` of MCP server `{server}` was stopped; it may still have its effect")]
    Cancelled { server: String, tool: String },
    #[error("MCP server `{server}` refuses: {message}")]
    Refused { server: String, message: String },
    #[error("MCP server `{server}` answers nonsense: {reason}")]
    Nonsense { server: String, reason: String },
    #[error("there is no MCP server `{server}`{known}")]
    Unknown { server: String, known: String },
    #[error("MCP server `{server}` is not ready: {reason}")]
    NotReady { server: String, reason: String },
    #[error("MCP server `{server}` has no tool `{tool}`")]
    NoTool { server: String, tool: String },
}

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
    pub problem: Option<String>,
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

/// A text of a value, for people.
fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
