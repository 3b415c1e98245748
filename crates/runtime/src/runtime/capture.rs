//! Freezing what a step sees.

use std::sync::Arc;

use futures_util::future::join_all;
use outpost_environment::{Captured, ConnectionState, Environment, StepView, ViewMember};
use outpost_store::Store;
use outpost_thread::Thread;
use outpost_wire::intent::{EnvironmentId, Selection};
use tokio::time::{Instant, timeout_at};

use super::RuntimeShared;
use super::open::is_internal;
use crate::capabilities::{CapabilityQuery, StepCapabilities};
use crate::mcp::binding::{Bind, Patience, bind, declared, environments};
use crate::mcp::machine::Machine;
use crate::mcp::project;
use crate::mcp::refresh::working_directory;
use crate::mcp::{Binding, Declared, Requirements};
use crate::model::{ToolInput, ToolSpec, WireApi};
use crate::permissions::SandboxMode;
use crate::policy::ApprovalPolicy;
use crate::settings;
use crate::tools::catalogue::{Offer, shared as catalogue};
use crate::tools::permit::silence;
use crate::tools::processes::BackgroundProcesses;
use crate::tools::{DynamicTool, StepTools};

impl RuntimeShared {
    /// How a thread's environments stand now.
    pub(crate) fn view(&self, thread: &Thread) -> StepView {
        let nothing = Selection::default();
        let view = self.registry.capture(thread.effective_selection().unwrap_or(&nothing), &thread.capability_roots);
        self.with_own_local(view, thread)
    }

    /// Whether a thread does without an environment on this node.
    pub(crate) fn is_withheld(&self, thread: &Thread, environment: &EnvironmentId) -> bool {
        *environment == EnvironmentId::local() && self.other_local(thread).is_some()
    }

    /// This machine and the one that is `local` in a thread, if they are two.
    fn other_local<'a>(&'a self, thread: &'a Thread) -> Option<(&'a str, &'a str)> {
        self.node_host().zip(thread.local_host.as_deref()).filter(|(own, host)| own != host)
    }

    /// `local` is one machine. On any other, a thread that has worked there does without it.
    fn with_own_local(&self, view: StepView, thread: &Thread) -> StepView {
        let Some((own, host)) = self.other_local(thread) else { return view };
        let reason = format!(
            "in this thread it is `local@{host}`, and this node runs on {own}; it waits for a node on {host}. To go on here, select `local` anew"
        );
        view.without(&EnvironmentId::local(), &reason)
    }

    /// The machine of this node, where nodes on several machines share threads.
    pub(crate) fn node_host(&self) -> Option<&str> {
        match &self.store {
            Store::Postgres(store) => Some(store.host()),
            Store::Local(_) | Store::Memory(_) => None,
        }
    }

    /// The same with the environments that MCP servers are in.
    fn view_with(&self, thread: &Thread, servers: &[EnvironmentId]) -> StepView {
        let nothing = Selection::default();
        let view = self.registry.capture_with(thread.effective_selection().unwrap_or(&nothing), &thread.capability_roots, servers);
        self.with_own_local(view, thread)
    }

    /// The same after a short wait for those that are only just starting. The primary is waited for longer than the
    /// others, because nothing takes its place; what has failed is not waited for.
    async fn settled_view(&self, thread: &Thread, servers: &[EnvironmentId]) -> StepView {
        let began = Instant::now();
        let patience = self.config.patience;
        // What failed before this turn is tried once more when it begins, however lately that was: it may be back.
        if thread.turn.as_ref().is_some_and(|turn| turn.step.is_none()) {
            self.try_again(thread).await;
        }
        self.foresee(thread);
        let mut changes = self.registry.changes();
        loop {
            // Before looking, so that nothing between the two is missed.
            changes.mark_unchanged();
            let view = self.view_with(thread, servers);
            let starts = |member: &ViewMember| matches!(member.captured, Captured::Starting);
            let primary_starts = view.selected().next().is_some_and(starts);
            // Also those that are here only for a capability root or an MCP server.
            let others_start = view.members().iter().skip(1).any(starts);
            let limits = [(primary_starts, began + patience.primary), (others_start, began + patience.others)];
            let now = Instant::now();
            let Some(until) = limits.into_iter().filter(|(starts, until)| *starts && *until > now).map(|(_, until)| until).min() else {
                join_all(view.members().iter().filter_map(|member| member.captured.handle()).map(Environment::settle_followed)).await;
                return view;
            };
            let _ = timeout_at(until, changes.changed()).await;
        }
    }

    /// Says what this step will look at in environments that are not connected yet: their connections bring it along.
    fn foresee(&self, thread: &Thread) {
        let Some(selection) = thread.effective_selection() else { return };
        let mode = self.mode(thread);
        for attachment in selection.attachments() {
            let id = &attachment.environment_id;
            let Some(handle) = self.registry.get(id).filter(|handle| !matches!(handle.state(), ConnectionState::Ready(_))) else {
                continue;
            };
            crate::capabilities::foresee(&handle, attachment, &mode);
            project::foresee(&handle, attachment, mode.context(attachment));
            if !is_internal(thread) {
                Machine { environment: id, handle: &handle, cwd: &attachment.cwd }.foresee();
            }
        }
    }

    /// Gives the selected environments that could not be reached another chance, and waits for it as for those that start.
    async fn try_again(&self, thread: &Thread) {
        let Some(selection) = thread.effective_selection() else { return };
        let patience = self.config.patience;
        let attempts = selection.ids().enumerate().filter_map(|(index, id)| {
            let handle = self.registry.unreached(id)?;
            let wait = if index == 0 { patience.primary } else { patience.others };
            Some(async move { drop(tokio::time::timeout(wait, handle.connect()).await) })
        });
        join_all(attempts.collect::<Vec<_>>()).await;
    }

    /// What configuration declares for a thread, and its environments with those that servers are in.
    pub(crate) async fn view_with_servers(&self, thread: &Thread) -> (StepView, Declared) {
        let declared = declared(&self.mcp, thread.id, &thread.settings, working_directory(thread).as_deref());
        (self.settled_view(thread, &environments(&declared)).await, declared)
    }

    /// The MCP servers of a thread as everything stands now.
    pub(crate) async fn bind_anew(&self, thread: &Thread, patience: Patience) -> Binding {
        let (view, declared) = self.view_with_servers(thread).await;
        let capabilities = self.capabilities(&view, thread, &self.mode(thread)).await;
        self.bind(thread, &view, declared, capabilities.servers(self.mcp.pool.limits()), patience).await
    }

    /// The MCP servers of a thread, as its environments stand in this view.
    async fn bind(&self, thread: &Thread, view: &StepView, declared: Declared, plugins: Declared, patience: Patience) -> Binding {
        let (mode, approval) = (self.mode(thread), self.approval(thread));
        let layers = self.mcp.layers(thread.id, working_directory(thread).as_deref());
        let (problems, requirements) = (layers.problem.iter().map(ToString::to_string).collect(), layers.requirements.clone());
        let (id, takes_machines) = (thread.id, !is_internal(thread));
        let bound = Bind { thread: id, view, mode: &mode, approval, declared, problems, requirements, plugins, takes_machines, patience };
        bind(&self.mcp, bound).await
    }

    /// The MCP servers that a thread without environments would have.
    pub(crate) async fn bind_unattended(&self, declared: Declared, requirements: Requirements) -> Binding {
        let view = self.registry.capture_with(&Selection::default(), &[], &environments(&declared));
        for member in view.members() {
            let _ = self.registry.info(&member.id).await;
        }
        let view = self.registry.capture_with(&Selection::default(), &[], &environments(&declared));
        let thread = outpost_thread::ThreadId::new(uuid::Uuid::nil());
        let (mode, approval, patience) = (&self.config.sandbox, self.config.approval, Patience::Full);
        let (problems, plugins, takes_machines) = (Vec::new(), Declared::new(), false);
        let bound = Bind { thread, view: &view, mode, approval, declared, problems, requirements, plugins, takes_machines, patience };
        bind(&self.mcp, bound).await
    }

    /// Everything that a step of this thread can use.
    /// `sessions` says whether a command of its went on behind a session id.
    pub(crate) async fn capture(self: &Arc<Self>, thread: &Thread, processes: Arc<BackgroundProcesses>, sessions: bool) -> StepTools {
        let (view, declared) = self.view_with_servers(thread).await;
        let infos = view.workplaces().filter_map(|place| match place.handle.state() {
            ConnectionState::Ready(connected) => Some((place.attachment.environment_id.clone(), connected.info.clone())),
            _ => None,
        });
        let infos = infos.collect();
        let dynamic: Vec<DynamicTool> = thread.dynamic_tools.iter().filter_map(|tool| tool.read().ok()).collect();
        let provider = thread.settings.model_provider.as_deref().unwrap_or(self.models.default_provider());
        let wire = self.models.providers().get(provider).map(|provider| provider.wire_api);
        let depth = thread.metadata.parent.as_ref().map_or(0, |parent| parent.depth);
        let mode = self.mode(thread);
        let capabilities = self.capabilities(&view, thread, &mode).await;
        let plugins = capabilities.servers(self.mcp.pool.limits());
        self.mcp.watching.follow(self, thread, &view);
        let mcp = Arc::new(self.bind(thread, &view, declared, plugins, Patience::Step).await);
        let approval = self.approval(thread);
        let offer = Offer {
            permissions: !mode.is_full_access() && silence(approval).is_none() && view.workplaces().next().is_some(),
            skills: !capabilities.skills.is_empty(),
            environments: view.selected().count(),
            starting: view.selected().any(|member| matches!(member.captured, Captured::Starting | Captured::Recovering { .. })),
            text_tools: wire == Some(WireApi::Responses) && thread.settings.other.get("textTools").is_some_and(|on| on == true),
            agents: depth < self.config.agents.depth,
            questions: self.config.questions,
            escalation: !mode.is_full_access() && approval != ApprovalPolicy::Never,
            sessions: sessions || processes.has_running(),
            has_agents: !thread.agents.is_empty(),
            vision: self.config.facts(&self.models.model_name(&thread.effective_settings())).vision,
        };
        let more = dynamic.iter().map(|tool| ToolSpec {
            name: tool.name.clone(),
            description: tool.description.clone(),
            input: ToolInput::Object(tool.input_schema.clone()),
        });
        let more = more.chain(crate::tools::mcp::specs(&mcp));
        StepTools {
            specs: catalogue(&offer, more),
            mode,
            capabilities,
            approval,
            grants: thread.granted().cloned().collect(),
            dynamic,
            processes,
            rules: self.rules(),
            questions: self.config.questions,
            thread: thread.id,
            infos,
            mcp,
            scripted: wire == Some(WireApi::Offline),
            seen: None,
            view,
        }
    }

    /// What the next step of a thread would have.
    pub(super) async fn why(&self, thread: &Thread) -> StepCapabilities {
        let view = self.settled_view(thread, &[]).await;
        self.capabilities(&view, thread, &self.mode(thread)).await
    }

    /// What the capability roots of a thread come to in a step.
    pub(super) async fn capabilities(&self, view: &StepView, thread: &Thread, mode: &SandboxMode) -> StepCapabilities {
        let host = self.host_roots();
        let host = if host.is_empty() { None } else { self.host().await.map(|handle| (handle, host)) };
        let (discoveries, patience) = (&self.skills.discoveries, self.config.discovery_patience);
        let mut step = CapabilityQuery { discoveries, patience, mode, view, roots: &thread.capability_roots, host }.capture().await;
        self.keep_wanted(&mut step.skills);
        step
    }

    /// Where the thread's own cannot be read, no step begins; whatever else looks at it finds the strictest.
    pub(crate) fn mode(&self, thread: &Thread) -> SandboxMode {
        match settings::sandbox(&thread.settings) {
            Ok(own) => own.unwrap_or_else(|| self.config.sandbox.clone()),
            Err(_) => SandboxMode::ReadOnly { network_access: false },
        }
    }

    fn approval(&self, thread: &Thread) -> ApprovalPolicy {
        match settings::approval(&thread.settings) {
            Ok(own) => own.unwrap_or(self.config.approval),
            Err(_) => ApprovalPolicy::Untrusted,
        }
    }
}
