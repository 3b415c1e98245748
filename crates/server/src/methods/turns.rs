//! Turns: starting, steering, stopping.

use std::sync::Arc;

use outpost_environment::selection::{self, Request, Scope};
use outpost_rpc::Outcome;
use outpost_runtime::feed::{Cursor, Read};
use outpost_runtime::live::{Accepted, CommandError, Event, InputMode, LiveThread, NewInput};
use outpost_thread::{Fact, InterruptReason, Raw, TurnId, TurnKind, TurnSettingsChanged};
use outpost_wire::app::Nothing;
use outpost_wire::app::turn::{
    EnvironmentsScope, ItemsView, Turn, TurnInterrupt, TurnInterruptParams, TurnSettingsUpdate, TurnSettingsUpdateParams,
    TurnSettingsUpdateResponse, TurnSettingsUpdateStatus, TurnStart, TurnStartParams, TurnStartResponse, TurnStatus, TurnSteer,
    TurnSteerParams, TurnSteerResponse,
};
use outpost_wire::{Fault, PathUri};

use super::{choices, loaded, reading};
use crate::connection::Connection;
use crate::fault;
use crate::input;
use crate::subscription::{Hold, Opening};
use crate::table::Table;

pub fn register(table: Table) -> Table {
    table
        .on_call::<TurnStart, _, _>(start)
        .on_call::<TurnSteer, _, _>(steer)
        .on::<TurnInterrupt, _, _>(interrupt)
        .on::<TurnSettingsUpdate, _, _>(settings)
}

/// Makes sure that this client hears of a thread, and keeps back what happens in it until the answer is on its way.
pub async fn attend(connection: &Arc<Connection>, live: &LiveThread) -> Result<Hold, Fault> {
    if connection.subscription(live.id()).is_none() {
        let begun = Opening::of(connection, live.clone()).await?.begin(connection).await;
        begun.tell(vec![]).await;
    }
    match connection.subscription(live.id()) {
        Some(subscription) => Ok(subscription.hold().await),
        None => Err(fault::thread_not_found(live.id())),
    }
}

/// An answer, after which what was kept back is told.
pub fn then_tell<O>(output: O, hold: Hold) -> Outcome<O> {
    Outcome { output, rest: Some(Box::pin(async move { drop(hold) })) }
}

async fn start(connection: Arc<Connection>, params: TurnStartParams) -> Result<Outcome<TurnStartResponse>, Fault> {
    let server = connection.server.clone();
    let live = loaded(&connection, &params.thread_id)?;
    // Everything is checked before anything is changed.
    let environments = params.environments.as_deref().map(|wanted| choices::select(&server, wanted)).transpose()?;
    let workspace_roots = params.runtime_workspace_roots.as_deref().map(choices::workspace_roots).transpose()?;
    let mut settings = choices::wanted(
        &server,
        choices::Wanted {
            model: params.model,
            effort: params.effort,
            approval_policy: params.approval_policy,
            approvals_reviewer: params.approvals_reviewer,
            sandbox_policy: params.sandbox_policy.as_ref(),
            permissions: params.permissions.as_deref(),
        },
    )?;
    let message = input::message(params.input, params.additional_context).await?;
    let mut new = NewInput {
        mode: InputMode::StartOrSteer,
        client_key: params.client_user_message_id,
        content: message.content,
        items: message.items,
        output_schema: params.output_schema.filter(|schema| !schema.is_null()).map(Raw::from),
        ..NewInput::default()
    };
    if environments.is_some() || workspace_roots.is_some() || params.cwd.is_some() {
        let state = live.snapshot().await.map_err(fault::command)?;
        let own = state.settings.cwd.as_deref().and_then(|cwd| PathUri::from_syntax(cwd).ok());
        let now = own.unwrap_or_else(|| server.facts.cwd.clone());
        let cwd = params.cwd.as_deref().map(|text| selection::resolve_cwd(&now, text));
        settings.cwd = cwd.as_ref().map(PathUri::to_syntax);
        let scope = match params.environments_scope.unwrap_or_default() {
            EnvironmentsScope::Turn => Scope::Turn,
            EnvironmentsScope::Thread => Scope::Thread,
        };
        let before = state.selection.unwrap_or_default();
        let is_override = environments.is_some();
        let outcome = selection::decide(&before, Request { environments, scope, cwd, workspace_roots });
        new.turn_selection = (is_override && scope == Scope::Turn).then_some(outcome.turn);
        new.selection = (outcome.thread != before).then_some(outcome.thread);
    }
    new.settings = settings;
    let hold = attend(&connection, &live).await?;
    let mut feed = live.subscribe();
    let turn = match live.input(new).await.map_err(fault::command)? {
        Accepted::Started(turn) | Accepted::Steered(turn) => begun(&turn),
        Accepted::Known(Some(turn)) => known(&connection, &live, &turn).await?,
        Accepted::Queued | Accepted::Known(None) => begun(&next_turn(&mut feed, &live).await?),
    };
    Ok(then_tell(TurnStartResponse { turn }, hold))
}

/// A turn that has only just begun.
pub fn begun(id: &TurnId) -> Turn {
    Turn {
        id: id.to_string(),
        items: vec![],
        items_view: ItemsView::NotLoaded,
        status: TurnStatus::InProgress,
        error: None,
        started_at: None,
        completed_at: None,
        duration_ms: None,
        root_turn_id: None,
    }
}

/// The turn that an earlier request with the same key started, as it stands.
async fn known(connection: &Arc<Connection>, live: &LiveThread, id: &TurnId) -> Result<Turn, Fault> {
    let (state, _, store) = reading::state_of(&connection.server, live.id()).await?;
    let turns = reading::turns(&connection.server, &store, live.id(), state.last).await?.into_turns();
    let found = turns.into_iter().find(|turn| turn.id == id.as_str());
    Ok(found.map_or_else(|| begun(id), crate::projection::without_items))
}

/// The turn that takes up what waits now.
async fn next_turn(feed: &mut Cursor<Event>, live: &LiveThread) -> Result<TurnId, Fault> {
    loop {
        match feed.next().await {
            Read::Event(Event::Entry(entry)) => {
                if let Fact::TurnStarted(fact) = &entry.fact
                    && fact.kind == TurnKind::Regular
                {
                    return Ok(fact.turn.clone());
                }
            }
            Read::Event(_) | Read::Missed(_) => {}
            Read::End => return Err(fault::thread_not_found(live.id())),
        }
    }
}

async fn steer(connection: Arc<Connection>, params: TurnSteerParams) -> Result<Outcome<TurnSteerResponse>, Fault> {
    let live = loaded(&connection, &params.thread_id)?;
    let message = input::message(params.input, params.additional_context).await?;
    let new = NewInput {
        mode: InputMode::Steer { expected: Some(TurnId(params.expected_turn_id)) },
        client_key: params.client_user_message_id,
        content: message.content,
        items: message.items,
        ..NewInput::default()
    };
    let hold = attend(&connection, &live).await?;
    let turn_id = match live.input(new).await.map_err(fault::steer)? {
        Accepted::Started(turn) | Accepted::Steered(turn) | Accepted::Known(Some(turn)) => turn.to_string(),
        Accepted::Queued | Accepted::Known(None) => return Err(Fault::invalid_request("no active turn to steer")),
    };
    Ok(then_tell(TurnSteerResponse { turn_id }, hold))
}

/// A turn that is over is what was wanted; the answer never waits for another one.
async fn interrupt(connection: Arc<Connection>, params: TurnInterruptParams) -> Result<Nothing, Fault> {
    let live = loaded(&connection, &params.thread_id)?;
    let turn = Some(params.turn_id).filter(|turn| !turn.is_empty()).map(TurnId);
    live.interrupt(turn, InterruptReason::User).await.map_err(fault::interrupt)?;
    Ok(Nothing {})
}

/// A turn that is over is told as such; that is no mistake of the client, who cannot know it.
async fn settings(connection: Arc<Connection>, params: TurnSettingsUpdateParams) -> Result<TurnSettingsUpdateResponse, Fault> {
    let live = loaded(&connection, &params.thread_id)?;
    for (name, is_given) in [("summary", params.summary.is_some()), ("serviceTier", params.service_tier.is_some())] {
        if is_given {
            return Err(Fault::invalid_request(format!("`{name}` cannot be changed here; send only model, effort and approvalsReviewer")));
        }
    }
    let wanted = choices::Wanted {
        model: params.model,
        effort: params.effort,
        approval_policy: None,
        approvals_reviewer: params.approvals_reviewer,
        sandbox_policy: None,
        permissions: None,
    };
    let settings = choices::wanted(&connection.server, wanted)?;
    let changed = live.change(vec![TurnSettingsChanged { turn: TurnId(params.turn_id), settings }.into()]).await;
    let status = match changed {
        Ok(()) => TurnSettingsUpdateStatus::Applied,
        Err(CommandError::NoTurn | CommandError::OtherTurn { .. }) => TurnSettingsUpdateStatus::TargetUnavailable,
        Err(error) => return Err(fault::command(error)),
    };
    Ok(TurnSettingsUpdateResponse { status })
}
