//! The servers of one step: which there are, how each stands, and the tools that they offer under names that the model can use.
//!
//! A binding is frozen with its step. A call goes through the connection whose tools were shown, whatever has been declared,
//! refreshed or replaced meanwhile.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use outpost_environment::{Captured, ConnectionState, Environment, StepView};
use outpost_mcp::{McpConnection, McpError, McpLimits, ServerListing, ServerTool, fitting};
use outpost_thread::{Settings, ThreadId};
use outpost_wire::PathUri;
use outpost_wire::SharedError;
use outpost_wire::intent::{Attachment, EnvironmentId};
use tokio::time::Instant;

use super::declaration::{Cwd, DeclarationOrigin, McpTransport, ServerDeclaration};
use super::layers::{self, ServerLayer};
use super::machine::{Machine, MachineQuery, Said};
use super::pool::{Ready, ServerLease, ServerPlace, ServerState, ServerWay, WantedServer};
use super::requirements::Requirements;
use super::{Declared, Mcp};
use crate::permissions::SandboxMode;
use crate::policy::ApprovalPolicy;

/// Models take no longer names.
const LONGEST_NAME: usize = 64;
/// Models take 128 tools in all; our own and those of the client need their room.
const MOST_TOOLS: usize = 100;

/// What decides which servers a step has.
pub(crate) struct Bind<'a> {
    pub thread: ThreadId,
    pub view: &'a StepView,
    pub mode: &'a SandboxMode,
    pub approval: ApprovalPolicy,
    /// What configuration declares for this thread.
    pub declared: Declared,
    /// What is known to be wrong with that.
    pub problems: Vec<String>,
    /// What the administrator of this machine requires.
    pub requirements: Requirements,
    /// What plugins declare.
    pub plugins: Declared,
    /// Whether it may use what machines declare. A thread that works for the runtime itself keeps to what the user configured.
    pub takes_machines: bool,
    pub patience: Patience,
}

/// How long is waited for servers that are starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// A little, and longer for those that are required.
    Step,
    /// Until each has started or failed.
    Full,
}

/// The servers of a step.
#[derive(Default)]
pub struct Binding {
    pub servers: Vec<BoundServer>,
    /// What declares servers and cannot be used.
    pub problems: Vec<String>,
}

/// A server as the step saw it.
pub struct BoundServer {
    pub name: String,
    pub environment: Option<EnvironmentId>,
    pub origin: String,
    pub required: bool,
    /// `ready`, `starting`, `failed`, `disabled`.
    pub state: &'static str,
    /// Why it is not ready.
    pub problem: Option<SharedError>,
    pub tools: Vec<BoundTool>,
    pub listing: Arc<ServerListing>,
    /// Whether a token is sent with each request.
    pub has_token: bool,
    pub(crate) tool_timeout: Duration,
    pub(crate) connection: Option<Arc<dyn McpConnection>>,
    /// Keeps the server running as long as it may be called.
    _lease: Option<ServerLease>,
}

/// A tool under the name that the model knows it by.
#[derive(Debug, Clone, PartialEq)]
pub struct BoundTool {
    pub qualified: String,
    pub tool: ServerTool,
}

impl BoundServer {
    fn without(name: &str, declared: Option<&ServerDeclaration>, state: &'static str, problem: Option<SharedError>) -> Self {
        Self {
            name: name.to_owned(),
            environment: declared.map(|server| server.environment.clone()),
            origin: declared.map(|server| server.origin.describe()).unwrap_or_default(),
            required: declared.is_some_and(|server| server.required),
            state,
            problem,
            tools: vec![],
            listing: Arc::default(),
            has_token: declared
                .is_some_and(|server| matches!(&server.transport, McpTransport::Http(http) if http.bearer_token_env_var.is_some())),
            tool_timeout: declared.map_or(Duration::ZERO, |server| server.tool_timeout),
            connection: None,
            _lease: None,
        }
    }

    pub(crate) fn connection(&self) -> Result<&Arc<dyn McpConnection>, McpError> {
        self.connection.as_ref().ok_or_else(|| McpError::NotReady {
            server: self.name.clone(),
            reason: self.problem.clone().unwrap_or_else(|| self.state.into()),
        })
    }
}

impl Binding {
    /// The tool that the model means by a name.
    pub fn tool(&self, qualified: &str) -> Option<(&BoundServer, &ServerTool)> {
        let mut all = self.servers.iter().flat_map(|server| server.tools.iter().map(move |tool| (server, tool)));
        all.find(|(_, tool)| tool.qualified == qualified).map(|(server, tool)| (server, &tool.tool))
    }

    pub fn server(&self, name: &str) -> Result<&BoundServer, McpError> {
        self.servers.iter().find(|server| server.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.servers.iter().map(|server| server.name.as_str()).collect();
            let known = if names.is_empty() { String::new() } else { format!("; there are: {}", names.join(", ")) };
            McpError::Unknown { server: name.to_owned(), known }
        })
    }

    /// Why no turn can be run, if a server is required and not there.
    pub fn missing(&self) -> Option<String> {
        let server = self.servers.iter().find(|server| server.required && server.state != "ready" && server.state != "disabled")?;
        let why = server.problem.clone().unwrap_or_else(|| server.state.into());
        Some(format!("MCP server `{}` is required and not ready: {why}", server.name))
    }

    /// How each server stands: its state and why.
    pub(crate) fn standing(&self) -> impl Iterator<Item = (&str, (&str, Option<&SharedError>))> {
        self.servers.iter().map(|server| (server.name.as_str(), (server.state, server.problem.as_ref())))
    }

    pub fn has_resources(&self) -> bool {
        self.servers.iter().any(|server| server.connection.is_some() && server.listing.has_resources)
    }
}

/// What configuration declares for a thread.
pub(crate) fn declared(mcp: &Mcp, thread: ThreadId, settings: &Settings, cwd: Option<&str>) -> Declared {
    let files = mcp.layers(thread, cwd);
    // Whatever is wrong with it was refused when it came.
    merged(mcp, &files.files, settings).unwrap_or_else(|_| layers::merged(&files.files, &ServerLayer::default(), mcp.pool.limits()))
}

/// What lies in files, with what a thread was given over it. A server whose values are not known any more says so.
pub(crate) fn merged(mcp: &Mcp, files: &ServerLayer, settings: &Settings) -> Result<Declared, SharedError> {
    let (session, missing) = mcp.withheld.restored(settings)?;
    let mut declared = layers::merged(files, &session, mcp.pool.limits());
    for (server, keys) in missing {
        declared.insert(server.clone(), Err(super::DeclarationError::Withheld { server, keys }));
    }
    Ok(declared)
}

/// The environments that declared servers are in.
pub(crate) fn environments(declared: &Declared) -> Vec<EnvironmentId> {
    let mut ids: Vec<EnvironmentId> = Vec::new();
    for server in declared.values().flatten().filter(|server| server.enabled) {
        if !ids.contains(&server.environment) {
            ids.push(server.environment.clone());
        }
    }
    ids
}

/// Binds the servers of a step: starts those that do not run, and waits a little for those that are starting.
pub(crate) async fn bind(mcp: &Mcp, bind: Bind<'_>) -> Binding {
    let limits = mcp.pool.limits();
    let Bind { thread, view, mode, approval, mut declared, mut problems, requirements, plugins, takes_machines, patience } = bind;
    problems.extend(requirements.problems());
    for name in layers::add(&mut declared, plugins) {
        problems.push(format!("a plugin declares an MCP server `{name}`, whose name is taken; it is left out"));
    }
    let places: Vec<_> = view.workplaces().collect();
    let projects = places.iter().map(|place| mcp.projects.of((thread, &mcp.watching), place, mode.context(place.attachment), limits));
    let (projects, machines) = tokio::join!(join_all(projects), machines(view, &declared, takes_machines, limits));
    for (project, problem) in projects {
        drop(layers::add(&mut declared, (*project).clone()));
        problems.extend(problem);
    }
    let mut there = BTreeMap::new();
    for (environment, said) in machines {
        for name in layers::add(&mut declared, said.declared) {
            // The same declaration on several machines of one kind is usual.
            tracing::debug!(%environment, server = name, "what a machine declares is left out: the name is taken");
        }
        problems.extend(said.problem);
        there.insert(environment, said.requirements);
    }
    let leasing = Leasing { mcp, view, mode, approval, requirements, there };
    let leased: Vec<_> = declared.iter().map(|(name, server)| (name, leasing.lease(server))).collect();
    let mut binding = Binding { servers: Vec::new(), problems };
    let mut names = HashSet::new();
    for (name, leased) in leased {
        let server = match leased {
            Err(without) => *without,
            Ok((server, lease)) => {
                let until = match patience {
                    Patience::Step if server.required => lease.began() + server.startup_timeout,
                    // It is waited for once, not again at every step.
                    Patience::Step => lease.began() + limits.patience,
                    Patience::Full => lease.began() + server.startup_timeout,
                };
                bound(name, server, lease, until, (&mut names, &mut binding.problems)).await
            }
        };
        binding.servers.push(server);
    }
    binding
}

/// What the machines of a step declare and require: all of it where the thread works, and otherwise what is required where a server is
/// to be. This machine's own files are the configuration.
async fn machines(view: &StepView, declared: &Declared, takes: bool, limits: &McpLimits) -> Vec<(EnvironmentId, Said)> {
    let (placed, root) = (environments(declared), PathUri::root());
    let asked = view.members().iter().filter(|member| !member.id.is_local()).filter_map(|member| {
        let handle = member.captured.handle()?;
        let (what, cwd) = match &member.attachment {
            Some(attachment) if takes => (MachineQuery::Everything, &attachment.cwd),
            _ if placed.contains(&member.id) => (MachineQuery::Requirements, &root),
            _ => return None,
        };
        let machine = Machine { environment: &member.id, handle, cwd };
        Some(async move { (member.id.clone(), machine.ask(what, limits).await) })
    });
    join_all(asked).await
}

/// What decides whether a server is to be had.
struct Leasing<'a> {
    mcp: &'a Mcp,
    view: &'a StepView,
    mode: &'a SandboxMode,
    approval: ApprovalPolicy,
    requirements: Requirements,
    /// What the administrators of other machines require of servers there.
    there: BTreeMap<EnvironmentId, Requirements>,
}

impl Leasing<'_> {
    /// A lease of a server, or why there is none.
    fn lease<'a>(
        &self,
        server: &'a Result<ServerDeclaration, super::DeclarationError>,
    ) -> Result<(&'a ServerDeclaration, ServerLease), Box<BoundServer>> {
        let server = match server {
            Ok(server) => server,
            Err(error) => {
                return Err(Box::new(BoundServer::without(error.server(), None, "failed", Some(SharedError::new(error.clone())))));
            }
        };
        let without = |state, problem: Option<SharedError>| Box::new(BoundServer::without(&server.name, Some(server), state, problem));
        if !server.enabled {
            return Err(without("disabled", None));
        }
        let elsewhere = self.there.get(&server.environment);
        if let Some(why) = self.requirements.refusal(server).or_else(|| elsewhere?.refusal(server)) {
            return Err(without("disabled", Some(why.into())));
        }
        if self.approval == ApprovalPolicy::Untrusted && matches!(server.origin, DeclarationOrigin::Project { .. }) {
            let why = "a project's own servers are not started while the approval policy is `untrusted`; declare it in config.toml";
            return Err(without("disabled", Some(why.into())));
        }
        let member = self.view.members().iter().find(|member| member.id == server.environment);
        let handle = match member.map(|member| &member.captured) {
            Some(Captured::Ready(handle)) => handle,
            None => return Err(without("failed", Some(format!("there is no environment `{}` in this step", server.environment).into()))),
            Some(Captured::Starting | Captured::Recovering { .. }) => {
                return Err(without("starting", Some(format!("environment `{}` is starting", server.environment).into())));
            }
            Some(other) => {
                return Err(without(
                    "failed",
                    Some(format!("environment `{}` is not ready: {}", server.environment, other.describe()).into()),
                ));
            }
        };
        let attachment = member.and_then(|member| member.attachment.clone()).unwrap_or_else(|| visited(handle, &server.environment));
        let way = match &server.transport {
            McpTransport::Http(http) => ServerWay::Http(http.clone()),
            McpTransport::Stdio(stdio) => {
                let cwd = match &stdio.cwd {
                    Cwd::Fixed(cwd) => cwd.clone(),
                    Cwd::Thread(None) => attachment.cwd.clone(),
                    Cwd::Thread(Some(below)) => attachment.cwd.join(below),
                };
                ServerWay::Stdio(Box::new(ServerPlace {
                    stdio: stdio.clone(),
                    cwd,
                    sandbox: self.mode.context_in(&attachment, handle.narrowing()),
                }))
            }
        };
        let wanted = WantedServer {
            name: server.name.clone(),
            environment: handle.clone(),
            way,
            startup_timeout: server.startup_timeout,
            tool_timeout: server.tool_timeout,
        };
        Ok((server, self.mcp.pool.lease(wanted)))
    }
}

/// An environment that the thread does not work in: it has no workspace there.
fn visited(handle: &Environment, id: &EnvironmentId) -> Attachment {
    let cwd = match handle.state() {
        ConnectionState::Ready(connected) => connected.info.cwd.clone().or_else(|| connected.info.user_home_dir.clone()),
        _ => None,
    };
    Attachment { workspace_roots: Vec::new(), ..Attachment::new(id.clone(), cwd.unwrap_or_else(PathUri::root)) }
}

async fn bound(
    name: &str,
    server: &ServerDeclaration,
    lease: ServerLease,
    until: Instant,
    (names, problems): (&mut HashSet<String>, &mut Vec<String>),
) -> BoundServer {
    let (connection, problem) = match lease.settled(until).await {
        ServerState::Ready(Ready(connection)) => (connection, None),
        ServerState::Starting => {
            let mut left_out = BoundServer::without(name, Some(server), "starting", Some("it is still starting".into()));
            left_out._lease = Some(lease);
            return left_out;
        }
        ServerState::Failed { reason } => return BoundServer::without(name, Some(server), "failed", Some(reason)),
    };
    let listing = connection.listing().await;
    let offered = listing.tools.iter().filter(|tool| {
        let enabled = server.enabled_tools.as_ref().is_none_or(|enabled| enabled.contains(&tool.name));
        enabled && !server.disabled_tools.contains(&tool.name)
    });
    let (mut offered, left_over) = fitting(offered, connection.room());
    let mut left_out = listing.left_out.clone();
    let free = MOST_TOOLS.saturating_sub(names.len());
    if offered.len() > free {
        left_out.push(format!(
            "{} are more than the {MOST_TOOLS} tools of MCP servers that models take; choose with `enabled_tools`",
            offered.len() - free
        ));
        offered.truncate(free);
    }
    if left_over > 0 {
        left_out.push(format!(
            "{left_over} are more than the {} bytes that each request has for them; choose with `enabled_tools`",
            connection.room()
        ));
    }
    if !left_out.is_empty() {
        problems.push(format!("some tools of MCP server `{name}` are left out: {}", left_out.join("; ")));
    }
    let tools = offered.into_iter().map(|tool| BoundTool { qualified: qualified(name, &tool.name, names), tool: tool.clone() }).collect();
    BoundServer {
        tools,
        listing,
        problem,
        connection: Some(connection),
        _lease: Some(lease),
        ..BoundServer::without(name, Some(server), "ready", None)
    }
}

/// A name for a tool that models take and that no other tool has. The same tool has the same name after every restart.
fn qualified(server: &str, tool: &str, taken: &mut HashSet<String>) -> String {
    let clean =
        |text: &str| text.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' }).collect::<String>();
    let mut name = format!("mcp__{}__{}", clean(server), clean(tool));
    if name.len() > LONGEST_NAME || taken.contains(&name) {
        let mark = format!("_{:08x}", mark(server, tool));
        name.truncate(LONGEST_NAME - mark.len());
        name.push_str(&mark);
    }
    taken.insert(name.clone());
    name
}

/// A small number for two texts, the same on every machine (FNV-1a).
fn mark(server: &str, tool: &str) -> u32 {
    let bytes = server.bytes().chain([0]).chain(tool.bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_models_and_are_unique() {
        let mut taken = HashSet::new();
        assert_eq!(qualified("files", "read_file", &mut taken), "mcp__files__read_file");
        assert_eq!(qualified("a.b", "c d", &mut taken), "mcp__a_b__c_d");
        let other = qualified("a_b", "c/d", &mut taken);
        assert!(other.starts_with("mcp__a_b__c_d_") && other.len() <= LONGEST_NAME, "{other}");
        let long = qualified("server", &"x".repeat(100), &mut taken);
        let longer = qualified("server", &"x".repeat(101), &mut taken);
        assert_eq!((long.len(), longer.len()), (LONGEST_NAME, LONGEST_NAME));
        assert_ne!(long, longer);
        assert_eq!(qualified("server", &"x".repeat(100), &mut HashSet::new()), long);
    }
}
