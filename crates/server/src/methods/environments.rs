//! Environments: adding, asking, listing, watching, forgetting.

use std::sync::Arc;
use std::time::Duration;

use outpost_environment::{
    Definition, EnvironmentOrigin, EnvironmentRow, EnvironmentState, FIRST_CONNECTION, RegistryEvent, RegistryTransition, Token,
};
use outpost_rpc::HandlerOutcome;
use outpost_wire::app::environment::{
    EnvironmentAdd, EnvironmentAddParams, EnvironmentEntry, EnvironmentIdParams, EnvironmentInfo, EnvironmentInfoResponse, EnvironmentList,
    EnvironmentListResponse, EnvironmentRemove, EnvironmentShell, EnvironmentStatus, EnvironmentStatusKind, EnvironmentStatusResponse,
    EnvironmentWatch, EnvironmentWatchResponse,
};
use outpost_wire::app::event::EnvironmentChanged;
use outpost_wire::app::{NoParams, Nothing};
use outpost_wire::intent::EnvironmentId;
use outpost_wire::{Fault, intent};
use serde_json::Value;

use crate::connection::ClientConnection;
use crate::fault;
use crate::server::ServerShared;
use crate::table::Table;

pub(super) fn register(table: Table) -> Table {
    table
        .on::<EnvironmentAdd, _, _>(add)
        .on::<EnvironmentInfo, _, _>(info)
        .on::<EnvironmentStatus, _, _>(status)
        .on::<EnvironmentList, _, _>(list)
        .on::<EnvironmentRemove, _, _>(remove)
        .on_call::<EnvironmentWatch, _, _>(watch)
}

async fn add(connection: Arc<ClientConnection>, params: EnvironmentAddParams) -> Result<Nothing, Fault> {
    let refuse = |why: String| Fault::invalid_request(format!("invalid environment: {why}"));
    let id = EnvironmentId::parse_own(&params.environment_id).map_err(|error| match error {
        intent::EnvironmentIdError::Empty => refuse("environment id cannot be empty".into()),
        other => refuse(other.to_string()),
    })?;
    let url = params.exec_server_url.trim();
    if url.is_empty() {
        return Err(refuse(format!("environment `{id}` requires an exec-server url")));
    }
    let token = params.auth_bearer_token.map_or(Token::None, Token::Bearer);
    let mut definition = Definition::url(url, token).map_err(fault::definition)?;
    if let Some(patience) = params.connect_timeout_ms {
        definition.connect_timeout = Duration::from_millis(patience.max(1));
    }
    let required = required_skills(params.skills.as_ref()).map_err(refuse)?;
    let registry = connection.server.runtime.registry();
    registry.add(id.clone(), definition).map_err(fault::registry)?;
    connection.server.runtime.require_skills(id.clone(), required);
    // A client that adds one means to use it: connect now, so that its state is known when asked for.
    if let Some(handle) = registry.get(&id) {
        handle.want();
    }
    Ok(Nothing {})
}

/// The names in `skills: {required: […]}`.
fn required_skills(skills: Option<&Value>) -> Result<Vec<String>, String> {
    match skills.and_then(|skills| skills.get("required")) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(names) => serde_json::from_value(names.clone()).map_err(|error| format!("skills.required must be a list of names: {error}")),
    }
}

/// An id that breaks the rules cannot be known either.
fn known(text: &str) -> Result<EnvironmentId, Fault> {
    EnvironmentId::parse(text).map_err(|_| fault::unknown_environment(text))
}

async fn info(connection: Arc<ClientConnection>, params: EnvironmentIdParams) -> Result<EnvironmentInfoResponse, Fault> {
    let id = known(&params.environment_id)?;
    let info = connection.server.runtime.registry().full_info(&id).await.map_err(|error| fault::info(id.as_str(), error))?;
    Ok(EnvironmentInfoResponse {
        shell: EnvironmentShell { name: info.shell.name, path: info.shell.path },
        cwd: info.cwd.map(|cwd| cwd.to_string()),
        executor_id: info.executor_id,
        instance_id: info.instance_id,
        platform_os: info.platform_os,
        executor_version: info.executor_version,
        sandbox: info.sandbox,
        limits: info.limits.iter().map(ToString::to_string).collect(),
    })
}

async fn status(connection: Arc<ClientConnection>, params: EnvironmentIdParams) -> Result<EnvironmentStatusResponse, Fault> {
    let standing = match EnvironmentId::parse(&params.environment_id) {
        Ok(id) => connection.server.runtime.registry().standing(&id),
        Err(_) => EnvironmentState::Missing,
    };
    let status = match &standing {
        EnvironmentState::Ready => EnvironmentStatusKind::Ready,
        EnvironmentState::Idle | EnvironmentState::Connecting => EnvironmentStatusKind::Pending,
        EnvironmentState::Recovering { .. } | EnvironmentState::Failed { .. } | EnvironmentState::NeedsLogin { .. } => {
            EnvironmentStatusKind::Disconnected
        }
        EnvironmentState::Missing | EnvironmentState::Disabled => EnvironmentStatusKind::Unknown,
    };
    Ok(EnvironmentStatusResponse { status, error: reason(&standing) })
}

fn reason(standing: &EnvironmentState) -> Option<String> {
    match standing {
        EnvironmentState::Recovering { reason, .. } | EnvironmentState::Failed { reason, .. } | EnvironmentState::NeedsLogin { reason } => {
            Some(reason.clone())
        }
        _ => None,
    }
}

fn entries(server: &ServerShared) -> Vec<EnvironmentEntry> {
    let registry = server.runtime.registry();
    let default = registry.default_selection(&server.facts.cwd, &[]).primary().map(|primary| primary.environment_id.clone());
    let entry = |status: EnvironmentRow| EnvironmentEntry {
        state: status.standing.word().to_owned(),
        reason: reason(&status.standing).or_else(|| status.waits_for_first.then(|| FIRST_CONNECTION.to_owned())),
        generation: status.generation,
        is_default: default.as_ref() == Some(&status.id),
        is_configured: status.origin == EnvironmentOrigin::Configured,
        executor_id: status.identity.as_ref().and_then(|identity| identity.executor_id.clone()),
        instance_id: status.identity.and_then(|identity| identity.instance_id),
        address: status.address,
        environment_id: status.id.to_string(),
    };
    // What is wrong and has no id of its own is shown by its place in the file.
    let nameless = registry.nameless().into_iter().map(|wrong| EnvironmentEntry {
        environment_id: wrong.label(),
        state: "failed".to_owned(),
        reason: Some(wrong.reason),
        generation: 0,
        is_default: false,
        is_configured: true,
        executor_id: None,
        instance_id: None,
        address: String::new(),
    });
    registry.list().into_iter().map(entry).chain(nameless).collect()
}

async fn list(connection: Arc<ClientConnection>, _params: NoParams) -> Result<EnvironmentListResponse, Fault> {
    Ok(EnvironmentListResponse { data: entries(&connection.server) })
}

async fn remove(connection: Arc<ClientConnection>, params: EnvironmentIdParams) -> Result<Nothing, Fault> {
    let id = known(&params.environment_id)?;
    connection.server.runtime.registry().remove(&id).map_err(fault::registry)?;
    Ok(Nothing {})
}

/// Tells how everything stands, and then every change. Asking again changes nothing.
async fn watch(connection: Arc<ClientConnection>, _params: NoParams) -> Result<HandlerOutcome<EnvironmentWatchResponse>, Fault> {
    let output = EnvironmentWatchResponse { data: entries(&connection.server) };
    if !connection.begin_watching() {
        return Ok(output.into());
    }
    let mut watcher = connection.server.runtime.registry().watch();
    let rest = async move {
        loop {
            connection.outlet.room().await;
            let change = watcher.next().await;
            if let Some(notice) = told(change.sequence, change.event) {
                connection.tell(&notice.into());
            }
        }
    };
    Ok(HandlerOutcome { output, rest: Some(Box::pin(rest)) })
}

fn told(sequence: u64, news: RegistryEvent) -> Option<EnvironmentChanged> {
    match news {
        RegistryEvent::Environment { id, generation, standing, transition } => {
            let event = match transition {
                RegistryTransition::Replayed => "replayed",
                RegistryTransition::Added => "added",
                RegistryTransition::Replaced => "replaced",
                RegistryTransition::Changed => "changed",
                RegistryTransition::Removed => "removed",
            };
            Some(EnvironmentChanged {
                sequence,
                environment_id: id.to_string(),
                state: standing.word().to_owned(),
                reason: reason(&standing),
                generation,
                event: event.into(),
            })
        }
        RegistryEvent::OtherExecutor { id, generation, .. } => Some(EnvironmentChanged {
            sequence,
            environment_id: id.to_string(),
            state: "ready".into(),
            reason: Some("another executor answers than before; what was approved for the old one does not count any more".into()),
            generation,
            event: "otherExecutor".into(),
        }),
        RegistryEvent::Lost { .. } | RegistryEvent::Configured | RegistryEvent::Misconfigured { .. } => None,
    }
}
