//! What else can be done with a loaded thread: compacting, commands of the user, items for the model, settings.

use std::sync::Arc;
use std::time::Duration;

use outpost_rpc::HandlerOutcome;
use outpost_runtime::live::CommandError;
use outpost_thread::{Fact, InputId, InputOrigin, InputReceived, Raw};
use outpost_wire::Fault;
use outpost_wire::app::event::Warning;
use outpost_wire::app::settings::{ThreadSettingsUpdate, ThreadSettingsUpdateParams};
use outpost_wire::app::thread::{
    ThreadCompactStart, ThreadInjectItems, ThreadInjectItemsParams, ThreadShellCommand, ThreadShellCommandParams,
};
use outpost_wire::app::{Nothing, ThreadParams};

use super::threads::{WorkplaceChange, change};
use super::turns::{attend, then_tell};
use super::{choices, loaded};
use crate::connection::ClientConnection;
use crate::fault;
use crate::table::Table;

/// A command of the user's runs no longer than this if it is to have an end at all.
const LONGEST_SHELL: Duration = Duration::from_secs(24 * 3600);

pub(super) fn register(table: Table) -> Table {
    table
        .on_call::<ThreadCompactStart, _, _>(compact)
        .on_call::<ThreadShellCommand, _, _>(shell)
        .on::<ThreadInjectItems, _, _>(inject)
        .on_call::<ThreadSettingsUpdate, _, _>(settings)
}

async fn compact(connection: Arc<ClientConnection>, params: ThreadParams) -> Result<HandlerOutcome<Nothing>, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    let hold = attend(&connection, &live).await?;
    match live.compact().await {
        Ok(_) => {}
        // It is made smaller when the turn is over, as the client means it.
        Err(CommandError::Busy) => drop(tokio::spawn(async move {
            live.settled().await;
            if let Err(error) = live.compact().await {
                let message = format!("the thread is not compacted: {error}");
                connection.tell(&Warning { thread_id: Some(params.thread_id), message }.into());
            }
        })),
        Err(error) => return Err(fault::command(error)),
    }
    Ok(then_tell(Nothing {}, hold))
}

async fn shell(connection: Arc<ClientConnection>, params: ThreadShellCommandParams) -> Result<HandlerOutcome<Nothing>, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    if params.command.trim().is_empty() {
        return Err(Fault::invalid_request("command must not be empty"));
    }
    let hold = attend(&connection, &live).await?;
    let command = live.shell(params.command, params.environment_id).await.map_err(fault::command)?;
    if let Some(limit) = params.timeout_ms {
        let limit = Duration::from_millis(limit).min(LONGEST_SHELL);
        tokio::spawn(async move {
            tokio::time::sleep(limit).await;
            // If it is over already, so much the better.
            let _ = live.stop_command(command).await;
        });
    }
    Ok(then_tell(Nothing {}, hold))
}

async fn inject(connection: Arc<ClientConnection>, params: ThreadInjectItemsParams) -> Result<Nothing, Fault> {
    let live = loaded(&connection, &params.thread_id).await?;
    if params.items.is_empty() {
        return Err(Fault::invalid_request("items must not be empty"));
    }
    if let Some(index) = params.items.iter().position(|item| !item["type"].is_string()) {
        return Err(Fault::invalid_request(format!("items[{index}] is not an item of the Responses API: it has no `type`")));
    }
    let received = InputReceived {
        input: InputId(connection.server.runtime.new_id()),
        turn: None,
        origin: InputOrigin::History,
        client_key: None,
        by: None,
        content: vec![],
        items: params.items.into_iter().map(Raw::from).collect(),
    };
    live.change(vec![Fact::from(received)]).await.map_err(fault::command)?;
    Ok(Nothing {})
}

async fn settings(connection: Arc<ClientConnection>, params: ThreadSettingsUpdateParams) -> Result<HandlerOutcome<Nothing>, Fault> {
    let server = connection.server.clone();
    let live = loaded(&connection, &params.thread_id).await?;
    let settings = choices::wanted(
        &server,
        choices::TurnChoices {
            model: params.model,
            effort: params.effort,
            approval_policy: params.approval_policy,
            approvals_reviewer: params.approvals_reviewer,
            sandbox_policy: params.sandbox_policy.as_ref(),
            permissions: params.permissions.as_deref(),
        },
    )?;
    let place = WorkplaceChange {
        cwd: params.cwd,
        environments: params.environments.as_deref().map(|wanted| choices::select(&server, wanted)).transpose()?,
        workspace_roots: None,
        capability_roots: params.selected_capability_roots.as_deref().map(choices::roots).transpose()?,
    };
    let hold = attend(&connection, &live).await?;
    change(&live, settings, place, &server.facts.cwd).await?;
    Ok(then_tell(Nothing {}, hold))
}
