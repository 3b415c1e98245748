//! The servers that run, each once: shared by all who declare the same in the same place under the same sandbox.
//!
//! Each server has one task that starts it, watches it and ends it. Others hold a lease; when the last lease has been gone
//! for a while, the server ends.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outpost_environment::{ConnectionState, Environment, ProcessStart, Repeat};
use outpost_mcp::{EnvironmentHttp, HttpServer, McpConnection, McpError, McpLaunch, McpLimits, ServerOpening};
use outpost_wire::PathUri;
use outpost_wire::SharedError;
use outpost_wire::exec::environment::Unit;
use outpost_wire::exec::policy::SandboxContext;
use outpost_wire::exec::process::{EnvPolicy, Inherit, List, ProcessParams, Terminate};
use outpost_wire::intent::EnvironmentId;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::declaration::Stdio;
use super::lock;

/// What a child finds of the executor's variables when the server names others besides.
const CORE: [&str; 11] = ["PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "USER"];

/// How the names of our processes begin.
const PREFIX: &str = "mcp/";

/// A server that is wanted, with everything decided that the declaration leaves open.
#[derive(Debug, Clone)]
pub(crate) struct WantedServer {
    pub name: String,
    pub environment: Environment,
    pub way: ServerWay,
    pub startup_timeout: Duration,
    pub tool_timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ServerWay {
    Stdio(Box<ServerPlace>),
    Http(HttpServer),
}

/// A process that is to be started.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ServerPlace {
    pub stdio: Stdio,
    pub cwd: PathUri,
    pub sandbox: Option<SandboxContext>,
}

/// What makes two wishes the same server: the same machine, the same words, the same rights.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    name: String,
    environment: Option<EnvironmentId>,
    /// The install that answers there, or the handle where that is unknown.
    executor: Result<String, u64>,
    way: ServerWay,
}

impl Key {
    fn of(wanted: &WantedServer) -> Self {
        let executor = wanted.environment.identity().and_then(|identity| identity.executor_id);
        Self {
            name: wanted.name.clone(),
            environment: wanted.environment.id().cloned(),
            executor: executor.ok_or_else(|| wanted.environment.generation()),
            way: wanted.way.clone(),
        }
    }
}

/// How a server stands.
#[derive(Clone)]
pub enum ServerState {
    Starting,
    Ready(Ready),
    Failed { reason: SharedError },
}

/// A server that answers.
#[derive(Clone)]
pub struct Ready(pub(super) Arc<dyn McpConnection>);

impl ServerState {
    /// In one word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready(_) => "ready",
            Self::Failed { .. } => "failed",
        }
    }
}

struct Server {
    key: Key,
    environment: Environment,
    began: Instant,
    state: watch::Sender<ServerState>,
    /// When it failed, and how long it is to be left alone.
    failed: Mutex<Option<(Instant, Duration)>>,
    users: watch::Sender<usize>,
    stop: CancellationToken,
}

/// The right to use a server. Dropping it gives it back.
pub(crate) struct ServerLease {
    server: Arc<Server>,
}

impl ServerLease {
    /// When it was first asked for.
    pub(crate) fn began(&self) -> Instant {
        self.server.began
    }

    pub(crate) fn state(&self) -> ServerState {
        self.server.state.borrow().clone()
    }

    /// Waits until it has started or failed, but not longer than this.
    pub(crate) async fn settled(&self, until: Instant) -> ServerState {
        let mut state = self.server.state.subscribe();
        let settled = tokio::time::timeout_at(until, state.wait_for(|state| !matches!(state, ServerState::Starting))).await;
        match settled {
            Ok(Ok(state)) => state.clone(),
            _ => self.state(),
        }
    }
}

impl Drop for ServerLease {
    fn drop(&mut self) {
        self.server.users.send_modify(|users| *users = users.saturating_sub(1));
    }
}

/// All servers of one program.
pub struct Pool(Arc<Shared>);

struct Shared {
    limits: McpLimits,
    ids: Arc<dyn Fn() -> String + Send + Sync>,
    /// Tells our processes from those that a previous run of this program left behind.
    life: String,
    servers: Mutex<HashMap<Key, Arc<Server>>>,
    /// Handles in which nothing of a previous run is left.
    swept: Mutex<HashSet<(String, u64)>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Pool {
    pub fn new(limits: McpLimits, ids: Arc<dyn Fn() -> String + Send + Sync>) -> Self {
        let life = format!("{PREFIX}{}/", ids());
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        Self(Arc::new(Shared { limits, ids, life, servers: Mutex::default(), swept: Mutex::default(), stop, tasks }))
    }

    pub fn limits(&self) -> &McpLimits {
        &self.0.limits
    }

    /// How many servers there are, whatever their state.
    pub fn len(&self) -> usize {
        lock(&self.0.servers).len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A server, started if it does not run.
    pub(crate) fn lease(&self, wanted: WantedServer) -> ServerLease {
        let key = Key::of(&wanted);
        let mut servers = lock(&self.0.servers);
        if let Some(server) = servers.get(&key).filter(|server| server.is_good()) {
            server.users.send_modify(|users| *users += 1);
            return ServerLease { server: server.clone() };
        }
        let server = Arc::new(Server {
            key: key.clone(),
            environment: wanted.environment.clone(),
            began: Instant::now(),
            state: watch::Sender::new(ServerState::Starting),
            failed: Mutex::default(),
            users: watch::Sender::new(1),
            stop: self.0.stop.child_token(),
        });
        servers.insert(key, server.clone());
        drop(servers);
        self.0.tasks.spawn(self.0.clone().run(server.clone(), wanted));
        ServerLease { server }
    }

    /// Forgets failures, so that the next caller tries again at once.
    pub fn forgive(&self) {
        lock(&self.0.servers).retain(|_, server| !matches!(*server.state.borrow(), ServerState::Failed { .. }));
    }

    /// Ends all servers, and waits until they have ended.
    pub async fn shut_down(&self, within: Duration) {
        self.0.stop.cancel();
        self.0.tasks.close();
        if tokio::time::timeout(within, self.0.tasks.wait()).await.is_err() {
            tracing::warn!(servers = self.len(), "some MCP servers did not end in time");
        }
    }
}

impl Server {
    /// Whether it runs, starts, or has failed so lately that it is not to be tried again.
    fn is_good(&self) -> bool {
        if self.stop.is_cancelled() {
            return false;
        }
        match &*self.state.borrow() {
            ServerState::Starting => true,
            // The same machine may be reached by another handle when this one is given up.
            ServerState::Ready(ready) => !ready.0.is_over() && !matches!(self.environment.state(), ConnectionState::Failed(_)),
            ServerState::Failed { .. } => lock(&self.failed).is_some_and(|(at, alone)| at.elapsed() < alone),
        }
    }

    fn fail(&self, reason: SharedError, alone: Duration) {
        *lock(&self.failed) = Some((Instant::now(), alone));
        self.state.send_replace(ServerState::Failed { reason });
    }

    /// Waits until it was unused for so long.
    async fn unused(&self, grace: Duration) {
        let mut users = self.users.subscribe();
        loop {
            if users.wait_for(|users| *users == 0).await.is_err() {
                return;
            }
            if tokio::time::timeout(grace, users.wait_for(|users| *users > 0)).await.is_err() {
                return;
            }
        }
    }
}

impl Shared {
    /// The life of one server.
    async fn run(self: Arc<Self>, server: Arc<Server>, wanted: WantedServer) {
        let (limits, name) = (&self.limits, server.key.name.clone());
        self.sweep(&wanted.environment).await;
        let opening =
            ServerOpening { server: &name, environment: &wanted.environment, limits, within: wanted.startup_timeout, stop: &server.stop };
        let connection = match opening.run(self.launch(&wanted)).await {
            Ok(connection) => connection,
            Err(error) => {
                tracing::info!(server = name, %error, "an MCP server does not start");
                server.fail(SharedError::new(error), limits.retry);
                return self.remember_failure(&server).await;
            }
        };
        let began = Instant::now();
        server.state.send_replace(ServerState::Ready(Ready(connection.clone())));
        let ended = tokio::select! {
            why = connection.over() => Some(why),
            () = server.unused(limits.grace) => None,
            () = server.stop.cancelled() => None,
        };
        match ended {
            Some(reason) => {
                tracing::info!(server = name, reason, "an MCP server has ended by itself");
                // One that ran for a while is started again at once; one that fell over at once is left alone.
                let alone = if began.elapsed() < limits.retry { limits.fallen } else { Duration::ZERO };
                server.fail(SharedError::new(McpError::Ended { server: name, reason: reason.into() }), alone);
                connection.close().await;
                self.remember_failure(&server).await;
            }
            None => {
                self.remove(&server);
                server.stop.cancel();
                connection.close().await;
                server.fail("it was not used any more".into(), Duration::ZERO);
            }
        }
    }

    /// A failure is known for a while, and then forgotten.
    async fn remember_failure(&self, server: &Arc<Server>) {
        tokio::select! {
            () = tokio::time::sleep(self.limits.retry) => {}
            () = server.stop.cancelled() => {}
        }
        self.remove(server);
    }

    /// Only its own place: another one may have taken it.
    fn remove(&self, server: &Arc<Server>) {
        let mut servers = lock(&self.servers);
        if servers.get(&server.key).is_some_and(|known| Arc::ptr_eq(known, server)) {
            servers.remove(&server.key);
        }
    }

    fn launch(&self, wanted: &WantedServer) -> McpLaunch {
        match &wanted.way {
            ServerWay::Stdio(place) => {
                let ServerPlace { stdio, cwd, sandbox } = &**place;
                let mut env = stdio.env.clone();
                if let Some(id) = wanted.environment.id() {
                    env.insert("OUTPOST_ENVIRONMENT_ID".into(), id.to_string());
                }
                let start = ProcessStart {
                    id: format!("{}{}", self.life, (self.ids)()),
                    argv: [&stdio.command].into_iter().chain(&stdio.args).cloned().collect(),
                    cwd: cwd.clone(),
                    env_policy: Some(variables(&stdio.env_vars)),
                    env,
                    tty: false,
                    pipe_stdin: true,
                    profiles: None,
                    adoption: None,
                };
                McpLaunch::Stdio { start: Box::new(start), sandbox: sandbox.clone() }
            }
            ServerWay::Http(http) => McpLaunch::Http(EnvironmentHttp::new(http, wanted.startup_timeout, wanted.tool_timeout)),
        }
    }

    /// A session that outlived a previous run of this program may hold servers without a client.
    async fn sweep(&self, environment: &Environment) {
        if !lock(&self.swept).insert((environment.name().to_owned(), environment.generation())) {
            return;
        }
        let lists = matches!(environment.state(), ConnectionState::Ready(connected) if connected.info.capabilities.process_list);
        if !lists {
            return;
        }
        let Ok(list) = environment.call::<List>(&Unit, Repeat::Harmless).await else { return };
        for process in list.processes.iter().filter(|process| is_left_behind(&process.process_id, &self.life)) {
            tracing::info!(process = process.process_id, "an MCP server of an earlier life is ended");
            let params = ProcessParams { process_id: process.process_id.clone() };
            let _ = environment.call::<Terminate>(&params, Repeat::Harmless).await;
        }
    }
}

fn is_left_behind(id: &str, life: &str) -> bool {
    id.starts_with(PREFIX) && !id.starts_with(life)
}

/// The executor's own variables, as few as a program needs, and those that are named.
fn variables(named: &[String]) -> EnvPolicy {
    let plain =
        EnvPolicy { inherit: Inherit::Core, ignore_default_excludes: false, exclude: vec![], set: BTreeMap::new(), include_only: vec![] };
    if named.is_empty() {
        return plain;
    }
    let include_only = CORE.iter().map(|name| (*name).to_owned()).chain(named.iter().cloned()).collect();
    EnvPolicy { inherit: Inherit::All, ignore_default_excludes: true, include_only, ..plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_variables_come_with_the_usual_ones() {
        assert_eq!(variables(&[]).inherit, Inherit::Core);
        let policy = variables(&["MY_TOKEN".into()]);
        assert!(
            policy.ignore_default_excludes
                && policy.include_only.contains(&"MY_TOKEN".into())
                && policy.include_only.contains(&"PATH".into())
        );
    }

    #[test]
    fn only_our_own_leftovers_are_swept() {
        assert!(is_left_behind("mcp/old/1", "mcp/new/"));
        assert!(!is_left_behind("mcp/new/1", "mcp/new/") && !is_left_behind("thread/call", "mcp/new/"));
    }
}
