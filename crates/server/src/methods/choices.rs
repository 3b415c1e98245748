//! From what a client chooses for a thread or a turn to settings, instructions, selections and roots: the same rules for
//! starting, resuming, forking, turns and changes of settings.

use outpost_environment::selection::{self, Wish};
use outpost_runtime::mcp::SESSION_LAYER;
use outpost_runtime::permissions::SandboxMode;
use outpost_runtime::runtime::Instructions;
use outpost_thread::{Raw, Settings};
use outpost_wire::app::environment::{CapabilityRootLocation, CapabilityRootParams, EnvironmentParams};
use outpost_wire::app::settings::{ApprovalsReviewer, AskForApproval, Overrides, SandboxPolicy};
use outpost_wire::app::thread::SandboxName;
use outpost_wire::intent::{CapabilityRoot, EnvironmentId, Selection};
use outpost_wire::{Fault, PathUri};
use serde_json::Value;

use crate::fault;
use crate::projection::same;
use crate::server::Shared;

/// Named sets of permissions, and the sandbox that each stands for.
pub const PROFILES: [(&str, &str); 3] =
    [(":read-only", "read-only"), (":workspace", "workspace-write"), (":danger-full-access", "danger-full-access")];

/// What is chosen for turns.
#[derive(Debug, Default)]
pub struct Choices {
    pub settings: Settings,
    pub instructions: Option<Raw>,
}

/// Checks what comes with starting, resuming and forking. `settings.cwd` stays empty: where it is depends on where it was.
pub fn choose(server: &Shared, given: &Overrides) -> Result<Choices, Fault> {
    let mut settings = Settings::default();
    if let Some(config) = &given.config {
        configured(server, config, &mut settings)?;
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
    let instructions = Instructions { base: given.base_instructions.clone(), developer: given.developer_instructions.clone() };
    let instructions = (instructions != Instructions::default()).then(|| Raw::of(&instructions).ok()).flatten();
    Ok(Choices { settings, instructions })
}

/// What comes with a turn and with a change of settings, as the client wrote it.
pub struct Wanted<'a> {
    pub model: Option<String>,
    pub effort: Option<String>,
    pub approval_policy: Option<AskForApproval>,
    pub approvals_reviewer: Option<ApprovalsReviewer>,
    pub sandbox_policy: Option<&'a SandboxPolicy>,
    pub permissions: Option<&'a str>,
}

/// Checks what is wanted for this turn and those after it.
pub fn wanted(server: &Shared, wanted: Wanted<'_>) -> Result<Settings, Fault> {
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

/// The keys of `config.toml` that a thread can have for itself. Others belong to the whole program.
fn configured(server: &Shared, config: &Value, settings: &mut Settings) -> Result<(), Fault> {
    let text = |key: &str| config.get(key).and_then(Value::as_str).map(str::to_owned);
    if let Some(model) = text("model") {
        settings.model = Some(model);
    }
    if let Some(provider) = text("model_provider") {
        settings.model_provider = Some(provider);
    }
    if let Some(effort) = text("model_reasoning_effort") {
        settings.reasoning_effort = Some(effort);
    }
    if let Some(policy) = config.get("approval_policy").filter(|policy| !policy.is_null()) {
        let policy: AskForApproval = serde_json::from_value(policy.clone()).map_err(|error| fault::invalid(&error.to_string()))?;
        settings.approval_policy = Some(approval(policy));
    }
    if let Some(name) = text("sandbox_mode") {
        settings.sandbox = Some(named_sandbox(server, &name)?);
    }
    // Checked by the runtime, together with what lies in files.
    if let Some(servers) = config.get("mcp_servers").filter(|servers| !servers.is_null()) {
        settings.other.insert(SESSION_LAYER.into(), servers.clone());
    }
    Ok(())
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
fn named_sandbox(server: &Shared, name: &str) -> Result<Raw, Fault> {
    let Some(mode) = SandboxMode::named(name) else {
        let known = "`read-only`, `workspace-write`, `danger-full-access`";
        return Err(fault::invalid(&format!("unknown variant `{name}`, expected one of {known}")));
    };
    let configured = &server.runtime.config().sandbox;
    let mode = if configured.name() == name { configured.clone() } else { mode };
    Ok(Raw::of(&mode).unwrap_or_else(|_| Raw::from(Value::from(name))))
}

pub fn profile_sandbox(server: &Shared, profile: &str) -> Result<Raw, Fault> {
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
pub fn select(server: &Shared, wanted: &[EnvironmentParams]) -> Result<Selection, Fault> {
    let wishes: Vec<Wish> = wanted
        .iter()
        .map(|entry| Wish {
            environment_id: entry.environment_id.clone(),
            cwd: entry.cwd.clone(),
            workspace_roots: entry.runtime_workspace_roots.clone(),
        })
        .collect();
    Ok(selection::select(&wishes, &server.runtime.registry().catalogue())?)
}

/// Checks capability roots that a client names. One in an environment that is not known now may be known later.
pub fn roots(wanted: &[CapabilityRootParams]) -> Result<Vec<CapabilityRoot>, Fault> {
    let root = |given: &CapabilityRootParams| {
        let CapabilityRootLocation::Environment { environment_id, path } = &given.location;
        let wrong = |why: String| Fault::invalid_request(format!("invalid capability root `{}`: {why}", given.id));
        let id = EnvironmentId::parse(environment_id).map_err(|error| wrong(error.to_string()))?;
        let path = PathUri::parse_either(path).map_err(|error| wrong(error.to_string()))?;
        Ok(CapabilityRoot::new(given.id.clone(), id, path))
    };
    let roots = wanted.iter().map(root).collect::<Result<Vec<_>, Fault>>()?;
    CapabilityRoot::check_all(&roots).map_err(|error| Fault::invalid_request(error.to_string()))?;
    Ok(roots)
}

/// Workspace roots that a client names for the primary environment.
pub fn workspace_roots(given: &[String]) -> Result<Vec<PathUri>, Fault> {
    let root = |path: &String| {
        PathUri::from_syntax(path).map_err(|_| {
            Fault::invalid_request(format!("invalid workspace root: path `{path}` does not use absolute POSIX or Windows path syntax"))
        })
    };
    given.iter().map(root).collect()
}
