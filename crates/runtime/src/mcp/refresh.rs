//! What clients may ask about servers, and reading the configuration again.
//!
//! A refresh reads the layers that lie in files, for each loaded thread with its own directory, and keeps what only the
//! thread knows. One that a person asks for plans all threads first and changes nothing if one of them cannot be planned; one
//! that happens by itself does what it can. Servers whose declaration is the same keep running.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use futures_util::{StreamExt, stream};
use outpost_environment::StepView;
use outpost_mcp::{NoUser, ToolRequest};
use outpost_thread::{Thread, ThreadId};
use outpost_wire::SharedError;
use serde::Serialize;
use serde_json::{Map, Value};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use super::binding::{BoundServer, Patience, merged};
use super::layers::{self, ServerLayer};
use super::watching::WatchedDirectory;
use super::{Binding, Configured, Declared, McpError, Requirements, ToolResult, project};
use crate::live::LiveThread;
use crate::runtime::{Runtime, RuntimeFuture, RuntimeShared, ThreadError};

/// So many threads have their servers started at the same time after a refresh.
const AT_ONCE: usize = 8;

/// How a server stands, for clients.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    pub name: String,
    pub environment_id: Option<String>,
    /// Where it was declared.
    pub origin: String,
    /// `ready`, `starting`, `failed`, `disabled`.
    pub state: String,
    pub error: Option<String>,
    /// By the names that the server gives them, as it describes them.
    pub tools: BTreeMap<String, Value>,
    pub resources: Vec<Value>,
    pub resource_templates: Vec<Value>,
    /// `bearerToken` or `unsupported`.
    pub auth_status: String,
    pub server_info: Option<Value>,
    pub required: bool,
}

/// How much of a status is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusDetail {
    Full,
    /// Without resources, which cost a question to each server.
    ToolsOnly,
}

#[derive(Debug, Error)]
pub enum McpRequestError {
    #[error(transparent)]
    Thread(#[from] ThreadError),
    #[error(transparent)]
    Server(#[from] McpError),
    #[error("{0}")]
    Config(#[source] SharedError),
}

/// Who wants a refresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshMode {
    /// A person: all threads or none.
    Strict,
    /// A file that changed: whatever can be done.
    BestEffort,
}

/// What a refresh came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefreshReport {
    pub refreshed: Vec<ThreadId>,
    /// Those that stay as they were, and why.
    pub failed: Vec<(ThreadId, SharedError)>,
}

/// Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the MCP servers stay as they are: {}", .0.join("; "))]
pub struct RefreshError(pub Vec<String>);

/// What a thread will have after a refresh.
struct Planned {
    live: LiveThread,
    thread: Thread,
    view: StepView,
    files: ServerLayer,
    requirements: Requirements,
    /// By the number of the place, with the number under which that was watched when it was read.
    projects: Vec<(usize, Declared, Option<u64>)>,
}

impl Runtime {
    /// How the servers of a thread stand, or those of a thread that would begin now. Those that do not run are started.
    pub fn mcp_status(
        &self,
        thread: Option<ThreadId>,
        detail: StatusDetail,
    ) -> RuntimeFuture<'_, Result<Vec<ServerStatus>, McpRequestError>> {
        Box::pin(async move {
            let binding = self.mcp_binding(thread).await?;
            let mut all = Vec::new();
            for server in &binding.servers {
                all.push(status(server, detail).await);
            }
            Ok(all)
        })
    }

    /// Calls a tool because a client says so, outside of any turn.
    pub fn mcp_call(&self, thread: ThreadId, call: ClientToolCall) -> RuntimeFuture<'_, Result<ToolResult, McpRequestError>> {
        Box::pin(async move {
            let binding = self.mcp_binding(Some(thread)).await?;
            let server = binding.server(&call.server)?;
            let connection = server.connection()?;
            if !server.tools.iter().any(|bound| bound.tool.name == call.tool) {
                return Err(McpError::NoTool { server: call.server, tool: call.tool }.into());
            }
            let request = ToolRequest {
                tool: &call.tool,
                arguments: call.arguments,
                meta: call.meta,
                timeout: server.tool_timeout,
                cancel: CancellationToken::new(),
            };
            Ok(connection.call(request, &NoUser).await?)
        })
    }

    /// The contents of a resource, as on the wire.
    pub fn mcp_read<'a>(
        &'a self,
        thread: Option<ThreadId>,
        server: &'a str,
        uri: &'a str,
    ) -> RuntimeFuture<'a, Result<Vec<Value>, McpRequestError>> {
        Box::pin(async move {
            let binding = self.mcp_binding(thread).await?;
            Ok(binding.server(server)?.connection()?.read(uri).await?)
        })
    }

    /// How many servers run, start, or have failed a moment ago.
    pub fn mcp_servers(&self) -> usize {
        self.0.mcp.pool.len()
    }

    async fn mcp_binding(&self, thread: Option<ThreadId>) -> Result<Arc<Binding>, McpRequestError> {
        let shared = &self.0;
        let Some(id) = thread else {
            let Configured { servers, requirements } = shared.mcp.read(None);
            let files = servers.map_err(McpRequestError::Config)?;
            let declared = layers::merged(&files, &ServerLayer::default(), shared.mcp.pool.limits());
            return Ok(Arc::new(shared.bind_unattended(declared, requirements).await));
        };
        let live = self.resume(id).await?;
        let thread = live.snapshot().await.map_err(|error| ThreadError::Invalid(SharedError::new(error)))?;
        let binding = Arc::new(shared.bind_anew(&thread, Patience::Full).await);
        live.keep_servers(binding.clone()).await;
        Ok(binding)
    }

    /// Reads the configuration of servers again, for all loaded threads.
    pub fn mcp_refresh(&self, mode: RefreshMode) -> RuntimeFuture<'_, Result<RefreshReport, RefreshError>> {
        Box::pin(async move { self.0.refresh(mode, None).await })
    }
}

/// A tool that a client calls.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientToolCall {
    pub server: String,
    pub tool: String,
    pub arguments: Option<Map<String, Value>>,
    pub meta: Option<Map<String, Value>>,
}

impl RuntimeShared {
    /// What happens by itself when something has changed, for these threads or for all. A thread that has not asked for its servers yet
    /// reads everything when it does.
    pub(crate) async fn refresh_in_background(self: &Arc<Self>, only: Option<&BTreeSet<ThreadId>>) {
        match self.refresh(RefreshMode::BestEffort, only).await {
            Ok(report) => tracing::debug!(threads = report.refreshed.len(), failed = report.failed.len(), "MCP servers are refreshed"),
            Err(error) => tracing::warn!(%error, "MCP servers are not refreshed"),
        }
    }

    async fn refresh(self: &Arc<Self>, mode: RefreshMode, only: Option<&BTreeSet<ThreadId>>) -> Result<RefreshReport, RefreshError> {
        // Two at once could leave threads with different readings.
        let _alone = self.mcp.refreshing.lock().await;
        let (mut planned, mut report) = (Vec::new(), RefreshReport::default());
        let mut wrong = Vec::new();
        if let Err(error) = self.mcp.read(None).servers {
            wrong.push(error.to_string());
        }
        let strict = mode == RefreshMode::Strict;
        let concerned = |id: ThreadId| only.is_none_or(|only| only.contains(&id)) && (strict || self.mcp.knows(id));
        for live in self.all_live().into_iter().filter(|live| concerned(live.id())) {
            let id = live.id();
            match self.plan(live).await {
                Ok(Some(plan)) => planned.push(plan),
                // It is not loaded any more.
                Ok(None) => {}
                Err(why) => report.failed.push((id, why)),
            }
        }
        if strict {
            wrong.extend(report.failed.iter().map(|(thread, why)| format!("thread {thread}: {why}")));
            if !wrong.is_empty() {
                return Err(RefreshError(wrong));
            }
        }
        for (thread, why) in &report.failed {
            tracing::warn!(%thread, %why, "the MCP servers of a thread stay as they are");
            self.mcp.set_requirements(*thread, self.mcp.read(None).requirements);
        }
        self.mcp.pool.forgive();
        let mut concerned = Vec::new();
        for plan in planned {
            report.refreshed.push(plan.thread.id);
            concerned.push(self.adopt(plan));
        }
        tokio::spawn(rebind(Arc::downgrade(self), concerned));
        report.refreshed.sort();
        Ok(report)
    }

    /// What a thread would have, read anew; nothing is changed.
    async fn plan(&self, live: LiveThread) -> Result<Option<Planned>, SharedError> {
        let Ok(thread) = live.snapshot().await else { return Ok(None) };
        let Configured { servers, requirements } = self.mcp.read(working_directory(&thread).as_deref());
        let files = servers?;
        let limits = self.mcp.pool.limits();
        let declared = merged(&self.mcp, &files, &thread.settings)?;
        let mut wrong = layers::problems(&declared);
        let view = self.view(&thread);
        let mode = self.mode(&thread);
        let mut projects = Vec::new();
        for (index, place) in view.workplaces().enumerate() {
            let number = self.mcp.watching.number(&WatchedDirectory::of(&place));
            match project::read(&place, mode.context_in(place.attachment, place.handle.narrowing()), limits).await {
                Ok(project) => {
                    wrong.extend(layers::problems(&project));
                    projects.push((index, project, number));
                }
                Err(why) => wrong.push(why.to_string()),
            }
        }
        if wrong.is_empty() {
            Ok(Some(Planned { live, thread, view, files, requirements, projects }))
        } else {
            Err(wrong.join("; ").into())
        }
    }

    /// Takes over what was planned. From now on every step of the thread has it.
    fn adopt(&self, plan: Planned) -> LiveThread {
        let Planned { live, thread, view, files, requirements, projects } = plan;
        self.mcp.set_layers(thread.id, files, requirements);
        let places: Vec<_> = view.workplaces().collect();
        for (index, project, number) in projects {
            if let Some(place) = places.get(index) {
                self.mcp.projects.set(thread.id, place, project, number);
            }
        }
        live
    }
}

/// Starts what is new and lets go of what is gone, also for threads that do nothing, and tells their clients. A few threads at a time: each
/// may have a process of its own to start.
async fn rebind(shared: Weak<RuntimeShared>, threads: Vec<LiveThread>) {
    let shared = &shared;
    let each = stream::iter(threads).map(|live| async move {
        let Ok(thread) = live.snapshot().await else { return };
        let Some(shared) = shared.upgrade() else { return };
        // The new binding is there before the old one goes, so that what is the same in both keeps running.
        let binding = shared.bind_anew(&thread, Patience::Full).await;
        live.keep_servers(Arc::new(binding)).await;
    });
    each.buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// The directory that a thread works in on this machine, if it does.
pub(crate) fn working_directory(thread: &Thread) -> Option<String> {
    let primary = thread.selection.as_ref().and_then(|selection| selection.primary());
    let local = primary.filter(|attachment| attachment.environment_id.is_local()).map(|attachment| attachment.cwd.to_syntax());
    local.or_else(|| thread.settings.cwd.clone())
}

async fn status(server: &BoundServer, detail: StatusDetail) -> ServerStatus {
    let (mut resources, mut resource_templates) = (Vec::new(), Vec::new());
    if let Some(connection) = server.connection.as_ref().filter(|_| detail == StatusDetail::Full && server.listing.has_resources) {
        resources = connection.resources().await.unwrap_or_default();
        resource_templates = connection.resource_templates().await.unwrap_or_default();
    }
    ServerStatus {
        name: server.name.clone(),
        environment_id: server.environment.as_ref().map(ToString::to_string),
        origin: server.origin.clone(),
        state: server.state.to_owned(),
        error: server.problem.as_ref().map(ToString::to_string),
        tools: server.tools.iter().map(|bound| (bound.tool.name.clone(), bound.tool.raw.clone())).collect(),
        resources,
        resource_templates,
        auth_status: if server.has_token { "bearerToken" } else { "unsupported" }.to_owned(),
        server_info: server.listing.info.clone(),
        required: server.required,
    }
}
