//! From what a client chooses for a thread or a turn to settings, instructions, selections and roots: the same rules for
//! starting, resuming, forking, turns and changes of settings.

use outpost_environment::selection::{self, EnvironmentRequest};
use outpost_runtime::mcp::SESSION_LAYER;
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::runtime::Instructions;
use outpost_thread::{Raw, Settings};
use outpost_wire::app::environment::{CapabilityRootLocation, CapabilityRootParams, EnvironmentParams};
use outpost_wire::app::event::ConfigWarning;
use outpost_wire::app::settings::{ApprovalsReviewer, AskForApproval, Overrides, SandboxPolicy};
use outpost_wire::app::thread::SandboxName;
use outpost_wire::intent::{CapabilityRoot, EnvironmentId, Selection};
use outpost_wire::{Fault, PathUri};
use serde_json::Value;

use crate::connection::ClientConnection;
use crate::fault;
use crate::projection::same;
use crate::server::ServerShared;

/// Named sets of permissions, and the sandbox that each stands for.
pub(super) const PROFILES: [(&str, &str); 3] =
    [(":read-only", "read-only"), (":workspace", "workspace-write"), (":danger-full-access", "danger-full-access")];

/// What is chosen for turns.
#[derive(Debug, Default)]
pub(super) struct Choices {
    pub settings: Settings,
    pub instructions: Option<Raw>,
}

/// Whom choices are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    NewThread,
    /// One that has made its own choices before.
    KnownThread,
}

/// Checks what comes with starting, resuming and forking. `settings.cwd` stays empty: where it is depends on where it was.
pub(super) fn choose(connection: &ClientConnection, given: &Overrides, whose: Whose) -> Result<Choices, Fault> {
    let server = &*connection.server;
    let mut settings = Settings::default();
    let (mut network, mut unheard) = (None, Vec::new());
    if let Some(config) = &given.config {
        network = configured(server, config, &mut settings)?;
        unheard = others(config);
    }
    if given.permissions.is_some() && given.sandbox.is_some() {
        return Err(fault::both_permissions_and_sandbox());
    }
    if let Some(model) = &given.model {
        settings.model = Some(model.clone());
    }
    if let Some(provider) = &given.model_provider {
        settings.model_provider = Some(provider.clone());
    }
    if let Some(provider) = &settings.model_provider
        && !server.runtime.models().providers().contains_key(provider)
    {
        return Err(Fault::invalid_request(format!("model provider `{provider}` not found")));
    }
    if let Some(policy) = given.approval_policy {
        settings.approval_policy = Some(approval(policy));
    }
    if let Some(reviewer) = given.approvals_reviewer {
        review(&mut settings, reviewer);
    }
    if let Some(name) = given.sandbox.map(SandboxName::as_str) {
        settings.sandbox = Some(named_sandbox(server, name)?);
    }
    if let Some(profile) = &given.permissions {
        settings.sandbox = Some(profile_sandbox(server, profile)?);
    }
    match network {
        Some(network) if whose == Whose::NewThread || settings.sandbox.is_some() => reach_out(server, network, &mut settings),
        // The sandbox that a thread has is not replaced by the usual one for the sake of this.
        Some(_) => unheard.push(format!("{NETWORK} (without a sandbox that it belongs to)")),
        None => {}
    }
    // Clients send what other servers know; what is not heard is told, and no reason to refuse the rest.
    if !unheard.is_empty() {
        let summary = format!("`config` of a thread has no effect here: {}", unheard.join(", "));
        let details = format!("A thread can have these for itself: {}. Others belong into config.toml.", HEARD.join(", "));
        connection.tell(&ConfigWarning { summary, details: Some(details) }.into());
    }
    let instructions = Instructions { base: given.base_instructions.clone(), developer: given.developer_instructions.clone() };
    let instructions = (instructions != Instructions::default()).then(|| Raw::of(&instructions).ok()).flatten();
    Ok(Choices { settings, instructions })
}

/// What comes with a turn and with a change of settings, as the client wrote it.
pub(super) struct TurnChoices<'a> {
    pub model: Option<String>,
    pub effort: Option<String>,
    pub approval_policy: Option<AskForApproval>,
    pub approvals_reviewer: Option<ApprovalsReviewer>,
    pub sandbox_policy: Option<&'a SandboxPolicy>,
    pub permissions: Option<&'a str>,
}

/// Checks what is wanted for this turn and those after it.
pub(super) fn wanted(server: &ServerShared, wanted: TurnChoices<'_>) -> Result<Settings, Fault> {
    let sandbox = match (wanted.permissions, wanted.sandbox_policy) {
        (Some(_), Some(_)) => return Err(Fault::invalid_request("`permissions` cannot be combined with `sandboxPolicy`")),
        (Some(profile), None) => Some(profile_sandbox(server, profile)?),
        (None, policy) => policy.map(policy_sandbox),
    };
    let approval_policy = wanted.approval_policy.map(approval);
    let mut settings = Settings { model: wanted.model, reasoning_effort: wanted.effort, approval_policy, sandbox, ..Settings::default() };
    if let Some(reviewer) = wanted.approvals_reviewer {
        review(&mut settings, reviewer);
    }
    Ok(settings)
}

const NETWORK: &str = "sandbox_workspace_write.network_access";

/// The keys of `config.toml` that a thread can have for itself. Others belong to the whole program.
const HEARD: [&str; 7] = ["model", "model_provider", "model_reasoning_effort", "approval_policy", "sandbox_mode", NETWORK, "mcp_servers"];

/// What is said and not heard. A table is not looked into further than we know it.
fn others(config: &Value) -> Vec<String> {
    let mut unheard = Vec::new();
    for (key, value) in config.as_object().into_iter().flatten() {
        match value.as_object().filter(|_| NETWORK.starts_with(&format!("{key}."))) {
            Some(table) => unheard.extend(table.keys().map(|inner| format!("{key}.{inner}")).filter(|key| key != NETWORK)),
            None if HEARD.contains(&key.as_str()) => {}
            None => unheard.push(key.clone()),
        }
    }
    unheard
}

/// Takes what a thread can have for itself; whether it may use the network is the result.
fn configured(server: &ServerShared, config: &Value, settings: &mut Settings) -> Result<Option<bool>, Fault> {
    let text = |key: &str| match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(fault::invalid(format!("`config.{key}` must be a string, not {other}"))),
    };
    settings.model = text("model")?;
    settings.model_provider = text("model_provider")?;
    settings.reasoning_effort = text("model_reasoning_effort")?;
    if let Some(policy) = config.get("approval_policy").filter(|policy| !policy.is_null()) {
        let policy: AskForApproval = serde_json::from_value(policy.clone()).map_err(fault::invalid)?;
        settings.approval_policy = Some(approval(policy));
    }
    if let Some(name) = text("sandbox_mode")? {
        settings.sandbox = Some(named_sandbox(server, &name)?);
    }
    let network = config.get(NETWORK).or_else(|| config.get("sandbox_workspace_write")?.get("network_access"));
    let network = match network {
        None | Some(Value::Null) => None,
        Some(Value::Bool(network)) => Some(*network),
        Some(other) => return Err(fault::invalid(format!("`config.{NETWORK}` must be true or false, not {other}"))),
    };
    // Checked by the runtime, together with what lies in files.
    if let Some(servers) = config.get("mcp_servers").filter(|servers| !servers.is_null()) {
        settings.other.insert(SESSION_LAYER.into(), servers.clone());
    }
    Ok(network)
}

/// Whether commands of a thread may use the network; that is only asked where they may write in the workspace.
fn reach_out(server: &ServerShared, network: bool, settings: &mut Settings) {
    if let SandboxMode::WorkspaceWrite { writable_roots, exclude_tmpdir_env_var, exclude_slash_tmp, .. } = server.defaults.mode(settings) {
        let mode = SandboxMode::WorkspaceWrite { writable_roots, network_access: network, exclude_tmpdir_env_var, exclude_slash_tmp };
        settings.sandbox = Raw::of(&mode).ok();
    }
}

fn approval(policy: AskForApproval) -> Raw {
    Raw::of(&policy).unwrap_or_else(|_| Raw::from(Value::Null))
}

fn review(settings: &mut Settings, reviewer: ApprovalsReviewer) {
    if let Some(word) = same(&reviewer) {
        settings.other.insert("approvalsReviewer".into(), word);
    }
}

/// A sandbox by its short name, with what the configuration says about it.
fn named_sandbox(server: &ServerShared, name: &str) -> Result<Raw, Fault> {
    let Some(mode) = SandboxMode::named(name) else {
        let known = "`read-only`, `workspace-write`, `danger-full-access`";
        return Err(fault::invalid(format!("unknown variant `{name}`, expected one of {known}")));
    };
    let configured = &server.runtime.config().sandbox;
    let mode = if configured.name() == name { configured.clone() } else { mode };
    Ok(Raw::of(&mode).unwrap_or_else(|_| Raw::from(Value::from(name))))
}

pub(super) fn profile_sandbox(server: &ServerShared, profile: &str) -> Result<Raw, Fault> {
    match PROFILES.iter().find(|(id, _)| *id == profile) {
        Some((_, name)) => named_sandbox(server, name),
        None => {
            let known: Vec<&str> = PROFILES.iter().map(|(id, _)| *id).collect();
            Err(Fault::invalid_request(format!("unknown permission profile `{profile}`; there are {}", known.join(", "))))
        }
    }
}

fn policy_sandbox(policy: &SandboxPolicy) -> Raw {
    Raw::of(policy).unwrap_or_else(|_| Raw::from(Value::Null))
}

/// Checks environments that a client names.
pub(super) fn select(server: &ServerShared, wanted: &[EnvironmentParams]) -> Result<Selection, Fault> {
    let wishes: Vec<EnvironmentRequest> = wanted
        .iter()
        .map(|entry| EnvironmentRequest {
            environment_id: entry.environment_id.clone(),
            cwd: entry.cwd.clone(),
            workspace_roots: entry.runtime_workspace_roots.clone(),
        })
        .collect();
    Ok(selection::select(&wishes, &server.runtime.registry().catalogue())?)
}

/// Checks capability roots that a client names. One in an environment that is not known now may be known later.
pub(super) fn roots(wanted: &[CapabilityRootParams]) -> Result<Vec<CapabilityRoot>, Fault> {
    let root = |given: &CapabilityRootParams| {
        let CapabilityRootLocation::Environment { environment_id, path } = &given.location;
        let wrong = |why: &dyn std::fmt::Display| Fault::invalid_request(format!("invalid capability root `{}`: {why}", given.id));
        let id = EnvironmentId::parse(environment_id).map_err(|error| wrong(&error))?;
        let path = PathUri::parse_either(path).map_err(|error| wrong(&error))?;
        Ok(CapabilityRoot::new(given.id.clone(), id, path))
    };
    let roots = wanted.iter().map(root).collect::<Result<Vec<_>, Fault>>()?;
    CapabilityRoot::check_all(&roots).map_err(Fault::invalid_request)?;
    Ok(roots)
}

/// Workspace roots that a client names for the primary environment.
pub(super) fn workspace_roots(given: &[String]) -> Result<Vec<PathUri>, Fault> {
    let root = |path: &String| {
        PathUri::from_syntax(path).map_err(|_| {
            Fault::invalid_request(format!("invalid workspace root: path `{path}` does not use absolute POSIX or Windows path syntax"))
        })
    };
    given.iter().map(root).collect()
}
